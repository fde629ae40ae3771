#!/usr/bin/env python3
"""Imports recordings of perf with a `ccsd` binary and compares the sample counts with those of perf.

    tests/recordings/check.py CCSD FOLDER   test recordings of other projects
    tests/recordings/check.py CCSD          recordings that the installed perf makes now, in the forms of `FORMS` and `TEXTS`

FOLDER holds the files of manifest.tsv, in any folders below it: a file is found by its SHA-256. Files that are absent are
counted and do not fail the check. Exit status: 0 all files that are there agree, 1 some do not, 2 none is there.

Lines of the manifest: SHA-256, repository and path, verdict, detail.
  samples  each event with perf's own number of samples, `N EVENT; N EVENT`; the default event has to be one of them, or a group
  refused  words that the error message has
  any      a malformed file: read or refused, with exit status 0 or 2
"""

import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile

MANIFEST = pathlib.Path(__file__).with_name("manifest.tsv")

# Options of `perf record`, with -o - through a pipe.
FORMS = [
    ["-e", "cpu-clock"],
    ["-e", "cpu-clock", "-g", "--sample-cpu"],
    ["-e", "cpu-clock", "--call-graph", "dwarf,4096"],
    ["-e", "cpu-clock", "-g", "-o", "-"],
    ["-e", "cpu-clock", "-g", "-z"],
    ["-e", "cpu-clock", "-g", "-z", "-o", "-"],
    ["-e", "cpu-clock", "-e", "page-faults", "-g"],
    ["-e", "cpu-clock,task-clock,context-switches"],
    ["-e", "{cpu-clock,page-faults}:S", "-g"],
    ["-e", "{cpu-clock,page-faults}:S", "--call-graph", "dwarf,4096", "-o", "-"],
    ["-e", "{task-clock,page-faults,context-switches}:S", "-z"],
    ["-e", "{cpu-clock,page-faults}", "-g"],
    ["-e", "cpu-clock", "-g", "-a"],
]
# Fields of `perf script`: as it prints them now, with fewer, and as older versions and other tools have them.
TEXTS = [
    None,
    "comm,pid,tid,time,event,period,ip,sym,dso",
    "comm,tid,cpu,time,event,ip,sym,symoff,dso",
    "comm,pid,tid,cpu,time,event,ip,sym,dso",
    "comm,pid,tid,ip,sym",
    "comm,pid,ip,sym,dso",
    "comm,tid,time,ip,sym,dso",
]
# Takes time and pages.
PROGRAM = [sys.executable, "-c", "for i in range(20): sum(j * j for j in range(50000)); x = bytearray(1 << 20)"]


def import_file(ccsd, recording, output, event=None):
    """Exit status, samples received (None without a profile) and error message."""
    choice = ["-e", event] if event else []
    words = [ccsd, "import", *choice, str(recording), "-o", str(output)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    found = re.search(r"([\d,]+) received", done.stdout) or re.search(r"^# samples +([\d,]+)", done.stdout, re.M)
    return done.returncode, found and int(found[1].replace(",", "")), done.stderr.strip()


def without_modifiers(event):
    """perf adds modifiers to names that a file has without them; those of `pmu/event:modifiers/` are part of the name."""
    return event if "/" in event else event.split(":")[0]


def disagreement(ccsd, recording, output, verdict, detail):
    """What is wrong with the import, or None."""
    status, samples, error = import_file(ccsd, recording, output)
    if verdict == "any":
        return None if status in (0, 2) else f"exit status {status}: {error}"
    if verdict == "refused":
        return None if status == 2 and detail in error else f"exit status {status}, not refused with {detail!r}: {error}"
    expected = [(int(count), event) for count, event in (pair.split(" ", 1) for pair in detail.split("; "))]
    counts = [count for count, _ in expected]
    runs = [sum(counts[start:end]) for start in range(len(counts)) for end in range(start + 1, len(counts) + 1)]
    if samples not in runs:
        return f"{samples} samples, perf has {detail}: {error}"
    for count, event in expected if len(expected) > 1 else []:
        _, samples, error = import_file(ccsd, recording, output, without_modifiers(event))
        if samples != count:
            return f"{samples} samples of {event}, perf has {count}: {error}"
    return None


def perf(*words, output=subprocess.PIPE):
    done = subprocess.run(["perf", *map(str, words)], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"perf {' '.join(map(str, words))}: {done.stderr.decode(errors='replace')}")
    return (done.stdout or b"").decode(errors="replace")


def recorded(options, recording):
    """Records the program, and says what perf makes of it, as in the manifest."""
    words = ["record", "-q", "-F", "999", *options, "--", *PROGRAM]
    if "-o" in options:
        # Through a real pipe.
        with recording.open("wb") as file, subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file) as cat:
            perf(*words, output=cat.stdin)
            cat.stdin.close()
    else:
        perf(*words[:2], "-o", recording, *words[2:])
    counts = {}
    for line in perf("script", "-G", "-F", "event", "-i", recording).split():
        event = line.removesuffix(":")
        counts[event] = counts.get(event, 0) + 1
    # In the order in which they were asked for: a group is imported as one.
    asked = [event for word in options for event in re.findall(r"[a-z]+-[a-z]+", word)]
    ordered = sorted(counts.items(), key=lambda pair: asked.index(without_modifiers(pair[0])))
    return "; ".join(f"{count} {event}" for event, count in ordered)


def check_own(ccsd, scratch):
    """Whether all recordings made here are imported as perf has them."""
    compresses = re.search(r"zstd: \[ on", perf("version", "--build-options"))
    failed = 0
    checks = 0
    output = scratch / "imported.ccsd"

    def check(name, recording, detail):
        nonlocal failed, checks
        checks += 1
        why = disagreement(ccsd, recording, output, "samples", detail)
        if why:
            failed += 1
            print(f"{name}: {why}")

    for number, options in enumerate(FORMS):
        if "-z" in options and not compresses:
            continue
        recording = scratch / f"{number}.data"
        detail = recorded(options, recording)
        check("perf record " + " ".join(options), recording, detail)
    plain = scratch / "1.data"
    samples = len(perf("script", "-G", "-F", "event", "-i", plain).split())
    for fields in TEXTS:
        text = scratch / "script.txt"
        choice = ["-F", fields] if fields else []
        text.write_text(perf("script", "--no-inline", *choice, "-i", plain))
        check(f"perf script -F {fields}", text, f"{samples} all")
    print(f"{checks - failed} of {checks} as perf has them")
    return failed == 0


def main():
    if len(sys.argv) == 2:
        with tempfile.TemporaryDirectory() as scratch:
            sys.exit(0 if check_own(sys.argv[1], pathlib.Path(scratch)) else 1)
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    ccsd, folder = sys.argv[1:]
    files = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file() and not path.is_symlink():
            files[hashlib.sha256(path.read_bytes()).hexdigest()] = path
    lines = [line.split("\t") for line in MANIFEST.read_text().splitlines() if not line.startswith("#")]
    counts = {}
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for sha256, name, verdict, detail in lines:
            why = None
            if sha256 in files:
                why = disagreement(ccsd, files[sha256], pathlib.Path(scratch, "imported.ccsd"), verdict, detail)
            result = "absent" if sha256 not in files else "WRONG" if why else "right"
            counts[verdict, result] = counts.get((verdict, result), 0) + 1
            if why:
                failed = True
                print(f"{name}: {why}")
    for (verdict, result), count in sorted(counts.items()):
        print(f"{count:4} {verdict}: {result}")
    if all(result == "absent" for _, result in counts):
        sys.exit(2)
    sys.exit(1 if failed else 0)


main()
