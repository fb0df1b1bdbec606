"""A recording: a directory that holds all that is needed to read it, here or on another machine.

    manifest.json     what was recorded, and how; see Recording.manifest
    perf.data         as perf wrote it
    jit/              PYJD_DIR of the recorded processes: ELF images, jitdumps
    maps/             their perf maps
    symfs/            the interpreter and the libraries that the stacks go through, by absolute path, for
                      `perf script --symfs`, and [vdso]; the place where jit/ was is a relative link to jit/
    kallsyms          the kernel's symbols, where the recorder could see them

perf finds images by the absolute path they had. Reading always goes through symfs/, so a recording that
was moved is read in the same way as one that was not.
"""
import json
import os
import shutil

from . import perf, ui

DEFAULT = "pyjitdump.data"
FORMAT = 1
MANIFEST = "manifest.json"
MOST_FRAMES = "1024"

UNITS = {"cpu-clock": "ns", "task-clock": "ns", "cycles": "cycles", "cpu-cycles": "cycles"}


class Recording:
    """Opened for reading. A bare perf.data file is one without a manifest.

    manifest: format (1), version (of this tool), created (ISO 8601), command or pid, status (exit status),
    event, frequency, call_graph, why (of the last), interpreters (paths of files that hold a CPython),
    perf, kernel, machine, seconds, samples.
    """

    def __init__(self, path):
        self.path = path
        self.manifest = {}
        if os.path.isfile(path):
            self.perf_data, self.directory = path, None
            return
        self.directory, self.perf_data = path, os.path.join(path, "perf.data")
        if not os.path.isdir(path):
            hint = ""
            if path == DEFAULT:
                hint = "; make one with `pyjitdump record -- COMMAND`, or name one with -i"
            raise ui.UserError("there is no recording %s%s" % (path, hint))
        try:
            with open(os.path.join(path, MANIFEST), encoding="utf-8") as file:
                self.manifest = json.load(file)
        except (OSError, ValueError) as error:
            raise ui.UserError("%s is not a recording: %s" % (path, error))
        if not isinstance(self.manifest, dict) or self.manifest.get("format") != FORMAT:
            raise ui.UserError("%s was written by another version of pyjitdump" % path)
        if not os.path.isfile(self.perf_data):
            raise ui.UserError("%s has no perf.data" % path)

    @property
    def interpreters(self):
        return self.manifest.get("interpreters", [])

    @property
    def event(self):
        return self.manifest.get("event", "")

    @property
    def unit(self):
        """What a weight counts: "ns" (of processor time), "cycles", or "events"."""
        return UNITS.get(self.event.partition(":")[0], "events") if self.event else "events"

    @property
    def title(self):
        """What was recorded, for people."""
        if self.manifest.get("command"):
            return " ".join(self.manifest["command"])
        if self.manifest.get("pid"):
            return "process %s" % self.manifest["pid"]
        return os.path.basename(os.path.abspath(self.path))

    def in_directory(self, name):
        """The path of a part of the recording, or None if it has none."""
        path = self.directory and os.path.join(self.directory, name)
        return path if path and os.path.exists(path) else None

    @property
    def images(self):
        """Paths of the ELF images and jitdumps inside."""
        jit = self.in_directory("jit")
        return sorted(os.path.join(jit, name) for name in os.listdir(jit)) if jit else []

    def script_options(self):
        """What `perf script` and `perf report` need to find symbols."""
        options = ["-i", self.perf_data, "-f"]
        if self.in_directory("symfs"):
            options += ["--symfs", os.path.abspath(self.in_directory("symfs"))]
        if self.in_directory("kallsyms"):
            options += ["--kallsyms", os.path.abspath(self.in_directory("kallsyms"))]
        return options

    def script(self, fields):
        """The output of `perf script -F fields`, a binary stream (a context manager)."""
        # Without --no-inline perf starts an addr2line for each file, and takes minutes.
        return perf.output(["script", *self.script_options(), "--no-inline", "--ns", "--max-stack", MOST_FRAMES,
                            "-F", fields])


def add_arguments(parser):
    """The same for all subcommands that read a recording; see chosen()."""
    parser.add_argument("recording", nargs="?", metavar="RECORDING", help="the same as -i RECORDING")
    parser.add_argument("-i", "--input", default=DEFAULT, metavar="RECORDING",
                        help="a directory that `pyjitdump record` made, or a file of perf's (default: %(default)s)")


def chosen(args):
    """The Recording that the arguments name."""
    return Recording(args.recording or args.input)


def is_recording(path):
    return os.path.isfile(os.path.join(path, MANIFEST))


def prepare(path):
    """Makes the directory for a new recording. One that is there becomes PATH.old, as perf does it."""
    if os.path.lexists(path):
        if not is_recording(path) and not (os.path.isdir(path) and not os.listdir(path)):
            raise ui.UserError("%s is there and is not a recording; choose another name with -o" % path)
        old = path.rstrip("/") + ".old"
        if is_recording(path):
            if is_recording(old):
                shutil.rmtree(old)
            elif os.path.lexists(old):
                raise ui.UserError("%s is there and is not a recording; move it away" % old)
            os.rename(path, old)
    try:
        os.makedirs(os.path.join(path, "jit"), exist_ok=True)
    except OSError as error:
        raise ui.UserError("cannot make %s: %s" % (path, error.strerror))


def write_manifest(path, manifest):
    """Written first, so that what an interrupted run left is known for a recording, and again at the end."""
    temporary = os.path.join(path, MANIFEST + ".new")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(dict(manifest, format=FORMAT), file, indent=2, sort_keys=True)
        file.write("\n")
    os.replace(temporary, os.path.join(path, MANIFEST))
