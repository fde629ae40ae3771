"""The programs that are profiled: how they are built, and how they are started. Each runs for some 4 s of CPU time."""

import dataclasses
import os
import random
import shutil
import subprocess

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
CC1_FUNCTIONS = 60
XZ_FUNCTIONS = 1600


class Missing(Exception):
    """The program cannot be run here; the text says what to install."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A program to profile."""

    name: str
    what: str
    # A function from the folder for what is built to the command line.
    command: object


def tool(name, package):
    """Where a tool is."""
    path = shutil.which(name)
    if path is None:
        raise Missing(f"{name} is not installed (Debian package {package})")
    return path


def build(*command, **more):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **more)


def source(name):
    return os.path.join(SOURCES, name)


def c_file(functions):
    """A C file of made-up functions, always the same: loops over arrays and lists, switches, calls up to each other."""
    random_source = random.Random(42)
    yield "typedef long int64_t;\ntypedef unsigned long size_t;\n"
    yield "struct item { int64_t key; struct item *next; double weight; unsigned char tag[24]; };\n"
    for function in range(functions):
        factor, shift = random_source.randrange(3, 99), random_source.randrange(1, 31)
        yield f"static int64_t helper_{function}(int64_t a, int64_t b) {{ return a * {factor} ^ (b >> {shift}); }}\n"
        yield f"int64_t function_{function}(struct item *list, int64_t *array, size_t count, int64_t x) {{\n"
        yield f"  int64_t a = x, b = {function}, c = 1;\n  double d = 0.5;\n"
        for _ in range(random_source.randrange(12, 40)):
            v, w = random_source.sample("abcx", 2)
            k, other = random_source.randrange(1, 1000), random_source.randrange(function + 1)
            yield random_source.choice(
                [
                    f"  for (size_t i = 0; i < count; i++) {{ array[i] += {v} * {k}; "
                    f"if (array[i] > {w}) {v} ^= array[i] % {k + 1}; else {w} += {k}; }}\n",
                    f"  switch ({v} % 7) {{ case 0: {w} += {k}; break; case 1: {w} -= {v}; break; "
                    f"case 3: {w} = helper_{other}({v}, {w}); break; case 5: {w} <<= 1; default: {v}++; }}\n",
                    f"  for (struct item *i = list; i; i = i->next) {{ if (i->key == {v}) d += i->weight * {k}; "
                    f"else i->tag[{k % 24}] ^= (unsigned char){w}; }}\n",
                    f"  while ({v} > {k} && {w} < {v}) {{ {v} = {v} / 3 + helper_{other}({w}, {k}); "
                    f"if ({v} & 1) break; }}\n",
                    f"  {v} = {w} > {k} ? function_{other}(list, array, count / 2, {v}) : {v} + (int64_t)(d * {k});\n",
                ]
            )
        yield "  return a + b * c + x + (int64_t)d;\n}\n"


def generated(folder, functions):
    path = os.path.join(folder, f"generated-{functions}.c")
    with open(path, "w", encoding="ascii") as file:
        file.writelines(c_file(functions))
    return path


def cc1(folder):
    path = subprocess.run([tool("gcc", "gcc"), "-print-prog-name=cc1"], check=True, capture_output=True, text=True)
    return [path.stdout.strip(), "-quiet", "-O2", "-o", "/dev/null", generated(folder, CC1_FUNCTIONS)]


def python(workload):
    def command(_folder):
        # The distribution's, not one that was compiled here: stripped.
        path = shutil.which("python3", path="/usr/bin") or tool("python3", "python3")
        return [path, source("workload.py"), workload]

    return command


def python_x_perf(_folder):
    for name in ("python3.14", "python3.13", "python3.12"):
        # Not what PATH has under the name, which may be a script that starts it.
        if path := shutil.which(name):
            found = subprocess.run([path, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=False)
            if found.returncode == 0:
                return [found.stdout.strip(), "-X", "perf", source("workload.py"), "recursive"]
    raise Missing("there is no Python 3.12 or later")


def node(_folder):
    return [tool("node", "nodejs"), "--perf-basic-prof", source("workload.js")]


def java(folder):
    build(tool("javac", "default-jdk-headless"), "-d", folder, source("Workload.java"))
    flags = ["-XX:+PreserveFramePointer", "-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit"]
    return [tool("java", "default-jre-headless"), *flags, "-cp", folder, "Workload"]


def go(folder):
    target = os.path.join(folder, "workload-go")
    build(tool("go", "golang-go"), "build", "-o", target, source("workload.go"), env={**os.environ, "GO111MODULE": "off"})
    return [target]


def gofmt(_folder):
    root = subprocess.run([tool("go", "golang-go"), "env", "GOROOT"], check=True, capture_output=True, text=True).stdout.strip()
    folders = [os.path.join(root, "src", name) for name in ("net", "crypto", "runtime", "encoding", "internal")]
    return [os.path.realpath(tool("gofmt", "golang-go")), "-l", *folders]


def openssl(_folder):
    return [tool("openssl", "openssl"), "speed", "-seconds", "1", "-evp", "aes-128-gcm"]


def xz(folder):
    return [tool("xz", "xz-utils"), "-9", "-T1", "-k", "-c", generated(folder, XZ_FUNCTIONS)]


def compiled(compiler, package, name, *flags):
    def command(folder):
        target = os.path.join(folder, name.split(".")[0])
        build(tool(compiler, package), "-O2", "-g", *flags, "-o", target, source(name))
        return [target]

    return command


PROGRAMS = [
    Program("cc1", "gcc's compiler proper, stripped, on a generated C file", cc1),
    Program("python-recursive", "the distribution's Python, stripped: recursion and generators", python("recursive")),
    Program("python-json", "the same: json.dumps and json.loads with hooks", python("json")),
    Program("python-x-perf", "Python 3.12 or later, -X perf, which names Python's functions in a map", python_x_perf),
    Program("node", "node --perf-basic-prof: recursion, JSON, sorting, generators", node),
    Program("java", "java -XX:+PreserveFramePointer -XX:+DumpPerfMapAtExit: recursion, lambdas, streams", java),
    Program("go", "goroutines with deep stacks, sorting, JSON, garbage collection", go),
    Program("gofmt", "the formatter of Go on the standard library: parsing, printing, garbage collection", gofmt),
    Program("openssl", "openssl speed -evp aes-128-gcm, stripped: assembly whose unwind tables are wrong", openssl),
    Program("musl", "sorting and printing with musl, whose functions have no unwind tables", compiled("musl-gcc", "musl-tools", "sort.c")),
    Program("xz", "xz -9, stripped", xz),
    Program("cpp", "recursive C++: virtual calls, lambdas, templates, exceptions", compiled("g++", "g++", "recursive.cpp")),
    Program("deep", "recursion 100,000 calls deep, sampled at every depth", compiled("gcc", "gcc", "deep.c")),
    Program("threads", "200 busy threads", compiled("gcc", "gcc", "threads.c", "-pthread")),
]
