"""Collapsed stacks: a line for each distinct stack, `comm;root;...;leaf WEIGHT`.

As written by stackcollapse-perf.pl and read by flamegraph.pl, inferno, speedscope and others
(https://github.com/brendangregg/FlameGraph). There is no escape in the format, so a `;` in a name
becomes `:`. Kernel functions end with `_[k]`, which flamegraph.pl colours.
"""
import os

from .. import stacks

HELP = """a line for each stack, for flamegraph.pl and inferno; the number is the weight of its samples,
in nanoseconds, cycles or events"""
SUFFIX = ".collapsed"
GZIPPED = False
VIEW = stacks.MIXED


def frame_text(frame):
    text = frame.name
    if frame.kind == stacks.KERNEL:
        text += "_[k]"
    elif frame.file:
        text += " (%s)" % frame.file
    elif frame.dso:
        text += " (%s)" % os.path.basename(frame.dso)
    return text.replace(";", ":").replace("\n", " ")


def write(source, file):
    profile = source.profile()
    table = profile.table
    texts = [frame_text(frame) for frame in table.frames]
    comms = [thread.comm.replace(";", ":").replace("\n", " ") for thread in table.threads]
    added = {}
    for (thread, stack), (weight, _) in profile.weights.items():
        key = comms[thread], stack
        added[key] = added.get(key, 0) + weight
    lines = sorted((";".join([comm] + [texts[frame] for frame in table.stacks[stack]]), weight)
                   for (comm, stack), weight in added.items())
    file.writelines(("%s %d\n" % line).encode("utf-8", "replace") for line in lines)
