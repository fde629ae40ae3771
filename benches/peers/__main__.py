"""Runs ccsd, perf and samply on the same programs, and prints how whole, how well named and how dear their stacks are.

    python3 benches/peers                                      everything, one round
    python3 benches/peers --programs cc1,xz --profilers ccsd,perf --rounds 3

The columns are explained in benches/README.md. Wants root, or perf_event_paranoid at most 1. Needs gcc and g++, and for
the programs that are not there says which package has them.
"""

import argparse
import contextlib
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import profilers  # noqa: E402
from programs import PROGRAMS, Missing  # noqa: E402

PARANOID = "/proc/sys/kernel/perf_event_paranoid"
COLUMNS = ["program", "profiler", "expected", "received", "lost", "rooted %", "named %", "deepest", "finish s", "whole s", "MiB", "file MiB"]


def main():
    arguments = parse()
    # As Ctrl-C does: undo what was done.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    programs = chosen(arguments.programs, {program.name: program for program in PROGRAMS})
    tools = {"ccsd": profilers.Ccsd, "perf": profilers.Perf, "samply": profilers.Samply}
    paths = {"ccsd": arguments.ccsd, "perf": arguments.perf, "samply": arguments.samply}
    peers = []
    for kind in chosen(arguments.profilers, tools):
        path = shutil.which(paths[kind.name])
        if path is None:
            print(f"{kind.name} left out: no {paths[kind.name]} here", file=sys.stderr)
        else:
            peers.append(kind(os.path.abspath(path), arguments.rate, arguments.limit))
    print(about(peers, arguments), flush=True)
    print("\n| " + " | ".join(COLUMNS) + " |\n|" + "---|" * 2 + "---:|" * (len(COLUMNS) - 2), flush=True)
    details = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-"))
        # Programs leave files of their own where they run.
        os.chdir(folder)
        stack.enter_context(sampling_allowed(peers, arguments.allow_sysctl))
        for program in programs:
            try:
                command = program.command(folder)
            except Missing as missing:
                print(f"{program.name} left out: {missing}", file=sys.stderr)
                continue
            details += measure(program, command, peers, folder, arguments)
    print("\n" + "\n".join(details))


def parse():
    parser = argparse.ArgumentParser(prog="peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", metavar="A,B", help=", ".join(program.name for program in PROGRAMS))
    parser.add_argument("--profilers", metavar="A,B", help="ccsd, perf, samply")
    parser.add_argument("--rounds", type=int, default=1, help="rounds, of which the table has the medians [1]")
    parser.add_argument("--rate", type=int, default=999, help="samples per second of CPU time [999]")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a step of a profiler may take [300]")
    parser.add_argument("--details", type=int, default=0, metavar="N", help="list the N most frequent faults of each run")
    parser.add_argument("--ccsd", default="target/release/ccsd", metavar="PATH", help="[target/release/ccsd]")
    parser.add_argument("--perf", default="perf", metavar="PATH")
    parser.add_argument("--samply", default="samply", metavar="PATH")
    parser.add_argument(
        "--allow-sysctl",
        action="store_true",
        help="set kernel.perf_event_paranoid to 1 while this runs, and back: samply wants it even of root",
    )
    return parser.parse_args()


def chosen(text, known):
    """Those named in a list, or all."""
    names = text.split(",") if text else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no such choice: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names]


@contextlib.contextmanager
def sampling_allowed(peers, allowed):
    """Lowers perf_event_paranoid for samply, if that was asked for, and puts it back whatever happens."""
    with open(PARANOID, encoding="ascii") as file:
        before = file.read().strip()
    lower = allowed and int(before) > 1 and any(peer.name == "samply" for peer in peers)
    try:
        if lower:
            with open(PARANOID, "w", encoding="ascii") as file:
                file.write("1\n")
        yield
    finally:
        if lower:
            with open(PARANOID, "w", encoding="ascii") as file:
                file.write(before + "\n")


def about(peers, arguments):
    """What was measured, on what."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "?")
    versions = []
    for peer in peers:
        text = subprocess.run([peer.path, "--version"], capture_output=True, text=True, check=False).stdout.split()
        versions.append(f"{peer.name} {text[-1] if text else '?'}")
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} x {model}, Linux {platform.release()}; {', '.join(versions)}; "
        f"{arguments.rate} Hz; rounds: {arguments.rounds}"
    )


def measure(program, command, peers, folder, arguments):
    """Runs all rounds of a program, prints its rows, and returns what there is to say beside them."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    bare = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    forget_maps(process.pid)
    runs, problems = {peer.name: [] for peer in peers}, {}
    # Interleaved, so that what drifts hits all alike.
    for _ in range(arguments.rounds):
        for peer in peers:
            try:
                run = peer.run(command, folder)
                forget_maps(run.target.pid)
                runs[peer.name].append(run)
            except profilers.TooLong:
                problems[peer.name] = f">{arguments.limit:.0f} s"
            except profilers.Failed as failed:
                problems[peer.name] = str(failed)
    for peer in peers:
        print(row(program, peer, runs[peer.name], arguments.rate, problems.get(peer.name)), flush=True)
    details = [f"{program.name}: {program.what}; {bare:.1f} s bare, {used.ru_utime + used.ru_stime:.1f} s CPU"]
    for peer in peers:
        for run in runs[peer.name]:
            details += [f"    {peer.name}: {line}" for line in faults(run, arguments.details)]
    return details


def forget_maps(pid):
    """Removes what a JIT compiler wrote for profilers."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(f"/tmp/perf-{pid}.map")


def row(program, peer, runs, rate, problem):
    cells = [program.name, peer.name]
    if not runs:
        return "| " + " | ".join(cells + [problem or "failed"] + [""] * (len(COLUMNS) - 3)) + " |"

    def median(value, form):
        values = [value(run) for run in runs]
        return "" if None in values else format(statistics.median(values), form)

    cells += [
        median(lambda run: run.target.cpu * rate, ".0f"),
        median(lambda run: run.received, ".0f"),
        median(lambda run: run.lost, ".0f"),
        median(lambda run: run.verdict.rooted_percent, ".2f"),
        median(lambda run: run.verdict.named_percent, ".2f"),
        median(lambda run: run.verdict.deepest, ".0f"),
        median(lambda run: max(run.finish, 0), ".2f"),
        median(lambda run: run.whole, ".2f"),
        median(lambda run: run.peak / 2**20, ".0f"),
        median(lambda run: run.bytes / 2**20, ".2f"),
    ]
    return "| " + " | ".join(cells) + " |"


def faults(run, count):
    """What is wrong with a run's stacks, the most frequent first."""
    verdict = run.verdict
    if run.confessed:
        yield "truncated by its own account: " + ", ".join(f"{why} {n}" for why, n in run.confessed.items())
    for frame, samples in run.doubtful.most_common():
        yield f"called complete, and not by the list of roots: {samples} at {frame}"
    for frame, samples in verdict.not_roots.most_common(count):
        yield f"outermost, and no root: {samples} of {verdict.user_samples} at {frame}"
    for frame, samples in verdict.unnamed.most_common(count):
        yield f"without a name: {samples} of {verdict.frames} frames at {frame}"


main()
