"""Reads the images that libpyjitdump makes, with a parser of its own, as elfimage.h describes them.

Everything is checked on the way: a reader of a growing image must never see half a thing.
"""
import collections
import struct

NAMES = ["", ".text", ".eh_frame", ".eh_frame_hdr", ".hash", ".dynsym", ".dynstr", ".dynamic",
         ".debug_line", ".debug_abbrev", ".debug_info"]
SLOT_SIZE, SLOT_STRIDE = 32, 128

Section = collections.namedtuple("Section", "name kind flags addr offset size link entry_size")
# slot: its number; offset: in the file, and from where the image is mapped.
Symbol = collections.namedtuple("Symbol", "name slot offset size")
# begin, end: offsets of the code.
Line = collections.namedtuple("Line", "begin end file line")


class Broken(AssertionError):
    pass


class Early(Broken):
    """A line whose file's name was not there yet when that part of the file was read."""


def need(condition, *what):
    if not condition:
        raise Broken(what)


class Image:
    """sections: by name; symbols: those that have a name; capacity: how many can have one."""

    def __init__(self, data):
        self.data = data
        self.read_header()
        self.read_symbols()

    def read_header(self):
        need(self.data[:8] == b"\x7fELF\x02\x01\x01\0", "identification")
        kind, machine, _, _, _, headers = struct.unpack_from("<HHIQQQ", self.data, 16)
        header_size, count, names = struct.unpack_from("<HHH", self.data, 58)
        need(kind == 3 and header_size == 64 and machine in (62, 183), "type", kind, machine)
        need(headers + count * 64 == len(self.data), "the section headers do not end the file")
        raw = [struct.unpack_from("<IIQQQQIIQQ", self.data, headers + i * 64) for i in range(count)]
        strings = raw[names][4]
        self.sections = {}
        for name, kind, flags, addr, offset, size, link, _, _, entry in raw:
            end = self.data.index(b"\0", strings + name)
            name = self.data[strings + name:end].decode("ascii")
            need(offset + size <= headers and addr in (0, offset), "place of section", name)
            self.sections[name] = Section(name, kind, flags, addr, offset, size, link, entry)
        need(set(NAMES) <= set(self.sections), "sections", sorted(self.sections))
        need(".symtab" not in self.sections and ".note.gnu.build-id" not in self.sections, "sections")

    def string(self, offset):
        """The whole string at an offset of the file, which is inside .dynstr."""
        strings = self.sections[".dynstr"]
        end = self.data.find(b"\0", offset, strings.offset + strings.size)
        need(strings.offset < offset < end, "a string outside the string table, at", offset)
        return self.data[offset:end].decode("utf-8")        # raises if a character is cut in two

    def read_symbols(self):
        table, text = self.sections[".dynsym"], self.sections[".text"]
        strings = self.sections[".dynstr"].offset
        entries = list(struct.iter_unpack("<IBBHQQ", self.data[table.offset:table.offset + table.size]))
        need(entries[0] == (0, 0, 0, 0, 0, 0), "the first symbol is not null", entries[0])
        self.capacity = len(entries) - 1
        need(text.size == self.capacity * SLOT_STRIDE, "slots", text.size, self.capacity)
        self.symbols = []
        for slot, (name, info, other, section, value, size) in enumerate(entries[1:]):
            need((info, other, section) == (0x12, 0, 1), "symbol of slot", slot, info, other, section)
            need(value == text.offset + slot * SLOT_STRIDE and size == SLOT_SIZE, "value", slot, value, size)
            if name:
                self.symbols.append(Symbol(self.string(strings + name), slot, value, size))

    def names(self):
        return [symbol.name for symbol in self.symbols]

    def lines(self):
        """The rows of published functions in .debug_line, whose program is run to its end."""
        section = self.sections[".debug_line"]
        return list(run_line_program(self.data[section.offset:section.offset + section.size]))


def leb(data, at, signed=False):
    value = shift = 0
    while True:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
        if not byte & 0x80:
            return value - (1 << shift) if signed and byte & 0x40 else value, at


def file_list(data, at, end):
    """The names that a line number unit's header ends with."""
    files = [None]
    while data[at]:
        name_end = data.index(b"\0", at, end)
        files.append(data[at:name_end].decode("utf-8"))
        at = name_end + 1
        for _ in range(3):                                  # directory, time, length
            at = leb(data, at)[1]
    need(at + 1 == end, "the list of files ends at", at, end)
    return files


def run_line_program(data):
    """DWARF 4, section 6.2, as far as the library uses it; any other opcode is an error."""
    length, version, header_length = struct.unpack_from("<IHI", data)
    need(length + 4 == len(data) and version == 4, "line number unit", length, version)
    opcode_base, at = data[15], 10 + header_length
    need(data[15 + opcode_base] == 0, "directories")
    files = file_list(data, 16 + opcode_base, at)
    row, begun = {}, None
    while at < len(data):
        opcode, at = data[at], at + 1
        if opcode == 7:                                     # DW_LNS_set_basic_block: nothing
            continue
        if opcode == 0:
            size, at = leb(data, at)
            extended, operands, at = data[at], data[at + 1:at + size], at + size
            if extended == 2:                               # DW_LNE_set_address
                row["addr"], = struct.unpack("<Q", operands)
                continue
            need(extended == 1 and size == 1 and begun, "extended opcode", extended)
            if begun[1] >= len(files):
                raise Early("file", begun[1], len(files))
            if begun[1] != 1:                               # DW_LNE_end_sequence; 1: not published yet
                yield Line(begun[0], row["addr"], files[begun[1]], begun[2])
            row, begun = {}, None
        elif opcode == 4:                                   # DW_LNS_set_file
            row["file"], at = leb(data, at)
        elif opcode == 3:                                   # DW_LNS_advance_line
            advance, at = leb(data, at, signed=True)
            row["line"] = row.get("line", 1) + advance
        elif opcode == 2:                                   # DW_LNS_advance_pc
            advance, at = leb(data, at)
            row["addr"] += advance
        else:                                               # DW_LNS_copy
            need(opcode == 1 and not begun, "opcode", opcode)
            begun = row["addr"], row["file"], row["line"]
    need(not begun, "a sequence without an end")


def read(path):
    with open(path, "rb") as file:
        return Image(file.read())
