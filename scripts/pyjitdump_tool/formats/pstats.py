"""The file that the standard library's pstats opens: a marshalled dictionary

    (file, line, function) -> (cc, nc, tt, ct, {caller: (cc, nc, tt, ct)})

It is made for counted calls, and we have samples. Here `cc` and `nc`, the calls, are the samples that have
the function in their stack; `tt` is the time of those whose leaf it is, `ct` of all of them, in seconds.
Of a caller they speak of the samples with that caller directly above; a sample counts once however
often a recursive function is in it. C functions stand as pstats shows builtins, in braces.
"""
import marshal
import os

from .. import stacks

HELP = """for python -m pstats, snakeviz, gprof2dot; ncalls are samples with the function in their stack, tottime
and cumtime seconds of processor time; without interpreter frames unless --native, so that tottime of
a Python function includes the interpreter running it"""
SUFFIX = ".pstats"
GZIPPED = False
VIEW = stacks.PYTHON_ONLY


def _key(source, frame):
    if frame.kind == stacks.PYTHON:
        return frame.file, source.line(frame), frame.name
    place = "kernel" if frame.kind == stacks.KERNEL else os.path.basename(frame.dso)
    return "~", 0, "<%s%s>" % (frame.name, " (%s)" % place if place else "")


def _add(entry, count, own, weight):
    entry[0] += count
    entry[1] += own
    entry[2] += weight


def write(source, file):
    profile = source.profile()
    table, scale = profile.table, source.seconds(profile)
    keys = {}                       # frames that pstats would not tell apart are one
    numbers = [keys.setdefault(_key(source, frame), len(keys)) for frame in table.frames]
    functions, edges = {}, {}       # [samples, weight as leaf, weight]
    added = {}
    for (_, stack), (weight, count) in profile.weights.items():
        entry = added.setdefault(stack, [0, 0])
        entry[0] += weight
        entry[1] += count
    for stack, (weight, count) in added.items():
        path = [numbers[frame] for frame in table.stacks[stack]]
        if not path:
            continue
        for function in set(path):
            _add(functions.setdefault(function, [0, 0, 0]), count, weight if function == path[-1] else 0, weight)
        last = path[-2:] if len(path) > 1 else None
        for edge in set(zip(path, path[1:])):
            _add(edges.setdefault(edge, [0, 0, 0]), count, weight if list(edge) == last else 0, weight)
    names = list(keys)
    callers = {number: {} for number in functions}
    for (caller, callee), (count, own, weight) in edges.items():
        callers[callee][names[caller]] = (count, count, own * scale, weight * scale)
    stats = {names[number]: (count, count, own * scale, weight * scale, callers[number])
             for number, (count, own, weight) in functions.items()}
    marshal.dump(stats, file, 2)    # a version that every Python reads
