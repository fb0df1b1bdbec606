"""Words to the user: one-line errors, notes, progress, colour."""
import os
import sys
import time


class UserError(Exception):
    """Something the user can mend. Ends the command with one line on stderr and `status`."""

    def __init__(self, message, status=2):
        super().__init__(message)
        self.status = status


def say(message):
    """A note on stderr. stdout is for results."""
    sys.stderr.write("pyjitdump: %s\n" % message)
    sys.stderr.flush()


COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


def colourful(stream):
    """Whether `stream` is a terminal that wants colour (https://no-color.org)."""
    return (hasattr(stream, "isatty") and stream.isatty() and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb")


def painter(stream):
    """A function paint(colour, text) for text that goes to `stream`."""
    if not colourful(stream):
        return lambda colour, text: text
    return lambda colour, text: "\033[%sm%s\033[0m" % (COLOURS[colour], text) if colour else text


class Progress:
    """A line on stderr that is rewritten while something long goes on. Nothing without a terminal."""

    def __init__(self, what, interval=0.2):
        self.what, self.interval = what, interval
        self.shown, self.next = "", 0.0
        self.on = sys.stderr.isatty()

    def update(self, text):
        """Shows `what: text`, but not more often than each `interval` seconds."""
        if self.on and time.monotonic() >= self.next:
            self.next = time.monotonic() + self.interval
            line = "%s: %s" % (self.what, text)
            sys.stderr.write("\r" + line.ljust(len(self.shown)))
            sys.stderr.flush()
            self.shown = line

    def done(self):
        if self.shown:
            sys.stderr.write("\r" + " " * len(self.shown) + "\r")
            sys.stderr.flush()
            self.shown = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.done()


def bytes_text(count):
    """1234567 as `1.2 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return "%d B" % count if unit == "B" else "%.1f %s" % (count, unit)
        count /= 1000


def number_text(count):
    """1234567 as `1,234,567`."""
    return format(int(count), ",")
