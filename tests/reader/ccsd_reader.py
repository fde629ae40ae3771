#!/usr/bin/env python3
"""Reads ccsd profiles, written from collector/profile/docs/file-format.md alone.
ccsd_reader.py [--json] FILE    the flat profile and the stacks, as text; or with the accounting, as JSON"""
import json, sys, zlib
from collections import defaultdict
from itertools import accumulate

MAGIC = b"\x89ccsd\r\n\x1a"
SESSION, UPDATE, END, CRASH, FIRST_OPTIONAL = 1, 2, 3, 128, 128
MAX_RECORD, MAX_TEXT, MAX_LIST, MAX_FILES, MAX_METRICS, MAX_INTERVALS = 32 << 20, 65536, 131072, 1 << 20, 16, 512
ELIDED, ROOT, MASK = 0, 1, (1 << 64) - 1
REASONS = ["stack copy too small", "no unwind information", "bad unwind information", "stack unreadable", "too deep",
           "unknown mapping", "not a user stack", "generated code without a map", "no user registers", "other reason", "no entry point"]
NUMBERS = """duration_ns received lost throttled throttle_events unsymbolised elided own_cpu_ns own_peak_rss_bytes pushes
    frames max_stack_depth dropped file_bytes with_gap read_late held_bytes memory_bytes""".split()
PACE, PACE_AT = "changes budget_ppm target_cost_ns own_cost_ns last_hz".split(), 48
UNSEEN, UNSEEN_AT = "lost throttled ended switching kernel unknown".split(), 36
OWN, OWN_AT = "start kernel_names images sampling aggregating rest".split(), 18
CONTEXT_NUMBERS = "transition_hits known_contexts new_contexts elided contexts transitions checkpoints bytes limit_bytes".split()
TABLES = """contexts charges names functions lines images processes threads addresses generated_code debug_information
    unwind_tables stacks queue unwind_rules live_threads mappings call_sites offsets""".split()

class Malformed(Exception): pass

def check(condition, what, value=None):
    if condition: return value
    raise Malformed(what)

class Payload:
    def __init__(self, data):
        self.data, self.at = data, 0
    def u8(self):
        self.at += 1
        return self.data[self.at - 1]  # an IndexError where it ends early
    def n(self, bits=64):
        value = shift = 0
        while True:
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            shift += 7
            check(not value >> bits and shift <= bits + 6, "number too large")
            if byte < 0x80:
                return value
    def s(self):
        return (value := self.n()) >> 1 ^ -(value & 1)
    def o(self): return None if (value := self.n()) == 0 else value - 1
    def bytes(self):
        length = self.n()
        self.at += check(length <= len(self.data) - self.at, "ends early", length)
        return bytes(self.data[self.at - length:self.at])
    def text(self):
        data = self.bytes()
        return check(len(data) <= MAX_TEXT, "text too long", data).decode("utf-8")
    def list(self, item):
        count = self.n()
        return [item() for _ in range(check(count <= MAX_LIST, "list too long", count))]

def records(data):
    """Type and payload of every whole record, and the version."""
    check(data[:8] == MAGIC, "not a ccsd profile")
    version = int.from_bytes(data[8:12], "little")
    check(1 <= version <= 3, f"format version {version}")
    number, at = 0, 12
    while at < len(data):
        header = Payload(data[at + 1:at + 11])
        try:
            length = header.n()
        except (Malformed, IndexError):
            return
        start, end = at + 1 + header.at, at + 1 + header.at + length
        if length > MAX_RECORD or end + 4 > len(data):
            return
        covered = (data[:12] if number == 0 else b"") + number.to_bytes(4, "little") + data[at:end]
        if zlib.crc32(covered) != int.from_bytes(data[end:end + 4], "little"):
            return
        yield version, data[at], Payload(data[start:end])
        number, at = number + 1, end + 4

class Profile:
    def __init__(self):
        self.metrics, self.notes, self.files, self.processes, self.threads = [], [], [], [], []
        self.images, self.lines = ["[ccsd]"], [("", 0)]
        self.functions = [(0, "[elided]", None), (0, "[root]", None)]  # image, name, start
        self.contexts = [(None, None), (0, ELIDED)]  # parent, function
        self.ids, self.places, self.routes = [0, 1], [], [None]  # of this generation: contexts; what was charged; call sites
        self.charges = {}  # by context: samples, and a weight for each metric
        self.namings, self.accounting, self.finished, self.numbers = {}, {}, False, [[], [], [], []]

    def read_session(self, p):
        self.target, self.command, self.pids = p.text(), p.list(p.text), p.list(p.n)
        self.event, self.rate, self.host, self.started = p.text(), p.n(), p.text(), p.n()
        self.metrics = p.list(lambda: (p.text(), p.u8()))
        check(len(self.metrics) <= MAX_METRICS, "too many metrics")
        self.notes, self.collector = p.list(p.text), p.text()

    def read_update(self, p, version):
        intervals = p.list(lambda: (p.s(), p.s())) if version >= 3 else [(p.n(), p.s())]  # from and length: not shown here
        tables = [self.images, self.functions, self.lines, self.processes, self.threads, self.ids, self.routes]
        base = [p.n() for _ in tables[:7 if version >= 3 else 6]]
        if base[5] == 2:  # a generation begins
            del self.ids[2:], self.places[:], self.routes[1:]
        check(base == [len(table) for table in tables][:len(base)], "an update is missing")
        self.files += p.list(p.text)
        check(len(self.files) <= MAX_FILES, "too many file names")
        self.images += p.list(lambda: (p.text(), p.bytes())[0])
        last_start = 0
        def function():
            nonlocal last_start
            image, flags = p.n(), p.u8()
            linkage = p.text() if flags & 1 else None
            display = p.text() if flags & 2 else None
            if flags & 4:
                last_start = (last_start + p.s()) & MASK
            flags & 8 and self.files[p.n()]
            p.n()  # line
            flags & 128 and p.bytes()
            return image, linkage if display is None else display, last_start if flags & 4 else None

        self.functions += p.list(function)
        self.lines += p.list(lambda: (self.files[p.n()], p.n()))
        self.processes += p.list(lambda: {"pid": p.n(), "start": p.n(), "execs": p.n(), "parent": p.o(), "name": p.text()})
        self.threads += p.list(lambda: {"process": p.n(), "tid": p.n(), "name": p.text()})
        for process, name in p.list(lambda: (p.n(), p.text())):
            self.processes[process]["name"] = name
        for thread, name in p.list(lambda: (p.n(), p.text())):
            self.threads[thread]["name"] = name
        new = p.list(p.s) if version >= 3 else p.list(lambda: (p.s(), p.n()))
        for distance, function in [(distance, p.n()) for distance in new] if version >= 3 else new:
            parent = self.ids[check(distance > 0, "unknown context", len(self.ids) - distance)]
            self.contexts.append((parent, function))
            self.ids.append(len(self.contexts) - 1)
        new = p.list(p.s) if version >= 3 else []
        self.routes += zip(new, *[[p.s() for _ in new] for _ in range(2)])  # by differences: not shown here
        unnamed = 0
        for _ in range(p.n() if version >= 2 else 0):
            unnamed += p.s()
            self.namings[unnamed] = p.n()
        self.read_charges(p, len(intervals)) if version >= 3 else self.read_old_charges(p)
        self.notes += [note for note in p.list(p.text) if note not in self.notes]
        for _ in check(1 <= len(intervals) <= MAX_INTERVALS, "too many intervals or none", intervals):
            self.read_accounting(p, version >= 3)

    def read_charges(self, p, intervals):
        scales = [(p.n(), p.n()) for _ in self.metrics]
        count, new = p.n(), p.n()
        columns = [list(accumulate(p.s() for _ in range(new))) for _ in range(3)]
        self.places += zip(*columns)
        runs = [(p.n(), p.n()) for _ in range(sum([p.n() for _ in range(intervals)]))]
        check(sum(length for _, length in runs) == count, "runs of charges do not add up")
        rows = [(thread, number) for thread, length in runs for number in accumulate([p.n() for _ in range(length)])]
        ks = [p.n() for _ in range(count)]
        weights = [[(k >> 2) * usual + (0 if k & 1 else difference(p, unit)) & MASK for k in ks] for usual, unit in scales]
        [p.n(128) for _ in scales for k in ks if k & 2]  # sums of squares, here only passed over
        for (thread, number), k, *weight in zip(rows, ks, *weights): self.charge(thread, *self.places[number], [k >> 2] + weight)

    def read_old_charges(self, p):
        usual, left = [p.n() for _ in self.metrics], p.n()
        while left > 0:
            thread, run, context, line = p.n(), p.n(), 0, 0
            left -= check(1 <= run <= left, "runs of charges do not add up", run)
            for _ in range(run):
                context, line, k = context + p.s(), line + p.s(), p.n()
                weights = [(k >> 1) * each + (0 if k & 1 else p.s()) & MASK for each in usual]
                self.charge(thread, context, line, 0, [k >> 1] + weights)

    def charge(self, thread, context, line, route, sums):
        check(0 <= context < len(self.ids) and 0 <= line < len(self.lines), "unknown context or line")
        check(thread < len(self.threads) and route >> 1 < len(self.routes), "unknown thread or route")
        add(self.charges.setdefault(self.ids[context], [0] * len(sums)), sums)

    def read_accounting(self, p, differ=False):
        def read(i):
            known = iter(self.numbers[i])
            self.numbers[i] = (take_two if i == 1 else p.list)(lambda: (next(known, 0) + p.s()) & MASK if differ else p.n())
            return self.numbers[i]
        truncated, known, numbers, tables = map(read, range(4))
        expected, target_cpu = (None if value == 0 else value - 1 for value in known)
        reasons = defaultdict(int)
        for i, count in enumerate(truncated):
            if count:
                reasons[REASONS[i] if i < len(REASONS) else "other reason"] += count
        fixed = numbers + [0] * (PACE_AT + 5 - len(numbers))
        a = dict(zip(NUMBERS, fixed), expected=expected, target_cpu_ns=target_cpu, truncated_by_reason=dict(reasons))
        rates = [{"rate_hz": rate, "duration_ns": ns} for rate, ns in zip(numbers[PACE_AT + 5::2], numbers[PACE_AT + 6::2] + [0])]
        a["not_sampled_ns"] = dict(zip(UNSEEN, fixed[UNSEEN_AT + 1:])) if fixed[UNSEEN_AT] == 1 else None
        a["own_cpu_by_phase_ns"] = dict(zip(OWN, fixed[OWN_AT:])) if any(fixed[OWN_AT:OWN_AT + len(OWN)]) else None
        a["pace"] = dict(zip(PACE, fixed[PACE_AT:]), rates=rates)
        a["contexts"] = dict(zip(CONTEXT_NUMBERS, tables := tables + [0] * (len(CONTEXT_NUMBERS) + len(TABLES) - len(tables))))
        a["shed"] = {name: count for name, count in zip(TABLES, tables[len(CONTEXT_NUMBERS):]) if count}
        self.accounting = a

    def image(self, function):
        path = self.images[self.functions[function][0]]
        return path.rsplit("/", 1)[-1] or path
    def name(self, function):
        _, name, start = self.functions[function]
        return self.image(function) + ("+?" if start is None else f"+{start:#x}") if name is None else name
    def histories(self):
        """Every context that was charged, with its history: a list of functions and marks."""
        children = defaultdict(list)
        for context in range(1, len(self.contexts)):
            children[self.contexts[context][0]].append(context)
        todo = [(0, [])]
        while todo:
            context, history = todo.pop()
            if any(self.charges.get(context, ())):
                yield context, history or [(ROOT, True)]
            for child in children[context]:
                function = self.contexts[child][1]
                todo.append((child, push(history, self.namings.get(function, function))))

def difference(p, unit):
    value = p.n(128)
    signed = (value >> 2) ^ -(value >> 1 & 1)
    return signed if value & 1 else signed * unit

def body(p, version):
    """The body of an update."""
    if version < 3 or p.u8() == 0:
        return p
    length, inflater = p.n(), zlib.decompressobj(-15)
    check(length <= min(MAX_RECORD, 16 * len(p.data)), "inflates too far")
    data = inflater.decompress(p.data[p.at:], length + 1)
    check(len(data) == length and inflater.eof and not inflater.unused_data, "not as long as it says")
    return Payload(data)

def take_two(item): return [item(), item()]
def add(sums, values):
    for i, value in enumerate(values):
        sums[i] += value

def push(before, function):
    """A1 to A5."""
    if before and before[-1][0] == function:
        return before
    h = [(f, marked and f != function) for f, marked in before] + [(function, True)]
    for squeezed in (lambda i: i + 1 < len(h) and not (h[i - 1][1] or h[i][1] or h[i + 1][1]),
                     lambda i: h[i - 1] == h[i] and not h[i][1]):
        while i := next((i for i in range(1, len(h)) if squeezed(i)), 0):
            del h[i]
    return h

def gaps(history):
    """Positions of the entries that the one before them may not have called."""
    marked = [i for i, entry in enumerate(history) if entry[1]]
    end = marked[-3] if len(marked) >= 3 else 0
    return {i for i in range(1, end) if not history[i - 1][1] and not history[i][1]}

def read(data):
    profile, first = Profile(), True
    try:
        for version, kind, payload in records(data):
            if profile.finished or first != (kind == SESSION):
                break
            if kind == SESSION:
                profile.read_session(payload)
            elif kind == UPDATE:
                profile.read_update(payload := body(payload, version), version)
            elif kind == END:
                profile.read_accounting(payload)
                profile.finished = True
            elif kind < FIRST_OPTIONAL:
                break
            check(kind >= FIRST_OPTIONAL or payload.at == len(payload.data), "bytes left over")
            first = False
    except (IndexError, UnicodeDecodeError, Malformed):
        if first:
            raise
    return profile

def document(profile):
    """By the first metric."""
    flat, stacks = defaultdict(lambda: [0, 0, 0, 0]), defaultdict(lambda: [0, 0])
    for context, history in profile.histories():
        (samples, weight), gap = (profile.charges[context] + [0])[:2], gaps(history)
        stack = tuple((f, marked, i in gap) for i, (f, marked) in enumerate(history))
        add(stacks[stack], [weight, samples])
        add(flat[history[-1][0]], [weight, 0, samples, 0])
        for function, marked in history:
            add(flat[function], [0, weight, 0, samples] if marked else [])
    name, image = profile.name, profile.image
    return {
        "flat": sorted([name(f), image(f)] + sums for f, sums in flat.items()),
        "stacks": sorted([[[name(f), m, g] for f, m, g in stack], w, n] for stack, (w, n) in stacks.items()),
        "notes": profile.notes, "accounting": profile.accounting, "finished": profile.finished,
    }

def main():
    doc = document(read(open(sys.argv[-1], "rb").read()))
    if "--json" in sys.argv:
        return json.dump(doc, sys.stdout)
    print("self inherited function")
    for name, image, own, inherited, _, _ in sorted(doc["flat"], key=lambda row: -row[2]):
        print(own, inherited, ascii(f"{name} ({image})"))
    print("\nweight stack")
    for stack, weight, _ in sorted(doc["stacks"], key=lambda row: -row[1]):
        words = [("[...] " if gap else "") + (name if marked else f"({name})") for name, marked, gap in stack]
        print(weight, ascii(" ".join(words)))

main()
