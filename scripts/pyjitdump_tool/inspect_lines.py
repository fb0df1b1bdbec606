"""Decodes the line number unit of an image (DWARF 4, section 6.2), which holds its names too.

The header's list of files has a name that stands for none, the names of functions and files, and a last
one of dots, which new names are written over. Behind it is one record of 32 bytes for each slot:
set_address, set_file, advance_line, copy, advance_pc, end_sequence, always in the same places.
"""
import collections

from .inspect_common import Broken, text_of

Sequence = collections.namedtuple("Sequence", "offset addr end file line")

OPERANDS = bytes((0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1))
RECORD_SIZE = 32
# The bytes of a record that are the same in all, with their offset; between them are address, file and line.
RECORD_PARTS = ((0, bytes((0, 9, 2))), (11, bytes((7, 7, 7, 7, 4))), (19, bytes((3,))),
                (24, bytes((1, 2, 32, 0, 1, 1, 7, 7))))
HEADER_FIELDS = (("minimum_instruction_length", 1), ("maximum_operations_per_instruction", 1),
                 ("default_is_stmt", 1))


class Program:
    def __init__(self):
        self.files = [None]         # DWARF 4 counts files from 1
        self.defined = {}           # offset of a string -> its bytes
        self.sequences = []         # of slots that have a line
        self.addresses = []         # (offset, address) of every record
        self.begin = self.used = self.end = 0


def _read_header(report, cursor):
    start = cursor.at
    length = cursor.number("I", "unit_length")
    report.check(length == cursor.left(), start, "unit_length is %d, the section has %d bytes behind it",
                 length, cursor.left())
    at = cursor.at
    version = cursor.number("H", "version")
    report.check(version == 4, at, "version of the line program is %d, images have 4", version)
    at = cursor.at
    header_length = cursor.number("I", "header_length")
    expected = cursor.at + header_length
    for name, value in HEADER_FIELDS:
        at = cursor.at
        found = cursor.number("B", name)
        report.check(found == value, at, "%s is %d, images have %d", name, found, value)
    cursor.take(1, "line_base")                             # special opcodes are not used
    at = cursor.at
    report.check(cursor.number("B", "line_range"), at, "line_range is 0: readers divide by it")
    at = cursor.at
    opcode_base = cursor.number("B", "opcode_base")
    if opcode_base != len(OPERANDS) + 1:
        raise Broken(at, "opcode_base is %d, images have %d", opcode_base, len(OPERANDS) + 1)
    at = cursor.at
    report.check(cursor.take(len(OPERANDS), "operand counts") == OPERANDS, at,
                 "the operand counts are not those of DWARF 4")
    at = cursor.at
    report.check(cursor.take(1, "directories") == b"\0", at, "the table of directories is not empty")
    return start, header_length, expected


def _read_names(report, cursor, program):
    """The list of files: all but the last are names; .begin is behind the first, .used before the last."""
    entries = []
    while True:
        at = cursor.at
        name = cursor.raw_string("name in the list of files")
        if not name:
            break
        entries.append((at, name))
        report.check(cursor.take(3, "directory, time and length") == b"\0\0\0", cursor.at - 3,
                     "directory, time and length of a file are not 0")
    if len(entries) < 2:
        raise Broken(cursor.at, "the list of files has %d entries, images have 2 or more", len(entries))
    last_at, last = entries.pop()
    wrong = len(last) - len(last.lstrip(b"."))
    report.check(wrong == len(last), last_at + wrong, "the last file's name is not dots only")
    first_at, first = entries[0]
    program.begin, program.used = first_at + len(first) + 4, last_at
    program.end = last_at + len(last)
    program.files += [name for _, name in entries]
    program.defined.update(entries[1:])


def _leb128(data, signed):
    value = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(data))
    return value - (1 << 7 * len(data)) if signed and data[-1] & 0x40 else value


def _read_record(report, cursor, program):
    start = cursor.at
    record = cursor.take(RECORD_SIZE, "a line record")
    for at, part in RECORD_PARTS:
        found = record[at:at + len(part)]
        if found != part:
            wrong = next(index for index, byte in enumerate(part) if found[index] != byte)
            report.error(start + at + wrong, "byte %d of a line record is 0x%02x, images have 0x%02x there",
                         at + wrong, found[wrong], part[wrong])
            return
    for at, size in ((16, 3), (20, 4)):
        bits = [byte >> 7 for byte in record[at:at + size]]
        report.check(bits == [1] * (size - 1) + [0], start + at, "a number of a line record does not have %d bytes",
                     size)
    addr = int.from_bytes(record[3:11], "little")
    file, line = _leb128(record[16:19], False), 1 + _leb128(record[20:24], True)
    report.check(line >= 0, start + 20, "line is %d", line)
    report.check(0 < file < len(program.files), start + 16, "file %d of %d that are listed", file,
                 len(program.files) - 1)
    program.addresses.append((start, addr))
    if file != 1:
        program.sequences.append(Sequence(start, addr, addr + record[26], file, line))


def read(report, cursor):
    """The Program in cursor's range. What cannot be read ends the reading with a finding."""
    program = Program()
    program.end = cursor.end
    try:
        start, header_length, expected = _read_header(report, cursor)
        _read_names(report, cursor, program)
        report.check(cursor.at == expected, start + 6, "header_length is %d, the list of files ends at %d",
                     header_length, cursor.at)
        while cursor.left():
            _read_record(report, cursor, program)
    except Broken as problem:
        report.broken(problem)
    return program


def file_name(report, program, number, offset):
    if not 0 < number < len(program.files):
        return "?"
    return text_of(report, program.files[number], offset, "file name")
