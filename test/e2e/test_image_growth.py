"""The image as it grows: its size, what is written, and what others see of it meanwhile."""
import os
import re
import subprocess
import threading
import time
import zlib

import pytest

import image_elf
from image_tools import images, output, start_target, tool  # noqa: F401

MANY = """
import os, sys
count, length = int(sys.argv[1]), int(sys.argv[2])
for i in range(count):
    name = "f%06d" % i
    name += "x" * (length - len(name))
    namespace = {}
    exec(compile("def %s(): return 1" % name, "/srv/module_%04d.py" % (i // 100), "exec"), namespace)
    namespace[name]()
"""


def wanted_names(count):
    return {"py::f%06d:/srv/module_%04d.py" % (i, i // 100) for i in range(count)}


def test_a_hundred_thousand_functions(runner, any_python, record_property):
    """Each has its name in exactly one image; images double in size, up to a bound."""
    result = runner.quiet(any_python, MANY, "100000", "0", env={"PYJD_OUTPUT": "elf"})
    paths = images(runner.directory, result.pid)
    read = [image_elf.read(path) for path in paths]
    names = [name for image in read for name in image.names()]
    mine = [name for name in names if name.startswith("py::f") and ":/srv/" in name]
    assert len(mine) == 100000 and set(mine) == wanted_names(100000)
    capacities = [image.capacity for image in read]
    assert capacities[0] == 512 and all(b == min(2 * a, 16384) for a, b in zip(capacities, capacities[1:]))
    lines = []
    for image in read:
        rows = {row.begin: row for row in image.lines()}
        assert len(rows) == len(image.symbols)
        lines += [(symbol.name, rows[symbol.offset].line) for symbol in image.symbols]
        assert all(symbol.name.endswith(":" + rows[symbol.offset].file) for symbol in image.symbols)
    assert len(set(lines)) == len(lines)    # name and line tell functions apart
    # All full but the last two: the one in use and the spare.
    assert all(len(image.symbols) == image.capacity for image in read[:-2])
    size = sum(os.stat(path).st_size for path in paths)
    used = sum(os.stat(path).st_blocks * 512 for path in paths)
    record_property("figures", "%d functions, %d images, %.1f MB, %.1f MB of disk: %.0f bytes a function, "
                    "%.0f a slot" % (len(names), len(paths), size / 1e6, used / 1e6, used / len(names),
                                     used / sum(capacities)))
    assert used / len(names) < 1000


@pytest.mark.parametrize("functions", [0, 1000, 10000])
def test_disk_use(runner, any_python, record_property, functions):
    """What a program costs in /tmp; no file changes its size once it is there."""
    result = runner.quiet(any_python, MANY, str(functions), "0", env={"PYJD_OUTPUT": "elf"})
    paths = images(runner.directory, result.pid)
    names = sum(len(image_elf.read(path).symbols) for path in paths)
    used = sum(os.stat(path).st_blocks * 512 for path in paths)
    record_property("figures", "%d functions: %d images, %.2f MB, %.0f bytes a function" %
                    (names, len(paths), used / 1e6, used / names))
    assert used < 1e6 + 1500 * names


def test_size_is_fixed(start_target, any_python):
    target = start_target(any_python)
    sizes = {}
    for _ in range(30):
        target.do("grow", 100)
        for path in target.images():
            status = os.stat(path)
            assert sizes.setdefault(path, (status.st_size, status.st_ino)) == (status.st_size, status.st_ino)
    assert len(sizes) >= 4
    target.finish()


@pytest.mark.parametrize("length", [50, 380, 5000])
def test_long_names(runner, python, length):
    """None is lost: images are left for new ones when their room for names is used up."""
    count = 3000
    result = runner.quiet(python, MANY, str(count), str(length), env={"PYJD_OUTPUT": "elf,map"})
    names = [name for path in images(runner.directory, result.pid) for name in image_elf.read(path).names()]
    numbers = sorted(int(name[5:11]) for name in names if re.match(r"py::f\d{6}x", name))
    assert numbers == list(range(count))
    assert max(len(name.encode()) for name in names) <= 4 + 384 + 1 + 512
    assert sorted(runner.map_names(result.pid)) == sorted(names)


LONG_PATHS = """
for i in range(2000):
    namespace = {}
    exec(compile("def f(): return 1", "/srv/" + "d" * 480 + "/%06d.py" % i, "exec"), namespace)
    namespace["f"]()
"""


def test_long_paths(runner, any_python):
    """A file of its own for each: path, symbol and line are as large as they get."""
    result = runner.quiet(any_python, LONG_PATHS, env={"PYJD_OUTPUT": "elf"})
    read = [image_elf.read(path) for path in images(runner.directory, result.pid)]
    files = {row.file for image in read for row in image.lines() if "dddd" in row.file}
    assert len(files) == 2000 and max(map(len, files)) <= 512
    names = {name for image in read for name in image.names() if "dddd" in name}
    assert {name.partition(":")[2].partition(":")[2].partition(":")[2] for name in names} == files


# ---------------------------------------------------------------------------------------- its writes

PWRITES = 3     # a function: its names, its line, its symbol's name


def test_writes(runner, any_python, tmp_path):
    """Publishing is stores into a mapping on ext4, XFS and tmpfs; elsewhere see below."""
    tool("strace", "strace")
    count = 300
    for directory in tmp_path, "/dev/shm":
        if not os.access(str(directory), os.W_OK):
            continue
        log = tmp_path / "strace.log"
        script = tmp_path / "many.py"
        script.write_text(MANY)
        env = runner.environment(PYJD_OUTPUT="elf", PYJD_DIR=directory)
        preload = env.pop("LD_PRELOAD")
        done = subprocess.run(["strace", "-f", "-y", "-o", str(log), "-e", "trace=write,pwrite64,pwritev",
                               "-E", "LD_PRELOAD=" + preload, any_python.path, str(script), str(count), "0"],
                              env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        text = log.read_text()
        if "Operation not permitted" in done.stdout.decode():
            pytest.skip("this machine does not allow ptrace")
        assert done.returncode == 0, done.stdout
        pid = int(text.split()[0])
        runner.pids.add(pid)
        paths = images(directory, pid)
        try:
            names = sum(len(image_elf.read(path).symbols) for path in paths)
        finally:
            for path in paths:
                os.unlink(path)
        assert names >= count
        writes = re.findall(r"^\d+ +(\w+)\(\d+<[^>]*/pyjd-\d+-\d+\.so>", text, re.M)
        assert writes.count("write") == len(paths)                      # each whole image
        if directory == "/dev/shm":
            assert len(writes) == len(paths)
        else:       # a temporary directory may be on any file system
            assert writes.count("pwrite64") in (0, PWRITES * names)


@pytest.fixture
def other_filesystem(tmp_path):
    """A directory on a file system whose files are not mapped to be written."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    directory = tmp_path / "ramfs"
    directory.mkdir()
    if subprocess.run(["mount", "-t", "ramfs", "none", str(directory)], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this machine does not allow mounts")
    yield directory
    output("umount", "-l", directory)


def test_written_by_system_calls(runner, any_python, other_filesystem, tmp_path):
    """The same content where it is written in the other way."""
    tool("strace", "strace")
    log = tmp_path / "strace.log"
    script = tmp_path / "many.py"
    script.write_text(MANY)
    env = runner.environment(PYJD_OUTPUT="elf", PYJD_DIR=other_filesystem)
    preload = env.pop("LD_PRELOAD")
    done = subprocess.run(["strace", "-f", "-y", "-o", str(log), "-e", "trace=write,pwrite64",
                           "-E", "LD_PRELOAD=" + preload, any_python.path, str(script), "1500", "0"],
                          env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    if b"Operation not permitted" in done.stdout:
        pytest.skip("this machine does not allow ptrace")
    assert (done.returncode, done.stdout) == (0, b"")
    text = log.read_text()
    paths = images(other_filesystem, int(text.split()[0]))
    names = [name for path in paths for name in image_elf.read(path).names()]
    assert wanted_names(1500) <= set(names)
    writes = re.findall(r"^\d+ +(\w+)\(\d+<[^>]*/pyjd-\d+-\d+\.so>", text, re.M)
    assert writes.count("write") == len(paths)
    assert writes.count("pwrite64") == PWRITES * len(names)


# --------------------------------------------------------------------------------- readers meanwhile

CHECKED = """
import sys, time, zlib
print("ready", flush=True)
sys.stdin.readline()
i = 0
while True:
    text = "g%07d_%s" % (i, "y" * (i * 37 % 300))
    name = "%s_%08x" % (text, zlib.crc32(text.encode()))
    namespace = {}
    exec(compile("\\n" * (i % 50) + "def %s(): return 1" % name, "/srv/checked_%d.py" % (i // 64), "exec"), namespace)
    namespace[name]()
    i += 1
    if i % 25 == 0:
        time.sleep(0.003)
    if i == int(sys.argv[1]):
        break
print("done", flush=True)
sys.stdin.readline()
"""


def check_names(names):
    """Every name is one that was published, to the last character."""
    for name in names:
        match = re.fullmatch(r"py::((g(\d{7})_y*)_([0-9a-f]{8})):/srv/checked_(\d+)\.py", name)
        if not match:
            assert not name.startswith("py::g0"), name
            continue
        assert int(match[4], 16) == zlib.crc32(match[2].encode()), name
        assert len(match[2]) == 9 + int(match[3]) * 37 % 300 and int(match[5]) == int(match[3]) // 64, name


def readelf(path):
    """The names that readelf prints, which has nothing to complain about."""
    text = output("readelf", "--dyn-syms", "-W", path)
    assert not re.search(r"readelf: |<corrupt", text), text
    names = re.findall(r"^ *\d+: 0000[0-9a-f]{12} +32 FUNC    GLOBAL DEFAULT +1 (.+)$", text, re.M)
    check_names(names)
    return names


@pytest.mark.parametrize("filesystem", ["mapped", "written"])
def test_readers_while_it_grows(runner, any_python, request, record_property, filesystem):
    """At any moment a symbol is there whole or not at all, and stays; and each line row is right."""
    directory = runner.directory if filesystem == "mapped" else request.getfixturevalue("other_filesystem")
    tool("readelf", "binutils")
    script = runner.directory / "checked.py"
    script.write_text(CHECKED)
    process = runner.start([any_python.path, script, "12000"], stdin=subprocess.PIPE,
                           env={"PYJD_OUTPUT": "elf", "PYJD_DIR": directory})
    assert process.stdout.readline() == b"ready\n"
    seen, reads, torn = {}, 0, 0
    process.stdin.write(b"go\n")
    process.stdin.flush()
    done = threading.Event()
    threading.Thread(target=lambda: (process.stdout.readline(), done.set()), daemon=True).start()
    while not done.is_set():
        for path in images(directory, process.pid)[-2:]:
            try:
                image = image_elf.read(path)
            except (image_elf.Broken, ValueError, IndexError):
                # The file is there a moment before its content.
                if path in seen or os.stat(path).st_size and time.time() - os.stat(path).st_mtime > 1:
                    raise
                continue
            names = image.names()
            check_names(names)
            known = seen.setdefault(path, [])
            assert names[:len(known)] == known
            seen[path], reads = names, reads + 1
            check_lines(path)
        if reads % 20 == 0 and seen:
            readelf(list(seen)[-1])
    record_property("figures", "read %d times while %d names were added" %
                    (reads, sum(map(len, seen.values()))))
    assert reads >= 20
    names = [name for path in images(directory, process.pid) for name in image_elf.read(path).names()]
    assert sum(name.startswith("py::g0") for name in names) == 12000
    assert process.communicate(b"\n", timeout=60)[1] == b""


def check_lines(path):
    """A function's file name comes before its line in the image, and was written before it. So who reads
    front to back may meet a line that was added meanwhile; not twice running."""
    for _ in range(5):
        image = image_elf.read(path)
        try:
            rows = {row.begin: row for row in image.lines()}
        except image_elf.Early:
            continue
        for symbol in image.symbols:    # a line is there before its symbol, but is read after it
            assert symbol.name.endswith(":" + rows[symbol.offset].file)
            assert rows[symbol.offset].end - symbol.offset == image_elf.SLOT_SIZE
        return
    raise AssertionError("lines without files, five times running")


@pytest.mark.parametrize("command", [
    ["readelf", "-a", "-W"], ["readelf", "--debug-dump=info,abbrev,line,frames,decodedline"],
    ["eu-elflint"], ["eu-elflint", "--gnu-ld"], ["eu-readelf", "-a"], ["eu-readelf", "--debug-dump=frames"],
    ["eu-readelf", "--debug-dump=line"], ["objdump", "-d", "-l"], ["llvm-dwarfdump", "--verify"]],
    ids=lambda command: "".join(command).replace("--", "-"))
def test_tools_accept_it(start_target, any_python, command):
    """Empty but for a few names, half full, and full; while its process lives."""
    tool(command[0], {"r": "binutils", "o": "binutils", "e": "elfutils", "l": "llvm"}[command[0][0]])
    target = start_target(any_python)
    checked = set()
    for _ in range(3):
        for path in target.images():
            if (path, "full") in checked:
                continue
            image = image_elf.read(path)
            checked.add((path, "full" if len(image.symbols) == image.capacity else len(image.symbols)))
            done = subprocess.run([*command, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
            text = done.stdout.decode(errors="replace")
            assert (done.returncode, done.stderr) == (0, b""), (command, done.stderr[:2000], text[-2000:])
            if command[0] == "eu-elflint":
                assert text == "No errors\n"
            if command[-1] == "--debug-dump=frames" and command[0] == "eu-readelf":
                assert len(re.findall(r"^ \[ *[0-9a-f]+\] FDE length=", text, re.M)) == image.capacity
        target.do("grow", 700)
    assert len(checked) >= 5
    target.finish()
