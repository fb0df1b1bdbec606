"""The Firefox Profiler's processed format, version 60 (https://profiler.firefox.com, docs-developer/
processed-profile-format.md and CHANGELOG-formats.md of github.com/firefox-devtools/profiler).

Gecko's own format, of which this is what the Firefox Profiler makes when it reads one, has no weights;
the profiler loads both. All times are milliseconds. What all threads have in common is in `shared`.
"""
import array
import json

from .. import stacks

HELP = """for https://profiler.firefox.com; each sample at its time with its weight: milliseconds of processor
time, or, where cycles or events were counted, shares of the average sample"""
SUFFIX = ".gecko.json"
GZIPPED = False
VIEW = stacks.MIXED

CATEGORIES = (("Other", "grey"), ("Python", "blue"), ("Native", "orange"), ("Interpreter", "darkgrey"),
              ("Kernel", "red"))
CATEGORY_OF = {stacks.PYTHON: 1, stacks.NATIVE: 2, stacks.INTERPRETER: 3, stacks.KERNEL: 4}
CPU_UNITS = {"ns": "ns", "cycles": "variable CPU cycles"}
LIBRARY = 1                         # a resource's type


class _Strings:
    def __init__(self):
        self.all, self.numbers = [], {}

    def number(self, text):
        if text not in self.numbers:
            self.numbers[text] = len(self.all)
            self.all.append(text)
        return self.numbers[text]


class _Columns:
    """A table of the format: columns of one length."""

    def __init__(self, *names):
        self.names, self.columns, self.length = names, {name: [] for name in names}, 0

    def add(self, *values):
        for name, value in zip(self.names, values):
            self.columns[name].append(value)
        self.length += 1
        return self.length - 1

    def as_dict(self):
        return dict(self.columns, length=self.length)


def _functions(source, table, strings, shared):
    """funcTable, frameTable, resourceTable, sources and the list of libraries: one function, one frame each."""
    funcs = _Columns("name", "isJS", "relevantForJS", "resource", "source", "lineNumber", "columnNumber")
    frames = _Columns("address", "inlineDepth", "category", "subcategory", "func", "nativeSymbol", "innerWindowID",
                      "line", "column")
    resources = _Columns("lib", "name", "host", "type")
    sources = _Columns("uuid", "filename")
    resource_of, source_of, libs = {}, {}, []
    for frame in table.frames:
        resource, file, line = -1, None, source.line(frame) or None
        if frame.file:
            if frame.file not in source_of:
                source_of[frame.file] = sources.add(None, strings.number(frame.file))
            file = source_of[frame.file]
        if frame.dso:
            if frame.dso not in resource_of:
                name = frame.dso.rsplit("/", 1)[-1]
                libs.append({"arch": "", "name": name, "path": frame.dso, "debugName": name, "debugPath": frame.dso,
                             "breakpadId": "", "codeId": None})
                resource_of[frame.dso] = resources.add(len(libs) - 1, strings.number(name), None, LIBRARY)
            resource = resource_of[frame.dso]
        func = funcs.add(strings.number(frame.name), False, False, resource, file, line, None)
        frames.add(-1, 0, CATEGORY_OF[frame.kind], 0, func, None, None, line, None)
    shared.update(funcTable=funcs.as_dict(), frameTable=frames.as_dict(), resourceTable=resources.as_dict(),
                  sources=sources.as_dict())
    return libs


def _stack_table(table):
    """The tree of all stacks, and for each stack its leaf in the tree."""
    nodes, frames, prefixes, leaves = {}, [], [], []
    for stack in table.stacks:
        node = None
        for frame in stack:
            key = node, frame
            child = nodes.get(key)
            if child is None:
                child = nodes[key] = len(frames)
                frames.append(frame)
                prefixes.append(node)
            node = child
        leaves.append(node)
    return {"frame": frames, "prefix": prefixes, "length": len(frames)}, leaves


class _Thread:
    def __init__(self):
        self.stacks, self.times, self.weights = array.array("L"), array.array("Q"), array.array("Q")


def _collect(source):
    """Each thread's samples. perf script has them in the order of time."""
    table, samples = source.samples()
    threads = {}
    for sample in samples:
        thread = threads.get(sample.thread)
        if thread is None:
            thread = threads[sample.thread] = _Thread()
        thread.stacks.append(sample.stack)
        thread.times.append(sample.time)
        thread.weights.append(sample.weight)
    return table, threads


def _thread(identity, thread, leaves, start, scale, weight_type, cpu):
    order = range(len(thread.times))
    if any(thread.times[i] > thread.times[i + 1] for i in order[:-1]):
        order = sorted(order, key=thread.times.__getitem__)
    times = [round((thread.times[i] - start) / 1e6, 6) for i in order]
    samples = {"length": len(times), "stack": [leaves[thread.stacks[i]] for i in order], "time": times,
               "weight": [round(thread.weights[i] * scale, 6) for i in order], "weightType": weight_type}
    if cpu:
        samples["threadCPUDelta"] = [thread.weights[i] for i in order]
    return {
        "name": identity.comm, "isMainThread": identity.pid == identity.tid, "processType": "default",
        "processName": identity.comm, "processStartupTime": 0, "processShutdownTime": None,
        "registerTime": times[0], "unregisterTime": None, "pausedRanges": [], "pid": str(identity.pid),
        "tid": identity.tid, "showMarkersInTimeline": False,
        "markers": {"length": 0, "category": [], "data": [], "endTime": [], "name": [], "phase": [], "startTime": []},
        "samples": samples,
    }


def write(source, file):
    table, threads = _collect(source)
    source.require(threads)
    count = sum(len(thread.times) for thread in threads.values())
    weight = sum(sum(thread.weights) for thread in threads.values())
    start = min(min(thread.times) for thread in threads.values())
    # Cycles and events: in units of the average sample.
    scale, weight_type = (1e-6, "tracing-ms") if source.unit == "ns" else (count / (weight or 1), "samples")
    cpu = None if source.off_cpu else CPU_UNITS.get(source.unit)
    strings, shared = _Strings(), {}
    libs = _functions(source, table, strings, shared)
    shared["stackTable"], leaves = _stack_table(table)
    shared["nativeSymbols"] = {"length": 0, "libIndex": [], "address": [], "name": [], "functionSize": []}
    shared["stringArray"] = strings.all
    biggest = sorted(threads, key=lambda number: -sum(threads[number].weights))
    meta = {
        "version": 31, "preprocessedProfileVersion": 60, "interval": source.interval_ms, "startTime": source.start_ms,
        "processType": 0, "product": source.title, "stackwalk": 1, "debug": False, "symbolicated": True,
        "importedFrom": source.exporter, "oscpu": "", "platform": "Linux", "abi": "", "toolkit": "",
        "sourceCodeIsNotOnSearchfox": True, "markerSchema": [],
        "categories": [{"name": name, "color": colour, "subcategories": ["Other"]} for name, colour in CATEGORIES],
        "extra": [{"label": "Samples", "entries": [{"label": "A sample is", "format": "string",
                                                    "value": source.meaning}]}],
    }
    if cpu:
        meta["sampleUnits"] = {"time": "ms", "eventDelay": "ms", "threadCPUDelta": cpu}
    document = {"meta": meta, "libs": libs, "pages": [], "counters": [], "profilerOverhead": [], "shared": shared,
                "threads": [_thread(table.threads[number], threads[number], leaves, start, scale, weight_type, cpu)
                            for number in biggest]}
    file.write(json.dumps(document, separators=(",", ":")).encode())
