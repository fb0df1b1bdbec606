"""What the readers of `pyjitdump inspect` share: findings, and a cursor that cannot leave its bytes.

A reader believes nothing. What a field may not say is a finding at the field's offset; only what makes
it impossible to go on (a record that leaves the file, a string without end) is raised, as Broken.

An error is something that misleads a reader of the file. A remark is something a reader lives with.
"""
import collections
import struct

ERROR, REMARK = "error", "remark"

# ELF machine -> name, and the DWARF numbers of the return address and of the stack pointer
Machine = collections.namedtuple("Machine", "name return_address stack_pointer registers")
MACHINES = {
    62: Machine("x86-64", 16, 7, {3: "rbx", 6: "rbp", 7: "rsp", 16: "ra"}),
    183: Machine("aarch64", 30, 31, {29: "x29", 30: "ra", 31: "sp"}),
}
OTHER_MACHINES = {3: "i386", 8: "MIPS", 20: "PowerPC", 21: "PowerPC64", 22: "S390", 40: "ARM", 43: "SPARC",
                  243: "RISC-V", 258: "LoongArch"}


class Finding(collections.namedtuple("Finding", "level offset message what")):
    """`what` is the message without its numbers: findings that say the same have the same."""


class Broken(Exception):
    """Reading cannot go on here."""

    def __init__(self, offset, what, *args):
        super().__init__(what % args if args else what)
        self.offset, self.what, self.args_of_what = offset, what, args


class Report:
    """What was found in one file. `records` are dictionaries, each with "offset" or "line"."""

    def __init__(self, path, kind, size):
        self.path, self.kind, self.size = path, kind, size
        self.summary, self.records, self.findings = {}, [], []

    def error(self, offset, what, *args):
        self.findings.append(Finding(ERROR, offset, what % args if args else what, what))

    def remark(self, offset, what, *args):
        self.findings.append(Finding(REMARK, offset, what % args if args else what, what))

    def check(self, condition, offset, what, *args):
        if not condition:
            self.error(offset, what, *args)
        return condition

    def broken(self, problem):
        self.error(problem.offset, problem.what, *problem.args_of_what)

    @property
    def wrong(self):
        return any(finding.level == ERROR for finding in self.findings)


def align(value, to):
    return (value + to - 1) // to * to


class Cursor:
    """A position in data[:end]. Taking more than there is raises Broken at the place."""

    def __init__(self, data, start, end, order="<"):
        self.data, self.at, self.end, self.order = data, start, end, order

    def left(self):
        return self.end - self.at

    def take(self, count, what):
        if not 0 <= count <= self.left():
            raise Broken(self.at, "%s needs %d bytes, %d are left", what, count, max(self.left(), 0))
        self.at += count
        return self.data[self.at - count:self.at]

    def unpack(self, layout, what):
        layout = self.order + layout
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))

    def number(self, code, what):
        return self.unpack(code, what)[0]

    def raw_string(self, what):
        end = self.data.find(b"\0", self.at, self.end)
        if end < 0:
            raise Broken(self.at, "%s has no NUL before its end at %d", what, self.end)
        start, self.at = self.at, end + 1
        return self.data[start:end]

    def leb128(self, signed, what):
        value = shift = 0
        start = self.at
        while True:
            byte = self.number("B", what)
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
            if shift > 70:
                raise Broken(start, "%s: a LEB128 number of more than ten bytes", what)
        return value - (1 << shift) if signed and byte & 0x40 else value


def text_of(report, raw, offset, what):
    """A name as text, with findings for what does not belong into a name."""
    report.check(raw, offset, "%s is empty", what)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        report.error(offset + problem.start, "%s is not UTF-8", what)
        text = raw.decode("utf-8", "backslashreplace")
    for index, byte in enumerate(raw):
        if byte < 0x20 or byte == 0x7F:
            report.error(offset + index, "control character 0x%02x in %s", byte, what)
            break
    return printable(text)


def printable(text):
    """Fit for a terminal: control characters escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def machine_name(number):
    if number in MACHINES:
        return MACHINES[number].name
    return OTHER_MACHINES.get(number, "machine %d" % number)


# The trampoline of x86-64, of which eight bytes of salt follow; then int3 to the end of the function.
SLOT_SIZE, SLOT_STRIDE = 32, 128
_SLOT = bytes.fromhex("f30f1efa" "55" "4889e5" "ffd1" "5d" "c3" "cccccccc" "48b8")
_INT3 = b"\xcc"

# Its unwind rows: offset, (register, offset) of the CFA, saved registers as offsets from the CFA.
SLOT_ROWS = ((0, (7, 8), ((16, -8),)), (5, (7, 16), ((6, -16), (16, -8))),
             (8, (6, 16), ((6, -16), (16, -8))), (11, (7, 8), ((16, -8),)))


def slot_flaw(code):
    """The offset of the first byte that a trampoline would not have, or None."""
    salt_end = len(_SLOT) + 8
    if code[:len(_SLOT)] == _SLOT[:len(code)] and not code[salt_end:].strip(_INT3):
        return None
    for index, byte in enumerate(code):
        if index < len(_SLOT) and byte != _SLOT[index] or index >= salt_end and byte != 0xCC:
            return index
    return None


def looks_like_slot(code):
    return len(code) >= SLOT_SIZE and code[:10] == _SLOT[:10]
