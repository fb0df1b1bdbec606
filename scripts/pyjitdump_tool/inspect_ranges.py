"""Where the functions of a jitdump are, all together: what overlaps.

perf maps a function's code and the unwind data behind it as one range, and cuts a range that is there
already; a perf with libunwind then loses stacks.
"""
from .inspect_common import align


class Code:
    """The range of a LOAD. `mapped` is the size of the unwind data behind the code."""

    def __init__(self, offset, name, addr, size, mapped):
        self.offset, self.name, self.addr, self.size = offset, name, addr, size
        self.end = addr + size
        self.mapped_end = addr + align(size, 8) + mapped if mapped else self.end


def check_overlaps(report, codes):
    furthest = None
    for code in sorted(codes, key=lambda code: (code.addr, code.offset)):
        if furthest and furthest.mapped_end > code.addr:
            _overlap(report, code, furthest)
        if not furthest or code.mapped_end > furthest.mapped_end:
            furthest = code


def _overlap(report, code, other):
    """`code` begins inside of `other`. A JIT may use an address again; Python functions do not move or end."""
    first, second = sorted((other, code), key=lambda one: one.offset)
    if not code.name.startswith("py::"):
        report.remark(second.offset + 32, "its range overlaps the one of %s at %d: an address that is used twice is"
                      " told apart by time only", first.name, first.offset)
    elif other.end > code.addr:
        report.error(second.offset + 32, "the code overlaps the one of %s at %d", first.name, first.offset)
    else:
        report.error(code.offset + 32, "the code begins %d bytes inside of the unwind data of %s at %d: perf cuts one"
                     " of them", other.mapped_end - code.addr, other.name, other.offset)
