"""examples/count-calls against live processes."""
import glob
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from image_tools import ROOT, TARGET, address, output, start_target, wait_for  # noqa: F401
from interpreters import scrubbed_environment
from test_image_uprobes import TRACEFS

COUNT_CALLS = str(ROOT / "examples" / "count-calls")


def events():
    """The groups of count-calls that are in tracefs and whose process is none of this machine's others."""
    return [path for path in glob.glob(TRACEFS + "/events/pyjd_count_*")
            if not os.path.exists("/proc/" + path.rpartition("_")[2])]


@pytest.fixture
def uprobes():
    if os.geteuid() != 0:
        pytest.skip("uprobes need root")
    if not TRACEFS:
        pytest.skip("tracefs with uprobe_events is not mounted")
    yield
    assert not events(), "events were left behind"


class Counting:
    """count-calls, as it runs."""

    def __init__(self, *args, python=sys.executable):
        self.process = subprocess.Popen([python, COUNT_CALLS, *map(str, args)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=dict(scrubbed_environment(), PYTHONDONTWRITEBYTECODE="1"))

    def begun(self):
        line = self.process.stderr.readline()
        assert line == b"counting ...\n", (line, self.process.communicate())

    def end(self, status=0, send=None):
        if send:
            self.process.send_signal(send)
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == status, (out, err)
        return out.decode(), err.decode()


def probe_is_there(target, qualname):
    with open("/proc/%d/mem" % target.pid, "rb", buffering=0) as memory:
        memory.seek(address(target, qualname))
        return memory.read(1) == b"\xcc"


def calls(text):
    return int(re.search(r": (\d+) calls in ", text)[1])


def test_exact(uprobes, start_target, python):
    """In all threads, those too that start while it counts, while functions are added; and under every
    Python that the example promises to run with."""
    target = start_target(python)
    counting = Counting(target.pid, "hit", "60", python=python.path)
    counting.begun()
    assert probe_is_there(target, "hit") and not probe_is_there(target, "inner")
    target.do("hit", 1000)
    target.do("price", 50)
    target.do("grow", 2000)
    target.do("hit", 34)
    target.do("threads", 50, 4)
    out, err = counting.end(send=signal.SIGINT)
    assert re.fullmatch(r"py::hit:%s: 1234 calls in \d+\.\d s, \d+\.\d a second\n" % re.escape(TARGET), out), out
    assert err == ""
    assert not probe_is_there(target, "hit")
    target.finish()


def test_seconds_and_interval(uprobes, start_target, any_python):
    target = start_target(any_python)
    counting = Counting(target.pid, "hit", "0.7", "--interval", "0.2")
    counting.begun()
    target.do("hit", 5)
    begin = time.monotonic()
    out, _ = counting.end()
    assert time.monotonic() - begin < 20
    lines = re.findall(r"^ +\d+\.\d s  (\d+)$", out, re.M)
    assert 2 <= len(lines) <= 3 and sum(map(int, lines)) == 5 == calls(out), out
    target.finish()


def test_forked_children_do_not_count(uprobes, start_target, any_python):
    """They are other processes, with probes of their own if somebody asks."""
    target = start_target(any_python)
    counting = Counting(target.pid, "hit", "60")
    counting.begun()
    target.do("hit", 7)
    target.do("fork", 100, 2)
    out, _ = counting.end(send=signal.SIGTERM)
    assert calls(out) == 7
    target.finish()


FORKED = """
import os, sys, time
def hit(): pass
def late(): pass
hit()
read, write = os.pipe()
if os.fork() == 0:
    late()
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    for _ in range(20): hit()
    for _ in range(30): late()
    print("done", flush=True)
    sys.stdin.readline()
    os._exit(0)
sys.exit(os.wait()[1])
"""


def test_a_forked_child(uprobes, runner, any_python):
    """What it inherited is in its parent's image, what it called first itself in its own."""
    script = runner.directory / "forked.py"
    script.write_text(FORKED)
    process = runner.start([any_python.path, script], stdin=subprocess.PIPE)
    pid = int(process.stdout.readline())
    runner.pids.add(pid)
    counters = [Counting(pid, name, "60") for name in ("hit", "late")]
    for counter in counters:
        counter.begun()
    process.stdin.write(b"go\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"done\n"
    assert [calls(counter.end(send=signal.SIGINT)[0]) for counter in counters] == [20, 30]
    assert process.communicate(b"\n", timeout=60)[1] == b"" and process.returncode == 0


def test_killed_it_leaves_nothing(uprobes, start_target, any_python):
    target = start_target(any_python)
    counting = Counting(target.pid, "hit", "60")
    counting.begun()
    assert probe_is_there(target, "hit")
    counting.end(-signal.SIGKILL, send=signal.SIGKILL)
    wait_for(lambda: not probe_is_there(target, "hit"))
    assert events()                         # the description, which does nothing; the next one tidies up
    Counting(target.pid, "hit", "0.1").end()
    target.finish()


def test_process_ends_meanwhile(uprobes, start_target, any_python):
    for before, status in ((3, 0), (0, 1)):
        target = start_target(any_python)
        counting = Counting(target.pid, "hit", "60")
        counting.begun()
        target.do("hit", before)
        target.begin("quit")
        out, err = counting.end(status)
        assert calls(out) == before and "process %d has ended" % target.pid in err


def refused(*args, python=sys.executable, **options):
    done = subprocess.run([python, COUNT_CALLS, *map(str, args)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
                          env=scrubbed_environment(), **options)
    assert done.returncode == 2 and done.stdout == b"", done
    text = done.stderr.decode()
    assert "Traceback" not in text
    return text


def test_names(start_target, any_python):
    """What cannot be meant is said, with what can."""
    target = start_target(any_python)
    text = refused(target.pid, "price")     # there is no function of that name, but two methods
    assert "no function called price" in text
    assert "  py::Shop.price:%s\n  py::Stall.price:%s\n" % (TARGET, TARGET) in text
    text = refused(target.pid, "<module>")  # there are many
    assert "ambiguous" in text and "  py::<module>:%s\n" % TARGET in text
    assert "  py::hit:%s" % TARGET in refused(target.pid, "hitt")
    assert refused(target.pid, "no such thing").count("\n") == 1
    for option in ([], ["Shop.price", "--list", "x"], ["hit", "0"], ["hit", "-1"], ["hit", "x"]):
        assert refused(target.pid, *option).startswith("usage: ")
    listed = output(sys.executable, COUNT_CALLS, target.pid, "--list", TARGET).splitlines()
    assert listed == sorted(listed) and "py::Shop.twice:" + TARGET in listed
    target.finish()


def test_whole_symbols(uprobes, start_target, any_python):
    target = start_target(any_python)
    for name in ("py::Shop.price:" + TARGET, "Shop.price:" + TARGET, "Shop.price"):
        counting = Counting(target.pid, name, "60")
        counting.begun()
        target.do("price", 9)
        assert calls(counting.end(send=signal.SIGINT)[0]) == 9
    target.finish()


SAME_NAME = """
import sys
functions = [lambda: 1, lambda: 2] + [
    lambda: 3]
[function() for function in functions]
print("ready", flush=True)
sys.stdin.readline()
[function() for function in functions for _ in range(10)]
print("done", flush=True)
sys.stdin.readline()
"""


def test_functions_of_one_name(uprobes, runner, any_python):
    script = runner.directory / "same.py"
    script.write_text(SAME_NAME)
    process = runner.start([any_python.path, script], stdin=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    counting = Counting(process.pid, "<lambda>:%s" % script, "60")
    counting.begun()
    process.stdin.write(b"go\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"done\n"
    out, _ = counting.end(send=signal.SIGINT)
    assert calls(out) == 30 and "(2 functions)" in out      # two of them are on one line
    process.communicate(b"\n", timeout=60)


def test_processes_that_are_none(runner, start_target, any_python, tmp_path):
    assert "there is no process 99999999" in refused(99999999, "hit")
    plain = runner.start([any_python.path, TARGET], preload=False, stdin=subprocess.PIPE)
    assert plain.stdout.readline() == b'"ready"\n'
    assert "LD_PRELOAD" in refused(plain.pid, "hit")
    plain.communicate(b"quit\n", timeout=60)


def test_image_that_was_removed(uprobes, start_target, any_python):
    """The kernel still has it."""
    target = start_target(any_python)
    for path in target.images():
        os.unlink(path)
    counting = Counting(target.pid, "hit", "60")
    counting.begun()
    target.do("hit", 12)
    assert calls(counting.end(send=signal.SIGINT)[0]) == 12
    target.finish()


def test_directory_with_spaces(uprobes, start_target, any_python, tmp_path):
    odd = tmp_path / "a b:c"
    odd.mkdir()
    target = start_target(any_python, PYJD_DIR=odd)
    counting = Counting(target.pid, "hit", "60")
    counting.begun()
    target.do("hit", 12)
    assert calls(counting.end(send=signal.SIGINT)[0]) == 12
    target.finish()


def test_another_user(start_target, any_python):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("no /usr/bin/python3 for another user to run")

    def become_nobody():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    target = start_target(any_python)
    with open(COUNT_CALLS) as script:       # which may be where nobody can go
        text = script.read()
    done = subprocess.run(["/usr/bin/python3", "-c", text, str(target.pid), "hit"], preexec_fn=become_nobody,
                          cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
                          env=scrubbed_environment())
    assert done.returncode == 2 and b"run this as root" in done.stderr, done
    target.finish()


def test_help():
    text = output(sys.executable, COUNT_CALLS, "--help")
    assert "examples:" in text and "exit status:" in text and max(map(len, text.splitlines())) <= 100
