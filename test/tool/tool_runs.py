"""Runs scripts/pyjitdump for the tests of its subcommands.

PYJD_TEST_LIBRARY and PYJD_TEST_PYTHONS are those of test/e2e.
"""
import collections
import functools
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "scripts" / "pyjitdump"
for place in ROOT / "test" / "e2e", ROOT / "scripts":
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

import interpreters

PYTHONS = interpreters.find()

SHARES = {"sixty": 60, "thirty": 30, "ten": 10}
# Each function stops when its share of a tenth of a second of processor time is over.
KNOWN_SHARES = """
import sys, time
def spin(until):
    n = 0
    while time.thread_time() < until:
        for i in range(2000):
            n += i
def sixty(until): spin(until)
def thirty(until): spin(until)
def ten(until): spin(until)
def main(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        now = time.thread_time()
        sixty(now + 0.06)
        thirty(now + 0.09)
        ten(now + 0.1)
main(float(sys.argv[1]) if len(sys.argv) > 1 else 4)
"""

# status: exit status; out, err: text.
Result = collections.namedtuple("Result", "status out err")


@functools.lru_cache(maxsize=None)
def library():
    path = os.environ.get("PYJD_TEST_LIBRARY")
    found = [path] if path else sorted(glob.glob(str(ROOT / "build*" / "libpyjitdump" / "libpyjitdump.so")))
    if not found or not os.path.exists(found[0]):
        pytest.exit("no libpyjitdump.so: run `meson setup build && meson compile -C build`, or set "
                    "PYJD_TEST_LIBRARY", returncode=2)
    return os.path.realpath(found[0])


@functools.lru_cache(maxsize=None)
def why_no_perf():
    """Why nothing can be recorded here, or ""."""
    if not shutil.which("perf"):
        return "there is no perf"
    probe = subprocess.run(["perf", "record", "-o", "/dev/null", "-e", "cpu-clock", "true"], stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return "the kernel does not let perf record" if probe.returncode else ""


needs_perf = pytest.mark.skipif(bool(why_no_perf()), reason=why_no_perf() or "-")


def environment(**more):
    env = dict(interpreters.scrubbed_environment(), PYTHONDONTWRITEBYTECODE="1")
    env.pop("PERF", None)
    env.update({name: str(value) for name, value in more.items()})
    return env


def start(*words, cwd=None, env=None, python=sys.executable):
    return subprocess.Popen([python, str(TOOL), *map(str, words)], cwd=str(cwd or "/"), env=env or environment(),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(*words, timeout=120, **options):
    process = start(*words, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Result(process.returncode, out.decode("utf-8"), err.decode("utf-8"))


def good(*words, **options):
    """The stdout of a run that must succeed."""
    result = run(*words, **options)
    assert result.status == 0, result
    return result.out


def record(directory, *command, options=(), **more):
    """Records a command; returns the Result."""
    return run("record", "-o", directory, "--library", library(), *options, "--", *command, **more)


def top_down(out):
    """{name: total in percent} of the tree that `report --top-down` prints. Of equal names, the first."""
    found = {}
    for line in out.splitlines():
        match = re.match(r"\s*([\d.]+)%\s+(?:[\d.]+%)?[\s│├└]*(\S+)", line)
        if match:
            found.setdefault(match[2], float(match[1]))
    return found


def share_of(found):
    """The three functions' parts of what they have together, in percent."""
    whole = sum(found[name] for name in SHARES)
    return {name: 100 * found[name] / whole for name in SHARES}
