#!/usr/bin/env python3
"""What N functions cost: on disk, at their first call, and from perf.data to symbolised text.

usage: functions.py [--library LIB] [--python PYTHON] [--counts 1000,10000,30000] [--rounds 3]

Compares, side by side in one run, the ELF image, the jitdump with `perf inject --jit`, the perf map, all
three together, and, where the interpreter has them, CPython's own -X perf and -X perf_jit. Times on a
shared machine vary: read the ratios, not the figures. Needs perf that may record (see docs/testing.md).
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile
import time

# Calls each of N functions once, then keeps calling all of them, so that perf's samples fall into many.
PROGRAM = r"""
import sys, time
count, seconds = int(sys.argv[1]), float(sys.argv[2])
source = "".join("def function_%d(a):\n    return a + %d\n" % (i, i) for i in range(count))
names = {}
exec(compile(source, "/srv/application/package/module.py", "exec"), names)
functions = [names["function_%d" % i] for i in range(count)]
begin = time.perf_counter()
for f in functions: f(1)
first = time.perf_counter() - begin
begin = time.perf_counter()
for f in functions: f(1)
second = time.perf_counter() - begin
print("first call %.0f" % ((first - second) / count * 1e9), flush=True)
end = time.perf_counter() + seconds
while time.perf_counter() < end:
    for f in functions: f(1)
"""


def run(command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          **options)


def environment(library=None, outputs=None, directory=None):
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("PYJD_", "PYTHON", "LD_PRELOAD"))}
    if library:
        env.update(LD_PRELOAD=library, PYJD_OUTPUT=outputs, PYJD_DIR=directory)
    return env


def first_call(command, env, rounds):
    """Nanoseconds a first call takes more than a second one: the least of some rounds."""
    times = []
    for _ in range(rounds):
        out = run(command, env=env).stdout.decode()
        times.append(int(re.search(r"first call (-?\d+)", out).group(1)))
    return min(times)


def disk_use(paths):
    """Bytes of blocks in use."""
    return sum(os.stat(path).st_blocks * 512 for path in paths)


def remove(patterns):
    for pattern in patterns:
        for path in glob.glob(pattern):
            os.unlink(path)


def measure_first_calls(args, count):
    print("\n%d functions: a first call takes more than a second one by" % count)
    base = [args.python, "-c", PROGRAM]
    rows = [("elf", "elf"), ("jitdump", "jitdump"), ("map", "map"), ("all three", "elf,jitdump,map")]
    peers = [(name, flag) for name, flag in (("-X perf", "perf"), ("-X perf_jit", "perf_jit"))
             if args.minor >= (12 if flag == "perf" else 13)]
    with tempfile.TemporaryDirectory(prefix="pyjd-bench-") as directory:
        for name, outputs in rows:
            env = environment(args.library, outputs, directory)
            value = first_call(base + [str(count), "0"], env, args.rounds)
            print("  %-12s %7d ns" % (name, value), flush=True)
    for name, flag in peers:
        command = [args.python, "-X", flag, "-c", PROGRAM, str(count), "0"]
        print("  %-12s %7d ns" % (name, first_call(command, environment(), args.rounds)), flush=True)


def record(args, count, outputs, data):
    """perf record of the program; returns its process id."""
    env = environment(args.library, outputs, "/tmp") # where perf built with libdw looks for injected files
    command = ["perf", "record", "-q", "-k", "1", "-e", "cpu-clock", "-F", "500", "--call-graph", "dwarf",
               "-o", data, "--", args.python, "-c", PROGRAM + "\nimport os\nprint('pid', os.getpid())", str(count), "2"]
    out = run(command, env=env).stdout.decode()
    return int(re.search(r"pid (\d+)", out).group(1))


def timed(command):
    """(seconds, lines that name a Python function)"""
    begin = time.perf_counter()
    out = run(command).stdout
    return time.perf_counter() - begin, out.count(b"py::")


def measure_symbolising(args, count):
    """perf script of the same kind of recording through the image and through inject."""
    with tempfile.TemporaryDirectory(prefix="pyjd-bench-") as directory:
        data, injected = os.path.join(directory, "perf.data"), os.path.join(directory, "injected")
        script = ["perf", "script", "--no-inline", "-F", "ip,sym,dso", "-i"]

        pid = record(args, count, "elf", data)
        images = glob.glob("/tmp/pyjd-%d-*.so" % pid)
        image_bytes = disk_use(images)
        image_seconds, image_names = timed(script + [data])
        remove(images)

        pid = record(args, count, "jitdump", data)
        dump = "/tmp/jit-%d.dump" % pid
        begin = time.perf_counter()
        run(["perf", "inject", "--jit", "-i", data, "-o", injected])
        inject_seconds = time.perf_counter() - begin
        jitted = glob.glob("/tmp/jitted-%d-*.so" % pid)
        dump_bytes = disk_use([dump])
        jitted_bytes = disk_use(jitted)
        script_seconds, inject_names = timed(script + [injected])
        remove([dump] + jitted)

    total = inject_seconds + script_seconds
    print("\n%d functions: from perf.data to text" % count)
    print("  through the image   %7.2f s   %8d KiB on disk   %d names in the text"
          % (image_seconds, image_bytes // 1024, image_names))
    print("  through inject      %7.2f s   %8d KiB on disk   %d names in the text"
          % (total, (dump_bytes + jitted_bytes) // 1024, inject_names))
    print("    of these: inject %.2f s, script %.2f s; jitdump %d KiB, %d injected files %d KiB"
          % (inject_seconds, script_seconds, dump_bytes // 1024, len(jitted), jitted_bytes // 1024))
    print("  ratio: %.0f times faster, a %.0fth of the disk"
          % (total / image_seconds, (dump_bytes + jitted_bytes) / image_bytes), flush=True)


def main():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", default=os.path.join(root, "build/libpyjitdump/libpyjitdump.so"))
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--counts", default="1000,10000,30000")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.library = os.path.realpath(args.library)
    if not os.path.exists(args.library):
        sys.exit("%s: not built; see README, or give --library" % args.library)
    version = run([args.python, "-c", "import sys; print(*sys.version_info[:3])"]).stdout.split()
    args.minor = int(version[1])
    print("CPython %s, %s, Linux %s" % (".".join(word.decode() for word in version),
                                       run(["perf", "--version"]).stdout.decode().strip(),
                                       os.uname().release))
    for count in [int(word) for word in args.counts.split(",")]:
        measure_first_calls(args, count)
        measure_symbolising(args, count)


if __name__ == "__main__":
    main()
