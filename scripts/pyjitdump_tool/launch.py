"""Starts a program, with the library in it, that waits at its first instruction until perf watches it.

Why not `perf record -- env LD_PRELOAD=... COMMAND`: perf with libunwind believes that a process which was
another program (here env) before an exec still has that program's libc where it was, and loses stacks.
Why not LD_PRELOAD before perf: perf would have it too, and perf may hold a Python interpreter.
So: the child asks to be traced and execs. The kernel stops it behind the exec, where its memory holds the
program and the dynamic loader only. perf attaches, and then we let it go.
"""
import os
import shutil
import signal
import stat
import subprocess

from . import ui

PTRACE_TRACEME, PTRACE_DETACH = 0, 17
MOST_SHEBANGS = 4


def ptrace():
    """The C function, or None where this Python has no ctypes."""
    try:
        import ctypes
        function = ctypes.CDLL(None, use_errno=True).ptrace
    except (ImportError, OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    function.restype = ctypes.c_long
    return function


def first_line(path):
    """The words behind #! of a script, or []."""
    try:
        with open(path, "rb") as file:
            line = file.read(256).split(b"\n")[0]
    except OSError:
        return []
    return line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []


def resolve(command):
    """The command that `command` becomes after the programs that only exec another: `#!/usr/bin/env NAME`
    and pyenv's shims. See above for why they should not be in a recording."""
    command = list(command)
    for _ in range(MOST_SHEBANGS):
        path = shutil.which(command[0])
        if not path:
            raise ui.UserError("cannot run %s: no such program" % command[0], status=127)
        if os.path.basename(os.path.dirname(path)) == "shims" and shutil.which("pyenv"):
            answer = subprocess.run(["pyenv", "which", os.path.basename(path)], stdout=subprocess.PIPE,
                                    stderr=subprocess.DEVNULL)
            real = os.fsdecode(answer.stdout).strip()
            if answer.returncode == 0 and os.path.isfile(real):
                command[0] = real
                continue
        words = first_line(path)
        if len(words) == 2 and os.path.basename(words[0]) == "env" and "=" not in words[1]:
            command = [words[1], path] + command[1:]
            continue
        break
    return command


def interpreter(command):
    """The executable that runs in the end: COMMAND itself, or the interpreter of the script that it is."""
    path = shutil.which(command[0]) or command[0]
    words = first_line(path)
    return os.path.realpath(words[0] if words else path)


def privileged(path):
    """Whether exec gives the program other rights: it loses them if it is traced."""
    try:
        return bool(os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID))
    except OSError:
        return False


class Waiting:
    """A started program that waits. `held` tells whether it could be held; if not, it has not been started
    and its owner must let perf start it."""

    def __init__(self, command, environment):
        self.pid, self.held, self.status = None, False, None
        self._ptrace = ptrace()
        if not self._ptrace or privileged(shutil.which(command[0])):
            return
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])

        def trace_me():
            # Our main loop takes signals with sigtimedwait; the program must not inherit what that blocks.
            signal.pthread_sigmask(signal.SIG_SETMASK, mask - {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD})
            if self._ptrace(PTRACE_TRACEME, 0, None, None):
                os._exit(126)

        try:
            self._process = subprocess.Popen(command, env=environment, preexec_fn=trace_me)
        except OSError as error:
            raise ui.UserError("cannot run %s: %s" % (command[0], error.strerror),
                               status=127 if isinstance(error, FileNotFoundError) else 126)
        except subprocess.SubprocessError:
            return
        self.pid = self._process.pid
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSTOPPED(status):
            self.held = True
        else:
            self._ended(status)

    def go(self):
        self._ptrace(PTRACE_DETACH, self.pid, None, None)
        self.held = False

    def kill(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._ended(os.waitpid(self.pid, 0)[1])

    def poll(self):
        """The exit status as a shell has it, or None while it runs."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended(status)
        return self.status

    def _ended(self, status):
        self.status = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self._process.returncode = self.status      # or it would wait for it, too
