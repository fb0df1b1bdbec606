"""Runs perf, and turns what `perf script` prints into stacks."""
import collections
import os
import re
import shutil
import subprocess
import tempfile

from interpreters import scrubbed_environment

# A stack sample as large as perf takes: the default of 8 KiB holds about 13 Python frames.
DWARF = "dwarf,65528"
EVENT = "cpu-clock"         # virtual machines often have no other
SCRIPT_FIELDS = "comm,tid,time,ip,sym,dso"

Frame = collections.namedtuple("Frame", "ip symbol dso srcline")
# time: nanoseconds of the recording's clock; frames: innermost first, as perf prints them.
Sample = collections.namedtuple("Sample", "comm tid time frames")

SAMPLE_LINE = re.compile(r"(?P<comm>\S.*?)\s+(?P<tid>\d+)\s+(?P<s>\d+)\.(?P<ns>\d{9}):\s*$")
FRAME_LINE = re.compile(r"\s+(?P<ip>[0-9a-f]+) (?P<symbol>.*) \((?P<dso>.*)\)$")


class PerfError(Exception):
    pass


class Perf:
    """perf with a directory for its recordings and its cache of binaries, away from the user's."""

    def __init__(self, directory):
        self.directory = str(directory)

    def run(self, *args, env=None):
        command = ["perf", "--buildid-dir", os.path.join(self.directory, "buildid"), *args]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300,
                              env=env or scrubbed_environment(),
                              errors="backslashreplace")
        if done.returncode:
            raise PerfError("%s: exit status %d\n%s" % (
                " ".join(command), done.returncode, done.stderr))
        return done.stdout

    def file(self, name):
        return os.path.join(self.directory, name)

    def record(self, command, env=None, call_graph=DWARF, frequency=499, monotonic=True):
        """Records `command` and returns (path of the recording, the command's stdout).

        `env` is perf's own environment and so the command's. Not `env NAME=VALUE command` instead:
        perf 6.1 keeps the memory map of `env` after its exec, takes the lowest mapping of libc as
        the one to unwind with, and where that is the one `env` had, it stops at the first frame in
        libc."""
        data = self.file("perf.data")
        clock = ["-k", "CLOCK_MONOTONIC"] if monotonic else []
        out = self.run("record", "-q", *clock, "-F", str(frequency), "-e", EVENT, "--call-graph",
                       call_graph, "-o", data, "--", *command, env=env)
        return data, out

    def inject(self, data):
        out = data + ".jit"
        self.run("inject", "--jit", "-i", data, "-o", out)
        return out

    def samples(self, data, srcline=False):
        # --no-inline: else perf starts one addr2line for each file.
        fields = ["-F", SCRIPT_FIELDS] + (["-F", "+srcline"] if srcline else [])
        return parse(self.run(
            "script", "-i", data, "--no-inline", "--max-stack", "512", "--ns", *fields))


def parse(text):
    """The samples of `perf script --ns -F comm,tid,time,ip,sym,dso[,srcline]`."""
    samples = []
    for line in text.split("\n"):
        frame = FRAME_LINE.match(line)
        if frame and samples:
            samples[-1].frames.append(
                Frame(int(frame["ip"], 16), frame["symbol"], frame["dso"], None))
        elif line.startswith("  ") and samples and samples[-1].frames:
            last = samples[-1].frames[-1]       # the line below a frame is its srcline
            samples[-1].frames[-1] = last._replace(srcline=line.strip())
        elif line.strip():
            head = SAMPLE_LINE.match(line)
            if not head:
                raise PerfError("not a sample, frame or source line of perf script: %r" % line)
            time = int(head["s"]) * 10**9 + int(head["ns"])
            samples.append(Sample(head["comm"], int(head["tid"]), time, []))
    return samples


def python_function(frame):
    """(qualified name, file name) of a frame that stands for a Python function, or None."""
    if not frame.symbol.startswith("py::"):
        return None
    qualname, _, filename = frame.symbol[4:].partition(":")
    return qualname, filename


def reaches_start(sample):
    """Whether the stack goes out to where the process or the thread began. A stripped libc has no name
    for that place, but nothing else of libc calls into Python from below."""
    if not sample.frames:
        return False
    last = sample.frames[-1]
    return bool(re.match(r"_start$|_?_?clone3?$|_dl_start_user$|__libc_start_main|start_thread$",
                         last.symbol)) or (
        last.symbol == "[unknown]" and "/libc.so" in last.dso)


def loses_anonymous_memory():
    """perf 7 unwinds with libdw, which gives up where it has no file: with --call-graph dwarf even the
    innermost frame is missing when that is in anonymous memory. Earlier versions keep that one."""
    version = subprocess.run(["perf", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return int(re.search(r"(\d+)\.", version).group(1)) >= 7


NO_ANONYMOUS_MEMORY = "this perf, unwinding by DWARF, has no frame in anonymous memory"


def missing():
    """Why perf cannot be used here, or None. Takes one sample to find out."""
    if not shutil.which("perf"):
        return "perf is not installed (Debian: linux-perf)"
    with tempfile.TemporaryDirectory() as directory:
        perf = Perf(directory)
        spin = ["sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]
        try:
            data, _ = perf.record(spin)
            if not perf.samples(data):
                return "perf took no sample of a busy program with -e %s" % EVENT
        except (PerfError, subprocess.TimeoutExpired) as error:
            return "perf cannot record here: %s" % str(error).strip().splitlines()[-1]
    return None
