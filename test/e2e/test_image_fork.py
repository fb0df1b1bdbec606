"""Images and forks: a child keeps its parent's names, never writes into its parent's images, and has
images of its own for what it calls first."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest

import image_elf
from image_tools import all_names, images, python_names, symbol_frames, tool, wait_for
from test_image_debuggers import EU_STACK_FRAME, eu_stack

COMMON = """
import glob, hashlib, json, os, sys

def define(prefix, count):
    for i in range(count):
        namespace = {}
        exec(compile("def %s_%d(): return 1" % (prefix, i), "/srv/%s.py" % prefix, "exec"), namespace)
        namespace["%s_%d" % (prefix, i)]()

def fingerprints(pid):
    found = {}
    for path in sorted(glob.glob(os.path.join(os.environ["PYJD_DIR"], "pyjd-%d-*.so" % pid))):
        with open(path, "rb") as file:
            found[path] = hashlib.sha256(file.read()).hexdigest()
    return found
"""

FORK = COMMON + """
define("inherited", 300)
fingerprints(os.getpid())           # so that calling it publishes nothing any more
before = fingerprints(os.getpid())
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        define("inherited", 300)    # the code objects are new, the functions are not
        define("child_%d" % number, 900)
        grandchild = os.fork()
        if grandchild == 0:
            define("grandchild_%d" % number, 600)
            os._exit(0)
        assert os.waitpid(grandchild, 0)[1] == 0
        os._exit(0)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
after = fingerprints(os.getpid())
define("parent_later", 900)
print(json.dumps({"pid": os.getpid(), "children": children, "before": before, "after": after}))
"""


def prefixes(names):
    found = {}
    for name in names:
        match = re.match(r"py::(\w+)_\d+:/srv/", name)
        if match:
            found[match[1]] = found.get(match[1], 0) + 1
    return found


def test_fork(runner, python):
    result = runner.quiet(python, FORK)
    told = json.loads(result.out)
    assert told["before"] == told["after"] and told["before"]
    assert prefixes(all_names(runner.directory, told["pid"])) == {"inherited": 300, "parent_later": 900}
    for number, child in enumerate(told["children"]):
        runner.pids.add(child)
        # An interned name keeps its slot: there is no second one in the child's own image.
        assert prefixes(all_names(runner.directory, child)) == {"child_%d" % number: 900}
    others = {int(re.search(r"pyjd-(\d+)-", path)[1]) for path in os.listdir(str(runner.directory))
              if path.startswith("pyjd-")} - {told["pid"], *told["children"]}
    runner.pids |= others
    assert sorted(prefix for pid in others for prefix in prefixes(all_names(runner.directory, pid))) == \
        ["grandchild_0", "grandchild_1", "grandchild_2"]


WAITING_CHILD = COMMON + """
def inherited_outer():
    own_inner()

def own_inner():
    print(json.dumps({"pid": os.getpid(), "fingerprints": fingerprints(os.getppid())}), flush=True)
    sys.stdin.readline()

def main():
    fingerprints(os.getpid())
    if os.fork() == 0:
        define("child", 600)
        inherited_outer()
        os._exit(0)
    os.wait()

main()
"""


def test_stack_of_a_child(runner, python):
    """Parent's functions and its own, in one stack."""
    tool("eu-stack", "elfutils")
    script = runner.directory / "waiting.py"
    script.write_text(WAITING_CHILD)
    process = runner.start([python.path, script], stdin=subprocess.PIPE)
    told = json.loads(process.stdout.readline())
    runner.pids.add(told["pid"])
    assert len(images(runner.directory, told["pid"])) >= 1
    # Without a second reading of the clock: it waits in read, soon.
    text = wait_for(lambda: (lambda text: "own_inner" in text and re.search(r"\bread", text) and text)(
        eu_stack("-p", told["pid"])))
    assert python_names(symbol_frames(text, EU_STACK_FRAME)) == ["<module>", "main", "inherited_outer", "own_inner"]
    out, err = process.communicate(b"\n", timeout=60)
    assert (process.returncode, out, err) == (0, b"", b"")


def test_system_calls_of_a_child(runner, any_python, tmp_path):
    """By strace's account: no write goes to another process' image."""
    tool("strace", "strace")
    script, log = tmp_path / "fork.py", tmp_path / "strace.log"
    script.write_text(FORK)
    env = runner.environment(PYJD_OUTPUT="elf")
    preload = env.pop("LD_PRELOAD")
    done = subprocess.run(["strace", "-f", "-y", "-o", str(log), "-e", "trace=write,pwrite64,ftruncate,unlink,mmap",
                           "-E", "LD_PRELOAD=" + preload, any_python.path, str(script)],
                          env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    if b"Operation not permitted" in done.stderr:
        pytest.skip("this machine does not allow ptrace")
    assert (done.returncode, done.stderr) == (0, b"")
    own = 0
    for line in log.read_text().splitlines():
        match = re.match(r"(\d+) +(\w+)\(.*pyjd-(\d+)-\d+\.so", line)
        if match and (match[2] != "mmap" or "PROT_WRITE" in line and "MAP_SHARED" in line):
            assert match[1] == match[3], line
            own += 1
    assert own >= 8


MULTIPROCESSING = COMMON + """
import multiprocessing

def work(number):
    define("worker_%d" % number, 700)
    return os.getpid()

if __name__ == "__main__":
    define("main", 100)
    fingerprints(os.getpid())
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(2, maxtasksperchild=2) as pool:
        pids = pool.map(work, range(4), chunksize=1)
        pool.close()
        pool.join()
    print(json.dumps({"pid": os.getpid(), "pids": pids}))
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing(runner, python, method):
    result = runner.quiet(python, MULTIPROCESSING, method)
    told = json.loads(result.out)
    runner.pids.update(told["pids"])
    assert prefixes(all_names(runner.directory, told["pid"])) == {"main": 100}
    for pid in set(told["pids"]):
        wanted = {"worker_%d" % number: 700 for number in range(4) if told["pids"][number] == pid}
        names = all_names(runner.directory, pid)
        assert prefixes(names) == wanted
        assert not names or len({name for name in names if "/srv/" in name}) >= 700


THREADS_AND_FORKS = COMMON + """
import threading, time

stop = False

def add(number):
    i = 0
    while not stop:
        define("thread_%d_%d" % (number, i), 20)
        i += 1

threads = [threading.Thread(target=add, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
count, end = 0, time.monotonic() + 3
while time.monotonic() < end:
    child = os.fork()
    if child == 0:
        define("child_%d" % count, 30)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    count += 1
stop = True
for thread in threads:
    thread.join()
print(count)
"""


def test_forks_while_images_are_made(runner, any_python, record_property):
    """Threads add functions, and so make images, while another forks: no child gets stuck or is lost."""
    result = runner.python(any_python, THREADS_AND_FORKS, flags=["-W", "ignore"], timeout=120)
    assert (result.status, result.err) == (0, b""), result
    count = int(result.out)
    record_property("figures", "%d forks" % count)
    for path in images(runner.directory, result.pid):
        image_elf.read(path)
    children = {int(re.match(r"pyjd-(\d+)-", name)[1]) for name in os.listdir(str(runner.directory))
                if name.startswith("pyjd-")} - {result.pid}
    runner.pids |= children
    found = {}
    for child in children:
        found.update(prefixes(all_names(runner.directory, child)))
    assert count >= 3 and found == {"child_%d" % number: 30 for number in range(count)}


GUNICORN_APP = """
import hashlib, json, os, sys

def inherited_by_all():
    return 1

inherited_by_all()

def first_called_in_a_worker(path):
    inherited_by_all()
    return path

class Shop:
    def price(self):
        return 1

def application(environ, start_response):
    first_called_in_a_worker(environ["PATH_INFO"])
    Shop().price()
    number = int(environ["PATH_INFO"].strip("/"))
    namespace = {}
    exec(compile("def route_%d(): return 1" % number, "/srv/routes.py", "exec"), namespace)
    namespace["route_%d" % number]()
    body = json.dumps({"pid": os.getpid(), "parent": os.getppid()}).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
"""


def test_gunicorn(runner, tmp_path):
    """A prefork server: what its workers call first is in their images."""
    gunicorn = "/usr/bin/gunicorn"
    if not os.access(gunicorn, os.X_OK):
        pytest.skip("gunicorn is not installed (Debian: gunicorn)")
    (tmp_path / "shop.py").write_text(GUNICORN_APP)
    address = tmp_path / "socket"
    server = runner.start([gunicorn, "--preload", "-w", "3", "-b", "unix:%s" % address, "--log-level", "error",
                           "--worker-tmp-dir", tmp_path, "shop:application"], cwd=tmp_path)
    try:
        wait_for(address.exists)
        seen = {}
        for number in range(60):
            connection = http.client.HTTPConnection("localhost", timeout=30)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(str(address))
            connection.request("GET", "/%d" % number)
            told = json.loads(connection.getresponse().read())
            connection.close()
            assert told["parent"] == server.pid
            seen.setdefault(told["pid"], set()).add(number)
            time.sleep(0.002)
    finally:
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=60)
    assert (server.returncode, err) == (0, b"")
    runner.pids |= set(seen)
    parent = all_names(runner.directory, server.pid)
    assert any(name.startswith("py::inherited_by_all:") for name in parent)
    assert {name for name in parent if "shop.py" in name or "routes" in name} == {
        "py::%s:%s" % (name, tmp_path / "shop.py") for name in ("<module>", "Shop", "inherited_by_all")}
    for pid, numbers in seen.items():
        names = all_names(runner.directory, pid)
        assert {name for name in names if "route_" in name} == {"py::route_%d:/srv/routes.py" % n for n in numbers}
        for name in ("first_called_in_a_worker", "Shop.price", "application"):
            assert sum(found == "py::%s:%s" % (name, tmp_path / "shop.py") for found in names) == 1
        assert not [name for name in names if "inherited_by_all" in name]
