"""Burns CPU time through a call tree that calltree.py describes: CPython 3.8 to 3.15, standard library.

    workload.py [SECONDS [THREADS]]

Runs entry() for SECONDS in the main thread and in THREADS others at once, and prints one line of JSON:
for each, the thread's id and the CLOCK_MONOTONIC nanoseconds between which entry() was on its stack
(the clock of `perf record -k 1`). So samples can be told to be under entry() without any symbol.

A leaf runs for about a millisecond, so that little time is spent anywhere else.
"""
import asyncio
import functools
import json
import re
import sys
import threading
import time
import zlib

TEXT = b"to be or not to be, that is the question " * 600


def leaf_loop():
    i = 0
    while i < 12000:
        i += 1
    return i


def leaf_strings():
    words = []
    for i in range(2500):
        words.append("%d-%s" % (i, "x"))
    return "".join(words)


def leaf_zlib():
    return zlib.compress(TEXT, 6)


def leaf_sum():
    return sum(range(50000))


def leaf_sorted():
    return sorted(range(20000, 0, -1), reverse=True) and sorted(range(40000))


LEAVES = [leaf_loop, leaf_zlib, leaf_strings, leaf_sum, leaf_sorted]
turn = threading.local()


def next_leaf():
    """A different leaf each time; the callers call what they get themselves."""
    turn.number = getattr(turn, "number", 0) + 1
    return LEAVES[turn.number % len(LEAVES)]
