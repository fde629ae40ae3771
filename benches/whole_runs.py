#!/usr/bin/env python3
"""What a whole `ccsd record` costs, from its start to its end, beside perf where that is there.

    python3 benches/whole_runs.py [--ccsd target/release/ccsd] [--rounds 11] [--compiler-rounds 3]

Two programs: one that burns half a second of CPU, for start-up and exit, and GCC's cc1 on a made-up file of 300 functions.
Rounds are interleaved: bare, then each profiler, then again. Printed are medians, and of the ratios the least and the largest.
Before them, what the first run costs ccsd, by phase: as it is (run this first after a boot), with all caches empty (root: the page
cache and the kept kernel symbols are dropped, ccsd is a fresh copy), and again with them filled.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

BURN = """
static volatile unsigned long sum;
__attribute__((noinline)) static void inner(long n) { for (long i = 0; i < n; i++) sum += i; }
int main(void) { for (int k = 0; k < 420; k++) inner(2000000); return 0; }
"""


def source(functions):
    """C that takes a compiler its time."""
    lines = ["typedef struct { int a[16]; double d[8]; } S;"]
    for i in range(functions):
        lines.append(f"int f{i}(S *s, int n) {{ int r = {i}; for (int i = 0; i < n; i++) {{"
                     f" for (int j = 0; j < 16; j++) {{ r += s[i].a[j] * (j ^ {i}); s[i].d[j & 7] += r / (j + 1.5);"
                     f" if (r % {i % 7 + 2} == 0) r ^= s[i].a[(j + {i}) & 15]; }}"
                     f" switch (r & 7) {{ case 0: r += {i}; break; case 1: r -= n; break; case 5: r *= 3; break; default: r ^= i; }} }}"
                     + (f" return r + f{i - 1}(s, n - 1); }}" if i else " return r; }"))
    return "\n".join(lines) + "\n"


KEPT = "/var/cache/ccsd/kernel-symbols"


def empty_caches():
    """Whether the kernel's caches and ccsd's could be emptied."""
    if os.geteuid() != 0:
        return False
    if os.path.exists(KEPT):
        os.remove(KEPT)
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3")
    except OSError:
        return False
    return True


def first_runs(ccsd, program, folder):
    with open("/proc/uptime", encoding="ascii") as file:
        up = float(file.read().split()[0])
    print(f"the first run, {up / 60:.0f} minutes after the boot: ccsd's CPU time by phase, ms")
    out, home, copy = os.path.join(folder, "first"), os.path.join(folder, "home"), os.path.join(folder, "ccsd")
    os.makedirs(home, exist_ok=True)
    titles = False
    for name in ("as it is", "empty caches", "again", "again"):
        binary = ccsd
        if name == "empty caches":
            shutil.copy(ccsd, copy)
            if not empty_caches():
                print("not root, or caches cannot be dropped: no run with empty ones")
                break
            binary = copy
        began = time.monotonic()
        environment = dict(os.environ, HOME=home, XDG_CACHE_HOME=os.path.join(home, "cache"))
        process = subprocess.Popen([binary, "record", "--no-daemon", "-q", "-o", out, "--", *program], env=environment)
        _, status, _ = os.wait4(process.pid, 0)
        wall = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"the first run failed: {process.returncode}")
        report = subprocess.run([binary, "report", "--json", out], capture_output=True, check=True)
        accounting = json.loads(report.stdout)["accounting"]
        phases = accounting["own_cpu_by_phase_ns"]
        if not titles:
            print(f"{'':14}{'wall':>10}{'all':>8}" + "".join(f"{phase:>14}" for phase in phases))
            titles = True
        print(f"{name:14}{wall:8.3f} s{accounting['own_cpu_ns'] / 1e6:8.1f}" + "".join(f"{ns / 1e6:14.1f}" for ns in phases.values()))
    print()


def rounds(title, commands, out, count):
    print(f"{title}; {count} rounds")
    wall = {name: [] for name in commands}
    cpu = {name: [] for name in commands}
    peak = {name: 0 for name in commands}
    size = {name: 0 for name in commands}
    for _ in range(count):
        for name, command in commands.items():
            if os.path.exists(out):
                os.remove(out)
            began = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                sys.exit(f"{name} failed: {' '.join(command)}")
            wall[name].append(time.monotonic() - began)
            cpu[name].append(usage.ru_utime + usage.ru_stime)
            peak[name] = max(peak[name], usage.ru_maxrss)
            size[name] = os.path.getsize(out) if os.path.exists(out) else 0
    print(f"{'':14}{'wall':>10}{'over bare':>11}{'least':>8}{'most':>8}{'more CPU':>12}{'file':>11}")
    for name in commands:
        ratios = [a / b for a, b in zip(wall[name], wall["bare"])]
        more = statistics.median(a - b for a, b in zip(cpu[name], cpu["bare"]))
        print(f"{name:14}{statistics.median(wall[name]):8.3f} s{statistics.median(ratios):11.3f}{min(ratios):8.3f}{max(ratios):8.3f}"
              f"{more * 1000:9.0f} ms{size[name] / 1e6:8.2f} MB")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ccsd", default="target/release/ccsd")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--compiler-rounds", type=int, default=3)
    parser.add_argument("--rate", default="999")
    arguments = parser.parse_args()
    compiler = shutil.which("cc") or sys.exit("a C compiler is needed")
    cc1 = subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True).stdout.strip() if shutil.which("gcc") else ""
    with tempfile.TemporaryDirectory() as folder:
        burn, out = os.path.join(folder, "burn"), os.path.join(folder, "out")
        subprocess.run([compiler, "-O1", "-x", "c", "-", "-o", burn], input=BURN, text=True, check=True)

        def beside(program):
            commands = {"bare": program}
            if shutil.which("perf"):
                for name, stacks in (("perf fp", "fp"), ("perf dwarf 8k", "dwarf,8192")):
                    commands[name] = ["perf", "record", "-q", "-F", arguments.rate, "-e", "cpu-clock:u", "--call-graph", stacks, "-o", out, "--",
                                      *program]
            commands["ccsd"] = [arguments.ccsd, "record", "--no-daemon", "-q", "-F", arguments.rate, "-o", out, "--", *program]
            return commands

        first_runs(arguments.ccsd, [burn], folder)
        rounds("half a second of CPU", beside([burn]), out, arguments.rounds)
        if os.path.exists(cc1):
            text = os.path.join(folder, "many.c")
            with open(text, "w", encoding="utf-8") as file:
                file.write(source(300))
            rounds("cc1 -O2", beside([cc1, "-quiet", "-O2", text, "-o", "/dev/null"]), out, arguments.compiler_rounds)
        else:
            print("no gcc: cc1 is left out")


if __name__ == "__main__":
    main()
