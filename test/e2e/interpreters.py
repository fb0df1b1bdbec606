"""Finds the CPythons of this machine that the suite runs on."""
import collections
import glob
import json
import os
import shutil
import subprocess

OLDEST, NEWEST = 8, 15      # CPython 3.8 to 3.15

# path: the real executable; version: (major, minor, micro); frame_pointers: built with them.
Interpreter = collections.namedtuple("Interpreter", "path version free_threaded frame_pointers")

PROBE = """
import json, os, platform, sys, sysconfig
get = sysconfig.get_config_var
flags = " ".join(str(get(name)) for name in ("CFLAGS", "CONFIGURE_CFLAGS", "PY_CORE_CFLAGS"))
print(json.dumps([
    platform.python_implementation() == "CPython",
    # A version manager's shim and a symbolic link both end here.
    os.path.realpath(sys.executable), sys.version_info[:3], bool(get("Py_GIL_DISABLED")),
    flags.rfind("-fno-omit-frame-pointer") > flags.rfind("-fomit-frame-pointer")]))
"""


def scrubbed_environment():
    """The environment without what would change Python's or the library's behaviour."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYJD_", "LD_PRELOAD", "PYENV_VERSION"))}


def probe(path):
    """The Interpreter behind `path`, or None when it is none that we support."""
    try:
        answer = subprocess.run([path, "-S", "-c", PROBE], stdout=subprocess.PIPE, timeout=60,
                                stderr=subprocess.DEVNULL, env=scrubbed_environment())
        cpython, real, version, free_threaded, frame_pointers = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None     # e.g. the shim of a version that is not switched on
    if not cpython or version[0] != 3 or not OLDEST <= version[1] <= NEWEST:
        return None
    return Interpreter(real, tuple(version), free_threaded, frame_pointers)


def candidates():
    minors = range(OLDEST, NEWEST + 1)
    yield "/usr/bin/python3"
    for minor in minors:
        for suffix in ("", "t"):
            path = shutil.which("python3.%d%s" % (minor, suffix))
            if path:
                yield path
    for minor in minors:
        pattern = os.path.expanduser("~/.pyenv/versions/3.%d.*/bin/python3" % minor)
        yield from sorted(glob.glob(pattern))


def find():
    """All of them, oldest first, each executable once. PYJD_TEST_PYTHONS, a list of paths with ':'
    between them, replaces the search."""
    chosen = os.environ.get("PYJD_TEST_PYTHONS")
    found = {}
    for path in chosen.split(":") if chosen else candidates():
        interpreter = probe(path)
        if interpreter:
            found.setdefault(interpreter.path, interpreter)
        elif chosen:
            raise ValueError("PYJD_TEST_PYTHONS: %s is no CPython 3.8 to 3.15" % path)
    return sorted(found.values(), key=lambda interpreter: (interpreter.version, interpreter.path))


def name(interpreter):
    """A short test id: 3.11.2 for the distribution's, 3.11.7-pyenv, 3.14.0t."""
    text = "%d.%d.%d" % interpreter.version + ("t" if interpreter.free_threaded else "")
    return text + ("-pyenv" if "/.pyenv/" in interpreter.path else "")
