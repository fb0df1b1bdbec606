#!/usr/bin/env python3
"""An independent reader of jitdump files, which believes nothing.

Every field of every record is compared with what the format allows, and with the other fields it
has to agree with. It shares no code with the library. References: jitdump-specification.txt of the
Linux kernel (tools/perf/Documentation); where that is silent or differs, tools/perf/util/jitdump.c
and genelf.c; for the unwind data LSB Core 5.0, sections 10.5 to 10.7, and DWARF 5, section 6.4.

    jitdump_reader.py FILE...           prints a summary of each; exit status 1 if one is wrong

Stricter than perf in what the library promises: for each function DEBUG_INFO, UNWINDING_INFO and
LOAD in this order, code bytes of its own, no overlap between the ranges that `perf inject` maps, no
CLOSE record, and a file that ends where a function ends.
"""
import collections
import os
import re
import struct
import sys
import unicodedata

MAGIC = 0x4A695444
HEADER = struct.Struct("=IIIIIIQQ")     # magic version total_size elf_mach pad pid timestamp flags
PREFIX = struct.Struct("=IIQ")          # id total_size timestamp
DEBUG_HEAD = struct.Struct("=QQ")       # code_addr nr_entry
DEBUG_ENTRY = struct.Struct("=Qii")     # addr line discriminator, then the file's name and NUL
UNWIND_HEAD = struct.Struct("=QQQ")     # unwind_size eh_frame_hdr_size mapped_size
LOAD_HEAD = struct.Struct("=IIQQQQ")    # pid tid vma code_addr code_size code_index
LOAD, DEBUG_INFO, UNWINDING_INFO = 0, 2, 4

# e_machine -> (name, DWARF number of the return address, of the stack pointer, CFA - sp on entry)
MACHINES = {62: ("x86-64", 16, 7, 8), 183: ("aarch64", 30, 31, 0)}

Line = collections.namedtuple("Line", "addr line file")
Function = collections.namedtuple(
    "Function", "name pid tid time code_addr code_size code_index code lines mapped_size cfi_rows")
Jitdump = collections.namedtuple("Jitdump", "pid elf_mach time functions")


class JitdumpError(Exception):
    """What is wrong, and at which byte of the file."""

    def __init__(self, offset, what):
        super().__init__("offset %d (0x%x): %s" % (offset, offset, what))
        self.offset = offset


def require(condition, offset, what, *args):
    if not condition:
        raise JitdumpError(offset, what % args if args else what)


def align(value, to):
    return (value + to - 1) // to * to


class Cursor:
    """A position in data[:end]; taking more than there is raises."""

    def __init__(self, data, start, end):
        self.data, self.at, self.end = data, start, end

    def left(self):
        return self.end - self.at

    def take(self, count, what):
        left = self.left()
        require(0 <= count <= left, self.at, "%s: %d bytes wanted, %d left", what, count, left)
        self.at += count
        return self.data[self.at - count:self.at]

    def unpack(self, layout, what):
        return layout.unpack(self.take(layout.size, what))

    def number(self, code, what):
        return self.unpack(struct.Struct("=" + code), what)[0]

    def cstring(self, what):
        end = self.data.find(b"\0", self.at, self.end)
        require(end >= 0, self.at, "%s has no NUL", what)
        start = self.at
        raw = self.take(end + 1 - start, what)[:-1]
        require(raw, start, "%s is empty", what)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise JitdumpError(start + error.start, "%s is not UTF-8" % what)
        for char in text:
            require(unicodedata.category(char) != "Cc", start, "%s has a control character", what)
        return text

    def leb128(self, signed, what):
        value = shift = 0
        while True:
            byte = self.number("B", what)
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        return value - (1 << shift) if signed and byte & 0x40 else value

    def zeros(self, most, what):
        """The rest of the range: padding of at most `most` bytes."""
        start = self.at
        require(self.left() <= most, start, "%s: %d bytes behind the last field", what, self.left())
        require(not any(self.take(self.left(), what)), start, "%s: padding is not zero", what)


def read_header(data):
    require(len(data) >= HEADER.size, len(data), "no room for the header")
    magic, version, size, machine, pad, pid, time, flags = HEADER.unpack_from(data)
    require(magic == MAGIC, 0, "magic is 0x%08x", magic)
    require(version == 1, 4, "version is %d", version)
    require(size == HEADER.size, 8, "header size is %d: perf takes exactly 40 for granted", size)
    require(machine in MACHINES, 12, "elf_mach is %d", machine)
    require(pad == 0, 16, "pad is 0x%x", pad)
    require(pid > 0, 20, "pid is 0")
    require(time > 0, 24, "timestamp is 0")
    require(flags == 0, 32, "flags are 0x%x", flags)
    return machine, pid, time


def read_debug_info(cursor):
    start = cursor.at
    addr, count = cursor.unpack(DEBUG_HEAD, "DEBUG_INFO")
    require(count >= 2, start + 8, "%d lines: the code and its end take two", count)
    lines = []
    for _ in range(count):
        at = cursor.at
        where, line, discriminator = cursor.unpack(DEBUG_ENTRY, "DEBUG_INFO entry")
        require(line >= 1, at + 8, "line is %d", line)
        require(discriminator == 0, at + 12, "discriminator is %d", discriminator)
        require(not lines or where >= lines[-1].addr, at, "line addresses go down")
        lines.append(Line(where, line, cursor.cstring("file name")))
    require(lines[0].addr == addr, start + 16, "the first line is not at the code's start")
    cursor.zeros(7, "DEBUG_INFO")
    return addr, lines


def cfi_rows(cursor, limit):
    """Checks call frame instructions and returns the rows they make, as (location, cfa, rules). Of
    cfa, (register, offset); of rules, register -> offset from the CFA."""
    location, cfa, rules, rows = 0, [None, None], {}, []
    while cursor.left():
        at = cursor.at
        opcode = cursor.number("B", "CFI")
        high, low = opcode & 0xC0, opcode & 0x3F
        advance = 0
        if high == 0x40:
            advance = low
        elif high == 0x80:
            rules[low] = -8 * cursor.leb128(False, "DW_CFA_offset")
        elif high == 0xC0:
            rules.pop(low, None)
        elif opcode in (0x02, 0x03, 0x04):                  # DW_CFA_advance_loc1, 2, 4
            advance = cursor.number("BHI"[opcode - 2], "DW_CFA_advance_loc")
        elif opcode == 0x0C:                                # DW_CFA_def_cfa
            cfa = [cursor.leb128(False, "register"), cursor.leb128(False, "offset")]
        elif opcode == 0x0D:                                # DW_CFA_def_cfa_register
            cfa = [cursor.leb128(False, "register"), cfa[1]]
        elif opcode == 0x0E:                                # DW_CFA_def_cfa_offset
            cfa = [cfa[0], cursor.leb128(False, "offset")]
        elif opcode != 0x00:                                # DW_CFA_nop
            raise JitdumpError(at, "call frame instruction 0x%02x is not one that is used" % opcode)
        if advance:
            rows.append((location, tuple(cfa), dict(rules)))
            location += advance
            require(location < limit, at, "CFI row at %d is outside the code", location)
    rows.append((location, tuple(cfa), dict(rules)))
    return rows


def read_cfi(instructions, limit, offset):
    """The same for bytes that are put together: what is wrong is reported at `offset`."""
    try:
        return cfi_rows(Cursor(instructions, 0, len(instructions)), limit)
    except JitdumpError as error:
        raise JitdumpError(offset, "call frame instructions, %s" % error)


def read_cie(cursor, machine):
    _, return_register, stack_pointer, on_entry = MACHINES[machine]
    start = cursor.at
    length = cursor.number("I", "CIE length")
    require(length % 4 == 0, start, "CIE length %d is not a multiple of 4", length)
    body = Cursor(cursor.data, cursor.at, cursor.at + length)
    cursor.take(length, "CIE")
    require(body.number("I", "CIE id") == 0, start + 4, "CIE id is not 0")
    require(body.number("B", "CIE version") == 1, start + 8, "CIE version is not 1")
    require(body.cstring("augmentation") == "zR", start + 9, "augmentation is not zR")
    at = body.at
    factors = body.leb128(False, "code align"), body.leb128(True, "data align")
    require(factors[0] in (1, 4) and factors[1] == -8, at, "alignment factors are %r", factors)
    at = body.at
    register = body.leb128(False, "return address register")
    require(register == return_register, at, "return address register is %d", register)
    at = body.at
    extra = body.take(2, "augmentation data")
    require(extra == b"\x01\x1b", at, "augmentation data is %r", extra)
    at, initial = body.at, body.take(body.left(), "initial instructions")
    rows = read_cfi(initial, 1, at)
    require(rows[0][1] == (stack_pointer, on_entry), at, "CFA on entry is %r", rows[0][1])
    rules = {return_register: -on_entry} if on_entry else {}
    require(rows[0][2] == rules, at, "rules on entry: %r", rows[0][2])
    return start, initial


def read_unwinding_info(cursor, machine, code_size):
    """Checks .eh_frame and .eh_frame_hdr of one function, and returns (mapped_size, CFI rows)."""
    start = cursor.at
    size, hdr_size, mapped = cursor.unpack(UNWIND_HEAD, "UNWINDING_INFO")
    require(hdr_size == 20, start + 8, "eh_frame_hdr_size is %d", hdr_size)
    require(hdr_size < size, start, "unwind_size is %d", size)
    require(mapped == align(size, 16), start + 16, "mapped_size %d, unwind_size %d", mapped, size)
    base = cursor.at
    cursor.take(size, "unwind data")
    cursor.zeros(7, "UNWINDING_INFO")
    data, hdr = cursor.data, base + size - hdr_size
    require((hdr - base) % 4 == 0, start, ".eh_frame has %d bytes, not a multiple of 4", hdr - base)
    # Where the code is, in offsets of this file, as if the file had it in front of .eh_frame.
    code = base - align(code_size, 8)

    frame = Cursor(data, base, hdr)
    cie, initial = read_cie(frame, machine)
    fde = frame.at
    length = frame.number("I", "FDE length")
    require(length % 4 == 0, fde, "FDE length %d is not a multiple of 4", length)
    body = Cursor(data, frame.at, frame.at + length)
    frame.take(length, "FDE")
    back = body.number("I", "CIE pointer")
    require(fde + 4 - back == cie, fde + 4, "CIE pointer leads to %d", fde + 4 - back)
    at = body.at
    begin = body.number("i", "pc_begin")
    require(at + begin == code, at, "pc_begin is %d, should be %d", begin, code - at)
    reach = body.number("I", "pc_range")
    require(reach == code_size, at + 4, "pc_range is %d for %d bytes of code", reach, code_size)
    require(body.number("B", "FDE augmentation") == 0, at + 8, "the FDE has augmentation data")
    at, rest = body.at, body.take(body.left(), "FDE instructions")
    rows = read_cfi(initial + rest, code_size, at)
    require(len(rows) > 1, at, "the FDE has no rows of its own")
    require(frame.number("I", "terminator") == 0, frame.at - 4, ".eh_frame's terminator is not 0")
    require(frame.left() == 0, frame.at, "%d bytes behind the terminator", frame.left())

    version, ptr_enc, count_enc, table_enc, ptr, count, table_code, table_fde = struct.unpack_from(
        "=BBBBiIii", data, hdr)
    encodings = (version, ptr_enc, count_enc, table_enc)
    require(encodings == (1, 0x1B, 0x03, 0x3B), hdr, ".eh_frame_hdr begins with %r", encodings)
    require(hdr + 4 + ptr == base, hdr + 4, "eh_frame_ptr is %d, should be %d", ptr, base - hdr - 4)
    require(count == 1, hdr + 8, "fde_count is %d", count)
    require(hdr + table_code == code, hdr + 12, "table: code at %d, not %d", table_code, code - hdr)
    require(hdr + table_fde == fde, hdr + 16, "table: FDE at %d, not %d", table_fde, fde - hdr)
    return mapped, rows


def read_load(cursor, pid):
    start = cursor.at
    load_pid, tid, vma, addr, size, index = cursor.unpack(LOAD_HEAD, "LOAD")
    require(load_pid == pid, start, "pid is %d, the header has %d", load_pid, pid)
    require(tid > 0, start + 4, "tid is 0")
    require(addr > 0 and vma == addr, start + 8, "vma 0x%x, code_addr 0x%x", vma, addr)
    require(size > 0, start + 24, "code_size is 0")
    name = cursor.cstring("symbol name")
    code = cursor.take(size, "code")
    require(cursor.left() == 0, cursor.at, "%d bytes behind the code", cursor.left())
    return name, tid, addr, size, index, code


def read_records(data, header_time, torn):
    """Yields (id, cursor over the record's body, timestamp), in file order."""
    offset, latest = HEADER.size, header_time
    while offset < len(data):
        size = int.from_bytes(data[offset + 4:offset + 8], sys.byteorder)
        if torn and (len(data) - offset < PREFIX.size or len(data) - offset < size):
            return
        require(len(data) - offset >= PREFIX.size, offset, "no room for a record prefix")
        kind, size, time = PREFIX.unpack_from(data, offset)
        require(kind in (LOAD, DEBUG_INFO, UNWINDING_INFO), offset, "record id is %d", kind)
        require(PREFIX.size < size <= len(data) - offset, offset + 4,
                "record of %d bytes, file has %d more", size, len(data) - offset)
        require(time >= latest, offset + 8, "timestamp %d comes after %d", time, latest)
        latest = time
        yield kind, Cursor(data, offset + PREFIX.size, offset + size), time
        offset += size


def read_functions(data, machine, pid, header_time, foreign, torn):
    debug = unwind = None           # what came for the next LOAD: (offset, value)
    for kind, cursor, time in read_records(data, header_time, torn):
        start = cursor.at - PREFIX.size
        if kind == DEBUG_INFO:
            require(debug is None and unwind is None, start, "DEBUG_INFO is out of order")
            debug = start, read_debug_info(cursor)
            continue
        if kind == UNWINDING_INFO:
            require(unwind is None, start, "two UNWINDING_INFO for one LOAD")
            require(debug or foreign, start, "UNWINDING_INFO without a DEBUG_INFO before it")
            unwind = start, cursor          # its numbers depend on the size of the code
            continue
        require(debug or foreign, start, "LOAD without DEBUG_INFO")
        require(unwind or foreign, start, "LOAD without UNWINDING_INFO")
        name, tid, addr, size, index, code = read_load(cursor, pid)
        mapped, rows, lines = 0, [], []
        if unwind:
            mapped, rows = read_unwinding_info(unwind[1], machine, size)
        if debug:
            at, (line_addr, lines) = debug
            require(line_addr == addr, at + 16, "DEBUG_INFO of 0x%x, LOAD of 0x%x", line_addr, addr)
            require(lines[-1].addr == addr + size, at, "the last line is not at the code's end")
        yield start, Function(name, pid, tid, time, addr, size, index, code, lines, mapped, rows)
        debug = unwind = None
    require(torn or not (debug or unwind), len(data), "the file ends inside a function")


def check_together(functions):
    """What must hold between functions: `functions` is a list of (offset, Function)."""
    for what in ("code_index", "code"):
        seen = {}
        for offset, function in functions:
            other = seen.setdefault(getattr(function, what), function)
            require(other is function, offset, "%s is that of %s too", what, other.name)
    end = 0
    for offset, function in sorted(functions, key=lambda pair: pair[1].code_addr):
        require(function.code_addr >= end, offset, "overlaps the function before it in memory")
        end = function.code_addr + align(function.code_size, 8) + function.mapped_size


def read(path, foreign=False, torn=False):
    """The Jitdump that `path` holds; JitdumpError if a byte of it is wrong. `foreign`: functions of
    other JITs are in it, which may come without DEBUG_INFO and UNWINDING_INFO. `torn`: the last one
    may be cut off anywhere, and is then left out."""
    with open(path, "rb") as file:
        data = file.read()
    machine, pid, time = read_header(data)
    named = re.match(r"jit-(\d+)\.dump$", os.path.basename(str(path)))
    require(named and int(named.group(1)) == pid, 20, "pid %d in a file named %s", pid, path)
    functions = list(read_functions(data, machine, pid, time, foreign, torn))
    check_together(functions)
    return Jitdump(pid, machine, time, [function for _, function in functions])


def main(paths):
    status = 0
    for path in paths:
        try:
            dump = read(path)
        except (JitdumpError, OSError) as error:
            print("%s: %s" % (path, error))
            status = 1
            continue
        print("%s: pid %d, %s, %d functions" % (
            path, dump.pid, MACHINES[dump.elf_mach][0], len(dump.functions)))
        for function in dump.functions:
            print("  %x %3d  #%d  %s  (%s:%d)" % (
                function.code_addr, function.code_size, function.code_index, function.name,
                function.lines[0].file, function.lines[0].line))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
