"""Just enough of ELF to say whether an address belongs to the function that a program starts in, or to a symbol."""

import bisect
import functools
import struct

PT_LOAD, PT_GNU_EH_FRAME = 1, 0x6474E550
SHT_SYMTAB, SHT_DYNSYM = 2, 11
STT_FUNC, STT_GNU_IFUNC = 2, 10
# Where no unwind table bounds the entry function: `_start` is smaller than this in every C library.
ENTRY_BYTES = 256


class Elf:
    """Program headers and entry function of a 64-bit little-endian file."""

    def __init__(self, path):
        with open(path, "rb") as file:
            header = file.read(64)
            if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
                raise ValueError(f"{path}: not a 64-bit little-endian ELF file")
            self.entry, offset = struct.unpack_from("<QQ", header, 24)
            size, count = struct.unpack_from("<HH", header, 54)
            file.seek(offset)
            table = file.read(size * count)
            self.loads, index = [], None
            for i in range(count):
                kind, _ = struct.unpack_from("<II", table, i * size)
                start, address, _, bytes_in_file = struct.unpack_from("<QQQQ", table, i * size + 8)
                if kind == PT_LOAD:
                    self.loads.append((start, address, bytes_in_file))
                elif kind == PT_GNU_EH_FRAME:
                    index = (start, address, bytes_in_file)
            self.base = min((address - start for start, address, _ in self.loads), default=0)
            self.starts = self._starts(file, index)
            self.sizes = self._sizes(file, header)

    @staticmethod
    def _starts(file, index):
        """Where functions begin, by the binary search table of `.eh_frame_hdr`."""
        if not index:
            return []
        start, address, size = index
        file.seek(start)
        data = file.read(size)
        # Version 1, pointer to .eh_frame as pcrel sdata4, count as udata4, table as datarel sdata4: what ld writes.
        if len(data) < 12 or (data[0], data[2], data[3]) != (1, 0x03, 0x3B):
            return []
        count = min(struct.unpack_from("<I", data, 8)[0], (len(data) - 12) // 8)
        return [address + struct.unpack_from("<i", data, 12 + 8 * i)[0] for i in range(count)]

    @staticmethod
    def _sizes(file, header):
        """Sizes of the functions that the file itself has symbols of, by address."""
        offset = struct.unpack_from("<Q", header, 40)[0]
        size, count = struct.unpack_from("<HH", header, 58)
        file.seek(offset)
        table = file.read(size * count)
        sizes = {}
        for i in range(count if size else 0):
            kind = struct.unpack_from("<I", table, i * size + 4)[0]
            if kind not in (SHT_SYMTAB, SHT_DYNSYM):
                continue
            file.seek(struct.unpack_from("<Q", table, i * size + 24)[0])
            symbols = file.read(struct.unpack_from("<Q", table, i * size + 32)[0])
            for _, info, _, _, address, length in struct.iter_unpack("<IBBHQQ", symbols[: len(symbols) // 24 * 24]):
                if info & 0xF in (STT_FUNC, STT_GNU_IFUNC):
                    sizes[address] = max(sizes.get(address, 0), length)
        return sizes

    def may_be_in(self, function, address):
        """Whether an address may belong to the function that begins there: not if its symbol says that it ends before."""
        size = self.sizes.get(function, 0)
        return size == 0 or address < function + size

    def address_of_offset(self, offset):
        """The virtual address at which a byte of the file is loaded."""
        for start, address, size in self.loads:
            if start <= offset < start + size:
                return address + offset - start
        return None

    def function(self, address):
        """Where the function of an address begins, as far as the unwind table tells."""
        at = bisect.bisect_right(self.starts, address)
        return self.starts[at - 1] if at else address

    def is_entry(self, address):
        """Whether an address (virtual, as in the file) lies in the function that the program starts in."""
        if address is None:
            return False
        at = bisect.bisect_right(self.starts, self.entry)
        # Where a function ends that the table does not cover is told by where the next one begins.
        end = min(self.starts[at] if at < len(self.starts) else self.entry + ENTRY_BYTES, self.entry + ENTRY_BYTES)
        return self.entry <= address < end


@functools.lru_cache(maxsize=None)
def read(path):
    """The file's `Elf`, or `None` where it is not one."""
    try:
        return Elf(path)
    except (OSError, ValueError, struct.error):
        return None
