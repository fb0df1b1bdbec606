"""The reader must be able to fail: every field that it checks is spoilt here once, and noticed."""
import struct
import subprocess
import sys

import pytest

import jitdump_reader
from jitdump_reader import JitdumpError

PID = 4242
# An x86-64 trampoline, without its salt.
CODE = bytes.fromhex("f30f1efa554889e5ffd15dc3cccccccc48b8")


def pack(layout, *values):
    return struct.pack("=" + layout, *values)


def build_unwind(code_size, f):
    """.eh_frame and .eh_frame_hdr; `f(name, value)` may replace any field's value."""
    initial = f("cie_cfi", bytes.fromhex("0c07089001"))
    cie = pack("IB", f("cie_id", 0), f("cie_version", 1)) + f("augmentation", b"zR\0")
    cie += bytes([f("code_align", 1), f("data_align", 0x78), f("return_register", 16),
                  f("augmentation_size", 1), f("fde_encoding", 0x1B)]) + initial
    cie += bytes(-(len(cie) + 4) % 8)
    cie = pack("I", f("cie_length", len(cie))) + cie

    rows = f("fde_cfi", bytes.fromhex("450e108602430d06430c0708c6"))
    fde = pack("IiIB", f("cie_pointer", len(cie) + 4),
               f("pc_begin", -(len(cie) + 8 + (code_size + 7) // 8 * 8)),
               f("pc_range", code_size), f("fde_augmentation", 0)) + rows
    fde += bytes(-len(fde) % 4)
    fde = pack("I", f("fde_length", len(fde))) + fde

    frame = cie + fde + pack("I", f("terminator", 0))
    hdr = bytes([f("hdr_version", 1), f("ptr_encoding", 0x1B), f("count_encoding", 3),
                 f("table_encoding", 0x3B)])
    hdr += pack("iIii", f("eh_frame_ptr", -len(frame) - 4), f("fde_count", 1),
                f("table_code", -((code_size + 7) // 8 * 8) - len(frame)),
                f("table_fde", -(len(frame) - len(cie))))
    return frame, hdr


def record(kind, body, time, f, name):
    return pack("IIQ", f(name + "_id", kind), f(name + "_total", len(body) + 16),
                f(name + "_time", time)) + body


def build_function(number, f):
    """Three records of the function `number`, counted from 1."""
    addr, time = 0x7F0000000000 + 128 * number, 1000 + number
    code = f("code", CODE + pack("Q", number) + b"\xcc" * 6)

    line = pack("Qii", f("line_addr", addr), f("line", 7), f("discriminator", 0))
    line += f("file", b"a.py\0")
    end = pack("Qii", f("end_addr", addr + len(code)), 7, 0) + b"a.py\0"
    debug = pack("QQ", f("debug_addr", addr), f("nr_entry", 2)) + line + end
    debug += f("debug_pad", bytes(-len(debug) % 8))

    frame, hdr = build_unwind(len(code), f)
    size = len(frame) + len(hdr)
    unwind = pack("QQQ", f("unwind_size", size), f("hdr_size", len(hdr)),
                  f("mapped_size", (size + 15) // 16 * 16)) + frame + hdr
    unwind += f("unwind_pad", bytes(-len(unwind) % 8))

    load = pack("IIQQQQ", f("load_pid", PID), f("tid", PID), f("vma", addr), f("code_addr", addr),
                f("code_size", len(code)), f("code_index", number))
    load += f("name", b"py::f%d:a.py\0" % number) + code + f("behind_code", b"")
    return [record(2, debug, time, f, "debug"), record(4, unwind, time, f, "unwind"),
            record(0, load, time, f, "load")]


def build_header(f):
    return pack("IIIIIIQQ", f("magic", 0x4A695444), f("version", 1), f("header_size", 40),
                f("elf_mach", 62), f("pad", 0), f("pid", PID), f("time", 1000), f("flags", 0))


def build(**spoilt):
    """A file of three functions; the fields named in `spoilt` get that value, in the last function
    where each function has one."""
    used = set()

    def spoil(name, value):
        used.add(name)
        return spoilt.get(name, value)

    parts = [build_header(spoil)]
    parts += build_function(1, lambda _, value: value) + build_function(2, lambda _, value: value)
    parts += build_function(3, spoil)
    assert set(spoilt) <= used, "no such field"
    return parts


@pytest.fixture
def check(tmp_path):
    """Runs the reader over these bytes."""
    def check(data, name="jit-%d.dump" % PID, **options):
        path = tmp_path / name
        path.write_bytes(data)
        return jitdump_reader.read(path, **options)
    return check


def test_good_file(check):
    dump = check(b"".join(build()))
    assert (dump.pid, dump.elf_mach, dump.time) == (PID, 62, 1000)
    assert [function.name for function in dump.functions] == ["py::f%d:a.py" % n for n in (1, 2, 3)]
    last = dump.functions[2]
    assert (last.code_index, last.code_size, last.mapped_size, last.tid) == (3, 32, 80, PID)
    assert last.code[:18] == CODE
    assert [(line.addr - last.code_addr, line.line, line.file) for line in last.lines] == [
        (0, 7, "a.py"), (32, 7, "a.py")]
    # CFA and saved registers at each row of the trampoline: DWARF 6 is rbp, 7 rsp, 16 the return
    # address.
    assert last.cfi_rows == [(0, (7, 8), {16: -8}), (5, (7, 16), {16: -8, 6: -16}),
                             (8, (6, 16), {16: -8, 6: -16}), (11, (7, 8), {16: -8})]


def test_empty_file_is_good(check):
    assert check(b"".join(build()[:1])).functions == []


ADDR = 0x7F0000000000 + 128 * 3
WRONG = [
    ("magic", 0x4454694A), ("version", 2), ("header_size", 44), ("header_size", 36),
    ("elf_mach", 0), ("elf_mach", 3), ("elf_mach", 183), ("pad", 1), ("pid", 0), ("pid", PID + 1),
    ("time", 0), ("time", 5000), ("flags", 1), ("debug_id", 1), ("debug_id", 3), ("debug_id", 0),
    ("debug_total", 8), ("debug_total", 1 << 31), ("debug_time", 0), ("debug_time", 1001),
    ("debug_addr", ADDR + 1), ("nr_entry", 0), ("nr_entry", 1), ("nr_entry", 3),
    ("nr_entry", 1 << 60), ("line_addr", ADDR - 1), ("line_addr", ADDR + 1), ("line", 0),
    ("line", -1), ("discriminator", 1), ("file", b"\0"), ("file", b"a\nb\0"), ("file", b"\xff\0"),
    ("end_addr", ADDR + 31), ("end_addr", ADDR + 33), ("end_addr", ADDR - 1),
    ("debug_pad", b"\1" * 6), ("debug_pad", bytes(14)), ("unwind_id", 2), ("unwind_time", 1),
    ("unwind_size", 0), ("unwind_size", 20), ("unwind_size", 1 << 40), ("hdr_size", 0),
    ("hdr_size", 24), ("hdr_size", 16), ("mapped_size", 88), ("mapped_size", 0),
    ("mapped_size", 128), ("unwind_pad", b"\1"), ("unwind_pad", bytes(12)), ("cie_length", 21),
    ("cie_length", 24), ("cie_length", 0xFFFFFFFF), ("cie_id", 1), ("cie_version", 3),
    ("augmentation", b"zP\0"), ("augmentation", b"z\0"), ("code_align", 2), ("data_align", 0x7C),
    ("return_register", 15), ("augmentation_size", 2), ("fde_encoding", 0x03),
    ("cie_cfi", bytes.fromhex("0c07109001")), ("cie_cfi", bytes.fromhex("0c07089002")),
    ("cie_cfi", bytes.fromhex("0c0608")), ("cie_cfi", b"\x3f"), ("fde_length", 20),
    ("fde_length", 29), ("fde_length", 1 << 30), ("cie_pointer", 24), ("cie_pointer", 0),
    ("pc_begin", 0), ("pc_begin", -60), ("pc_range", 31), ("pc_range", 33), ("fde_augmentation", 1),
    ("fde_cfi", b"\x16"), ("fde_cfi", b""), ("fde_cfi", b"\x60"), ("fde_cfi", b"\x0c\x07"),
    ("terminator", 4), ("hdr_version", 2), ("ptr_encoding", 0x0B), ("count_encoding", 0x0B),
    ("table_encoding", 0x1B), ("eh_frame_ptr", 0), ("eh_frame_ptr", -56), ("fde_count", 0),
    ("fde_count", 2), ("table_code", 0), ("table_code", -88), ("table_fde", 0), ("table_fde", -32),
    ("load_id", 1), ("load_id", 2), ("load_id", 3), ("load_id", 4), ("load_total", 40),
    ("load_time", 999), ("load_time", 0), ("load_pid", PID + 1), ("tid", 0), ("vma", ADDR + 8),
    ("code_addr", ADDR + 8), ("code_addr", 0), ("code_size", 0), ("code_size", 31),
    ("code_size", 33), ("code_size", 1 << 63), ("code_index", 2), ("name", b"\0"),
    ("name", b"py::a\nb:c\0"), ("name", b"py::\x1b[0m\0"), ("name", b"py::\xed\xa0\x80\0"),
    ("name", b"py::\x7f\0"), ("name", b"py::\xc2\x9b\0"),
    ("code", CODE + pack("Q", 2) + b"\xcc" * 6), ("behind_code", b"\0"),
]


@pytest.mark.parametrize("field,value", WRONG, ids=["%s=%r" % pair for pair in WRONG])
def test_wrong_field(check, field, value):
    parts = build(**{field: value})
    with pytest.raises(JitdumpError) as caught:
        check(b"".join(parts))
    assert 0 <= caught.value.offset <= len(b"".join(parts))


def test_every_byte_counts(check):
    """Of the last function's three records, the only bits that may change unnoticed are those whose
    value is free: the line, the thread, the names, the code and the call frame instructions."""
    parts = build()
    data, start = b"".join(parts), len(b"".join(parts[:-3]))
    debug, unwind, load = (len(part) for part in parts[-3:])
    frame = start + debug + 16 + 24
    load_at = start + debug + unwind
    free = set()
    for at, size in [(start + 8, 1),                            # time: may be its predecessor's
                     (start + 40, 4), (start + 48, 4),          # line, file
                     (start + 61, 4), (start + 69, 5),          # and again for the end
                     (frame + 17, 7), (frame + 24 + 17, 15),    # instructions of CIE and FDE
                     (load_at + 20, 4), (load_at + 48, 8),      # thread, index
                     (load_at + 56, load - 56),                 # name and code
                     (load_at + 8, 8)]:                         # time of the last: only upwards
        free.update(range(at, at + size))
    unnoticed = set()
    for offset in range(start, len(data)):
        for bit in range(8):
            spoilt = bytearray(data)
            spoilt[offset] ^= 1 << bit
            try:
                check(bytes(spoilt))
                unnoticed.add(offset)
            except JitdumpError:
                pass
    assert unnoticed <= free, "bytes %r may hold anything" % sorted(unnoticed - free)


def test_truncated_anywhere(check):
    """Cut inside the last function, at every offset: also between its records."""
    parts = build()
    data, start = b"".join(parts), len(b"".join(parts[:-3]))
    for length in list(range(40)) + list(range(start + 1, len(data))):
        with pytest.raises(JitdumpError):
            check(data[:length])
        if length > 40:
            assert len(check(data[:length], torn=True).functions) == 2
    assert len(check(data[:start]).functions) == 2


def test_garbage_behind(check):
    for garbage in (b"\0", b"\0" * 16, b"x" * 40):
        with pytest.raises(JitdumpError):
            check(b"".join(build()) + garbage)


def test_order_of_records(check):
    parts = build()
    debug, unwind, load = parts[-3:]
    head = parts[:-3]
    for tail in ([unwind, debug, load], [load, debug, unwind], [debug, load], [unwind, load],
                 [load], [debug, debug, unwind, load], [debug, unwind, unwind, load],
                 [debug, unwind]):
        with pytest.raises(JitdumpError):
            check(b"".join(head + tail))


def test_foreign_functions_may_come_bare(check):
    parts = build()
    data = b"".join(parts[:-3] + parts[-1:])
    assert len(check(data, foreign=True).functions) == 3
    with pytest.raises(JitdumpError):
        check(data)


def test_overlap_in_memory(check):
    """Code 32 bytes, unwind data mapped behind it 80: the next may begin at 112, not before."""
    def at(addr):
        fields = dict.fromkeys(("vma", "code_addr", "debug_addr", "line_addr"), addr)
        return check(b"".join(build(end_addr=addr + 32, **fields)))

    assert len(at(ADDR - 16).functions) == 3
    with pytest.raises(JitdumpError, match="overlaps"):
        at(ADDR - 24)


def test_name_of_the_file(check):
    with pytest.raises(JitdumpError):
        check(b"".join(build()), name="dump")


def test_command(tmp_path):
    path = tmp_path / ("jit-%d.dump" % PID)
    path.write_bytes(b"".join(build()))
    good = subprocess.run([sys.executable, jitdump_reader.__file__, path], stdout=subprocess.PIPE)
    assert good.returncode == 0 and b"3 functions" in good.stdout and b"(a.py:7)" in good.stdout
    path.write_bytes(b"".join(build(pad=1)))
    bad = subprocess.run([sys.executable, jitdump_reader.__file__, path], stdout=subprocess.PIPE)
    assert bad.returncode == 1 and b"offset 16" in bad.stdout
