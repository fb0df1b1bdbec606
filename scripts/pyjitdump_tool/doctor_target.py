"""doctor's checks of one program or one running process."""
import os
import re
import shutil
import subprocess
import tempfile

from . import elf, launch, perf, processes, ui
from .doctor import FAILURE, NOTE, OK, WARNING, Finding

OLDEST, NEWEST = (3, 8), (3, 15)
OWN_PERF = "PYTHONPERFSUPPORT", "PYTHON_PERF_JIT_SUPPORT"

PROBE = ("import importlib.util, platform, sys; "
         "print(platform.python_implementation(), '%d.%d.%d' % sys.version_info[:3], "
         "int(importlib.util.find_spec('torch') is not None))")


def read(path, mode="rb"):
    try:
        with open(path, mode) as file:
            return file.read()
    except OSError:
        return b""


class Target:
    """The program in question: its executable, command line, environment, and the files it has loaded."""

    def __init__(self, args):
        self.pid = args.pid
        if self.pid:
            self.maps = processes.files_of_maps(processes.read_maps(self.pid))
            self.executable = os.path.realpath("/proc/%d/exe" % self.pid)
            self.words = os.fsdecode(read("/proc/%d/cmdline" % self.pid)).split("\0")[:-1]
            pairs = os.fsdecode(read("/proc/%d/environ" % self.pid)).split("\0")
            self.environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        else:
            self.words = launch.resolve(args.command or ["python3"])
            self.executable = launch.interpreter(self.words)
            self.maps = processes.loaded_by(self.executable)
            self.environment = dict(os.environ)
        self.path = "/proc/%d/exe" % self.pid if self.pid else self.executable


def check_program(state):
    """What executes, and whether it is a CPython that we know."""
    state.target = target = None
    try:
        state.target = target = Target(state.args)
    except ui.UserError as error:
        yield Finding("program", FAILURE, str(error))
        return
    file = elf.look(target.path)
    if file is None:
        yield Finding("program", FAILURE, "%s is not a 64-bit ELF program" % target.executable,
                      "the library is for 64-bit processes")
        return
    if "musl" in file.loader:
        yield Finding("program", FAILURE, "%s is built for musl" % target.executable,
                      "the library needs glibc: use a glibc image of Python")
        return
    if launch.privileged(target.path) or has_capabilities(target.executable):
        yield Finding("privileges", FAILURE, "%s is set-user-ID or has file capabilities: it takes no preload"
                      % target.executable, "profile a copy without the privilege: cp it, and run the copy")
    holders = [path for path in [target.path, *target.maps] if "libpyjitdump" not in path
               and (elf.look(path) or file).exports("_PyEval_EvalFrameDefault")]
    if not holders:
        yield Finding("program", WARNING, "%s is not a CPython, and loads none at its start" % target.executable,
                      "if it starts one (a shell script, a plug-in), look at that: pyjitdump doctor -- python3")
        return
    shared = "shared library" if any("libpython" in path for path in holders) else "static"
    yield from check_version(state, target, shared)


def check_version(state, target, shared):
    if not re.match(r"python\d", os.path.basename(target.executable)):
        found = re.search(r"libpython3\.(\d+)", " ".join(target.maps))
        version = (3, int(found[1])) if found else None
        text = "CPython %d.%d embedded in" % version if version else "a CPython embedded in"
        implementation, torch = "CPython", False
    else:
        answer = subprocess.run([target.executable, "-c", PROBE], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, env=perf.environment())
        words = answer.stdout.decode("utf-8", "replace").split()
        if len(words) != 3:
            yield Finding("interpreter", FAILURE, "%s does not run" % target.executable)
            return
        implementation, torch = words[0], words[2] == "1"
        version = tuple(int(number) for number in words[1].split(".")[:2])
        text = "%s %s" % (implementation, words[1])
    if implementation != "CPython" or version and not OLDEST <= version <= NEWEST:
        yield Finding("interpreter", FAILURE, "%s (%s) is not supported" % (text, target.executable),
                      "use CPython 3.8 to 3.15")
        return
    state.interpreter = target.executable if re.match(r"python\d", os.path.basename(target.executable)) else None
    yield Finding("interpreter", OK, "%s, %s (%s)" % (text, shared, target.executable))
    if torch or any("libtorch" in path for path in target.maps):
        yield Finding("torch", WARNING, "PyTorch is there: torch.compile has an evaluator of its own",
                      "functions that it compiles show as its code; the rest have names")


def has_capabilities(path):
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def check_own_perf(state):
    target = state.target
    if not target:
        return
    flags = [value for name, value in zip(target.words, target.words[1:]) if name == "-X" and value.startswith("perf")]
    flags = ["-X " + value for value in flags] + [word for word in target.words if word.startswith("-Xperf")]
    flags += [name for name in OWN_PERF if target.environment.get(name) not in (None, "", "0")]
    if flags:
        yield Finding("-X perf", FAILURE, "CPython's own perf support is on (%s): the library stands aside" % flags[0],
                      "leave %s out" % flags[0])


def check_frame_pointers(state):
    target = state.target
    if not target:
        return
    without, unknown, count = [], [], 0
    for path in target.maps:
        if re.match(r"(pyjd-|libpyjitdump|jit-)", os.path.basename(path)):
            continue
        found = elf.look("/proc/%d/root%s" % (state.args.pid, path) if state.args.pid else path)
        answer = found.frame_pointers() if found else None
        count += 1
        if answer is None:
            unknown.append(os.path.basename(path))
        elif not answer:
            without.append(os.path.basename(path))
    if without:
        yield Finding("frame pointers", NOTE,
                      "%d of %d loaded files have none: %s" % (len(without), count, ", ".join(without)),
                      "recorded with --call-graph dwarf,65528 instead; stacks deeper than 64 KiB are cut")
    elif count:
        yield Finding("frame pointers", OK, "all %d loaded files have them%s" % (
            count, "; cannot tell: " + ", ".join(unknown) if unknown else ""))


def check_loading(state):
    """Whether the library comes up in this interpreter."""
    if not state.interpreter or not state.library or state.args.pid:
        return
    with tempfile.TemporaryDirectory(prefix="pyjitdump-") as directory:
        env = dict(perf.environment(), LD_PRELOAD=state.library, PYJD_DIR=directory, PYJD_LOG="info")
        process = subprocess.Popen([state.interpreter, "-c", "pass"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
        said = process.communicate()[1].decode("utf-8", "replace").splitlines()
        try:
            os.unlink("/tmp/perf-%d.map" % process.pid)
        except OSError:
            pass
    ours = [line[len("pyjitdump: "):] for line in said if line.startswith("pyjitdump: ")]
    wrote, other = [line for line in ours if line.startswith("writing ")], [
        line for line in ours if not line.startswith(("writing ", "cannot load "))]
    if not wrote:
        yield Finding("names", FAILURE,
                      "the library finds nothing to do in it: %s" % ("; ".join(other) or "it says nothing"),
                      "docs/troubleshooting.md explains each line")
    elif other:
        yield Finding("names", WARNING, "the library works in it, but says: %s" % "; ".join(other),
                      "docs/troubleshooting.md explains each line")
    else:
        yield Finding("names", OK, "the library works in it")


def check_process(state):
    """A running process: is the library in it and on?"""
    target = state.target
    if not target or not target.pid:
        return
    names = [os.path.basename(path) for path in target.maps]
    images = [name for name in names if name.startswith("pyjd-")]
    if not any(name.startswith("libpyjitdump.so") for name in names):
        yield Finding("names", FAILURE, "process %d does not have the library" % target.pid,
                      "start it with: pyjitdump record -- %s" % " ".join(target.words))
    elif target.environment.get("PYJD_ENABLE") == "0" and not images:
        yield Finding("names", FAILURE, "the library is in it, but off (PYJD_ENABLE=0)", "call pyjd_enable() in it")
    elif not images:
        yield Finding("names", FAILURE, "the library is in it, but wrote no ELF image",
                      "its directory (PYJD_DIR=%s) may be noexec or full, or PYJD_OUTPUT lacks elf; see its stderr"
                      % target.environment.get("PYJD_DIR", "/tmp"))
    else:
        yield Finding("names", OK, "the library works in it (%s)" % ", ".join(sorted(set(images))[:3]))
    status = read("/proc/%d/status" % target.pid).decode("utf-8", "replace")
    numbers = re.search(r"^NSpid:\s*(.*)$", status, re.MULTILINE)
    if numbers and len(numbers[1].split()) > 1:
        yield Finding("namespace", WARNING,
                      "process %d is number %s in a container" % (target.pid, numbers[1].split()[-1]),
                      "images are read through /proc/%d/root while it lives; else record in the container"
                      % target.pid)


def check_loader(state):
    """LD_PRELOAD must reach the program."""
    target = state.target
    if target and not target.pid and os.path.basename(target.words[0]) in ("sudo", "su", "doas", "runuser") and \
            shutil.which(target.words[0]):
        yield Finding("environment", FAILURE, "%s clears LD_PRELOAD" % target.words[0],
                      "the other way round: sudo pyjitdump record -- ...")


CHECKS = [check_program, check_own_perf, check_loader, check_frame_pointers, check_loading, check_process]
