"""A CPython that the library does not know, or knows wrongly: one line, and nothing else.

A small library that is preloaded first answers Py_GetVersion() with a version of the test's choice, so
the library takes the interpreter for another. That needs an interpreter with a shared libpython: a static
one is found before any preloaded library.
"""
import re
import subprocess

import pytest

PROGRAM = """
def f(n):
    return n if n == 0 else f(n - 1)
print("result", f(50))
"""


@pytest.fixture(scope="module")
def impostor(tmp_path_factory):
    """Builds the answering library; returns a function from version to environment."""
    directory = tmp_path_factory.mktemp("impostor")
    source = directory / "impostor.c"
    source.write_text("""
        #include <stdlib.h>
        __attribute__((visibility("default"))) const char *Py_GetVersion(void)
        { return getenv("IMPOSTOR_VERSION"); }
    """)
    library = directory / "libimpostor.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)

    def environment(pyjitdump, version):
        return {"LD_PRELOAD": "%s:%s" % (library, pyjitdump), "IMPOSTOR_VERSION": version}

    return environment


def shared_only(python):
    dynamic = subprocess.run(["readelf", "-d", python.path], stdout=subprocess.PIPE, text=True, check=True)
    if "libpython" not in dynamic.stdout:
        pytest.skip("%s is static: its own Py_GetVersion cannot be replaced" % python.path)


def check_inert(runner, result, expected):
    assert (result.status, result.out) == (0, b"result 0\n"), result
    assert re.fullmatch(b"pyjitdump: [^\n]*" + expected + b"[^\n]*\n", result.err), result.err
    assert not runner.wrote(runner.map_path(result.pid))
    assert not runner.wrote(runner.dump_path(result.pid))
    assert not list(runner.directory.glob("*.so"))


@pytest.mark.parametrize("version", ["3.7.9 (main)", "3.99.0 (main)", "4.0.0 (main)", "nonsense"])
def test_unknown_version(python, runner, library, impostor, version):
    shared_only(python)
    result = runner.python(python, PROGRAM, env=impostor(library, version))
    check_inert(runner, result, b"does not know")


def test_wrong_layout(python, runner, library, impostor):
    """Taken for a version with another layout: the self-check finds out before anything is used."""
    shared_only(python)
    other = {8: 11, 9: 11, 10: 11, 11: 10, 12: 13, 13: 12, 14: 15, 15: 14}[python.version[1]]
    if other in (14, 15):
        pytest.skip("3.14 and 3.15 have the same layout")
    result = runner.python(python, PROGRAM, env=impostor(library, "3.%d.0 (main)" % other))
    check_inert(runner, result, b"(lays out its|does not know)")
