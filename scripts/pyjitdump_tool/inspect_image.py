"""Reads an ELF image of libpyjitdump, pyjd-PID-N.so, and checks all of it.

The layout is in libpyjitdump/elfimage.h: file offset and virtual address are the same, everything is
there from the beginning but names and lines. (System V ABI, chapters 4 and 5; DWARF 4, sections 6.2, 7.5.)
"""
import os
import re
import struct

from . import inspect_ehframe, inspect_elf, inspect_lines
from .inspect_common import MACHINES, SLOT_ROWS, SLOT_SIZE, SLOT_STRIDE, Broken, slot_flaw, text_of
from .inspect_elf import MAGIC, SYM

GLOBAL_FUNC = 1 << 4 | 2
# abbreviation, producer, directory, language Python: how .debug_info goes on
PRODUCER = re.compile(rb"\x01(libpyjitdump [^\0]{1,40})\0[^\0]{1,4095}\0\x14\0")


def is_image(path, data):
    """An ELF file that is an image, or by its name ought to be one."""
    return bool(re.match(r"pyjd-\d+-\d+\.so$", os.path.basename(path)) or
                data[:4] == MAGIC and PRODUCER.search(data))


class Reader(inspect_elf.Outer):
    def __init__(self, path, data):
        super().__init__(path, data)
        self.program = None

    def read(self):
        report = self.report
        named = re.match(r"pyjd-(\d+)-(\d+)\.so$", os.path.basename(report.path))
        if named:
            report.summary.update(pid=int(named.group(1)), number=int(named.group(2)))
        else:
            report.remark(None, "the file is not named pyjd-PID-N.so")
        try:
            self.elf_header()
            for part in (self.layout, self.program_headers, self.text, self.unwind, self.hash, self.lines,
                         self.symbols, self.dynamic, self.debug):
                self.one_part(part)
        except Broken as problem:
            report.broken(problem)
        return report

    def one_part(self, part):
        try:
            part()
        except Broken as problem:
            self.report.broken(problem)
        except KeyError as missing:
            self.report.remark(None, "%s cannot be checked: there is no section %s", part.__name__,
                               missing.args[0])

    # ----------------------------------------------------------------------------------- loaded parts

    def text(self):
        report, text = self.report, self.sections[".text"]
        self.capacity = text.size // SLOT_STRIDE
        report.summary["capacity"] = self.capacity
        report.check(text.size and text.size % SLOT_STRIDE == 0, text.header_at + 32,
                     ".text has %d bytes, which is not a number of slots of %d", text.size, SLOT_STRIDE)
        if self.machine != 62:
            return
        salts = {}
        for slot in range(self.capacity):
            at = text.offset + slot * SLOT_STRIDE
            code = self.data[at:at + SLOT_STRIDE]
            flaw = slot_flaw(code)
            if flaw is not None:
                report.error(at + flaw, "byte %d of slot %d is 0x%02x, which no trampoline has there", flaw, slot,
                             code[flaw])
            other = salts.setdefault(code[:SLOT_SIZE], slot)
            report.check(other == slot, at, "slot %d is byte for byte slot %d: some tools take them for one", slot,
                         other)

    def unwind(self):
        report, text = self.report, self.sections[".text"]
        frame = self.sections[".eh_frame"]
        _, fdes = inspect_ehframe.read_eh_frame(report, self.cursor(".eh_frame"))
        report.check(len(fdes) == text.size // SLOT_STRIDE, frame.header_at + 32, "%d FDEs for %d slots", len(fdes),
                     text.size // SLOT_STRIDE)
        for slot, fde in enumerate(fdes):
            place = text.offset + slot * SLOT_STRIDE
            report.check(fde.begin == place, fde.begin_at, "the FDE of slot %d is for %d, the slot is at %d", slot,
                         fde.begin, place)
            report.check(fde.reach == SLOT_SIZE, fde.begin_at + 4, "the FDE of slot %d is for %d bytes, a slot has"
                         " %d", slot, fde.reach, SLOT_SIZE)
        checked = {}
        for fde in fdes:
            if self.machine == 62 and id(fde.rows) not in checked:
                rows = tuple((row.location, row.cfa, row.rules) for row in fde.rows)
                checked[id(fde.rows)] = rows == SLOT_ROWS
                report.check(rows == SLOT_ROWS, fde.offset, "the unwind rows are not those of the trampoline")
        if fdes:
            registers = MACHINES[self.machine].registers if self.machine in MACHINES else {}
            report.summary["unwind"] = [inspect_ehframe.row_text(row, registers) for row in fdes[0].rows]
            report.summary["fdes"] = len(fdes)
        inspect_ehframe.read_eh_frame_hdr(report, self.cursor(".eh_frame_hdr"), frame.offset, fdes)

    def hash(self):
        report, cursor = self.report, self.cursor(".hash")
        count = self.sections[".dynsym"].size // SYM.size
        at = cursor.at
        buckets, chains = cursor.unpack("II", ".hash")
        report.check(buckets == 1, at, "nbucket is %d, images have 1", buckets)
        report.check(chains == count, at + 4, "nchain is %d, .dynsym has %d symbols", chains, count)
        at, rest = cursor.at, cursor.take(cursor.left(), ".hash")
        report.check(len(rest) == 4 * (count + 1), at, ".hash has %d bytes for %d symbols, not %d", len(rest),
                     count, 4 * (count + 1))
        used = re.search(rb"[^\0]", rest)
        report.check(not used, at + (used.start() if used else 0), "a chain of .hash is not empty")

    def dynamic(self):
        report, sections, cursor = self.report, self.sections, self.cursor(".dynamic")
        strings = sections[".dynstr"]
        for tag, name, value in ((4, "DT_HASH", sections[".hash"].offset),
                                 (6, "DT_SYMTAB", sections[".dynsym"].offset), (5, "DT_STRTAB", strings.offset),
                                 (10, "DT_STRSZ", strings.size), (11, "DT_SYMENT", SYM.size), (0, "DT_NULL", 0)):
            at = cursor.at
            found = cursor.unpack("QQ", ".dynamic")
            report.check(found[0] == tag, at, "tag %d in place of %s, %d", found[0], name, tag)
            report.check(found[1] == value, at + 8, "%s is %d, should be %d", name, found[1], value)
        report.check(not cursor.left(), cursor.at, "%d bytes behind DT_NULL", cursor.left())

    # ----------------------------------------------------------------------------------- names and lines

    def lines(self):
        program = self.program = inspect_lines.read(self.report, self.cursor(".debug_line"))
        total = program.end - program.begin
        self.report.summary.update(name_bytes=total, name_bytes_used=program.used - program.begin)

    def symbols(self):
        report, text = self.report, self.sections[".text"]
        dynsym, strings = self.sections[".dynsym"], self.sections[".dynstr"]
        whole = dynsym.size // SYM.size * SYM.size
        report.check(whole == dynsym.size and whole // SYM.size == text.size // SLOT_STRIDE + 1,
                     dynsym.header_at + 32, ".dynsym has %d bytes for %d slots", dynsym.size,
                     text.size // SLOT_STRIDE)
        for slot, (offset, addr) in enumerate(self.program.addresses if self.program else ()):
            report.check(addr == text.offset + slot * SLOT_STRIDE, offset + 3, "line record %d is for %d, the slot is"
                         " at %d", slot, addr, text.offset + slot * SLOT_STRIDE)
        rows = {}
        for sequence in self.program.sequences if self.program else ():
            report.check(rows.setdefault(sequence.addr, sequence) is sequence, sequence.offset,
                         "a second line for address %d", sequence.addr)
        named = 0
        for index, symbol in enumerate(SYM.iter_unpack(self.data[dynsym.offset:dynsym.offset + whole])):
            at = dynsym.offset + index * SYM.size
            if index == 0:
                report.check(not any(symbol), at, "the first symbol is not zero")
                continue
            place = text.offset + (index - 1) * SLOT_STRIDE
            wanted = (GLOBAL_FUNC, 0, 1, place, SLOT_SIZE)
            if symbol[1:] != wanted:
                self.symbol_fields(at, index - 1, symbol[1:], wanted)
            if symbol[0]:
                named += 1
                self.symbol(at, index - 1, symbol[0] + strings.offset, rows.pop(place, None), place)
        for sequence in rows.values():
            report.remark(sequence.offset, "a line for address %d, whose symbol has no name: written in part, or"
                          " not a slot", sequence.addr)
        report.check(not any(self.data[strings.offset:strings.offset + 4]), strings.offset,
                     ".dynstr does not begin with four zero bytes")
        report.check(self.data[strings.end - 1:strings.end] == b"\0", strings.end - 1, ".dynstr does not end with NUL")
        report.summary["used"] = named

    def symbol_fields(self, at, slot, found, wanted):
        for offset, what, value, right in zip((4, 5, 6, 8, 16), ("st_info", "st_other", "st_shndx", "st_value",
                                                                  "st_size"), found, wanted):
            self.report.check(value == right, at + offset, "%s of slot %d is %d, should be %d", what, slot, value,
                              right)

    def symbol(self, at, slot, name_at, row, place):
        report, program = self.report, self.program
        record = {"offset": at, "type": "symbol", "slot": slot, "addr": place, "name": None, "line": None}
        report.records.append(record)
        raw = program.defined.get(name_at) if program else None
        if raw is None:
            report.error(at, "st_name of slot %d leads to %d, where no name is defined", slot, name_at)
            return
        record["name"] = text_of(report, raw, name_at, "name")
        if row is None:                 # a function of no file
            return
        record["line"] = "%s:%d" % (inspect_lines.file_name(report, program, row.file, row.offset), row.line)
        report.check(row.end == place + SLOT_SIZE, row.offset, "the line of slot %d ends at %s, the slot at %d", slot,
                     row.end, place + SLOT_SIZE)

    def debug(self):
        report, text, cursor = self.report, self.sections[".text"], self.cursor(".debug_info")
        at = cursor.at
        length = cursor.number("I", "unit_length")
        report.check(length == cursor.left(), at, "unit_length is %d, .debug_info has %d bytes behind it", length,
                     cursor.left())
        for code, what, value in (("H", "version", 4), ("I", "debug_abbrev_offset", 0), ("B", "address_size", 8),
                                  ("B", "abbreviation", 1)):
            at = cursor.at
            found = cursor.number(code, what)
            report.check(found == value, at, "%s of .debug_info is %d, images have %d", what, found, value)
        at = cursor.at
        report.summary["producer"] = text_of(report, cursor.raw_string("producer"), at, "producer")
        at = cursor.at
        report.summary["directory"] = text_of(report, cursor.raw_string("directory"), at, "directory")
        for code, what, value in (("H", "language", 0x14), ("Q", "low_pc", text.offset), ("Q", "high_pc", text.size),
                                  ("I", "stmt_list", 0)):
            at = cursor.at
            found = cursor.number(code, what)
            report.check(found == value, at, "%s of .debug_info is %d, should be %d", what, found, value)
        abbreviation = self.sections[".debug_abbrev"]
        right = bytes((1, 0x11, 0, 0x25, 8, 0x1B, 8, 0x13, 5, 0x11, 1, 0x12, 7, 0x10, 0x17, 0, 0, 0))
        report.check(self.data[abbreviation.offset:abbreviation.end] == right, abbreviation.offset,
                     ".debug_abbrev is not the one that .debug_info uses")
        aranges = self.sections[".debug_aranges"]
        right = struct.pack("<IHIBB4xQQQQ", 44, 2, 0, 8, 0, text.offset, text.size, 0, 0)
        report.check(self.data[aranges.offset:aranges.end] == right, aranges.offset,
                     ".debug_aranges is not that of one unit over .text")


def read(path, data):
    return Reader(path, data).read()


def describe(record):
    """One record as text: a list of lines."""
    if record["type"] == "section":
        return ["%10d %8d  %3s  %s" % (record["offset"], record["size"], record["loaded"], record["name"])]
    return ["%10d slot %-6d %6x  %s  %s" % (record["offset"], record["slot"], record["addr"],
                                           record["name"] or "?", record["line"] or "(no line)")]


def symbol_lines(path):
    """{symbol: line} of an image, as far as it can be read; {} for other files."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return {}
    if data[:4] != MAGIC:
        return {}
    reader = Reader(path, data)
    try:
        reader.elf_header()
        dynsym, strings = reader.sections[".dynsym"], reader.sections[".dynstr"]
        reader.lines()
    except (Broken, KeyError):
        return {}
    lines = {sequence.addr: sequence.line for sequence in reader.program.sequences}
    found = {}
    for symbol in SYM.iter_unpack(data[dynsym.offset:dynsym.offset + dynsym.size // SYM.size * SYM.size]):
        name = reader.program.defined.get(strings.offset + symbol[0]) if symbol[0] else None
        if name and symbol[4] in lines:
            found[name.decode("utf-8", "replace")] = lines[symbol[4]]
    return found
