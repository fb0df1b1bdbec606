"""Uprobes on Python functions: tracefs, perf probe and bpftrace count the calls in a live process exactly,
while functions are added, and leave no trace. As docs/uprobes.md tells users to do it."""
import functools
import glob
import os
import re
import signal
import subprocess

import pytest

from image_tools import TARGET, address, output, start_target, tool, wait_for  # noqa: F401
from interpreters import scrubbed_environment

TRACEFS = next((path for path in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
                if os.path.exists(path + "/uprobe_events")), None)


@pytest.fixture
def tracefs():
    if os.geteuid() != 0:
        pytest.skip("uprobes need root")
    if not TRACEFS:
        pytest.skip("tracefs with uprobe_events is not mounted")
    return Tracefs("pyjd_test_%d" % os.getpid())


class Tracefs:
    """Uprobe events in a group of their own."""

    def __init__(self, group):
        self.group = group

    def write(self, file, text):
        # O_APPEND: opened otherwise, uprobe_events first drops all events of everybody.
        fd = os.open(os.path.join(TRACEFS, file), os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def add(self, kind, name, image, offset):
        self.write("uprobe_events", "%s:%s/%s %s:%#x\n" % (kind, self.group, name, image, offset))
        self.write("events/%s/%s/enable" % (self.group, name), "1")

    def hits(self, name):
        with open(os.path.join(TRACEFS, "uprobe_profile")) as profile:
            return next(int(line.split()[-1]) for line in profile if line.split()[-2].endswith(name))

    def remove(self, name):
        self.write("events/%s/%s/enable" % (self.group, name), "0")
        self.write("uprobe_events", "-:%s/%s\n" % (self.group, name))

    def clean(self):
        for path in glob.glob("%s/events/%s/*/enable" % (TRACEFS, self.group)):
            self.remove(path.split("/")[-2])


def first_byte(target, qualname):
    with open("/proc/%d/mem" % target.pid, "rb", buffering=0) as memory:
        memory.seek(address(target, qualname))
        return memory.read(1)


PROBE, ENDBR64 = b"\xcc", b"\xf3"


def exercise(target):
    """Calls hit() 1234 times; with others, with new functions, in threads."""
    assert target.do("hit", 1000) == 1000
    assert target.do("price", 50) == 50
    assert target.do("grow", 2000) % 2000 == 0
    assert target.do("hit", 34) == 34
    assert target.do("threads", 50, 4) == 200


def test_tracefs(start_target, python, tracefs):
    target = start_target(python)
    image, symbol = target.find("hit")
    name = "hit_%d" % target.pid
    try:
        tracefs.add("p", name, image, symbol.offset)
        assert first_byte(target, "hit") == PROBE
        exercise(target)
        assert tracefs.hits(name) == 1234
    finally:
        tracefs.clean()
    assert first_byte(target, "hit") == ENDBR64
    target.do("hit", 10)
    target.finish()


def test_tracefs_returns(start_target, any_python, tracefs):
    """A return probe takes the place of the return address on the stack; the calls do not mind."""
    target = start_target(any_python)
    image, symbol = target.find("Shop.price")
    name = "price_%d" % target.pid
    try:
        tracefs.add("r", name, image, symbol.offset)
        exercise(target)
        assert tracefs.hits(name) == 50
    finally:
        tracefs.clean()
    target.finish()


def test_come_and_go(start_target, any_python, tracefs):
    """Probes are placed and taken away again while the function is running all the time."""
    target = start_target(any_python)
    image, symbol = target.find("hit")
    target.begin("hit", 3000000)
    try:
        for turn in range(20):
            name = "turn_%d_%d" % (target.pid, turn)
            tracefs.add("p", name, image, symbol.offset)
            tracefs.remove(name)
    finally:
        tracefs.clean()
    assert target.answer() == 3000000
    assert first_byte(target, "hit") == ENDBR64
    target.finish()


def test_functions_added_beside_a_probe(start_target, any_python, tracefs):
    """A uprobe works on a copy of its page: functions that come later in the same page must be in it."""
    target = start_target(any_python)
    assert target.do("grow", 3) == 3
    image, symbol = target.find("grown_2", "/srv/generated/module_0.py")
    name = "grown_%d" % target.pid
    try:
        tracefs.add("p", name, image, symbol.offset)
        assert target.do("grow", 500) == 503        # each is called
        assert target.find("grown_3", "/srv/generated/module_0.py")[1].offset >> 12 == symbol.offset >> 12 \
            or symbol.offset & 0xfff == 0xf80
        assert tracefs.hits(name) == 0
    finally:
        tracefs.clean()
    target.finish()


# -------------------------------------------------------------------------------------------- perf

@pytest.mark.parametrize("form", ["symbol", "address"])
def test_perf_probe(start_target, any_python, tracefs, form):
    tool("perf", "linux-perf")
    target = start_target(any_python)
    image, symbol = target.find("hit")
    where = symbol.name.replace(":", "\\:") if form == "symbol" else hex(symbol.offset)
    event = "%s:hit_%s" % (tracefs.group, form)
    output("perf", "probe", "-q", "-x", image, "--add", "%s=%s" % (event, where))
    try:
        # It counts until cat ends, and cat answers when counting has begun.
        stat = subprocess.Popen(["perf", "stat", "-x", ",", "-e", event, "-p", str(target.pid), "--", "cat"],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=scrubbed_environment())
        stat.stdin.write(b"go\n")
        stat.stdin.flush()
        assert stat.stdout.readline() == b"go\n", stat.communicate()
        exercise(target)
        _, err = stat.communicate(timeout=60)
    finally:
        output("perf", "probe", "-q", "--del", event)
    assert re.search(rb"^1234,,%s," % event.encode(), err, re.M), err
    assert first_byte(target, "hit") == ENDBR64
    target.finish()


def test_perf_record_of_calls(start_target, any_python, tracefs, perf):
    """Who calls a function: perf record on its probe, with stacks."""
    target = start_target(any_python)
    image, symbol = target.find("hit")
    event = "%s:hit_record" % tracefs.group
    output("perf", "probe", "-q", "-x", image, "--add", "%s=%#x" % (event, symbol.offset))
    try:
        data = perf.file("perf.data")
        record = subprocess.Popen(
            ["perf", "record", "-q", "-e", event, "--call-graph", "dwarf,65528", "-m", "8M", "-o", data, "-p",
             str(target.pid), "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        record.stdin.write(b"go\n")
        record.stdin.flush()
        assert record.stdout.readline() == b"go\n"
        target.do("hit", 20)
        out, _ = record.communicate(timeout=60)
        assert record.returncode == 0, out
        samples = perf.samples(data)
    finally:
        output("perf", "probe", "-q", "--del", event)
    assert len(samples) == 20
    for sample in samples:
        names = [frame.symbol[4:].partition(":")[0] for frame in sample.frames if frame.symbol.startswith("py::")]
        assert names == ["hit", "hits", "main", "<module>"], sample
    target.finish()


# ----------------------------------------------------------------------------------------- bpftrace

@functools.lru_cache(maxsize=None)
def bpftrace_refused():
    """What it says where it cannot work at all, or None."""
    done = subprocess.run(["bpftrace", "-e", "BEGIN { exit() }"], stdin=subprocess.DEVNULL, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=scrubbed_environment())
    return done.stdout.decode().strip() if done.returncode else None


class Bpftrace:
    def __init__(self, program, directory):
        tool("bpftrace", "bpftrace")
        if bpftrace_refused():
            pytest.skip("bpftrace cannot work here: " + bpftrace_refused())
        self.log = directory / "bpftrace.log"
        with open(self.log, "wb") as log:       # -o would hold back what it prints
            self.process = subprocess.Popen(["bpftrace", "-B", "line", "-e", program],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                            env=scrubbed_environment())

    def text(self):
        assert self.process.poll() is None, self.log.read_text()
        return self.log.read_text()

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)
        return self.log.read_text()


def test_bpftrace(start_target, any_python, tracefs, tmp_path):
    """The symbol in double quotes. Ten times a second the count is printed, so we know where it stands."""
    target = start_target(any_python)
    image, symbol = target.find("hit")
    trace = Bpftrace('uprobe:%s:"%s" { @calls++; } interval:ms:100 { printf("now %%d\\n", @calls); }' %
                     (image, symbol.name), tmp_path)

    def counts():
        return list(map(int, re.findall(r"^now (\d+)$", trace.text(), re.M)))

    try:
        wait_for(lambda: target.do("hit", 1) and counts()[-1:] > [0])
        so_far = len(counts())
        before = wait_for(lambda: counts()[so_far + 1:])[0]
        exercise(target)
    finally:
        text = trace.end()
    assert int(re.search(r"^@calls: (\d+)$", text, re.M)[1]) - before == 1234, text
    assert first_byte(target, "hit") == ENDBR64
    target.finish()


def test_bpftrace_wildcard_and_list(start_target, any_python, tracefs, tmp_path):
    """A pattern, as docs/uprobes.md has it: all methods of a class."""
    target = start_target(any_python)
    image, _ = target.find("hit")
    trace = Bpftrace('uprobe:%s:"py::Shop.*" { @[probe]++; printf("seen\\n"); }' % image, tmp_path)
    try:
        wait_for(lambda: target.do("price", 1) and "seen" in trace.text())
    finally:
        text = trace.end()
    assert re.search(r"^@\[uprobe:%s:py::Shop\.price:%s\]: \d+$" % (re.escape(image), re.escape(TARGET)), text,
                     re.M), text
    listed = output(tool("bpftrace", "bpftrace"), "-l", 'uprobe:%s:"py::Shop.*"' % image)
    target.finish()
    if "uprobe:" not in listed:
        pytest.skip("this bpftrace lists no probes for such a pattern, though it attaches to them")
    assert sorted(re.findall(r"py::(\S+?):", listed)) == ["Shop.price", "Shop.twice"], listed
