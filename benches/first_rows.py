#!/usr/bin/env python3
"""How soon `ccsd attach PID` and `ccsd top --plain --attach PID` show their first rows on a terminal.

The target has 200 threads and 300 mapped libraries; two of the threads work. Usage, as root:

    python3 benches/first_rows.py [--ccsd target/release/ccsd] [--runs 10] [--threads 200] [--mappings 300]
"""

import argparse
import os
import pty
import re
import select
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile unsigned long sum;
static void *work(void *unused) { for (;;) for (int i = 0; i < 1000; i++) sum += i; return unused; }
static void *wait_here(void *unused) { for (;;) pause(); return unused; }
int main(int argc, char **argv) {
    char name[4096];
    for (int i = 0; i < atoi(argv[2]); i++) {
        snprintf(name, sizeof name, "%s/lib%d.so", argv[3], i);
        if (!dlopen(name, RTLD_NOW)) { puts(dlerror()); return 1; }
    }
    for (int i = 0; i < atoi(argv[1]) - 1; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, i < 2 ? work : wait_here, NULL)) return 1;
    }
    puts("ready");
    fflush(stdout);
    pause();
    return argc;
}
"""

ROWS = {
    # The status line names the function that leads; a table has a head.
    "attach": re.compile(rb"\d\.\d\d% \w"),
    "top --plain --attach": re.compile(rb"%  +[\w.-]+ +\w+|\d+\.\d\d +\S+ +work"),
}


def build(directory, mappings):
    source = os.path.join(directory, "program.c")
    with open(source, "w") as file:
        file.write(PROGRAM)
    program = os.path.join(directory, "program")
    subprocess.run(["cc", "-O1", "-g", "-pthread", "-o", program, source, "-ldl"], check=True)
    # Each library has a name and an inode of its own; what is in them is the same.
    library = os.path.join(directory, "library.c")
    with open(library, "w") as file:
        file.write("".join(f"int f{i}(int x) {{ return x + {i}; }}\n" for i in range(100)))
    first = os.path.join(directory, "lib0.so")
    subprocess.run(["cc", "-O1", "-g", "-shared", "-fPIC", "-o", first, library], check=True)
    for i in range(1, mappings):
        shutil.copy(first, os.path.join(directory, f"lib{i}.so"))
    return program


def first_rows(command, wanted, environment):
    """Milliseconds until the first output and until the first rows."""
    began = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, environment)
    # Wide enough for everything in one line.
    import fcntl, struct, termios
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    seen, something, rows = b"", None, None
    while rows is None and time.monotonic() - began < 20:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            break
        now = (time.monotonic() - began) * 1000
        something = something or now
        if wanted.search(seen):
            rows = now
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(terminal)
    if rows is None:
        raise SystemExit(f"{command} showed no rows: {seen.decode(errors='replace')}")
    return something, rows


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--ccsd", default="target/release/ccsd")
    arguments.add_argument("--runs", type=int, default=10)
    arguments.add_argument("--threads", type=int, default=200)
    arguments.add_argument("--mappings", type=int, default=300)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        program = build(directory, options.mappings)
        target = subprocess.Popen(
            [program, str(options.threads), str(options.mappings), directory], stdout=subprocess.PIPE, text=True
        )
        socket = os.path.join(directory, "ccsd.sock")
        daemon = None
        try:
            if target.stdout.readline() != "ready\n":
                raise SystemExit("the target has failed")
            print(f"{options.threads} threads, {options.mappings} libraries; milliseconds, median (smallest to largest)")
            for by in ["alone", "daemon"]:
                if by == "daemon":
                    daemon = subprocess.Popen([options.ccsd, "daemon", "--socket", socket], stderr=subprocess.PIPE, text=True)
                    while "listens at" not in daemon.stderr.readline():
                        pass
                environment = dict(os.environ, CCSD_SOCKET=socket if daemon else "")
                for what, wanted in ROWS.items():
                    command = [options.ccsd, *what.split(), str(target.pid)]
                    if what == "attach":
                        command += ["-o", os.path.join(directory, "p.ccsd")]
                    times = [first_rows(command, wanted, environment) for _ in range(options.runs)]
                    shown = [
                        f"{statistics.median(column):6.0f} ({min(column):.0f} to {max(column):.0f})" for column in zip(*times)
                    ]
                    print(f"{by:7} {what:14} first output {shown[0]:22} first rows {shown[1]}")
        finally:
            target.kill()
            if daemon:
                daemon.kill()


if __name__ == "__main__":
    main()
