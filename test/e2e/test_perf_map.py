"""The perf map and the jitdump of a process, and of its children: after the assertions of CPython's
own Lib/test/test_perf_profiler.py, where they make sense for us."""
import json
import os

from conftest import read_map

PROGRAM = """
def baz(): pass
def bar(): baz()
def foo(): bar()
foo()
"""


def own(names, filename="/program.py"):
    """Qualified names of the functions that the test's program has."""
    return [name[4:].partition(":")[0] for name in names if name.endswith(filename)]


def test_functions_are_in_the_map(runner, python):
    result = runner.quiet(python, PROGRAM)
    script = runner.directory / "program.py"
    names = runner.names(result.pid)        # checks each line of the map, and the whole jitdump
    for function in ("foo", "bar", "baz", "<module>"):
        assert names.count("py::%s:%s" % (function, script)) == 1
    assert result.out == b""
    for path in (runner.map_path(result.pid), runner.dump_path(result.pid)):
        assert os.stat(path).st_mode & 0o777 == 0o600


def test_functions_are_in_order_of_first_call(runner, python):
    result = runner.quiet(python, PROGRAM)
    assert own(runner.names(result.pid)) == ["<module>", "foo", "bar", "baz"]


def test_both_files_give_the_same_places(runner, python):
    result = runner.quiet(python, PROGRAM)
    dump = [(f.code_addr, f.code_size, f.name) for f in runner.dump(result.pid).functions]
    assert dump == read_map(runner.map_path(result.pid))


def test_functions_not_called_are_not_there(runner, python):
    result = runner.quiet(python, PROGRAM + "def never(): pass\n")
    assert "never" not in own(runner.names(result.pid))


def test_timestamps_are_of_this_run(runner, python):
    """CLOCK_MONOTONIC, as `perf record -k 1`: a time that Python reads is between two first
    calls."""
    result = runner.quiet(python, """
import time
def before(): pass
def after(): pass
before()
print(time.monotonic_ns())
after()
""")
    dump = runner.dump(result.pid)
    time = {function.name[4:].partition(":")[0]: function.time for function in dump.functions}
    assert dump.time <= time["before"] <= int(result.out) <= time["after"]


FORK = """
import json, os, sys
def before(): pass
def in_child(): pass
def in_grandchild(): pass
def in_parent(): pass
def wait(pid):
    status = os.waitpid(pid, 0)[1]
    assert status == 0, status
before()
pids = {"parent": os.getpid()}
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    before(); in_child()
    grandchild = os.fork()
    if grandchild == 0:
        before(); in_grandchild()
        os._exit(0)
    pids["grandchild"] = grandchild
    os.write(writer, json.dumps(pids).encode())
    wait(grandchild)
    sys.exit(0)
wait(child)
in_parent()
pids = json.loads(os.read(reader, 1000))
pids["child"] = child
print(json.dumps(pids))
"""


def test_forks(runner, python):
    """A child has files of its own, with what it inherited; it writes nothing to its parent's."""
    result = runner.quiet(python, FORK)
    pids = json.loads(result.out)
    names = {who: own(runner.names(pid)) for who, pid in pids.items()}
    common = ["<module>", "before"]
    assert names["parent"] == common + ["wait", "in_parent"]
    assert names["child"] == common + ["in_child", "wait"]
    assert names["grandchild"] == common + ["in_child", "in_grandchild"]
    # Inherited trampolines stay where they are.
    places = [{f.name: f.code_addr for f in runner.dump(pid).functions} for pid in pids.values()]
    inherited = set.intersection(*map(set, places))
    assert len(inherited) > 50 and all(len({p[name] for p in places}) == 1 for name in inherited)


def test_silent_child_leaves_no_file(runner, python):
    result = runner.quiet(python, """
import os
def known(): pass
known()
child = os.fork()
if child == 0:
    known()
    os._exit(0)
os.waitpid(child, 0)
print(child)
""", flags=["-S"])      # without site: what that imports may run functions in a child by itself
    child = int(result.out)
    assert not runner.wrote(runner.map_path(child)) and not runner.wrote(runner.dump_path(child))


def test_fork_in_a_busy_process(runner, python):
    """Forked while other threads publish functions: no deadlock in the child, no file torn."""
    result = runner.quiet(python, """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")      # 3.12 and later warn of fork with threads
stop = False
def publish(number):
    i = 0
    while not stop:
        i += 1
        exec("def f_%d_%d(): pass\\nf_%d_%d()" % (number, i, number, i), {})
        time.sleep(0.0005)
threads = [threading.Thread(target=publish, args=(n,)) for n in range(3)]
for thread in threads: thread.start()
children = []
for number in range(10):
    pid = os.fork()
    if pid == 0:
        exec("def only_in_child_%d(): pass\\nonly_in_child_%d()" % (number, number), {})
        os._exit(0)
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
stop = True
for thread in threads: thread.join()
print(*children)
""", env={"PYJD_OUTPUT": "jitdump"})
    # The map of so many functions would be the same test again, only slower.
    children = [int(word) for word in result.out.split()]
    names = own(runner.dump_names(result.pid), ":<string>")
    assert not [name for name in names if name.startswith("only_in_child")]
    for number, pid in enumerate(children):
        in_child = own(runner.dump_names(pid), ":<string>")
        in_child = [name for name in in_child if name.startswith("only_in_child")]
        assert in_child == ["only_in_child_%d" % number]


def test_exec_in_the_same_process(runner, python):
    """exec keeps the process id. The jitdump has times, and goes on, so that samples from before
    keep their names; the map has none, and addresses begin to mean something else: it is new."""
    result = runner.quiet(python, """
import os, sys
def first_life(): pass
def second_life(): pass
if len(sys.argv) == 1:
    first_life()
    os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
second_life()
""")
    names = runner.dump_names(result.pid)
    assert own(names) == ["<module>", "first_life", "<module>", "second_life"]
    assert own(runner.map_names(result.pid)) == ["<module>", "second_life"]
    assert runner.map_names(result.pid) == names[-len(runner.map_names(result.pid)):]


def test_child_program_has_files_of_its_own(runner, python):
    result = runner.quiet(python, """
import subprocess, sys
def in_parent(): pass
in_parent()
code = "def in_child(): pass\\nin_child()\\nimport os; print(os.getpid())"
print(subprocess.check_output([sys.executable, "-c", code]).decode())
""")
    child = int(result.out)
    assert "in_child" in own(runner.names(child), ":<string>")
    assert "in_parent" not in own(runner.names(child))
    assert "in_child" not in own(runner.names(result.pid), ":<string>")


def test_multiprocessing_pool(runner, python):
    result = runner.quiet(python, """
import multiprocessing, os
def work(number):
    return os.getpid()
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(*set(pool.map(work, range(50), chunksize=1)))
""")
    for pid in map(int, result.out.split()):
        assert "work" in own(runner.names(pid))


ANOTHER_WRITER = """
import os
def before(): pass
before()
with open("/tmp/perf-%d.map" % os.getpid(), "a") as map:
    map.write("10 8 another::jit\\n")
def after(): pass
after()
"""


def test_map_is_shared_with_other_writers(runner, python):
    """Another JIT of the process appends to the same map; neither loses a line."""
    result = runner.quiet(python, ANOTHER_WRITER)
    names = runner.map_names(result.pid)
    script = runner.directory / "program.py"
    places = [names.index(name) for name in (
        "py::before:%s" % script, "another::jit", "py::after:%s" % script)]
    assert places == sorted(places)
