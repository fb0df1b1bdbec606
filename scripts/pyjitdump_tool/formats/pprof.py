"""pprof's profile.proto, gzipped (https://github.com/google/pprof, proto/profile.proto).

Two values a sample: their number, and processor time (or cycles, or events). Samples of equal stacks of
a thread are added up; the thread is in the labels. Addresses are left out: a location is a function.

Only what the format needs of protobuf is written here: varints, and fields with a length.
"""
from .. import stacks

HELP = """for go tool pprof, Parca, Pyroscope; two values, the number of samples and processor time (or cycles, or
events), which is the one shown; labels tell comm, pid and tid"""
SUFFIX = ".pb.gz"
GZIPPED = True
VIEW = stacks.MIXED

UNITS = {"ns": ("cpu", "nanoseconds"), "cycles": ("cycles", "count"), "events": ("events", "count")}


def varint(value):
    """A number below zero takes ten bytes, as protobuf's int64 does."""
    value &= (1 << 64) - 1
    if value < 0x80:
        return bytes((value,))
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def number(field, value):
    """A varint field. 0 is the default, and not written."""
    return varint(field << 3) + varint(value) if value else b""


def message(field, *parts):
    """A field with a length: a message, a string or packed numbers."""
    content = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(content)) + content


class _Strings:
    def __init__(self):
        self.numbers = {"": 0}

    def __call__(self, text):
        return self.numbers.setdefault(text, len(self.numbers))

    def written(self):
        return b"".join(message(6, text.encode("utf-8", "replace")) for text in self.numbers)


def _rank(frame):
    """The first mapping is taken for the program."""
    return {stacks.INTERPRETER: 0, stacks.NATIVE: 1}.get(frame.kind, 2)


def _locations(source, table, string):
    """Mappings, locations and functions: one location and one function for each frame, numbered from 1."""
    libraries = sorted({(_rank(frame), frame.dso) for frame in table.frames if frame.dso})
    mappings, parts = {}, []
    for _, dso in libraries:
        mappings.setdefault(dso, len(mappings) + 1)
    for index, frame in enumerate(table.frames):
        mapping = mappings.get(frame.dso, 0)
        line = source.line(frame)
        # No system name: where it is the name, pprof takes `f.<locals>.g` for a C++ template and cuts it.
        parts.append(message(5, number(1, index + 1), number(2, string(frame.name)), number(4, string(frame.file)),
                             number(5, line)))
        parts.append(message(4, number(1, index + 1), number(2, mapping),
                             message(4, number(1, index + 1), number(2, line))))
    first = [message(3, number(1, mapping), number(5, string(dso)), number(7, 1), number(8, 1), number(9, 1))
             for dso, mapping in mappings.items()]
    return b"".join(first + parts)


def _labels(thread, string):
    return b"".join((
        message(3, number(1, string("comm")), number(2, string(thread.comm))),
        message(3, number(1, string("pid")), number(3, thread.pid)),
        message(3, number(1, string("tid")), number(3, thread.tid))))


def write(source, file):
    profile, string = source.profile(), _Strings()
    table = profile.table
    kind, unit = UNITS[source.unit]
    if source.off_cpu:
        kind = "off-cpu"
    value_type = lambda field, name, of: message(field, number(1, string(name)), number(2, string(of)))  # noqa: E731
    file.write(value_type(1, "samples", "count") + value_type(1, kind, unit))
    file.write(_locations(source, table, string))
    labels = [_labels(thread, string) for thread in table.threads]
    # A stack's numbers are the same for all threads.
    stacks_written = {}
    for (thread, stack), (weight, count) in profile.weights.items():
        written = stacks_written.get(stack)
        if written is None:
            ids = b"".join(varint(frame + 1) for frame in reversed(table.stacks[stack]))
            written = stacks_written[stack] = message(1, ids) if ids else b""
        file.write(message(2, written, message(2, varint(count), varint(weight)), labels[thread]))
    file.write(number(9, int(source.start_ms * 1e6)) + number(10, source.duration_ns))
    file.write(value_type(11, kind, unit) + number(12, profile.weight // profile.samples))
    comment = number(13, string("%s: %s" % (source.exporter, source.meaning)))
    file.write(comment + number(14, string(kind)))
    file.write(string.written())
