"""The formats' own tools, as far as this machine can get them, and recordings to export.

npm packages and Go's pprof are installed once, in ${XDG_CACHE_HOME:-~/.cache}/pyjitdump-tools.
"""
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import inspect_samples

ROOT = inspect_samples.ROOT
TOOL = str(ROOT / "scripts" / "pyjitdump")
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "pyjitdump-tools"
PPROF = "github.com/google/pprof@v0.0.0-20250923004556-9e5a51aed1e8"


def run(*words, timeout=300, status=0, **more):
    """Output of a command as text. Its exit status has to be `status`."""
    answer = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, timeout=timeout, **more)
    assert answer.returncode == status, (words, answer.returncode, answer.stderr.decode()[-2000:])
    return answer.stdout.decode("utf-8", "replace")


def environment(**more):
    return dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **more)


def tool(*words, env=None, status=0):
    """(stdout, stderr) of pyjitdump."""
    answer = subprocess.run([sys.executable, TOOL, *map(str, words)], stdin=subprocess.DEVNULL, timeout=300,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env or environment())
    assert answer.returncode == status, (words, answer.returncode, answer.stderr.decode())
    assert b"Traceback" not in answer.stderr
    return answer.stdout, answer.stderr.decode()


@functools.lru_cache(maxsize=None)
def npm(name, *packages):
    """The directory of installed packages; or the test is skipped."""
    if not shutil.which("npm"):
        pytest.skip("npm is not here")
    place = CACHE / name
    if not (place / "complete").exists():
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text('{"private": true}')
        answer = subprocess.run(["npm", "install", "--no-audit", "--no-fund", *packages], cwd=str(place),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
        if answer.returncode:
            pytest.skip("npm cannot install %s: %s" % (" ".join(packages), answer.stdout.decode()[-200:]))
        (place / "complete").touch()
    return place


@functools.lru_cache(maxsize=None)
def pprof():
    found = CACHE / "go" / "bin" / "pprof"
    if not found.exists():
        if not shutil.which("go"):
            pytest.skip("go is not here, so no pprof")
        answer = subprocess.run(["go", "install", PPROF], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, timeout=600,
                                env=dict(os.environ, GOPATH=str(CACHE / "go"), GOFLAGS="-modcacherw"))
        if answer.returncode:
            pytest.skip("go cannot install pprof: %s" % answer.stdout.decode()[-200:])
    return found


class Firefox:
    """A profile loaded by the Firefox Profiler's own command line."""

    def __init__(self, path, directory):
        place = npm("firefox", "node@24", "@firefox-devtools/profiler-cli@0.10.0")
        self.command = [place / "node_modules/.bin/node", place / "node_modules/.bin/profiler-cli"]
        if not self.command[0].exists():
            pytest.skip("npm's node is not for this machine")
        self.env = dict(os.environ, HOME=str(directory))
        self.path = path

    def __call__(self, *words):
        return run(*self.command, *words, env=self.env)

    def __enter__(self):
        self("load", self.path)
        return self

    def __exit__(self, *_):
        self("stop", "--all")


# ----------------------------------------------------------------------------------- a recording without perf

PYTHON = "py::%s:/srv/app.py"
EVAL = ("_PyEval_EvalFrameDefault", "/usr/lib/libpython3.13.so.1.0")
IMAGE = "/tmp/pyjd-4711-1.so"


def frames(*names):
    """Root first: a Python function by its name, other frames as (symbol, file)."""
    result = []
    for name in names:
        if isinstance(name, str):
            result += [EVAL, (PYTHON % name, IMAGE)]
        else:
            result.append(name)
    return result


def block(number, stack, comm="python3", pid=4711, tid=4711, period=2000000, event="cpu-clock"):
    time = 1000 * 10**9 + number * 2000000
    lines = ["%-16s %d/%d %d.%09d: %10d %s: " % (comm, pid, tid, time // 10**9, time % 10**9, period, event)]
    lines += ["\t%16x %s (%s)" % (0xFFFFFFFF81000000 + at if file == "[kernel.kallsyms]" else 0x1000 + at, symbol, file)
              for at, (symbol, file) in enumerate(reversed(stack))]
    return "\n".join(lines) + "\n\n"


ZLIB, KERNEL = ("deflate", "/usr/lib/libz.so.1"), ("do_syscall_64", "[kernel.kallsyms]")
START = ("_start", "/usr/bin/python3.13")


def known_shares():
    """1000 samples of 2 ms: 60 % in sixty (a sixth of it in zlib), 30 % in thirty, 10 % in ten, which another
    thread runs; of its samples some are in the kernel, and some in functions with odd names."""
    text = []
    for number in range(1000):
        if number % 10 < 6:
            leaf = (EVAL, ZLIB) if number % 10 == 0 else (EVAL,)
            text.append(block(number, [START] + frames("<module>", "sixty") + list(leaf)))
        elif number % 10 < 9:
            text.append(block(number, [START] + frames("<module>", "thirty") + [EVAL]))
        else:
            stack = frames("ten", "A.<locals>.g;h") + ([EVAL, KERNEL] if number % 20 == 9 else [EVAL])
            text.append(block(number, stack, comm="worker 1", tid=4712))
    return "".join(text)


MANIFEST = {"format": 1, "version": "0.1.0", "created": "2026-11-21T10:00:00+0000", "command": ["python3", "app.py"],
            "event": "cpu-clock", "frequency": 500, "seconds": 3.0, "status": 0, "interpreters": []}


class Made:
    """A recording whose `perf script` prints `text`, `times` times; `env` makes pyjitdump use it."""

    def __init__(self, directory, text, manifest=MANIFEST, times=1):
        self.path = directory / "made.data"
        (self.path / "jit").mkdir(parents=True)
        (self.path / "perf.data").write_bytes(b"PERFILE2")
        (self.path / "manifest.json").write_text(json.dumps(manifest))
        image = inspect_samples.Image(names=(b"py::sixty:/srv/app.py", b"py::thirty:/srv/app.py"))
        (self.path / "jit" / "pyjd-4711-1.so").write_bytes(image.data)
        (directory / "script.txt").write_text(text)
        perf = directory / "perf"
        perf.write_text("""#!/bin/sh
            case "$*" in
            --version) echo perf version 6.1.0 ;;
            script*--show-switch-events*) cat '%(text)s' ;;
            script*) for again in $(seq %(times)d); do grep -v PERF_RECORD_SWITCH '%(text)s'; done ;;
            esac""" % {"text": directory / "script.txt", "times": times})
        perf.chmod(0o755)
        self.env = environment(PERF=str(perf))

    def export(self, name, output, *words, status=0):
        return tool("export", "--format", name, self.path, "-o", output, *words, env=self.env, status=status)
