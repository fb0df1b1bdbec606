"""Fixtures of the end-to-end suite: the library, the interpreters, and programs run under both.

PYJD_TEST_LIBRARY    path of libpyjitdump.so; default: the first build directory that has one
PYJD_TEST_PYTHONS    paths of interpreters with ':' between them; default: all that are found
"""
import collections
import functools
import glob
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True      # the source tree stays as it was

import pytest

import interpreters
import jitdump_reader
import perf as perf_module

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHONS = interpreters.find()

# status: exit status, negative for a signal; out, err: bytes.
Result = collections.namedtuple("Result", "status out err pid")


@functools.lru_cache(maxsize=None)
def perf_missing():
    return perf_module.missing()


@pytest.fixture(scope="session")
def library():
    path = os.environ.get("PYJD_TEST_LIBRARY")
    if path:
        if not os.path.exists(path):
            pytest.exit("PYJD_TEST_LIBRARY: there is no %s" % path, returncode=2)
        return os.path.realpath(path)
    for path in sorted(glob.glob(str(ROOT / "build*" / "libpyjitdump" / "libpyjitdump.so"))):
        return path
    pytest.exit("no libpyjitdump.so: run `meson setup build && meson compile -C build`, or set "
                "PYJD_TEST_LIBRARY", returncode=2)


@pytest.fixture(scope="session", params=PYTHONS, ids=interpreters.name)
def python(request):
    return request.param


def since(*version):
    """Decorates a test that makes sense from this version of CPython on: only those get it as
    `python`."""
    chosen = [python for python in PYTHONS if python.version >= version]
    nothing = pytest.mark.skip("there is no CPython %d.%d or later here" % version)
    return pytest.mark.parametrize("python", chosen or [pytest.param(None, marks=nothing)],
                                   ids=chosen and interpreters.name)


@pytest.fixture(scope="session")
def any_python():
    """One interpreter, for what does not depend on which: the newest."""
    assert PYTHONS, "no CPython 3.8 to 3.15 found"
    return PYTHONS[-1]


@pytest.fixture
def perf(tmp_path):
    reason = perf_missing()
    if reason:
        pytest.skip(reason)
    return perf_module.Perf(tmp_path)


class Runner:
    """Runs programs, preloaded or not, and knows and removes the files they leave.

    Unless a test says otherwise PYJD_DIR is the test's own directory; a perf map is always in /tmp.
    """

    def __init__(self, library, directory):
        self.library, self.directory = library, directory
        self.pids = set()
        self.began = time.time()

    def environment(self, preload=True, **env):
        result = interpreters.scrubbed_environment()
        result["PYTHONDONTWRITEBYTECODE"] = "1"
        if preload:
            result.update(LD_PRELOAD=self.library, PYJD_DIR=str(self.directory))
        result.update({name: str(value) for name, value in env.items()})
        return result

    def start(self, command, preload=True, env=None, **popen):
        popen.setdefault("stdin", subprocess.DEVNULL)
        process = subprocess.Popen(
            [os.fspath(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=self.environment(preload, **(env or {})), start_new_session=True, **popen)
        self.pids.add(process.pid)
        return process

    def run(self, command, preload=True, env=None, timeout=30, **popen):
        process = self.start(command, preload, env, **popen)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)      # and its children, who hold the pipes too
            process.communicate()
            raise
        return Result(process.returncode, out, err, process.pid)

    def python(self, python, code, *args, flags=(), **options):
        """Runs the text `code` as a file, so that its functions have a file name."""
        script = self.directory / "program.py"
        script.write_bytes(code if isinstance(code, bytes) else code.encode())
        return self.run([python.path, *flags, script, *args], **options)

    def quiet(self, python, code, *args, **options):
        """The same for a program that must succeed without a word on stderr."""
        result = self.python(python, code, *args, **options)
        assert (result.status, result.err) == (0, b""), result
        return result

    # What a process left. `pid` is that of a Result or of any child of it.

    def map_path(self, pid):
        self.pids.add(pid)
        return pathlib.Path("/tmp/perf-%d.map" % pid)

    def dump_path(self, pid, directory=None):
        self.pids.add(pid)
        return pathlib.Path(directory or self.directory) / ("jit-%d.dump" % pid)

    def wrote(self, path):
        """Whether there is a file that is no older than the test. Process ids come round again, and
        an older process of the same id may have left one."""
        return path.exists() and path.stat().st_mtime >= self.began - 0.1

    def map_names(self, pid):
        """The symbols of a perf map, each line of which is checked."""
        return [name for _, _, name in read_map(self.map_path(pid))]

    def dump(self, pid, directory=None, **options):
        return jitdump_reader.read(self.dump_path(pid, directory), **options)

    def dump_names(self, pid, directory=None, **options):
        return [function.name for function in self.dump(pid, directory, **options).functions]

    def names(self, pid):
        """The functions the process published, for which both files must agree."""
        names = self.map_names(pid)
        assert self.dump_names(pid) == names
        return names

    def clean(self):
        for pid in self.pids:
            for pattern in ("perf-%d.map", "jit-%d.dump", "jitted-%d-*.so", "pyjd-%d-*.so"):
                for path in glob.glob("/tmp/" + pattern % pid):
                    os.unlink(path)


def read_map(path):
    """[(start, size, name)] of a perf map, whose format is checked to the byte."""
    data = pathlib.Path(path).read_bytes()
    assert data.endswith(b"\n"), "the last line has no end"
    entries = []
    for line in data[:-1].split(b"\n"):
        start, size, name = line.split(b" ", 2)
        for number in (start, size):
            assert number == b"%x" % int(number, 16), "%r is not plain hexadecimal" % line
        assert int(start, 16) and int(size, 16) and len(name) >= 3, line
        assert not any(byte < 0x20 or byte == 0x7F for byte in name), line
        entries.append((int(start, 16), int(size, 16), name.decode("utf-8")))
    ends = 0
    for start, size, name in sorted(entries):
        assert start >= ends, "%s overlaps its predecessor" % name
        ends = start + size
    return entries


@pytest.fixture
def runner(library, tmp_path):
    runner = Runner(library, tmp_path)
    yield runner
    runner.clean()


def pytest_terminal_summary(terminalreporter):
    """Figures that tests recorded with record_property("figures", text)."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports
               if getattr(report, "when", "") == "call"]
    figures = [(report.nodeid, value) for report in reports
               for name, value in report.user_properties if name == "figures"]
    if figures:
        terminalreporter.section("figures")
        for nodeid, value in sorted(figures):
            terminalreporter.write_line("%s: %s" % (nodeid.rpartition("::")[2], value))
