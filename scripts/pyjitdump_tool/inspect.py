"""inspect FILE: prints a jitdump, an ELF image or a perf map record by record, and says what is wrong.

What kind of file it is, its bytes tell; where they do not, its name. The readers are inspect_jitdump.py,
inspect_image.py and inspect_map.py.
"""
import collections
import json
import os
import re
import stat
import sys

from . import inspect_elf, inspect_image, inspect_jitdump, inspect_map, ui
from .inspect_common import ERROR, printable

EPILOG = """\
An error is what misleads a reader of the file; a remark is what a reader lives with. Offsets are bytes
from the file's beginning.

Exit status: 0 if nothing is wrong (remarks do not count), 1 if something is, 2 if a file cannot be read
or is none of these kinds.

examples:
  pyjitdump inspect /tmp/jit-4711.dump              every record of a jitdump
  pyjitdump inspect -q /tmp/pyjd-4711-*.so          are these images in order?
  pyjitdump inspect --json /tmp/perf-4711.map       one JSON object for each file, on a line
"""

KINDS = ((inspect_jitdump, lambda path, data: inspect_jitdump.is_jitdump(data)),
         (inspect_image, inspect_image.is_image), (inspect_map, inspect_map.is_map),
         (inspect_jitdump, lambda path, data: re.match(r"jit-\d+\.dump$", os.path.basename(path))))
ALIKE = 3                           # findings that say the same are printed this often


def add_arguments(parser):
    parser.epilog = EPILOG
    parser.add_argument("files", metavar="FILE", nargs="+", help="jit-PID.dump, pyjd-PID-N.so or perf-PID.map")
    parser.add_argument("-q", "--quiet", action="store_true", help="only the summary and what is wrong")
    parser.add_argument("-a", "--all", action="store_true",
                        help="every finding, not only the first %d of those that say the same" % ALIKE)
    parser.add_argument("--json", action="store_true", help="one JSON object for each file")


def load(path):
    try:
        # Not blocked by a named pipe, nor endless for a device.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ui.UserError("%s is not a regular file" % printable(path))
            return file.read()
    except OSError as error:
        raise ui.UserError("cannot read %s: %s" % (printable(path), error.strerror or error))
    except (ValueError, MemoryError) as error:
        raise ui.UserError("cannot read %s: %s" % (printable(path), error or "out of memory"))


def examine(path):
    """(module that reads this kind, Report)"""
    data = load(path)
    for module, matches in KINDS:
        if matches(path, data):
            return module, module.read(path, data)
    what = "an ELF file, but no image of libpyjitdump" if data[:4] == inspect_elf.MAGIC else \
        "none of what inspect reads: a jitdump, an ELF image (pyjd-PID-N.so), a perf map"
    raise ui.UserError("%s is %s" % (printable(path), what))


def to_json(report):
    return {
        "file": report.path, "kind": report.kind, "size": report.size, "ok": not report.wrong,
        "summary": report.summary, "records": report.records,
        "findings": [{"level": finding.level, "offset": finding.offset, "message": printable(finding.message)}
                     for finding in report.findings],
    }


def place(finding):
    return "the file" if finding.offset is None else "offset %d (0x%x)" % (finding.offset, finding.offset)


def print_findings(report, everything, paint):
    seen = collections.Counter()
    for finding in report.findings:
        seen[finding.what] += 1
        if everything or seen[finding.what] <= ALIKE:
            colour = "red" if finding.level == ERROR else "yellow"
            print("%s: %s: %s" % (paint(colour, finding.level), place(finding), printable(finding.message)))
    for what, count in seen.items() if not everything else ():
        if count > ALIKE:
            print("... and %d more like this: %s" % (count - ALIKE, re.sub(r"%[a-z0-9]+", "N", what)))


def summary(report):
    """What the file is, in a line or two."""
    words = report.summary
    get = lambda name: words.get(name, "?")     # noqa: E731
    if report.kind == "jitdump":
        text = "pid %s, %s, %s functions, %s bytes of code" % (
            get("pid"), get("machine"), get("functions"), get("code_bytes"))
        if words.get("records"):
            text += " (%s)" % ", ".join("%d %s" % (count, name) for name, count in words["records"].items())
    elif report.kind == "image":
        text = "%s, %s of %s slots used, %s of %s bytes of names and lines; %s" % (
            get("machine"), get("used"), get("capacity"), get("name_bytes_used"), get("name_bytes"), get("producer"))
    else:
        text = "%s functions in %s lines" % (get("functions"), get("lines"))
    return "%s: %s of %s, %s" % (printable(report.path), report.kind, ui.bytes_text(report.size), text)


def print_text(module, report, args, paint):
    print(paint("bold", summary(report)))
    if not args.quiet:
        for row in report.summary.get("unwind", ()):
            print("    unwind " + row)
        before = None
        for record in report.records:
            line, *details = module.describe(record)
            print(line)
            if details and details != before:       # nearly always those of the function in front
                print("\n".join(details))
                before = details
    print_findings(report, args.all, paint)
    errors = sum(finding.level == ERROR for finding in report.findings)
    remarks = len(report.findings) - errors
    print("%s, %s" % ("nothing is wrong" if not errors else "1 error" if errors == 1 else "%d errors" % errors,
                      "1 remark" if remarks == 1 else "%d remarks" % remarks))


def run(args):
    status, paint = 0, ui.painter(sys.stdout)
    for path in args.files:
        try:
            module, report = examine(path)
        except ui.UserError as error:
            if len(args.files) == 1:
                raise
            ui.say(error)
            status = 2
            continue
        if args.json:
            json.dump(to_json(report), sys.stdout)
            print()
        else:
            print_text(module, report, args, paint)
        status = max(status, 1 if report.wrong else 0)
    return status
