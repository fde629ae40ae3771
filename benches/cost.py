"""What sampling costs: a program per sample, the profiler per 1000 samples, memory and files, beside perf and samply.

    cargo build --release -p ccsd
    python3 benches/cost.py                                    four tables, a quarter of an hour on two idle CPUs; root for -e tick
    python3 benches/cost.py --quick --only target              short runs of one of: target, slowdown, profiler, growth

target: user CPU time that a program needs more for each sample at 9,999 Hz, so that it stands above the noise. slowdown: its CPU
time over bare at 999 Hz, by the tick and by the clock at 250 Hz. profiler: CPU time of the profiler itself, all of it, for 1,000
samples of GCC's cc1 (999 Hz), its peak and its file. growth: the same work ten times as long.

Rounds are interleaved: bare, then each profiler, then again; printed are medians, with least and most. Each profiler runs
with user stacks alone (perf: cpu-clock:u). samply is run where it is on the PATH, and refuses with perf_event_paranoid above 1.
"""

import argparse
import dataclasses
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from whole_runs import source

# Computes so many turns under 24 frames of some 450 bytes.
WORK = """
#include <stdlib.h>
static volatile unsigned long sink;
__attribute__((noinline)) static unsigned long burn(unsigned long x)
{ for (int i = 0; i < 20000; i++) x = x * 6364136223846793005UL + 1; sink += x; return x; }
__attribute__((noinline)) static unsigned long under(unsigned depth, unsigned long turns)
{
    volatile char frame[400];
    frame[0] = (char)depth;
    unsigned long sum = 0;
    if (depth == 0) while (turns--) sum += burn(turns);
    else sum = under(depth - 1, turns);
    return sum + frame[0];
}
int main(int count, char **words) { sink += under(24, strtoul(words[count - 1], 0, 10)); return 0; }
"""

# Runs a program, and writes down what CPU time it took: user and system, in microseconds.
TIMED = """
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words)
{
    int status = 0;
    struct rusage usage;
    pid_t child = fork();
    if (child == 0) { execvp(words[2], words + 2); _exit(127); }
    if (count < 3 || child < 0 || wait4(child, &status, 0, &usage) < 0) return 1;
    FILE *out = fopen(words[1], "w");
    if (!out) return 1;
    fprintf(out, "%ld", usage.ru_utime.tv_sec * 1000000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_sec * 1000000
            + usage.ru_stime.tv_usec);
    return fclose(out) || status != 0;
}
"""


@dataclasses.dataclass
class Run:
    """One run: CPU seconds of the program and of what profiled it, the profiler's peak in MiB, its file in MB."""

    target: float
    own: float
    peak: float
    file: float


class Bench:
    def __init__(self, ccsd, folder):
        self.ccsd, self.folder, self.out = ccsd, folder, os.path.join(folder, "out")
        self.times = os.path.join(folder, "times")
        self.work, self.timed = self.compiled("work", WORK), self.compiled("timed", TIMED)

    def compiled(self, name, text):
        path = os.path.join(self.folder, name)
        subprocess.run(["cc", "-O1", "-x", "c", "-", "-o", path], input=text.encode(), check=True)
        return path

    def profiler(self, name, rate):
        """The command before the program's, by what the tables call it."""
        perf = ["perf", "record", "-q", "-F", str(rate), "-e", "cpu-clock:u", "-o", self.out]
        ccsd = [self.ccsd, "record", "--no-daemon", "--user", "-F", str(rate), "-o", self.out]
        commands = {
            "bare": [],
            "perf, no stacks": [*perf, "--"],
            "perf, frame pointers": [*perf, "--call-graph", "fp", "--"],
            "perf, 8 KiB of stack": [*perf, "--call-graph", "dwarf,8192", "--"],
            "perf, 64 KiB of stack": [*perf, "--call-graph", "dwarf,65528", "--"],
            "samply": ["samply", "record", "-r", str(rate), "--save-only", "-o", self.out, "--"],
            "ccsd": [*ccsd, "--"],
            "ccsd, kernel too": [self.ccsd, "record", "--no-daemon", "-F", str(rate), "-o", self.out, "--"],
            "ccsd -e tick": [self.ccsd, "record", "--no-daemon", "-e", "tick", "-o", self.out, "--"],
        }
        return commands[name]

    def run(self, name, rate, program):
        if os.path.exists(self.out):
            os.remove(self.out)
        with open(os.path.join(self.folder, "errors"), "w+") as errors:
            command = [*self.profiler(name, rate), self.timed, self.times, *program]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
            peak, ended = 0, 0
            while not ended:
                peak = max(peak, high_water(process.pid))
                time.sleep(0.1)
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                errors.seek(0)
                sys.exit(f"{name} failed: {errors.read().strip()[-400:]}")
        with open(self.times) as times:
            target = int(times.read()) / 1e6
        own = usage.ru_utime + usage.ru_stime - target
        size = os.path.getsize(self.out) if os.path.exists(self.out) else 0
        return Run(target, own, peak / (1 << 20), size / 1e6)

    def rounds(self, names, rate, program, count):
        """All of them in turn, so many times. By name, the runs."""
        runs = {name: [] for name in names}
        for _ in range(count):
            for name in names:
                runs[name].append(self.run(name, rate, program))
        return runs


def high_water(pid):
    """VmHWM in bytes: what wait4() tells is the maximum over all that the process has waited for."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return next((int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:")), 0)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def spread(values, form):
    """Median (least to most)."""
    values = sorted(values)
    return f"{form.format(statistics.median(values))} ({form.format(values[0])} to {form.format(values[-1])})"


def peers(*names):
    """Those whose programs are here, and may be run."""
    def runs(name):
        if name == "samply" and paranoid() > 1:
            return False
        return name == "bare" or name.startswith("ccsd") or shutil.which(name.split(",")[0]) is not None

    return [name for name in names if runs(name)]


def paranoid():
    with open("/proc/sys/kernel/perf_event_paranoid") as file:
        return int(file.read())


def target(bench, quick):
    rate, count, turns = 9999, 3 if quick else 11, "15000" if quick else "90000"
    names = peers("bare", "perf, no stacks", "perf, frame pointers", "perf, 8 KiB of stack", "perf, 64 KiB of stack", "samply", "ccsd")
    runs = bench.rounds(names, rate, [bench.work, turns], count)
    bare = [run.target for run in runs["bare"]]
    print(f"24 frames of 450 bytes, {rate} Hz, {count} rounds of {statistics.median(bare):.1f} s\n")
    print("| | the program's CPU time for a sample, us |\n|---|---:|")
    for name in names[1:]:
        more = [(run.target - base) / (base * rate) * 1e6 for run, base in zip(runs[name], bare)]
        print(f"| {name} | {spread(more, '{:.1f}')} |")


def slowdown(bench, quick):
    count, turns = 3 if quick else 9, "15000" if quick else "150000"
    for rate, names in ((999, peers("bare", "perf, no stacks", "perf, 8 KiB of stack", "samply", "ccsd", "ccsd, kernel too")),
                        (250, peers("bare", "perf, 8 KiB of stack", "ccsd", *(["ccsd -e tick"] if os.geteuid() == 0 else [])))):
        runs = bench.rounds(names, rate, [bench.work, turns], count)
        bare = [run.target for run in runs["bare"]]
        print(f"\n{rate} Hz, {count} rounds of {statistics.median(bare):.1f} s\n\n| | CPU time over bare |\n|---|---:|")
        for name in names[1:]:
            print(f"| {name} | {spread([run.target / base for run, base in zip(runs[name], bare)], '{:.4f}')} |")


def compiler(bench, functions):
    """cc1 on a made-up file; `None` where there is no GCC."""
    if shutil.which("gcc") is None:
        return None
    found = subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True).stdout.strip()
    path = os.path.join(bench.folder, f"{functions}.c")
    with open(path, "w") as file:
        file.write(source(functions))
    return [found, "-quiet", "-O1", path, "-o", "/dev/null"]


def profiler(bench, quick):
    rate, count = 999, 1 if quick else 3
    program = compiler(bench, 100 if quick else 3000)
    if program is None:
        print("left out: it wants gcc")
        return
    names = peers("perf, no stacks", "perf, frame pointers", "perf, 8 KiB of stack", "samply", "ccsd", "ccsd, kernel too")
    runs = bench.rounds(names, rate, program, count)
    seconds = statistics.median(run.target for run in runs[names[0]])
    print(f"cc1 -O1, {seconds:.1f} s of CPU time, {rate} Hz, {count} rounds\n")
    print("| | profiler's CPU time for 1,000 samples, ms | its peak, MiB | file, MB |\n|---|---:|---:|---:|")
    for name in names:
        own = [run.own * 1e6 / (run.target * rate) for run in runs[name]]
        peak, size = (statistics.median(getattr(run, what) for run in runs[name]) for what in ("peak", "file"))
        print(f"| {name} | {spread(own, '{:.1f}')} | {peak:.0f} | {size:.2f} |")


def growth(bench, quick):
    rate, turns = 999, 6000 if quick else 60000
    print(f"the program above, {rate} Hz\n\n| | CPU time, s | peak, MiB | file, MB |\n|---|---:|---:|---:|")
    for name in peers("perf, 8 KiB of stack", "samply", "ccsd"):
        for times in (1, 10):
            run = bench.run(name, rate, [bench.work, str(turns * times)])
            print(f"| {name} | {run.target:.1f} | {run.peak:.1f} | {run.file:.3f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ccsd", default="target/release/ccsd")
    parser.add_argument("--quick", action="store_true", help="short runs, few rounds")
    parser.add_argument("--only", metavar="TABLE,...", help="some of the tables")
    arguments = parser.parse_args()
    tables = {table.__name__: table for table in (target, slowdown, profiler, growth)}
    wanted = arguments.only.split(",") if arguments.only else list(tables)
    if unknown := [name for name in wanted if name not in tables]:
        sys.exit(f"cost.py: no {', '.join(unknown)}; there are {', '.join(tables)}")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(os.path.abspath(arguments.ccsd), folder)
        if paranoid() > 1:
            print("without samply, which refuses where perf_event_paranoid is above 1")
        for name in wanted:
            print(f"\n### {name}\n", flush=True)
            tables[name](bench, arguments.quick)


if __name__ == "__main__":
    main()
