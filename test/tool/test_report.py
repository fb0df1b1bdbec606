"""pyjitdump report and flamegraph, on real recordings."""
import json
import re
import shutil
import subprocess
import sys

import pytest

import tool_runs


def test_text(shares_recording):
    out = tool_runs.good("report", "-i", shares_recording)
    head, samples, kinds = out.splitlines()[:3]
    assert head.endswith("shares.py") and "samples" in samples and "python" in kinds
    assert "Hottest functions" in out and "Call tree" in out
    assert "\033" not in out, "colour is for terminals"
    assert re.search(r"\d%\s+spin  shares.py", out)


def test_bottom_up(shares_recording):
    lines = tool_runs.good("report", "-i", shares_recording, "--python", "--bottom-up").splitlines()
    at = next(at for at, line in enumerate(lines) if line.endswith("spin  shares.py"))
    assert [name for line in lines[at + 1:] for name in tool_runs.SHARES if name + "  shares.py" in line][:3] == [
        "sixty", "thirty", "ten"]


def test_json(shares_recording):
    data = json.loads(tool_runs.good("report", "-i", shares_recording, "--json", "--python"))
    totals = {function["name"]: function["total"] for function in data["functions"] if "shares.py" in function["file"]}
    for name, share in tool_runs.share_of(totals).items():
        assert abs(share - tool_runs.SHARES[name]) < 2
    assert sum(data["kinds"].values()) == data["weight"]
    assert sum(function["self"] for function in data["functions"]) <= data["weight"]
    for tree in data["top_down"], data["bottom_up"]:
        for at, node in enumerate(tree):
            assert node["parent"] is None or node["parent"] < at
            assert node["total"] >= node["self"]
    assert data["unit"] in ("ns", "cycles")


def test_views_differ(shares_recording):
    python, mixed, native = (
        {function["kind"] for function in json.loads(tool_runs.good("report", "-i", shares_recording, "--json", *view))
         ["functions"]} for view in (["--python"], [], ["--native"]))
    assert "interpreter" not in python and "interpreter" in mixed
    assert native >= mixed


def test_filters(shares_recording):
    whole = json.loads(tool_runs.good("report", "-i", shares_recording, "--json"))["samples"]
    part = json.loads(tool_runs.good("report", "-i", shares_recording, "--json", "--module", "shares.py"))["samples"]
    assert 0.8 * whole < part <= whole
    nothing = tool_runs.run("report", "-i", shares_recording, "--thread", "nobody")
    assert nothing.status == 2 and "no sample is left: thread nobody" in nothing.err


def test_bare_perf_data(shares_recording):
    """A file of perf's, without a recording around it."""
    assert "samples" in tool_runs.good("report", "-i", shares_recording / "perf.data")


def test_pipe_that_closes(shares_recording):
    command = "%s %s report -i %s | head -1" % (sys.executable, tool_runs.TOOL, shares_recording)
    answer = subprocess.run(["bash", "-o", "pipefail", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert answer.returncode == 0 and answer.stderr == b""


@pytest.mark.parametrize("broken", ["missing", "empty directory", "no manifest", "bad manifest", "no perf.data",
                                    "bad perf.data"])
@pytest.mark.parametrize("subcommand", ["report", "flamegraph"])
def test_bad_recording(tmp_path, subcommand, broken):
    path = tmp_path / "r"
    if broken != "missing":
        path.mkdir()
    if broken == "no manifest":
        (path / "perf.data").write_bytes(b"PERFILE2")
    if broken in ("no perf.data", "bad perf.data"):
        (path / "manifest.json").write_text('{"format": 1}')
    if broken == "bad manifest":
        (path / "manifest.json").write_text("[")
    if broken == "bad perf.data":
        (path / "perf.data").write_bytes(b"PERFILE2" + b"\xff" * 500)
    result = tool_runs.run(subcommand, "-i", path, cwd=tmp_path)
    assert result.status == 2 and result.err.startswith("pyjitdump: ") and result.err.count("\n") == 1, result


# ------------------------------------------------------------------------------------------- flame graph


def chromium():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return found or pytest.skip("there is no Chromium")


def browse(page, tmp_path, fragment=""):
    """The page's document after its script ran, without a network."""
    answer = subprocess.run(
        [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1400,900",
         "--user-data-dir=%s" % (tmp_path / "browser"), "--dump-dom", "file://%s%s" % (page, fragment)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120)
    return answer.stdout.decode("utf-8")


def page_data(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_flame_graph_data(shares_recording, tmp_path):
    tool_runs.good("flamegraph", "-i", shares_recording, "-o", tmp_path / "f.html", "--python")
    text = (tmp_path / "f.html").read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text), "it must open offline"
    assert "Apache License" in text and "ISC" in text or "Permission to use" in text
    data = page_data(text)
    totals = {}
    for at in range(0, len(data["nodes"]), 3):
        name = data["frames"][data["nodes"][at + 1]][0]
        totals[name] = totals.get(name, 0) + data["nodes"][at + 2]
    for name, share in tool_runs.share_of(totals).items():
        assert abs(share - tool_runs.SHARES[name]) < 2


def test_flame_graph_in_a_browser(shares_recording, tmp_path):
    page = tmp_path / "f.html"
    tool_runs.good("flamegraph", "-i", shares_recording, "-o", page, "--title", "<b>&amp; </script> a title")
    document = browse(page, tmp_path)
    assert "&lt;b&gt;&amp;amp; &lt;/script&gt; a title" in document
    drawn = set(re.findall(r'<g [^>]*name="([^"]*)"', document))
    assert {"all", "main", "sixty", "thirty", "ten", "spin", "_PyEval_EvalFrameDefault"} <= drawn
    shares = dict(re.findall(r'data-kind="(\w+)".*?<b>([\d.]+)%</b>', document))
    assert set(shares) == {"python", "native", "interpreter", "kernel"}
    assert abs(sum(map(float, shares.values())) - 100) < 0.1
    colours = set(re.findall(r'<i style="background: (rgb\([^)]*\))', document))
    assert len(colours) == 4


def test_search_in_a_browser(shares_recording, tmp_path):
    page = tmp_path / "f.html"
    tool_runs.good("flamegraph", "-i", shares_recording, "-o", page, "--python")
    found = re.search(r'id="found"[^>]*>(\d+) frames found, ([\d.]+)%', browse(page, tmp_path, "#search=THIRTY"))
    assert found[1] == "1" and 25 < float(found[2]) < 32


def test_flame_graph_to_stdout_and_nowhere(shares_recording):
    assert "</html>" in tool_runs.good("flamegraph", "-i", shares_recording, "-o", "-")
    result = tool_runs.run("flamegraph", "-i", shares_recording, "-o", "/nosuch/f.html")
    assert result.status == 2 and "cannot write /nosuch/f.html" in result.err


MANY = """
import contextlib, json, random, resource, sys, time
sys.path.insert(0, %r)
from pyjitdump_tool import cli, flamegraph, recording
samples, page, text = int(sys.argv[1]), sys.argv[2], sys.argv[3]

class Made(recording.Recording):
    def __init__(self, path):
        self.path, self.manifest, self.directory = path, {"event": "cpu-clock", "command": ["many"]}, None
    @contextlib.contextmanager
    def script(self, fields):
        with open(text, "rb", buffering=0) as stream:
            yield stream

recording.Recording = Made
began = time.time()
status = cli.main(["flamegraph", "-i", "many", "-o", page])
print(json.dumps({"status": status, "seconds": time.time() - began,
                  "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def write_many(path, samples):
    """As perf would print it: 10,000 functions, stacks of 40 frames, leaf addresses that differ."""
    import random
    chance = random.Random(1)
    calls = [[chance.randrange(10000) for _ in range(4)] for _ in range(10000)]
    loop = "\t          %x _PyEval_EvalFrameDefault (/usr/lib/libpython3.11.so.1.0)\n"
    paths = []
    for _ in range(20000):
        function, lines = chance.randrange(20), []
        for _ in range(19):
            lines.append("\t          %x py::Class%d.method%d:/srv/app/module%d.py (/tmp/r/jit/pyjd-12-1.so)\n"
                         % (0x9000 + function * 128, function % 700, function, function % 300))
            lines.append(loop % (0xfd000 + function % 300))
            function = chance.choice(calls[function])
        paths.append("".join(reversed(lines)))
    with open(path, "w") as file:
        for number in range(samples):
            file.write("python3 12/%d  %d.%09d:    1010101 cpu-clock: \n"
                       "\t          %x native%d (/usr/lib/libx.so.1)\n%s\n" % (
                12 + number % 8, 100 + number // 1000, number % 1000 * 1000000, 0x1000 + chance.randrange(9000),
                number % 100, chance.choice(paths)))


def test_a_million_samples(tmp_path, record_property):
    samples = 1000000
    write_many(tmp_path / "text", samples)
    answer = subprocess.run([sys.executable, "-c", MANY % str(tool_runs.ROOT / "scripts"), str(samples),
                             str(tmp_path / "f.html"), str(tmp_path / "text")], stdout=subprocess.PIPE, check=True)
    (tmp_path / "text").unlink()
    result = json.loads(answer.stdout)
    record_property("figures", "%(seconds).1f s, %(megabytes)d MB" % result)
    print(result)
    assert result["status"] == 0 and result["seconds"] < 30 and result["megabytes"] < 1024
    assert (tmp_path / "f.html").stat().st_size < 10e6
