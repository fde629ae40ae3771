"""What the daemon holds after hours of everything that may go wrong at once.

    cargo build --release -p ccsd
    sudo python3 benches/soak.py --minutes 45         the figures of benches/README.md
    sudo python3 benches/soak.py --minutes 3 --sessions 10 --readers 5      small

Sessions on programs whose threads and processes come and go, a watch on all of them, and readers. Every second one thing
happens by chance: a reader, a worker process or a target is killed (each is started again), the service reloads its
configuration, or the disk of its history fills up or is emptied. Every line is a minute: memory and descriptors of the
daemon and its workers, sessions that run and that are kept, and samples received and lost. At the end the last third is
compared with the minutes after the first ten (or the first third): what grows there grows for ever.
"""

import argparse
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/reader"))
from ccsd_client import Client, Refused

PROGRAM = r"""
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static volatile unsigned long sum;
static void *work(void *share) {
    for (unsigned long rounds = (unsigned long)share; rounds--;) for (int i = 0; i < 20000; i++) sum += i;
    return 0;
}
int main(void) {
    for (unsigned turn = 0;; turn++) {
        pthread_t threads[3];
        for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, work, (void *)40);
        for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
        if (turn % 8 == 0 && !fork()) { work((void *)10); if (turn % 16) execl("/bin/true", "true", (char *)0); _exit(0); }
        while (waitpid(-1, 0, WNOHANG) > 0) {}
        usleep(250000);
    }
}
"""

CONFIG = """socket = "{dir}/ccsd.sock"
state_dir = "{dir}/state"

[[watch]]
name = "soak"
exe = "{dir}/soak"
user = "*"
"""


def status_kb(pid, field):
    try:
        for line in open(f"/proc/{pid}/status"):
            if line.startswith(field + ":"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def descriptors(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


class Soak:
    def __init__(self, options, directory):
        self.options, self.dir = options, directory
        self.programs, self.readers, self.sessions = [], [], {}
        self.done = dict.fromkeys(["reader", "worker", "target", "reload", "disk full", "disk empty", "refused"], 0)
        (directory / "soak.c").write_text(PROGRAM)
        subprocess.run(["cc", "-O1", "-g", "-pthread", directory / "soak.c", "-o", directory / "soak"], check=True)
        state = directory / "state"
        state.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", state], check=True)
        config = directory / "ccsd.toml"
        config.write_text(CONFIG.format(dir=directory))
        self.log = open(directory / "log", "w")
        command = [options.ccsd, "daemon", "run", "--config", config]
        self.daemon = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 30
        while not (directory / "ccsd.sock").exists():
            assert time.monotonic() < deadline and self.daemon.poll() is None, (directory / "log").read_text()
            time.sleep(0.05)
        for _ in range(options.sessions):
            self.start_target()
        for _ in range(options.readers):
            self.start_reader()

    def client(self):
        return Client(str(self.dir / "ccsd.sock"))

    def start_target(self):
        program = subprocess.Popen([self.dir / "soak"], stdout=subprocess.DEVNULL)
        self.programs.append(program)
        try:
            request = {"attach": {"pids": [program.pid], "collect": {"rate_hz": 99}, "detach": True}}
            (reply,) = self.client().answers(request)
            self.sessions[reply["session"]] = program
        except Refused as why:
            self.done["refused"] += 1
            self.last_refusal = str(why)

    def start_reader(self):
        running = [session for session, program in self.sessions.items() if program.poll() is None]
        session = random.choice(running or [0])
        command = [sys.executable, ROOT / "tests/reader/ccsd_client.py", self.dir / "ccsd.sock", "stream", str(session), "/dev/null"]
        self.readers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def children(self):
        """The daemon's workers."""
        children = pathlib.Path(f"/proc/{self.daemon.pid}/task").glob("*/children")
        return [int(pid) for file in children for pid in file.read_text().split()]

    def disturb(self):
        """One thing that may go wrong."""
        what = random.choice(["reader", "reader", "worker", "target", "reload", "disk full", "disk empty"])
        full = self.dir / "state/full"
        if what == "reader" and self.readers:
            reader = random.choice(self.readers)
            reader.kill()
            reader.wait()
        elif what == "worker":
            workers = self.children()
            if not workers:
                return
            try:
                os.kill(random.choice(workers), signal.SIGKILL)
            except ProcessLookupError:
                pass
        elif what == "target":
            program = random.choice(self.programs)
            program.kill()
            program.wait()
            self.programs.remove(program)
            self.start_target()
        elif what == "reload":
            self.daemon.send_signal(signal.SIGHUP)
        elif what == "disk full":
            try:
                full.write_bytes(bytes(64 << 20))
            except OSError:
                pass
        else:
            full.unlink(missing_ok=True)
        self.done[what] += 1
        self.readers = [reader for reader in self.readers if reader.poll() is None]
        while len(self.readers) < self.options.readers:
            self.start_reader()

    def measure(self):
        workers = self.children()
        sessions = self.client().list()
        (watches,) = self.client().answers("watches")
        watch = watches["watches"][0]
        return {
            "daemon MiB": status_kb(self.daemon.pid, "VmRSS") / 1024,
            "workers MiB": sum(status_kb(pid, "VmRSS") for pid in workers) / 1024,
            "files": descriptors(self.daemon.pid),
            "threads": status_kb(self.daemon.pid, "Threads"),
            "running": sum(session["ended"] is None for session in sessions),
            "kept": sum(session["ended"] is not None for session in sessions),
            "received": sum(session["received"] for session in sessions),
            "lost": sum(session["lost"] for session in sessions),
            "watch received": watch["samples"],
            "watch missing": watch["missing"],
        }

    def run(self):
        rows, began = [], time.monotonic()
        while time.monotonic() - began < self.options.minutes * 60:
            end = began + (len(rows) + 1) * 60
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(1, left))
                assert self.daemon.poll() is None, f"the daemon has ended: {(self.dir / 'log').read_text()[-2000:]}"
                self.disturb()
            rows.append(self.measure())
            if len(rows) == 1:
                print("minute  " + "  ".join(rows[0]))
            print(f"{len(rows):6}  " + "  ".join(f"{value:{len(name)}.0f}" for name, value in rows[-1].items()), flush=True)
        print("done:   " + ", ".join(f"{count} x {what}" for what, count in self.done.items()))
        if self.done["refused"]:
            print("last refusal: " + self.last_refusal)
        warm = min(10, len(rows) // 3)
        first, last = rows[warm:max(warm + 1, len(rows) * 2 // 3)], rows[-max(1, len(rows) // 3):]
        grown = 0
        for name in ["daemon MiB", "workers MiB", "files", "threads"]:
            before, after = (max(row[name] for row in part) for part in (first, last))
            grown |= after > before * 1.1 + 4
            print(f"{name}: at most {before:.0f} in minutes {warm + 1} to {warm + len(first)}, at most {after:.0f} in the last {len(last)}")
        return grown

    def end(self):
        for process in self.readers + self.programs:
            process.kill()
        self.daemon.terminate()
        try:
            code = self.daemon.wait(30)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            code = "none: it had to be killed"
        subprocess.run(["umount", "-l", self.dir / "state"], check=False)
        return code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ccsd", default=ROOT / "target/release/ccsd")
    parser.add_argument("--minutes", type=int, default=45)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as directory:
        soak = Soak(options, pathlib.Path(directory))
        try:
            grown = soak.run()
        finally:
            code = soak.end()
        panics = (pathlib.Path(directory) / "log").read_text().count("panicked")
    print(f"exit status of the daemon: {code}; panics: {panics}")
    sys.exit(bool(grown or code or panics))


main()
