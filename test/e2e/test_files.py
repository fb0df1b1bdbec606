"""Where files cannot be written, or something waits under their name: one line on stderr, the
program is what it was, and what is not ours stays untouched. And settings that are not valid."""
import os
import re
import shlex
import socket
import subprocess

import pytest

PROGRAM = """
import sys
def function(): return "result"
print(function())
"""
ONE_LINE = rb"pyjitdump: [^\n]+\n"
SYMBOL = "py::function:"


def has_symbol(names):
    return any(name.startswith(SYMBOL) for name in names)


@pytest.mark.parametrize("name,value", [
    ("PYJD_OUTPUT", "everything"), ("PYJD_OUTPUT", "map,"), ("PYJD_OUTPUT", "map;elf"),
    ("PYJD_ENABLE", "yes"), ("PYJD_ENABLE", "2"), ("PYJD_MAX_FUNCTIONS", "0"),
    ("PYJD_MAX_FUNCTIONS", "-1"), ("PYJD_MAX_FUNCTIONS", "many"),
    ("PYJD_MAX_FUNCTIONS", "99999999999999999999"), ("PYJD_LOG", "loud"),
    ("PYJD_DIR", "/nonexistent/directory"), ("PYJD_DIR", "/dev/null")])
def test_invalid_setting(runner, any_python, name, value):
    """One line which names the variable and the value, and the default instead."""
    result = runner.python(any_python, PROGRAM, env={name: value})
    assert (result.status, result.out) == (0, b"result\n")
    assert re.fullmatch(ONE_LINE, result.err), result.err
    assert ("%s=%s" % (name, value)).encode() in result.err
    assert has_symbol(runner.map_names(result.pid))
    assert has_symbol(runner.dump_names(result.pid, "/tmp" if name == "PYJD_DIR" else None))


def test_each_invalid_setting_has_its_line(runner, any_python):
    wrong = {"PYJD_OUTPUT": "x", "PYJD_ENABLE": "x", "PYJD_MAX_FUNCTIONS": "x", "PYJD_LOG": "x"}
    result = runner.python(any_python, PROGRAM, env=wrong)
    lines = result.err.decode().splitlines()
    told = [re.match("pyjitdump: (PYJD_[A-Z_]+)=x ", line).group(1) for line in lines]
    assert sorted(told) == sorted(wrong)
    wrong["PYJD_LOG"] = "off"
    runner.quiet(any_python, PROGRAM, env=wrong)


def test_empty_settings_are_defaults(runner, any_python):
    result = runner.quiet(any_python, PROGRAM, env=dict.fromkeys(
        ("PYJD_OUTPUT", "PYJD_ENABLE", "PYJD_MAX_FUNCTIONS", "PYJD_LOG"), ""))
    assert has_symbol(runner.names(result.pid))


@pytest.mark.parametrize("output", ["jitdump", "map"])
def test_only_the_output_asked_for(runner, any_python, output):
    result = runner.quiet(any_python, PROGRAM, env={"PYJD_OUTPUT": output})
    map, dump = runner.map_path(result.pid), runner.dump_path(result.pid)
    assert (runner.wrote(map), runner.wrote(dump)) == (output == "map", output == "jitdump")
    assert [name for name in os.listdir(runner.directory) if name != "program.py"] == (
        [dump.name] if output == "jitdump" else [])


def test_relative_directory(runner, any_python):
    """Resolved once: the program changes its directory before it publishes."""
    (runner.directory / "here").mkdir()
    result = runner.quiet(any_python, "import os\nos.chdir('/')\n" + PROGRAM,
                          env={"PYJD_DIR": "here"}, cwd=runner.directory)
    assert has_symbol(runner.dump_names(result.pid, runner.directory / "here"))


@pytest.fixture
def mounted(tmp_path):
    """Mounts a tmpfs with these options and returns where."""
    place = tmp_path / "mounted"
    place.mkdir()

    def mount(options):
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)],
                              stderr=subprocess.PIPE)
        if done.returncode:
            pytest.skip("cannot mount a tmpfs here: %s" % done.stderr.decode().strip())
        return place

    yield mount
    subprocess.run(["umount", str(place)], stderr=subprocess.DEVNULL)


def refused(runner, python, directory, code=PROGRAM):
    """Runs where no jitdump can be written; the map, in /tmp, is not concerned."""
    result = runner.python(python, code, env={"PYJD_DIR": directory, "PYJD_OUTPUT": "jitdump,map"})
    assert (result.status, result.out) == (0, b"result\n")
    assert re.fullmatch(ONE_LINE, result.err), result.err
    assert has_symbol(runner.map_names(result.pid))
    return result


def test_directory_that_cannot_be_written_to(runner, any_python, tmp_path, request):
    if os.geteuid() == 0:       # root may write to any directory, but not to any file system
        place = request.getfixturevalue("mounted")("ro")
    else:
        place = tmp_path / "read-only"
        place.mkdir(mode=0o555)
    refused(runner, any_python, place)
    assert os.listdir(place) == []


def test_noexec_file_system(runner, any_python, mounted):
    """The marker cannot be executable there; the dump is complete and one line tells."""
    place = mounted("noexec")
    result = refused(runner, any_python, place)
    assert b"noexec" in result.err
    assert has_symbol(runner.dump_names(result.pid, place))


def test_full_file_system(runner, any_python, mounted):
    """Whole functions up to where it is full, and nothing after: no half record."""
    result = refused(runner, any_python, mounted("size=32k"))
    dump = runner.dump(result.pid, runner.directory / "mounted")
    assert 1 <= len(dump.functions) < len(runner.map_names(result.pid))
    names = [function.name for function in dump.functions]
    assert runner.map_names(result.pid)[:len(names)] == names


def test_file_size_limit(runner, any_python):
    """ulimit -f: a write past it would raise SIGXFSZ. CPython ignores that signal; a program that
    has set it back must not die of us."""
    code = "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n" \
           "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n" + PROGRAM
    result = runner.python(any_python, code, env={"PYJD_OUTPUT": "jitdump"})
    assert (result.status, result.out) == (0, b"result\n")
    assert re.fullmatch(ONE_LINE, result.err), result.err
    runner.dump(result.pid)


# What waits under our file's name: how to make it, given $target, a file with content, as $path.
# The shell has the process id that Python will have, since it becomes Python by exec.
HOSTILE = {
    "symlink": 'ln -s "$target" "$path"',
    "dangling_symlink": 'ln -s "$target.not" "$path"',
    "symlink_to_fifo": 'mkfifo "$target.fifo"; ln -s "$target.fifo" "$path"',
    "fifo": 'mkfifo "$path"',
    "directory": 'mkdir "$path"; touch "$path/precious"',
    "others_file": 'cp "$target" "$path"; chown 65534 "$path"; chmod 666 "$path"',
    "hard_link_to_others_file": 'chown 65534 "$target"; ln "$target" "$path"',
}
# A regular file of one's own is a dead process' whose id has come round again: replaced, not
# written to.
OWN = {
    "own_file": 'cp "$target" "$path"',
    "hard_link_to_own_file": 'ln "$target" "$path"',
}


def run_with_waiting(runner, python, name, setup):
    """The program with `setup` made before under NAME with the process' id in it: (result,
    path)."""
    script, target = runner.directory / "program.py", runner.directory / "target"
    script.write_text(PROGRAM)
    target.write_text("precious\n")
    command = "target=%s; path=%s; %s; exec env LD_PRELOAD=%s %s %s" % (
        shlex.quote(str(target)), name.replace("PID", "$$"), setup, shlex.quote(runner.library),
        shlex.quote(python.path), shlex.quote(str(script)))
    result = runner.run(["sh", "-ec", command], preload=False, env={
        "PYJD_DIR": runner.directory, "PYJD_OUTPUT": "jitdump,map"})
    assert (result.status, result.out) == (0, b"result\n"), result
    assert target.read_text() == "precious\n"
    return result, name.replace("PID", str(result.pid))


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("file", ["jitdump", "map"])
def test_hostile_file(runner, any_python, what, file):
    if "others" in what and os.geteuid() != 0:
        pytest.skip("making a file of another user takes root")
    name = "/tmp/perf-PID.map" if file == "map" else str(runner.directory / "jit-PID.dump")
    # Clear the way first: an older process of this id may have left its own.
    result, path = run_with_waiting(runner, any_python, name, 'rm -f "$path"; ' + HOSTILE[what])
    try:
        assert re.fullmatch(ONE_LINE, result.err), result.err
        assert not os.path.exists(str(runner.directory / "target.not"))
        if what == "others_file":
            with open(path) as waiting:
                assert waiting.read() == "precious\n"
        if what == "directory":
            assert os.listdir(path) == ["precious"]
        # The other output goes on.
        other = runner.dump_names(result.pid) if file == "map" else runner.map_names(result.pid)
        assert has_symbol(other)
    finally:
        subprocess.run(["rm", "-rf", path])


@pytest.mark.parametrize("file", ["jitdump", "map"])
def test_line_says_which_file(runner, any_python, file):
    """Whoever is to remove it must be told what."""
    name = "/tmp/perf-PID.map" if file == "map" else str(runner.directory / "jit-PID.dump")
    result, path = run_with_waiting(runner, any_python, name, 'rm -f "$path"; mkdir "$path"')
    os.rmdir(path)
    assert path.encode() in result.err


@pytest.mark.parametrize("what", OWN)
@pytest.mark.parametrize("file", ["jitdump", "map"])
def test_stale_file_of_ones_own(runner, any_python, what, file):
    name = "/tmp/perf-PID.map" if file == "map" else str(runner.directory / "jit-PID.dump")
    result, path = run_with_waiting(runner, any_python, name, 'rm -f "$path"; ' + OWN[what])
    assert result.err == b""
    assert has_symbol(runner.names(result.pid))
    assert os.stat(path).st_nlink == 1


def test_socket_under_the_name(runner, any_python, tmp_path):
    """A socket cannot be made by a shell: the program waits for it to be there, before its exec."""
    place = tmp_path / "s"
    place.mkdir()
    command = "while [ ! -e %s/go ]; do sleep 0.01; done; " % place
    command += "exec env LD_PRELOAD=%s %s -c 'print(1)'" % (runner.library, any_python.path)
    process = runner.start(["sh", "-c", command], preload=False, env={
        "PYJD_DIR": place, "PYJD_OUTPUT": "jitdump"})
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.bind(str(place / ("jit-%d.dump" % process.pid)))
        (place / "go").touch()
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, b"1\n")
    assert re.fullmatch(ONE_LINE, err), err


CLOSES = """
import os, sys
def before(): pass
before()
target = os.open(sys.argv[1], os.O_RDWR)
for name in os.listdir("/proc/self/fd"):
    fd = int(name)
    if fd > 2 and fd != target:
        try:
            if %s: os.close(fd)
            else: os.dup2(target, fd)
        except OSError: pass
def after(): pass
after()
"""


@pytest.mark.parametrize("how", ["closed", "reused"])
def test_descriptors_closed_by_the_program(runner, python, how, tmp_path):
    """A daemon closes every descriptor it does not know, and gets the numbers again for its own
    files: we must find our file again and write to no other."""
    target = tmp_path / "target"
    target.write_text("precious\n")
    result = runner.quiet(python, CLOSES % (how == "closed"), target)
    assert target.read_text() == "precious\n"
    names = [name.partition(":/")[0] for name in runner.names(result.pid)]
    assert "py::before" in names and "py::after" in names
