"""Reads a jitdump (Linux, tools/perf/Documentation/jitdump-specification.txt; where that is silent or
differs, tools/perf/util/jitdump.c and genelf.c), by whatever producer, and checks every field.

An error is what makes perf lose or misread something. What only costs the reader something, lines or
unwinding for example, is a remark: other producers write less than libpyjitdump does.
"""
import os
import re

from . import inspect_ehframe, inspect_ranges
from .inspect_common import (MACHINES, OTHER_MACHINES, SLOT_ROWS, SLOT_SIZE, Broken, Cursor, Report, align,
                             looks_like_slot, machine_name, printable, slot_flaw, text_of)

MAGIC = b"DTiJ"                     # 0x4A695444, little-endian
HEADER_SIZE, PREFIX_SIZE = 40, 16
LOAD, MOVE, DEBUG_INFO, CLOSE, UNWINDING_INFO = range(5)
NAMES = {LOAD: "LOAD", MOVE: "MOVE", DEBUG_INFO: "DEBUG_INFO", CLOSE: "CLOSE",
         UNWINDING_INFO: "UNWINDING_INFO"}
ARCH_TIMESTAMP = 1
SAME_FILE = b"\xff"                 # a DEBUG_INFO entry's file: the one of the entry before


class _Function:
    """What came so far for the next LOAD."""

    def __init__(self):
        self.debug = self.unwind = None


def is_jitdump(data):
    return data[:4] in (MAGIC, MAGIC[::-1])


class Reader:
    def __init__(self, path, data):
        self.report = Report(path, "jitdump", len(data))
        self.data, self.pid, self.machine, self.order = data, 0, 0, "<"
        self.pending, self.codes, self.indexes = _Function(), [], {}
        self.time = self.start = 0
        self.counts = {name: 0 for name in NAMES.values()}
        self.without_lines = self.without_unwinding = 0

    def read(self):
        try:
            start = self.header()
            self.records(start)
        except Broken as problem:
            self.report.broken(problem)
        self.together()
        return self.report

    # ----------------------------------------------------------------------------------- header

    def header(self):
        report = self.report
        if not is_jitdump(self.data):
            report.error(0, "magic is %s, not 44546a4a or, of the other byte order, 4a695444 read as bytes",
                         self.data[:4].hex() or "missing")
        elif self.data[:4] == MAGIC[::-1]:
            self.order = ">"
            report.remark(0, "the file is of the other byte order (big-endian)")
        cursor = Cursor(self.data, 0, len(self.data), self.order)
        _, version, size, machine, pad, pid, time, flags = cursor.unpack("IIIIIIQQ", "the header")
        self.pid, self.machine, self.time = pid, machine, time
        report.check(version == 1, 4, "version is %d, readers know 1", version)
        report.check(size == HEADER_SIZE, 8, "header size is %d: perf takes exactly 40 for granted", size)
        if machine == 0:
            report.remark(12, "elf_mach is 0: no machine (CPython 3.13.0 writes this)")
        else:
            report.check(machine in MACHINES or machine in OTHER_MACHINES, 12,
                         "elf_mach is %d, which is no machine known here", machine)
        if pad:                     # not set by CPython's -X perf_jit, and not read by perf
            report.remark(16, "the reserved word is 0x%x, not 0", pad)
        report.check(pid, 20, "pid is 0")
        named = re.match(r"jit-(\d+)\.dump$", os.path.basename(report.path))
        if not named:
            report.remark(0, "the file is not named jit-PID.dump, so perf inject does not find it")
        else:
            report.check(int(named.group(1)) == pid, 20, "pid is %d in a file named %s", pid, named.group(0))
        report.check(time, 24, "timestamp is 0")
        if flags & ARCH_TIMESTAMP:
            report.remark(32, "times are those of the machine's counter, not of CLOCK_MONOTONIC")
        report.check(flags & ~ARCH_TIMESTAMP == 0, 32, "flags are 0x%x: only bit 0 has a meaning", flags)
        report.summary.update(pid=pid, machine=machine_name(machine), version=version, time=time, flags=flags,
                              byte_order="little" if self.order == "<" else "big")
        believable = HEADER_SIZE <= size <= min(len(self.data), 4096)
        return size if believable else HEADER_SIZE

    # ----------------------------------------------------------------------------------- records

    def records(self, offset):
        self.start = offset
        report, end = self.report, len(self.data)
        while offset < end:
            cursor = Cursor(self.data, offset, end, self.order)
            if cursor.left() < PREFIX_SIZE:
                raise Broken(offset, "truncated: a record's prefix needs 16 bytes, the file has %d more",
                             cursor.left())
            kind, size, time = cursor.unpack("IIQ", "record prefix")
            name = NAMES.get(kind)
            if size < PREFIX_SIZE:
                raise Broken(offset + 4, "record size is %d, less than its own prefix: the %d bytes from %d on"
                             " are not read, and perf loses them too", size, end - offset, offset)
            if size > end - offset:
                raise Broken(offset + 4, "truncated: a %s record of %d bytes, the file has %d more from %d on;"
                             " perf loses this function", name or "unknown", size, end - offset, offset)
            report.check(name, offset, "record id is %d: 0 to 4 have a meaning, and perf stops here", kind)
            self.check_time(offset + 8, time)
            body = Cursor(self.data, cursor.at, offset + size, self.order)
            record = {"offset": offset, "type": name or "id %d" % kind, "size": size, "time": time}
            report.records.append(record)
            if name:
                self.counts[name] += 1
            try:
                self.one(kind, offset, body, record)
            except Broken as problem:
                report.broken(problem)
                record["broken"] = str(problem)
            offset += size
        if self.pending.debug or self.pending.unwind:
            at = (self.pending.debug or self.pending.unwind)[0]
            report.error(at, "the file ends before the LOAD that this record speaks of")

    def check_time(self, offset, time):
        if self.report.check(time, offset, "timestamp is 0: perf orders records by time"):
            if self.time and time < self.time and offset == self.start + 8:
                self.report.remark(24, "the header's time is %d ns later than the first record's: another clock?",
                                   self.time - time)
            elif time < self.time:
                self.report.remark(offset, "timestamp is before the one of the record in front of it, by %d ns",
                                   self.time - time)
            self.time = time

    def one(self, kind, offset, body, record):
        if kind == DEBUG_INFO:
            if self.pending.debug:
                self.report.error(offset, "a second DEBUG_INFO for one LOAD: the first is at %d",
                                  self.pending.debug[0])
            self.pending.debug = offset, None
            self.pending.debug = offset, self.debug_info(body, record)
        elif kind == UNWINDING_INFO:
            if self.pending.unwind:
                self.report.error(offset, "a second UNWINDING_INFO for one LOAD: the first is at %d",
                                  self.pending.unwind[0])
            self.pending.unwind = offset, None
            self.pending.unwind = offset, self.unwinding_info(body, record)
        elif kind == LOAD:
            pending, self.pending = self.pending, _Function()
            self.load(offset, body, record, pending)
        elif kind == MOVE:
            self.move(body, record)
        elif kind == CLOSE:
            self.report.remark(offset, "a CLOSE record: samply stops reading here")

    def debug_info(self, body, record):
        report, start = self.report, body.at
        addr, count = body.unpack("QQ", "DEBUG_INFO")
        record.update(code_addr=addr, lines=[])
        if count * 17 > body.left():
            raise Broken(start + 8, "%d entries of 17 bytes or more do not fit into the %d left", count,
                         body.left())
        report.check(count, start + 8, "a DEBUG_INFO without entries")
        lines, before = record["lines"], None
        for _ in range(count):
            at = body.at
            where, line, discriminator = body.unpack("Qii", "DEBUG_INFO entry")
            raw = body.raw_string("file name")
            if raw == SAME_FILE and lines:
                file = lines[-1]["file"]
            else:
                file = text_of(report, raw, at + 16, "file name")
            report.check(line >= 0, at + 8, "line is %d", line)
            if discriminator:
                report.remark(at + 12, "discriminator is %d", discriminator)
            report.check(before is None or where >= before, at, "the addresses of the lines go down")
            before = where
            lines.append({"offset": at, "addr": where, "line": line, "file": file})
        self.padding(body, "DEBUG_INFO")
        return addr, lines

    def padding(self, body, what):
        at, rest = body.at, body.take(body.left(), what)
        if len(rest) > 7:
            self.report.remark(at, "%d bytes behind the last field of %s", len(rest), what)
        if any(rest):
            self.report.remark(at, "the padding of %s is not zero", what)

    def unwinding_info(self, body, record):
        report, start = self.report, body.at
        size, hdr_size, mapped = body.unpack("QQQ", "UNWINDING_INFO")
        record.update(unwind_size=size, eh_frame_hdr_size=hdr_size, mapped_size=mapped)
        report.check(mapped >= size or size == hdr_size, start + 16,
                     "mapped_size is %d, less than unwind_size %d", mapped, size)
        if mapped > size and mapped != align(size, 16):
            report.error(start + 16, "mapped_size is %d: unwind_size %d rounded up to 16 is %d", mapped, size,
                         align(size, 16))
        if size > body.left():
            raise Broken(start, "unwind_size is %d, the record has %d more bytes", size, body.left())
        if hdr_size > size:
            raise Broken(start + 8, "eh_frame_hdr_size is %d, unwind_size of both %d", hdr_size, size)
        base = body.at
        body.take(size, "unwind data")
        self.padding(body, "UNWINDING_INFO")
        return base, size, hdr_size, mapped

    def move(self, body, record):
        names = ("pid", "tid", "vma", "old_code_addr", "new_code_addr", "code_size", "code_index")
        at = body.at
        record.update(zip(names, body.unpack("IIQQQQQ", "MOVE")))
        self.report.check(record["pid"] == self.pid, at, "pid is %d, the header has %d", record["pid"], self.pid)
        self.report.check(record["code_index"] in self.indexes, at + 40,
                          "code_index %d is that of no LOAD before", record["code_index"])
        self.padding(body, "MOVE")

    # ----------------------------------------------------------------------------------- LOAD

    def load(self, offset, body, record, pending):
        report, start = self.report, body.at
        pid, tid, vma, addr, size, index = body.unpack("IIQQQQ", "LOAD")
        record.update(pid=pid, tid=tid, vma=vma, code_addr=addr, code_size=size, code_index=index)
        report.check(pid == self.pid, start, "pid is %d, the header has %d", pid, self.pid)
        report.check(tid, start + 4, "tid is 0")
        report.check(addr, start + 16, "code_addr is 0")
        if vma != addr:
            report.remark(start + 8, "vma is 0x%x, code_addr 0x%x: perf uses the latter", vma, addr)
        report.check(size, start + 24, "code_size is 0")
        other = self.indexes.setdefault(index, offset)
        report.check(other == offset, start + 32,
                     "code_index %d is that of the LOAD at %d too: perf inject writes both into one file",
                     index, other)
        name_at = body.at
        record["name"] = text_of(report, body.raw_string("name"), name_at, "name")
        code_at = body.at
        if size > body.left():
            raise Broken(start + 24, "code_size is %d, the record has %d more bytes", size, body.left())
        code = body.take(size, "code")
        report.check(not body.left(), body.at,
                     "%d bytes behind the code: perf takes the code from the record's end", body.left())
        mapped = self.unwind_of(record, pending.unwind, addr, code, code_at)
        self.lines_of(record, pending.debug, addr, size)
        self.codes.append(inspect_ranges.Code(offset, record["name"], addr, size, mapped))

    def lines_of(self, record, debug, addr, size):
        report = self.report
        if not debug:
            self.without_lines += 1
            return
        offset, found = debug
        if not found:
            return
        debug_addr, lines = found
        if not report.check(debug_addr == addr, offset + 16,
                            "DEBUG_INFO is of code at 0x%x, its LOAD of code at 0x%x", debug_addr, addr):
            return
        for line in lines:
            report.check(addr <= line["addr"] <= addr + size, line["offset"],
                         "a line's address, 0x%x, is outside of the code, 0x%x to 0x%x", line["addr"], addr,
                         addr + size)
        if lines:
            record["line"] = "%s:%d" % (lines[0]["file"], lines[0]["line"])
            if lines[0]["addr"] > addr:
                report.remark(lines[0]["offset"], "the first line is not at the start of the code")
            if lines[-1]["addr"] < addr + size:
                report.remark(lines[-1]["offset"], "no entry closes the lines at the end of the code: return"
                              " addresses behind the last entry, 0x%x, have no line", lines[-1]["addr"])

    def unwind_of(self, record, unwind, addr, code, code_at):
        """Checks the unwind data and returns how much of it is mapped behind the code."""
        if not unwind:
            self.without_unwinding += 1
            return 0
        if not unwind[1]:
            return 0
        base, size, hdr_size, mapped = unwind[1]
        if size == hdr_size:        # V8 writes a header for nothing
            self.without_unwinding += 1
            return mapped
        report, hdr = self.report, base + size - hdr_size
        place = base - align(len(code), 8)      # where the code would be, in front of .eh_frame
        _, fdes = inspect_ehframe.read_eh_frame(report, Cursor(self.data, base, hdr, self.order))
        for fde in fdes:
            report.check(fde.begin == place, fde.begin_at,
                         "pc_begin leads %d bytes from where the code will be", fde.begin - place)
            if fde.reach > len(code) or fde.reach < len(code) and looks_like_slot(code):
                report.error(fde.begin_at + 4, "pc_range is %d for %d bytes of code", fde.reach, len(code))
            elif fde.reach < len(code):
                report.remark(fde.begin_at + 4, "pc_range is %d: the last %d bytes of code have no unwind rows",
                              fde.reach, len(code) - fde.reach)
        if hdr_size:
            try:
                inspect_ehframe.read_eh_frame_hdr(report, Cursor(self.data, hdr, base + size, self.order), base,
                                                  fdes)
            except Broken as problem:
                report.broken(problem)
        if len(fdes) == 1:
            self.rows_of(record, fdes[0], code, code_at)
        return mapped

    def rows_of(self, record, fde, code, code_at):
        report, number = self.report, fde.cie.return_register
        machine = MACHINES.get(self.machine)
        if machine:
            report.check(machine.return_address == number, fde.cie.offset,
                         "return address register is %d, %s has %d", number, machine.name,
                         machine.return_address)
        machine = machine or next((m for m in MACHINES.values() if m.return_address == number), None)
        registers = machine.registers if machine else {}
        record["unwind"] = [inspect_ehframe.row_text(row, registers) for row in fde.rows]
        if number == 16 and looks_like_slot(code):
            rows = tuple((row.location, row.cfa, row.rules) for row in fde.rows)
            report.check(rows == SLOT_ROWS, fde.offset, "the unwind rows are not those of the trampoline")
            flaw = slot_flaw(code)
            if len(code) == SLOT_SIZE and flaw is not None:
                report.error(code_at + flaw, "the code begins as a trampoline, but this byte is 0x%02x",
                             code[flaw])

    # ----------------------------------------------------------------------------------- together

    def together(self):
        """What must hold between functions, and the summary."""
        report = self.report
        inspect_ranges.check_overlaps(report, self.codes)
        loads = self.counts["LOAD"]
        if self.without_lines:
            report.remark(None, "%d of %d functions have no DEBUG_INFO: no lines", self.without_lines, loads)
        if self.without_unwinding:
            report.remark(None, "%d of %d functions have no unwind data: DWARF unwinding stops in them",
                          self.without_unwinding, loads)
        if not loads and not report.wrong:
            report.remark(None, "there are no functions in it")
        report.summary.update(functions=loads, code_bytes=sum(code.size for code in self.codes),
                              records={name: count for name, count in self.counts.items() if count})


def read(path, data):
    return Reader(path, data).read()


def describe(record):
    """One record as text: a list of lines."""
    head = "%10d %6d  %-14s " % (record["offset"], record["size"], record["type"])
    details = []
    if record.get("broken"):
        head += "(unreadable: %s)" % record["broken"]
    elif record["type"] == "LOAD":
        head += "#%(code_index)d %(code_addr)x+%(code_size)d %(name)s" % record
    elif record["type"] == "DEBUG_INFO":
        head += "%x, " % record["code_addr"] + ", ".join(
            "+%d %s:%d" % (line["addr"] - record["code_addr"], line["file"], line["line"])
            for line in record["lines"])
    elif record["type"] == "UNWINDING_INFO":
        head += "%(unwind_size)d bytes, header %(eh_frame_hdr_size)d, mapped %(mapped_size)d" % record
    elif record["type"] == "MOVE":
        head += "#%(code_index)d %(old_code_addr)x -> %(new_code_addr)x, %(code_size)d bytes" % record
    if record["type"] == "LOAD":
        details = ["%33s %s" % ("", row) for row in record.get("unwind", ())]
    return [printable(head)] + details
