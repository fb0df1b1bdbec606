"""Reads what `perf script -F comm,ip,sym,dso` prints and shows that its stacks hold both languages.

    quickstart-stacks.py STACKS FOLDED

STACKS is that text. Prints how many stacks of the workload reach from main() to the sampled instruction,
and two stacks in full. FOLDED is written: one line for each distinct stack, outermost frame first and its
count last, as flame graph programs take it. Exit status 1 if Python and C frames are not in one stack.
"""
import collections
import os
import re
import sys

FRAME = re.compile(r"\s+[0-9a-f]+ (?P<symbol>.*) \((?P<dso>.*)\)$")
INTERPRETER = re.compile(r"(lib)?python3")


def stacks(path):
    """Each sample's frames, outermost first, as (symbol, file name of the binary)."""
    frames = []
    with open(path, errors="backslashreplace") as text:
        for line in text:
            frame = FRAME.match(line)
            if frame:
                symbol = re.sub(r"\+0x[0-9a-f]+$", "", frame["symbol"])
                frames.append((symbol, os.path.basename(frame["dso"])))
            elif not line.strip() and frames:
                yield frames[::-1]
                frames = []
    if frames:
        yield frames[::-1]


def is_python(frame):
    return frame[0].startswith("py::")


def is_native(frame):
    """In a C library, as against Python's functions and the interpreter that runs them."""
    return not is_python(frame) and not INTERPRETER.match(frame[1]) and frame[1] != "[unknown]"


def short(symbol):
    """Without the directories of a Python function's file: they would hide the rest."""
    name, colon, path = symbol.rpartition(":")
    return name + colon + os.path.basename(path) if symbol.startswith("py::") else symbol


def changes(stack):
    """How often a stack goes from Python into a C library or back."""
    kinds = [is_python(frame) for frame in stack if is_python(frame) or is_native(frame)]
    return sum(one != other for one, other in zip(kinds, kinds[1:]))


def show(title, stack):
    print("\n%s\n" % title)
    for symbol, dso in stack[::-1]:
        print("  %s %-58s %s" % (">" if symbol.startswith("py::") else " ", short(symbol), dso))


def main():
    samples = list(stacks(sys.argv[1]))
    with open(sys.argv[2], "w") as folded:
        for line, count in sorted(collections.Counter(
                ";".join(short(symbol).replace(";", ":") for symbol, _ in stack) for stack in samples).items()):
            print(line, count, file=folded)

    served = [stack for stack in samples if any(symbol.startswith("py::serve:") for symbol, _ in stack)]
    mixed = [stack for stack in served if is_native(stack[-1])]
    whole = [stack for stack in served if any(symbol.startswith("py::main:") for symbol, _ in stack)
             and any(symbol == "main" or "libc_start" in symbol for symbol, _ in stack)]
    if not mixed:
        print("No stack holds both Python and C functions: %d samples, %d of them with the workload's functions."
              % (len(samples), len(served)))
        return 1
    print("%d samples. %d (%.1f %%) are in the service; %d of those stacks are whole, from the start of the\n"
          "process to the sampled instruction; %d end in a C library or the kernel."
          % (len(samples), len(served), 100 * len(served) / len(samples), len(whole), len(mixed)))

    # The one that goes most often from one language to the other and sees most libraries; of equals, the shortest.
    deepest = max(mixed, key=lambda stack: (changes(stack), len({dso for _, dso in stack if "lib" in dso}), -len(stack)))
    show("One stack, innermost first, > marks Python: a handler, SQLite, and a Python function that SQLite called",
         deepest)
    packed = [stack for stack in mixed if stack[-1][1].startswith("libz")]
    if packed:
        show("Another: a handler in the middle of zlib", min(packed, key=len))
    return 0


sys.exit(main())
