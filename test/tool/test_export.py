"""pyjitdump export: each format is read by the tool or the schema it is for, and tells the same shares."""
import base64
import gzip
import json
import os
import pstats
import re
import resource
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True

import pytest

import export_tools as tools
from test_inspect import libraries

FORMATS = ("collapsed", "speedscope", "gecko", "pstats", "pprof")
SHARES = {"sixty": 60, "thirty": 30, "ten": 10}
WORKLOAD = """
import sys, time
def busy(rounds):
    value = 0
    for number in range(rounds):
        value = (value * 31 + number) % 1000003
    return value
def sixty(): return busy(6000)
def thirty(): return busy(3000)
def ten(): return busy(1000)
def main(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(30):
            sixty(); thirty(); ten()
main(6)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tools.Made(tmp_path_factory.mktemp("made"), tools.known_shares())


@pytest.fixture(scope="module")
def files(made, tmp_path_factory):
    """{format: path} of the made recording."""
    directory = tmp_path_factory.mktemp("exports")
    paths = {name: directory / ("out." + name) for name in FORMATS}
    for name, path in paths.items():
        _, said = made.export(name, path)
        assert "time on a processor" in said
    return paths


# ----------------------------------------------------------------------------------- shares, by format


def collapsed_shares(path):
    total, inside = 0, {}
    for line in path.read_text().splitlines():
        stack, weight = line.rsplit(" ", 1)
        total += int(weight)
        for name in {frame.split(" (")[0] for frame in stack.split(";")[1:]}:
            inside[name] = inside.get(name, 0) + int(weight)
    return {name: 100 * inside.get(name, 0) / total for name in SHARES}


def speedscope_shares(path):
    document = json.loads(path.read_text())
    names = [frame["name"] for frame in document["shared"]["frames"]]
    total, inside = 0, {}
    for profile in document["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"])
        total += profile["endValue"]
        for stack, weight in zip(profile["samples"], profile["weights"]):
            for name in {names[frame] for frame in stack}:
                inside[name] = inside.get(name, 0) + weight
    return {name: 100 * inside.get(name, 0) / total for name in SHARES}


def gecko_shares(path):
    document = json.loads(path.read_text())
    shared = document["shared"]
    stacks, frame_table, functions = shared["stackTable"], shared["frameTable"], shared["funcTable"]
    for table in (stacks, frame_table, functions, shared["resourceTable"], shared["sources"]):
        assert {len(column) for name, column in table.items() if name != "length"} == {table["length"]}
    total, inside = 0, {}
    for thread in document["threads"]:
        samples = thread["samples"]
        assert samples["time"] == sorted(samples["time"])
        for stack, weight in zip(samples["stack"], samples["weight"]):
            total += weight
            names = set()
            while stack is not None:
                names.add(shared["stringArray"][functions["name"][frame_table["func"][stacks["frame"][stack]]]])
                stack = stacks["prefix"][stack]
            for name in names:
                inside[name] = inside.get(name, 0) + weight
    return {name: 100 * inside.get(name, 0) / total for name in SHARES}


def pstats_shares(path):
    stats = pstats.Stats(str(path))
    times = {name: cumulative for (_, _, name), (_, _, _, cumulative, _) in stats.stats.items()}
    return {name: 100 * times[name] / stats.total_tt for name in SHARES}


def pprof_shares(path):
    text = tools.run(tools.pprof(), "-top", "-cum", "-nodecount=1000", "-nodefraction=0", path)
    found = re.findall(r"(\S+)%\s+(\S+)$", text, re.M)
    cumulative = {name: float(share) for share, name in found}
    return {name: cumulative[name] for name in SHARES}


SHARES_OF = {name: globals()[name + "_shares"] for name in FORMATS}


@pytest.mark.parametrize("name", FORMATS)
def test_known_shares(name, files):
    assert SHARES_OF[name](files[name]) == pytest.approx(SHARES, abs=0.01)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The workload, recorded."""
    if not libraries():
        pytest.skip("no libpyjitdump.so: build it, or set PYJD_TEST_LIBRARY")
    directory = tmp_path_factory.mktemp("recorded")
    program = directory / "shares.py"
    program.write_text(WORKLOAD)
    answer = subprocess.run(
        [sys.executable, tools.TOOL, "record", "-F", "499", "-o", str(directory / "shares.data"), "--library",
         libraries()[0], "--", sys.executable, str(program)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, timeout=300, env=tools.environment())
    if answer.returncode:
        pytest.skip("cannot record: %s" % answer.stderr.decode()[-300:])
    return directory / "shares.data"


@pytest.mark.parametrize("name", FORMATS)
def test_shares_of_a_real_program(name, recorded, tmp_path):
    path = tmp_path / "out"
    tools.tool("export", "-f", name, "-i", recorded, "-o", path)
    found = SHARES_OF[name](path)
    whole = sum(found.values())
    assert whole > 95
    assert {name: 100 * share / whole for name, share in found.items()} == pytest.approx(SHARES, abs=2)


# ----------------------------------------------------------------------------------- formats


def test_collapsed(files):
    lines = files["collapsed"].read_text().splitlines()
    assert all(re.match(r"[^;]+(;[^;]+)+ \d+$", line) for line in lines)
    assert "worker 1;ten (/srv/app.py);A.<locals>.g:h (/srv/app.py);_PyEval_EvalFrameDefault (libpython3.13.so.1.0);" \
           "do_syscall_64_[k] 100000000" in lines
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == 2 * 10**9


def test_pstats_in_the_browser_of_the_standard_library(files):
    answer = subprocess.run([sys.executable, "-m", "pstats", str(files["pstats"])], input=b"sort tottime\nstats\n"
                            b"callers deflate\ncallees <module>\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            timeout=60)
    text = answer.stdout.decode()
    assert "in 2.000 seconds" in text and "Traceback" not in text
    assert re.search(r"600 +1\.000 +0\.002 +1\.200 +0\.002 /srv/app\.py:10\(sixty\)", text)
    assert re.search(r"300 +0\.600 +0\.002 +0\.600 +0\.002 /srv/app\.py:11\(thirty\)", text)
    assert re.search(r"100 +0\.200 +0\.002 +0\.200 +0\.002 \{deflate \(libz\.so\.1\)\}", text)
    assert re.search(r"\{deflate.*<- +100 +0\.200 +0\.200 +/srv/app\.py:10\(sixty\)", text)


def test_pstats_counts_a_recursive_function_once(tmp_path):
    text = "".join(tools.block(number, tools.frames(*["f"] * 5, "g")) for number in range(10))
    made = tools.Made(tmp_path, text)
    made.export("pstats", tmp_path / "p")
    stats = pstats.Stats(str(tmp_path / "p"))
    found = {name: (calls, round(own, 6), round(cumulative, 6))
             for (_, _, name), (_, calls, own, cumulative, _) in stats.stats.items()}
    assert found == {"f": (10, 0, 0.02), "g": (10, 0.02, 0.02)}
    callers = {name: set(callers) for (_, _, name), (_, _, _, _, callers) in stats.stats.items()}
    assert callers == {"f": {("/srv/app.py", 0, "f")}, "g": {("/srv/app.py", 0, "f")}}


def test_pprof_by_the_go_tool(files):
    pprof = tools.pprof()
    text = tools.run(pprof, "-traces", files["pprof"])
    assert "A.<locals>.g;h" in text         # not cut as a C++ template
    assert re.search(r"comm:\s+worker 1", text)
    raw = tools.run(pprof, "-raw", files["pprof"])
    assert "samples/count cpu/nanoseconds[dflt]" in raw
    assert "Duration: 3" in raw and "2026-11-21 10:00:00" in raw
    assert re.search(r"sixty /srv/app\.py:10", raw)
    top = tools.run(pprof, "-top", "-sample_index=samples", files["pprof"])
    assert "1000 total" in top
    assert tools.run(pprof, "-top", "-tagfocus=tid=4712", files["pprof"]).count("deflate") == 0


def varints(data):
    at = 0
    while at < len(data):
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        length = yield value
        if length is not None:
            yield data[at:at + length]
            at += length


def fields(data):
    """(number, value) of a protobuf message's fields: bytes for those with a length."""
    reader = varints(data)
    for tag in reader:
        value = next(reader)
        assert tag & 7 in (0, 2)
        yield tag >> 3, reader.send(value) if tag & 7 == 2 else value


def test_pprof_by_its_schema(files):
    """https://github.com/google/pprof, proto/profile.proto: every reference leads somewhere."""
    profile = {}
    for number, value in fields(gzip.decompress(files["pprof"].read_bytes())):
        profile.setdefault(number, []).append(value)
    assert set(profile) <= set(range(1, 15))
    strings = [value.decode() for value in profile[6]]
    assert strings[0] == "" and len(set(strings)) == len(strings)
    functions = [dict(fields(value)) for value in profile[5]]
    locations = [dict(fields(value)) for value in profile[4]]
    mappings = [dict(fields(value)) for value in profile[3]]
    assert [function[1] for function in functions] == list(range(1, len(functions) + 1))
    assert all(0 < function[2] < len(strings) for function in functions)
    for location in locations:
        assert dict(fields(location[4]))[1] in range(1, len(functions) + 1)
        assert location.get(2, 1) in {mapping[1] for mapping in mappings}
    assert strings[mappings[0][5]].endswith(("python3.13", "libpython3.13.so.1.0"))
    total = [0, 0]
    for sample in profile[2]:
        sample = list(fields(sample))
        values = list(varints(dict(sample)[2]))
        total = [total[0] + values[0], total[1] + values[1]]
        assert all(0 < place <= len(locations) for place in varints(dict(sample)[1]))
    assert total == [1000, 2 * 10**9]
    types = [dict(fields(value)) for value in profile[1]]
    assert [(strings[kind[1]], strings[kind[2]]) for kind in types] == [("samples", "count"), ("cpu", "nanoseconds")]


def test_speedscope_by_its_schema(files, tmp_path):
    place = tools.npm("speedscope", "speedscope@1.25.0", "ajv@8")
    script = tmp_path / "check.js"
    script.write_text("""
        const fs = require('fs'), Ajv = require('ajv');
        const validate = new Ajv({strict: false}).compile(JSON.parse(fs.readFileSync(process.argv[2])));
        const fine = validate(JSON.parse(fs.readFileSync(process.argv[3])));
        console.log(fine ? 'valid' : JSON.stringify(validate.errors.slice(0, 5)));""")
    schema = place / "node_modules/speedscope/dist/release/file-format-schema.json"
    assert tools.run("node", script, schema, files["speedscope"],
                     env=dict(os.environ, NODE_PATH=str(place / "node_modules"))) == "valid\n"


def test_speedscope_by_its_own_importer(made, tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not browser:
        pytest.skip("no Chromium here")
    place = tools.npm("speedscope", "speedscope@1.25.0", "ajv@8")
    made.export("speedscope", tmp_path / "p.json", "--python", "--thread", "4711")
    data = base64.b64encode((tmp_path / "p.json").read_bytes()).decode()
    (tmp_path / "load.js").write_text('speedscope.loadFileFromBase64("p.json", "%s")' % data)
    page = tools.run(browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
                     "--dump-dom", "--user-data-dir=%s" % (tmp_path / "chromium"),
                     "file://%s/node_modules/speedscope/dist/release/index.html#localProfilePath=%s&view=sandwich"
                     % (place, tmp_path / "load.js"))
    text = re.sub(r"(<[^>]*>)+", "|", page)
    assert "python3 4711/4711" in text
    assert "1.20s (67%)|1.00s (56%)|sixty|" in text.replace(" |", "|"), text[-1500:]
    assert "600.00ms (33%)|600.00ms (33%)|thirty|" in text.replace(" |", "|")


def test_gecko_by_the_firefox_profiler(files, tmp_path):
    with tools.Firefox(files["gecko"], tmp_path) as firefox:
        info = firefox("profile", "info")
        assert "python3 app.py" in info and "2 threads" in info
        threads = re.findall(r"(t-\d+): (.*?) \[tid (\d+)\]", info)
        assert {(name, tid) for _, name, tid in threads} == {("python3", "4711"), ("worker 1", "4712")}
        found = json.loads(firefox("thread", "functions", "--json", "--limit", "0"))
        times = {function["name"]: function["totalSamples"] for function in found["functions"]}
        assert times["sixty"] == pytest.approx(1200) and times["thirty"] == pytest.approx(600)
        assert found["weightType"] == "tracing-ms"
        assert "libz.so.1!deflate" in json.dumps(found)


def test_gecko_of_cycles_weighs_in_samples(tmp_path):
    text = "".join(tools.block(number, tools.frames("f" if number % 2 else "g"), event="cycles",
                               period=3000 if number % 2 else 1000) for number in range(100))
    made = tools.Made(tmp_path, text, dict(tools.MANIFEST, event="cycles"))
    made.export("gecko", tmp_path / "g.json")
    samples = json.loads((tmp_path / "g.json").read_text())["threads"][0]["samples"]
    assert samples["weightType"] == "samples"
    assert sum(samples["weight"]) == pytest.approx(100) and samples["weight"][:2] == [0.5, 1.5]
    made.export("pstats", tmp_path / "p")       # a sample is 1/500 s on average
    stats = pstats.Stats(str(tmp_path / "p"))
    assert stats.total_tt == pytest.approx(0.2)


# ----------------------------------------------------------------------------------- time off the processor

def switch(number, direction):
    return "python3 4711/4711 1000.%09d: PERF_RECORD_SWITCH %s        \n" % (number * 1000000, direction)


def away(number, name):
    text = tools.block(0, tools.frames("main", name), event="sched:sched_switch", period=1)
    return re.sub(r"1000\.0+:", "1000.%09d:" % (number * 1000000), text)


def test_off_cpu(tmp_path):
    text, now = switch(0, "IN"), 1
    for _ in range(5):
        for name, length in (("sixty", 60), ("thirty", 30), ("ten", 10)):
            text += away(now, name) + switch(now, "OUT") + switch(now + length, "IN")
            now += length + 1
    text += away(now, "never_back")
    made = tools.Made(tmp_path, text)
    for name in FORMATS:
        _, said = made.export(name, tmp_path / name, "--off-cpu")
        assert "time away from the processor" in said
        assert SHARES_OF[name](tmp_path / name) == pytest.approx(SHARES, abs=0.01), name
    assert pstats.Stats(str(tmp_path / "pstats")).total_tt == pytest.approx(0.5)


def test_on_cpu_beside_the_scheduler_s_events(tmp_path):
    text = "".join(away(number, "ten") + switch(number, "OUT") + switch(number + 1, "IN") +
                   tools.block(number, tools.frames("sixty"), period=5000000) for number in range(10))
    made = tools.Made(tmp_path, text)
    _, said = made.export("pstats", tmp_path / "on")
    assert "time on a processor" in said
    stats = pstats.Stats(str(tmp_path / "on"))
    assert stats.total_tt == pytest.approx(0.05) and {name for _, _, name in stats.stats} == {"sixty"}
    made.export("pstats", tmp_path / "off", "--off-cpu")
    assert pstats.Stats(str(tmp_path / "off")).total_tt == pytest.approx(0.01)
    made.export("pstats", tmp_path / "named", "--event", "sched:sched_switch")
    assert {name for _, _, name in pstats.Stats(str(tmp_path / "named")).stats} >= {"ten"}
    made.export("pstats", tmp_path / "none", "--event", "cycles", status=2)


def test_off_cpu_without_the_events(made, tmp_path):
    _, said = made.export("collapsed", tmp_path / "c", "--off-cpu", status=2)
    assert said.count("\n") == 1 and "sched:sched_switch" in said and "CAP_PERFMON" in said
    text = "".join(away(number, "f") * (number % 4 == 0) + switch(number, "OUT") + switch(number + 1, "IN")
                   for number in range(40))
    (tmp_path / "part").mkdir()
    _, said = tools.Made(tmp_path / "part", text).export("pprof", tmp_path / "part" / "p", "--off-cpu")
    assert "only 10 of 40" in said and "-c 1" in said
    only_switches = tmp_path / "only"
    only_switches.mkdir()
    _, said = tools.Made(only_switches, away(1, "f")).export("pprof", tmp_path / "c", "--off-cpu", status=2)
    assert said.count("\n") == 1 and "--switch-events" in said
    assert not (tmp_path / "c").exists()


# ----------------------------------------------------------------------------------- the command


def test_views_and_filters(made, tmp_path):
    made.export("collapsed", tmp_path / "c", "--python", "--thread", "worker*")
    assert (tmp_path / "c").read_text() == "worker 1;ten (/srv/app.py);A.<locals>.g:h (/srv/app.py) 200000000\n"
    made.export("pstats", tmp_path / "p", "--native")
    assert any("_PyEval" in name for _, _, name in pstats.Stats(str(tmp_path / "p")).stats)


def test_stdout_and_gzip(made, tmp_path):
    out, said = made.export("collapsed", "-")
    assert said == "" and out.startswith(b"python3;")
    made.export("speedscope", tmp_path / "s.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "s.json.gz").read_bytes()))["profiles"]


def test_nothing_is_left_of_a_failed_export(made, tmp_path):
    old = tmp_path / "kept"
    old.write_text("old")
    _, said = made.export("pprof", old, "--thread", "nobody", status=2)
    assert said == "pyjitdump: no sample is left: thread nobody\n"
    assert old.read_text() == "old" and os.listdir(str(tmp_path)) == ["kept"]


def test_what_cannot_be_written(made, tmp_path):
    for path in (tmp_path / "missing" / "x", tmp_path, "/dev/full"):
        _, said = made.export("collapsed", path, status=2)
        assert said.startswith("pyjitdump: cannot write") and said.count("\n") == 1, said
    tools.tool("export", "-f", "nonsense", status=2)
    tools.tool("export", "-f", "pprof", tmp_path / "missing", status=2)


def test_a_bare_file_of_perf(made, tmp_path):
    out, _ = tools.tool("export", "-f", "collapsed", made.path / "perf.data", "-o", "-", env=made.env)
    assert out.count(b"\n") > 3


def test_a_million_samples(tmp_path):
    """In under 30 s of processor time; what stands for perf prints a file again and again."""
    text = "".join(tools.block(number, tools.frames(*["f%d" % (number * step % 9973) for step in range(1, 16)]),
                               tid=4711 + number % 4) for number in range(10000))
    made = tools.Made(tmp_path, text, times=100)
    for name in "pprof", "gecko":
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        made.export(name, tmp_path / name)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert after.ru_utime - before.ru_utime < 30, name
    samples = json.loads((tmp_path / "gecko").read_text())["threads"]
    assert sum(thread["samples"]["length"] for thread in samples) == 1000000
