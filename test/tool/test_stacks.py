"""stacks.py: what it makes of perf's text."""
import io

import pytest

import tool_runs
from pyjitdump_tool import stacks, tree

SAMPLE = b"""\
my app 12/34  100.000000001:     250000 cpu-clock:\x20
\t     7f01 deflate (/usr/lib/libz.so.1)
\t     fd9c2 _PyEval_EvalFrameDefault (/usr/lib/libpython3.11.so.1.0)
\t     9909 py::Store.save:/srv/a:b.py (/tmp/r/jit/pyjd-12-1.so)
\t     250a02 _PyEval_Vector (/usr/lib/libpython3.11.so.1.0)
\t     9889 py::main:/srv/app.py (/tmp/r/jit/pyjd-12-1.so)
\t     298908 run_mod (/usr/lib/libpython3.11.so.1.0)
\t     27249 __libc_start_call_main (/usr/lib/libc.so.6)

python3 12/12  100.500000000:     250000 cpu-clock:\x20
\tffffffff81000130 do_syscall_64 ([kernel.kallsyms])
\t     cf438 read (/usr/lib/libc.so.6)
\t     9889 py::main:/srv/app.py (/tmp/r/jit/pyjd-99-7.so)

python3 12/12  101.000000000:     250000 cpu-clock:\x20

python3 12/12  101.000000000:          1 page-faults:\x20
\t     9889 py::main:/srv/app.py (/tmp/r/jit/pyjd-99-7.so)

"""


def parse(text=SAMPLE, **selection):
    table = stacks.Table(stacks.Selection(**selection))
    return table, list(stacks.parse_samples(io.BytesIO(text), table))


def names(table, sample):
    return [frame.name for frame in table.stack(sample.stack)]


@pytest.mark.parametrize("view, expected", [
    ("mixed", ["__libc_start_call_main", "main", "Store.save", "_PyEval_EvalFrameDefault", "deflate"]),
    ("python", ["main", "Store.save", "deflate"]),
    ("native", ["__libc_start_call_main", "run_mod", "main", "_PyEval_Vector", "Store.save",
                "_PyEval_EvalFrameDefault", "deflate"]),
])
def test_views(view, expected):
    table, samples = parse(view=view)
    assert names(table, samples[0]) == expected


def test_fields():
    table, (first, second, third) = parse()
    assert table.threads[first.thread] == (12, 34, "my app")
    assert (first.weight, first.time, first.event) == (250000, 100000000001, "cpu-clock")
    frames = table.stack(first.stack)
    assert frames[2] == ("python", "Store.save", "/srv/a:b.py", "")
    assert frames[-1] == ("native", "deflate", "", "/usr/lib/libz.so.1")
    assert [frame.kind for frame in table.stack(second.stack)] == ["python", "native", "kernel"]
    assert table.stack(third.stack) == []


def test_one_function_in_two_images_is_one_frame():
    table, samples = parse()
    first, second = (table.stacks[sample.stack] for sample in samples[:2])
    assert first[1] == second[0]


def test_small_reads(monkeypatch):
    whole = [(sample.weight, names(*pair)) for pair in [parse()] for sample in pair[1] for pair in [(pair[0], sample)]]
    monkeypatch.setattr(stacks, "CHUNK", 7)
    table, samples = parse()
    assert [(sample.weight, names(table, sample)) for sample in samples] == whole


def test_cache_that_overflows(monkeypatch):
    monkeypatch.setattr(stacks, "CACHED_BYTES", 100)
    table, samples = parse(SAMPLE * 3)
    assert len(samples) == 9 and len(table.stacks) == 3


@pytest.mark.parametrize("selection, count", [
    ({"threads": [34]}, 1), ({"threads": ["my*"]}, 1), ({"comms": ["python3"]}, 2), ({"pids": [12]}, 3), ({"pids": [13]}, 0),
    ({"modules": ["libz"]}, 1), ({"modules": ["app.py"]}, 2), ({"modules": ["lib?.so*"]}, 2), ({"modules": ["numpy"]}, 0),
    ({"event": "page-faults"}, 1), ({"event": "*"}, 4),
])
def test_selection(selection, count):
    assert len(parse(**selection)[1]) == count


@pytest.mark.parametrize("line, expected", [
    (b"  7f01 f(int (*)(char)) (/a b/libx.so)", ("native", "f(int (*)(char))", "", "/a b/libx.so")),
    (b"  7f01 gone (/usr/lib/libx.so (deleted))", ("native", "gone", "", "/usr/lib/libx.so")),
    (b"  7f01 [unknown] (/tmp/r/pyjd-1-1.so)", ("interpreter", "[unknown]", "", "")),
    (b"  7f01 PyList_New (/usr/bin/python3.11)", ("interpreter", "PyList_New", "", "/usr/bin/python3.11")),
    (b"  7f01 py::<lambda>:<string> (/tmp/perf-7.map)", ("python", "<lambda>", "<string>", "")),
    (b"  7f01 py::a:/x/\xc3\xa9 (y).py (/tmp/r/pyjd-1-1.so)", ("python", "a", "/x/\u00e9 (y).py", "")),
    (b"ffffffffc0001000 ext4_read ([ext4])", ("kernel", "ext4_read", "", "[ext4]")),
    (b"       0 [unknown] ([unknown])", ("native", "[unknown]", "", "[unknown]")),
    (b"nonsense", ("native", "nonsense", "", "")),
])
def test_lines(line, expected):
    assert stacks.parse_line(line) == expected


def profile(**selection):
    table, samples = parse(**selection)
    result = stacks.Profile(table)
    for sample in samples:
        result.weights[sample.thread, sample.stack] = [sample.weight, 1]
        result.weight += sample.weight
        result.samples += 1
    return result


def test_tree():
    made = profile(view="python")
    nodes = [(made.table.frames[node.frame].name, node.total, node.self, depth)
             for node, depth in tree.walk(tree.build(made))]
    assert nodes == [("main", 500000, 0, 0), ("Store.save", 250000, 0, 1), ("deflate", 250000, 250000, 2),
                     ("read", 250000, 250000, 1)]
    up = [(made.table.frames[node.frame].name, depth) for node, depth in tree.walk(tree.build(made, 0, True))]
    assert up == [("deflate", 0), ("Store.save", 1), ("main", 2), ("read", 0), ("main", 1)]
    assert len(list(tree.walk(tree.build(made, 300000)))) == 1


def test_recursion_counts_once():
    text = b"p 1/1  1.000000000:  10 cpu-clock:\n" + b"\t 99 py::f:a.py (/t/pyjd-1-1.so)\n" * 30 + b"\n"
    table, samples = parse(text)
    made = stacks.Profile(table)
    made.weights[0, samples[0].stack] = [10, 1]
    assert [(function.self, function.total) for function in tree.functions(made)] == [(10, 10)]


def test_kinds_of_time():
    assert tree.shares(profile()) == {"python": 0, "native": 500000, "interpreter": 0, "kernel": 250000}


def test_who_is_an_interpreter(tmp_path):
    """The library names the same functions, as it looks them up, and is none."""
    from pyjitdump_tool import collect, elf, processes
    files = processes.loaded_by(tool_runs.PYTHONS[-1].path)
    found = [path for path in files if collect.is_interpreter(path)]
    assert len(found) == 1 and "python" in found[0], files
    assert elf.look(found[0]).exports("PyEval_EvalCode")
    assert not elf.look(tool_runs.library()).exports("PyEval_EvalCode")
    assert not elf.look(found[0]).exports("EvalCode")
    for content in b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 200:
        (tmp_path / "broken").write_bytes(content)
        assert elf.look(tmp_path / "broken") is None
