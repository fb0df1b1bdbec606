"""export: writes a recording in another profiler's format. The formats are in formats/, one module each."""
import contextlib
import datetime
import gzip
import os
import stat
import sys

from . import cli, export_offcpu, formats, inspect_image, recording, stacks, ui

EPILOG = """\
What a sample means: the thread was on a processor when it was taken, and its weight is the time (or the
cycles, or the events) since the one before. Waiting takes no room. With --off-cpu a sample is one time
that a thread was away from the processor, and its weight is how long. That needs a recording with the
scheduler's events:

  pyjitdump record -e sched:sched_switch -c 1 --switch-events -- COMMAND

formats:
%s

A name that ends with .gz is compressed; the readers of all formats but collapsed and pstats take that.

examples:
  pyjitdump export --format speedscope                    pyjitdump.data -> pyjitdump.speedscope.json
  pyjitdump export --format pprof slow.data -o slow.pb.gz && go tool pprof -http : slow.pb.gz
  pyjitdump export --format pstats -o p && python3 -m pstats p
  pyjitdump export --format collapsed -o - | inferno-flamegraph > flames.svg
  pyjitdump export --format gecko --thread worker-1 -o worker.json.gz
"""

MEANINGS = {"ns": "time on a processor, in nanoseconds (%s)", "cycles": "cycles of a processor (%s)",
            "events": "a number of %s"}
SCHEDULER = "sched:"
OFF_CPU = "time away from the processor, in nanoseconds"


def add_arguments(parser):
    parser.epilog = EPILOG % "\n".join(_format_help(name) for name in formats.NAMES)
    parser.add_argument("-f", "--format", required=True, choices=formats.NAMES, help="see below")
    recording.add_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="- for stdout (default: the recording's name)")
    parser.add_argument("--off-cpu", action="store_true", help="time away from the processor, not on it")
    stacks.add_arguments(parser)
    parser.set_defaults(view=None)


def _format_help(name):
    lines = formats.load(name).HELP.split("\n")
    return "\n".join(["  %-10s  %s" % (name, lines[0])] + ["%14s%s" % ("", line) for line in lines[1:]])


class Source:
    """What a format is made of: samples or their sum, and what is known of the recording."""

    exporter = "pyjitdump " + cli.VERSION

    def __init__(self, source, selection, off_cpu=False):
        self.recording, self.selection, self.off_cpu = source, selection, off_cpu
        self.title = source.title + (" (%s)" % selection.text if selection.text else "")
        self._lines = None
        # Which event it is to be is decided here, not in stacks.
        self.event, selection.event = selection.event, "*"
        self.unit, self.meaning = "ns", OFF_CPU

    def samples(self):
        """(table, iterator of stacks.Sample). The table grows while the iterator is consumed; what a weight
        is, is known when the first sample is."""
        if self.off_cpu:
            return export_offcpu.read(self.recording, self.selection)
        table, samples = stacks.read(self.recording, self.selection)
        return table, self._watched(samples)

    def _watched(self, samples):
        """The samples of one event: the one asked for, else the first. Those of the scheduler, which are
        there for --off-cpu, count only if they were what was to be recorded."""
        chosen = self.event
        skipped = "" if self.recording.event.startswith(SCHEDULER) else SCHEDULER
        for sample in samples:
            if sample.event != chosen:
                if chosen or skipped and sample.event.startswith(skipped):
                    continue
                chosen = sample.event
            if self.meaning is OFF_CPU:
                self._name_unit(chosen)
            yield sample

    def _name_unit(self, event):
        """A file of perf's does not say what was recorded, its samples do."""
        self.unit = recording.UNITS.get(event.partition(":")[0], "events")
        self.meaning = MEANINGS[self.unit] % event

    def profile(self):
        """All samples added up, a stacks.Profile."""
        table, samples = self.samples()
        profile = stacks.Profile(table)
        weights = profile.weights
        for thread, stack, weight, _, _ in samples:
            entry = weights.get((thread, stack))
            if entry is None:
                weights[thread, stack] = [weight, 1]
            else:
                entry[0] += weight
                entry[1] += 1
        profile.weight = sum(weight for weight, _ in weights.values())
        profile.samples = sum(count for _, count in weights.values())
        self.require(profile.samples)
        return profile

    def require(self, found):
        if not found:
            what = self.selection.text
            raise ui.UserError("no sample is left: %s" % what if what else "%s holds no samples" % self.recording.path)

    def line(self, frame):
        """The line where a Python function begins; 0 if it is not known."""
        if frame.kind != stacks.PYTHON:
            return 0
        if self._lines is None:
            self._lines = {}
            for path in self.recording.images:
                self._lines.update(inspect_image.symbol_lines(path))
        return self._lines.get("py::%s:%s" % (frame.name, frame.file), 0)

    def _number(self, name):
        value = self.recording.manifest.get(name)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0

    @property
    def interval_ms(self):
        """Between two samples, as asked for."""
        return round(1000 / self._number("frequency"), 6) if self._number("frequency") > 0 else 1

    def seconds(self, profile):
        """What a weight is to be multiplied by for seconds. Where cycles or events were counted, a sample is
        taken for 1/frequency seconds on average, as perf tries to make it."""
        if self.unit == "ns":
            return 1e-9
        return self.interval_ms / 1000 * profile.samples / (profile.weight or 1)

    @property
    def start_ms(self):
        """When the recording was made: milliseconds since 1970."""
        try:
            created = datetime.datetime.strptime(self.recording.manifest["created"], "%Y-%m-%dT%H:%M:%S%z")
            return created.timestamp() * 1000
        except (KeyError, TypeError, ValueError):
            return os.stat(self.recording.perf_data).st_mtime * 1000

    @property
    def duration_ns(self):
        return int(self._number("seconds") * 1e9)


def default_name(path, suffix):
    name = os.path.basename(os.path.abspath(path))
    return (name[:-5] if name.endswith(".data") and len(name) > 5 else name) + suffix


@contextlib.contextmanager
def opened(path):
    """A binary file to write that takes its name when it is complete."""
    if path == "-":
        if sys.stdout.isatty():
            raise ui.UserError("this is not for a terminal; name a file with -o")
        yield sys.stdout.buffer
        return
    try:
        if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "wb") as file:
                yield file
            return
        temporary = path + ".new"
        file = open(temporary, "wb")
    except OSError as error:
        raise ui.UserError("cannot write %s: %s" % (path, error.strerror))
    try:
        with file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def run(args):
    module = formats.load(args.format)
    args.view = args.view or module.VIEW
    source = Source(recording.chosen(args), stacks.selection(args), args.off_cpu)
    path = args.output or default_name(source.recording.path, module.SUFFIX)
    try:
        with opened(path) as file:
            if module.GZIPPED or path.endswith(".gz"):
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as compressed:
                    module.write(source, compressed)
            else:
                module.write(source, file)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise ui.UserError("cannot write %s: %s" % (path, error.strerror))
    if path != "-":
        ui.say("%s written, %s; a sample is %s" % (path, ui.bytes_text(os.stat(path).st_size), source.meaning))
    return 0
