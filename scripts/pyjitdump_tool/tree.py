"""What can be said of a Profile: shares of kinds, functions, call trees."""
import collections

from . import stacks

# self: time in the function itself; total: with what it called, once for a recursive one.
Function = collections.namedtuple("Function", "frame self total")

# frame: its number, -1 at the root. total, self: weights. children: Nodes, heaviest first.
Node = collections.namedtuple("Node", "frame total self children")

# Functions of CPython in which bytecode runs; 3.14 and later may have one for each instruction.
BYTECODE = "_PyEval_EvalFrame", "_TAIL_CALL_"


def kind_of_time(frames):
    """The kind that the time of a stack belongs to: that of its innermost frame. But where the interpreter
    was at the function's own bytecode, the time is the Python function's."""
    if not frames:
        return stacks.NATIVE
    leaf = frames[-1]
    if leaf.kind is stacks.INTERPRETER and leaf.name.startswith(BYTECODE) and any(
            frame.kind is stacks.PYTHON for frame in frames):
        return stacks.PYTHON
    return leaf.kind


def shares(profile):
    """{kind: weight} of all samples, by kind_of_time."""
    result, table = dict.fromkeys(stacks.KINDS, 0), profile.table
    frames, kinds = table.frames, table.kinds
    leaf_is_bytecode = [frame.kind == stacks.INTERPRETER and frame.name.startswith(BYTECODE) for frame in frames]
    for number, weight in profile.stacks.items():
        stack = table.stacks[number]
        kind = kinds[stack[-1]] if stack else stacks.NATIVE
        if stack and leaf_is_bytecode[stack[-1]]:
            kind = kind_of_time(table.stack(number))
        result[kind] += weight
    return result


def functions(profile, fold=False):
    """Functions of all frames, the ones with most time of their own first. With `fold`, the time of
    interpreter frames at the end of a stack is that of the function they work for."""
    own, total = collections.Counter(), collections.Counter()
    kinds = profile.table.kinds
    for number, weight in profile.stacks.items():
        stack = profile.table.stacks[number]
        if stack:
            owner = stack[-1]
            if fold and kinds[owner] is stacks.INTERPRETER:
                owner = next((frame for frame in reversed(stack) if kinds[frame] is not stacks.INTERPRETER), owner)
            own[owner] += weight
            for frame in set(stack):
                total[frame] += weight
    frames = profile.table.frames
    result = [Function(frames[number], own[number], total[number]) for number in total]
    return sorted(result, key=lambda function: (-function.self, -function.total, function.frame))


def build(profile, least=0, bottom_up=False):
    """The call tree as a root Node. Nodes below the weight `least` are left out, with all they called.

    Stacks are divided by their outermost frame, the parts by the next, and so on. A part that is too light
    is dropped at once, so that neither time nor memory goes to the crowd of rare stacks.
    """
    by_number = profile.table.stacks
    paths = [(by_number[number][::-1] if bottom_up else by_number[number], weight)
             for number, weight in profile.stacks.items()]
    root = Node(-1, profile.weight, 0, [])
    work = [(root, paths, 0)]
    while work:
        node, paths, depth = work.pop()
        parts, weights = collections.defaultdict(list), collections.Counter()
        for path in paths:
            stack, weight = path
            if len(stack) > depth:
                frame = stack[depth]
                parts[frame].append(path)
                weights[frame] += weight
        del paths
        for frame, weight in weights.most_common():
            if weight < least:
                break
            part = parts.pop(frame)
            ends = sum(weight for stack, weight in part if len(stack) == depth + 1)
            child = Node(frame, weight, ends, [])
            node.children.append(child)
            work.append((child, part, depth + 1))
    return root


def walk(root):
    """(node, depth) of all nodes below the root, each before its children."""
    work = [(child, 0) for child in reversed(root.children)]
    while work:
        node, depth = work.pop()
        yield node, depth
        work += [(child, depth + 1) for child in reversed(node.children)]
