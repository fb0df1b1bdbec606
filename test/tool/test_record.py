"""pyjitdump record: what it keeps, what it passes on, how it ends."""
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

import tool_runs
from tool_runs import needs_perf

FORKING = """
import multiprocessing, sys, time
def busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))
def in_child(seconds):
    busy(seconds)
if __name__ == "__main__":
    children = [multiprocessing.get_context("fork").Process(target=in_child, args=(0.6,)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(7)
"""

WAITING = """
import sys, time
def serve():
    end = time.time() + 60
    while time.time() < end:
        sum(range(1000))
print("ready", flush=True)
serve()
"""


@pytest.fixture
def python():
    return tool_runs.PYTHONS[-1].path


def script(directory, text):
    path = directory / "program.py"
    path.write_text(text)
    return path


def manifest(recording):
    return json.loads((recording / "manifest.json").read_text())


def symfs_of(recording):
    return [path for path in (recording / "symfs").rglob("*") if path.is_file()]


def test_shares(shares_recording):
    found = tool_runs.top_down(tool_runs.good("report", "-i", shares_recording, "--python", "--top-down"))
    for name, share in tool_runs.share_of(found).items():
        assert abs(share - tool_runs.SHARES[name]) < 2, found


def test_holds_all_it_needs(shares_recording):
    names = {path.name for path in (shares_recording / "jit").iterdir()}
    assert any(name.startswith("pyjd-") for name in names) and any(name.startswith("jit-") for name in names)
    assert any("libc.so" in path.name for path in symfs_of(shares_recording))
    held = manifest(shares_recording)
    assert held["format"] == 1 and held["status"] == 0 and held["samples"] > 200 and held["interpreters"]
    assert held["call_graph"] in ("fp", "dwarf,65528") and held["why"]
    pids = {name.split("-")[1].split(".")[0] for name in names}
    assert not any(os.path.exists("/tmp/perf-%s.map" % pid) for pid in pids), "the maps were not moved"


def test_read_elsewhere(shares_recording, tmp_path):
    """Moved, and the place it was in is gone, with the images in it."""
    before = tool_runs.good("report", "-i", shares_recording, "--native", "--top-down")
    away = shares_recording.with_name("away")
    shutil.copytree(shares_recording, tmp_path / "moved", symlinks=True)
    shares_recording.rename(away)
    try:
        after = tool_runs.good("report", "-i", tmp_path / "moved", "--native", "--top-down")
    finally:
        away.rename(shares_recording)
    assert after == before


def test_archive_has_no_link_out_of_it(shares_recording):
    for path in shares_recording.rglob("*"):
        if path.is_symlink():
            assert not os.path.isabs(os.readlink(path))
            assert shares_recording.resolve() in path.resolve().parents


@needs_perf
def test_children_and_exit_status(tmp_path, python):
    result = tool_runs.record(tmp_path / "r", python, script(tmp_path, FORKING))
    assert result.status == 7, result
    data = json.loads(tool_runs.good("report", "-i", tmp_path / "r", "--json", "--python"))
    (function,) = [function for function in data["functions"] if function["name"] == "in_child"]
    assert function["total"] > 0.8 * data["weight"]


@needs_perf
@pytest.mark.parametrize("code, status", [("import os; os.kill(os.getpid(), 15)", 128 + 15), ("raise SystemExit(3)", 3)])
def test_exit_status(tmp_path, python, code, status):
    result = tool_runs.record(tmp_path / "r", python, "-c", code, options=["-q"])
    assert result.status == status, result


@needs_perf
def test_output_of_the_program(tmp_path, python):
    result = tool_runs.record(tmp_path / "r", python, "-c", "import sys; print('out'); sys.stderr.write('err\\n')",
                              options=["-q"])
    assert result.out == "out\n"
    assert "err\n" in result.err


@needs_perf
def test_interrupted(tmp_path, python):
    """A signal to the tool reaches the program, and the data is kept."""
    process = tool_runs.start("record", "-o", tmp_path / "r", "--library", tool_runs.library(), "--", python,
                              script(tmp_path, WAITING))
    assert process.stdout.readline() == b"ready\n"
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in err and process.returncode == 128 + signal.SIGINT, err
    assert "serve" in tool_runs.good("report", "-i", tmp_path / "r")


@needs_perf
def test_running_process(tmp_path, python):
    target = subprocess.Popen([python, str(script(tmp_path, WAITING))], stdout=subprocess.PIPE,
                              env=tool_runs.environment(LD_PRELOAD=tool_runs.library(), PYJD_DIR=tmp_path))
    try:
        target.stdout.readline()
        result = tool_runs.run("record", "-o", tmp_path / "r", "-p", target.pid, "--seconds", "1.5",
                               "--library", tool_runs.library())
        assert result.status == 0, result
        assert target.poll() is None, "it should go on"
    finally:
        target.kill()
        target.communicate()
        if os.path.exists("/tmp/perf-%d.map" % target.pid):
            os.unlink("/tmp/perf-%d.map" % target.pid)
    for path in tmp_path.glob("pyjd-*"):
        path.unlink()
    found = tool_runs.top_down(tool_runs.good("report", "-i", tmp_path / "r", "--python", "--top-down"))
    assert found["serve"] > 90, found


@needs_perf
def test_process_without_the_library(tmp_path, python):
    target = subprocess.Popen([python, str(script(tmp_path, WAITING))], stdout=subprocess.PIPE)
    try:
        target.stdout.readline()
        result = tool_runs.run("record", "-o", tmp_path / "r", "-p", target.pid, "--library", tool_runs.library())
    finally:
        target.kill()
        target.communicate()
    assert result.status == 2 and "does not have the library" in result.err


@needs_perf
def test_keeps_the_recording_before(tmp_path, python):
    for text in "one", "two", "three":
        assert tool_runs.record(tmp_path / "r", python, "-c", "'%s'" % text, options=["-q"]).status == 0
    assert manifest(tmp_path / "r")["command"][2] == "'three'"
    assert manifest(tmp_path / "r.old")["command"][2] == "'two'"


@needs_perf
def test_does_not_replace_what_is_no_recording(tmp_path, python):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "thesis.txt").write_text("precious")
    result = tool_runs.record(tmp_path / "r", python, "-c", "1")
    assert result.status == 2 and "is not a recording" in result.err
    assert (tmp_path / "r" / "thesis.txt").read_text() == "precious"


@needs_perf
def test_script_with_env_in_its_first_line(tmp_path, python):
    """The recording must not begin with env(1): see launch.py."""
    program = tmp_path / "program"
    program.write_text("#!/usr/bin/env %s\n%s" % (python, tool_runs.KNOWN_SHARES))
    program.chmod(0o755)
    assert tool_runs.record(tmp_path / "r", program, "1").status == 0
    assert not any(path.name == "env" for path in symfs_of(tmp_path / "r"))
    assert "sixty" in tool_runs.good("report", "-i", tmp_path / "r")


@needs_perf
def test_options_for_perf(tmp_path, python):
    result = tool_runs.record(tmp_path / "r", python, script(tmp_path, tool_runs.KNOWN_SHARES), "1",
                              options=["-F", "50", "-e", "cpu-clock:u", "--call-graph", "dwarf,16384", "--no-libraries",
                                       "--sample-cpu"])
    assert result.status == 0, result
    held = manifest(tmp_path / "r")
    assert held["event"].startswith("cpu-clock") and held["frequency"] == 50 and held["call_graph"] == "dwarf,16384"
    assert not (tmp_path / "r" / "symfs").exists()
    assert "sixty" in tool_runs.good("report", "-i", tmp_path / "r")


@pytest.mark.parametrize("words, said", [
    ((), "say what to record"),
    (("python3", "app.py"), "behind --"),
    (("--",), "no command behind --"),
    (("-p", "4", "--", "true"), "say what to record"),
    (("--", "/nosuch/program"), "no such program"),
    (("-p", "999999999"), "no process"),
    (("--library", "/nosuch/lib.so", "--", "true"), "there is no library"),
])
def test_bad_input(tmp_path, words, said):
    result = tool_runs.run("record", *words, cwd=tmp_path)
    assert result.status in (2, 127) and said in result.err, result
    assert "Traceback" not in result.err and result.err.splitlines()[-1].startswith("pyjitdump: ")
