"""eu-stack, gdb, backtrace(), dladdr() and core files show Python functions by name, with their lines.

Nothing is configured and nothing is typed before: the image is a library of the process like any other.
"""
import json
import re
import subprocess

import pytest

from image_tools import (TARGET, WAITING, address, first_lines, output, python_names, start_target,  # noqa: F401
                         symbol_frames, tool, wait_for)

EU_STACK_FRAME = r"^#\d+\s+0x[0-9a-f]+ (\S.*)$"
GDB_FRAME = r"^#\d+\s+(?:0x[0-9a-f]+ in )?(.+?) \("
GDB = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set height 0"]
OUTERMOST = ("_start", "_dl_start_user", "__libc_start_main", "__libc_start_main_impl", "main")


def gdb(*commands, pid=None, files=(), **options):
    tool("gdb", "gdb")
    attach = ["-p", str(pid)] if pid else []
    text = output(*GDB, *attach, *files, *[word for command in commands for word in ("-ex", command)],
                  **options)
    if "Operation not permitted" in text:
        pytest.skip("this machine does not allow ptrace")
    return text


def eu_stack(*args):
    tool("eu-stack", "elfutils")
    # A status of 1: some thread could not be unwound to its end, which the caller looks at.
    text = output("eu-stack", *args, status=None)
    if "Operation not permitted" in text:
        pytest.skip("this machine does not allow ptrace")
    return text


def check_stack(text, pattern):
    """The waiting target, from the read that it waits in to where the process begins."""
    symbols = symbol_frames(text, pattern)
    assert python_names(symbols) == WAITING, text
    innermost = next(i for i, symbol in enumerate(symbols) if symbol.startswith("py::"))
    assert any(re.search("read", symbol) for symbol in symbols[:innermost]), text
    assert symbols[-1].partition("@")[0] in OUTERMOST, text


def wait_until_waiting(target):
    """The target has answered; soon it reads."""
    wait_for(lambda: open("/proc/%d/stat" % target.pid).read().rpartition(")")[2].split()[0] == "S")


def test_eu_stack(start_target, python):
    target = start_target(python)
    for _ in range(2):
        wait_until_waiting(target)
        check_stack(eu_stack("-p", target.pid), EU_STACK_FRAME)
        target.do("grow", 1500)     # more images
    target.finish()


def test_gdb(start_target, python):
    target = start_target(python)
    lines = first_lines(TARGET)
    target.do("grow", 1500)
    wait_until_waiting(target)
    at = address(target, "hit")
    text = gdb("bt", "info symbol %d" % at, "info line *%d" % at, pid=target.pid)
    check_stack(text, GDB_FRAME)
    # gdb takes .py for a suffix of the compiler's making; see docs/uprobes.md.
    shown = "py::hit:%s[py]" % TARGET[:-len(".py")]
    assert re.search(r"^%s in section \.text" % re.escape(shown), text, re.M), text
    assert re.search(r'^Line %d of "%s" starts at address 0x%x' % (lines["hit"], re.escape(TARGET), at),
                     text, re.M), text
    assert re.search(r"^#\d+ .*py::inner:.* at %s:%d$" % (re.escape(TARGET), lines["inner"]), text, re.M), text
    target.finish()


def test_core_file(start_target, python, tmp_path):
    tool("gcore", "gdb")
    target = start_target(python)
    wait_until_waiting(target)
    text = output("gcore", "-o", tmp_path / "core", target.pid, status=None)
    core = tmp_path / ("core.%d" % target.pid)
    if not core.exists() and "Operation not permitted" in text:
        pytest.skip("this machine does not allow ptrace")
    target.finish()         # the core is read when the process is gone; its image is still there
    check_stack(gdb("bt", files=[python.path, str(core)]), GDB_FRAME)
    check_stack(eu_stack("--core=%s" % core, "--executable=%s" % python.path), EU_STACK_FRAME)


IN_PROCESS = """
import ctypes, json, sys

libc = ctypes.CDLL(None)
libc.backtrace_symbols.restype = ctypes.POINTER(ctypes.c_char_p)

class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("addr", ctypes.c_void_p)]

def innermost():
    addresses = (ctypes.c_void_p * 200)()
    count = libc.backtrace(addresses, 200)
    symbols = libc.backtrace_symbols(addresses, count)
    found = []
    for i in range(count):
        info = Info()
        known = libc.dladdr(ctypes.c_void_p(addresses[i]), ctypes.byref(info))
        found.append((symbols[i].decode(), known and (info.name or b"").decode(), known and info.file.decode()))
    return found

class Middle:
    def method(self):
        return [innermost() for _ in range(1)][0]

def outermost():
    return Middle().method()

def main():
    for i in range(2000):       # in a later image
        exec("def f%d(): pass\\nf%d()" % (i, i), {})
    print(json.dumps(outermost()))

main()
"""


def test_backtrace_and_dladdr_in_the_process(runner, python):
    result = runner.quiet(python, IN_PROCESS)
    frames = json.loads(result.out)
    wanted = ["<module>", "main", "outermost", "Middle.method", "innermost"]
    if python.version < (3, 12):
        wanted.insert(4, "Middle.method.<locals>.<listcomp>")
    for column, strip in ((0, re.compile(r"^.*?\((.*)\+0x[0-9a-f]+\) \[0x[0-9a-f]+\]$")), (1, None)):
        names = [frame[column] for frame in frames if frame[column]]
        if strip:
            names = [match[1] for match in map(strip.match, names) if match]
        assert python_names(names) == wanted, frames
    for symbol, name, file in frames:
        if name and name.startswith("py::"):
            assert re.fullmatch(re.escape(str(runner.directory)) + r"/pyjd-%d-\d+\.so" % result.pid, file)
    # Beyond the outermost Python function the stack goes on, to where the process begins.
    assert re.search(r"libc\.so|_start", frames[-1][0]), frames


# -------------------------------------------------------------------------------------------- lines

@pytest.mark.parametrize("command", [["addr2line", "-f"], ["eu-addr2line", "-f"], ["llvm-symbolizer"]],
                         ids=lambda command: command[0])
def test_line_of_an_address(start_target, any_python, command):
    tool(command[0], {"addr2line": "binutils", "eu-addr2line": "elfutils"}.get(command[0], "llvm"))
    target = start_target(any_python)
    lines = first_lines(TARGET)
    option = ["--obj"] if command[0] == "llvm-symbolizer" else ["-e"]
    for qualname in ("hit", "Shop.twice", "inner"):
        path, symbol = target.find(qualname)
        for offset in (0, 10, symbol.size - 1):     # 10: the return address that is on stacks
            text = output(*command, *option, path, hex(symbol.offset + offset))
            assert "%s:%d" % (TARGET, lines[qualname.rpartition(".")[2]]) in text, text
            if command[0] != "llvm-symbolizer":
                assert text.splitlines()[0] == symbol.name
    # Between two functions there is nothing.
    text = output(*command, *option, path, hex(symbol.offset + symbol.size + 4))
    assert not re.search(re.escape(TARGET) + r":[1-9]", text), text
    target.finish()


def test_lines_in_eu_stack(start_target, any_python):
    target = start_target(any_python)
    wait_until_waiting(target)
    text = eu_stack("-s", "-p", target.pid)
    for name in ("inner", "middle", "outer"):
        assert re.search(r"py::%s:\S+\n\s+%s:%d$" % (name, re.escape(TARGET), first_lines(TARGET)[name]),
                         text, re.M), text
    target.finish()


def test_all_lines_by_our_own_reader(start_target, python):
    """Each function that has a name has one row, of its file and first line."""
    import image_elf
    target = start_target(python)
    assert target.do("grow", 1500) == 1500
    found, lines = {}, first_lines(TARGET)
    for path in target.images():
        image = image_elf.read(path)
        rows = {row.begin: row for row in image.lines()}
        assert len(rows) == len(image.symbols)
        for symbol in image.symbols:
            row = rows[symbol.offset]
            qualname, _, filename = symbol.name[4:].partition(":")
            assert (row.end - row.begin, row.file) == (symbol.size, filename)
            found[qualname, filename] = row.line
    for name in ("hit", "inner", "main", "grow"):
        assert found[name, TARGET] == lines[name]
    for number in range(1500):
        assert found["grown_%d" % number, "/srv/generated/module_%d.py" % (number // 10)] == number % 10 + 1
    target.finish()


# -------------------------------------------------------------------------------- breakpoints in gdb

class Session:
    """gdb that goes on by itself."""

    def __init__(self, pid, *commands):
        tool("gdb", "gdb")
        words = [word for command in commands for word in ("-ex", command)]
        self.process = subprocess.Popen([*GDB, "-p", str(pid), *words], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def end(self):
        return self.process.communicate(timeout=60)[0].decode(errors="replace")


@pytest.mark.parametrize("command", ["break -function py::hit:%s" % TARGET, "break *%d"],
                         ids=["name", "address"])     # as docs/uprobes.md has them
def test_breakpoint_in_gdb(start_target, any_python, command, tmp_path):
    """It stops at each call and no other, while functions are added; without it the process goes on."""
    target = start_target(any_python)
    command = command % address(target, "hit") if "%" in command else command
    attached = tmp_path / "attached"    # what gdb prints before it goes on stays in its buffer
    session = Session(target.pid, command, "ignore 1 1000000", "tbreak -function py::Shop.price:" + TARGET,
                      "shell touch %s" % attached, "continue", "info breakpoints", "bt 3", "delete", "detach")
    try:
        wait_for(attached.exists)
        assert target.do("hit", 7) == 7
        assert target.do("grow", 1500) == 1500
        assert target.do("hit", 4) == 4
        target.begin("price", 1)
        text = session.end()
        assert target.answer() == 1
    finally:
        session.process.kill()
    assert "breakpoint already hit 11 times" in text, text
    assert re.search(r"^#0 .*py::Shop\.price:", text, re.M), text
    target.finish()
