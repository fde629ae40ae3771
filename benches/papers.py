"""The tables of Spivey's "Fast, accurate call graph profiling" (2004), for sampled stacks: sizes of the machine, and overhead.

    cargo build --release -p ccsd
    python3 benches/papers.py                    1,500 functions for cc1, 5 rounds; some 10 minutes
    python3 benches/papers.py --quick            60 functions, one round; half a minute

Programs: cc1 -O2 on a generated C file (the paper has GCC, too), an interpreter of arithmetic and of backtracking that
calls itself in circles (the paper has a Prolog interpreter), and a parser by recursive descent that goes 5,000 calls
deep through twelve functions. Table I counts contexts where the paper counts the states of calls: a sample pushes only what is not
in common with the one before, so that pushes are not calls. Table II is CPU time of the program itself, and the whole
command's time, over those of the program alone, medians of interleaved rounds.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(HERE, "peers"))

from programs import Missing, generated, tool  # noqa: E402

# Evaluates trees of operators, conditions and calls with functions of its own for each, and tries alternatives as Prolog does:
# eval -> call -> apply -> eval, solve -> clause -> body -> solve.
INTERPRETER = r"""
#include <stdio.h>
#include <stdlib.h>
#define FUNCTION __attribute__((noinline)) static long
struct term { int kind; struct term *a, *b, *c; long n; };
static long count;
FUNCTION eval(struct term *t, long x);
FUNCTION constant(struct term *t) { return t->n; }
FUNCTION plus(struct term *t, long x) { long a = eval(t->a, x); return a + eval(t->b, x); }
FUNCTION minus(struct term *t, long x) { long a = eval(t->a, x); return a - eval(t->b, x); }
FUNCTION choose(struct term *t, long x) { return eval(t->a, x) < 2 ? eval(t->b, x) : eval(t->c, x); }
static struct term *body;
FUNCTION apply(long x) { long r = eval(body, x); count++; return r; }
FUNCTION call(struct term *t, long x) { long r = apply(eval(t->a, x)); return r; }
FUNCTION eval(struct term *t, long x) {
    long r;
    switch (t->kind) {
    case 0: r = constant(t); break;
    case 1: r = x; break;
    case 2: r = plus(t, x); break;
    case 3: r = minus(t, x); break;
    case 4: r = choose(t, x); break;
    default: r = call(t, x);
    }
    return r + (count & 0);
}
static struct term *make(int kind, struct term *a, struct term *b, struct term *c, long n) {
    struct term *t = malloc(sizeof *t);
    *t = (struct term){kind, a, b, c, n};
    return t;
}
enum { SIZE = 9 };
static int place[SIZE];
FUNCTION solve(int row);
FUNCTION fits(int row, int column) {
    for (int i = 0; i < row; i++)
        if (place[i] == column || place[i] - column == row - i || column - place[i] == row - i) return 0;
    return 1;
}
FUNCTION rest(int row) { long r = solve(row + 1); return r + (count & 0); }
FUNCTION clause(int row, int column) {
    if (!fits(row, column)) return 0;
    place[row] = column;
    long r = rest(row);
    return r + (count & 0);
}
FUNCTION solve(int row) {
    if (row == SIZE) return 1;
    long found = 0;
    for (int column = 0; column < SIZE; column++) found += clause(row, column);
    return found;
}
int main(int argc, char **argv) {
    struct term *x = make(1, 0, 0, 0, 0), *one = make(0, 0, 0, 0, 1), *two = make(0, 0, 0, 0, 2);
    struct term *left = make(5, make(3, x, one, 0, 0), 0, 0, 0), *right = make(5, make(3, x, two, 0, 0), 0, 0, 0);
    body = make(4, x, one, make(2, left, right, 0, 0), 0);
    long sum = 0;
    for (int i = atoi(argv[1]); i > 0; i--) sum += apply(24) + solve(0);
    printf("%ld %ld\n", sum, count);
    return argc < 2;
}
"""

# Twelve levels of operators, and brackets that begin again at the first.
PARSER = r"""
#include <stdio.h>
#include <stdlib.h>
static char *text, *at;
static long work;
static long level_0(void);
__attribute__((noinline)) static long primary(void) {
    if (*at == '(') {
        at++;
        long value = level_0();
        at++;
        return value;
    }
    long value = 0;
    while (*at >= '0' && *at <= '9') value = value * 10 + *at++ - '0';
    for (int i = 0; i < 40; i++) value = value * 6364136223846793005l + 1442695040888963407l;
    work += value & 7;
    return value;
}
#define LEVEL(name, inner, operator) \
    __attribute__((noinline)) static long name(void) { \
        long value = inner(); \
        while (*at == operator) { at++; value ^= inner() + work; } \
        return value; \
    }
LEVEL(level_11, primary, 'k') LEVEL(level_10, level_11, 'j') LEVEL(level_9, level_10, 'i') LEVEL(level_8, level_9, 'h')
LEVEL(level_7, level_8, 'g') LEVEL(level_6, level_7, 'f') LEVEL(level_5, level_6, 'e') LEVEL(level_4, level_5, 'd')
LEVEL(level_3, level_4, 'c') LEVEL(level_2, level_3, 'b') LEVEL(level_1, level_2, 'a') LEVEL(level_0, level_1, '+')
static unsigned long chance = 42;
static unsigned below(unsigned n) { chance = chance * 6364136223846793005ul + 1442695040888963407ul; return (chance >> 33) % n; }
static void expression(int depth) {
    int nested = below(3);
    for (int i = 0; i < 3; i++) {
        if (i == nested && depth > 0) { *at++ = '('; expression(depth - 1); *at++ = ')'; }
        else *at++ = '0' + below(10);
        if (i < 2) *at++ = "+abcdefghijk"[below(12)];
    }
}
int main(int argc, char **argv) {
    enum { DEPTH = 400 };
    text = malloc(DEPTH * 16);
    long sum = 0;
    for (int i = atoi(argv[1]); i > 0; i--) {
        at = text; expression(DEPTH); *at = 0;
        at = text; sum += level_0();
    }
    printf("%ld\n", sum);
    return argc < 2;
}
"""

# Table I and II of the paper.
PAPER = {
    "TeX": ["8,286", "8,355", "9.30", "23", "0.66", "0.44", "+92%"],
    "GCC": ["55,437", "57,777", "13.13", "29", "5.24", "3.79", "+121%"],
    "pProlog": ["435", "443", "10.31", "19", "0.07", "0.02", "+97%"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short runs, one round")
    parser.add_argument("--ccsd", default=os.path.join(HERE, "..", "target", "release", "ccsd"))
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    ccsd = os.path.abspath(arguments.ccsd)
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    print(f"{subprocess.run([ccsd, '--version'], check=True, capture_output=True, text=True).stdout.strip()}, {rounds} rounds, "
          f"999 Hz, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs at the beginning\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="papers-") as folder:
        programs = dict(made(folder, arguments.quick))
        results = {name: measure(name, command, ccsd, folder, rounds) for name, command in programs.items()}
        table_1(results)
        table_2(results)
        hits(results, ccsd, folder)


def made(folder, quick):
    """The programs: name and command."""
    for name, text, turns in [("interpreter", INTERPRETER, 1_200), ("parser", PARSER, 60_000)]:
        source = os.path.join(folder, f"{name}.c")
        with open(source, "w", encoding="ascii") as file:
            file.write(text)
        target = os.path.join(folder, name)
        build = [tool("gcc", "gcc"), "-O1", "-fno-optimize-sibling-calls", "-fno-inline", "-o", target, source]
        subprocess.run(build, check=True)
        yield name, [target, str(turns // 5 if quick else turns)]
    path = subprocess.run([tool("gcc", "gcc"), "-print-prog-name=cc1"], check=True, capture_output=True, text=True)
    yield "cc1", [path.stdout.strip(), "-quiet", "-O2", "-o", "/dev/null", generated(folder, 60 if quick else 1500)]


def timed(command):
    """Wall and CPU seconds of a command that does well."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu


def report(ccsd, file, *options):
    command = [ccsd, "report", "--view", "stats", "--json", *options, file]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(name, command, ccsd, folder, rounds):
    """Bare and recorded in turn. The profile is that of the last round."""
    file = os.path.join(folder, f"{name}.ccsd")
    target, whole = [], []
    for _ in range(rounds):
        bare_wall, bare_cpu = timed(command)
        wall, _ = timed([ccsd, "record", "--no-daemon", "-q", "-o", file, "--", *command])
        document = report(ccsd, file)
        target.append(document["accounting"]["target_cpu_ns"] / 1e9 / bare_cpu)
        whole.append(wall / bare_wall)
    return {"file": file, "document": document, "bare": bare_cpu, "target": target, "whole": whole}


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def table_1(results):
    print("Table I: the machine, its depth in entries of a history, its memory in the collector, and the file.\n")
    row("program", "samples", "pushes", "states", "transitions", "depth, average", "maximum", "memory MB", "file MB", "deepest stack")
    row("---", *["---:"] * 9)
    for name, result in results.items():
        stats = result["document"]["stats"]
        row(name, f"{stats['samples']:,}", f"{stats['pushes']:,}", f"{stats['states']:,}", f"{stats['transitions']:,}",
            f"{stats['depth_average']:.2f}", stats["depth_maximum"], f"{stats['context_bytes'] / 1e6:.2f}",
            f"{os.path.getsize(result['file']) / 1e6:.2f}", f"{stats['stack_depth_maximum']:,}")
    for name, (states, transitions, average, maximum, memory, file, _) in PAPER.items():
        row(f"{name} (the paper)", "", "", states, transitions, average, maximum, memory, file, "")


def table_2(results):
    print("\nTable II: overhead, in percent of the bare program; median, and least to most of the rounds.\n")
    row("program", "bare CPU s", "its own CPU time", "whole command", "samples expected", "received")
    row("---", *["---:"] * 5)

    def over(ratios):
        percent = [100 * (ratio - 1) for ratio in ratios]
        return f"{statistics.median(percent):+.1f} ({min(percent):+.1f} to {max(percent):+.1f})"

    for name, result in results.items():
        accounting = result["document"]["accounting"]
        row(name, f"{result['bare']:.2f}", over(result["target"]), over(result["whole"]),
            f"{accounting['expected']:,}" if accounting["expected"] is not None else "not known", f"{accounting['received']:,}")
    for name, figures in PAPER.items():
        row(f"{name} (the paper)", "", figures[-1], "", "", "")


def hits(results, ccsd, folder):
    """How the machine learns: the share of pushes that a known transition answers, by tenths of the run."""
    print("\nPushes that were transition hits, percent, by tenths of the run (of the whole in the last column); states at their ends.\n")
    row("program", *[f"{10 * part}%" for part in range(1, 11)], "all")
    row("---", *["---:"] * 11)
    for name, result in results.items():
        seconds = result["document"]["accounting"]["duration_ns"] / 1e9
        shares, states, before = [], [], (0, 0)
        for part in range(1, 11):
            # Up to then, in whole intervals of a second: a short run has fewer than ten.
            until = ["--until", f"+{seconds * part / 10:.2f}s"] if part < 10 else []
            try:
                table = report(ccsd, result["file"], *until)["stats"]["table"]
            except subprocess.CalledProcessError:
                # No interval ends before that.
                shares.append("")
                states.append("")
                continue
            known = (table["transition_hits"], sum(table[key] for key in ("transition_hits", "known_contexts", "new_contexts", "elided")))
            hit, pushes = known[0] - before[0], known[1] - before[1]
            shares.append(f"{100 * hit / pushes:.1f}" if pushes > 0 else "")
            states.append(f"{table['contexts']:,}")
            before = known
        row(name, *shares, f"{100 * before[0] / max(before[1], 1):.1f}")
        row(f"{name}: states", *states, "")


if __name__ == "__main__":
    try:
        main()
    except Missing as missing:
        sys.exit(f"papers.py: {missing}")
