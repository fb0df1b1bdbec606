"""Reads a perf map, /tmp/perf-PID.map (Linux, tools/perf/Documentation/jit-interface.txt): one line
`START SIZE NAME` for a piece of code, hexadecimal without 0x, no time, no header."""
import os
import re

from .inspect_common import Report, text_of

LINE = re.compile(rb"([0-9a-fA-F]+) ([0-9a-fA-F]+) (.*)", re.DOTALL)
FIRST = re.compile(rb"[0-9a-fA-F]{4,16} [0-9a-fA-F]{1,8} [^\0\n]{1,1000}\n")
SHORTEST_NAME = 3
ADDRESSES = 1 << 64


def is_map(path, data):
    return bool(re.match(r"perf-\d+\.map$", os.path.basename(path)) or FIRST.match(data))


def read(path, data):
    report = Report(path, "perf map", len(data))
    named = re.match(r"perf-(\d+)\.map$", os.path.basename(path))
    if named:
        report.summary["pid"] = int(named.group(1))
    else:
        report.remark(None, "the file is not named perf-PID.map, so no profiler finds it")
    if not data:
        report.remark(None, "the file is empty")
    offset = number = 0
    while offset < len(data):
        end = data.find(b"\n", offset)
        number += 1
        if end < 0:
            report.error(len(data), "line %d has no newline: perf drops it", number)
            end = len(data)
        _line(report, offset, number, data[offset:end])
        offset = end + 1
    _together(report)
    report.summary.update(lines=number, functions=len(report.records))
    return report


def _line(report, offset, number, line):
    match = LINE.match(line)
    if not match:
        what = "is empty" if not line else "is not START SIZE NAME, the first two in hexadecimal without 0x"
        report.error(offset, "line %d " + what + ": perf ignores it", number)
        return
    start, size = int(match.group(1), 16), int(match.group(2), 16)
    name_at = offset + match.start(3)
    name = text_of(report, match.group(3), name_at, "name")
    report.check(len(match.group(3)) >= SHORTEST_NAME, name_at,
                 "line %d: perf ignores names of fewer than three characters", number)
    report.check(start, offset, "line %d: address is 0", number)
    report.check(size, offset + match.start(2), "line %d: size is 0", number)
    report.check(start + size <= ADDRESSES, offset + match.start(2), "line %d: the range leaves the address space",
                 number)
    report.records.append({"offset": offset, "line": number, "start": start, "size": size, "name": name})


def _together(report):
    before = None
    for record in sorted(report.records, key=lambda record: (record["start"], record["offset"])):
        if before and before["start"] + before["size"] > record["start"]:
            first, second = sorted((before, record), key=lambda one: one["offset"])
            if (first["start"], first["size"], first["name"]) == (second["start"], second["size"], second["name"]):
                report.remark(second["offset"], "line %d says what line %d says", second["line"], first["line"])
            else:
                report.error(second["offset"], "line %d overlaps line %d (%s): a map has no time, and perf takes"
                             " either", second["line"], first["line"], first["name"])
        if not before or record["start"] + record["size"] > before["start"] + before["size"]:
            before = record


def describe(record):
    """One record as text: a list of lines."""
    return ["%10d  %x %x  %s" % (record["offset"], record["start"], record["size"], record["name"])]
