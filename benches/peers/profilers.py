"""The profilers: how each is run, and how its stacks are read."""

import collections
import contextlib
import gzip
import json
import os
import re
import select
import signal
import subprocess
import threading
import time

import elf
from judge import ROOTS, Frame, Verdict

POLL_SECONDS = 0.01


class Failed(Exception):
    """A profiler did not do its work; the text says what it printed."""


class TooLong(Exception):
    """A profiler's step passed the time limit."""


class Target:
    """The program under a profiler: seen from outside, because a wrapper would change what the profiler sees."""

    def __init__(self, pid):
        self.pid, self.cpu, self.end = pid, 0.0, None
        try:
            self.handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self.handle, self.end = None, time.monotonic()

    def look(self, seconds):
        """Waits until the program ends, at most so long, and notes its CPU time in seconds so far."""
        if self.end is None and select.select([self.handle], [], [], seconds)[0]:
            self.end = time.monotonic()
            os.close(self.handle)
        with contextlib.suppress(OSError, IndexError):
            # Still there when it has ended, until the profiler collects its status.
            fields = stat_fields(self.pid)
            self.cpu = max(self.cpu, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def stat_fields(pid):
    """The fields of /proc/PID/stat behind the name, which may contain anything."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def child_of(parent):
    """A process that the parent has started."""
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, IndexError):
            if name.isdigit() and int(stat_fields(name)[1]) == parent:
                return Target(int(name))
    return None


class Watched:
    """A finished process: wall time in seconds, peak resident memory of itself (not of what it started) in bytes."""

    def __init__(self, command, limit, read=None, has_target=False):
        begin = time.monotonic()
        self.peak, self.timed_out, self.target = 0, False, None
        self.has_target = has_target
        stdout = subprocess.PIPE if read else subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, start_new_session=True)
        stop, errors = threading.Event(), []
        watcher = threading.Thread(target=self._watch, args=(process, stop, begin + limit))
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))
        watcher.start()
        reader.start()
        try:
            if read:
                read(process.stdout)
                process.stdout.close()
            process.wait()
            self.end = time.monotonic()
        finally:
            if process.poll() is None:
                self._kill(process)
                process.wait()
            stop.set()
            watcher.join()
            reader.join()
            process.stderr.close()
        self.wall = self.end - begin
        self.errors = errors[0].decode(errors="replace") if errors else ""
        if self.timed_out:
            raise TooLong
        if process.returncode != 0:
            raise Failed(f"{command[0]} {command[1]}: exit status {process.returncode}: {self.errors.strip()[-400:]}")
        if has_target and (self.target is None or self.target.end is None):
            raise Failed(f"{command[0]}: the program that it ran was not found")

    def _watch(self, process, stop, deadline):
        # VmHWM, because what wait4() tells is the maximum over all that the process has waited for.
        pattern = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
        while not stop.is_set():
            if self.target is not None and self.target.end is None:
                self.target.look(POLL_SECONDS)
            else:
                stop.wait(POLL_SECONDS)
            if self.has_target and self.target is None:
                self.target = child_of(process.pid)
            with contextlib.suppress(OSError):
                with open(f"/proc/{process.pid}/status", encoding="ascii", errors="replace") as file:
                    found = pattern.search(file.read())
                if found:
                    self.peak = max(self.peak, int(found[1]) * 1024)
            if time.monotonic() > deadline and not self.timed_out:
                self.timed_out = True
                self._kill(process)
        if self.target is not None and self.target.end is None:
            self.target.look(1)

    @staticmethod
    def _kill(process):
        """With all that it has started: the process leads a session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Run:
    """What one run of one profiler gave."""

    def __init__(self):
        self.verdict = Verdict()
        self.received = 0
        self.lost = 0
        self.target = None
        self.finish = None
        self.whole = None
        self.peak = 0
        self.bytes = 0
        # Stacks that the profiler itself calls incomplete, by reason; `None` where it does not say.
        self.confessed = None
        # Outermost frames that it calls complete and that are no roots, by samples.
        self.doubtful = collections.Counter()


class Profiler:
    """Runs a profiler on a command."""

    def __init__(self, path, rate, limit):
        self.path, self.rate, self.limit = path, rate, limit

    def run(self, command, folder):
        """Profiles the command, with its files in the folder, and returns a `Run`."""
        raise NotImplementedError


class Ccsd(Profiler):
    name = "ccsd"

    def run(self, command, folder):
        run, out = Run(), os.path.join(folder, "profile.ccsd")
        # The report that `record` prints at its end is the finished one.
        process = Watched([self.path, "record", "-F", str(self.rate), "-o", out, "--", *command], self.limit, has_target=True)
        run.target = process.target
        run.whole, run.finish, run.peak = process.wall, process.end - run.target.end, process.peak
        run.bytes = os.path.getsize(out)
        stacks, flat = self._report(out, "--stacks"), self._report(out, "--flat")
        accounting = stacks["accounting"]
        run.received = accounting["received"]
        run.lost = accounting["lost"] + accounting["dropped"] + accounting["throttled"]
        run.confessed = accounting["truncated_by_reason"]
        run.verdict.deepest = accounting["max_stack_depth"]
        images = image_paths(command[0])
        functions = {row["function"]: self._frame(row, images) for row in flat["flat"]["rows"]}
        for row in flat["flat"]["rows"]:
            frame = functions[row["function"]]
            if frame is not None and not frame.function.startswith("[truncated"):
                run.verdict.function(frame, row["samples_inherited"])
        for row in stacks["stacks"]["rows"]:
            frames = [functions[entry["function"]] for entry in row["stack"]]
            if all(frame is None for frame in frames):
                continue
            run.verdict.user_samples += row["samples"]
            outermost = next(frame for frame in frames if frame is not None)
            run.verdict.root(outermost, row["samples"])
            if not outermost.is_root() and not outermost.function.startswith("[truncated"):
                run.doubtful[str(outermost)] += row["samples"]
        return run

    def _report(self, out, view):
        report = [self.path, "report", "--json", view, out]
        return json.loads(subprocess.run(report, check=True, capture_output=True).stdout)

    @staticmethod
    def _frame(row, images):
        """The user function of a row; `None` for the kernel's."""
        name, image = row["name"], row["image"]
        if image == "[kernel]":
            return None
        bare = name.removeprefix(image + "+") if image and name.startswith(image + "+") else None
        if bare is None:
            return Frame(name, True, image)
        return Frame(bare, False, images.get(image, image), int(bare, 16) if bare.startswith("0x") else None)


def image_paths(program):
    """Where the files are that the program is made of, by file name: a profile has only the names."""
    program = os.path.realpath(program)
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    paths = [program, *re.findall(r"(/\S+) \(0x", listed)]
    return {os.path.basename(os.path.realpath(path)): os.path.realpath(path) for path in paths}


class Perf(Profiler):
    name = "perf"
    # "   1a2b3c name (image)": the address is an offset in the image's file.
    FRAME = re.compile(r"^\s+([0-9a-f]+) (.*) \((.*)\)$")
    LOST = re.compile(r"PERF_RECORD_LOST(?:_SAMPLES)?\s+lost (\d+)")

    def run(self, command, folder):
        run, out = Run(), os.path.join(folder, "perf.data")
        options = ["-q", "-e", "cpu-clock", "-F", str(self.rate), "--call-graph", "dwarf,65528", "-o", out]
        # Its copies of the programs, which it makes once and keeps, in the folder instead of the home directory.
        perf = [self.path, "--buildid-dir", os.path.join(folder, "buildid")]
        process = Watched([*perf, "record", *options, "--", *command], self.limit, has_target=True)
        run.target = process.target
        run.bytes = os.path.getsize(out)
        # Unwinding and naming happen here. `--no-inline` is not the default, and spares perf time.
        options = ["--no-inline", "--max-stack", "8192", "--show-lost-events", "-F", "pid,ip,sym,dso", "-i", out]
        try:
            script = Watched([*perf, "script", *options], self.limit, read=lambda lines: self._read(lines, run))
        finally:
            os.remove(out)
        run.peak = max(process.peak, script.peak)
        run.whole = process.wall + script.wall
        run.finish = process.end - run.target.end + script.wall
        return run

    def _read(self, lines, run):
        known, frames, in_sample = {}, [], False
        for raw in lines:
            line = raw.decode(errors="replace").rstrip("\n")
            if line and line[0] == "\t" or line.startswith("  ") and in_sample:
                frame = known.get(line)
                if frame is None:
                    frame = known[line] = self._frame(line)
                if frame.image != "kernel":
                    frames.append(frame)
            elif not line.strip():
                if in_sample:
                    run.verdict.stack(frames)
                frames, in_sample = [], False
            else:
                lost = self.LOST.search(line)
                if lost:
                    run.lost += int(lost[1])
                elif "PERF_RECORD" not in line:
                    run.received += 1
                    frames, in_sample = [], True
        if in_sample:
            run.verdict.stack(frames)

    def _frame(self, line):
        found = self.FRAME.match(line)
        if found is None:
            return Frame(line.strip(), False, "")
        address, name, image = int(found[1], 16), found[2], found[3]
        if address >= 1 << 47 or image.startswith("[kernel") or image.startswith("[guest.kernel"):
            return Frame(name, True, "kernel")
        if name != "[unknown]":
            return Frame(name, True, image)
        file = elf.read(image)
        return Frame.without_name(f"{address:#x}", image, file.address_of_offset(address) if file else None)


class Samply(Profiler):
    name = "samply"
    LOST = re.compile(r"Lost (\d+) events")

    def run(self, command, folder):
        run, out = Run(), os.path.join(folder, "samply.json.gz")
        # Names are looked up when the profile is shown, in the browser, or at once into a file beside it: the latter.
        options = ["--save-only", "--unstable-presymbolicate", "-r", str(self.rate), "-o", out]
        process = Watched([self.path, "record", *options, "--", *command], self.limit, has_target=True)
        run.target = process.target
        run.whole, run.finish, run.peak = process.wall, process.end - run.target.end, process.peak
        lost = self.LOST.search(process.errors)
        run.lost = int(lost[1]) if lost else 0
        beside = next(path for path in self._beside(out) if os.path.exists(path))
        run.bytes = os.path.getsize(out) + os.path.getsize(beside)
        with gzip.open(out) as file:
            profile = json.load(file)
        with open(beside, encoding="utf-8") as file:
            names = self._names(json.load(file))
        for thread in profile["threads"]:
            self._thread(thread, profile["libs"], names, run)
        os.remove(out)
        os.remove(beside)
        return run

    @staticmethod
    def _beside(out):
        stem = os.path.splitext(out)[0]
        return [stem + ".syms.json", os.path.splitext(stem)[0] + ".syms.json"]

    @staticmethod
    def _names(symbols):
        """Names and relative addresses of where they begin, by debug id, file name and relative address."""
        names, strings = {}, symbols["string_table"]
        for library in symbols["data"]:
            table = library["symbol_table"]
            of = {}
            for address, index in library["known_addresses"]:
                of[address] = strings[table[index]["symbol"]], table[index]["rva"]
            # The same id is written with dashes here and without, with a counter behind it, in the profile.
            names[library["debug_id"].replace("-", "").upper()[:32], library["debug_name"]] = of
        return names

    def _thread(self, thread, libraries, names, run):
        strings = thread["stringArray"]
        frames, functions, resources = thread["frameTable"], thread["funcTable"], thread["resourceTable"]
        stacks = thread["stackTable"]
        judged = []
        for i in range(frames["length"]):
            function = frames["func"][i]
            resource = functions["resource"][function]
            library = libraries[resources["lib"][resource]] if resource is not None and resource >= 0 else None
            judged.append(self._frame(strings[functions["name"][function]], frames["address"][i], library, names))
        samples = thread["samples"]
        weights = samples.get("weight") or [1] * samples["length"]
        counts = {}
        for stack, weight in zip(samples["stack"], weights):
            # Samples of weight 0 mark where a thread stopped running.
            if stack is not None and weight:
                counts[stack] = counts.get(stack, 0) + weight
        for stack, count in counts.items():
            run.received += count
            chain = []
            while stack is not None:
                frame = judged[stacks["frame"][stack]]
                if frame is not None:
                    chain.append(frame)
                stack = stacks["prefix"][stack]
            run.verdict.stack(chain, count)

    @staticmethod
    def _frame(name, address, library, names):
        """A user frame; `None` for the kernel's and for labels that are no frames."""
        if library is None:
            return Frame(name, not name.startswith("0x"), "") if address is None or address < 1 << 47 else None
        if library["name"].startswith("[kernel") or library["path"].startswith("[kernel"):
            return None
        known = names.get((library["breakpadId"][:32], library["debugName"]), {}).get(address)
        file = elf.read(library["path"])
        svma = file.base + address if file else None
        if known:
            found, begin = known
            # It gives addresses without a name that of the symbol before them, wherever that ends.
            beyond = file is not None and not file.may_be_in(file.base + begin, svma)
        else:
            found, beyond = name, name.startswith("0x")
        if beyond or re.fullmatch(r"fun_[0-9a-f]+", found):
            return Frame.without_name(found, library["path"], svma)
        # The entry function is "EntryPoint" where it has no name, and names lose one underscore at their beginning.
        whole = "_start" if found == "EntryPoint" else "_" + found
        return Frame(whole if whole in ROOTS else found, True, library["path"])
