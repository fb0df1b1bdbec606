"""flamegraph: one HTML file that holds the viewer and the data, and opens without a network.

The page's data, in a script element of type application/json:

    title, subtitle, unit ("ns", "cycles", "events"), total, kinds {kind: weight}
    frames   [[name, place, kind]], kind as an index into `kindNames`
    nodes    [depth, frame, weight, depth, frame, weight, ...], each before what it called

A flat list, because nesting would be as deep as the stacks are, which JSON readers dislike.
"""
import html
import json
import os
import sys

from . import recording, stacks, tree, ui

EPILOG = """\
Python functions, native functions, the interpreter's own and the kernel's have colours of their own.
Click a frame to zoom, search for names, and see at the top what share of the time each kind has.

examples:
  pyjitdump flamegraph
  pyjitdump flamegraph --python -o python.html --title "nightly import"
  pyjitdump flamegraph --thread 4243 --module numpy
  pyjitdump flamegraph -o - | ssh desk 'cat > flame.html'
"""

VIEWER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "viewer")


def add_arguments(parser):
    parser.epilog = EPILOG
    recording.add_arguments(parser)
    stacks.add_arguments(parser)
    parser.add_argument("-o", "--output", default="flamegraph.html", metavar="FILE",
                        help="the page; - for standard output (default: %(default)s)")
    parser.add_argument("--title", help="heading (default: the command that was recorded)")
    parser.add_argument("--root-below", action="store_true",
                        help="outermost functions at the bottom; the page has a button for it, too")
    parser.add_argument("--min-percent", type=float, default=0.01, metavar="N",
                        help="leave out frames below N percent of the time, thinner than a pixel (default: 0.01)")


def viewer_file(name):
    with open(os.path.join(VIEWER, name), encoding="utf-8") as file:
        return file.read()


def page_data(read, profile, args):
    root = tree.build(profile, max(1, profile.weight * args.min_percent / 100))
    used, frames, nodes = {}, [], []
    for node, depth in tree.walk(root):
        number = used.get(node.frame)
        if number is None:
            number = used[node.frame] = len(frames)
            frame = profile.table.frames[node.frame]
            name = frame.name
            if name == "[unknown]" and frame.dso:
                name = "[%s]" % os.path.basename(frame.dso).strip("[]")
            frames.append([name, frame.file or frame.dso, stacks.KINDS.index(frame.kind)])
        nodes += depth, number, node.total
    chosen = profile.table.selection.text
    subtitle = "%s samples, event %s, %s view%s" % (
        ui.number_text(profile.samples), read.event or "?", profile.table.selection.view,
        ", only %s" % chosen if chosen else "")
    return {"title": args.title or read.title, "subtitle": subtitle, "unit": read.unit, "total": profile.weight,
            "kindNames": stacks.KINDS, "kinds": tree.shares(profile), "rootBelow": args.root_below,
            "frames": frames, "nodes": nodes}


def page(data):
    """The whole page."""
    # "</script>" or "<!--" inside would end or swallow the element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"TITLE": html.escape(data["title"]), "STYLE": viewer_file("page.css"), "DATA": text,
             "D3": viewer_file("d3.min.js"), "FLAMEGRAPH": viewer_file("d3-flamegraph.min.js"),
             "LICENCES": "\n".join(viewer_file(name).replace("--", "- -")
                                   for name in ("d3.LICENSE", "d3-flamegraph.LICENSE")),
             "SCRIPT": viewer_file("page.js")}
    pieces = viewer_file("page.html").split("@@")
    return "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def run(args):
    read = recording.chosen(args)
    profile = stacks.load(read, stacks.selection(args))
    text = page(page_data(read, profile, args))
    if args.output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        return 0
    try:
        with open(args.output, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
    except OSError as error:
        raise ui.UserError("cannot write %s: %s" % (args.output, error.strerror))
    ui.say("%s: %s samples, %s; open it in a browser" % (args.output, ui.number_text(profile.samples),
                                                         ui.bytes_text(len(text))))
    return 0
