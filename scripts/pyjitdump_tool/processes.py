"""Programs and processes: what they have loaded, whose children they are, and how to walk their stacks."""
import glob
import mmap
import os
import re
import subprocess
import tempfile

from . import elf, perf, ui

DWARF, FP = "dwarf,65528", "fp"
PRINT_MAPS = "import sys; sys.stdout.write(open('/proc/self/maps').read())"


def files_of_maps(text):
    """Executable files in the text of /proc/PID/maps."""
    lines = (line.split(None, 5) for line in text.splitlines())
    return sorted({words[5].strip() for words in lines
                   if len(words) == 6 and "x" in words[1] and words[5].startswith("/")})


def read_maps(pid):
    try:
        with open("/proc/%d/maps" % pid, errors="surrogateescape") as file:
            return file.read()
    except PermissionError:
        raise ui.UserError("may not look into process %d: it is another user's (try sudo)" % pid)
    except OSError:
        raise ui.UserError("there is no process %d" % pid)


def loaded_by(interpreter):
    """Files that a program which runs under this interpreter has loaded from the start."""
    if not re.match(r"python\d", os.path.basename(interpreter)):
        return [interpreter]
    try:
        answer = subprocess.run([interpreter, "-S", "-c", PRINT_MAPS], stdin=subprocess.DEVNULL, timeout=30,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=perf.environment())
    except (OSError, subprocess.SubprocessError):
        return [interpreter]
    return files_of_maps(os.fsdecode(answer.stdout)) or [interpreter]


def choose_call_graph(files):
    """(mode, why): frame pointers where all these files have them, as they cost less; else DWARF."""
    for path in files:
        if re.match(r"(pyjd-|libpyjitdump|ld-linux|ld-|jit-)", os.path.basename(path)):
            continue
        file = elf.look(path)
        if file is None or not file.frame_pointers():
            return DWARF, "%s has no frame pointers" % os.path.basename(path)
    return FP, "the interpreter and its libraries have frame pointers"


def descendants(pid):
    """Process ids of `pid` and its children, theirs included."""
    children = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, errors="replace") as file:
                text = file.read()
            children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(path.split("/")[2]))
        except (OSError, IndexError, ValueError):
            pass
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def can_execute(directory):
    """Whether files in it can be mapped executable (no noexec mount)."""
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(b"\0" * 4096)
        file.flush()
        try:
            mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
        except OSError:
            return False
    return True
