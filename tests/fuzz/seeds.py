#!/usr/bin/env python3
"""What fuzzing begins with, and what is kept of it.
seeds.py TARGET DIRECTORY               writes inputs of TARGET that are right
seeds.py --keep BYTES FROM TO           moves the smallest files of FROM to TO, up to so many bytes in all"""
import hashlib, math, pathlib, re, shutil, struct, subprocess, sys, tempfile, zlib

# Files of a target that are committed.
MOST_KEPT = 150
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

C = """
#include <alloca.h>
__attribute__((noinline)) int leaf(int x) { return x * 3; }
__attribute__((noinline)) int frame(int x) { volatile int a[40]; a[x & 31] = leaf(x); return a[3]; }
__attribute__((noinline)) int sized(int x) { char *p = alloca(x & 63); *p = frame(x); return *p; }
__attribute__((noinline)) int aligned(int x) { _Alignas(64) int a[16]; a[x & 15] = sized(x); __asm__("" :: "r"(a)); return a[0]; }
#ifdef LOOPS
int main(int c, char **v) { for (long i = 0; i < LOOPS; i++) c += aligned(c); return 0; }
#else
int main(int c, char **v) { return aligned(c); }
#endif
"""


def leb(number):
    out = bytearray()
    while True:
        out.append(number & 127 | (128 if number > 127 else 0))
        number >>= 7
        if not number:
            return bytes(out)


def records(file):
    """The records of a profile, without their checksums."""
    at = 12
    while at < len(file):
        kind, at, length, shift = file[at], at + 1, 0, 0
        while True:
            byte = file[at]
            length, shift, at = length | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                break
        yield kind, file[at:at + length]
        at += length + 4


def plain(file):
    """A profile whose updates are stored, so that a change of a byte is one of a field. The fuzzer mends the checksums."""
    out = bytearray(file[:12])
    for kind, payload in records(file):
        if kind == 2 and file[8] == 3 and payload[0] == 1:
            at = next(i for i in range(1, 12) if payload[i] < 128) + 1
            payload = b"\0" + zlib.decompress(payload[at:], -15)
        out += bytes([kind]) + leb(len(payload)) + payload + b"\0\0\0\0"
    return bytes(out)


def profile():
    for path in sorted((ROOT / "collector/profile/tests/data").glob("*.profile")):
        yield path.read_bytes()
        yield plain(path.read_bytes())


def compiled(directory, *options):
    source = pathlib.Path(directory, "a.c")
    source.write_text(C)
    program = pathlib.Path(directory, "a.out")
    subprocess.run(["cc", source, "-o", program, *options], check=True)
    return program


def elf():
    with tempfile.TemporaryDirectory() as directory:
        for options in [["-O1", "-g"], ["-O2", "-s"], ["-O1", "-g", "-gz=zlib"], ["-Os", "-g", "-gdwarf-4", "-static-pie"],
                        ["-O1", "-fno-asynchronous-unwind-tables"]]:
            extra = ["-nostdlib", "-ffreestanding", "-Wl,-e,main"]
            file = compiled(directory, *options, *extra).read_bytes()
            if len(file) < 1 << 16:
                yield file


def section(program, name):
    """The bytes of a section: e_shoff, e_shentsize, e_shnum and e_shstrndx, then its header (elf(5))."""
    file = program.read_bytes()
    (start,), (size, count, names) = struct.unpack_from("<Q", file, 40), struct.unpack_from("<3H", file, 58)
    headers = [struct.unpack_from("<IIQQQQ", file, start + size * number) for number in range(count)]
    for header in headers:
        if file[headers[names][4] + header[0]:].startswith(name.encode() + b"\0"):
            return file[header[4]:header[4] + header[5]]
    raise KeyError(name)


def stacks():
    # Frame pointer and the other registers; then a stack of return addresses, and one of saved frame pointers with them.
    words = struct.pack("<15Q", 2 << 56, *range(14))
    plain = [1 << 56 | 5 * n % 110 for n in range(60)]
    saved = [word for n in range(0, 60, 2) for word in (2 << 56 | 8 * n + 16, 1 << 56 | 5 * n % 110)]
    with tempfile.TemporaryDirectory() as directory:
        for options in [["-O1"], ["-O2"], ["-O0"], ["-Os", "-fno-omit-frame-pointer"]]:
            # Linked so that the code is where the fuzzer maps it, and the table just behind.
            program = compiled(directory, *options, "-nostdlib", "-ffreestanding", "-static", "-fno-pie", "-Wl,-e,main",
                               "-Wl,-Ttext=0x1000", "-Wl,--section-start=.eh_frame=0x1200", "-Wl,--build-id=none")
            code = section(program, ".text").ljust(0x200, b"\xcc")
            table = section(program, ".eh_frame")
            for debug in (0, 1):
                for at in range(0, 0x80, 12):
                    head = struct.pack("<HHB", len(code), len(table), debug) + code + table + struct.pack("<Q", 1 << 56 | at) + words
                    yield head + struct.pack("<60Q", *plain)
                    yield head + struct.pack("<60Q", *saved)


# Where x86_64 has its kernel, and where nothing is: the names of a kernel that does not run are not read. Nor are those of
# a program that is gone. Reading the machine's own files would take a hundred times as long as the recording.
KERNEL, NO_KERNEL = struct.pack("<Q", 0xFFFFFFFF81000000), struct.pack("<Q", 0xFFFFFFFFA1000000)


def perf_data():
    with tempfile.TemporaryDirectory() as directory:
        if not shutil.which("perf"):
            return
        program = compiled(directory, "-O1", "-static", "-DLOOPS=30000000L")
        for options in [["-e", "cpu-clock", "-g"], ["-e", "cpu-clock", "--call-graph", "dwarf,512"],
                        ["-e", "cpu-clock:u,task-clock:u"], ["-e", "cpu-clock:u", "-g", "-z"]]:
            out = pathlib.Path(directory, "perf.data")
            done = subprocess.run(["perf", "record", "-q", "-F", "199", *options, "-o", out, "--", program], capture_output=True)
            if done.returncode == 0 and out.stat().st_size < 1 << 16:
                yield out.read_bytes().replace(KERNEL, NO_KERNEL)


def perf_script():
    yield b"""# cmdline : /usr/bin/perf record -F 99 -g -- ./demo
# event : name = cpu-clock:u, , id = { 7 }, type = 1, size = 136
demo  7/8  12.345678:  10101010 cpu-clock:u:
\t    55d0c0de1139 leaf+0x9 (/usr/bin/demo)
\t    55d0c0de1150 main+0x20 (/usr/bin/demo)
\tffffffff81000000 [unknown] ([kernel.kallsyms])

demo  7/8  12.445678:  10101010 cpu-clock:u:
\t    55d0c0de1139 leaf (inlined)
\t    7f00c0de1150 std::vector<int>::push_back(int)+0x20 (/usr/lib/libdemo.so (deleted))

"""
    yield b"demo 7 12.5: cpu-clock:\n 1139 leaf (/usr/bin/demo)\n\n"


def generated_code():
    yield b"\x40" + b"7f0000001000 40 first\n7f0000001040 0x20 second with blanks\n0x7f0000002000 10 first\n"
    header = struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, 7, 1, 0)
    def load(at, name, code, index):
        body = struct.pack("<IIQQQQ", 7, 7, at, at, len(code), index) + name + b"\0" + code
        return struct.pack("<IIQ", 0, 16 + len(body), index) + body
    move = struct.pack("<IIQ", 1, 16 + 48, 9) + struct.pack("<IIQQQQQ", 7, 7, 0x8000, 0x7000, 0x9000, 4, 1)
    yield b"\x21" + header + load(0x7000, b"first", b"\xc3" * 4, 1) + load(0x7010, b"second", b"\x90\xc3", 2) + move + struct.pack("<IIQ", 3, 16, 10)


def frames():
    text = (ROOT / "daemon/src/protocol/message.rs").read_text()
    messages = ['{"protocol":1,"ccsd":"0.1.0","pid":7}', '"Sessions"', '{"Refused":{"kind":"Version","message":"x"}}']
    names = sorted(set(re.findall(r"^    ([A-Z][A-Za-z]+)[,({ ]", text, re.M)))
    fields = ",".join(f'"{name}":0' for name in sorted(set(re.findall(r"^ +pub ([a-z_]+):", text, re.M))))
    messages += [f'"{name}"' for name in names] + [f'{{"{name}":{{{fields}}}}}' for name in names]
    for message in messages:
        yield b"C" + struct.pack("<I", len(message)) + message.encode()
    yield b"".join(b"C" + struct.pack("<I", len(message)) + message.encode() for message in messages[:3]) + b"S\4\0\0\0abcd"


def config():
    shipped = (ROOT / "systemd/ccsd.toml").read_text()
    yield shipped.encode()
    yield re.sub(r"^#([a-z\[])", r"\1", shipped, flags=re.M).encode()


def main():
    if sys.argv[1] == "--keep":
        most, source, to = int(sys.argv[2]), pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
        found = sorted(source.iterdir(), key=lambda path: path.stat().st_size)
        # Small and large ones.
        every = max(1, math.ceil(len(found) / MOST_KEPT))
        kept = set()
        for path in found[::every]:
            most -= path.stat().st_size
            if most < 0:
                break
            shutil.copy(path, to / path.name)
            kept.add(path.name)
        for path in to.iterdir():
            if path.name not in kept:
                path.unlink()
        print(f"{to}: {len(list(to.iterdir()))} of {len(list(source.iterdir()))} inputs kept")
        return
    to = pathlib.Path(sys.argv[2])
    for content in globals()[sys.argv[1]]():
        (to / hashlib.sha1(content).hexdigest()).write_bytes(content)


main()
