"""Burns CPU time through a call tree that calltree.py describes: CPython 3.8 to 3.15, standard
library.

    workload.py [SECONDS [THREADS]]

Runs entry() for SECONDS in the main thread and in THREADS others at once, and prints one line of
JSON: the process' id, and for each thread its id and the CLOCK_MONOTONIC nanoseconds between which
entry() was on its stack (the clock of `perf record -k 1`). So samples can be told to be under
entry() without any symbol.

A leaf runs for about a millisecond, so that little time is spent anywhere else.
"""
import asyncio
import contextlib
import functools
import itertools
import json
import os
import re
import sys
import threading
import time
import zlib

TEXT = b" ".join(b"%x" % (number * 2654435761 % 2**32) for number in range(4000))


def leaf_loop():
    i = 0
    while i < 20000:
        i += 1
    return i


def leaf_strings():
    words = []
    for i in range(4000):
        words.append("%d-%s" % (i, "x"))
    return "".join(words)


def leaf_zlib():
    return zlib.compress(TEXT, 6)


def leaf_sum():
    return sum(range(60000))


def leaf_sorted():
    return len(sorted(range(60000), reverse=True))


# A different leaf each time. It is a C function: the caller itself calls what it returns.
next_leaf = itertools.cycle([leaf_loop, leaf_zlib, leaf_strings, leaf_sum, leaf_sorted]).__next__


def sink(*args, **kwargs):
    next_leaf()()


def plain():
    next_leaf()()


def nested():
    def inner():
        next_leaf()()
    inner()


def recursive(depth=6):
    if depth:
        recursive(depth - 1)
    else:
        next_leaf()()


def keyword_arguments():
    sink(*(1, 2), **{"a": 3})


def decorate(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper


@decorate
def decorated():
    next_leaf()()


def closure():
    count = 0

    def add():
        nonlocal count
        count += 1
        next_leaf()()
    add()


def lambdas():
    (lambda: next_leaf()())()


def partials():
    functools.partial(sink, 1, a=2)()


class Shape:
    class Part:
        def weigh(self):
            next_leaf()()

    def __init__(self):
        next_leaf()()

    def method(self):
        next_leaf()()

    @staticmethod
    def static():
        next_leaf()()

    @classmethod
    def make(cls):
        next_leaf()()

    @property
    def area(self):
        next_leaf()()

    def __getattr__(self, name):
        next_leaf()()

    def __add__(self, other):
        next_leaf()()

    def __call__(self):
        next_leaf()()


class Square(Shape):
    def __init__(self):
        pass

    def method(self):
        super().method()


class Meta(type):
    def __new__(cls, name, bases, namespace):
        next_leaf()()
        return super().__new__(cls, name, bases, namespace)


class Ordered:
    def __lt__(self, other):
        next_leaf()()
        return True

    def __hash__(self):
        next_leaf()()
        return 1

    def __eq__(self, other):
        next_leaf()()
        return True


SQUARE, PART, FIRST, SECOND = Square(), Shape.Part(), Ordered(), Ordered()


def methods():
    shape = Shape()
    shape.method()
    shape.static()
    Shape.make()
    shape.area
    shape.missing
    shape + 1
    shape()
    PART.weigh()


def inheritance():
    SQUARE.method()


def metaclasses():
    Meta("Made", (), {})


def class_bodies():
    class Local:
        next_leaf()()

        class Inner:
            next_leaf()()

        def method(self):
            next_leaf()()

    global Global

    class Global:
        next_leaf()()

        class Inner:
            next_leaf()()

    Local().method()


def produce():
    for _ in range(2):
        next_leaf()()
        yield


def delegate():
    yield from produce()


def generators():
    for _ in produce():
        pass
    for _ in delegate():
        pass
    sum(next_leaf()() is None for _ in range(2))


def catcher():
    try:
        yield
    except ValueError:
        next_leaf()()
        yield
    finally:
        next_leaf()()


def thrown():
    generator = catcher()
    next(generator)
    generator.throw(ValueError())
    generator.close()


def closed():
    generator = catcher()
    next(generator)
    generator.close()


class Manager:
    async def __aenter__(self):
        next_leaf()()

    async def __aexit__(self, *args):
        pass


async def inner_coroutine():
    next_leaf()()


async def outer_coroutine():
    async def countdown():
        for number in range(2):
            next_leaf()()
            yield number

    await inner_coroutine()
    async with Manager():
        async for _ in countdown():
            pass
    [next_leaf()() async for _ in countdown()]


def coroutines():
    coroutine = outer_coroutine()
    try:
        coroutine.send(None)
    except StopIteration:
        pass


async def task_body():
    next_leaf()()
    await inner_coroutine()


loops = threading.local()


def event_loop():
    loops.mine.run_until_complete(task_body())


def key_function(value):
    next_leaf()()
    return value


def sort_key():
    sorted([3, 1, 2], key=key_function)
    sorted([3, 1, 2], key=lambda value: bool(next_leaf()()))


def sort_compare():
    sorted([FIRST, SECOND])


def replace(match):
    next_leaf()()
    return "x"


def regex():
    re.sub("[0-9]", replace, "a1b2")


def mapped():
    list(map(key_function, range(2)))


def raiser():
    next_leaf()()
    raise KeyError("raised on purpose")


def exceptions():
    try:
        raiser()
    except KeyError:
        next_leaf()()


class Context:
    def __enter__(self):
        next_leaf()()

    def __exit__(self, *args):
        next_leaf()()
        return True


@contextlib.contextmanager
def managed():
    next_leaf()()
    yield
    next_leaf()()


def context():
    with Context():
        raise ValueError("swallowed by __exit__")
    with managed():
        pass


class Doomed:
    def __del__(self):
        next_leaf()()


def deleted():
    Doomed()


CODE = compile("next_leaf()()", "<executed>", "exec")


def executed():
    exec(CODE)


def hashing():
    FIRST in {SECOND: 1}


def comprehensions():
    [next_leaf()() for _ in range(2)]
    {next_leaf()() is None for _ in range(2)}
    {number: next_leaf()() for number in range(2)}


SCENARIOS = [
    plain, nested, recursive, keyword_arguments, decorated, closure, lambdas, partials, methods,
    inheritance, metaclasses, class_bodies, generators, thrown, closed, coroutines, event_loop,
    sort_key, sort_compare, regex, mapped, exceptions, context, deleted, executed, hashing,
    comprehensions]


def entry(seconds, spans):
    loops.mine = asyncio.new_event_loop()
    begin = now = time.monotonic_ns()
    while now < begin + seconds * 1e9:
        for scenario in SCENARIOS:
            scenario()
        now = time.monotonic_ns()
    spans.append({"tid": threading.get_native_id(), "begin": begin, "end": now})
    loops.mine.close()


def main(seconds, threads):
    spans = []
    others = [threading.Thread(target=entry, args=(seconds, spans)) for _ in range(threads)]
    for thread in others:
        thread.start()
    entry(seconds, spans)
    for thread in others:
        thread.join()
    print(json.dumps({"pid": os.getpid(), "spans": spans}))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0,
         int(sys.argv[2]) if len(sys.argv) > 2 else 2)
