"""How often a confidence interval holds the share that the program itself has measured: 95 times in 100 is what is claimed.

    cargo build --release -p ccsd
    sudo python3 benches/coverage.py                    four cases of 72 runs each, 18 minutes
    sudo python3 benches/coverage.py --rounds 20 --only bursts

Each run records a program of tests/fixtures/tick.c, whose four functions take turns of lengths by chance, and looks at the
four intervals of `ccsd report`, in percent of these functions. `bursts` sleeps after each turn, and some turns are long, so
that weights by the tick are unequal. `halved` begins at 3,996 Hz; ccsd is stopped again and again until samples are lost, so
that it halves its rate, four times. The standard error counts the four intervals of a run as three.
"""

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "fixtures", "tick.c")
# Arguments of the program: mode, milliseconds of CPU time, by what turns are shorter (a turn of many samples or of a large
# part of the run would make samples no draws by chance). Options; whether ccsd is stopped.
CASES = {
    "clock": (["shares", "600", "10"], ["-e", "cpu-clock", "-F", "499"], False),
    "tick": (["shares", "1000", "10"], ["-e", "tick"], False),
    "bursts": (["bursts", "1000", "1"], ["-e", "tick"], False),
    "halved": (["shares", "6000", "10"], ["-e", "cpu-clock", "-F", "3996"], True),
}
HALVINGS = 4


def disturb(process):
    """Stops ccsd until its rings are full, again and again, while it runs."""
    for _ in range(HALVINGS + 3):
        time.sleep(0.35)
        if process.poll() is not None:
            return
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        process.send_signal(signal.SIGCONT)


def run(ccsd, program, case, folder):
    """Of each function whether its interval holds its share, how wide the interval is, and how often the rate was lowered."""
    program_arguments, options, stopped = CASES[case]
    profile = os.path.join(folder, "profile.ccsd")
    command = [ccsd, "record", "--no-daemon", "-q", *options, "-o", profile, "--", program, *program_arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if stopped:
        disturb(process)
    printed, errors = process.communicate()
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}: {errors.strip()}")
    truth = {name: int(took) for name, took in re.findall(r"^(part_\d) (\d+)$", printed, re.MULTILINE)}
    report = [ccsd, "report", "--json", "--flat", "--focus", "/^part_/", profile]
    report = json.loads(subprocess.run(report, capture_output=True, text=True, check=True).stdout)
    shares = {row["name"]: row["inherited_share"] for row in report["flat"]["rows"]}
    held, widths = [], []
    for name, took in truth.items():
        share = shares.get(name, {"low": 0.0, "high": 0.0})
        held.append(share["low"] <= took / sum(truth.values()) <= share["high"])
        widths.append(share["high"] - share["low"])
    return held, widths, report["flat"]["total"]["samples"], report["accounting"]["pace"]["changes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ccsd", default="target/release/ccsd")
    parser.add_argument("--rounds", type=int, default=72)
    parser.add_argument("--only", default=",".join(CASES))
    arguments = parser.parse_args()
    ccsd = os.path.abspath(arguments.ccsd)
    print(f"| {arguments.rounds} runs each | intervals | hold the share | width | samples of a run | rate lowered |\n|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="ccsd-coverage-") as folder:
        program = os.path.join(folder, "tick")
        subprocess.run(["cc", "-O1", "-pthread", SOURCE, "-o", program], check=True)
        for case in arguments.only.split(","):
            runs = [run(ccsd, program, case, folder) for _ in range(arguments.rounds)]
            held = [it for one in runs for it in one[0]]
            part = sum(held) / len(held)
            error = math.sqrt(max(part * (1 - part), 0.0475 / 4) / (len(runs) * 3))
            mean = lambda values: sum(values) / len(values)
            width = mean([it for one in runs for it in one[1]])
            changes = [one[3] for one in runs]
            print(
                f"| {case} | {len(held)} | {100 * part:.1f}% (+-{100 * error:.1f}) | {100 * width:.1f} points | "
                f"{mean([one[2] for one in runs]):.0f} | {min(changes)} to {max(changes)} times |",
                flush=True,
            )


if __name__ == "__main__":
    main()
