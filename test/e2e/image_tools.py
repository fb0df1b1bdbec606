"""What the tests of the ELF image share: a live target, and the tools that look at it."""
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest

import image_elf
from interpreters import scrubbed_environment

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGET = str(HERE / "image_target.py")
WAITING = ["<module>", "main", "outer", "middle", "inner"]      # the target's stack, outermost first


def first_lines(path):
    """{name: number of the first line} of the functions and classes of a file, which has no decorators."""
    found = {}
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        match = re.match(r"\s*(?:def|class) (\w+)", line)
        if match:
            found.setdefault(match[1], number)
    return found


def tool(name, package):
    """The path of a tool; skips the test if it is not there."""
    path = shutil.which(name)
    if not path:
        pytest.skip("%s is not installed (Debian: %s)" % (name, package))
    return path


def output(*command, status=0, timeout=120, **options):
    """What a tool prints, stderr in it; its exit status must be as given (None: any)."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout,
                          env=scrubbed_environment(), **options)
    text = done.stdout.decode(errors="backslashreplace")
    assert status is None or done.returncode == status, "%s: %d\n%s" % (command, done.returncode, text)
    return text


def wait_for(condition, seconds=60):
    """Returns what `condition` returns once that is true."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "waited %d s in vain" % seconds
        time.sleep(0.01)


def images(directory, pid):
    """The paths of a process' images, in the order of their numbers."""
    paths = glob.glob(os.path.join(glob.escape(str(directory)), "pyjd-%d-*.so" % pid))
    return sorted(paths, key=lambda path: int(re.search(r"-(\d+)\.so$", path)[1]))


def all_names(directory, pid):
    return [name for path in images(directory, pid) for name in image_elf.read(path).names()]


class Target:
    """image_target.py under the library."""

    def __init__(self, runner, python, env=None, **popen):
        self.runner = runner
        self.process = runner.start([python.path, TARGET], env=env, stdin=subprocess.PIPE, **popen)
        self.pid = self.process.pid
        assert self.answer() == "ready"

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError("the target ended: %r" % (self.process.communicate(),))
        return json.loads(line)

    def begin(self, *command):
        """Starts a command; answer() waits for its end."""
        self.process.stdin.write(" ".join(map(str, command)).encode() + b"\n")
        self.process.stdin.flush()

    def do(self, *command):
        self.begin(*command)
        return self.answer()

    def images(self):
        return images(self.runner.directory, self.pid)

    def find(self, qualname, filename=TARGET):
        """(path of the image, Symbol) of a function."""
        name = "py::%s:%s" % (qualname, filename)
        found = [(path, symbol) for path in self.images() for symbol in image_elf.read(path).symbols
                 if symbol.name == name]
        assert len(found) == 1, (name, found)
        return found[0]

    def finish(self):
        """It must be in good health: work on, and end as if nothing had been."""
        assert self.do("hit", 5) == 5
        assert self.do("price", 5) == 5
        out, err = self.process.communicate(b"quit\n", timeout=60)
        assert (self.process.returncode, out, err) == (0, b"", b"")


def address(target, qualname):
    """Where a function's trampoline is in the process."""
    path, symbol = target.find(qualname)
    with open("/proc/%d/maps" % target.pid) as maps:
        begin = min(int(line.partition("-")[0], 16) for line in maps if line.rstrip().endswith(path))
    return begin + symbol.offset


@pytest.fixture
def start_target(runner):
    """start_target(python, **environment): a Target, that is ended after the test."""
    targets = []

    def start(python, **env):
        targets.append(Target(runner, python, env))
        return targets[-1]

    yield start
    for target in targets:
        if target.process.poll() is None:
            target.process.kill()
        target.process.communicate()


def symbol_frames(text, pattern):
    """The symbols of a printed stack, innermost first: group 1 of each line that `pattern` matches."""
    return [match[1] for match in re.finditer(pattern, text, re.M)]


def python_names(symbols):
    """Of symbols, innermost first: the qualified names of the Python functions, outermost first."""
    return [symbol[4:].partition(":")[0] for symbol in reversed(symbols) if symbol.startswith("py::")]
