#!/usr/bin/env python3
"""Imports the test recordings of other projects with a `ccsd` binary and compares the sample counts with those of perf.

    tests/recordings/check.py CCSD FOLDER

FOLDER holds the files of manifest.tsv, in any folders below it: a file is found by its SHA-256. Files that are absent are
counted and do not fail the check. Exit status: 0 all files that are there agree, 1 some do not, 2 none is there.

Lines of the manifest: SHA-256, repository and path, verdict, detail.
  samples  each event with perf's own number of samples, `N EVENT; N EVENT`; the default event has to be one of them
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
    if samples not in [count for count, _ in expected]:
        return f"{samples} samples, perf has {detail}: {error}"
    for count, event in expected if len(expected) > 1 else []:
        _, samples, error = import_file(ccsd, recording, output, without_modifiers(event))
        if samples != count:
            return f"{samples} samples of {event}, perf has {count}: {error}"
    return None


def main():
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
