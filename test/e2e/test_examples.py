"""The programs of examples/, compiled here, and what real perf shows of them."""
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import jitdump_reader
from perf import python_function

ROOT = pathlib.Path(__file__).resolve().parents[2]

WATCHED = ["watched", "outer", "middle", "inner"]       # of embed.c, outermost first

PROBE = """
import json, os, sys, sysconfig
get = sysconfig.get_config_var
header = os.path.join(sysconfig.get_path("include"), "Python.h")
library = os.path.join(get("LIBDIR") or "", get("LDLIBRARY") or "")
print(json.dumps({"include": os.path.dirname(header), "lib": get("LIBDIR"),
                  "name": "python" + (get("LDVERSION") or ""),
                  "usable": os.path.exists(header) and library.endswith(".so") and os.path.exists(library)}))
"""


def compiled(library, directory, name, *args):
    """Compiles examples/NAME.c against the library under test, with the warnings that the project uses."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("no C compiler")
    out = directory / name
    where = os.path.dirname(library)
    done = subprocess.run(
        [compiler, "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D_GNU_SOURCE",
         "-I%s" % (ROOT / "include"), str(ROOT / "examples" / (name + ".c")), "-o", str(out),
         library, "-Wl,-rpath," + where, *args],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode(errors="replace")
    return out


@pytest.fixture
def own_jit(library, tmp_path):
    if os.uname().machine != "x86_64":
        pytest.skip("examples/own_jit.c emits x86-64 code")
    return compiled(library, tmp_path, "own_jit")


@pytest.fixture
def embed(library, tmp_path, python):
    """The program for one interpreter, whose standard library it finds by itself."""
    facts = json.loads(subprocess.run([python.path, "-S", "-c", PROBE], stdout=subprocess.PIPE).stdout)
    if not facts["usable"]:
        pytest.skip("%s has no header or no libpython.so (Debian: python3-dev)" % python.path)
    # System headers: those of CPython have warnings of their own.
    return compiled(library, tmp_path, "embed", "-isystem", facts["include"], "-L" + facts["lib"],
                    "-l" + facts["name"], "-Wl,-rpath," + facts["lib"])


def reaches_main(sample):
    return any(frame.symbol == "main" for frame in sample.frames)


def told(out):
    """The "key: value" lines that the examples print."""
    return dict(line.split(":", 1) for line in out.splitlines() if ":" in line)


def pid_of(runner, out):
    pid = int(re.search(r"/jit-(\d+)\.dump", out).group(1))
    runner.pids.add(pid)
    return pid


def record(runner, perf, program, *args):
    """Records a run under perf and injects: (pid, samples). The files go to /tmp, as by default. Not through
    env(1): perf keeps the libc of a program that execs another, and loses the way out of the other's."""
    data, out = perf.record([str(program), *args])
    pid = pid_of(runner, out)
    return pid, [s for s in perf.samples(perf.inject(data)) if s.tid == pid]


def test_embed_files(runner, embed, python):
    result = runner.run([embed, "0.1"], preload=False, env={"PYJD_DIR": runner.directory})
    assert (result.status, result.err) == (0, b""), result
    lines = result.out.decode().splitlines()
    assert re.fullmatch(r"pyjitdump \d+\.\d+\.\d+, CPython 3\.%d, disabled" % python.version[1], lines[0])
    count = int(re.search(r"functions: (\d+),", result.out.decode()).group(1))
    names = runner.names(result.pid)
    assert told(result.out.decode())["jitdump"].strip() == str(runner.dump_path(result.pid))
    assert len(names) == count
    for name in WATCHED:
        assert "py::%s:embed.py" % name in names
    # Called while off, and never while on.
    assert "py::unwatched:embed.py" not in names


def test_embed_off_from_the_start(runner, embed):
    """pyjd_enable() says yes, whatever PYJD_ENABLE says."""
    env = {"PYJD_DIR": runner.directory, "PYJD_ENABLE": "0"}
    result = runner.run([embed, "0.05"], preload=False, env=env)
    assert (result.status, result.err) == (0, b""), result
    assert "py::watched:embed.py" in runner.names(result.pid)


def test_embed_stacks(runner, perf, embed, record_property):
    """Full stacks out to main, with all four functions in order while on, and with none while off."""
    _, samples = record(runner, perf, embed, "1")
    on, off, bad = 0, 0, []
    inside = [s for s in samples if any(frame.symbol == "call" for frame in s.frames)]
    for sample in inside:
        found = [python_function(frame) for frame in reversed(sample.frames) if python_function(frame)]
        names = [name for name, file in found if file == "embed.py" and "<listcomp>" not in name]
        # A sample may be taken in outer() or in middle(), on the way to inner().
        if not found:
            off += 1
        elif names == WATCHED[:len(names)] and len(names) >= 2 and reaches_main(sample):
            on += 1
        else:
            bad.append((names, sample))
    record_property("figures", "%d samples on, %d off, %d bad" % (on, off, len(bad)))
    assert len(inside) >= 0.8 * len(samples) and on >= 100 and off >= 100
    assert len(bad) <= 0.01 * len(inside), bad[0]
    # Switching off is at once: no sample with names comes after the first without.
    named = [bool(any(python_function(frame) for frame in s.frames)) for s in sorted(inside, key=lambda s: s.time)]
    switched = named.index(False)
    assert named[switched:].count(True) <= 0.01 * len(named)


def test_own_jit_files(runner, own_jit):
    result = runner.run([own_jit, "0.05"], preload=False, env={"PYJD_DIR": runner.directory})
    assert (result.status, result.err) == (0, b""), result
    assert told(result.out.decode())["ranges"].strip() == "1"
    (function,) = jitdump_reader.read(runner.dump_path(result.pid), foreign=True).functions
    assert (function.name, function.code_size) == ("own_jit::spin", 25)
    assert [(line.addr - function.code_addr, line.file, line.line) for line in function.lines] == [
        (0, "spin.own", 1), (7, "spin.own", 2), (25, "spin.own", 2)]
    assert runner.map_names(result.pid) == ["own_jit::spin"]


def test_own_jit_stacks(runner, perf, own_jit, record_property):
    """The added range is in the middle of complete stacks: spin, called by run, called by main."""
    _, samples = record(runner, perf, own_jit, "1")
    spinning = [[frame.symbol for frame in s.frames if frame.dso != "[kernel.kallsyms]"]
                for s in samples if any(frame.symbol == "own_jit::spin" for frame in s.frames)]
    good = [names for names in spinning if names[:3] == ["own_jit::spin", "run", "main"]]
    record_property("figures", "%d of %d samples complete" % (len(good), len(spinning)))
    assert len(spinning) >= 0.8 * len(samples) and len(spinning) >= 100
    assert len(good) >= 0.99 * len(spinning), [names for names in spinning if names not in good][0]


def test_own_jit_map_alone(runner, perf, own_jit):
    """Without inject, the perf map names the function."""
    data, out = perf.record([str(own_jit), "0.5"], call_graph="fp")
    pid = pid_of(runner, out)
    samples = [s for s in perf.samples(data) if s.tid == pid]
    named = [s for s in samples if any(frame.symbol == "own_jit::spin" for frame in s.frames)]
    assert len(named) >= 0.8 * len(samples) and len(named) >= 50
