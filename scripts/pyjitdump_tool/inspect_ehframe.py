"""Reads .eh_frame and .eh_frame_hdr (LSB Core 5.0, sections 10.5 to 10.7; DWARF 5, section 6.4).

Places are offsets of the file. What an encoded pointer leads to is in the same coordinates, so the caller
says where the code would be in them: in an image it is where it is, in a jitdump it is in front of the
unwind data, as it will be in memory and in the file that perf makes.
"""
import collections

from .inspect_common import Broken, Cursor

Cie = collections.namedtuple(
    "Cie", "offset version augmentation code_factor data_factor return_register encoding initial rows")
Fde = collections.namedtuple("Fde", "offset cie begin_at begin reach rows")
Row = collections.namedtuple("Row", "location cfa rules")       # cfa: (register, offset) or "expression"

PE_OMIT, PE_PCREL, PE_DATAREL = 0xFF, 0x10, 0x30
_FORMATS = {0x00: "Q", 0x02: "H", 0x03: "I", 0x04: "Q", 0x0A: "h", 0x0B: "i", 0x0C: "q"}


def read_pointer(cursor, encoding, base, what):
    """An encoded pointer (LSB 10.5.1). `base` is what a datarel one counts from."""
    at = cursor.at
    if encoding & 0x0F not in _FORMATS or encoding & 0xF0 not in (0, PE_PCREL, PE_DATAREL):
        raise Broken(at, "%s: pointer encoding 0x%02x is not one that is used here", what, encoding)
    value = cursor.number(_FORMATS[encoding & 0x0F], what)
    return value + {0: 0, PE_PCREL: at, PE_DATAREL: base}[encoding & 0xF0]


class _Machine:
    """The state that call frame instructions change (DWARF 5, section 6.4.2)."""

    def __init__(self, cie_rules, cfa, code_factor, data_factor):
        self.location, self.cfa, self.rules = 0, cfa, dict(cie_rules)
        self.initial = dict(cie_rules)
        self.code_factor, self.data_factor = code_factor, data_factor
        self.rows, self.stack = [], []

    def row(self):
        return Row(self.location, self.cfa, tuple(sorted(self.rules.items())))

    def advance(self, units):
        if units:
            self.rows.append(self.row())
            self.location += units * self.code_factor

    def restore(self, register):
        if register in self.initial:
            self.rules[register] = self.initial[register]
        else:
            self.rules.pop(register, None)


def _define_cfa(machine, cursor, at, opcode):
    uleb = lambda: cursor.leb128(False, "call frame instruction")     # noqa: E731
    if opcode == 0x0C:
        machine.cfa = (uleb(), uleb())
    elif opcode == 0x12:                                    # DW_CFA_def_cfa_sf
        machine.cfa = (uleb(), cursor.leb128(True, "offset") * machine.data_factor)
    elif opcode == 0x0F:
        cursor.take(uleb(), "DW_CFA_def_cfa_expression")
        machine.cfa = "expression"
    elif not isinstance(machine.cfa, tuple):
        raise Broken(at, "call frame instruction 0x%02x changes a CFA that is not a register and an offset",
                     opcode)
    elif opcode == 0x0D:
        machine.cfa = (uleb(), machine.cfa[1])
    elif opcode == 0x0E:
        machine.cfa = (machine.cfa[0], uleb())
    else:                                                   # DW_CFA_def_cfa_offset_sf
        machine.cfa = (machine.cfa[0], cursor.leb128(True, "offset") * machine.data_factor)


def _extended(machine, cursor, at, opcode):
    uleb = lambda: cursor.leb128(False, "call frame instruction")     # noqa: E731
    if opcode in (0x02, 0x03, 0x04):
        machine.advance(cursor.number("BHI"[opcode - 2], "DW_CFA_advance_loc"))
    elif opcode in (0x0C, 0x0D, 0x0E, 0x0F, 0x12, 0x13):
        _define_cfa(machine, cursor, at, opcode)
    elif opcode == 0x05:                                    # DW_CFA_offset_extended
        register = uleb()
        machine.rules[register] = uleb() * machine.data_factor
    elif opcode == 0x11:
        register = uleb()
        machine.rules[register] = cursor.leb128(True, "offset") * machine.data_factor
    elif opcode == 0x06:
        machine.restore(uleb())
    elif opcode in (0x07, 0x08):                            # undefined, same_value
        machine.rules.pop(uleb(), None)
    elif opcode == 0x0A:
        machine.stack.append((machine.cfa, dict(machine.rules)))
    elif opcode == 0x0B:
        if not machine.stack:
            raise Broken(at, "DW_CFA_restore_state without DW_CFA_remember_state")
        machine.cfa, machine.rules = machine.stack.pop()
    elif opcode in (0x10, 0x16):                            # expression, val_expression
        register = uleb()
        cursor.take(uleb(), "expression")
        machine.rules[register] = "expression"
    elif opcode == 0x2E:                                    # DW_CFA_GNU_args_size
        uleb()
    elif opcode != 0x00:
        raise Broken(at, "0x%02x is not a call frame instruction that is known here", opcode)


def run_instructions(data, start, end, cie=None, factors=(1, -8), order="<"):
    """The rows that data[start:end] makes, for an FDE on top of what its CIE made."""
    first = cie.rows[-1] if cie else None
    machine = _Machine(first.rules if first else (), first.cfa if first else None, *factors)
    cursor = Cursor(data, start, end, order)
    while cursor.left():
        at = cursor.at
        opcode = cursor.number("B", "call frame instruction")
        high, low = opcode & 0xC0, opcode & 0x3F
        if high == 0x40:
            machine.advance(low)
        elif high == 0x80:
            machine.rules[low] = cursor.leb128(False, "DW_CFA_offset") * machine.data_factor
        elif high == 0xC0:
            machine.restore(low)
        else:
            _extended(machine, cursor, at, opcode)
    machine.rows.append(machine.row())
    return machine.rows


def _augmentation(report, body, letters):
    """Reads the CIE's augmentation data (LSB 10.6.1.1.1) and returns the encoding of pointers in FDEs."""
    at, encoding = body.at, 0
    length = body.leb128(False, "augmentation length")
    inner = Cursor(body.data, body.at, body.at + length, body.order)
    body.take(length, "augmentation data")
    for letter in letters[1:]:
        if letter == "S":
            continue
        found = inner.number("B", "pointer encoding")
        if letter == "R":
            encoding = found
            if found & 0x0F not in _FORMATS or found & 0xF0 not in (0, PE_PCREL):
                raise Broken(inner.at - 1, "pointer encoding 0x%02x is not one that is used here", found)
        elif letter == "P":
            read_pointer(inner, found, 0, "personality routine")
    report.check(not inner.left(), at, "augmentation data is %d bytes long, %r needs %d", length, letters,
                 length - inner.left())
    return encoding


def _read_cie(report, offset, body):
    version = body.number("B", "CIE version")
    report.check(version in (1, 3, 4), offset + 8, "CIE version is %d", version)
    at = body.at
    augmentation = body.raw_string("augmentation").decode("latin-1")
    if augmentation and (augmentation[0] != "z" or set(augmentation[1:]) - set("RLPS")):
        raise Broken(at, "augmentation %r is not one that is known here", augmentation)
    code_factor = body.leb128(False, "code alignment factor")
    data_factor = body.leb128(True, "data alignment factor")
    return_at = body.at
    register = body.number("B", "return register") if version == 1 else body.leb128(False, "return register")
    report.check(register in (16, 30), return_at,
                 "return address register is %d: 16 on x86-64, 30 on aarch64", register)
    encoding = _augmentation(report, body, augmentation) if augmentation else 0
    rows = run_instructions(body.data, body.at, body.end, None, (code_factor, data_factor), body.order)
    report.check(len(rows) == 1, body.at, "the CIE's instructions move on to another address")
    report.check(rows[-1].cfa is not None, body.at, "the CIE does not say where the CFA is")
    return Cie(offset, version, augmentation, code_factor, data_factor, register, encoding,
               body.data[body.at:body.end], rows)


def _read_fde(report, offset, body, cies, memo):
    pointer = body.number("I", "CIE pointer")
    cie = cies.get(offset + 4 - pointer)
    if cie is None:
        raise Broken(offset + 4, "CIE pointer leads to %d, where there is no CIE", offset + 4 - pointer)
    begin_at = body.at
    begin = read_pointer(body, cie.encoding, 0, "pc_begin")
    reach = read_pointer(body, cie.encoding & 0x0F, 0, "pc_range")
    if cie.augmentation:
        at = body.at
        length = body.leb128(False, "augmentation length")
        report.check(length == 0 or "L" in cie.augmentation, at, "the FDE has %d bytes of augmentation data", length)
        body.take(length, "augmentation data")
    key = cie.offset, body.data[body.at:body.end]
    if key not in memo:
        memo[key] = run_instructions(body.data, body.at, body.end, cie, (cie.code_factor, cie.data_factor),
                                     body.order)
    rows = memo[key]
    report.check(rows[-1].location < reach or len(rows) == 1, body.at,
                 "an unwind row at %d is outside of the %d bytes of code", rows[-1].location, reach)
    return Fde(offset, cie, begin_at, begin, reach, rows)


def read_eh_frame(report, cursor):
    """All FDEs up to the terminator. Findings go to `report`; what is unreadable ends the reading."""
    cies, fdes, memo = {}, [], {}
    terminated = False
    try:
        while cursor.left() and not terminated:
            offset = cursor.at
            length = cursor.number("I", "record length")
            if length == 0:
                terminated = True
                break
            if length >= 0xFFFFFFF0:
                raise Broken(offset, "record length 0x%x: 64-bit records are not used here", length)
            report.check(length % 4 == 0, offset, "record length %d is not a multiple of 4", length)
            body = Cursor(cursor.data, cursor.at, cursor.at + length, cursor.order)
            cursor.take(length, "unwind record")
            kind = body.data[body.at:body.at + 4]
            if len(kind) == 4 and not any(kind):
                body.take(4, "CIE id")
                cies[offset] = _read_cie(report, offset, body)
            else:
                fdes.append(_read_fde(report, offset, body, cies, memo))
    except Broken as problem:
        report.broken(problem)
        return list(cies.values()), fdes
    if not terminated:
        report.remark(cursor.at, ".eh_frame has no terminator, four zero bytes")
    if terminated and cursor.left():
        report.error(cursor.at, "%d bytes behind .eh_frame's terminator", cursor.left())
    report.check(fdes, cursor.at, ".eh_frame has no FDE")
    return list(cies.values()), fdes


def read_eh_frame_hdr(report, cursor, eh_frame, fdes):
    """Checks the sorted table. `eh_frame` is where .eh_frame begins, `fdes` what was read there."""
    start = cursor.at
    version, pointer_enc, count_enc, table_enc = cursor.unpack("BBBB", ".eh_frame_hdr")
    report.check(version == 1, start, ".eh_frame_hdr version is %d", version)
    if pointer_enc != PE_OMIT:
        at = cursor.at
        pointer = read_pointer(cursor, pointer_enc, start, "eh_frame_ptr")
        report.check(pointer == eh_frame, at, "eh_frame_ptr leads to %d, .eh_frame is at %d (off by %d)",
                     pointer, eh_frame, pointer - eh_frame)
    if PE_OMIT in (count_enc, table_enc):
        report.remark(start + 2, ".eh_frame_hdr has no table: unwinders search linearly")
        return
    at = cursor.at
    count = read_pointer(cursor, count_enc, start, "fde_count")
    report.check(count == len(fdes), at, "fde_count is %d, .eh_frame has %d FDEs", count, len(fdes))
    known = {fde.offset: fde for fde in fdes}
    before = None
    for _ in range(count):
        at = cursor.at
        code = read_pointer(cursor, table_enc, start, "table entry")
        fde_at = cursor.at
        fde = known.get(read_pointer(cursor, table_enc, start, "table entry"))
        report.check(before is None or code > before, at, "the table is not sorted: unwinders use bisection")
        before = code
        if report.check(fde is not None, fde_at, "a table entry does not lead to an FDE"):
            report.check(code == fde.begin, at, "a table entry is for %d, its FDE for %d (off by %d)", code,
                         fde.begin, code - fde.begin)
    if cursor.left():
        report.error(cursor.at, "%d bytes behind .eh_frame_hdr's table", cursor.left())


def row_text(row, registers):
    """One row as in the documentation: `5: rsp+16, rbp at CFA-16`."""
    name = lambda number: registers.get(number, "r%d" % number)     # noqa: E731
    cfa = row.cfa if not isinstance(row.cfa, tuple) else "%s%+d" % (name(row.cfa[0]), row.cfa[1])
    saved = ["%s at %s" % (name(register), "CFA%+d" % rule if isinstance(rule, int) else rule)
             for register, rule in row.rules]
    return "%d: CFA %s%s" % (row.location, cfa, "".join(", " + rule for rule in saved))
