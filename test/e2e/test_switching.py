"""Switching on and off: PYJD_ENABLE, pyjd_enable() and pyjd_disable() from inside the program,
CPython's own perf support, and subinterpreters."""
import os
import re

import pytest

from conftest import since

# The public interface, for Python programs that are preloaded. PyDLL keeps the GIL, as the header
# asks.
API = """
import ctypes, os
lib = ctypes.PyDLL(os.environ["LD_PRELOAD"])
lib.pyjd_version.restype = lib.pyjd_strerror.restype = ctypes.c_char_p
class Status(ctypes.Structure):
    _fields_ = [("enabled", ctypes.c_int32), ("python_minor", ctypes.c_int32)] + [
        (name, ctypes.c_uint64)
        for name in ("functions", "overflowed", "foreign", "arena_bytes")] + [
        ("outputs_wanted", ctypes.c_uint32), ("outputs_failed", ctypes.c_uint32),
        ("jitdump_path", ctypes.c_char * 256), ("map_path", ctypes.c_char * 256)]
def status():
    s = Status()
    assert lib.pyjd_get_status(ctypes.byref(s), ctypes.c_size_t(ctypes.sizeof(s))) == 0
    return s
"""
ENABLED, DISABLED = "assert lib.pyjd_is_enabled() == 1\n", "assert lib.pyjd_is_enabled() == 0\n"


def own(names):
    return {name[4:].partition(":")[0] for name in names
            if name.endswith("/program.py") or name.endswith(":<string>")}


def test_off_until_enabled(runner, python):
    result = runner.quiet(python, "def f(): pass\nf()\n", env={"PYJD_ENABLE": "0"})
    assert not runner.wrote(runner.map_path(result.pid))
    assert os.listdir(runner.directory) == ["program.py"]


def test_enabled_later(runner, python):
    result = runner.quiet(python, API + DISABLED + """
def early(): pass
def late(): pass
early()
assert lib.pyjd_enable() == 0
""" + ENABLED + "late()\n", env={"PYJD_ENABLE": "0"})
    names = own(runner.names(result.pid))
    assert "late" in names and "early" not in names


def test_disabled_and_enabled_again(runner, python):
    """What is first called while it is off is not there, and is there once it is called while
    on."""
    result = runner.quiet(python, API + ENABLED + """
def one(): pass
def two(): pass
def three(): pass
one()
assert lib.pyjd_disable() == 0
""" + DISABLED + """
two(); three()
assert lib.pyjd_disable() == 0
assert lib.pyjd_enable() == 0 == lib.pyjd_enable()
""" + ENABLED + "three()\n")
    names = own(runner.names(result.pid))
    assert {"one", "three"} <= names and "two" not in names


def test_disabled_at_the_end_too(runner, python):
    result = runner.quiet(python, API + "assert lib.pyjd_disable() == 0\ndef f(): pass\nf()\n")
    assert "f" not in own(runner.names(result.pid))


def test_toggled_a_thousand_times(runner, python):
    """CPython's own support fails after 254 times, or 8."""
    result = runner.quiet(python, API + """
for i in range(1000):
    assert lib.pyjd_disable() == 0 == lib.pyjd_enable()
    exec("def f%d(): pass\\nf%d()" % (i, i), {})
""")
    names = own(runner.names(result.pid))
    assert {"f%d" % i for i in range(1000)} <= names


def test_toggled_under_threads(runner, python):
    result = runner.quiet(python, API + """
import threading, time
stop = False
def add(n): return n + 1
def generate(n):
    for i in range(n): yield add(i)
def work(number):
    i = 0
    while not stop:
        assert sum(generate(20)) == 210
        i += 1
        exec("def f_%d_%d(): pass\\nf_%d_%d()" % (number, i % 50, number, i % 50), {})
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for thread in threads: thread.start()
end = time.monotonic() + 0.7
while time.monotonic() < end:
    assert lib.pyjd_disable() == 0
    time.sleep(0.0001)
    assert lib.pyjd_enable() == 0
    time.sleep(0.0001)
stop = True
for thread in threads: thread.join()
def last(): pass
last()
""")
    assert {"add", "generate", "work", "last"} <= own(runner.names(result.pid))


def test_status(runner, python):
    result = runner.quiet(python, API + """
def f(): pass
before = status()
f()
after = status()
assert after.functions == before.functions + 1, (before.functions, after.functions)
assert (after.enabled, after.overflowed, after.foreign, after.outputs_failed) == (1, 0, 0, 0)
assert after.arena_bytes >= 128 * after.functions
for value in (after.jitdump_path, after.map_path, lib.pyjd_version()):
    print(value.decode())
print(after.python_minor)
""")
    dump, map, version, minor = result.out.decode().split()
    assert int(minor) == python.version[1]
    assert (dump, map) == (str(runner.dump_path(result.pid)), str(runner.map_path(result.pid)))
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_errors_of_the_interface(runner, python):
    runner.quiet(python, API + """
import errno
assert lib.pyjd_get_status(None, ctypes.c_size_t(8)) == -errno.EINVAL
assert lib.pyjd_get_status(ctypes.byref(Status()), ctypes.c_size_t(0)) == -errno.EINVAL
assert lib.pyjd_add_code(None, ctypes.c_size_t(8)) == -errno.EINVAL
# CDLL gives the GIL up during the call: these must notice.
unlocked = ctypes.CDLL(os.environ["LD_PRELOAD"])
assert unlocked.pyjd_enable() == -errno.EPERM == unlocked.pyjd_disable()
assert lib.pyjd_is_enabled() == 1
for error in (0, -errno.ESRCH, -errno.EPERM, -errno.EIO, -12345, 7):
    assert lib.pyjd_strerror(error)
""")


def test_max_functions(runner, python):
    """What lies beyond the bound shares one slot, is counted, and is told once."""
    result = runner.python(python, API + """
for i in range(300):
    exec("def f%d(): return %d\\nassert f%d() == %d" % (i, i, i, i), {})
s = status()
print(s.functions, s.overflowed)
""", env={"PYJD_MAX_FUNCTIONS": "20"})
    assert result.status == 0
    assert re.fullmatch(rb"pyjitdump: [^\n]*PYJD_MAX_FUNCTIONS[^\n]*\n", result.err), result.err
    functions, overflowed = map(int, result.out.split())
    assert 20 <= functions <= 21 and overflowed >= 280
    names = runner.names(result.pid)
    assert 20 <= len(names) <= 21 and not any("py::f299:" in name for name in names)


PERF_PROGRAM = """
import sys
def f(): return 42
print(sys.is_stack_trampoline_active(), f())
"""


def stands_aside(runner, python, how):
    flags, env = (how.split(), {}) if how.startswith("-X") else ([], {how: "1"})
    bare = runner.python(python, PERF_PROGRAM, flags=flags, env=env, preload=False)
    if bare.out != b"True 42\n":
        pytest.skip("%s is built without perf support: %r" % (python.path, bare))
    result = runner.python(python, PERF_PROGRAM, flags=flags, env=env)
    assert (result.status, result.out) == (0, bare.out)
    assert re.fullmatch(rb"pyjitdump: [^\n]*perf[^\n]*\n", result.err), result.err
    assert os.listdir(runner.directory) == ["program.py"]
    return result


@since(3, 12)
@pytest.mark.parametrize("how", ["-X perf", "PYTHONPERFSUPPORT"])
def test_stands_aside_for_cpythons_map(runner, python, how):
    """Another evaluator there at start-up is fatal to -X perf: one line, and nothing done."""
    result = stands_aside(runner, python, how)
    # The map is CPython's, as without us.
    assert runner.map_path(result.pid).read_text().count("py::f:") == 1


@since(3, 13)
@pytest.mark.parametrize("how", ["-X perf_jit", "PYTHON_PERF_JIT_SUPPORT"])
def test_stands_aside_for_cpythons_jitdump(runner, python, how):
    result = stands_aside(runner, python, how)
    assert not runner.wrote(runner.map_path(result.pid))


SUBINTERPRETERS = """
import sys, threading
try:
    import _interpreters as sub
except ImportError:
    import _xxsubinterpreters as sub
run = getattr(sub, "exec", None) or sub.run_string
"""


def test_subinterpreters(runner, python):
    """Each is armed by itself: CPython's own support never sees any but the first."""
    result = runner.quiet(python, SUBINTERPRETERS + """
def in_main(): pass
in_main()
ids = [sub.create() for _ in range(3)]
for number, id in enumerate(ids):
    error = run(id, "def in_sub_%d(): pass\\nin_sub_%d()" % (number, number))
    assert not error, error
for id in ids: sub.destroy(id)
def in_main_again(): pass
in_main_again()
""")
    names = {name[4:].partition(":")[0] for name in runner.names(result.pid)}
    assert {"in_main", "in_main_again", "in_sub_0", "in_sub_1", "in_sub_2"} <= names


@since(3, 12)
def test_subinterpreters_at_once(runner, python):
    """From 3.12 on they run in parallel, each with a GIL of its own: publication needs its own
    lock."""
    result = runner.quiet(python, SUBINTERPRETERS + """
CODE = '''
for i in range(400):
    exec("def f_{0}_%d(): pass\\\\nf_{0}_%d()" % (i, i), dict())
'''
def work(number):
    id = sub.create()
    error = run(id, CODE.format(number))
    assert not error, error
    sub.destroy(id)
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""")
    names = own(runner.names(result.pid))
    assert {"f_%d_%d" % (n, i) for n in range(4) for i in range(400)} <= names
