"""Decodes the line number program of an image (DWARF 4, section 6.2), which holds its names too.

The program is a sequence of `define_file name`, `define_file path` (unless known), `set_file`,
`set_address`, `advance_line`, `copy`, `advance_pc`, `end_sequence`, one for each function, and behind
them an instruction that does nothing, again and again, to the end.
"""
import collections

from .inspect_common import Broken, text_of

Sequence = collections.namedtuple("Sequence", "offset addr end file line")

FILLER = 7                          # DW_LNS_set_basic_block
OPERANDS = bytes((0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1))
COPY, ADVANCE_PC, ADVANCE_LINE, SET_FILE = 1, 2, 3, 4
END_SEQUENCE, SET_ADDRESS, DEFINE_FILE = 1, 2, 3
HEADER_FIELDS = (("minimum_instruction_length", 1), ("maximum_operations_per_instruction", 1),
                 ("default_is_stmt", 1))


class Program:
    def __init__(self):
        self.files = [None]         # DWARF 4 counts files from 1
        self.defined = {}           # offset of a string -> its bytes
        self.sequences = []
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
    report.check(cursor.take(2, "directories and files") == b"\0\0", at,
                 "the tables of directories and files are not empty")
    report.check(cursor.at == expected, start + 6, "header_length is %d, the program begins at %d",
                 header_length, cursor.at)


class _State:
    """The registers of the line number machine (6.2.2), as far as images use them."""

    def __init__(self, at):
        self.begun, self.addr, self.file, self.line, self.row = at, None, 1, 1, None


def _extended(report, cursor, program, state, offset):
    length = cursor.leb128(False, "length of an extended instruction")
    end = cursor.at + length
    if length == 0 or end > cursor.end:
        raise Broken(offset, "an extended instruction of %d bytes, the program has %d more", length, cursor.left())
    opcode = cursor.number("B", "extended instruction")
    if opcode == DEFINE_FILE:
        at = cursor.at
        name = cursor.raw_string("defined name")
        program.defined[at] = name
        program.files.append(name)
        report.check(cursor.take(3, "directory, time and length") == b"\0\0\0", cursor.at - 3,
                     "directory, time and length of a file are not 0")
    elif opcode == SET_ADDRESS:
        if length != 9:
            raise Broken(offset, "set_address has %d bytes of address, not 8", length - 1)
        state.addr = cursor.number("Q", "address")
    elif opcode == END_SEQUENCE:
        if state.row is None:
            report.error(offset, "a sequence ends without a row")
        else:
            addr, file, line, at = state.row
            program.sequences.append(Sequence(at, addr, state.addr, file, line))
        state = _State(cursor.at)
    else:
        raise Broken(offset, "extended line instruction %d is not one that images have", opcode)
    if cursor.at != end:
        raise Broken(offset, "an extended instruction says %d bytes and has %d", length,
                     length + cursor.at - end)
    return state


def _standard(report, cursor, program, state, offset, opcode):
    if opcode == SET_FILE:
        state.file = cursor.leb128(False, "file")
        report.check(0 < state.file < len(program.files), offset, "file %d of %d that are defined", state.file,
                     len(program.files) - 1)
    elif opcode == ADVANCE_LINE:
        state.line += cursor.leb128(True, "line")
        report.check(state.line >= 0, offset, "line is %d", state.line)
    elif opcode == ADVANCE_PC:
        distance = cursor.leb128(False, "address advance")
        if not report.check(state.addr is not None, offset, "the address moves before it is set"):
            return
        state.addr += distance
    elif opcode == COPY:
        report.check(state.row is None, offset, "a second row in one sequence")
        if report.check(state.addr is not None, offset, "a row before an address is set"):
            state.row = state.addr, state.file, state.line, state.begun
    elif opcode != FILLER:
        raise Broken(offset, "line instruction %d is not one that images have", opcode)


def _filler(report, data, cursor):
    """Reads fillers up to the next other instruction, or the end; they are most of a young image."""
    start = cursor.at
    rest = data[start:cursor.end]
    cursor.at = cursor.end - len(rest.lstrip(bytes((FILLER,))))
    return start


def read(report, cursor):
    """The Program in cursor's range. What cannot be read ends the reading with a finding."""
    program = Program()
    program.end = cursor.end
    try:
        _read_header(report, cursor)
        program.begin = program.used = cursor.at
        state = _State(cursor.at)
        gap = None
        while cursor.left():
            offset = cursor.at
            opcode = cursor.data[offset]
            if opcode == FILLER:
                gap = _filler(report, cursor.data, cursor)
                continue
            if gap is not None:
                report.error(gap, "%d bytes of filler in front of an instruction at %d: names are appended",
                             offset - gap, offset)
                gap = None
            cursor.at += 1
            if opcode == 0:
                state = _extended(report, cursor, program, state, offset)
            else:
                _standard(report, cursor, program, state, offset, opcode)
            program.used = cursor.at
        if state.row is not None:
            report.error(state.begun, "the last sequence of the line program has no end")
    except Broken as problem:
        report.broken(problem)
    return program


def file_name(report, program, number, offset):
    if not 0 < number < len(program.files):
        return "?"
    return text_of(report, program.files[number], offset, "file name")
