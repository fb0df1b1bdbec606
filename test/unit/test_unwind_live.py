#!/usr/bin/env python3
"""libdw unwinds a live Python process through a dozen nested calls out to main, by CFI alone.

usage: test_unwind_live.py LIBPYJITDUMP UNWIND_LIVE [PYTHON...]

Without PYTHON: /usr/bin/python3, python3.X on PATH, and ~/.pyenv/versions/3.*. For each, that

- the functions' frames come in order, each over an evaluator's, and the stack ends where it began;
- without the dump's unwind data, unwind-live says that CFI is missing (it does not fall back on
  frame pointers);
- with a wrong register in the unwind data the stack does not come out: it is what was followed;
- with trampolines in ELF images, the same stack without a dump.
"""

import glob
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

NESTED = ['f%d' % i for i in range(1, 13)]
EVALUATOR = '_PyEval_EvalFrameDefault'
# Debian's interpreter has no symbol for main itself; one of these is always there.
OUTERMOST = {'main', 'Py_BytesMain', '_Py_UnixMain', '__libc_start_main', '_start',
             '__libc_start_call_main', '__libc_start_main@@GLIBC_2.34', 'pymain_main', 'Py_RunMain'}
SKIPPED = 77

WORKLOAD = '''\
import sys, time
{functions}
def f12(depth):
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    time.sleep(depth)
f1(600)
'''
FUNCTION = '''\
def f{0}(depth):
    return f{1}(depth) + 1
'''

# Yama lets only an ancestor attach; PR_SET_PTRACER is how a process invites others.
INVITATION = '''\
import ctypes
ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1 & 0xffffffffffffffff), 0, 0, 0)
'''


def interpreters():
    """Each interpreter once, from 3.8 on."""
    found = ['/usr/bin/python3']
    found += filter(None, (shutil.which('python3.%d' % minor) for minor in range(8, 20)))
    found += sorted(glob.glob(os.path.expanduser('~/.pyenv/versions/3.*/bin/python3')))
    seen = set()
    for python in found:
        real = os.path.realpath(python)
        if real in seen or not os.access(python, os.X_OK):
            continue
        seen.add(real)
        version = subprocess.run([python, '-c', 'import sys; print(*sys.version_info[:2])'],
                                 stdout=subprocess.PIPE, text=True)
        if version.returncode == 0 and tuple(map(int, version.stdout.split())) >= (3, 8):
            yield python


def records(dump):
    """(start, id, size) of each record."""
    at = 40
    while at < len(dump):
        kind, size = struct.unpack_from('=II', dump, at)
        yield at, kind, size
        at += size


def without_unwind_data(dump):
    return dump[:40] + b''.join(dump[at:at + size] for at, kind, size in records(dump) if kind != 4)


def with_wrong_register(dump):
    """In the row for the call, the CFA is measured from rbx in place of rbp."""
    changed = bytearray(dump)
    for at, kind, size in records(dump):
        if kind == 4:
            row = dump.index(b'\x43\x0d\x06', at, at + size)  # advance 3, def_cfa_register rbp
            changed[row + 2] = 3
    return bytes(changed)


class Stack:
    """What unwind-live printed, the innermost frame first."""

    def __init__(self, tool, pid, *dump):
        run = subprocess.run([tool, str(pid), *dump], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, timeout=120)
        self.status, self.errors, self.text = run.returncode, run.stderr, run.stdout
        self.symbols = [line.split(' ', 1)[1].rsplit(' ', 1)[0] for line in run.stdout.splitlines()]

    def python(self):
        """Names of the Python functions, the outermost first."""
        return [name[4:].split(':')[0] for name in reversed(self.symbols) if name.startswith('py::')]


def check_stack(stack):
    """None, or what is wrong."""
    if stack.status != 0:
        return 'exit status %d: %s' % (stack.status, stack.errors)
    if stack.python() != ['<module>'] + NESTED:
        return 'Python functions are %s' % stack.python()
    # What a trampoline has called is the evaluator. A stripped interpreter has no name for the part of it
    # that the compiler has split off, and then another frame must be there all the same.
    for inner, outer in zip(stack.symbols, stack.symbols[1:]):
        if outer.startswith('py::') and inner not in (EVALUATOR, '??'):
            return '%s was called by %s' % (inner, outer)
    last = max(i for i, name in enumerate(stack.symbols) if name.startswith('py::'))
    # Versioned names ("__libc_start_main@@GLIBC_2.34") and parts ("main.cold") count.
    outer = {re.split(r'[@.]', name)[0] for name in stack.symbols[last + 1:]}
    if not outer & OUTERMOST:
        return 'the stack ends with %s' % stack.symbols[last:]
    return None


def check_process(tool, pid, dump, folder):
    trouble = check_stack(Stack(tool, pid, dump))
    if trouble:
        return trouble
    with open(dump, 'rb') as file:
        good = file.read()
    changed = os.path.join(folder, 'changed.dump')

    with open(changed, 'wb') as file:
        file.write(without_unwind_data(good))
    bare = Stack(tool, pid, changed)
    if bare.status == 0 or 'no CFI' not in bare.errors:
        return 'without unwind data: nothing noticed'

    with open(changed, 'wb') as file:
        file.write(with_wrong_register(good))
    wrong = Stack(tool, pid, changed)
    if check_stack(wrong) is None:
        return 'with wrong unwind data: the same stack, so something else was followed'
    return None


def check_python(python, library, tool):
    """None, or what is wrong, with the jitdump or with images."""
    def with_dump(pid, folder):
        dump = os.path.join(folder, 'jit-%d.dump' % pid)
        return check_process(tool, pid, dump, folder) if os.path.exists(dump) else 'no jitdump'

    for output, check in (('jitdump', with_dump),
                          ('elf', lambda pid, folder: check_stack(Stack(tool, pid)))):
        trouble = check_output(python, library, output, check)
        if trouble:
            return '%s: %s' % (output, trouble)
    return None


def check_output(python, library, output, check):
    with tempfile.TemporaryDirectory(prefix='pyjd-unwind-') as folder:
        app = os.path.join(folder, 'app.py')
        functions = ''.join(FUNCTION.format(i, i + 1) for i in range(1, 12))
        with open(app, 'w') as file:
            file.write(INVITATION if os.geteuid() else '')
            file.write(WORKLOAD.format(functions=functions))
        env = dict(os.environ, LD_PRELOAD=library, PYJD_OUTPUT=output, PYJD_DIR=folder)
        process = subprocess.Popen([python, '-I', app], env=env, stdout=subprocess.PIPE, text=True)
        try:
            if process.stdout.readline() != 'ready\n':
                return 'the workload did not start'
            return check(process.pid, folder)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def is_sanitized(library):
    """A library with AddressSanitizer in it cannot be preloaded into a program without."""
    with open(library, 'rb') as file:
        return b'__asan_init' in file.read()


def main():
    library, tool = map(os.path.abspath, sys.argv[1:3])
    if os.uname().machine != 'x86_64':
        print('SKIP unwind-live: the tool knows x86-64 only')
        return SKIPPED
    if is_sanitized(library):
        print('SKIP unwind-live: the library is built with AddressSanitizer')
        return SKIPPED
    failed = 0
    pythons = sys.argv[3:] or list(interpreters())
    for python in pythons:
        trouble = check_python(python, library, tool)
        print('%s %s%s' % ('FAIL' if trouble else 'ok  ', python, ': ' + trouble if trouble else ''),
              flush=True)
        failed += trouble is not None
    print('%d interpreters, %d failed' % (len(pythons), failed))
    return 1 if failed or not pythons else 0


if __name__ == '__main__':
    sys.exit(main())
