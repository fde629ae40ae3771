"""What names cost where there is much debug information: makes a program with 100 MB of it, and times its symbolisation.

    cargo build --release -p ccsd
    cargo build --release -p ccsd-symbolizer --example resolve
    python3 benches/debug_info.py                     Rust; --language c++: a program of templates; minutes to compile
    python3 benches/debug_info.py --keep FOLDER       compile once, use it again

Every figure is the least of several rounds: what others do on the machine only adds. "addresses" asks for as many places,
spread evenly at random over the code, as a profile may meet; "record" is the whole command on the program itself.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time

RUST = r"""
use std::collections::{BTreeMap, HashMap};
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key<const N: usize> { number: u64, text: String, parts: Vec<u32> }
impl<const N: usize> Key<N> {
    fn new(seed: u64) -> Self {
        let number = (seed ^ N as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Key { number: number >> 40, text: format!("{number:x}"), parts: (0..number % 5).map(|part| part as u32).collect() }
    }
}
pub fn work<const N: usize>(seed: u64) -> u64 {
    let mut keys: Vec<Key<N>> = (0..20).map(|at| Key::new(seed + at)).collect();
    let counts: HashMap<Key<N>, usize> = keys.iter().cloned().map(|key| (key, N)).collect();
    let order: BTreeMap<Key<N>, String> = keys.iter().map(|key| (key.clone(), format!("{key:?}"))).collect();
    keys.sort_by(|a, b| b.parts.cmp(&a.parts).then_with(|| a.cmp(b)));
    keys.dedup();
    let shown: usize = order.values().map(String::len).sum();
    let weigh = |key: &Key<N>| Some(counts.get(key)? + order.get(key)?.len());
    let weight = keys.iter().filter_map(weigh).fold(shown, usize::wrapping_add);
    keys.iter().rev().take(3).fold(weight as u64, |sum, key| sum.wrapping_mul(31).wrapping_add(key.number))
}
"""

CPP = r"""
#include <algorithm>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>
template <int N> struct Key {
    unsigned long number;
    std::string text;
    std::vector<unsigned> parts;
    explicit Key(unsigned long seed)
        : number((seed ^ N) * 0x9e3779b97f4a7c15ul), text(std::to_string(number)), parts(number % 5, 7) {}
    bool operator<(const Key &other) const { return number != other.number ? number < other.number : text < other.text; }
    bool operator==(const Key &other) const { return number == other.number && text == other.text; }
};
template <int N> struct Hash {
    std::size_t operator()(const Key<N> &key) const { return std::hash<std::string>()(key.text); }
};
template <int N> unsigned long work(unsigned long seed) {
    std::vector<Key<N>> keys;
    for (int at = 0; at < 20; at++) keys.emplace_back(seed + at);
    std::map<Key<N>, std::string> order;
    std::unordered_map<Key<N>, std::shared_ptr<Key<N>>, Hash<N>> counts;
    for (auto &key : keys) {
        std::ostringstream out;
        out << key.number << key.text;
        order[key] = out.str();
        counts[key] = std::make_shared<Key<N>>(key);
    }
    std::stable_sort(keys.begin(), keys.end(), [](const Key<N> &a, const Key<N> &b) { return b < a; });
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    unsigned long sum = 0;
    for (auto &key : keys) sum = sum * 31 + order[key].size() + counts.at(key)->number;
    return sum;
}
"""

# Copies of the function above that make a file of some 100 MB, and into how many files of source C++ needs them divided.
COPIES = {"rust": 112, "c++": 208}
CPP_FILES = 16


def make(language, folder, copies):
    program = os.path.join(folder, f"program-{'rust' if language == 'rust' else 'cpp'}-{copies}")
    if not os.path.exists(program):
        print(f"compiling {copies} copies, {language}", file=sys.stderr)
        # Under its name only when it is whole.
        os.rename(compile_program(language, folder, copies, program + ".new"), program)
    return program


def compile_program(language, folder, copies, program):
    if language == "rust":
        calls = "".join(f"        sum = sum.wrapping_add(work::<{copy}>(round));\n" for copy in range(copies))
        main = (
            "fn main() {\n    let rounds: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1);\n"
            f"    let mut sum = 0u64;\n    for round in 0..rounds {{\n{calls}    }}\n    println!(\"{{sum}}\");\n}}\n"
        )
        source = write(folder, "program.rs", RUST + main)
        options = ["--edition=2024", "-Copt-level=1", "-Cdebuginfo=2", "-Ccodegen-units=64"]
        subprocess.run(["rustc", *options, source, "-o", program], check=True)
        return program
    names = [f"part{part}" for part in range(CPP_FILES)]
    objects = []
    for part, name in enumerate(names):
        calls = "".join(f"    sum += work<{copy}>(round);\n" for copy in range(part, copies, CPP_FILES))
        body = f"unsigned long {name}(unsigned long round) {{\n    unsigned long sum = 0;\n{calls}    return sum;\n}}\n"
        source = write(folder, f"{name}.cpp", CPP + body)
        objects.append(os.path.join(folder, f"{name}.o"))
        subprocess.run(["g++", "-std=c++17", "-g", "-O1", "-c", source, "-o", objects[-1]], check=True)
    declared = "".join(f"unsigned long {name}(unsigned long);\n" for name in names)
    calls = "".join(f"        sum += {name}(round);\n" for name in names)
    main = (
        f"#include <cstdio>\n#include <cstdlib>\n{declared}int main(int argc, char **argv) {{\n    unsigned long sum = 0;\n"
        f"    for (long round = 0; round < (argc > 1 ? atol(argv[1]) : 1); round++) {{\n{calls}    }}\n"
        '    printf("%lu\\n", sum);\n}\n'
    )
    subprocess.run(["g++", "-g", "-O1", write(folder, "main.cpp", main), *objects, "-o", program], check=True)
    for file in objects:
        os.remove(file)
    return program


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def text_section(program):
    listing = subprocess.run(["readelf", "-SW", program], capture_output=True, text=True, check=True).stdout
    fields = next(line.split("]", 1)[1].split() for line in listing.splitlines() if " .text " in line)
    start, size = int(fields[2], 16), int(fields[4], 16)
    return range(start, start + size)


def run(command, **options):
    """Seconds, CPU seconds and peak memory in MiB of a command with its children."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def least(rounds, command, options=dict):
    results = [run(command, **options()) for _ in range(rounds)]
    return [min(column) for column in zip(*results)]


def row(what, figures, against=None):
    seconds, cpu, memory = figures
    whole = f" ({seconds / against:.2f} of bare)" if against else ""
    print(f"| {what} | {seconds:.3f}{whole} | {cpu:.3f} | {memory:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", choices=COPIES, default="rust")
    parser.add_argument("--copies", type=int, help="how large the program is; about 0.9 MB a copy in Rust, 0.5 MB in C++")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", help="folder for what is compiled")
    parser.add_argument("--target", default="target/release", help="where ccsd and examples/resolve are")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="debug-info-") as scratch:
        folder = os.path.abspath(arguments.keep or scratch)
        os.makedirs(folder, exist_ok=True)
        program = make(arguments.language, folder, arguments.copies or COPIES[arguments.language])
        measure(program, scratch, arguments)


def measure(program, scratch, arguments):
    resolve, ccsd = (os.path.join(arguments.target, name) for name in ("examples/resolve", "ccsd"))
    size = os.stat(program).st_size / 1e6
    load = os.getloadavg()[0]
    print(f"{size:.0f} MB, {arguments.language}; least of {arguments.rounds} rounds; load {load:.1f} on {os.cpu_count()} CPUs\n")
    print("| | seconds | CPU seconds | peak MiB |\n|---|---:|---:|---:|", flush=True)
    random.seed(1)
    for count in [1, 200, 2000, 20000]:
        addresses = random.sample(text_section(program), count)
        path = write(scratch, "addresses", "".join(f"{address:#x}\n" for address in addresses))
        row(f"{count:,} addresses", least(arguments.rounds, [resolve, program, "--quiet"], lambda: {"stdin": open(path)}))
    # Long enough for two thousand samples.
    rounds, seconds = 8, 0
    while seconds < 2:
        rounds *= 2
        seconds = run([program, str(rounds)])[0]
    bare = least(arguments.rounds, [program, str(rounds)])
    row("the program, bare", bare)
    profile = os.path.join(scratch, "profile.ccsd")
    recorded = least(arguments.rounds, [ccsd, "record", "-o", profile, "--", program, str(rounds)])
    row("ccsd record", recorded, bare[0])
    row("ccsd report", least(arguments.rounds, [ccsd, "report", profile]))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
