"""report: a recording as text: the hottest functions, and call trees from the top or from the bottom."""
import json
import os
import sys

from . import recording, stacks, tree, ui

EPILOG = """\
Columns: total is the function's time with all it called, self its time without. Lines of a tree that
stand under each other without a mark are calls of each other; a mark begins a new branch.

Three views: mixed (without the interpreter's frames between two Python functions), --python and --native.

examples:
  pyjitdump report
  pyjitdump report --python --top-down --min-percent 5
  pyjitdump report --bottom-up --module libz
  pyjitdump report -i slow --comm gunicorn --json | jq '.functions[0]'

--json has: samples, weight (in unit: ns of processor time, cycles, or events), kinds (weight by kind of
frame), functions (kind, name, file, dso, self, total), top_down and bottom_up (lists of nodes; parent
and function are indexes, parent null at the root).
"""

KIND_COLOUR = {stacks.PYTHON: "green", stacks.NATIVE: "yellow", stacks.INTERPRETER: "blue", stacks.KERNEL: "red"}


def add_arguments(parser):
    parser.epilog = EPILOG
    recording.add_arguments(parser)
    stacks.add_arguments(parser)
    parser.add_argument("--flat", action="store_true", help="the hottest functions")
    parser.add_argument("--top-down", action="store_true", help="the call tree from the outermost function")
    parser.add_argument("--bottom-up", action="store_true", help="the callers of each function, hottest first")
    parser.add_argument("--min-percent", type=float, default=1.0, metavar="N",
                        help="leave out of trees what is below N percent of the time (default: 1)")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="functions to list (default: 20)")
    parser.add_argument("--json", action="store_true", help="everything as JSON, without limits but --min-percent")


def percent(weight, whole):
    return "%5.1f%%" % (100.0 * weight / whole)


def amount(weight, unit):
    """A weight for people."""
    if unit == "ns":
        return "%.2f s of processor time" % (weight / 1e9)
    return "%s %s" % (ui.number_text(weight), unit)


def print_head(read, profile, paint, out):
    out.write("%s\n" % paint("bold", read.title))
    chosen = profile.table.selection.text
    out.write("%s samples, %s%s\n" % (ui.number_text(profile.samples), amount(profile.weight, read.unit),
                                      "; only %s" % chosen if chosen else ""))
    parts = ["%s %s" % (paint(KIND_COLOUR[kind], kind), percent(weight, profile.weight).strip())
             for kind, weight in tree.shares(profile).items() if weight]
    out.write("%s\n" % ", ".join(parts))


def show_label(frame, paint):
    place = os.path.basename(frame.file or frame.dso)
    return paint(KIND_COLOUR[frame.kind], frame.name) + (paint("dim", "  " + place) if place else "")


def print_flat(profile, top, paint, out):
    fold = profile.table.selection.view == stacks.MIXED
    title = "Hottest functions, by their own time%s" % (", the interpreter's work for them included" if fold else "")
    out.write("\n%s\n\n  total    self  function\n" % paint("bold", title))
    for function in tree.functions(profile, fold)[:top]:
        if not function.self:
            break
        out.write(" %s  %s  %s\n" % (percent(function.total, profile.weight), percent(function.self, profile.weight),
                                     show_label(function.frame, paint)))


def print_tree(profile, root, bottom_up, paint, out):
    title = "Callers, from the innermost function outwards" if bottom_up else "Call tree, from the outermost function"
    out.write("\n%s\n\n  total    self  function\n" % paint("bold", title))
    frames = profile.table.frames
    # (node, marks before its mark, its mark): a branch has a mark of its own, an only child goes on below.
    work = [(child, "", "") for child in reversed(root.children)]
    while work:
        node, before, mark = work.pop()
        # In a bottom-up tree what ends at a node is the time of stacks that began there: of no interest.
        own = "      " if bottom_up or not node.self else percent(node.self, profile.weight)
        out.write(" %s  %s  %s%s%s\n" % (percent(node.total, profile.weight), own, paint("dim", before),
                                         paint("dim", mark), show_label(frames[node.frame], paint)))
        below = before + {"": "", "├ ": "│ ", "└ ": "  "}[mark]
        if len(node.children) == 1:
            work.append((node.children[0], below, ""))
        else:
            last = len(node.children) - 1
            work += [(child, below, "└ " if at == last else "├ ")
                     for at, child in reversed(list(enumerate(node.children)))]


def flat_tree(root, numbers):
    """The nodes of a tree as a list for JSON."""
    nodes, path = [], []        # path: indexes of the nodes that lead to this one
    for node, depth in tree.walk(root):
        del path[depth:]
        nodes.append({"parent": path[-1] if path else None, "function": numbers[node.frame],
                      "total": node.total, "self": node.self})
        path.append(len(nodes) - 1)
    return nodes


def as_json(read, profile, least):
    functions = tree.functions(profile)
    index = {function.frame: at for at, function in enumerate(functions)}
    numbers = {number: index[frame] for number, frame in enumerate(profile.table.frames) if frame in index}
    return {
        "recording": read.path, "title": read.title, "event": read.event, "unit": read.unit,
        "view": profile.table.selection.view, "samples": profile.samples, "weight": profile.weight,
        "kinds": tree.shares(profile),
        "functions": [dict(function.frame._asdict(), self=function.self, total=function.total)
                      for function in functions],
        "top_down": flat_tree(tree.build(profile, least), numbers),
        "bottom_up": flat_tree(tree.build(profile, least, True), numbers),
    }


def run(args):
    read = recording.chosen(args)
    profile = stacks.load(read, stacks.selection(args))
    least, out = profile.weight * args.min_percent / 100, sys.stdout
    if args.json:
        json.dump(as_json(read, profile, least), out, indent=1)
        out.write("\n")
        return 0
    if hasattr(out, "reconfigure"):
        out.reconfigure(errors="replace")      # a name that the terminal's encoding lacks
    paint, everything = ui.painter(out), not (args.flat or args.top_down or args.bottom_up)
    print_head(read, profile, paint, out)
    if args.flat or everything:
        print_flat(profile, args.top, paint, out)
    if args.top_down or everything:
        print_tree(profile, tree.build(profile, least), False, paint, out)
    if args.bottom_up:
        print_tree(profile, tree.build(profile, least, True), True, paint, out)
    return 0
