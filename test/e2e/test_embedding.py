"""Programs that bring CPython with them: loaded late by name, initialised more than once; and the library
loaded into a Python that runs already."""
import json
import subprocess

import pytest

HOST = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* usage: host LIBPYTHON ROUNDS: loads it out of everybody's sight, as a plug-in would be. */
int main(int argc, char **argv)
{
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    void (*initialize)(void) = (void (*)(void))dlsym(library, "Py_Initialize");
    int (*run)(const char *) = (int (*)(const char *))dlsym(library, "PyRun_SimpleString");
    int (*finalize)(void) = (int (*)(void))dlsym(library, "Py_FinalizeEx");
    for (int i = 0; i < atoi(argv[2]); i++) {
        char code[128];
        initialize();
        snprintf(code, sizeof code, "def round_%d():\n  return 1\nassert round_%d() == 1\n", i, i);
        if (run(code) || finalize())
            return 3;
    }
    return 0;
}
"""

FIND = """
import json, os, sys, sysconfig
get = sysconfig.get_config_var
names = [get("INSTSONAME"), "libpython3.%d.so.1.0" % sys.version_info[1]]
folders = [get("LIBDIR"), os.path.join(get("LIBDIR") or "", get("MULTIARCH") or "")]
paths = [os.path.join(folder, name) for folder in folders for name in names if folder and name]
print(json.dumps([[path for path in paths if path.endswith(".so.1.0") and os.path.exists(path)], sys.base_prefix]))
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    directory = tmp_path_factory.mktemp("host")
    source, program = directory / "host.c", directory / "host"
    source.write_text(HOST)
    subprocess.run(["cc", "-o", str(program), str(source), "-ldl"], check=True)
    return program


def embed(runner, python, host, rounds, **env):
    libraries, prefix = json.loads(subprocess.run([python.path, "-c", FIND], stdout=subprocess.PIPE, check=True,
                                                  env=runner.environment(preload=False)).stdout)
    if not libraries:
        pytest.skip("CPython 3.%d has no shared library here" % python.version[1])
    return runner.run([host, libraries[0], str(rounds)], env=dict(env, PYTHONHOME=prefix))


def rounds_of(names):
    return [name[len("py::"):-len(":<string>")] for name in names if name.startswith("py::round_")]


def test_loaded_late_by_name(runner, python, host):
    """Nothing of CPython is there when the program begins, and its library is local to the loader's caller."""
    result = embed(runner, python, host, 1)
    assert (result.status, result.err) == (0, b""), result
    assert rounds_of(runner.names(result.pid)) == ["round_0"]


@pytest.mark.parametrize("env", [{}, {"PYTHONMALLOC": "debug"}, {"PYTHONDEVMODE": "1"}],
                         ids=["plain", "debug-allocator", "dev-mode"])
def test_initialised_again(runner, python, host, env):
    """Finalisation frees all audit hooks, ours too; with the debug allocator it would abort over ours."""
    result = embed(runner, python, host, 3, **env)
    assert result.status == 0 and b"pyjitdump" not in result.err, result
    assert rounds_of(runner.names(result.pid)) == ["round_0", "round_1", "round_2"]


def test_loaded_into_a_running_python(runner, python, library):
    """As a debugger or sys.remote_exec would do it. Names of what existed before are qualified too."""
    result = runner.python(python, """
import ctypes, os, sys
class Before:
    def method(self):
        def inner(): pass
        inner()
        return [inner() for _ in "a"]
ctypes.PyDLL(sys.argv[1])
import json.tool
Before().method()
""", library, preload=False, env={"PYJD_DIR": runner.directory})
    assert (result.status, result.err) == (0, b""), result
    names = {name[len("py::"):name.rindex(":")] for name in runner.names(result.pid)
             if name.endswith("program.py")}
    assert {"Before.method", "Before.method.<locals>.inner"} <= names
