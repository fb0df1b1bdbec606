"""Finds the subcommand, reads its arguments, runs it, and turns what goes wrong into one line."""
import argparse
import gc
import importlib
import os
import sys

from . import ui

VERSION = "0.1.0"

SUBCOMMANDS = {
    "record": "run a program, or watch a running one, and record its mixed stacks",
    "report": "show a recording as text, from the top or from the bottom",
    "flamegraph": "make a flame graph of a recording, one HTML file",
    "export": "write a recording in another profiler's format",
    "inspect": "print a jitdump or an ELF image, and say what is wrong with it",
    "doctor": "find what would make a recording bad, and say how to mend it",
    "clean": "remove the files that dead processes left",
}

USAGE = """\
usage: pyjitdump SUBCOMMAND [options]

Records Python programs with perf so that Python functions are functions, and shows the result.

%s

From a slow program to a picture:

  pyjitdump record -- python3 app.py
  pyjitdump flamegraph

`pyjitdump SUBCOMMAND --help` has the options and examples of each.
Exit status: that of the recorded program for record; else 0, 1 for a result with complaints,
2 for what could not be done.
"""


class Parser(argparse.ArgumentParser):
    """Complains in one line."""

    def error(self, message):
        raise ui.UserError("%s; see %s --help" % (message, self.prog))


def usage():
    width = max(map(len, SUBCOMMANDS))
    return USAGE % "\n".join("  %s  %s" % (name.ljust(width), text) for name, text in SUBCOMMANDS.items())


def load(name):
    return importlib.import_module("." + name, __package__)


def make_parser(name, module):
    parser = Parser(prog="pyjitdump " + name, description=SUBCOMMANDS[name][0].upper() + SUBCOMMANDS[name][1:] + ".",
                    formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    module.add_arguments(parser)
    return parser


def parse(name, module, words):
    """The subcommand's arguments. A command to run is what stands behind the first `--`."""
    command = None
    if getattr(module, "TAKES_COMMAND", False) and "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1:]
        if not command:
            raise ui.UserError("there is no command behind --")
    parser = make_parser(name, module)
    if getattr(module, "PASSES_ON", False):
        args, args.unknown = parser.parse_known_args(words)
    else:
        args = parser.parse_args(words)
    if getattr(module, "TAKES_COMMAND", False):
        args.command = command
    return args


def dispatch(words):
    if not words or words[0] in ("-h", "--help", "help"):
        if len(words) > 1 and words[1] in SUBCOMMANDS:
            return dispatch([words[1], "--help"])
        (sys.stdout if words else sys.stderr).write(usage())
        return 0 if words else 2
    name = words[0]
    if name in ("-V", "--version"):
        print("pyjitdump " + VERSION)
        return 0
    if name not in SUBCOMMANDS:
        raise ui.UserError("there is no subcommand %s; use one of %s" % (name, ", ".join(SUBCOMMANDS)))
    module = load(name)
    return module.run(parse(name, module, words[1:])) or 0


def main(words=None):
    """Runs the command line, and returns the exit status."""
    # There are millions of small tuples and no cycles worth finding; looking for them takes half the time.
    gc.disable()
    try:
        status = dispatch(sys.argv[1:] if words is None else words)
        sys.stdout.flush()
        return status
    except ui.UserError as error:
        ui.say(error)
        return error.status
    except BrokenPipeError:
        # The reader of our output has seen enough (`| head`). Nothing may be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return 130
