"""The image as a file in a directory that others may write to: its name, its mode, and what may wait
under that name."""
import os
import re
import stat
import subprocess

import pytest

import image_elf
from image_tools import ROOT, all_names, images, start_target, tool  # noqa: F401

PROGRAM = "def f(): return 1\nprint(f())\n"


def test_name_mode_and_life(start_target, python, tmp_path):
    target = start_target(python)
    target.do("grow", 1500)
    paths = target.images()
    assert [os.path.basename(path) for path in paths] == [
        "pyjd-%d-%d.so" % (target.pid, number) for number in range(1, len(paths) + 1)]
    for path in paths:
        status = os.stat(path)
        assert stat.S_IMODE(status.st_mode) == 0o600 and status.st_uid == os.geteuid()
        assert status.st_nlink == 1
    # What is mapped of it: no page is writable and executable, none of it is writable below its code.
    with open("/proc/%d/maps" % target.pid) as maps:
        mappings = [line.split() for line in maps if "/pyjd-" in line]
    for path in paths:
        mine = sorted((int(words[0].split("-")[0], 16), words[1]) for words in mappings if words[5] == path)
        assert [mode for _, mode in mine][0] == "r-xp", mine
        assert not any("w" in mode and "x" in mode for _, mode in mine)
    target.finish()
    assert target.images() == paths     # reports are read later


def test_descriptors_are_not_inherited(runner, any_python):
    code = ("import os, subprocess, sys\n"
            "print(subprocess.run([sys.executable, '-S', '-c', 'import os; print([os.readlink(\"/proc/self/fd/\" + "
            "fd) for fd in os.listdir(\"/proc/self/fd\") if os.path.lexists(\"/proc/self/fd/\" + fd)])'], "
            "env=dict(os.environ, LD_PRELOAD=''), close_fds=False, stdout=subprocess.PIPE).stdout)\n")
    assert b"pyjd-" not in runner.quiet(any_python, code).out


def test_umask_does_not_matter(runner, any_python):
    result = runner.quiet(any_python, PROGRAM, preexec_fn=lambda: os.umask(0))
    for path in images(runner.directory, result.pid):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


class Prepared:
    """Python in a process whose id is known before: a shell prepares the directory and becomes it."""

    def __init__(self, runner, python, shell, env=None):
        script = runner.directory / "program.py"
        script.write_text(PROGRAM)
        self.directory = runner.directory / "shared"
        self.directory.mkdir()
        environment = dict(PYJD_DIR=self.directory, PYJD_OUTPUT="elf,map", **(env or {}))
        self.result = runner.run(
            ["sh", "-c", 'image="$1/pyjd-$$-1.so"; %s; LD_PRELOAD=%s exec "$2" "$3"' % (shell, runner.library),
             "sh", self.directory, python.path, script], preload=False, env=environment)
        self.image = self.directory / ("pyjd-%d-1.so" % self.result.pid)

    def ran(self):
        """The program ran as ever; the lines about it on stderr."""
        assert (self.result.status, self.result.out) == (0, b"1\n"), self.result
        return self.result.err.decode().splitlines()


def test_leftover_of_a_recycled_id(runner, python):
    """A dead process' image under the same name is replaced, not written into."""
    prepared = Prepared(runner, python, 'echo old >"$image"; chmod 644 "$image"; touch -d "1 hour ago" "$image"')
    assert prepared.ran() == []
    assert stat.S_IMODE(os.stat(str(prepared.image)).st_mode) == 0o600
    assert prepared.image.read_bytes()[:4] == b"\x7fELF"
    assert any(name.startswith("py::f:") for name in all_names(prepared.directory, prepared.result.pid))


def test_linked_leftover(runner, any_python):
    """What has another name as well keeps its content there."""
    prepared = Prepared(runner, any_python,
                        'echo old >"$image"; touch -d "1 hour ago" "$image"; ln "$image" "$1/kept"')
    assert prepared.ran() == []
    assert (prepared.directory / "kept").read_bytes() == b"old\n"
    assert any(name.startswith("py::f:") for name in all_names(prepared.directory, prepared.result.pid))


EXEC = """
import os, sys
def before_exec(): return 1
def after_exec(): return 1
before_exec() if len(sys.argv) == 1 else after_exec()
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, __file__, "again"])
print(1)
"""


def test_exec_keeps_the_images_of_before(runner, python):
    """The same process id, and samples of both lives in one recording."""
    result = runner.quiet(python, EXEC)
    per_image = [image_elf.read(path).names() for path in images(runner.directory, result.pid)]
    before = [i for i, names in enumerate(per_image) if any("py::before_exec:" in name for name in names)]
    after = [i for i, names in enumerate(per_image) if any("py::after_exec:" in name for name in names)]
    assert len(before) == len(after) == 1 and before < after


HOSTILE = {
    "symbolic link": 'ln -s "$1/victim" "$image"',
    "dangling link": 'ln -s "$1/not there" "$image"',
    "link to a device": 'ln -s /dev/null "$image"',
    "FIFO": 'mkfifo "$image"',
    "directory": 'mkdir "$image"',
}


@pytest.mark.parametrize("what", sorted(HOSTILE))
def test_hostile_name(runner, any_python, what):
    """It is left alone; there is one line about it, and no image, but the perf map goes on."""
    prepared = Prepared(runner, any_python, 'echo precious >"$1/victim"; ' + HOSTILE[what])
    lines = prepared.ran()
    assert len(lines) == 1 and lines[0].startswith("pyjitdump: ") and "images" in lines[0], lines
    assert (prepared.directory / "victim").read_bytes() == b"precious\n"
    assert not (prepared.directory / "not there").exists()
    status = os.lstat(str(prepared.image))
    assert not stat.S_ISREG(status.st_mode)
    assert any(name.startswith("py::f:") for name in runner.map_names(prepared.result.pid))


def test_another_users_file(runner, any_python):
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's file")
    prepared = Prepared(runner, any_python, 'echo theirs >"$image"; chown 65534 "$image"; chmod 666 "$image"')
    lines = prepared.ran()
    assert len(lines) == 1 and "images" in lines[0], lines
    assert prepared.image.read_bytes() == b"theirs\n"


def test_later_image_is_hostile(runner, any_python):
    """The name of the second image is taken: what is in the first stays there, the map has all."""
    prepared = Prepared(runner, any_python, 'mkdir "$1/pyjd-$$-2.so"')
    lines = prepared.ran()
    assert len(lines) == 1 and "images" in lines[0], lines
    names = image_elf.read(prepared.image).names()
    assert names and set(names) <= set(runner.map_names(prepared.result.pid))
    assert any(name.startswith("py::f:") for name in runner.map_names(prepared.result.pid))


def test_a_living_process_image_is_not_replaced(runner, any_python):
    """As a process of another container with the same id would find it: its owner holds a lock."""
    tool("flock", "util-linux")
    prepared = Prepared(runner, any_python,
                        'echo theirs >"$image"; flock "$image" sleep 5 >/dev/null 2>&1 & '
                        'until ! flock -n "$image" true; do sleep 0.05; done')
    lines = prepared.ran()
    assert prepared.image.read_bytes() == b"theirs\n"
    assert len(lines) == 1 and "images" in lines[0], lines


def test_two_processes_do_not_mind_each_other(runner, any_python):
    processes = [runner.start([any_python.path, "-c", "def f(): return 1\nprint(f())"]) for _ in range(4)]
    for process in processes:
        assert process.communicate(timeout=60) == (b"1\n", b"")
        assert any(name.startswith("py::f:") for path in images(runner.directory, process.pid)
                   for name in image_elf.read(path).names())


def test_no_python_no_image(runner):
    """A process without Python, and a Python that calls nothing of ours, leave nothing."""
    result = runner.run(["/bin/sh", "-c", "echo 1"])
    assert (result.out, result.err) == (b"1\n", b"")
    assert not [name for name in os.listdir(str(runner.directory)) if name.startswith("pyjd-")]


def test_disabled_no_image(runner, any_python):
    result = runner.quiet(any_python, PROGRAM, env={"PYJD_ENABLE": "0"})
    assert result.out == b"1\n" and not images(runner.directory, result.pid)


def test_without_elf_no_image(runner, any_python):
    result = runner.quiet(any_python, PROGRAM, env={"PYJD_OUTPUT": "jitdump,map"})
    assert result.out == b"1\n" and not images(runner.directory, result.pid)


def test_cleaning_command(runner, start_target, any_python, tmp_path):
    """The command of docs/uprobes.md removes what dead processes left, and nothing else."""
    text = (ROOT / "docs" / "uprobes.md").read_text()
    command = re.search(r"^    (for .*pyjd-.*done)$", text, re.M)[1]
    dead = runner.quiet(any_python, PROGRAM)
    target = start_target(any_python)
    other = tmp_path / "pyjd-notes.txt"
    other.write_text("mine")
    done = subprocess.run(["sh", "-c", command.replace("/tmp/", str(tmp_path) + "/")], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert (done.returncode, done.stdout) == (0, b"")
    assert not images(tmp_path, dead.pid) and target.images() and other.exists()
    target.finish()
