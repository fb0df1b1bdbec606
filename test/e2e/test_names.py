"""Symbols: py::QUALNAME:FILENAME, with the qualified names of CPython 3.11's co_qualname on all
versions, and whatever a str may hold brought into a form that files and terminals survive."""
import re

import pytest

# What is called below, by its qualified name. Comprehensions are apart: from 3.12 on they are no
# functions.
QUALNAMES = """
from functools import wraps
def function(): pass
function()
class Outer:
    def method(self): pass
    @classmethod
    def class_method(cls): pass
    @staticmethod
    def static_method(a=1, *, b: int = 2) -> int: pass
    @property
    def prop(self): pass
    @prop.setter
    def prop(self, value): pass
    def __private(self): pass
    def __init__(self, a: "int" = 1, **kwargs: dict): self.__private()
    async def coroutine(self): pass
    def generator(self): yield
    attribute = lambda self: 1
    listed = [1 for _ in range(1)]
    class Inner:
        def method(self):
            class Local:
                def deep(self): return (lambda: 1)()
            return Local().deep()
        class Innermost:
            def method(self): pass
o = Outer(); o.method(); o.class_method(); o.static_method(); o.prop; o.prop = 1
next(o.generator()); o.attribute(); Outer.Inner().method(); Outer.Inner.Innermost().method()
try: o.coroutine().send(None)
except StopIteration: pass
def outer(argument=1):
    free = argument
    def inner():
        def innermost(): return free
        return innermost()
    class Local:
        def method(self): return free
        class Deep:
            def method(self): pass
    inner(); Local().method(); Local.Deep().method()
    (lambda: (lambda: free)())()
    list(x for x in range(1)); [x + free for x in range(1)]
    {x for x in range(1)}; {x: x for x in range(1)}
    global made_global, GlobalClass
    def made_global():
        def nested(): pass
        nested()
    made_global()
    class GlobalClass:
        def method(self): pass
    GlobalClass().method()
outer()
def decorate(f):
    @wraps(f)
    def wrapper(*args): return f(*args)
    return wrapper
@decorate
def decorated(f=lambda: 1): f()
decorated()
if True:
    def conditional():
        try:
            def in_try(): pass
            in_try()
        finally: pass
    conditional()
[n for n in range(1)]
(lambda: 1)()
"""

EXPECTED = """
<module> function Outer Outer.method Outer.class_method Outer.static_method Outer.prop Outer.prop
Outer.__private Outer.__init__ Outer.coroutine Outer.generator Outer.<lambda> Outer.Inner
Outer.Inner.method Outer.Inner.method.<locals>.Local Outer.Inner.method.<locals>.Local.deep
Outer.Inner.method.<locals>.Local.deep.<locals>.<lambda> Outer.Inner.Innermost
Outer.Inner.Innermost.method outer outer.<locals>.inner outer.<locals>.inner.<locals>.innermost
outer.<locals>.Local outer.<locals>.Local.method outer.<locals>.Local.Deep
outer.<locals>.Local.Deep.method outer.<locals>.<lambda> outer.<locals>.<lambda>.<locals>.<lambda>
outer.<locals>.<genexpr> made_global made_global.<locals>.nested GlobalClass GlobalClass.method
decorate decorate.<locals>.wrapper decorated <lambda> <lambda> conditional
conditional.<locals>.in_try
"""
COMPREHENSIONS = """
<listcomp> Outer.<listcomp> outer.<locals>.<listcomp> outer.<locals>.<setcomp>
outer.<locals>.<dictcomp>
"""


def names_of_file(runner, result, filename):
    suffix = ":" + str(filename)
    return [name[4:-len(suffix)] for name in runner.names(result.pid)
            if name.startswith("py::") and name.endswith(suffix)]


def test_qualified_names(runner, python):
    result = runner.quiet(python, QUALNAMES)
    expected = EXPECTED.split() + (COMPREHENSIONS.split() if python.version[1] < 12 else [])
    names = names_of_file(runner, result, runner.directory / "program.py")
    assert sorted(names) == sorted(expected)


def test_same_name_on_other_lines(runner, python):
    """Interned by file, name and first line: same names on different lines are different
    functions."""
    result = runner.quiet(python, "def f(): pass\nf()\ndef f(): pass\nf()\nf()\n")
    functions = [function for function in runner.dump(result.pid).functions
                 if function.name.startswith("py::f:")]
    assert [function.lines[0].line for function in functions] == [1, 3]
    assert [line.file for line in functions[0].lines] == [str(runner.directory / "program.py")] * 2


def test_functions_that_come_and_go_are_one(runner, python):
    result = runner.quiet(python, """
for i in range(10000):
    exec("def f%d(): pass\\nf%d()" % (i % 10, i % 10), {})
""")
    assert sorted(names_of_file(runner, result, "<string>")) == sorted(
        ["<module>"] + ["f%d" % i for i in range(10)])


# Python text of a name -> how a symbol shows it.
ODD_NAMES = [
    (r"line\nbreak", r"line\nbreak"), (r"tab\tand\rreturn", r"tab\tand\rreturn"),
    (r"\x01\x1b[31m\x7f", r"\x01\x1b[31m\x7f"), (r"lone\udc80", r"lone\udc80"),
    (r"\ud800pair", r"\ud800pair"), (r"\xe4\u20ac\U0001f40d", "\xe4\u20ac\U0001f40d"),
    (r"c1\x85\x9b", r"c1\x85\x9b"), ("two words", "two words"), ("a:b", "a:b"), ("%s%n", "%s%n"),
]
ODD = """
from types import FunctionType
def template(): pass
def call(name, filename):
    changes = dict(co_name=name, co_filename=filename)
    if hasattr(template.__code__, "co_qualname"):
        changes["co_qualname"] = name
    FunctionType(template.__code__.replace(**changes), {})()
"""


@pytest.mark.parametrize("where", ["function", "file"])
def test_odd_names(runner, python, where):
    calls = ["call('%s', 'x.py')" if where == "function" else "call('f', '%s')"] * len(ODD_NAMES)
    code = ODD + "\n".join(call % written for call, (written, _) in zip(calls, ODD_NAMES))
    result = runner.quiet(python, code)
    names = runner.names(result.pid)
    for _, shown in ODD_NAMES:
        symbol = "py::%s:x.py" % shown if where == "function" else "py::f:%s" % shown
        assert names.count(symbol) == 1, symbol
    if where == "file":
        files = {function.lines[0].file for function in runner.dump(result.pid).functions}
        assert {shown for _, shown in ODD_NAMES} <= files


def test_newline_in_the_name_of_a_real_file(runner, python):
    script = runner.directory / "new\nline.py"
    script.write_text("def f(): pass\nf()\n")
    result = runner.run([python.path, script])
    assert (result.status, result.err) == (0, b"")
    assert r"py::f:%s/new\nline.py" % runner.directory in runner.names(result.pid)


def test_undecodable_name_of_a_real_file(runner, python):
    script = str(runner.directory).encode() + b"/\xff.py"
    with open(script, "w") as file:
        file.write("def f(): pass\nf()\n")
    result = runner.run([python.path, script], env={"LC_ALL": "C.UTF-8"})
    assert (result.status, result.err) == (0, b"")
    assert r"py::f:%s/\udcff.py" % runner.directory in runner.names(result.pid)


@pytest.mark.parametrize("char", ["x", "\u20ac", "\\n"], ids=["ascii", "utf8", "escaped"])
def test_long_names_are_bounded_and_distinct(runner, python, char):
    """Cut at a character's border, and with the cut off parts told apart."""
    code = ODD + """
for tail in "ab":
    call("%s" * 5000 + tail, "x.py")
    call("f", tail + "%s" * 5000)
    call(tail + "%s" * 100000, tail + "%s" * 100000)
""" % ((char,) * 4)
    result = runner.quiet(python, code.encode("utf-8"))
    repeated = re.compile("(%s){50}" % re.escape(char))
    long = [name for name in runner.names(result.pid) if repeated.search(name)]
    assert len(set(long)) == 6, long
    assert max(len(name.encode()) for name in long) < 2000


def test_name_that_is_no_str(runner, python):
    """A subclass of str whose methods must not be called from inside the profiler."""
    result = runner.quiet(python, ODD + """
class Loud(str):
    def __str__(self): raise SystemError
    encode = __repr__ = __hash__ = __eq__ = __str__
try:
    call(Loud("loud"), Loud("loud.py"))
except (SystemError, TypeError):
    call("refused", "x.py")         # where CPython itself accepts no such name
""")
    names = runner.names(result.pid)
    assert "py::loud:loud.py" in names or "py::refused:x.py" in names


def test_first_call_with_an_exception_set(runner, python):
    """A function first called with an exception set, as generators are by throw(), keeps it."""
    result = runner.quiet(python, """
def generator():
    try: yield
    except KeyError as error: yield error.args[0]
g = generator()
next(g)
def never_called_before():
    try: yield
    finally: print("closed")
h = never_called_before()
try: h.throw(KeyError("first call is a throw"))
except KeyError as error: print(error)
print(g.throw(KeyError("thrown")))
""")
    assert result.out == b"'first call is a throw'\nthrown\n"
    assert "never_called_before" in names_of_file(runner, result, runner.directory / "program.py")
