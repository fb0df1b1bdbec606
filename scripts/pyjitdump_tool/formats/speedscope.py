"""speedscope's file format (https://www.speedscope.app/file-format-schema.json), a profile a thread.

Samples stand in the order of time, and equal neighbours are one; the axis is weight added up, so that
time off the processor takes no room. Beyond MOST_RUNS the stacks of a thread are added up instead, and
sorted: a time order of that many samples is nothing a browser shows.
"""
import collections
import json

from .. import stacks, ui

HELP = """for https://www.speedscope.app and its npm package; the axis is the weight of the samples one after
the other: nanoseconds, or cycles or events without a unit"""
SUFFIX = ".speedscope.json"
GZIPPED = False
VIEW = stacks.MIXED

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
MOST_RUNS = 200000


def _frame(source, frame):
    entry = {"name": frame.name}
    if frame.file or frame.dso:
        entry["file"] = frame.file or frame.dso
    line = source.line(frame)
    if line:
        entry["line"] = line
    return entry


def _runs(source):
    """({thread: [[stack, weight], ...] in the order of time}, table), or (None, ...) if that is too much."""
    table, samples = source.samples()
    runs, count, added = collections.defaultdict(list), 0, collections.defaultdict(collections.Counter)
    for sample in samples:
        added[sample.thread][sample.stack] += sample.weight
        if runs is None:
            continue
        mine = runs[sample.thread]
        if mine and mine[-1][0] == sample.stack:
            mine[-1][1] += sample.weight
        else:
            mine.append([sample.stack, sample.weight])
            count += 1
            if count > MOST_RUNS:
                runs = None
    return table, runs, added


def write(source, file):
    table, runs, added = _runs(source)
    source.require(added)
    if runs is None:
        ui.say("too many samples for their order in time; the stacks of each thread are added up")
        runs = {thread: sorted(counter.items(), key=lambda item: table.stacks[item[0]])
                for thread, counter in added.items()}
    unit = "nanoseconds" if source.unit == "ns" else "none"
    profiles = []
    for thread in sorted(runs, key=lambda number: -sum(added[number].values())):
        mine = runs[thread]
        weights = [weight for _, weight in mine]
        profiles.append({
            "type": "sampled", "name": "%s %d/%d" % (table.threads[thread].comm, *table.threads[thread][:2]),
            "unit": unit, "startValue": 0, "endValue": sum(weights),
            "samples": [table.stacks[stack] for stack, _ in mine], "weights": weights,
        })
    document = {
        "$schema": SCHEMA, "exporter": source.exporter, "name": "%s: %s" % (source.title, source.meaning),
        "activeProfileIndex": 0, "shared": {"frames": [_frame(source, frame) for frame in table.frames]},
        "profiles": profiles,
    }
    file.write(json.dumps(document, separators=(",", ":")).encode())
