"""The little that the tool asks of an ELF file: machine, libc, build-id, and whether its functions keep
frame pointers.

Little-endian 64-bit files only; others are None or "unknown".
"""
import mmap
import struct

PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_GNU_EH_FRAME = 1, 2, 3, 4, 0x6474E550
DT_STRTAB, DT_SYMTAB, DT_STRSZ = 5, 6, 10
EM_X86_64, EM_AARCH64 = 62, 183
NT_GNU_BUILD_ID = 3

ENOUGH = 400            # functions to look at
SHORTEST = 48           # bytes; shorter functions are often leaves that need no frame
PROLOGUE = b"\x55\x48\x89\xe5"      # push %rbp; mov %rsp,%rbp


class Elf:
    """An ELF file, mapped. Raises ValueError if it is none that we read, OSError if it cannot be read."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)    # ValueError if empty
        if self.data[:6] != b"\x7fELF\x02\x01" or len(self.data) < 64:
            raise ValueError("not a 64-bit little-endian ELF file")
        self.machine, = struct.unpack_from("<H", self.data, 18)
        offset, = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        if size != 56 or offset + size * count > len(self.data):
            raise ValueError("broken program headers")
        # (type, flags, offset, address, physical address, size in file, size in memory, alignment)
        self.segments = [struct.unpack_from("<IIQQQQQQ", self.data, offset + at * size) for at in range(count)]

    def segment(self, kind):
        return next((segment for segment in self.segments if segment[0] == kind), None)

    def offset(self, address):
        """Where in the file the byte at this address is, or None."""
        for kind, _, offset, start, _, size, _, _ in self.segments:
            if kind == PT_LOAD and start <= address < start + size:
                return offset + address - start
        return None

    @property
    def loader(self):
        """The dynamic loader it asks for, "" if none."""
        segment = self.segment(PT_INTERP)
        return self.data[segment[2]:segment[2] + segment[5]].rstrip(b"\0").decode() if segment else ""

    @property
    def build_id(self):
        """In hexadecimal, "" if there is none."""
        for kind, _, at, _, _, size, _, _ in self.segments:
            end = at + size
            while kind == PT_NOTE and at + 12 <= end <= len(self.data):
                name_size, value_size, note = struct.unpack_from("<III", self.data, at)
                name, at = at + 12, at + 12 + (name_size + 3 & ~3)
                if note == NT_GNU_BUILD_ID and self.data[name:name + 4] == b"GNU\0":
                    return self.data[at:at + value_size].hex()
                at += value_size + 3 & ~3
        return ""

    def dynamic(self):
        """{tag: value} of the dynamic section."""
        segment = self.segment(PT_DYNAMIC)
        if not segment:
            return {}
        return dict(struct.iter_unpack("<QQ", self.data[segment[2]:segment[2] + segment[5] // 16 * 16]))

    def exports(self, name):
        """Whether it defines this dynamic symbol. Others may hold the name, too: who refers to it, and
        who looks it up."""
        table = self.dynamic()
        strings, symbols = self.offset(table.get(DT_STRTAB, -1)), self.offset(table.get(DT_SYMTAB, -1))
        if strings is None or symbols is None or strings < symbols:
            return False
        at = self.data.find(b"\0" + name.encode() + b"\0", strings, strings + table.get(DT_STRSZ, 0))
        if at < 0:
            return False
        # All linkers put the names behind the symbols; the number of symbols is not said anywhere.
        end = symbols + (strings - symbols) // 24 * 24
        return any(symbol[0] == at + 1 - strings and symbol[3]
                   for symbol in struct.iter_unpack("<IBBHQQ", self.data[symbols:end]))

    def functions(self):
        """Addresses of functions in ascending order, of the search table of .eh_frame_hdr."""
        segment = self.segment(PT_GNU_EH_FRAME)
        if not segment:
            return []
        at, start = segment[2], segment[3]
        # version 1, eh_frame_ptr as pcrel sdata4, count as udata4, table as datarel sdata4: what all linkers write
        if self.data[at:at + 4] != b"\x01\x1b\x03\x3b":
            return []
        count, = struct.unpack_from("<I", self.data, at + 8)
        count = min(count, (len(self.data) - at - 12) // 8)
        return [start + place for place, _ in struct.iter_unpack("<ii", self.data[at + 12:at + 12 + 8 * count])]

    def frame_pointers(self):
        """True, False, or None where it cannot be told: whether functions begin by setting up %rbp.

        A compiler that omits frame pointers still makes some, in functions with variable-length arrays,
        and one that keeps them leaves them out of some leaves.
        """
        if self.machine != EM_X86_64:
            return None
        functions = self.functions()
        long = [start for start, end in zip(functions, functions[1:]) if end - start >= SHORTEST]
        step = max(1, len(long) // ENOUGH)
        codes = [self.data[place:place + 24] for place in map(self.offset, long[::step]) if place is not None]
        if len(codes) < 10:
            return None
        return sum(PROLOGUE in code for code in codes) > 0.6 * len(codes)


def look(path):
    """The Elf of a file, or None if it is not one that can be read."""
    try:
        return Elf(path)
    except (OSError, ValueError, struct.error):
        return None
