"""Brings what a recording needs to be read into its directory: libraries, images, perf maps, kernel symbols."""
import errno
import fcntl
import glob
import os
import re
import shutil
import stat

from . import elf, perf, ui

FICLONE = 0x40049409
MMAP = re.compile(rb"PERF_RECORD_MMAP2? (-?\d+)/-?\d+: \[.*?\]: ?\S*x\S* (.*)$")
OUR_FILE = re.compile(r"(?:pyjd|jit|perf)-(\d+)(?:-\d+)?\.(?:so|dump|map)$")
DEBUG = "/usr/lib/debug/.build-id"


def mapped_files(recording):
    """{path: process ids} of all executable files that the recorded processes had mapped; and the number
    of samples."""
    files, samples = {}, 0
    with perf.output(["script", "-i", recording.perf_data, "-f", "--show-mmap-events", "-F", "comm"]) as stream, \
            ui.Progress("collecting libraries") as progress:
        for line in stream:
            match = MMAP.search(line)
            if not match:
                samples += bool(line.strip()) and b"PERF_RECORD_" not in line
                continue
            path = os.fsdecode(match[2].rstrip())
            if path.startswith("/") and not path.startswith(("/dev/", "/memfd:", "//", "/SYSV", "/anon_hugepage")):
                files.setdefault(path.replace(" (deleted)", ""), set()).add(int(match[1]))
                progress.update(path)
    return files, samples


def copy(source, target):
    """Copies a file; shares its blocks where the file system can (btrfs, xfs)."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(source, "rb") as original, open(target, "wb") as new:
        if not stat.S_ISREG(os.fstat(original.fileno()).st_mode):
            return
        try:
            fcntl.ioctl(new.fileno(), FICLONE, original.fileno())
        except OSError:
            shutil.copyfileobj(original, new, 1 << 20)


def source_of(path, pids):
    """Where to read a mapped file: a process in a container has a root of its own."""
    for pid in pids:
        inside = "/proc/%d/root%s" % (pid, path)
        if os.path.isfile(inside):
            return inside
    return path if os.path.isfile(path) else None


def is_interpreter(path):
    file = elf.look(path)
    return bool(file) and file.exports("_PyEval_EvalFrameDefault") and "libpyjitdump" not in os.path.basename(path)


def add_libraries(directory, jit, files):
    """Fills symfs/ with `files`. `jit` is the absolute path the processes knew jit/ by, or None.
    Returns (paths of interpreters, missing paths, bytes copied)."""
    symfs = os.path.join(directory, "symfs")
    interpreters, missing, size = [], [], 0
    for path, pids in sorted(files.items()):
        if jit and path.startswith(jit + "/"):
            continue
        source = source_of(path, pids)
        if not source:
            missing.append(path)
            continue
        target = symfs + path
        try:
            copy(source, target)
            size += os.path.getsize(target)
            if is_interpreter(target):
                interpreters.append(path)
            file = elf.look(target)
            debug = file and file.build_id and "%s/%s/%s.debug" % (DEBUG, file.build_id[:2], file.build_id[2:])
            if debug and os.path.isfile(debug):
                copy(debug, symfs + debug)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise ui.UserError("no space left for the libraries of the recording: use --no-libraries, or -o "
                                   "elsewhere")
            missing.append(path)
    if jit:
        link = symfs + jit
        os.makedirs(os.path.dirname(link), exist_ok=True)
        if not os.path.lexists(link):
            os.symlink(os.path.relpath(os.path.join(directory, "jit"), os.path.dirname(link)), link)
    return interpreters, missing, size


def add_vdso(directory):
    """The code that the kernel puts into each process, which is no file."""
    try:
        with open("/proc/self/maps") as maps:
            line = next(line for line in maps if line.rstrip().endswith("[vdso]"))
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(start)
            data = memory.read(end - start)
    except (OSError, StopIteration):
        return
    with open(os.path.join(directory, "symfs", "[vdso]"), "wb") as file:
        file.write(data)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def add_maps(directory, pids, began):
    """Takes the perf maps of the processes that wrote one since `began`. A map whose process is dead and
    has images is moved, as no reader of ours needs it where it was."""
    images = glob.glob(os.path.join(glob.escape(directory), "jit", "pyjd-*"))
    imaged = {int(OUR_FILE.search(path)[1]) for path in images}
    for pid in sorted(set(pids) | imaged):
        path = "/tmp/perf-%d.map" % pid
        try:
            if os.lstat(path).st_mtime < began or not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            copy(path, os.path.join(directory, "maps", os.path.basename(path)))
            if pid in imaged and not alive(pid):
                os.unlink(path)
        except OSError:
            pass        # another user's, or none


def add_kernel(directory):
    """The kernel's function symbols, if we may see their addresses."""
    try:
        with open("/proc/kallsyms", "rb") as symbols:
            lines = [line for line in symbols if line[17:18] in b"tTwW"]
    except OSError:
        return
    if any(not line.startswith(b"0" * 16) for line in lines[:100]):
        with open(os.path.join(directory, "kallsyms"), "wb") as file:
            file.writelines(lines)
