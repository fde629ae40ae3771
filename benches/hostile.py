"""How ccsd bears programs that want to fill its tables: contexts, threads, libraries and generated code without end, and
very many mappings and live threads.

    cargo build --release -p ccsd
    python3 benches/hostile.py                                 six programs, two of them twice, 10 minutes each, with 256 MiB
    python3 benches/hostile.py --minutes 3 --memory 64MiB --ccsd target/release/ccsd --only recurse,jit
    python3 benches/hostile.py --minutes 0.1 --only mappings,mappings-attach,alive,alive-attach --mappings 20000 --live 2000

`mappings` has 60,000 executable mappings of one file and maps and unmaps one more ten thousand times a second; `alive` has
20,000 threads that sleep and 4 that work. With `-attach` they are set up before ccsd comes; how long that takes to attach to
all is the time until its file is there, which is made when all threads are open and all mappings read.

Each is recorded by `ccsd record` (999 Hz, threads 4,999 Hz; user code), or attached to, while ccsd's own memory (anonymous pages, and its
rings) is read twice a second. A line for each program shows it over time; then what was shed, by table, whether every sample
received was charged with its weight (I1), and whether the budget was kept: the peak of that memory must stay below it. The
exit status is 1 if not.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "fixtures")
PROGRAMS = ["recurse", "threads", "libraries", "jit", "mappings", "mappings-attach", "alive", "alive-attach"]
# Threads that live for 0.4 ms are met by a timer of their own that comes more often than that.
RATES = {"threads": 4999}


def size(text):
    for unit, shift in (("KiB", 10), ("MiB", 20), ("GiB", 30)):
        if text.endswith(unit):
            return int(text[: -len(unit)]) << shift
    return int(text)


def own_memory(pid):
    """Bytes that are resident and its own: all but the pages of files (its program, the C library), and the rings."""
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "VmPin"))


def compiled(folder):
    program, library = os.path.join(folder, "hostile"), os.path.join(folder, "library.so")
    source = os.path.join(FIXTURES, "hostile")
    subprocess.run(["cc", "-O1", "-pthread", source + ".c", "-o", program, "-ldl"], check=True)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", source + "_library.c", "-o", library], check=True)
    return program, library


def run(ccsd, memory, what, seconds, sizes, program, library, folder):
    name, _, attaches = what.partition("-")
    profile, rate = os.path.join(folder, what + ".ccsd"), RATES.get(name, 999)
    more = {"libraries": [library], "mappings": [library, str(sizes.mappings)], "alive": [str(sizes.live)]}.get(name, [])
    target = [program, name, f"{seconds * 1000:.0f}w"] + more
    command = ["--no-daemon", "-q", "--user", "-e", "cpu-clock", "-F", str(rate), "--no-adapt", "--memory", memory]
    command += ["-o", profile]
    held = None
    if attaches:
        held = subprocess.Popen(target + ["held"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        held.stdout.read(1)
        command = [ccsd, "attach"] + command + [str(held.pid)]
    else:
        command = [ccsd, "record"] + command + ["--"] + target
    began = time.monotonic()
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    if held:
        while not os.path.exists(profile) and running.poll() is None:
            time.sleep(0.001)
        print(f"{what}: attached after {1000 * (time.monotonic() - began):.0f} ms", flush=True)
        held.stdin.write(b"g")
        held.stdin.flush()
    peak, due, curve = 0, sizes.period, []
    while running.poll() is None:
        try:
            now = own_memory(running.pid)
        except (FileNotFoundError, ProcessLookupError, KeyError):
            break
        peak = max(peak, now)
        if time.monotonic() - began >= due:
            curve.append(f"{due / 60:.1f} min {now / (1 << 20):.1f}")
            due += sizes.period
        time.sleep(min(0.5, seconds / 20))
    status = running.wait()
    if held:
        held.kill()
        held.wait()
    print(f"{what}: MiB after " + ", ".join(curve) + f"; peak {peak / (1 << 20):.1f}", flush=True)
    report = subprocess.run([ccsd, "report", profile, "--json", "--stats"], stdout=subprocess.PIPE, check=True)
    accounting = json.loads(report.stdout)["accounting"]
    flat = subprocess.run([ccsd, "report", profile, "--json"], stdout=subprocess.PIPE, check=True)
    flat = json.loads(flat.stdout)["flat"]["total"]
    expected = accounting["received"] * (1_000_000_000 // rate)
    conserved = flat["samples"] == accounting["received"] and flat["weight"] == expected
    kept = peak <= size(memory)
    truncated = accounting["truncated"]
    mib = lambda number: f"{number / (1 << 20):.1f} MiB"
    print(
        f"  {accounting['received']} samples received, {accounting['lost']} lost, {accounting['dropped']} dropped; all charged: "
        f"{conserved}; {accounting['elided']} elided, {truncated} truncated\n"
        f"  tables {mib(accounting['held_bytes'])}, contexts {accounting['contexts']['contexts']} in "
        f"{mib(accounting['contexts']['bytes'])}; file {mib(os.path.getsize(profile))}; within {memory}: {kept}; "
        f"ccsd {accounting['own_cpu_ns'] / 1e6 / max(accounting['received'], 1) * 1000:.1f} ms CPU for 1,000 samples\n"
        f"  shed: {json.dumps(accounting['shed'])}",
        flush=True,
    )
    os.remove(profile)
    return status == 0 and conserved and kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ccsd", default="target/release/ccsd")
    parser.add_argument("--minutes", type=float, default=10, help="of each program")
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--period", type=float, default=60, help="seconds between two figures")
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--mappings", type=int, default=60000, help="that `mappings` has")
    parser.add_argument("--live", type=int, default=20000, help="threads that `alive` has")
    arguments = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory(prefix="ccsd-hostile-") as folder:
        program, library = compiled(folder)
        for what in arguments.only.split(","):
            ccsd = os.path.abspath(arguments.ccsd)
            good &= run(ccsd, arguments.memory, what, arguments.minutes * 60, arguments, program, library, folder)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
