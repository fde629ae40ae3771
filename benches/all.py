"""Runs every benchmark of this folder, one after the other, and prints all their tables.

    cargo build --release -p ccsd && cargo build --release -p ccsd-symbolizer --example resolve
    sudo python3 benches/all.py                   what benches/README.md has; two hours
    sudo python3 benches/all.py --quick           the same tables from short runs: see that all works; some 20 minutes
    python3 benches/all.py --only papers,peers --quick
    python3 benches/all.py --list                 which there are, how long they take, and what they want

Two tables have no script, and are not printed: those of recursion 100,000 calls deep, and of smaller copies of the stack. What cannot be run here (no root, a program that is
missing) says so and is left out; the exit status is 1 if one of them failed. The first lines say machine, kernel, date and load: figures of a busy machine are those of a busy machine.
"""

import argparse
import dataclasses
import datetime
import os
import platform
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


@dataclasses.dataclass(frozen=True)
class Part:
    """Something that prints tables."""

    name: str
    section: str
    command: list
    quick: list
    # Minutes of both on two idle CPUs, about.
    minutes: tuple
    root: bool = False
    # Whether it takes --ccsd.
    ccsd: bool = False
    programs: tuple = ()


def python(script, *options):
    return [sys.executable, os.path.join(HERE, script), *options]


def cargo(bench, *options):
    return ["cargo", "bench", "-p", "ccsd-benches", "--bench", bench, *(["--", *options] if options else [])]


SHORT = ["--warm-up-time", "0.2", "--measurement-time", "0.5", "--sample-size", "10"]
PARTS = [
    Part("heart", "What was measured: contexts, charges, file format, views", cargo("profile"), cargo("profile", *SHORT),
         (5, 2), programs=("cargo",)),
    Part("sample", "What was measured: a sample", cargo("collector"), cargo("collector", *SHORT), (3, 1), programs=("cargo",)),
    Part("machine", "Large machines", cargo("machine"), cargo("machine"), (2, 2), programs=("cargo",)),
    Part("papers", "The papers' tables", python("papers.py"), python("papers.py", "--quick"), (8, 1), ccsd=True, programs=("gcc",)),
    Part("whole-runs", "Whole runs", python("whole_runs.py"), python("whole_runs.py", "--rounds", "1", "--compiler-rounds", "1"),
         (2, 0.5), ccsd=True, programs=("cc",)),
    Part("cost", "What sampling costs", python("cost.py"), python("cost.py", "--quick"), (16, 3), ccsd=True, programs=("cc",)),
    Part("tick", "The scheduler's tick", python("tick.py"), python("tick.py", "--rounds", "2", "--milliseconds", "400"), (4, 0.5), True,
         True, ("cc",)),
    Part("coverage", "Intervals", python("coverage.py"), python("coverage.py", "--rounds", "3"), (18, 1), True, True, ("cc",)),
    Part("first-rows", "First rows", python("first_rows.py"), python("first_rows.py", "--runs", "1"), (1, 0.5), True, True, ("cc",)),
    Part("debug-info", "Much debug information", python("debug_info.py"), python("debug_info.py", "--rounds", "1", "--copies", "10"),
         (10, 2), programs=("rustc",)),
    Part("debug-info-c++", "Much debug information, C++", python("debug_info.py", "--language", "c++"),
         python("debug_info.py", "--language", "c++", "--rounds", "1", "--copies", "10"), (10, 2), programs=("g++",)),
    Part("load", "Many sessions, many readers", python("load.py", "--minutes", "30", "--busy", "10"),
         python("load.py", "--sessions", "10", "--threads", "50", "--readers", "5", "--stopped", "1", "--minutes", "2", "--busy", "10"),
         (31, 2.5), True, True, ("cc",)),
    Part("hostile", "Hostile programs", python("hostile.py"), python("hostile.py", "--minutes", "0.5", "--period", "15"), (42, 3), True, True, ("cc",)),
    Part("peers", "Side by side with perf and samply", python("peers", "--allow-sysctl", "--rounds", "3"),
         python("peers", "--programs", "cc1,cpp,deep,threads"), (15, 3), True, True, ("gcc", "g++")),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--only", metavar="NAME,...", help="some of them")
    parser.add_argument("--ccsd", metavar="PATH", help="another than target/release/ccsd, where a script takes one")
    parser.add_argument("--list", action="store_true", help="say which there are")
    arguments = parser.parse_args()
    parts = chosen(arguments.only)
    if arguments.list:
        for part in parts:
            needs = [*(["root"] if part.root else []), *part.programs]
            print(f"{part.name:12} {part.minutes[0]:4} min, quick {part.minutes[1]} min; wants {', '.join(needs)}: {part.section}")
        return 0
    minutes = sum(part.minutes[arguments.quick] for part in parts)
    print(f"{datetime.datetime.now():%Y-%m-%d %H:%M}, {os.cpu_count()} x {cpu()}, Linux {platform.release()}, "
          f"load {os.getloadavg()[0]:.1f}; ccsd at {commit()}; about {minutes:g} minutes on an idle machine", flush=True)
    outcomes = [(part, *run(part, arguments)) for part in parts]
    print("\n| table | outcome | minutes |\n|---|---|---:|")
    for part, outcome, seconds in outcomes:
        print(f"| {part.section} | {outcome} | {seconds / 60:.1f} |")
    return 1 if any(outcome.startswith("failed") for _, outcome, _ in outcomes) else 0


def chosen(names):
    if names is None:
        return PARTS
    wanted = names.split(",")
    unknown = [name for name in wanted if name not in {part.name for part in PARTS}]
    if unknown:
        sys.exit(f"all.py: no {', '.join(unknown)}; there are {', '.join(part.name for part in PARTS)}")
    return [part for part in PARTS if part.name in wanted]


def run(part, arguments):
    """Runs one, its output passing through. Returns what came of it, and seconds."""
    print(f"\n## {part.section}\n", flush=True)
    missing = [program for program in part.programs if shutil.which(program) is None]
    if part.root and os.geteuid() != 0:
        missing.append("root")
    if missing:
        print(f"left out: it wants {', '.join(missing)}", flush=True)
        return f"left out: no {', '.join(missing)}", 0.0
    command = list(part.quick if arguments.quick else part.command)
    if part.ccsd and arguments.ccsd:
        command += ["--ccsd", os.path.abspath(arguments.ccsd)]
    words = ["python3", os.path.relpath(command[1], ROOT), *command[2:]] if command[0] == sys.executable else command
    print(f"    {' '.join(words)}\n", flush=True)
    began = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return "done" if status == 0 else f"failed with status {status}", time.monotonic() - began


def cpu():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit():
    found = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "an unknown commit"


if __name__ == "__main__":
    sys.exit(main())
