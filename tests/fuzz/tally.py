#!/usr/bin/env python3
"""Runs one target and adds what it did to the totals.
tally.py TARGET LOG PROGRAM ARGUMENT...     runs PROGRAM; its output is in LOG; ends as it did"""
import fcntl, pathlib, re, resource, subprocess, sys, time

TOTALS = pathlib.Path(__file__).resolve().parent / "totals"
HEAD = f"{'target':15} {'executions':>12} {'CPU minutes':>12} {'since new code':>15}"


def read():
    """(executions, CPU minutes, CPU minutes since new code was reached) by target."""
    totals = {}
    for line in TOTALS.read_text().splitlines()[1:] if TOTALS.exists() else []:
        target, *numbers = line.split()
        totals[target] = [float(number) for number in numbers]
    return totals


def run(command, log):
    """Its exit status, executions, and the share of its time since an edge of code was reached for the first time."""
    start = news = time.monotonic()
    done, most = 0, None
    with open(log, "w") as out, subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as program:
        for line in program.stderr:
            out.write(line)
            if found := re.match(r"#(\d+)\s+(\S+) .*cov: (\d+)", line):
                done = int(found[1])
                # What the inputs of the runs before reach is not new.
                if found[2] in ("NEW", "REDUCE") and most is not None and int(found[3]) > most:
                    news = time.monotonic()
                most = max(most or 0, int(found[3]))
            elif found := re.match(r"stat::number_of_executed_units:\s*(\d+)", line):
                done = int(found[1])
    end = time.monotonic()
    return program.returncode, done, (end - news) / (end - start) if news > start else None


def main():
    target, log, *command = sys.argv[1:]
    status, done, quiet = run(command, log)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    minutes = (spent.ru_utime + spent.ru_stime) / 60
    with open(TOTALS.parent / "target/totals.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        totals = read()
        executions, before, without = totals.get(target, (0, 0, 0))
        without = without + minutes if quiet is None else minutes * quiet
        totals[target] = (executions + done, before + minutes, without)
        rows = (f"{name:15} {n:12.0f} {spent:12.1f} {quiet:15.1f}" for name, (n, spent, quiet) in sorted(totals.items()))
        TOTALS.write_text("\n".join([HEAD, *rows]) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
