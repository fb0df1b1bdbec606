/* embed: a program that embeds CPython and switches Python functions' native frames on and off.
 *
 *     embed [SECONDS]
 *
 * Runs the same Python twice, SECONDS each (default 1): with pyjitdump on, entered through `watched`, and
 * off, entered through `unwatched`. In perf the first half has py:: frames and the second has none.
 *
 * README.md next to this file says how to look at it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pyjitdump.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char source[] =
    "import time\n"
    "\n"
    "def inner():\n"
    "    return sum(range(2000))\n"
    "\n"
    "def middle():\n"
    "    return [inner() for _ in range(50)]\n"
    "\n"
    "def outer(seconds):\n"
    "    end = time.monotonic() + seconds\n"
    "    while time.monotonic() < end:\n"
    "        middle()\n"
    "\n"
    "def watched(seconds):\n"
    "    outer(seconds)\n"
    "\n"
    "def unwatched(seconds):\n"
    "    outer(seconds)\n";

/* Says what went wrong with a pyjd_ call. Profiling is no reason to stop: the program goes on. */
static void check(const char *what, int result)
{
    if (result < 0)
        fprintf(stderr, "embed: %s: %s\n", what, pyjd_strerror(result));
}

/* A code object has a file name, which becomes part of the symbols: py::inner:embed.py. */
static PyObject *load_functions(void)
{
    PyObject *functions = PyDict_New();
    PyObject *code = Py_CompileString(source, "embed.py", Py_file_input);
    PyObject *result = NULL;
    if (functions && code && !PyDict_SetItemString(functions, "__builtins__", PyEval_GetBuiltins()))
        result = PyEval_EvalCode(code, functions, functions);
    Py_XDECREF(code);
    if (!result)
        Py_CLEAR(functions);
    Py_XDECREF(result);
    return functions;
}

/* C functions between main and Python with names of their own, to be found in a report. */
static __attribute__((noinline)) int call(PyObject *functions, const char *name, double seconds)
{
    PyObject *function = PyDict_GetItemString(functions, name); /* borrowed */
    PyObject *result = function ? PyObject_CallFunction(function, "d", seconds) : NULL;
    int failed = !result;
    Py_XDECREF(result);
    return failed;
}

static int run(double seconds)
{
    PyObject *functions = load_functions();
    int failed = !functions || call(functions, "watched", seconds);
    if (!failed) {
        /* This thread holds the GIL, as pyjd_disable() wants it. */
        check("pyjd_disable", pyjd_disable());
        failed = call(functions, "unwatched", seconds);
    }
    if (failed && PyErr_Occurred())
        PyErr_Print();
    Py_XDECREF(functions);
    return failed;
}

static void print_status(void)
{
    struct pyjd_status status;
    check("pyjd_get_status", pyjd_get_status(&status, sizeof status));
    printf("pyjitdump %s, CPython 3.%" PRId32 ", %s\n", pyjd_version(), status.python_minor,
           status.enabled ? "enabled" : "disabled");
    printf("functions: %" PRIu64 ", in %" PRIu64 " bytes of trampolines\n", status.functions,
           status.arena_bytes);
    printf("ELF image: %s\n", status.image_path);
    printf("jitdump:   %s\n", status.jitdump_path);
    printf("perf map:  %s\n", status.map_path);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 1.0;

    /* Before Py_Initialize this notes the wish, so that the first interpreter starts with it. */
    check("pyjd_enable", pyjd_enable());
    Py_Initialize();
    int failed = run(seconds);
    print_status();
    if (Py_FinalizeEx() < 0)
        failed = 1;
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
