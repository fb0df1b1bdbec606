"""A program under the library does what it does without it: output, exit status, limits, memory
debugging; and when it dies without warning, its files are whole."""
import mmap
import os
import re
import signal
import time

import pytest

from conftest import since


def both(runner, python, code, *args, **options):
    """The program without and with the library: (status, out, err) of each."""
    return [runner.python(python, code, *args, preload=preload, **options)[:3]
            for preload in (False, True)]


PROGRAMS = {
    "nothing": "",
    "output":
        "import sys\nprint('to stdout')\nprint('to stderr', file=sys.stderr)\n"
        "sys.stdout.write('no end')",
    "exit_status": "import sys\nsys.exit(7)",
    "exit_text": "import sys\nsys.exit('a reason')",
    "exception": "def f(): raise ValueError('text')\ndef g(): f()\ng()",
    "chained": "def f():\n try: 1/0\n except ZeroDivisionError as e: raise KeyError(1) from e\nf()",
    "in_generator": "def f():\n yield 1\n raise OSError(2, 'x')\nlist(f())",
    "in_thread":
        "import threading\ndef f(): 1/0\n"
        "t = threading.Thread(target=f, name='T'); t.start(); t.join()",
    "at_exit":
        "import atexit\natexit.register(lambda: print('at exit'))\nclass C:\n"
        " def __del__(self): print('deleted')\nc = C()",
    "abort": "import os\nos.abort()",
    "terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "import os, signal\ndef f(): os.kill(os.getpid(), signal.SIGINT)\nf()",
    "infinite_recursion": "def f(): f()\ntry: f()\nexcept RecursionError as e: print(e)",
    "recursion_traceback": "def f(n): f(n + 1)\nf(0)",
    "frames":
        "import sys, inspect\ndef f(): return [i.function for i in inspect.stack()]\nprint(f())",
    # Not a function of one line: 3.12 reports that line once more after an inlined call, which
    # -X perf prevents too.
    "trace":
        "import sys\ndef t(frame, event, arg):\n"
        " print(event, frame.f_code.co_name, frame.f_lineno)\n return t\ndef f(n):\n if n:\n"
        "  x = f(n - 1)\n  return x\n return 0\nsys.settrace(t)\nf(3)\nsys.settrace(None)",
    "profile":
        "import sys\nlog = []\n"
        "def p(frame, event, arg): log.append((event, frame.f_code.co_name))\n"
        "def f(): return sorted([2, 1], key=lambda x: -x)\nsys.setprofile(p)\nf()\n"
        "sys.setprofile(None)\nprint(log)",
    "descriptors": "import os\nprint(os.open('/dev/null', 0), os.pipe())",
    "threads": "print([l for l in open('/proc/self/status') if l.startswith('Threads')])",
    "signals":
        "import signal\nprint([signal.getsignal(s) for s in range(1, 32) if s not in (9, 19)])\n"
        "print([l for l in open('/proc/self/status') if l[:3] == 'Sig'])",
    "locale": "import locale, sys\nprint(locale.setlocale(locale.LC_ALL), sys.stdout.encoding)",
    "inherited_descriptors":
        "import subprocess\nsubprocess.run(['ls', '/proc/self/fd'], close_fds=False)",
    "asyncio":
        "import asyncio\nasync def f():\n await asyncio.sleep(0)\n return 3\n"
        "print(asyncio.run(f()))",
    "code_extras": "def f(): pass\nf()\nimport gc\ndel f\nprint(gc.collect() >= 0)",
    "finalisation":
        "import sys\nclass C:\n def __del__(self, f=lambda: print('late')): f()\nsys.last = C()",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_same_outcome(runner, python, program):
    bare, preloaded = both(runner, python, PROGRAMS[program])
    assert preloaded == bare


@pytest.mark.parametrize("flags,env", [
    (("-X", "dev"), {}), ((), {"PYTHONMALLOC": "debug"}), ((), {"PYTHONMALLOC": "malloc"}),
    (("-I",), {}), (("-S", "-E"), {}), (("-O",), {}), (("-X", "importtime"), {}),
    (("-X", "tracemalloc"), {})],
    ids=lambda value: "_".join(value) or "none")
def test_interpreter_options(runner, python, flags, env):
    """The debug allocators abort at exit over a block that another allocator gave: the audit
    hook's."""
    code = "import json, threading\ndef f(): return json.dumps([1])\n" \
           "t = threading.Thread(target=f)\nt.start(); t.join(); print(f())"
    bare, preloaded = both(runner, python, code, flags=flags, env=env)
    if "importtime" in flags:       # figures on stderr
        bare, preloaded = bare[:2], preloaded[:2]
    assert preloaded == bare and bare[:2] == (0, b"[1]\n")


@pytest.mark.parametrize("command", [
    ["true"], ["false"], ["sh", "-c", "echo out; echo err >&2; exit 3"],
    ["cat", "/proc/self/cmdline"], ["grep", "Threads", "/proc/self/status"],
    ["ls", "/proc/self/fd"]], ids=lambda command: command[0])
def test_other_programs_are_untouched(runner, command):
    bare, preloaded = (runner.run(command, preload=preload) for preload in (False, True))
    assert preloaded[:3] == bare[:3]
    assert not runner.wrote(runner.map_path(preloaded.pid)) and os.listdir(runner.directory) == []


PUBLISHES = """
import os, sys, time
for i in range(200):
    exec("def f%d(): pass\\nf%d()" % (i, i), {})
def last(): sys.stdout.write("all published\\n"); sys.stdout.flush()
last()
"""


@pytest.mark.parametrize("end,status", [
    ("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ("os.abort()", -signal.SIGABRT), ("import ctypes; ctypes.string_at(8)", -signal.SIGSEGV),
    ("os.execv('/bin/true', ['true'])", 0)],
    ids=["_exit", "SIGKILL", "abort", "SIGSEGV", "exec"])
def test_files_are_whole_after_sudden_death(runner, python, end, status):
    result = runner.python(python, PUBLISHES + end + "\n")
    assert (result.status, result.out) == (status, b"all published\n")
    names = {name[4:].partition(":")[0] for name in runner.names(result.pid)}
    assert {"f%d" % i for i in range(200)} | {"last"} <= names


def test_killed_from_outside_at_any_time(runner, any_python):
    """Linux looks for SIGKILL between the pages of a write, so the function being published may be
    cut off at the end of a page, before it ever ran. All that were published are there."""
    script = runner.directory / "program.py"
    script.write_text("i = 0\nprint(flush=True)\nwhile True:\n    i += 1\n"
                      "    exec('def f%d(): pass\\nf%d()' % (i, i), {})\n")
    for number in range(12):
        process = runner.start([any_python.path, script])
        process.stdout.readline()
        time.sleep(0.01 * number)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        size = runner.dump_path(process.pid).stat().st_size
        functions = runner.dump(process.pid, torn=size % mmap.PAGESIZE == 0).functions
        # The map is written after the dump: it may lack the last function.
        lines = runner.map_path(process.pid).read_bytes().split(b"\n")[:-1]
        names = [line.split(b" ", 2)[2].decode() for line in lines]
        assert names in ([f.name for f in functions], [f.name for f in functions[:-1]])
        assert any(name.startswith("py::f1:") for name in names) or number < 3


DEPTH = """
import sys, threading
depth = 0
def plain(n=0):
    global depth
    depth = n
    plain(n + 1)
def through_c(n=0):
    global depth
    depth = n
    list(map(through_c, [n + 1]))
def plain_then_c(n=0):
    plain_then_c(n + 1) if n < 240 else through_c(n)
def by_key(n=0):
    global depth
    depth = n
    sorted([n + 1], key=by_key)
class Item:
    def __init__(self, n=0): Item(depth_to(n + 1))
    def __getattr__(self, name): return getattr(self, name + "x")
def depth_to(n):
    global depth
    depth = n
    return n
def method():
    object.__new__(Item).x
def generator(n=0):
    global depth
    depth = n
    yield from generator(n + 1)
def run(function):
    try: function()
    except RecursionError: print("RecursionError at", depth)
function = {"generator": lambda: list(generator())}.get(sys.argv[1]) or globals()[sys.argv[1]]
if sys.argv[2] == "thread":
    t = threading.Thread(target=run, args=(function,)); t.start(); t.join()
else:
    run(function)
"""


@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize("how", [
    "plain", "through_c", "plain_then_c", "by_key", "Item", "method", "generator"])
def test_depth_under_the_default_limit(runner, python, how, where):
    """CPython 3.12 counts each entry into the evaluator, two units of 1500, as C recursion, and with a
    foreign evaluator each Python call is one. The library gives back what its calls took, by an
    estimate from above: where C recursion is what ends it, it may go deeper than without, never less."""
    bare, preloaded = both(runner, python, DEPTH, how, where)
    assert bare[0] == 0 and bare[1].startswith(b"RecursionError")
    # 3.14 takes two frames for each specialised call of a class, and with an evaluator it has none such.
    if how == "Item" or python.version[1] == 12 and how in ("through_c", "plain_then_c", "by_key"):
        assert preloaded[0] == 0 and preloaded[2] == bare[2]
        reached, without = (int(out.split()[-1]) for out in (preloaded[1], bare[1]))
        assert without <= reached <= 2 * without
    else:
        assert preloaded == bare


DEEP = """
import sys, threading
sys.setrecursionlimit(10**6)
def f(n): return n and 1 + f(n - 1)
def run():
    try: print(f(int(sys.argv[1])))
    except RecursionError as error: print("RecursionError", error)
if sys.argv[2] == "thread":
    threading.stack_size(512 << 20)
    t = threading.Thread(target=run); t.start(); t.join()
else:
    run()
"""


@pytest.mark.parametrize("depth", [5000, 20000, 100000])
def test_deep_recursion_in_a_thread(runner, python, depth):
    """With a stack large enough for any way of calling."""
    bare, preloaded = both(runner, python, DEEP, str(depth), "thread")
    assert bare[:2] == (0, b"%d\n" % depth) and preloaded == bare


def test_recursion_in_the_main_thread(runner, python):
    """As deep as 8 MB of C stack let every version go."""
    bare, preloaded = both(runner, python, DEEP, "5000", "main")
    assert bare[:2] == (0, b"5000\n") and preloaded == bare


@since(3, 11)
@pytest.mark.parametrize("depth", [20000, 100000])
def test_deep_recursion_in_the_main_thread(runner, python, depth):
    """From 3.11 on Python calls take no C stack, and with an evaluator about 600 bytes each: 20,000
    of them would be 12 MB of the main thread's 8."""
    bare, preloaded = both(runner, python, DEEP, str(depth), "main")
    assert bare[:2] == (0, b"%d\n" % depth) and preloaded == bare


def test_names_are_there_after_deep_recursion(runner, python):
    """Where the evaluator was put aside for the deep end, it is back afterwards."""
    result = runner.quiet(python, DEEP + "def after(): pass\nafter()\n", "5000", "thread")
    assert "after" in [re.sub("^py::|:.*", "", name) for name in runner.names(result.pid)]


def test_no_interpreter_no_file(runner, any_python, tmp_path):
    """An executable with CPython in it that starts no interpreter."""
    result = runner.run([any_python.path, "--version"])
    assert result.status == 0 and result.out.startswith(b"Python 3.") and result.err == b""
    assert os.listdir(tmp_path) == []
