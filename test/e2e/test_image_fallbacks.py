"""Where an image cannot be had: one line says so, the next backing is used, the other outputs go on, and
the program's output is the same."""
import json
import os
import re
import shutil
import subprocess

import pytest

import image_elf
import perf as perf_module
from image_tools import TARGET, images, output, tool
from perf import python_function

PROGRAM = """
import sys

def function(i):
    namespace = {}
    exec(compile("def f%d(): return %d" % (i, i), "/srv/many.py", "exec"), namespace)
    return namespace["f%d" % i]()

print(sum(function(i) for i in range(int(sys.argv[1]))), [n for n in dir() if "pyjd" in n])
"""
COUNT = 3000
WANTED = {"py::f%d:/srv/many.py" % i for i in range(COUNT)}


def run(runner, python, **env):
    """Runs the program; its output is what it is without us. Returns (Result, lines on stderr)."""
    result = runner.python(python, PROGRAM, str(COUNT), env=env)
    assert (result.status, result.out) == (0, b"%d []\n" % (COUNT * (COUNT - 1) // 2)), result
    lines = result.err.decode().splitlines()
    assert all(line.startswith("pyjitdump: ") for line in lines), lines
    return result, lines


def image_names(directory, pid):
    return {name for path in images(directory, pid) for name in image_elf.read(path).names()}


def is_about_images(line):
    return "ELF images" in line or re.search(r"\belf is off", line)


@pytest.fixture
def mounted(tmp_path):
    """mounted(options): a new tmpfs."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    made = []

    def mount(options):
        directory = tmp_path / ("mount%d" % len(made))
        directory.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(directory)],
                              stderr=subprocess.PIPE)
        if done.returncode:
            pytest.skip("this machine does not allow mounts: %s" % done.stderr.decode().strip())
        made.append(directory)
        return directory

    yield mount
    for directory in made:
        output("umount", "-l", directory)


def test_noexec(runner, python, mounted):
    directory = mounted("noexec,size=64m")
    result, lines = run(runner, python, PYJD_DIR=directory)
    assert len([line for line in lines if is_about_images(line)]) == 1, lines
    assert len(lines) <= 2, lines                   # the jitdump's marker may be refused as well
    assert not images(directory, result.pid)        # what could not be loaded is not left behind
    assert WANTED <= set(runner.map_names(result.pid))
    # An anonymous arena is what perf reads the map for.
    assert WANTED <= set(runner.dump_names(result.pid, directory))


# Bytes. An image takes 0.2 MB, then 0.4, 0.8, 1.6; a jitdump of these functions 1.3 MB.
@pytest.mark.parametrize("kilobytes", [4, 64, 196, 204, 260, 420, 610, 700, 1500, 3200])
@pytest.mark.parametrize("outputs", ["elf,map", "elf,jitdump,map"])
def test_full_disk(runner, any_python, mounted, kilobytes, outputs):
    """At every point at which space can run out: in the first image, in a later one, in the jitdump."""
    directory = mounted("size=%dk" % kilobytes)
    result, lines = run(runner, any_python, PYJD_DIR=directory, PYJD_OUTPUT=outputs)
    assert len([line for line in lines if is_about_images(line)]) <= 1, lines
    assert len(lines) <= (2 if "jitdump" in outputs else 1), lines
    assert lines or kilobytes > 3000
    for line in lines:
        assert "full" in line or "No space" in line, line
    # The images that are there are whole, and what they do not name, the map does.
    in_images = image_names(directory, result.pid)
    assert not in_images & WANTED or in_images
    assert WANTED <= set(runner.map_names(result.pid))


@pytest.mark.parametrize("limit", [1, 100 * 1024, 300 * 1024, 1024 * 1024])
def test_limit_on_file_sizes(runner, any_python, limit):
    """ulimit -f: no SIGXFSZ, no partial image."""
    import resource
    runner.directory.joinpath("program.py").write_text(PROGRAM)
    result = runner.run([any_python.path, runner.directory / "program.py", str(COUNT)],
                        env={"PYJD_OUTPUT": "elf"},
                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert (result.status, result.out) == (0, b"%d []\n" % (COUNT * (COUNT - 1) // 2)), result
    lines = result.err.decode().splitlines()
    assert len(lines) == 1 and is_about_images(lines[0]), lines
    for path in images(runner.directory, result.pid):
        image_elf.read(path)


def test_unwritable_directory(runner, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    python = "/usr/bin/python3"
    if not os.access(python, os.X_OK):
        pytest.skip("no /usr/bin/python3 for another user to run")
    directory = "/var/empty-%d" % os.getpid()
    os.mkdir(directory, 0o755)
    try:
        library = shutil.copy(runner.library, directory)    # the other user may not get at the built one
        script = os.path.join(directory, "program.py")
        with open(script, "w") as file:
            file.write(PROGRAM)
        os.chmod(script, 0o644), os.chmod(library, 0o755)
        result = runner.run([tool("setpriv", "util-linux"), "--reuid", "65534", "--regid", "65534",
                             "--clear-groups", "env", "LD_PRELOAD=" + library, python, script, str(COUNT)],
                            preload=False, env={"PYJD_DIR": directory}, cwd="/")
        assert (result.status, result.out) == (0, b"%d []\n" % (COUNT * (COUNT - 1) // 2)), result
        lines = result.err.decode().splitlines()
        assert len(lines) == 2 and len([line for line in lines if is_about_images(line)]) == 1, lines
        assert sorted(os.listdir(directory)) == sorted(["program.py", os.path.basename(library)])
        assert WANTED <= set(runner.map_names(result.pid))
    finally:
        shutil.rmtree(directory)


REFUSING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static __thread int refused;

/* As where a security module forbids the loader's mappings. */
void *dlopen(const char *path, int flags)
{
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    refused = path && strstr(path, "/pyjd-") != NULL;
    return refused ? NULL : next(path, flags);
}

char *dlerror(void)
{
    char *(*next)(void) = (char *(*)(void))dlsym(RTLD_NEXT, "dlerror");
    if (!refused)
        return next();
    refused = 0;
    return "refused by the test";
}
"""


@pytest.fixture(scope="session")
def refusing(tmp_path_factory):
    """A library that refuses to load images."""
    compiler = tool(os.environ.get("CC", "cc"), "gcc")
    directory = tmp_path_factory.mktemp("refusing")
    (directory / "refusing.c").write_text(REFUSING)
    output(compiler, "-shared", "-fPIC", "-O2", "-o", directory / "refusing.so", directory / "refusing.c", "-ldl")
    return str(directory / "refusing.so")


def test_dlopen_refused(runner, any_python, refusing):
    """The image is mapped instead, and has all names."""
    preload = "%s:%s" % (refusing, runner.library)
    result, lines = run(runner, any_python, LD_PRELOAD=preload, PYJD_LOG="info")
    paths = images(runner.directory, result.pid)
    refusals = [line for line in lines if "refused by the test" in line]
    assert 1 <= len(refusals) <= len(paths), lines
    names = runner.names(result.pid)
    assert WANTED <= set(names) == image_names(runner.directory, result.pid)
    # And at the usual level there is one line at most.
    _, lines = run(runner, any_python, LD_PRELOAD=preload)
    assert len(lines) <= 1


def test_stacks_where_dlopen_is_refused(runner, perf, any_python, refusing, record_property):
    """perf needs no more than the mapping."""
    from test_image_perf import with_spans
    from test_stacks import WORKLOAD, fault, judge
    env = runner.environment(PYJD_DIR="/tmp", LD_PRELOAD="%s:%s" % (refusing, runner.library), PYJD_OUTPUT="elf")
    data, out = perf.record([any_python.path, WORKLOAD, "0.8", "1"], env=env, monotonic=False)
    told = json.loads(out)
    runner.pids.add(told["pid"])
    samples = perf.samples(data)
    judge(samples, with_spans(samples, told), any_python, fault, record_property)
    assert {frame.dso for sample in samples for frame in sample.frames if python_function(frame)} <= \
        set(images("/tmp", told["pid"]))


def test_eu_stack_where_dlopen_is_refused(runner, any_python, refusing):
    from image_tools import WAITING, python_names, symbol_frames
    from test_image_debuggers import EU_STACK_FRAME, eu_stack
    process = runner.start([any_python.path, TARGET], env={"LD_PRELOAD": "%s:%s" % (refusing, runner.library)},
                           stdin=subprocess.PIPE)
    assert process.stdout.readline() == b'"ready"\n'
    text = eu_stack("-p", process.pid)
    assert python_names(symbol_frames(text, EU_STACK_FRAME)) == WAITING, text
    process.communicate(b"quit\n", timeout=60)


def test_stacks_in_anonymous_memory(runner, perf, any_python, mounted, record_property):
    """On a noexec directory perf has the map, as without images."""
    from test_stacks import WORKLOAD, judge, map_fault
    if perf_module.loses_anonymous_memory():
        pytest.skip(perf_module.NO_ANONYMOUS_MEMORY)
    directory = mounted("noexec,size=64m")
    env = runner.environment(PYJD_DIR=directory, PYJD_OUTPUT="elf,map")
    data, out = perf.record([any_python.path, WORKLOAD, "0.8", "1"], env=env)
    told = json.loads(out)
    runner.pids.add(told["pid"])
    judge(perf.samples(data), told, any_python, map_fault, record_property)


def test_images_alone_and_refused(runner, any_python, mounted):
    """PYJD_OUTPUT=elf with nowhere to put one: a line, and the program runs."""
    directory = mounted("noexec,size=64m")
    result, lines = run(runner, any_python, PYJD_DIR=directory, PYJD_OUTPUT="elf")
    assert len(lines) == 1 and is_about_images(lines[0]), lines
    assert os.listdir(str(directory)) == []
