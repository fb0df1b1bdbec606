"""Small files of the three kinds, made here byte by byte from docs/formats.md, and sharing no code with
the library or the reader that they test."""
import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

PID = 4711
STRIDE, SLOT = 128, 32
CIE = bytes.fromhex("14000000 00000000 01 7a5200 01 78 10 01 1b 0c0708 9001 0000")
ROWS = bytes.fromhex("45 0e10 8602 43 0d06 43 0c0708 c6 0000")
CODE = bytes.fromhex("f30f1efa554889e5ffd15dc3cccccccc48b8")


def align(value, to):
    return (value + to - 1) // to * to


def slot(salt, size=SLOT):
    return (CODE + struct.pack("<Q", salt)).ljust(size, b"\xcc")


def fde(back_to_cie, to_code):
    return struct.pack("<IIiIB", 28, back_to_cie, to_code, SLOT, 0) + ROWS


def record(kind, time, body):
    return struct.pack("<IIQ", kind, 16 + len(body), time) + body


def padded(body):
    return body + bytes(-len(body) % 8)


def jitdump(functions=2, first_time=1000):
    """A jitdump as the library writes it, and the offsets of its records, three for each function."""
    data = struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, PID, first_time, 0)
    offsets = []
    for number in range(functions):
        addr, time, line = 0x7F0000001000 + number * STRIDE, first_time + number, 10 + number
        lines = b"".join(struct.pack("<Qii", where, line, 0) + b"/srv/app.py\0" for where in (addr, addr + SLOT))
        frame = CIE + fde(28, -64) + bytes(4)
        header = bytes((1, 0x1B, 3, 0x3B)) + struct.pack("<iIii", -64, 1, -92, -36)
        for kind, body in (
                (2, padded(struct.pack("<QQ", addr, 2) + lines)),
                (4, struct.pack("<QQQ", 80, 20, 80) + frame + header),
                (0, struct.pack("<IIQQQQ", PID, PID + 1, addr, addr, SLOT, number + 1) +
                 b"py::f%d:/srv/app.py\0" % number + slot(number))):
            offsets.append(len(data))
            data += record(kind, time, body)
    return bytearray(data), offsets


SECTIONS = ("", ".text", ".eh_frame", ".eh_frame_hdr", ".hash", ".dynsym", ".dynstr", ".dynamic", ".debug_line",
            ".debug_abbrev", ".debug_info", ".debug_aranges", ".shstrtab")


class Image:
    """An image with `capacity` slots of which `names` are published; `at` and `end`: places of sections."""

    def __init__(self, capacity=3, names=(b"py::f:/srv/app.py", b"py::A.g:/srv/app.py"), room=400):
        self.data, self.at, self.end = bytearray(4096), {}, {}
        self.capacity, self.names = capacity, names
        self.section(".text", 4096, b"".join(slot(n, STRIDE) for n in range(capacity)))
        self.unwind()
        self.section(".hash", 8, struct.pack("<II", 1, capacity + 1) + bytes(4 * (capacity + 2)))
        names_at = self.names_and_lines(room)
        self.symbols(names_at)
        text, dynstr = self.at[".text"], self.at[".dynstr"]
        self.section(".dynamic", 4096, struct.pack(
            "<12Q", 4, self.at[".hash"], 6, self.at[".dynsym"], 5, dynstr, 10, self.end[".dynstr"] - dynstr, 11, 24,
            0, 0))
        self.section(".debug_abbrev", 1, bytes((1, 0x11, 0, 0x25, 8, 0x1B, 8, 0x13, 5, 0x11, 1, 0x12, 7, 0x10, 0x17, 0, 0, 0)))
        unit = struct.pack("<HIBB", 4, 0, 8, 1) + b"libpyjitdump 0.1.0\0/srv\0" + struct.pack(
            "<HQQI", 0x14, text, capacity * STRIDE, 0)
        self.section(".debug_info", 4, struct.pack("<I", len(unit)) + unit)
        self.section(".debug_aranges", 16, struct.pack("<IHIBB4xQQQQ", 44, 2, 0, 8, 0, text, capacity * STRIDE, 0, 0))
        self.section(".shstrtab", 1, b"".join(name.encode() + b"\0" for name in SECTIONS))
        self.headers()

    def section(self, name, to, content):
        self.data += bytes(align(len(self.data), to) - len(self.data))
        self.at[name] = len(self.data)
        self.data += content
        self.end[name] = len(self.data)

    def unwind(self):
        start = align(len(self.data), 8)
        frame, fdes = CIE, []
        for number in range(self.capacity):
            fdes.append(start + len(frame))
            frame += fde(len(frame) + 4, self.at[".text"] + number * STRIDE - start - len(frame) - 8)
        self.section(".eh_frame", 8, frame + bytes(4))
        hdr = len(self.data)
        table = b"".join(struct.pack("<ii", self.at[".text"] + n * STRIDE - hdr, at - hdr)
                         for n, at in enumerate(fdes))
        self.section(".eh_frame_hdr", 4,
                     bytes((1, 0x1B, 3, 0x3B)) + struct.pack("<iI", start - hdr - 4, self.capacity) + table)

    def names_and_lines(self, room):
        """.dynsym is in front of .dynstr: its place is kept free, and filled in symbols()."""
        self.section(".dynsym", 8, bytes(24 * (self.capacity + 1)))
        begin = align(len(self.data), 8)
        operands = bytes((0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1))
        header = bytes((1, 1, 1, 0xFF, 4, 13)) + operands + bytes(1)
        head = 4 + 2 + 4 + len(header)
        leb = lambda value, size: bytes(                                        # noqa: E731
            value >> 7 * n & 0x7F | (0x80 if n + 1 < size else 0) for n in range(size))
        listed, places, records = b"<no function yet>\0\0\0\0", [], b""
        for number in range(self.capacity):
            file, line = 1, 0
            if number < len(self.names):
                places.append(4 + head + len(listed))
                listed += self.names[number] + bytes(4)
                if number == 0:
                    listed += b"/srv/app.py" + bytes(4)
                file, line = 3, 10 + number
            records += bytes((0, 9, 2)) + struct.pack("<Q", self.at[".text"] + number * STRIDE)
            records += bytes((7, 7, 7, 7, 4)) + leb(file, 3) + bytes((3,)) + leb(line - 1, 4)
            records += bytes((1, 2, SLOT, 0, 1, 1, 7, 7))
        self.dots = begin + 4 + head + len(listed)
        listed += b"." * room
        listed += b"." * (-(begin + 4 + head + len(listed) + 5) % 8) + bytes(5)
        header += listed
        unit = struct.pack("<IHI", 6 + len(header) + len(records), 4, len(header)) + header
        self.section(".dynstr", 8, bytes(4) + unit)
        self.records = len(self.data)
        self.data += records
        self.at[".debug_line"], self.end[".debug_line"] = begin + 4, len(self.data)
        return places

    def symbols(self, names_at):
        for number in range(self.capacity):
            name = names_at[number] if number < len(names_at) else 0
            struct.pack_into("<IBBHQQ", self.data, self.at[".dynsym"] + 24 * (number + 1), name, 0x12, 0, 1,
                             self.at[".text"] + number * STRIDE, SLOT)

    def headers(self):
        facts = {".text": (1, 6, 0, 0, 4096, 0), ".eh_frame": (1, 2, 0, 0, 8, 0), ".eh_frame_hdr": (1, 2, 0, 0, 4, 0),
                 ".hash": (5, 2, 5, 0, 8, 4), ".dynsym": (11, 2, 6, 1, 8, 24), ".dynstr": (3, 2, 0, 0, 1, 0),
                 ".dynamic": (6, 3, 6, 0, 8, 16), ".debug_line": (1, 0, 0, 0, 1, 0),
                 ".debug_abbrev": (1, 0, 0, 0, 1, 0), ".debug_info": (1, 0, 0, 0, 1, 0), ".debug_aranges": (1, 0, 0, 0, 16, 0),
                 ".shstrtab": (3, 0, 0, 0, 1, 0)}
        self.data += bytes(-len(self.data) % 8)
        self.section_headers = len(self.data)
        name_at = 0
        for name in SECTIONS:
            if not name:
                self.data += bytes(64)
            else:
                kind, flags, link, info, to, entry = facts[name]
                begin = self.at[name]
                self.data += struct.pack("<IIQQQQIIQQ", name_at, kind, flags, begin if flags & 2 else 0, begin,
                                         self.end[name] - begin, link, info, to, entry)
            name_at += len(name) + 1
        struct.pack_into("<16sHHIQQQIHHHHHH", self.data, 0, b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, self.section_headers, 0,
                         64, 56, 5, 64, 13, 12)
        span = lambda name: (self.at[name], self.end[name] - self.at[name])     # noqa: E731
        for number, (kind, flags, (begin, size), to) in enumerate((
                (1, 5, (0, self.end[".debug_line"]), 4096), (1, 6, span(".dynamic"), 4096), (2, 6, span(".dynamic"), 8),
                (0x6474E550, 4, span(".eh_frame_hdr"), 4), (0x6474E551, 6, (0, 0), 16))):
            struct.pack_into("<IIQQQQQQ", self.data, 64 + 56 * number, kind, flags, begin, begin, begin, size, size, to)


MAP = (b"7f0000001000 20 py::f:/srv/app.py\n"
       b"7f0000001080 20 py::g:/srv/app.py\n"
       b"7f0000001100 20 py::\xc3\xa9t\xc3\xa9:/srv/app.py\n")
