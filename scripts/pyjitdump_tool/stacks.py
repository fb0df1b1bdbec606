"""Samples with their stacks, as every subcommand that shows a recording reads them.

    sample = leaf ... root           perf script, one text block for each sample
      -> frame numbers, root first   each distinct line is understood once
      -> the view                    frames that the view leaves out are dropped
      -> stack number                each distinct stack is kept once

A recording has many samples and few distinct lines, so nearly all work is looking things up. Text is
handled as bytes, a block at a time; memory grows with distinct stacks, not with samples.
"""
import collections
import fnmatch
import os
import re

from . import ui

PYTHON, NATIVE, INTERPRETER, KERNEL = KINDS = "python", "native", "interpreter", "kernel"

# kind: one of KINDS. name: qualified name or symbol. file: the Python file, else "". dso: path of the
# shared object, "" for Python functions (the same function is in one image or another).
Frame = collections.namedtuple("Frame", "kind name file dso")
Thread = collections.namedtuple("Thread", "pid tid comm")

# thread, stack: numbers, into Table.threads and Table.stacks. weight: the sample's period, in the
# recording's unit (Recording.unit). time: nanoseconds of perf's clock. event: name, as perf has it.
Sample = collections.namedtuple("Sample", "thread stack weight time event")

MIXED, PYTHON_ONLY, EVERYTHING = VIEWS = "mixed", "python", "native"

FIELDS = "comm,pid,tid,time,period,event,ip,sym,dso"
CHUNK = 1 << 17
CACHED_BYTES = 64 << 20             # of sample text; then the cache starts afresh

HEAD = re.compile(rb"\s*(.*?)\s+(-?\d+)/(-?\d+)\s+(\d+)\.(\d+):\s+(\d+)\s+(\S+?):?\s*$")
LINE = re.compile(rb"\s*([0-9a-f]+)\s+(.*?)(?:\s\(([^()]*(?:\([^()]*\)[^()]*)*)\))?$", re.DOTALL)
INTERPRETER_FILE = re.compile(r"(lib)?python[23](\.\d+)?[a-z]*(\.so.*)?$|libpython[0-9.]+[a-z]*\.so|libpyjitdump\.so")
IMAGE_FILE = re.compile(r"(pyjd-\d+-\d+|jitted-\d+-\d+)\.so$")


class Selection:
    """Which samples, and which of their frames.

    view: one of VIEWS. threads: thread ids or thread names; comms: names as perf has them; pids;
    modules: parts or patterns of Python files and shared objects, one of which must be in the stack.
    event: the name of one event, "" for that of the first sample, "*" for all.
    """

    def __init__(self, view=MIXED, threads=(), comms=(), pids=(), modules=(), event=""):
        self.view, self.event = view, event
        self.threads, self.comms, self.pids, self.modules = (
            [str(word) for word in words or ()] for words in (threads, comms, pids, modules))

    def wants_thread(self, thread):
        return ((not self.threads or any(word == str(thread.tid) or fnmatch.fnmatch(thread.comm, word)
                                         for word in self.threads))
                and (not self.comms or any(fnmatch.fnmatch(thread.comm, word) for word in self.comms))
                and (not self.pids or str(thread.pid) in self.pids))

    def wants_frame(self, frame):
        """Whether the frame is of one of the modules asked for: file name, path or part of a path."""
        path = frame.file or frame.dso
        return any(word in path or fnmatch.fnmatch(os.path.basename(path), word) or fnmatch.fnmatch(path, word)
                   for word in self.modules)

    @property
    def text(self):
        """What was left out, for a title; "" if nothing."""
        parts = [("thread", self.threads), ("comm", self.comms), ("pid", self.pids), ("module", self.modules)]
        return ", ".join("%s %s" % (name, " or ".join(words)) for name, words in parts if words)


def add_arguments(parser):
    """The options of a Selection, the same for all subcommands."""
    view = parser.add_mutually_exclusive_group()
    view.add_argument("--python", dest="view", action="store_const", const=PYTHON_ONLY,
                      help="only Python functions and the C functions they called")
    view.add_argument("--native", dest="view", action="store_const", const=EVERYTHING,
                      help="every frame, the interpreter's own included")
    parser.set_defaults(view=MIXED)
    for option, what in (("thread", "of this thread: its id, or its name"),
                         ("comm", "of threads of this name, as ps -L shows it"),
                         ("pid", "of this process"),
                         ("module", "with a frame of this Python file or library: part of the path, or a pattern")):
        parser.add_argument("--" + option, action="append", default=[], metavar=option.upper(),
                            help="only samples %s; may be repeated" % what)
    parser.add_argument("--event", default="", help="samples of this event, where there are several")


def selection(args):
    """The Selection that add_arguments() was given."""
    return Selection(args.view, args.thread, args.comm, args.pid, args.module, args.event)


def label(frame):
    """A frame in a word or two: `Pool.get (pool.py)`, `deflate (libz.so.1)`."""
    place = os.path.basename(frame.file or frame.dso)
    return "%s (%s)" % (frame.name, place) if place else frame.name


def parse_line(line, interpreters=()):
    """The Frame of one line of `perf script`: address, symbol, shared object in parentheses."""
    if line.endswith(b" (deleted))"):
        line = line[:-11] + b")"
    match = LINE.match(line)
    if not match:
        return Frame(NATIVE, line.decode("utf-8", "replace").strip(), "", "")
    address, symbol, dso = (part.decode("utf-8", "replace") for part in (match[1], match[2], match[3] or b""))
    if symbol.startswith("py::"):
        name, _, file = symbol[4:].partition(":")
        return Frame(PYTHON, name, file, "")
    base = os.path.basename(dso)
    if len(address) == 16 and address.startswith("ffff"):
        return Frame(KERNEL, symbol, "", dso)
    if dso in interpreters or INTERPRETER_FILE.match(base):
        return Frame(INTERPRETER, symbol, "", dso)
    if IMAGE_FILE.match(base):      # a slot without a name, or another JIT's code
        return Frame(INTERPRETER if symbol == "[unknown]" else NATIVE, symbol, "", "")
    return Frame(NATIVE, symbol, "", dso)


def view_mixed(numbers, kinds):
    """Without the interpreter frames that only lead from one Python function to the next."""
    result, held = [], []
    for number in numbers:
        kind = kinds[number]
        if kind is INTERPRETER:
            held.append(number)
            continue
        if kind is not PYTHON:
            result += held
        held = []
        result.append(number)
    return result + held


def view_python(numbers, kinds):
    """Without interpreter and kernel frames, and without what is outside the outermost Python function."""
    result = [number for number in numbers if kinds[number] is PYTHON or kinds[number] is NATIVE]
    for at, number in enumerate(result):
        if kinds[number] is PYTHON:
            return result[at:]
    return result or list(numbers)


def view_everything(numbers, kinds):
    return numbers


VIEW_FUNCTIONS = {MIXED: view_mixed, PYTHON_ONLY: view_python, EVERYTHING: view_everything}


class Table:
    """What samples refer to by number. Grows while samples are read."""

    def __init__(self, selection, interpreters=()):
        self.selection, self.interpreters = selection, frozenset(interpreters)
        self.frames, self.kinds = [], []        # Frame, and its kind again
        self.stacks = []                        # tuples of frame numbers, root first
        self.threads = []                       # Thread
        self._frames, self._stacks, self._threads = {}, {}, {}
        self._lines = {}                        # line -> frame number
        self._known = self._lines.__getitem__
        self._callers, self._cached = {}, 0     # text of all lines but the leaf's; its bytes in sum
        self._view = VIEW_FUNCTIONS[selection.view]

    def frame_number(self, frame):
        number = self._frames.get(frame)
        if number is None:
            number = self._frames[frame] = len(self.frames)
            self.frames.append(frame)
            self.kinds.append(next(kind for kind in KINDS if kind == frame.kind))
        return number

    def thread_number(self, thread):
        """The thread's number, or None if it is not selected."""
        if thread not in self._threads:
            wanted = self.selection.wants_thread(thread)
            self._threads[thread] = len(self.threads) if wanted else None
            if wanted:
                self.threads.append(thread)
        return self._threads[thread]

    def stack_number(self, body):
        """The number of the stack in a block of lines, leaf first; None if it is not selected.

        Where a function is interrupted differs from sample to sample, but its callers' addresses are the
        same again and again. So the callers are looked up as one text, and the leaf by itself.
        """
        leaf, _, rest = body.partition(b"\n")
        callers = self._callers.get(rest)
        if callers is None:
            self._cached += len(rest)
            if self._cached > CACHED_BYTES:
                self._callers.clear()
                self._cached = len(rest)
            # {leaf's frame number: stack number} of the stacks with these callers, and the callers
            callers = self._callers[rest] = {}, self._numbers(rest)
        frame = self._lines.get(leaf)
        if frame is None:
            frame = self._line_number(leaf) if leaf else -1
        known, numbers = callers
        number = known.get(frame, known)
        if number is known:
            number = known[frame] = self._intern(numbers + [frame] if frame >= 0 else numbers)
        return number

    def _numbers(self, text):
        """Frame numbers, root first, of lines that are leaf first."""
        lines = text.split(b"\n") if text else []
        lines.reverse()
        try:
            return list(map(self._known, lines))
        except KeyError:
            return [self._line_number(line) for line in lines]

    def _intern(self, numbers):
        if self.selection.modules and not any(self.selection.wants_frame(self.frames[number]) for number in numbers):
            return None
        stack = tuple(self._view(numbers, self.kinds))
        number = self._stacks.get(stack)
        if number is None:
            number = self._stacks[stack] = len(self.stacks)
            self.stacks.append(stack)
        return number

    def _line_number(self, line):
        number = self._lines.get(line)
        if number is None:
            number = self._lines[line] = self.frame_number(parse_line(line, self.interpreters))
        return number

    def stack(self, number):
        """The Frames of a stack, root first."""
        return [self.frames[frame] for frame in self.stacks[number]]


def blocks(stream):
    """(head, body) of each sample in the output of `perf script`, as bytes."""
    rest = b""
    while True:
        chunk = stream.read(CHUNK)
        parts = (rest + chunk).split(b"\n\n")
        rest = parts.pop()
        for part in parts:
            head, _, body = part.partition(b"\n")
            if not head:        # the sample before had no stack
                head, _, body = part.lstrip(b"\n").partition(b"\n")
            yield head, body
        if not chunk:
            if rest.strip():
                head, _, body = rest.strip(b"\n").partition(b"\n")
                yield head, body
            return


def parse_samples(stream, table):
    """Samples of a byte stream that holds the output of `perf script -F FIELDS --ns`."""
    event_wanted, threads = table.selection.event.encode(), {}
    match, none, names, stack_number = HEAD.match, object(), {}, table.stack_number
    for head, body in blocks(stream):
        found = match(head)
        if not found:
            continue        # a warning of perf's between samples
        comm, pid, tid, seconds, fraction, period, event = found.groups()
        if event not in names:
            names[event] = event.decode("utf-8", "replace")
            event_wanted = event_wanted or event
        if event != event_wanted and event_wanted != b"*":
            continue
        key = comm, tid, pid
        thread = threads.get(key, none)
        if thread is none:
            thread = threads[key] = table.thread_number(Thread(int(pid), int(tid), comm.decode("utf-8", "replace")))
        if thread is None:
            continue
        stack = stack_number(body)
        if stack is not None:
            yield Sample(thread, stack, int(period), int(seconds + fraction.ljust(9, b"0")), names[event])


def read(recording, selection=None):
    """(table, iterator of Samples) of a Recording. The table grows while the iterator is consumed."""
    table = Table(selection or Selection(), recording.interpreters)
    return table, _read(recording, table)


def _read(recording, table):
    with recording.script(FIELDS) as stream, ui.Progress("reading samples") as progress:
        for count, sample in enumerate(parse_samples(stream, table)):
            if not count & 0xFFF:
                progress.update(ui.number_text(count))
            yield sample


class Profile:
    """All selected samples added up. weights: {(thread, stack): [weight, samples]}."""

    def __init__(self, table):
        self.table, self.weights, self.samples, self.weight = table, {}, 0, 0

    @property
    def stacks(self):
        """{stack number: weight}, all threads together."""
        result = collections.Counter()
        for (_, stack), (weight, _) in self.weights.items():
            result[stack] += weight
        return result


def load(recording, selection=None):
    """The Profile of a Recording; an error if nothing is selected."""
    table, samples = read(recording, selection)
    profile = Profile(table)
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
    if not profile.samples:
        what = table.selection.text
        raise ui.UserError("no sample is left: %s" % what if what else "%s holds no samples" % recording.path)
    return profile
