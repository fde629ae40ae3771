"""How the daemon bears many sessions and many readers, some of whom have stopped reading.

    cargo build --release -p ccsd
    sudo python3 benches/load.py                      100 sessions on 500 threads, 50 readers, 10 of them stopped; 3 minutes
    sudo python3 benches/load.py --minutes 30         the figures of benches/README.md
    sudo python3 benches/load.py --sessions 10 --threads 50 --readers 5 --stopped 1 --minutes 1      small
    sudo python3 benches/load.py --busy 1000          threads that want ten times as much CPU as there is

Every line is a minute (--period): the daemon's memory (resident; and what is pinned, its rings), its share of one CPU, how
long `ccsd daemon status` took, and what the readers got. A reader checks that each update begins where the one before it ended:
"lost" counts intervals that never came, "merged" updates of more than one interval, "anew" streams that began again from a
snapshot. Of the readers half are on one session, the others on one each. Those that are stopped are continued before the
end, and must end where the others of their session end. At last the daemon is told to end, and that is timed.
"""

import argparse
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

# Threads that work for a while and sleep for a while, on 200 paths through 16 functions: a profile that is soon complete.
PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double busy;
static unsigned long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000ul + time.tv_nsec;
}
static volatile unsigned long sum;
#define STEP(n) static __attribute__((noinline)) void step##n(unsigned path, int depth, unsigned long until);
#define STEPS(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11) x(12) x(13) x(14) x(15)
STEPS(STEP)
#define ENTRY(n) step##n,
static void (*const steps[])(unsigned, int, unsigned long) = {STEPS(ENTRY)};
static void go(unsigned path, int depth, unsigned long until) {
    if (depth > 0) steps[(path * 2654435761u >> (depth & 15)) & 15](path, depth - 1, until);
    else while (now() < until) for (int i = 0; i < 1000; i++) sum += i * path;
}
#define BODY(n) static void step##n(unsigned path, int depth, unsigned long until) { go(path, depth, until); sum += n; }
STEPS(BODY)
static void *work(void *argument) {
    unsigned path = (unsigned)(unsigned long)argument;
    usleep(path * 7919u % 1000 * 1000);
    for (;; path++) {
        unsigned long piece = 2000000, idle = busy >= 1 ? 0 : (unsigned long)(piece / busy * (1 - busy) / 1000);
        go(path % 200, 4 + path % 24, now() + piece);
        if (idle) usleep(idle);
    }
    return NULL;
}
int main(int argc, char **argv) {
    int threads = atoi(argv[1]);
    busy = atof(argv[2]);
    unsigned seed = atoi(argv[3]);
    for (int i = 1; i < threads; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, (void *)(unsigned long)(seed + i));
    }
    puts("ready");
    fflush(stdout);
    work((void *)(unsigned long)seed);
}
"""

HELLO = {"protocol": 1, "ccsd": "bench", "pid": 0}
UPDATE = 2


class Connection:
    """A client of the daemon: frames of a kind, a length and a payload."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.input = self.socket.makefile("rb", buffering=1 << 16)
        self.say({**HELLO, "pid": os.getpid()})
        self.frame()

    def say(self, message):
        payload = json.dumps(message).encode()
        self.socket.sendall(b"C" + struct.pack("<I", len(payload)) + payload)

    def frame(self):
        header = self.input.read(5)
        if len(header) < 5:
            raise EOFError
        payload = self.input.read(struct.unpack("<I", header[1:])[0])
        return header[:1], payload

    def ask(self, message):
        self.say(message)
        reply = json.loads(self.frame()[1])
        if "refused" in reply:
            raise RuntimeError(reply["refused"]["message"])
        return reply


def varint(data, at):
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


class Reader:
    """What a reader makes of its stream: the intervals that its updates cover."""

    def __init__(self, interval):
        self.interval = interval
        self.counts = {"updates": 0, "lost": 0, "merged": 0, "anew": -1, "end": 0, "ended": False}
        self.begin()

    def begin(self):
        self.data, self.header, self.last, self.first = bytearray(), True, 0, True
        self.counts["anew"] += 1

    def take(self, data):
        self.data += data
        at = 12 if self.header else 0
        while len(self.data) >= at + 11 or (at < len(self.data) and not self.header):
            try:
                length, start = varint(self.data, at + 1)
            except IndexError:
                break
            if len(self.data) < start + length + 4:
                break
            if self.data[at] == UPDATE:
                self.update(self.data, start)
            self.header, at = False, start + length + 4
        if not self.header:
            del self.data[:at]

    def update(self, data, at):
        begin, at = varint(data, at)
        span, _ = varint(data, at)
        span = (span >> 1) ^ -(span & 1)
        counts = self.counts
        # Of an update that takes several records, all have its times.
        if begin + span == self.last and not self.first:
            return
        counts["updates"] += 1
        if not self.first:
            counts["lost"] += begin != self.last
            counts["merged"] += span > 1.8 * self.interval
        self.first, self.last = False, begin + span
        counts["end"] = self.last


def read_session(path, session, interval, out):
    """A reader, until its stream ends. Writes what it has counted whenever that changes, in place."""
    reader = Reader(interval)
    connection = Connection(path)
    connection.say({"subscribe": {"session": session, "follow": True}})
    connection.frame()
    try:
        while True:
            kind, payload = connection.frame()
            if kind == b"S":
                reader.take(payload)
            elif json.loads(payload) == "stream":
                reader.begin()
            else:
                reader.counts["ended"] = True
                break
            tell(out, reader.counts)
    except (EOFError, OSError):
        pass
    tell(out, reader.counts)


def tell(out, counts):
    os.pwrite(out, json.dumps(counts).encode().ljust(256), 0)


class Readers:
    """Processes that read, and what they have counted."""

    def __init__(self, folder, path, sessions, count, stopped, interval):
        self.pids, self.files, self.stopped, self.sessions = [], [], set(), []
        for number in range(count):
            session = sessions[0] if number % 2 == 0 else sessions[(number + 1) // 2 % len(sessions)]
            file = os.open(os.path.join(folder, f"reader{number}"), os.O_RDWR | os.O_CREAT)
            tell(file, {})
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                read_session(path, session, interval, file)
                os._exit(0)
            self.pids.append(pid)
            self.files.append(file)
            self.sessions.append(session)
        self.to_stop = range(count - stopped, count)

    def counts(self):
        return [json.loads(os.pread(file, 256, 0)) for file in self.files]

    def stop_some(self):
        for number in self.to_stop:
            os.kill(self.pids[number], signal.SIGSTOP)
            self.stopped.add(number)

    def go_on(self):
        for number in self.stopped:
            os.kill(self.pids[number], signal.SIGCONT)

    def summary(self):
        reading = [counts for number, counts in enumerate(self.counts()) if number not in self.stopped]
        add = lambda key: sum(counts.get(key, 0) for counts in reading)
        fewest = min((counts.get("updates", 0) for counts in reading), default=0)
        return fewest, add("updates"), add("lost"), add("merged"), add("anew")

    def wait(self):
        for pid in self.pids:
            os.waitpid(pid, 0)


def memory(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        lines = dict(line.split(":", 1) for line in status)
    return [int(lines[key].split()[0]) / 1024 for key in ("VmRSS", "VmPin")] + [int(lines["Threads"])]


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_targets(folder, arguments):
    source, program = os.path.join(folder, "target.c"), os.path.join(folder, "target")
    with open(source, "w", encoding="utf-8") as file:
        file.write(PROGRAM)
    subprocess.run(["cc", "-O1", "-g", "-fno-optimize-sibling-calls", "-pthread", source, "-o", program], check=True)
    each = max(1, arguments.threads // arguments.sessions)
    share = arguments.busy / 100 * os.cpu_count() / (each * arguments.sessions)
    targets = []
    for number in range(arguments.sessions):
        command = [program, str(each), f"{share:.6f}", str(number * 1000)]
        targets.append(subprocess.Popen(command, stdout=subprocess.PIPE))
    for target in targets:
        target.stdout.readline()
    return targets


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ccsd", default="target/release/ccsd")
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--threads", type=int, default=500, help="of all programs together; each has a session")
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--stopped", type=int, default=10, help="readers that are stopped by SIGSTOP after the first period")
    parser.add_argument("--busy", type=float, default=25, help="CPU that the programs want, percent of the machine's")
    parser.add_argument("--rate", type=int, default=99, help="samples per second of CPU time")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--period", type=float, default=60, help="seconds to a line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ccsd-load-") as folder:
        targets, daemon = [], None
        try:
            targets = start_targets(folder, arguments)
            path = os.path.join(folder, "sock")
            with open(os.path.join(folder, "log"), "w", encoding="utf-8") as log:
                daemon = subprocess.Popen([arguments.ccsd, "daemon", "--socket", path], stderr=log)
            measure(folder, path, daemon, targets, arguments)
        finally:
            for process in targets + ([daemon] if daemon else []):
                process.kill()
                process.wait()


def measure(folder, path, daemon, targets, arguments):
    while not os.path.exists(path):
        time.sleep(0.01)
    control = Connection(path)
    collect = {"rate_hz": arguments.rate, "interval_ms": 1000}
    alone = memory(daemon.pid)[0]
    began = time.monotonic()
    sessions = []
    for target in targets:
        request = {"attach": {"pids": [target.pid], "collect": collect, "detach": True}}
        sessions.append(control.ask(request)["started"]["session"])
    took = time.monotonic() - began
    print(
        f"{len(sessions)} sessions, {arguments.threads} threads that want {arguments.busy:g}% of {os.cpu_count()} CPUs, "
        f"{arguments.rate} Hz; {arguments.readers} readers, {arguments.stopped} of them stopped after the first line; "
        f"load {os.getloadavg()[0]:.1f}. The daemon alone has {alone:.1f} MiB; attaching took {took:.1f} s.\n"
    )
    readers = Readers(folder, path, sessions, arguments.readers, arguments.stopped, 1e9)
    print(
        "| s | RSS MiB | MiB a session | pinned MiB | threads | CPU % of one | `sessions` ms "
        "| updates of the slowest | of all | lost | merged | anew |\n" + "|---:" * 12 + "|"
    )
    begin = time.monotonic()
    cpu, then = cpu_seconds(daemon.pid), begin
    while time.monotonic() < begin + arguments.minutes * 60:
        time.sleep(max(0, min(arguments.period, begin + arguments.minutes * 60 - time.monotonic())))
        (rss, pinned, threads), now = memory(daemon.pid), time.monotonic()
        cpu_now = cpu_seconds(daemon.pid)
        percent, cpu, passed = 100 * (cpu_now - cpu) / (now - then), cpu_now, now - begin
        then = now
        subprocess.run([arguments.ccsd, "sessions", "--socket", path], stdout=subprocess.DEVNULL, check=True)
        answer = 1000 * (time.monotonic() - now)
        fewest, *others = readers.summary()
        print(
            f"| {passed:.0f} | {rss:.1f} | {(rss - alone) / len(sessions):.2f} | {pinned:.1f} | {threads} | {percent:.2f} "
            f"| {answer:.0f} | {fewest} | " + " | ".join(map(str, others)) + " |",
            flush=True,
        )
        if not readers.stopped:
            readers.stop_some()
    end(daemon, readers)


def end(daemon, readers):
    before = readers.counts()
    began = time.monotonic()
    readers.go_on()
    daemon.send_signal(signal.SIGTERM)
    status = daemon.wait()
    took = time.monotonic() - began
    readers.wait()
    counts = readers.counts()
    print(f"\nSIGTERM to its end: {took:.2f} s, status {status}.")
    ends = {}
    for session, count in zip(readers.sessions, counts):
        ends.setdefault(session, []).append(count.get("end"))
    agree = sum(len(set(times)) == 1 for times in ends.values())
    lost = sum(count.get("lost", 0) for count in counts)
    behind = sum(counts[number]["anew"] for number in readers.stopped)
    got = sum(counts[number]["updates"] - before[number]["updates"] for number in readers.stopped)
    print(
        f"{sum(bool(count.get('ended')) for count in counts)} of {len(counts)} readers got their end, and the readers of "
        f"{agree} of {len(ends)} sessions got to the same; {lost} intervals were lost.\n"
        f"Those that had stopped got {got} updates when they went on, and {behind} began anew."
    )
    lost_by_reading = sum(c.get("lost", 0) + c.get("merged", 0) for n, c in enumerate(counts) if n not in readers.stopped)
    sys.exit(0 if status == 0 and lost == 0 and lost_by_reading == 0 else 1)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
