"""pyjitdump inspect: sound files pass, and what is wrong is named at its offset."""
import glob
import json
import os
import re
import struct
import subprocess
import sys

sys.dont_write_bytecode = True

import pytest

import inspect_samples as samples
from pyjitdump_tool import inspect_image, inspect_jitdump, inspect_map

TOOL = str(samples.ROOT / "scripts" / "pyjitdump")
NAMES = {"jitdump": "jit-4711.dump", "image": "pyjd-4711-1.so", "map": "perf-4711.map"}
READERS = {"jitdump": inspect_jitdump, "image": inspect_image, "map": inspect_map}
DUMP, RECORDS = samples.jitdump()
IMAGE = samples.Image()
FILES = {"jitdump": bytes(DUMP), "image": bytes(IMAGE.data), "map": samples.MAP}
DEBUG, UNWIND, LOAD, DEBUG2, UNWIND2, LOAD2 = RECORDS


def tool(*words):
    answer = subprocess.run([sys.executable, TOOL, "inspect", *map(str, words)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120,
                            env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
    return answer.returncode, answer.stdout.decode(), answer.stderr.decode()


def write(directory, kind, data):
    path = directory / NAMES[kind]
    path.write_bytes(data)
    return path


def errors(report):
    return [(finding.offset, finding.message) for finding in report.findings if finding.level == "error"]


def patched(kind, offset, layout, *values):
    data = bytearray(FILES[kind])
    struct.pack_into("<" + layout, data, offset, *values)
    return bytes(data)


@pytest.mark.parametrize("kind", FILES)
def test_a_sound_file_has_no_findings(kind, tmp_path):
    path = write(tmp_path, kind, FILES[kind])
    status, out, err = tool(path)
    assert (status, err) == (0, "")
    assert out.endswith("nothing is wrong, 0 remarks\n")


def test_what_is_in_a_jitdump():
    report = inspect_jitdump.read(NAMES["jitdump"], FILES["jitdump"])
    assert [record["type"] for record in report.records] == ["DEBUG_INFO", "UNWINDING_INFO", "LOAD"] * 2
    assert [record["offset"] for record in report.records] == RECORDS
    load = report.records[5]
    assert (load["name"], load["line"], load["code_index"]) == ("py::f1:/srv/app.py", "/srv/app.py:11", 2)
    assert load["unwind"][2] == "8: CFA rbp+16, rbp at CFA-16, ra at CFA-8"


def test_what_is_in_an_image():
    report = inspect_image.read(NAMES["image"], FILES["image"])
    assert (report.summary["used"], report.summary["capacity"], report.summary["fdes"]) == (2, 3, 3)
    symbols = [(record["name"], record["line"]) for record in report.records if record["type"] == "symbol"]
    assert symbols == [("py::f:/srv/app.py", "/srv/app.py:10"), ("py::A.g:/srv/app.py", "/srv/app.py:11")]


# kind, offset and layout and values that are written, offset and words of the finding
FLAWS = [
    ("jitdump", 0, "I", [7], 0, "magic"),
    ("jitdump", 4, "I", [2], 4, "version is 2"),
    ("jitdump", 8, "I", [48], 8, "exactly 40"),
    ("jitdump", 12, "I", [999], 12, "elf_mach is 999"),
    ("jitdump", 20, "I", [4712], 20, "4712 in a file named jit-4711.dump"),
    ("jitdump", 32, "Q", [4], 32, "flags"),
    ("jitdump", DEBUG, "I", [9], DEBUG, "record id is 9"),
    ("jitdump", LOAD2 + 4, "I", [5], LOAD2 + 4, "less than its own prefix"),
    ("jitdump", LOAD2 + 4, "I", [108], LOAD2 + 4, "truncated"),
    ("jitdump", LOAD + 8, "Q", [0], LOAD + 8, "timestamp is 0"),
    ("jitdump", DEBUG + 16, "Q", [0x7F0000001001], DEBUG + 16, "its LOAD"),
    ("jitdump", DEBUG + 24, "Q", [1 << 60], DEBUG + 24, "do not fit"),
    ("jitdump", DEBUG + 32, "Q", [0x7F0000001100], DEBUG + 32, "outside of the code"),
    ("jitdump", DEBUG + 40, "i", [-5], DEBUG + 40, "line is -5"),
    ("jitdump", UNWIND + 16, "Q", [1 << 50], UNWIND + 16, "unwind_size"),
    ("jitdump", UNWIND + 24, "Q", [84], UNWIND + 24, "eh_frame_hdr_size is 84"),
    ("jitdump", UNWIND + 32, "Q", [64], UNWIND + 32, "mapped_size is 64"),
    ("jitdump", UNWIND + 40 + 9, "B", [ord("q")], UNWIND + 40 + 9, "augmentation"),
    ("jitdump", UNWIND + 40 + 24 + 8, "i", [-72], UNWIND + 40 + 24 + 8, "pc_begin leads -8 bytes"),
    ("jitdump", UNWIND + 40 + 24 + 12, "I", [31], UNWIND + 40 + 24 + 12, "pc_range is 31"),
    ("jitdump", UNWIND + 40 + 60 + 4, "i", [-60], UNWIND + 40 + 60 + 4, "off by 4"),
    ("jitdump", UNWIND + 40 + 60 + 8, "I", [2], UNWIND + 40 + 60 + 8, "fde_count is 2"),
    ("jitdump", UNWIND + 40 + 60 + 12, "i", [-96], UNWIND + 40 + 60 + 12, "off by -4"),
    ("jitdump", UNWIND + 40 + 60 + 16, "i", [-60], UNWIND + 40 + 60 + 16, "does not lead to an FDE"),
    ("jitdump", LOAD + 16, "I", [1], LOAD + 16, "the header has 4711"),
    ("jitdump", LOAD + 40, "Q", [33], LOAD + 40, "code_size is 33"),
    ("jitdump", LOAD2 + 48, "Q", [1], LOAD2 + 48, "code_index 1 is that of the LOAD at %d" % LOAD),
    ("jitdump", LOAD + 58, "B", [10], LOAD + 58, "control character 0x0a"),
    ("jitdump", LOAD + 58, "B", [0xFF], LOAD + 58, "not UTF-8"),
    ("image", 16, "H", [2], 16, "e_type"),
    ("image", 18, "H", [7], 18, "e_machine"),
    ("image", 40, "Q", [1 << 40], 40, "truncated"),
    ("image", 64 + 56 * 3 + 8, "Q", [5], 64 + 56 * 3 + 8, "GNU_EH_FRAME"),
    ("image", IMAGE.at[".text"] + 130, "B", [0x90], IMAGE.at[".text"] + 130, "byte 2 of slot 1"),
    ("image", IMAGE.at[".eh_frame"] + 32, "i", [0], IMAGE.at[".eh_frame"] + 32, "the FDE of slot 0"),
    ("image", IMAGE.at[".hash"] + 4, "I", [9], IMAGE.at[".hash"] + 4, "nchain is 9"),
    ("image", IMAGE.at[".dynsym"] + 24, "I", [9], IMAGE.at[".dynsym"] + 24, "no name is defined"),
    ("image", IMAGE.at[".dynsym"] + 24 + 6, "H", [5], IMAGE.at[".dynsym"] + 24 + 6, "st_shndx of slot 0 is 5"),
    ("image", IMAGE.at[".dynsym"] + 72, "I", [8], IMAGE.at[".dynsym"] + 72, "slot 2"),
    ("image", IMAGE.dots + 30, "B", [0x55], IMAGE.dots + 30, "not dots only"),
    ("image", IMAGE.records + 3, "Q", [1], IMAGE.records + 3, "line record 0 is for 1"),
    ("image", IMAGE.records + 32, "B", [0x55], IMAGE.records + 32, "byte 0 of a line record is 0x55"),
    ("image", IMAGE.records + 16, "B", [0xFF], IMAGE.records + 16, "file 127 of"),
    ("image", IMAGE.at[".debug_aranges"] + 20, "Q", [1], IMAGE.at[".debug_aranges"], ".debug_aranges"),
    ("image", IMAGE.at[".dynamic"] + 8, "Q", [1], IMAGE.at[".dynamic"] + 8, "DT_HASH"),
    ("image", IMAGE.at[".debug_info"] + 4, "H", [5], IMAGE.at[".debug_info"] + 4, "version of .debug_info is 5"),
    ("map", 0, "2s", [b"0x"], 0, "line 1"),
    ("map", 34, "17s", [b"7f0000001010 20 p"], 34, "line 2 overlaps line 1"),
    ("map", len(samples.MAP) - 1, "1s", [b"y"], len(samples.MAP), "no newline"),
]


@pytest.mark.parametrize("kind, at, layout, values, offset, words", FLAWS,
                         ids=["%s-%d-%s" % (flaw[0], flaw[1], flaw[5][:20].replace(" ", "_")) for flaw in FLAWS])
def test_a_flaw_is_named_at_its_offset(kind, at, layout, values, offset, words):
    report = READERS[kind].read(NAMES[kind], patched(kind, at, layout, *values))
    assert any(place == offset and words in message for place, message in errors(report)), errors(report)


def test_code_that_overlaps():
    data = bytearray(FILES["jitdump"])
    for at in (DEBUG2 + 16, DEBUG2 + 32, LOAD2 + 24, LOAD2 + 32):
        struct.pack_into("<Q", data, at, 0x7F0000001010)
    found = errors(inspect_jitdump.read(NAMES["jitdump"], bytes(data)))
    assert (LOAD2 + 32, "the code overlaps the one of py::f0:/srv/app.py at %d" % LOAD) in found


def test_unwind_data_that_overlaps():
    data = bytearray(FILES["jitdump"])
    for at in (DEBUG2 + 16, DEBUG2 + 32, LOAD2 + 24, LOAD2 + 32):
        struct.pack_into("<Q", data, at, 0x7F0000001040)
    found = errors(inspect_jitdump.read(NAMES["jitdump"], bytes(data)))
    assert any(place == LOAD2 + 32 and "48 bytes inside of the unwind data" in words for place, words in found)


def test_the_entry_that_closes_the_lines():
    data = patched("jitdump", DEBUG + 32 + 28, "Q", 0x7F0000001008)
    report = inspect_jitdump.read(NAMES["jitdump"], data)
    assert not report.wrong
    assert [finding.offset for finding in report.findings] == [DEBUG + 32 + 28]
    assert "no entry closes the lines" in report.findings[0].message


def test_the_other_byte_order():
    header = struct.pack(">IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, samples.PID, 5, 0)
    load = struct.pack(">IIQIIQQQQ", 0, 60, 6, samples.PID, 1, 4096, 4096, 2, 1) + b"f\0\x90\x90"
    report = inspect_jitdump.read(NAMES["jitdump"], header + load)
    assert not report.wrong
    assert report.summary["byte_order"] == "big" and report.records[0]["name"] == "f"


@pytest.mark.parametrize("kind", FILES)
def test_every_truncation_is_noticed(kind):
    """Where a line or a function ends a file may end."""
    data = FILES[kind]
    complete = {"jitdump": {40, DEBUG2}, "image": (), "map": {34, 68, 0}}[kind]
    for length in range(len(data)):
        report = READERS[kind].read(NAMES[kind], data[:length])
        assert report.wrong == (length not in complete), length
        json.dumps(report.records)


# The bytes that may have any value: times, names, lines, indexes, thread ids, salts. The
# padding of unwind instructions, too, and lower bytes of a time.
FREE = {
    "jitdump": sum((list(range(start, end)) for start, end in (
        (24, 32), (DEBUG + 32, UNWIND), (DEBUG2 + 32, UNWIND2), (LOAD + 56, DEBUG2), (LOAD2 + 56, len(DUMP)),
        (LOAD + 20, LOAD + 24), (LOAD2 + 20, LOAD2 + 24),
        (LOAD + 48, LOAD + 56), (LOAD2 + 48, LOAD2 + 56))), []),
    "image": sum((list(range(IMAGE.at[".text"] + slot * 128 + 18, IMAGE.at[".text"] + slot * 128 + 26))
                  for slot in range(3)), list(range(IMAGE.at[".debug_line"], IMAGE.end[".debug_line"])) +
                 list(range(IMAGE.at[".debug_info"] + 12, IMAGE.at[".debug_info"] + 36))),
}


@pytest.mark.parametrize("kind", FILES)
def test_every_byte_turned_over(kind):
    """Never a traceback; and hardly a byte may be turned over unseen."""
    data, unseen = FILES[kind], []
    for offset in range(len(data)):
        for mask in (0xFF, 0x01, 0x80) if len(data) < 2000 else (0xFF,):
            changed = data[:offset] + bytes((data[offset] ^ mask,)) + data[offset + 1:]
            report = READERS[kind].read(NAMES[kind], changed)
            for finding in report.findings:
                assert finding.offset is None or 0 <= finding.offset <= len(data)
            for record in report.records:
                READERS[kind].describe(record)
            if not report.findings:
                unseen.append(offset)
    if kind in FREE:
        rest = sorted(set(unseen) - set(FREE[kind]))
        assert len(rest) <= 20, rest


def test_random_damage():
    import random
    chance = random.Random(1)
    for kind, data in FILES.items():
        for _ in range(600):
            changed = bytearray(data)
            for _ in range(chance.randrange(1, 8)):
                at = chance.randrange(len(changed))
                changed[at:at + chance.randrange(9)] = chance.choice(
                    (b"", bytes(8), b"\xff" * 8, chance.getrandbits(64).to_bytes(8, "little")))
                changed = changed or bytearray(b"\0")
            report = READERS[kind].read(NAMES[kind], bytes(changed))
            for record in report.records:
                READERS[kind].describe(record)


def test_exit_status_and_one_line(tmp_path):
    sound = write(tmp_path, "jitdump", FILES["jitdump"])
    (tmp_path / "cut").mkdir()
    cut = write(tmp_path / "cut", "jitdump", FILES["jitdump"][:-5])
    other = tmp_path / "notes.txt"
    other.write_text("nothing of the kind\n")
    status, out, _ = tool("-q", cut)
    assert status == 1
    assert "error: offset %d (0x%x): truncated: a LOAD record of 107 bytes, the file has 102 more" % (
        LOAD2 + 4, LOAD2 + 4) in out
    for path in (other, tmp_path, tmp_path / "missing", "/dev/zero", "/bin/sh"):
        status, out, err = tool(path)
        assert (status, out, err.count("\n")) == (2, "", 1), (path, err)
    assert tool("-q", sound, cut)[0] == 1
    assert tool("-q", sound, cut, other)[0] == 2
    assert tool()[0] == 2


def test_json(tmp_path):
    path = write(tmp_path, "jitdump", patched("jitdump", LOAD2 + 48, "Q", 1))
    status, out, _ = tool("--json", path)
    found = json.loads(out)
    assert status == 1 and found["ok"] is False and found["kind"] == "jitdump"
    assert found["findings"][0]["offset"] == LOAD2 + 48
    assert [record["type"] for record in found["records"]].count("LOAD") == 2


def test_alike_findings_are_counted_not_repeated(tmp_path):
    data, offsets = samples.jitdump(functions=9)
    for load in offsets[2::3]:
        struct.pack_into("<I", data, load + 20, 0)
    path = write(tmp_path, "jitdump", data)
    _, out, _ = tool("-q", path)
    assert out.count("tid is 0") == 4 and "... and 6 more like this" in out
    assert tool("-q", "-a", path)[1].count("tid is 0") == 9


def libraries():
    if os.environ.get("PYJD_TEST_LIBRARY"):
        return [os.environ["PYJD_TEST_LIBRARY"]]
    return sorted(glob.glob(str(samples.ROOT / "build*" / "libpyjitdump" / "libpyjitdump.so")))


def test_files_of_the_library(tmp_path):
    found = libraries()
    if not found:
        pytest.skip("no libpyjitdump.so: build it, or set PYJD_TEST_LIBRARY")
    answer = subprocess.run(
        [sys.executable, "-c", "import json, os; print(os.getpid())"], stdout=subprocess.PIPE, check=True,
        env=dict(os.environ, LD_PRELOAD=os.path.realpath(found[0]), PYJD_DIR=str(tmp_path)))
    pid = int(answer.stdout)
    written = sorted(glob.glob(str(tmp_path / "*"))) + ["/tmp/perf-%d.map" % pid]
    try:
        assert any(path.endswith(".so") for path in written) and any(path.endswith(".dump") for path in written)
        status, out, _ = tool("-q", *written)
        assert status == 0 and not re.search("error|remark:", out), out
        report = inspect_jitdump.read("jit-%d.dump" % pid, open(str(tmp_path / ("jit-%d.dump" % pid)), "rb").read())
        names = {record["name"] for record in report.records if record["type"] == "LOAD"}
        images = [inspect_image.read(path, open(path, "rb").read()) for path in written if path.endswith(".so")]
        assert names == {record["name"] for image in images for record in image.records if "slot" in record}
    finally:
        os.unlink("/tmp/perf-%d.map" % pid)


def perf_jit_python():
    pattern = os.path.expanduser("~/.pyenv/versions/3.1[3-9]*/bin/python3")
    return next(iter(sorted(glob.glob(pattern))), None)


def test_a_jitdump_of_cpython_is_readable():
    python = perf_jit_python()
    if not python:
        pytest.skip("no CPython with -X perf_jit here")
    answer = subprocess.run([python, "-X", "perf_jit", "-c", "import json, os; print(os.getpid())"],
                            stdout=subprocess.PIPE, check=True)
    path = "/tmp/jit-%d.dump" % int(answer.stdout)
    try:
        status, out, _ = tool("--json", path)
        report = json.loads(out)
        assert status == 0, report["findings"][:5]
        assert report["summary"]["functions"] > 20
        assert any("have no DEBUG_INFO" in finding["message"] for finding in report["findings"])
        assert all(record["name"].startswith("py::") for record in report["records"] if record["type"] == "LOAD")
    finally:
        os.unlink(path)
