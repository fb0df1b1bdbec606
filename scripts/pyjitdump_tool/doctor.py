"""doctor: finds what would make a recording bad or impossible, and says how to mend it.

Each check is a function that yields Findings. doctor_target.py has those of one program or process.
"""
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile

from . import clean, elf, library, perf, recording, stacks, ui

TAKES_COMMAND = True

EPILOG = """\
Without a COMMAND or a PID it looks at python3. A COMMAND is not run; what runs it is looked at. At the end
a short program is recorded, to see that all works together (not with -p; --no-trial leaves it out).

examples:
  pyjitdump doctor
  pyjitdump doctor -- gunicorn app:app
  pyjitdump doctor -p 4242
  pyjitdump doctor --json | jq '.[] | select(.status != "ok")'

Exit status: 0 all is well, 1 there are warnings, 2 recording will not work.
"""

OK, NOTE, WARNING, FAILURE = "ok", "note", "warning", "failure"
COLOUR = {OK: "green", NOTE: "cyan", WARNING: "yellow", FAILURE: "red"}

# check: a word. status: one of the four. message: what is. remedy: what to do, "" if nothing.
Finding = collections.namedtuple("Finding", "check status message remedy")
Finding.__new__.__defaults__ = ("",)

LITTLE_SPACE = 200 << 20
MANY_FILES, MANY_BYTES = 200, 200 << 20

TRIAL = """
import time
def inner():
    return sum(range(1000))
def outer(end):
    while time.process_time() < end:
        inner()
outer(0.6)
"""


def add_arguments(parser):
    parser.usage = "pyjitdump doctor [options] [-p PID | -- COMMAND [ARGUMENT...]]"
    parser.epilog = EPILOG
    parser.add_argument("-p", "--pid", type=int, help="look at this running process")
    parser.add_argument("--library", metavar="FILE", help="the libpyjitdump.so to look at")
    parser.add_argument("--no-trial", action="store_true", help="do not make a recording")
    parser.add_argument("--json", action="store_true", help="a JSON list of check, status, message, remedy")


def read_number(path):
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def check_perf(_):
    try:
        path = perf.find()
    except ui.UserError as error:
        yield Finding("perf", FAILURE, str(error).split(";")[0], perf.HOW_TO_GET.split("; ")[1])
        return
    numbers = perf.version()
    text = "%s (%s)" % (perf.works(path), path)
    if numbers < (5, 10):
        yield Finding("perf", WARNING, text + " is old",
                      "install perf 5.10 or later: with older ones `pyjitdump record` may fail")
    else:
        yield Finding("perf", OK, text)
    if not perf.unwinds():
        yield Finding("perf unwinding", WARNING, "this perf was built without libunwind and libdw",
                      "install the distribution's perf; this one can only walk frame pointers")
    else:
        yield Finding("perf unwinding", OK, "with DWARF data")


def check_permission(_):
    paranoid = read_number("/proc/sys/kernel/perf_event_paranoid")
    try:
        event, why = perf.choose_event()
    except ui.UserError as error:
        if "there is no perf" not in str(error):
            yield Finding("permission", FAILURE, str(error).split(" (try:")[0],
                          "sudo sysctl kernel.perf_event_paranoid=1 (it is %s), or run as root; in a container also "
                          "--cap-add PERFMON and a seccomp profile that allows perf_event_open" % paranoid)
        return
    yield Finding("permission", OK, "perf may record (kernel.perf_event_paranoid is %s)" % paranoid)
    if event.endswith(":u"):
        yield Finding("kernel", WARNING, "the kernel's part of the stacks is hidden",
                      "sudo sysctl kernel.perf_event_paranoid=1")
    if event.startswith("cycles"):
        yield Finding("counter", OK, why)
    else:
        yield Finding("counter", NOTE, "no hardware cycle counter (a virtual machine?); the kernel's clock is used",
                      "fine for finding hot code; for counters, enable the virtual PMU of the machine")


def check_library(state):
    try:
        path = state.library = library.find(state.args.library)
    except ui.UserError as error:
        yield Finding("library", FAILURE, str(error))
        return
    answer = subprocess.run(["/bin/true"], env=dict(perf.environment(), LD_PRELOAD=path), stderr=subprocess.PIPE,
                            stdin=subprocess.DEVNULL)
    text = answer.stderr.decode("utf-8", "replace").strip()
    if answer.returncode or "cannot be preloaded" in text:
        yield Finding("library", FAILURE, "%s cannot be preloaded: %s" % (path, text.splitlines()[-1] if text else "?"),
                      "build it on this machine, for this libc")
        state.library = None
    else:
        yield Finding("library", OK, path)


def check_directories(_):
    from .processes import can_execute
    chosen = os.environ.get("PYJD_DIR")
    for path, what in ((os.getcwd(), "for recordings"), ("/tmp", "for perf maps"), (chosen, "PYJD_DIR")):
        if not path:
            continue
        try:
            executable = can_execute(path)
        except OSError as error:
            yield Finding("directory", WARNING if path != chosen else FAILURE,
                          "%s (%s) cannot be written to: %s" % (path, what, error.strerror), "use another one")
            continue
        free = clean.free_bytes(path)
        if not executable and what != "for perf maps":
            yield Finding("directory", WARNING, "%s (%s) is mounted noexec: no ELF images there" % (path, what),
                          "use a directory on another file system")
        elif free < LITTLE_SPACE:
            yield Finding("directory", WARNING, "%s (%s) has only %s left" % (path, what, ui.bytes_text(free)),
                          "make room: a recording takes some 13 MB a second and busy processor")
        else:
            yield Finding("directory", OK, "%s (%s)" % (path, what))


def check_leftovers(_):
    found, _ = clean.find(clean.places())
    size = sum(count for _, _, count in found)
    if found:
        status = WARNING if len(found) > MANY_FILES or size > MANY_BYTES else NOTE
        yield Finding("leftovers", status, "%d files of dead processes, %s" % (len(found), ui.bytes_text(size)),
                      "pyjitdump clean")
    else:
        yield Finding("leftovers", OK, "none")


def check_container(_):
    marks = [path for path in ("/.dockerenv", "/run/.containerenv") if os.path.exists(path)]
    try:
        with open("/proc/1/environ", "rb") as file:
            marks += [b"container" for word in file.read().split(b"\0") if word.startswith(b"container=")]
    except OSError:
        pass
    if marks:
        yield Finding("container", NOTE, "this is a container",
                      "record inside of it, or from the host with -p: images are read through /proc/PID/root")


def check_libc(_):
    own = elf.look(sys.executable)
    if own and "musl" in own.loader:
        yield Finding("libc", FAILURE, "this system's libc is musl", "the library needs glibc: use a glibc image")


def check_trial(state):
    """Records a short program, and looks whether its functions are there."""
    if state.args.pid or state.args.no_trial or state.failed or not state.interpreter:
        return
    with tempfile.TemporaryDirectory(prefix="pyjitdump-") as directory:
        script, out = os.path.join(directory, "trial.py"), os.path.join(directory, "recording")
        with open(script, "w") as file:
            file.write(TRIAL)
        command = [sys.executable, "-c", "import sys; sys.path.insert(0, %r); from pyjitdump_tool.cli import main; "
                   "sys.exit(main())" % os.path.dirname(library.HERE), "record", "-q", "-o", out,
                   "--library", state.library, "--no-libraries", "--", state.interpreter, script]
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        said = answer.stderr.decode("utf-8", "replace").strip().splitlines()
        if answer.returncode or not recording.is_recording(out):
            yield Finding("trial", FAILURE,
                          "a trial recording failed: %s" % (said[-1] if said else answer.returncode))
            return
        profile = stacks.load(recording.Recording(out), stacks.Selection(stacks.PYTHON_ONLY))
        good = sum(weight for number, weight in profile.stacks.items()
                   if any(frame.name == "outer" for frame in profile.table.stack(number)))
    share = 100.0 * good / profile.weight
    if share < 50:
        yield Finding("trial", FAILURE, "in a trial recording %.0f%% of the time had its Python functions" % share,
                      "; ".join(said) or "report it with the output of this command")
    else:
        yield Finding("trial", OK, "in a trial recording %.0f%% of the time had its Python functions" % share)


class State:
    """What checks find out for those behind them."""

    def __init__(self, args):
        self.args, self.library, self.interpreter, self.failed = args, None, None, False


def checks():
    from . import doctor_target
    return [check_libc, check_perf, check_permission, check_library, check_directories, check_leftovers,
            check_container, *doctor_target.CHECKS, check_trial]


def examine(args):
    """All Findings."""
    state = State(args)
    for check in checks():
        for finding in check(state):
            state.failed |= finding.status == FAILURE
            yield finding


def run(args):
    if args.command and args.pid:
        raise ui.UserError("look at a command or at a process, not at both")
    if args.command and not shutil.which(args.command[0]):
        raise ui.UserError("cannot look at %s: no such program" % args.command[0])
    findings = []
    paint = ui.painter(sys.stdout)
    for finding in examine(args):
        findings.append(finding)
        if not args.json:
            print("%s %s: %s" % (paint(COLOUR[finding.status], finding.status.ljust(7)), paint("bold", finding.check),
                                 finding.message))
            if finding.remedy and finding.status != OK:
                print("        %s" % finding.remedy)
            sys.stdout.flush()
    if args.json:
        json.dump([finding._asdict() for finding in findings], sys.stdout, indent=1)
        print()
    statuses = {finding.status for finding in findings}
    return 2 if FAILURE in statuses else 1 if WARNING in statuses else 0
