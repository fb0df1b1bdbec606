"""record: runs a program under perf with the library in it, and keeps all that is needed to read the result."""
import argparse
import glob
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time

from . import cli, collect, launch, library, perf, processes, recording, ui

TAKES_COMMAND = True
PASSES_ON = True

EPILOG = """\
Options that are not listed go to `perf record` as they are.

The program's Python functions get their names from libpyjitdump, which is preloaded into it and into the
programs it starts. Ctrl-C reaches the program as usual; the recording is finished when the program has
ended. With -p, Ctrl-C ends the recording and the process goes on.

examples:
  pyjitdump record -- python3 app.py --port 8000
  pyjitdump record -o slow -F 999 -- gunicorn -w 4 app:app
  pyjitdump record -p 4242                      a process that was started with the library
  pyjitdump record -p 4242 --seconds 30
  pyjitdump record -e page-faults -c 1 -- python3 app.py

The exit status is the program's; 128 + N if signal N ended it; 2 if there is no recording.
"""

FREQUENCY = {processes.DWARF: 199, processes.FP: 999}       # dwarf copies 64 KiB of stack for each sample
ROOM = "16M"                            # for samples, per processor, where the kernel allows it

# What perf says that is of no interest.
NOISE = re.compile(r"\[ perf record|Events (en|dis)abled|Error:$|Warning:$|[\s-]*$|Failed to open /proc/schedstat")


def add_arguments(parser):
    parser.usage = ("pyjitdump record [options] [perf options] -- COMMAND [ARGUMENT...]\n"
                    "       pyjitdump record [options] [perf options] -p PID")
    parser.epilog = EPILOG
    parser.add_argument("-p", "--pid", help="record this running process and its children; it must have the "
                                            "library loaded")
    parser.add_argument("-o", "--output", default=recording.DEFAULT, metavar="DIRECTORY",
                        help="the recording (default: %(default)s; one that is there becomes DIRECTORY.old)")
    parser.add_argument("-e", "--event", help="perf event (default: cycles, or cpu-clock where there is no counter)")
    parser.add_argument("-F", "--freq", type=int, metavar="HZ",
                        help="samples a second and processor (default: 199 with dwarf, 999 with fp)")
    parser.add_argument("-c", "--count", type=int, metavar="N", help="instead: a sample each N events")
    parser.add_argument("--call-graph", metavar="MODE",
                        help="how perf walks stacks (default: fp if the interpreter and its libraries have frame "
                             "pointers, else dwarf,65528)")
    parser.add_argument("--seconds", type=float, metavar="N", help="end the recording after this time")
    parser.add_argument("--library", metavar="FILE", help="the libpyjitdump.so to preload")
    parser.add_argument("--no-libraries", action="store_true",
                        help="do not copy libraries into the recording: smaller, but to be read on this machine only")
    parser.add_argument("-q", "--quiet", action="store_true", help="say only what is wrong")
    parser.add_argument("-v", "--verbose", action="store_true", help=argparse.SUPPRESS)


# --- the perf process -------------------------------------------------------------------------------------------

class Perf:
    """A running `perf record`, out of reach of the terminal's Ctrl-C."""

    def __init__(self, options, target):
        """target: ["-p", PIDS] or ["--", COMMAND...]."""
        self.errors = tempfile.TemporaryFile()
        command_in, self._command = os.pipe()
        self._answer, answer_out = os.pipe()
        control = ["-D", "-1", "--control", "fd:%d,%d" % (command_in, answer_out)] if target[0] == "-p" else []
        self.process = subprocess.Popen(
            [perf.find(), "record", *options, *control, *target], env=perf.environment(), stderr=self.errors,
            stdout=None if target[0] == "--" else subprocess.DEVNULL,
            stdin=None if target[0] == "--" else subprocess.DEVNULL,
            pass_fds=(command_in, answer_out), preexec_fn=self._signals, start_new_session=target[0] == "-p")
        os.close(command_in)
        os.close(answer_out)
        self.target_is_ours = target[0] == "--"

    @staticmethod
    def _signals():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD])

    def begin(self):
        """Waits until perf records; False if it ended instead. Ours waits for perf, perf for us: only with -p."""
        try:
            os.write(self._command, b"enable\n")
        except BrokenPipeError:
            return False
        return os.read(self._answer, 16).startswith(b"ack")

    def poll(self):
        return self.process.poll()

    def stop(self):
        """Lets perf write what it has. Returns its status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait()

    def complaints(self):
        """What perf said, without what it always says."""
        self.errors.seek(0)
        lines = self.errors.read().decode("utf-8", "replace").splitlines()
        return [line.strip() for line in lines
                if line.strip() and not NOISE.match(line)]


def wait_for_end(process, watched, seconds, show):
    """Until the program (or, without one, perf) ends, or somebody stops us. Passes on signals that were sent
    to us alone: the terminal sends its own to the program, too. True if we were told to stop."""
    began, told = time.monotonic(), False
    deadline = began + seconds if seconds else None
    while (process.poll() if process else watched.poll()) is None:
        if deadline and time.monotonic() >= deadline:
            return True
        info = signal.sigtimedwait({signal.SIGINT, signal.SIGTERM, signal.SIGCHLD},
                                   min(0.5, max(0.01, deadline - time.monotonic())) if deadline else 0.5)
        if info and info.si_signo != signal.SIGCHLD:
            if not process:
                return True
            if info.si_code <= 0:           # SI_USER and its like: kill(2), not the terminal
                os.kill(process.pid, info.si_signo)
            elif told:
                ui.say("the program is still running; it goes on without us")
                return True
            told = True
        show(time.monotonic() - began)
    return False


# --- the whole ---------------------------------------------------------------------------------------------------

class Job:
    """One recording from start to end."""

    def __init__(self, args):
        self.args, self.directory = args, os.path.abspath(args.output)
        self.perf_data = os.path.join(self.directory, "perf.data")
        self.began = time.time()
        self.jit = None
        self.manifest = {"version": cli.VERSION, "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                         "perf": perf.works(perf.find()), "kernel": platform.release(),
                         "machine": platform.machine(), "libraries": not args.no_libraries}

    def say(self, text):
        if not self.args.quiet:
            ui.say(text)

    def choose(self, files):
        """perf's options, from what the user said and what is there."""
        args = self.args
        event, why = (args.event, "as you said") if args.event else perf.choose_event()
        mode, reason = (args.call_graph, "as you said") if args.call_graph else processes.choose_call_graph(files)
        if mode.startswith("dwarf") and not perf.unwinds():
            raise ui.UserError("%s has no frame pointers, and this perf was built without DWARF unwinding: use "
                               "another perf (PERF=PATH)" % reason.split()[0])
        rate = ["-c", str(args.count)] if args.count else ["-F", str(args.freq or FREQUENCY.get(mode, 199))]
        self.manifest.update(event=event, frequency=None if args.count else int(rate[1]), call_graph=mode, why=reason)
        self.say("event %s: %s" % (event, why))
        self.say("call graph %s: %s" % (mode, reason))
        room = ["-m", ROOM] if os.geteuid() == 0 and "-m" not in args.unknown else []
        # -N: no copies of all libraries in ~/.debug. -k 1: so that `perf inject --jit` can be used on it.
        return ["-o", self.perf_data, "-k", "1", "-N", "--buildid-all", "-e", event, *rate, "--call-graph", mode,
                *room, *args.unknown]

    def environment(self):
        """For the program: the library, and a directory for its images, within the recording if possible."""
        self.jit = os.path.join(self.directory, "jit")
        if not processes.can_execute(self.jit):
            self.jit = tempfile.mkdtemp(prefix="pyjitdump-")
        if os.geteuid() == 0:
            os.chmod(self.jit, 0o1777)      # servers that begin as root and change to another user
        env = dict(os.environ, LD_PRELOAD=library.preload(library.find(self.args.library)), PYJD_DIR=self.jit)
        if "elf" not in env.get("PYJD_OUTPUT", "elf"):
            self.say("PYJD_OUTPUT has no elf: perf will not see Python functions")
        return env

    def prepare(self):
        recording.prepare(self.directory)
        recording.write_manifest(self.directory, self.manifest)

    def run_command(self, command):
        command = launch.resolve(command)
        library.find(self.args.library)     # complain before anything is made
        options = self.choose(processes.loaded_by(launch.interpreter(command)))
        self.manifest["command"] = self.args.command
        self.prepare()
        env = self.environment()
        process = launch.Waiting(command, env)
        if not process.pid:
            words = ["env", "LD_PRELOAD=" + env["LD_PRELOAD"], "PYJD_DIR=" + env["PYJD_DIR"], *command]
            return self.record(None, options, ["--", *words])
        return self.record(process, options, ["-p", str(process.pid)])

    def run_pid(self, text):
        if not text.isdigit():
            raise ui.UserError("-p takes a process id, not %s" % text)
        pid = int(text)
        files = processes.files_of_maps(processes.read_maps(pid))
        names = [os.path.basename(path) for path in files]
        if not any(name.startswith(("pyjd-", "libpyjitdump.so")) for name in names):
            raise ui.UserError("process %d does not have the library; start it with LD_PRELOAD=%s, or let "
                               "`pyjitdump record -- COMMAND` start it" % (pid, library.find(self.args.library)))
        options = self.choose(files)
        self.manifest["pid"] = pid
        self.prepare()
        return self.record(None, options, ["-p", ",".join(map(str, processes.descendants(pid)))])

    def record(self, process, options, target):
        """Runs perf until the program ends. Returns the exit status."""
        began = time.monotonic()
        with ui.Progress("recording") as progress:
            watched = Perf(options, target)
            if target[0] == "-p" and not watched.begin():
                if process:
                    process.kill()
                watched.stop()
                self.give_up(watched)
            if process:
                process.go()
            self.say("recording; the program's own output follows" if target[0] == "--" or process
                     else "recording; Ctrl-C ends it")
            live = not process and target[0] == "-p" and not self.args.quiet
            wait_for_end(process, watched, self.args.seconds,
                         lambda seconds: live and progress.update("%d s, %s" % (seconds, self.size())))
        self.manifest["seconds"] = round(time.monotonic() - began, 3)
        status = watched.stop()
        if not os.path.exists(self.perf_data) or not os.path.getsize(self.perf_data):
            self.give_up(watched)
        for line in watched.complaints():
            ui.say("perf: " + line)
        if target[0] == "--":
            self.manifest["status"] = 128 - status if status < 0 else status
        elif process:
            self.manifest["status"] = process.poll()
        else:
            self.manifest["status"] = 0
        return self.manifest["status"]

    def size(self):
        try:
            return ui.bytes_text(os.path.getsize(self.perf_data))
        except OSError:
            return ""

    def give_up(self, watched):
        raise ui.UserError("perf recorded nothing: %s" % (" ".join(watched.complaints()) or "it does not say why"))

    def finish(self):
        """Collects, and says what is there."""
        if self.jit and self.jit != os.path.join(self.directory, "jit"):
            for path in glob.glob(os.path.join(self.jit, "*")):
                collect.copy(path, os.path.join(self.directory, "jit", os.path.basename(path)))
        recording.write_manifest(self.directory, self.manifest)
        read = recording.Recording(self.directory)
        files, samples = collect.mapped_files(read)
        interpreters = [path for path in files if os.path.isfile(path) and collect.is_interpreter(path)]
        if not self.args.no_libraries:
            interpreters, missing, _ = collect.add_libraries(self.directory, self.jit, files)
            collect.add_kernel(self.directory)
            collect.add_vdso(self.directory)
            for path in missing:
                if not collect.OUR_FILE.search(path):
                    self.say("%s is gone; stacks through it may be cut" % path)
        collect.add_maps(self.directory, set().union(*files.values()), self.began)
        self.manifest.update(interpreters=interpreters, samples=samples)
        self.manifest["event"] = next(iter(perf.events(self.perf_data)), self.manifest["event"])
        recording.write_manifest(self.directory, self.manifest)
        if not samples:
            ui.say("perf took no sample: the program used no processor time, or too little")
        elif not any(re.search(r"/pyjd-\d+-\d+\.so$", path) for path in files):
            ui.say("no Python functions were seen: `pyjitdump doctor` may know why")
        where = "" if self.args.output == recording.DEFAULT else " -i %s" % self.args.output
        self.say("%s samples in %s; next: pyjitdump report%s, or pyjitdump flamegraph%s"
                 % (ui.number_text(samples), self.args.output, where, where))


def run(args):
    if not args.command and args.unknown and not args.unknown[0].startswith("-"):
        raise ui.UserError("the command goes behind --: pyjitdump record -- %s" % " ".join(args.unknown))
    if bool(args.command) == bool(args.pid):
        raise ui.UserError("say what to record: pyjitdump record -- COMMAND, or pyjitdump record -p PID")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD])
    try:
        job = Job(args)
        status = job.run_command(args.command) if args.command else job.run_pid(args.pid)
        job.finish()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD])
    sys.stderr.flush()
    return status
