"""pyjitdump doctor and clean, and what all subcommands have in common."""
import fcntl
import json
import os
import pathlib
import shutil
import subprocess

import pytest

import tool_runs
from tool_runs import needs_perf

DEAD = 4194305      # above the largest process id of Linux


def doctor(*words, **options):
    result = tool_runs.run("doctor", "--json", "--library", tool_runs.library(), *words, **options)
    return result.status, {finding["check"]: finding for finding in json.loads(result.out)}


@needs_perf
@pytest.mark.parametrize("python", tool_runs.PYTHONS, ids=tool_runs.interpreters.name)
def test_all_well(python):
    status, found = doctor("--", python.path)
    assert status in (0, 1), found
    for check in "perf", "permission", "library", "interpreter", "names", "trial":
        assert found[check]["status"] == "ok", found[check]
    assert "%d.%d" % python.version[:2] in found["interpreter"]["message"]


def test_text():
    result = tool_runs.run("doctor", "--no-trial", "--library", tool_runs.library())
    assert result.status in (0, 1, 2) and "library: " in result.out and "\033" not in result.out


def fails(found, check, words):
    assert found[check]["status"] == "failure" and words in found[check]["message"] + found[check]["remedy"], found[check]


def test_perf_missing(tmp_path):
    status, found = doctor("--no-trial", env=tool_runs.environment(PERF=tmp_path / "nothing"))
    assert status == 2
    fails(found, "perf", "nothing")


def test_own_perf_support():
    python = tool_runs.PYTHONS[-1].path
    status, found = doctor("--no-trial", "--", python, "-X", "perf", "app.py")
    assert status == 2
    fails(found, "-X perf", "stands aside")
    status, found = doctor("--no-trial", "--", python, env=tool_runs.environment(PYTHONPERFSUPPORT="1"))
    fails(found, "-X perf", "PYTHONPERFSUPPORT")


def test_set_user_id(tmp_path):
    copy = tmp_path / "python3.99"
    shutil.copy(tool_runs.PYTHONS[-1].path, copy)
    copy.chmod(0o4755)
    status, found = doctor("--no-trial", "--", copy)
    assert status == 2
    fails(found, "privileges", "set-user-ID")


def test_not_python():
    status, found = doctor("--no-trial", "--", "/bin/sh")
    assert found["program"]["status"] == "warning" and "not a CPython" in found["program"]["message"]


def test_library_that_is_none(tmp_path):
    (tmp_path / "libpyjitdump.so").write_text("not a library")
    result = tool_runs.run("doctor", "--json", "--no-trial", "--library", tmp_path / "libpyjitdump.so")
    found = {finding["check"]: finding for finding in json.loads(result.out)}
    assert result.status == 2
    fails(found, "library", "cannot be preloaded")


def test_processes(tmp_path):
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    for env, expected, words in ((tool_runs.environment(), "failure", "does not have the library"),
                                 (tool_runs.environment(LD_PRELOAD=tool_runs.library(), PYJD_DIR=tmp_path), "ok", "works"),
                                 (tool_runs.environment(LD_PRELOAD=tool_runs.library(), PYJD_ENABLE=0), "failure", "off")):
        process = subprocess.Popen([tool_runs.PYTHONS[-1].path, "-c", code], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, env=env)
        process.stdout.readline()
        _, found = doctor("-p", process.pid)
        process.communicate()
        assert found["names"]["status"] == expected and words in found["names"]["message"], found["names"]
        if os.path.exists("/tmp/perf-%d.map" % process.pid):
            os.unlink("/tmp/perf-%d.map" % process.pid)


# ------------------------------------------------------------------------------------------------- clean


@pytest.fixture
def leftovers(tmp_path):
    """A directory with files of a dead process, of living ones, and of others' making."""
    (tmp_path / ("pyjd-%d-1.so" % DEAD)).write_bytes(b"\x7fELF")
    (tmp_path / ("jit-%d.dump" % DEAD)).write_bytes(b"DTiJ py::f:a.py")
    (tmp_path / ("perf-%d.map" % DEAD)).write_bytes(b"1000 20 py::f:a.py\n")
    (tmp_path / ("perf-%d.map" % (DEAD + 1))).write_bytes(b"1000 20 LazyCompile:~f a.js\n")
    (tmp_path / ("pyjd-%d-1.so" % os.getpid())).write_bytes(b"\x7fELF")
    (tmp_path / ("pyjd-%d-9.so" % DEAD)).symlink_to("/etc/passwd")
    (tmp_path / "notes.txt").write_text("py::")
    return tmp_path


def clean(directory, *words):
    return json.loads(tool_runs.good("clean", "--json", "--dir", directory, *words))


def names_in(result, directory):
    paths = map(pathlib.Path, result["removed"])
    return {path.name for path in paths if path.parent == directory}


def test_clean(leftovers):
    gone = {"pyjd-%d-1.so" % DEAD, "jit-%d.dump" % DEAD, "perf-%d.map" % DEAD}
    before = {path.name for path in leftovers.iterdir()}
    assert names_in(clean(leftovers, "--dry-run"), leftovers) == gone
    assert {path.name for path in leftovers.iterdir()} == before


def test_clean_removes(leftovers, monkeypatch):
    """In a directory of its own: the suite must not take the machine's files away."""
    from pyjitdump_tool import clean as module
    before = {path.name for path in leftovers.iterdir()}
    monkeypatch.setattr(module, "places", lambda given=(): [str(leftovers)])
    found, used = module.find([str(leftovers)])
    parser = __import__("argparse").ArgumentParser()
    module.add_arguments(parser)
    assert module.run(parser.parse_args([])) == 0
    assert before - {path.name for path in leftovers.iterdir()} == {os.path.basename(path) for path, _, _ in found}
    assert used == 1


def test_clean_leaves_what_is_locked(leftovers):
    """A process in another container has the same number, and lives."""
    name = "pyjd-%d-1.so" % DEAD
    with open(leftovers / name) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert name not in names_in(clean(leftovers, "--dry-run"), leftovers)


def test_clean_spares_younger(leftovers):
    old = leftovers / ("pyjd-%d-1.so" % DEAD)
    os.utime(old, (1000000000, 1000000000))
    assert names_in(clean(leftovers, "--dry-run", "--older", "7"), leftovers) == {old.name}


# ------------------------------------------------------------------------------------------------ common

SUBCOMMANDS = "record", "report", "flamegraph", "export", "inspect", "doctor", "clean"


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help(name):
    out = tool_runs.good(name, "--help")
    assert "usage: pyjitdump " + name in out and "examples:" in out
    assert name in tool_runs.good("--help")


@pytest.mark.parametrize("words", [["nosuch"], ["report", "--nosuch"], ["doctor", "-p", "x"], ["clean", "--dir", "/nosuch"],
                                   ["doctor", "--", "/nosuch"], ["flamegraph", "--min-percent", "x"]])
def test_bad_words(words):
    result = tool_runs.run(*words)
    assert result.status == 2 and result.err.count("\n") == 1 and result.err.startswith("pyjitdump: "), result


def test_nothing_said():
    result = tool_runs.run()
    assert result.status == 2 and "usage" in result.err


def test_the_package_needs_no_later_python():
    """Each module compiles with the oldest Python of this machine, and needs no package (-S)."""
    oldest = tool_runs.PYTHONS[0].path
    package = tool_runs.ROOT / "scripts" / "pyjitdump_tool"
    modules = ["pyjitdump_tool." + path.stem for path in sorted(package.glob("*.py")) if path.stem != "__init__"]
    code = ("import sys, importlib; sys.dont_write_bytecode = True; sys.path.insert(0, %r); "
            "[importlib.import_module(name) for name in sys.argv[1:]]" % str(package.parent))
    subprocess.run([oldest, "-I", "-S", "-c", code, *modules], check=True)


def test_completion_knows_the_subcommands():
    text = (tool_runs.ROOT / "scripts" / "completions" / "pyjitdump.bash").read_text()
    script = text + "\nCOMP_WORDS=(pyjitdump ''); COMP_CWORD=1; _pyjitdump; echo ${COMPREPLY[@]}"
    words = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    assert set(SUBCOMMANDS) <= set(words)
    script = text + "\nCOMP_WORDS=(%s report --fl); COMP_CWORD=2; _pyjitdump; echo ${COMPREPLY[@]}" % tool_runs.TOOL
    words = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    assert words == ["--flat"]


def test_man_page_has_every_option():
    page = (tool_runs.ROOT / "docs" / "pyjitdump.1").read_text().replace("\\-", "-")
    for name in SUBCOMMANDS:
        assert ".SS " + name in page
