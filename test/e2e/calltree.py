"""What workload.py calls, as data: which Python function may stand directly under which in a stack.

Names are qualified names as co_qualname has them. Functions of the standard library are one node,
STDLIB, however many of them follow each other: what they call among themselves differs between versions.
"""
ENTRY = "entry"             # every scenario runs under it, in the main thread and in others
STDLIB = "<stdlib>"

# They burn the time; nearly every sample should have one of them as its innermost Python function.
PYTHON_LEAVES = {"leaf_loop", "leaf_strings"}
C_LEAVES = {"leaf_zlib", "leaf_sum", "leaf_sorted"}
LEAVES = PYTHON_LEAVES | C_LEAVES

# What stands above ENTRY, outermost first, in the main thread and in one that threading started.
MAIN_PATH = ("<module>", "main", ENTRY)
THREAD_PATH = (STDLIB, ENTRY)

# One line per way of calling: a path from ENTRY's child down to, but without, "leaf" or a given leaf.
PATHS = """
    plain
    nested > nested.<locals>.inner
    recursive > recursive
    keyword_arguments > sink
    decorated.<locals>.wrapper > decorated
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
    context > produce
    executed > <module>
    executed
    hashing > Ordered.__hash__
    hashing > Ordered.__eq__
"""

# Up to 3.11 a comprehension is a function; from 3.12 on it is a part of the one around it (PEP 709).
COMPREHENSIONS = ["listcomp", "setcomp", "dictcomp"]


def paths(minor):
    """All paths, each a list of names, for CPython 3.`minor`."""
    result = [line.strip().split(" > ") for line in PATHS.strip().splitlines()]
    asynchronous = ["coroutines", "outer_coroutine", "outer_coroutine.<locals>.<listcomp>",
                    "outer_coroutine.<locals>.countdown"]
    if minor >= 12:
        result.append(["comprehensions"])
        del asynchronous[2]
    else:
        result += [["comprehensions", "comprehensions.<locals>.<%s>" % kind] for kind in COMPREHENSIONS]
    return result + [asynchronous]


def edges(minor):
    """The set of (caller, callee) below ENTRY."""
    result = set()
    for path in paths(minor):
        result.update(zip([ENTRY] + path, path))
        result.update((path[-1], leaf) for leaf in LEAVES)
    return result


def is_valid(names, minor):
    """Whether `names`, outermost first and complete, lead from ENTRY to a leaf in the tree."""
    return names[0] == ENTRY and names[-1] in LEAVES and set(zip(names, names[1:])) <= edges(minor)
