"""What workload.py calls, as data: which Python function may stand directly under which in a stack.

Names are qualified names as co_qualname has them. Functions of the standard library are one node,
STDLIB, however many of them follow each other: what they call among themselves differs between
versions.
"""
import functools

ENTRY = "entry"             # every scenario runs under it, in the main thread and in others
STDLIB = "<stdlib>"

# They burn the time; nearly every sample has one of them as its innermost Python function.
PYTHON_LEAVES = {"leaf_loop", "leaf_strings"}
C_LEAVES = {"leaf_zlib", "leaf_sum", "leaf_sorted"}
LEAVES = PYTHON_LEAVES | C_LEAVES

# What stands above ENTRY, outermost first, in the main thread and in one that threading started.
MAIN_PATH = ("<module>", "main", ENTRY)
THREAD_PATH = (STDLIB, ENTRY)

# One line per way of calling: a path from below ENTRY down to a function that calls leaves.
PATHS = """
    plain
    nested > nested.<locals>.inner
    recursive > recursive
    keyword_arguments > sink
    decorate.<locals>.wrapper > decorated
    closure > closure.<locals>.add
    lambdas > lambdas.<locals>.<lambda>
    partials > sink
    methods > Shape.method
    methods > Shape.static
    methods > Shape.make
    methods > Shape.__init__
    methods > Shape.area
    methods > Shape.__getattr__
    methods > Shape.__add__
    methods > Shape.__call__
    methods > Shape.Part.weigh
    inheritance > Square.method > Shape.method
    metaclasses > Meta.__new__
    class_bodies > class_bodies.<locals>.Local
    class_bodies > class_bodies.<locals>.Local > class_bodies.<locals>.Local.Inner
    class_bodies > class_bodies.<locals>.Local.method
    class_bodies > Global
    class_bodies > Global > Global.Inner
    generators > produce
    generators > delegate > produce
    generators > generators.<locals>.<genexpr>
    thrown > catcher
    closed > catcher
    coroutines > outer_coroutine > inner_coroutine
    coroutines > outer_coroutine > outer_coroutine.<locals>.countdown
    coroutines > outer_coroutine > Manager.__aenter__
    event_loop > <stdlib> > task_body
    event_loop > <stdlib> > task_body > inner_coroutine
    sort_key > key_function
    sort_key > sort_key.<locals>.<lambda>
    sort_compare > Ordered.__lt__
    regex > <stdlib> > replace
    mapped > key_function
    exceptions > raiser
    exceptions
    context > Context.__enter__
    context > Context.__exit__
    context > <stdlib> > managed
    deleted > Doomed.__del__
    executed > <module>
    hashing > Ordered.__hash__
    hashing > Ordered.__eq__
"""

# Up to 3.11 a comprehension is a function; from 3.12 on it is a part of the one around it (PEP
# 709).
# (path of the function around it, kind, what it calls apart from leaves)
COMPREHENSIONS = [
    (["comprehensions"], "listcomp", []),
    (["comprehensions"], "setcomp", []),
    (["comprehensions"], "dictcomp", []),
    (["coroutines", "outer_coroutine"], "listcomp", ["outer_coroutine.<locals>.countdown"]),
]


def paths(minor):
    """All paths, each a list of names, for CPython 3.`minor`."""
    result = [line.strip().split(" > ") for line in PATHS.strip().splitlines()]
    for function, kind, below in COMPREHENSIONS:
        name = [] if minor >= 12 else ["%s.<locals>.<%s>" % (function[-1], kind)]
        result += [function + name, function + name + below]
    return result


@functools.lru_cache(maxsize=None)
def edges(minor):
    """The set of (caller, callee) below ENTRY."""
    result = set()
    for path in paths(minor):
        result.update(zip([ENTRY] + path, path))
        result.update((path[-1], leaf) for leaf in LEAVES)
    if minor == 13:
        # CALL_ALLOC_AND_ENTER_INIT of CPython 3.13.0 runs __init__ inside its caller without asking
        # for an evaluator (PEP 523), so once it is specialised no profiler of this kind sees
        # __init__.
        result.update(("methods", leaf) for leaf in LEAVES)
    return result


def functions(minor):
    """Every name that may stand below ENTRY."""
    return {callee for _, callee in edges(minor)}


def is_valid(names, minor):
    """Whether `names`, outermost first, lead from ENTRY down the tree, as far as to a leaf or
    not."""
    return names[0] == ENTRY and set(zip(names, names[1:])) <= edges(minor)
