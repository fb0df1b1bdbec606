"""perf: where it is, what it can do, and running it without the library in it."""
import contextlib
import functools
import glob
import os
import re
import shutil
import subprocess
import tempfile

from . import ui

HOW_TO_GET = ("there is no perf here; install it (Debian: linux-perf, Ubuntu: linux-tools-$(uname -r), "
              "Fedora: perf), or name one in PERF")


def environment():
    """For perf itself: without our library (perf may hold a Python), and with numbers as in English."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith("PYJD_") and not (name == "LD_PRELOAD" and "libpyjitdump" in value)}
    env["LC_ALL"] = "C"
    env.pop("PERF_BUILDID_DIR", None)
    return env


def works(path):
    """The version line of this perf, or None. Ubuntu's /usr/bin/perf is a wrapper that may find nothing."""
    try:
        answer = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                stdin=subprocess.DEVNULL, env=environment(), timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    text = answer.stdout.decode("utf-8", "replace").strip()
    return text if answer.returncode == 0 and text.startswith("perf version") else None


def candidates():
    if os.environ.get("PERF"):
        yield os.environ["PERF"]
        return
    found = shutil.which("perf")
    if found:
        yield found
    for pattern in "/usr/lib/linux-tools*/perf", "/usr/lib/linux-tools/*/perf", "/usr/bin/perf_[0-9]*":
        yield from sorted(glob.glob(pattern), reverse=True)


@functools.lru_cache(maxsize=None)
def find():
    """The path of a perf that runs."""
    for path in candidates():
        if works(path):
            return path
    if os.environ.get("PERF"):
        raise ui.UserError("PERF=%s is not a perf that runs" % os.environ["PERF"])
    raise ui.UserError(HOW_TO_GET)


def version():
    """(6, 1, 192)"""
    numbers = re.findall(r"\d+", works(find()) or "")
    return tuple(int(number) for number in numbers[:3])


def build_options():
    """{"libunwind": True, ...} as `perf version --build-options` says; {} if it does not."""
    answer = subprocess.run([find(), "version", "--build-options"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment())
    lines = answer.stdout.decode("utf-8", "replace").splitlines()
    found = (re.match(r"\s*([\w.-]+): \[\s*(on|OFF)\s*\]", line) for line in lines)
    return {match[1]: match[2] == "on" for match in found if match}


def unwinds():
    """Whether this perf can unwind with DWARF data. True if it does not say."""
    options = build_options()
    known = [options[name] for name in ("libunwind", "libdw-dwarf-unwind", "dwarf-unwind-support", "libdw")
             if name in options]
    return any(known) if known else True


def events(path):
    """Names of the events in a perf.data file, those without samples of interest left out."""
    answer = subprocess.run([find(), "evlist", "-i", path, "-f"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, env=environment())
    names = answer.stdout.decode("utf-8", "replace").splitlines()
    return [name for name in names if name and not name.startswith(("dummy", "#"))]


def can_record(event, *options):
    """What perf complains of when it records `event` for a moment; "" if it does not."""
    with tempfile.TemporaryDirectory(prefix="pyjitdump-") as directory:
        command = [find(), "record", "-q", "-N", "-e", event, *options, "-o", directory + "/perf.data", "--", "true"]
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                env=environment())
        # perf quietly takes the clock where there is no cycle counter, and leaves out a kernel it may not see.
        if answer.returncode == 0:
            taken = events(command[-3])
            same = (("clock" in event or not any("clock" in name for name in taken))
                    and (event.endswith(":u") or not any(name.endswith(":u") for name in taken)))
            return "" if same else "not supported"
    lines = [line.strip() for line in answer.stderr.decode("utf-8", "replace").splitlines() if line.strip(" -")]
    return " ".join(line for line in lines if line not in ("Error:", "Warning:")) or "status %d" % answer.returncode


@functools.lru_cache(maxsize=None)
def choose_event():
    """(event, why). The cycle counter where there is one, else the kernel's clock; each with the kernel's
    part of the stacks if we may see it."""
    complaint = ""
    for event, why in (("cycles", "the machine has a cycle counter"),
                       ("cycles:u", "cycle counter, without the kernel: kernel.perf_event_paranoid"),
                       ("cpu-clock", "the machine has no cycle counter (a virtual machine?)"),
                       ("cpu-clock:u", "no cycle counter; without the kernel: kernel.perf_event_paranoid")):
        complaint = can_record(event)
        if not complaint:
            return event, why
    raise ui.UserError("perf may not record here: %s (try: sudo sysctl kernel.perf_event_paranoid=1; "
                       "`pyjitdump doctor` says more)" % complaint[:200].rstrip(". "))


@contextlib.contextmanager
def output(arguments):
    """The stdout of `perf arguments`, a binary stream. Says what perf said if perf fails."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([find(), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=errors, env=environment(), bufsize=1 << 20)
        finished = False
        try:
            yield process.stdout
            finished = True
        finally:
            if not finished:
                process.kill()
            process.stdout.close()
            status = process.wait()
        errors.seek(0)
        if status:
            lines = errors.read().decode("utf-8", "replace").strip().splitlines()
            raise ui.UserError("perf %s failed: %s" % (arguments[0], lines[-1].strip() if lines else status))
