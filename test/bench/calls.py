#!/usr/bin/env python3
"""Instructions that the library adds to a Python call, counted by callgrind.

usage: calls.py [--library LIB] [--python PYTHON]

The floor is the null evaluator: a PEP 523 evaluator that only calls the default one. What is printed is what
the library, and CPython's own -X perf where there is one, cost on top of that, per call of a recursive
function: the difference of two runs with different numbers of calls, so that start-up does not count.
Needs valgrind, a C compiler and the headers of that Python.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

NULL_EVALUATOR = r"""
#include <Python.h>
/* Under names of our own: versions declare these differently, or not at all. */
extern PyObject *evaluate(void *, void *, void *) __asm__("_PyEval_EvalFrameDefault");
extern void set_evaluator(void *, void *) __asm__("_PyInterpreterState_SetEvalFrameFunc");
extern void *interpreter(void) __asm__("PyInterpreterState_Get");
static PyObject *null_evaluator(void *a, void *b, void *c) { return evaluate(a, b, c); }
static PyObject *install(PyObject *self, PyObject *args)
{
    (void)self, (void)args;
    set_evaluator(interpreter(), (void *)null_evaluator);
    Py_RETURN_NONE;
}
static PyMethodDef methods[] = {{"install", install, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "null_evaluator", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_null_evaluator(void) { return PyModule_Create(&module); }
"""

PROGRAM = """
import sys
if sys.argv[2] == "null":
    import null_evaluator
    null_evaluator.install()
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
fib(int(sys.argv[1]))
"""

FEW, MANY = 15, 20          # fib(n) makes 2 * fib(n + 1) - 1 calls
CALLS = (2 * 10946 - 1) - (2 * 987 - 1)


def build(python, directory):
    include = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"],
                             check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    source = os.path.join(directory, "null_evaluator.c")
    with open(source, "w") as file:
        file.write(NULL_EVALUATOR)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-I", include, "-o",
                    os.path.join(directory, "null_evaluator.so"), source], check=True)


def instructions(command, env):
    run = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"] + command,
                         env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode or not found:
        sys.exit("callgrind failed: " + run.stderr[-500:])
    return int(found.group(1))


def per_call(python, directory, kind, options=(), **variables):
    script = os.path.join(directory, "program.py")
    with open(script, "w") as file:
        file.write(PROGRAM)
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("PYJD_", "PYTHON", "LD_PRELOAD"))}
    env.update(variables, PYTHONHASHSEED="0")
    few, many = (instructions([python, "-S", *options, script, str(n), kind], env)
                 for n in (FEW, MANY))
    return (many - few) / CALLS


def main():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", default=os.path.join(root, "build/libpyjitdump/libpyjitdump.so"))
    parser.add_argument("--python", default="/usr/bin/python3")
    args = parser.parse_args()
    library = os.path.realpath(args.library)
    if not os.path.exists(library):
        sys.exit("%s: not built; see README, or give --library" % library)
    version = subprocess.run([args.python, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"],
                             check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    minor = int(version.split(".")[1])
    if minor < 9:
        sys.exit("3.8 has no function to set an evaluator with")
    with tempfile.TemporaryDirectory(prefix="pyjd-bench-") as directory:
        build(args.python, directory)
        bare = per_call(args.python, directory, "bare")
        null = per_call(args.python, directory, "null")
        ours = per_call(args.python, directory, "bare", LD_PRELOAD=library, PYJD_DIR=directory)
        print("CPython %s, fib, instructions per call" % version)
        print("  without an evaluator     %7.1f" % bare)
        print("  null evaluator           %7.1f" % null)
        print("  libpyjitdump             %7.1f   %+.1f" % (ours, ours - null))
        if minor >= 12:
            peer = per_call(args.python, directory, "bare", ["-X", "perf"])
            print("  -X perf                  %7.1f   %+.1f" % (peer, peer - null))


if __name__ == "__main__":
    main()
