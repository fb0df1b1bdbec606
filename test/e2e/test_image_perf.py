"""Stacks from a bare `perf record --call-graph dwarf`: no inject, no -k 1, launched or attached."""
import collections
import json
import os
import re
import time

import image_elf
import perf as perf_module
from image_tools import images, start_target  # noqa: F401
from perf import python_function, reaches_start
from test_stacks import (FIRST_LINES, WANTED, WORKLOAD, check_c_leaf, check_coverage, check_leaves,
                         fault, judge, python_path, recorded, under_entry)


def with_spans(samples, told):
    """`told` with the time for which entry() ran, by the samples: without -k 1 their clock is not that of
    the program. Samples that ought to show entry() are those between the first and the last that do."""
    times = collections.defaultdict(list)
    for sample in samples:
        if "entry" in python_path(sample):
            times[sample.tid].append(sample.time)
    spans = []
    for span in told["spans"]:
        seen = times.get(span["tid"])
        assert seen, "no sample of thread %d shows entry()" % span["tid"]
        assert seen[-1] - seen[0] >= 0.9 * (span["end"] - span["begin"]), "entry() is missing for a part of the time"
        spans.append({"tid": span["tid"], "begin": seen[0], "end": seen[-1]})
    return dict(told, spans=spans)


def test_launched(runner, perf, python, record_property):
    begin = time.time()
    data, told = recorded(runner, perf, python, 1.2, output="elf", monotonic=False)
    samples = perf.samples(data)
    assert images("/tmp", told["pid"])
    for path in (runner.map_path(told["pid"]), runner.dump_path(told["pid"], "/tmp")):
        # One may be left of another process that had the same id.
        assert not path.exists() or path.stat().st_mtime < begin
    chosen = judge(samples, with_spans(samples, told), python, fault, record_property)
    check_leaves(chosen)
    check_c_leaf(chosen)
    check_coverage(chosen, python)
    inside = {frame.dso for sample in chosen for frame in sample.frames if python_function(frame)}
    assert inside <= set(images("/tmp", told["pid"])), inside


GROW = """
import threading, time

def grow():
    while True:
        for _ in range(20):
            name = "small_%d" % time.monotonic_ns()
            exec("def %s(): pass\\n%s()" % (name, name), {})
        name = "burning_%d" % time.monotonic_ns()       # when it was born
        exec("def %s(now, end):\\n while now() < end: pass\\n%s(now, now() + 2000000)" % (name, name),
             {"now": time.monotonic_ns})
        time.sleep(0.005)

threading.Thread(target=grow, daemon=True).start()
"""


def attach(runner, perf, python, tmp_path, before=0.6, seconds=1.2):
    """perf record -p of a process that has run for a while and goes on adding functions: (path of the
    recording, what the workload printed, CLOCK_MONOTONIC at attachment)."""
    customize = tmp_path / "customize"
    customize.mkdir()
    (customize / "sitecustomize.py").write_text(GROW)
    process = runner.start([python.path, WORKLOAD, str(before + seconds + 0.6), "1"],
                           env={"PYJD_DIR": "/tmp", "PYTHONPATH": str(customize)})
    time.sleep(before)
    attached = time.monotonic_ns()
    data = perf.file("perf.data")
    perf.run("record", "-q", "-k", "CLOCK_MONOTONIC", "-F", "499", "-e", perf_module.EVENT, "--call-graph",
             perf_module.DWARF, "-o", data, "-p", str(process.pid), "--", "sleep", str(seconds))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    return data, json.loads(out), attached


def test_attached(runner, perf, python, tmp_path, record_property):
    data, told, attached = attach(runner, perf, python, tmp_path)
    plain = perf.samples(data)
    chosen = judge(plain, told, python, fault, record_property)

    # Functions that came while perf was attached have names and whole stacks as well.
    new = [sample for sample in plain for frame in sample.frames[:20]
           if frame.symbol.startswith("py::burning_")
           and int(re.search(r"\d+", frame.symbol)[0]) > attached]
    whole = [sample for sample in new if reaches_start(sample) and "py::grow:" in
             "".join(frame.symbol for frame in sample.frames)]
    assert len(new) >= 10 and len(whole) >= WANTED / 100 * len(new), (len(new), len(whole))
    assert len(images("/tmp", told["pid"])) >= 2

    # perf inject, of the same recording, gives the same stacks.
    injected = {(sample.tid, sample.time): sample for sample in under_entry(perf.samples(perf.inject(data)), told)}
    pairs = [(sample, injected.get((sample.tid, sample.time))) for sample in chosen]
    same = [1 for one, other in pairs if other and
            [frame.symbol for frame in one.frames] == [frame.symbol for frame in other.frames]]
    record_property("figures", "%d of %d stacks are the same after perf inject" % (len(same), len(pairs)))
    assert len(same) >= WANTED / 100 * len(pairs)


def test_all_outputs_agree(start_target, runner, python):
    """The same functions at the same addresses in the perf map, the jitdump and the images."""
    target = start_target(python)
    target.do("grow", 1500)
    in_images = []
    for path in target.do("maps"):
        image = image_elf.read(path)
        with open("/proc/%d/maps" % target.pid) as maps:
            base = min(int(line.partition("-")[0], 16) for line in maps if line.rstrip().endswith(path))
        in_images += [(base + symbol.offset, symbol.size, symbol.name) for symbol in image.symbols]
    from conftest import read_map
    assert sorted(read_map(runner.map_path(target.pid))) == sorted(in_images)
    assert runner.dump_names(target.pid) == runner.map_names(target.pid)
    target.finish()


def test_source_lines(runner, perf, any_python, record_property):
    """perf script -F +srcline shows the file and the first line, from the image."""
    data, told = recorded(runner, perf, any_python, 0.3, threads=0, frequency=99, output="elf")
    first_lines = {tuple(pair) for pair in json.loads(runner.quiet(
        any_python, FIRST_LINES, WORKLOAD, preload=False).out)}
    checked = 0
    for sample in under_entry(perf.samples(data, srcline=True), told):
        for frame in sample.frames:
            qualname, filename = python_function(frame) or (None, None)
            if filename == WORKLOAD:
                assert frame.srcline, "no source line: %r" % (frame,)
                shown, _, line = frame.srcline.rpartition(":")
                assert os.path.basename(shown) == os.path.basename(filename), frame
                assert (qualname.rpartition(".")[2], int(line)) in first_lines, frame
                checked += 1
    record_property("figures", "%d Python frames have their line" % checked)
    assert checked >= 30


def test_report(runner, perf, any_python):
    """perf report, as a user runs it."""
    data, told = recorded(runner, perf, any_python, 0.5, threads=0, output="elf", monotonic=False)
    text = perf.run("report", "-i", data, "--no-inline", "--stdio", "--children", "-g", "none", "--sort", "sym")
    shares = dict((name, float(share)) for share, name in
                  re.findall(r"^\s*(\d+\.\d+)%\s+\d+\.\d+%\s+\[\.\] py::(\S+?):\S+", text, re.M))
    assert shares["entry"] >= 60 and shares["leaf_loop"] >= 1, text[:3000]
