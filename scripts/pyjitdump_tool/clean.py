"""clean: removes ELF images, jitdumps, perf maps and injected files of processes that are dead."""
import fcntl
import json
import os
import re
import shutil
import sys
import tempfile
import time

from . import ui

EPILOG = """\
A file goes if the process in its name is dead, nobody holds its lock (a process in a container may have
the same number), and it names Python functions: maps and dumps of other programs stay. Recordings of
`pyjitdump record` hold copies of all they need. A bare perf.data does not: make its report first.

examples:
  pyjitdump clean --dry-run
  pyjitdump clean
  pyjitdump clean --dir /var/tmp/images --older 7
"""

FILE = re.compile(r"(?:pyjd-(\d+)-\d+\.so|jit-(\d+)\.dump|jitted-(\d+)-\d+\.so|perf-(\d+)\.map)$")
OUR_MARK = b"py::"
MARKED_WITHIN = 1 << 20


def add_arguments(parser):
    parser.epilog = EPILOG
    parser.add_argument("-n", "--dry-run", action="store_true", help="say what would go, and leave it")
    parser.add_argument("--dir", action="append", default=[], metavar="DIRECTORY",
                        help="look here, too (always: /tmp, and PYJD_DIR if it is set)")
    parser.add_argument("--older", type=float, default=0, metavar="DAYS", help="only files older than this")
    parser.add_argument("--json", action="store_true", help="the files as JSON")


def started(pid):
    """When a process began, in seconds since 1970; None if there is none."""
    try:
        with open("/proc/%d/stat" % pid, errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime") as file:
            return time.time() - float(file.read().split()[0]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


def in_use(path, pid):
    """Whether the process that wrote the file lives: in this or another container."""
    began = started(pid)
    if began is not None and os.lstat(path).st_mtime >= began - 2:
        return True         # else another process has got the number since
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def ours(path):
    """Whether the file is one of ours: images always, the others if they name Python functions."""
    if os.path.basename(path).startswith("pyjd-"):
        return True
    with open(path, "rb") as file:
        return OUR_MARK in file.read(MARKED_WITHIN)


def find(directories, older=0):
    """[(path, process id, bytes)] of what may go, and how many files are in use."""
    found, used = [], 0
    for directory in directories:
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            continue
        for name in names:
            match = FILE.match(name)
            path = os.path.join(directory, name)
            if not match or os.path.islink(path) or not os.path.isfile(path):
                continue
            pid = int(next(filter(None, match.groups())))
            try:
                status = os.stat(path)
                if status.st_mtime > time.time() - older * 86400 or not ours(path):
                    continue
                if in_use(path, pid):
                    used += 1
                else:
                    found.append((path, pid, status.st_size))
            except OSError:
                continue        # another user's, or just gone
    return found, used


def places(given=()):
    """The directories to look into."""
    result = ["/tmp", tempfile.gettempdir(), os.environ.get("PYJD_DIR") or "/tmp", *given]
    return list(dict.fromkeys(os.path.realpath(path) for path in result))


def run(args):
    for directory in args.dir:
        if not os.path.isdir(directory):
            raise ui.UserError("there is no directory %s" % directory)
    found, used = find(places(args.dir), args.older)
    removed, size, refused = [], 0, 0
    for path, _, count in found:
        if not args.dry_run:
            try:
                os.unlink(path)
            except OSError:
                refused += 1
                continue
        removed.append(path)
        size += count
    if args.json:
        json.dump({"removed": removed, "bytes": size, "in_use": used, "refused": refused,
                   "dry_run": args.dry_run}, sys.stdout, indent=1)
        print()
    else:
        for path in removed if args.dry_run else ():
            print(path)
        print("%s %d files of dead processes, %s%s%s" % (
            "would remove" if args.dry_run else "removed", len(removed), ui.bytes_text(size),
            "; %d are in use" % used if used else "", "; %d are another user's" % refused if refused else ""))
    return 1 if refused else 0


# Named here because doctor wants it, too.
def free_bytes(directory):
    return shutil.disk_usage(directory).free
