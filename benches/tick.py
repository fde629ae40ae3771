"""How right the scheduler's tick is as a clock for samples, beside the CPU clock, on programs whose shares are known.

    cargo build --release -p ccsd
    sudo python3 benches/tick.py                   three tables, five minutes; what it costs is in cost.py (slowdown)
    sudo python3 benches/tick.py --rounds 2 --milliseconds 400

Each line is a sum over so many runs of a program of tests/fixtures: chi^2 of the shares that the samples give against those
that the program itself has measured (its average is the degrees of freedom where samples fall by chance), of the weights the
same, and the CPU time that the samples stand for over what was used.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "fixtures")
EVENTS = {"tick": ["-e", "tick"], "CPU clock, 250 Hz": ["-e", "cpu-clock", "-F", "250"]}


def recorded(ccsd, options, program, folder):
    """What the program printed, and the rows of its functions by name: samples and weight, callees included."""
    profile = os.path.join(folder, "profile.ccsd")
    command = [ccsd, "record", "--no-daemon", "-q", *options, "-o", profile, "--", *program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)}: {ran.stderr.strip()}")
    report = json.loads(subprocess.run([ccsd, "report", "--json", profile], capture_output=True, text=True, check=True).stdout)
    return ran.stdout, {row["name"]: (row["samples_inherited"], row["inherited_weight"]) for row in report["flat"]["rows"]}


def chi2(found, truth, count):
    """Of `count` draws, of which `found` is how they fell, or what they weighed."""
    sum_found, sum_truth = sum(found.values()), sum(truth.values())
    return sum((found[name] / sum_found - took / sum_truth) ** 2 * count * sum_truth / took for name, took in truth.items())


def shares(ccsd, program, rounds, folder, title):
    print(f"\n{title}\n\n| | samples | chi^2 of samples | of weights | CPU time in samples |\n|---|---:|---:|---:|---:|")
    for event, options in EVENTS.items():
        results, freedom = [], 0
        for _ in range(rounds):
            printed, rows = recorded(ccsd, options, program, folder)
            truth = {name: int(took) for name, took in re.findall(r"^(\w+) (\d+)$", printed, re.MULTILINE)}
            samples, weights = ({name: rows.get(name, (0, 0))[at] for name in truth} for at in (0, 1))
            count, freedom = sum(samples.values()), len(truth) - 1
            results.append((count, chi2(samples, truth, count), chi2(weights, truth, count),
                            sum(weights.values()) / sum(truth.values())))
        median, low, high = ([how(column) for column in zip(*results)] for how in (statistics.median, min, max))
        cells = [f"{median[at]:{form}} ({low[at]:{form}} to {high[at]:{form}})" for at, form in enumerate((".0f", ".1f", ".1f", ".3f"))]
        print(f"| {event}, {freedom} degrees of freedom | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ccsd", default="target/release/ccsd")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--milliseconds", type=int, default=2000, help="CPU time of each run")
    arguments = parser.parse_args()
    ccsd, rounds = os.path.abspath(arguments.ccsd), arguments.rounds
    with tempfile.TemporaryDirectory() as folder:
        programs = {}
        for name in ("tick", "weights"):
            programs[name] = os.path.join(folder, name)
            source = os.path.join(FIXTURES, name + ".c")
            subprocess.run(["cc", "-O1", "-pthread", source, "-o", programs[name]], check=True)
        length = str(arguments.milliseconds)
        print(f"{rounds} runs of {length} ms each; median (least to most)")
        shares(ccsd, [programs["tick"], "shares", length], rounds, folder, "Four functions, turns of 0.1 to 2.1 ms by chance")
        shares(ccsd, [programs["weights"], length], rounds, folder, "Twelve functions in the same order every 40 ms: in step with ten ticks")
        print("\nWork of 1 ms every 4 ms, begun by a timer of the program's own\n\n| | share of the work | CPU time in samples |\n|---|---:|---:|")
        for event, options in EVENTS.items():
            runs = [recorded(ccsd, options, [programs["tick"], "step", str(arguments.milliseconds // 4)], folder) for _ in range(rounds)]
            part = [rows.get("stepping_work", (0, 0))[1] / max(1, rows["main"][1]) for _, rows in runs]
            time = [rows["main"][1] / int(printed.split()[-1]) for printed, rows in runs]
            line = " | ".join(f"{statistics.median(v):.3f} ({min(v):.3f} to {max(v):.3f})" for v in (part, time))
            print(f"| {event} | {line} |", flush=True)


if __name__ == "__main__":
    main()
