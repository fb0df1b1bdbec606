"""Real stacks from real perf: workload.py under every interpreter, each sample compared with its
tree."""
import collections
import json
import os
import pathlib
import re

import pytest

import calltree
import interpreters
import perf as perf_module
from conftest import PYTHONS
from perf import python_function, reaches_start

HERE = pathlib.Path(__file__).resolve().parent
WORKLOAD = str(HERE / "workload.py")
OWN_FILES = {WORKLOAD, "<executed>"}

WANTED = 99.0       # per cent of the samples under entry()
LOST_MOST = 3.0             # per cent of samples that end within the interpreter
ENOUGH = 100        # samples, for a percentage to mean something


def recorded(runner, perf, python, seconds, threads=2, output=None, **options):
    """Records the workload under the library: (path of the recording, what the workload printed).
    The files go to /tmp, as by default: perf built with libdw finds injected files only there."""
    env = runner.environment(PYJD_DIR="/tmp", **({"PYJD_OUTPUT": output} if output else {}))
    command = [python.path, WORKLOAD, str(seconds), str(threads)]
    data, out = perf.record(command, env=env, **options)
    told = json.loads(out)
    runner.pids.add(told["pid"])
    return data, told


def under_entry(samples, told):
    """The samples taken while entry() was on the thread's stack, by the workload's own account."""
    spans = {span["tid"]: (span["begin"], span["end"]) for span in told["spans"]}
    return [sample for sample in samples if sample.tid in spans
            and spans[sample.tid][0] <= sample.time <= spans[sample.tid][1]]


def python_path(sample):
    """The names of the sample's Python functions, outermost first, as calltree.py counts them."""
    names = []
    for frame in reversed(sample.frames):
        function = python_function(frame)
        if function:
            name = function[0] if function[1] in OWN_FILES else calltree.STDLIB
            if name != calltree.STDLIB or names[-1:] != [name]:
                names.append(name)
    return names


def unnamed_evaluator(sample):
    """Whether CPython's evaluator is on the stack anywhere without our frame around it."""
    callers = [frame.symbol for frame in sample.frames[1:]] + [""]
    return any(frame.symbol == "_PyEval_EvalFrameDefault" and not caller.startswith("py::")
               for frame, caller in zip(sample.frames, callers))


def fault(sample, told, python):
    """What is wrong with a sample from under entry(), or None."""
    if not reaches_start(sample):
        return "does not reach the start of the thread"
    if unnamed_evaluator(sample):
        return "has a Python function without a name"
    names = python_path(sample)
    prefix = calltree.MAIN_PATH if sample.tid == told["pid"] else calltree.THREAD_PATH
    if tuple(names[:len(prefix)]) != prefix:
        return "does not begin with %s" % " > ".join(prefix)
    if not calltree.is_valid(names[len(prefix) - 1:], python.version[1]):
        return "is no path of the tree"
    return None


def describe(sample, why):
    lines = ["%s:" % why, "  Python: " + " > ".join(python_path(sample))]
    lines += ["  %16x %s (%s)" % frame[:3] for frame in sample.frames]
    return "\n".join(lines)


def lost_in_interpreter(sample):
    """Whether the unwinder gave up within CPython, before any frame of ours: the interpreter's own unwind data
    does not cover every instruction (3.15.2 of Debian: one sample in two hundred)."""
    return not any(python_function(frame) for frame in sample.frames) and bool(
        sample.frames and re.search(r"/(lib)?python3[^/]*$", sample.frames[-1].dso))


def judge(samples, told, python, find_fault, record_property):
    """Asserts that all but one in a hundred samples under entry() are without fault, in each
    thread. Those that the interpreter loses are not ours to judge, but more than a few would be: a
    trampoline that cannot be unwound looks the same."""
    everything = under_entry(samples, told)
    chosen = [sample for sample in everything if not lost_in_interpreter(sample)]
    lost = 100.0 * (len(everything) - len(chosen)) / max(1, len(everything))
    assert lost <= LOST_MOST, "%.2f %% of the samples end within the interpreter" % lost
    faults = [(sample, find_fault(sample, told, python)) for sample in chosen]
    bad = [pair for pair in faults if pair[1]]
    share = 100.0 * (len(chosen) - len(bad)) / max(1, len(chosen))
    record_property("figures", "%.2f %% of %d samples complete and valid; %.2f %% lost in the interpreter"
                    % (share, len(chosen), lost))
    print("%.2f %% of %d" % (share, len(chosen)), collections.Counter(why for _, why in bad))
    assert len(chosen) >= ENOUGH, "only %d of %d samples" % (len(chosen), len(samples))
    assert {sample.tid for sample in chosen} == {span["tid"] for span in told["spans"]}
    assert share >= WANTED, "%.2f %%; for example one that %s" % (share, describe(*bad[0]))
    return chosen


def check_c_leaf(chosen):
    """An account of the leaf that is not ours: whoever is in libz was called by leaf_zlib."""
    in_libz = [sample for sample in chosen
               if any("/libz.so" in frame.dso for frame in sample.frames)]
    right = [sample for sample in in_libz if python_path(sample)[-1:] == ["leaf_zlib"]]
    assert len(in_libz) >= 5, "no samples in libz"
    assert len(right) >= WANTED / 100 * len(in_libz)


def check_leaves(chosen):
    """Leaves burn the time, so nearly all samples have one: no innermost functions are missing."""
    at_leaf = [sample for sample in chosen if set(python_path(sample)[-1:]) & calltree.LEAVES]
    assert len(at_leaf) >= 0.95 * len(chosen), "only %d of %d" % (len(at_leaf), len(chosen))


def check_coverage(chosen, python):
    """Nearly every function of the tree was met, so that none is missing from all stacks."""
    functions = calltree.functions(python.version[1])
    met = {name for sample in chosen for name in python_path(sample)}
    assert len(functions - met) <= len(functions) / 10, "never met: %s" % sorted(functions - met)


def test_injected_stacks(runner, perf, python, record_property):
    data, told = recorded(runner, perf, python, 2.0)
    samples = perf.samples(perf.inject(data))
    chosen = judge(samples, told, python, fault, record_property)
    check_leaves(chosen)
    check_c_leaf(chosen)
    check_coverage(chosen, python)
    # The same names in the files, each function of the tree at least once.
    symbols = runner.dump_names(told["pid"], "/tmp")
    names = {symbol[4:].partition(":")[0] for symbol in symbols}
    assert calltree.functions(python.version[1]) - {calltree.STDLIB} <= names
    assert runner.map_names(told["pid"]) == symbols


def test_jitdump_alone(runner, perf, python, record_property):
    """The jitdump needs neither of the other outputs."""
    data, told = recorded(runner, perf, python, 1.2, output="jitdump")
    assert not runner.wrote(runner.map_path(told["pid"]))
    judge(perf.samples(perf.inject(data)), told, python, fault, record_property)


def map_fault(sample, told, python):
    """With a perf map alone there is no unwind data: a DWARF unwinder goes as far as the innermost
    trampoline, and names it."""
    names = python_path(sample)
    if names[-1:] and names[-1] in calltree.functions(python.version[1]) | {calltree.ENTRY}:
        return None
    return "has no function of the tree"


def test_map_alone(runner, perf, python, record_property):
    """No inject, and no -k 1 would be needed but for the time spans of this test."""
    if perf_module.loses_anonymous_memory():
        pytest.skip(perf_module.NO_ANONYMOUS_MEMORY)
    data, told = recorded(runner, perf, python, 1.2, output="map")
    assert not runner.wrote(runner.dump_path(told["pid"], "/tmp"))
    judge(perf.samples(data), told, python, map_fault, record_property)


FRAME_POINTERS = [python for python in PYTHONS if python.frame_pointers]


@pytest.mark.parametrize("python", FRAME_POINTERS or [None],
                         ids=FRAME_POINTERS and interpreters.name)
def test_frame_pointers(runner, perf, python, record_property):
    """The kernel walks the frame-pointer chain through the trampolines, and the map names them."""
    if not python:
        pytest.skip("none of the interpreters here is built with frame pointers (upstream: 3.15)")
    data, told = recorded(runner, perf, python, 1.2, output="map", call_graph="fp")

    def fp_fault(sample, told, python):
        names = python_path(sample)
        if calltree.ENTRY not in names:
            return "does not go out to entry"       # glibc, further out, has no frame pointers
        valid = calltree.is_valid(names[names.index(calltree.ENTRY):], python.version[1])
        return None if valid else "is no path of the tree"

    # A sample in a function of libc or libz, which have no frame pointers, or in the kernel on its behalf,
    # loses a caller.
    def has_chain(sample):
        outside = [frame.dso for frame in sample.frames if not frame.dso.startswith("[kernel")]
        return bool(outside) and not re.search(r"/lib(c|z|m)[.-]|^\[", outside[0])

    judge([sample for sample in perf.samples(data) if has_chain(sample)], told, python, fp_fault,
          record_property)


FIRST_LINES = """
import json, sys
found = []
def walk(code):
    found.append((code.co_name, code.co_firstlineno))
    for const in code.co_consts:
        if hasattr(const, "co_consts"):
            walk(const)
walk(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"))
print(json.dumps(found))
"""


def test_source_lines(runner, perf, python, record_property):
    """perf script -F +srcline shows file:line, that of the function's first line. A short
    recording: perf asks addr2line for every frame."""
    data, told = recorded(runner, perf, python, 0.3, threads=0, frequency=99)
    first_lines = {tuple(pair) for pair in json.loads(runner.quiet(
        python, FIRST_LINES, WORKLOAD, preload=False).out)}
    samples = under_entry(perf.samples(perf.inject(data), srcline=True), told)
    checked = 0
    for sample in samples:
        for frame in sample.frames:
            qualname, filename = python_function(frame) or (None, None)
            if filename != WORKLOAD:
                continue
            assert frame.srcline, "no source line: %r" % (frame,)
            shown, _, line = frame.srcline.rpartition(":")
            assert os.path.basename(shown) == os.path.basename(filename), frame
            assert (qualname.rpartition(".")[2], int(line)) in first_lines, frame
            checked += 1
    record_property("figures", "%d Python frames of %d samples have their line" % (
        checked, len(samples)))
    assert checked >= 30, "only %d frames in %d samples" % (checked, len(samples))


def test_parser_refuses_what_it_does_not_know():
    """The other tests here stand on it."""
    good = ("python3 12  5.000000001: \n\t   7f py::f:/a b (c).py (/tmp/jitted-12-3.so)\n  a.py:3\n"
            "\t   1f _start (/usr/bin/python3)\n\n"
            "Thread 1 (x) 13  5.100000000: \n\t  1 [unknown] ([heap])\n")
    first, second = perf_module.parse(good)
    assert (first.comm, first.tid, first.time) == ("python3", 12, 5 * 10**9 + 1)
    assert python_function(first.frames[0]) == ("f", "/a b (c).py")
    assert first.frames[0].srcline == "a.py:3" and first.frames[0].dso == "/tmp/jitted-12-3.so"
    assert reaches_start(first) and not reaches_start(second) and second.comm == "Thread 1 (x)"
    with pytest.raises(perf_module.PerfError):
        perf_module.parse(good + "something else\n")


def test_tree_refuses_wrong_paths():
    good = ["entry", "nested", "nested.<locals>.inner", "leaf_sum"]
    assert calltree.is_valid(good, 11)
    for wrong in (good[1:], good[:1] + good[2:], good[:2] + good[3:], good + ["plain"],
                  ["entry", "nested.<locals>.inner", "nested", "leaf_sum"], ["entry", "leaf_sum"]):
        assert not calltree.is_valid(wrong, 11), wrong
    inlined = ["entry", "comprehensions", "leaf_sum"]
    assert calltree.is_valid(inlined, 12) and not calltree.is_valid(inlined, 11)
