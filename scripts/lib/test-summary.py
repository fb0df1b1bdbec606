"""Adds up what the parts of scripts/test found and prints it; the last line is `N passed, N failed[, N skipped]`.

    test-summary.py PARTS [--strict] [--cannot REGEX]...

Each line of PARTS has four fields with tabs between them: the name of a part, its kind (build, meson or pytest), its
exit status, and the JUnit file it wrote (- for a build). --strict makes a failure of every skip whose reason matches
none of the REGEX, which say what this machine cannot do. Exit status 1 if anything failed.
"""
import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree

# The line with which a program that uses Check ends, and the one in which ours name a test they skipped.
CHECK_TOTAL = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)", re.M)
CHECK_SKIP = re.compile(r"^SKIP ([^:\n]+): (.*)", re.M)
CHECK_FAILURE = re.compile(r"^(\S+:\d+:[FE]:.*)", re.M)


class Part:
    def __init__(self, name):
        self.name, self.passed, self.failures, self.skips = name, 0, [], []

    def skip(self, test, reason):
        self.skips.append((test, " ".join(reason.split())))


def outcome(case):
    """(what befell a test case, the first line of why)."""
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            text = (found.get("message") or found.text or "").strip()
            return ("skipped" if kind == "skipped" else "failed"), text.split("\n")[0]
    return "passed", ""


def read_case(part, case):
    name = case.get("name", "?")
    what, why = outcome(case)
    if case.get("classname") and "." in case.get("classname"):
        name = case.get("classname").rsplit(".", 1)[1] + "." + name
    if what == "passed":
        part.passed += 1
    elif what == "failed":
        part.failures.append("%s: %s" % (name, why))
    else:
        part.skip(name, why or "no reason given")


def read_meson_case(part, case):
    """A program that uses Check is one test to meson: its own count is in what it printed."""
    output = "\n".join(case.findtext(tag) or "" for tag in ("system-out", "system-err"))
    # Without the project and the suite, which old and new meson write in different ways.
    name = re.sub(r"^.*( / |:)", "", case.get("name"))
    total = CHECK_TOTAL.search(output)
    if not total:
        what, _ = outcome(case)
        last = (output.strip().split("\n") or [""])[-1]
        if what == "passed":
            part.passed += 1
        elif what == "failed":
            part.failures.append("%s: %s" % (name, last))
        else:
            part.skip(name, last or "no reason given")
        return
    ran, failed, crashed = map(int, total.groups())
    skipped = CHECK_SKIP.findall(output)
    for test, reason in skipped:
        part.skip("%s.%s" % (name, test), reason)
    failures = CHECK_FAILURE.findall(output)
    part.failures += ["%s: %s" % (name, line) for line in failures]
    part.failures += ["%s: a test failed" % name] * (failed + crashed - len(failures))
    part.passed += ran - failed - crashed - len(skipped)
    if outcome(case)[0] == "failed" and not failed + crashed:
        part.failures.append("%s: all its tests passed, yet the program failed" % name)


def read_part(name, kind, status, path):
    part = Part(name)
    if kind == "build":
        if status:
            part.failures.append("does not build")
        else:
            part.passed = 1
        return part
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        part.failures.append("left no readable result (exit status %d): %s" % (status, error))
        return part
    for case in cases:
        (read_meson_case if kind == "meson" else read_case)(part, case)
    if status and not part.failures:
        part.failures.append("no test failed, but the exit status is %d" % status)
    if not cases:
        part.failures.append("ran no test")
    return part


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--cannot", action="append", default=[])
    arguments = parser.parse_args()
    with open(arguments.parts) as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    parts = [read_part(name, kind, int(status), path) for name, kind, status, path in rows]

    if arguments.strict:
        for part in parts:
            for test, reason in part.skips[:]:
                if not any(re.search(cannot, reason) for cannot in arguments.cannot):
                    part.skips.remove((test, reason))
                    part.failures.append("%s: skipped, though this machine can run it: %s" % (test, reason))

    print("\n%-14s %7s %7s %7s" % ("", "passed", "failed", "skipped"))
    for part in parts:
        print("%-14s %7d %7d %7d" % (part.name, part.passed, len(part.failures), len(part.skips)))
    for title, attribute in (("Skipped", "skips"), ("Failed", "failures")):
        lines = ["  %s: %s" % (part.name, line if isinstance(line, str) else "%s: %s" % line)
                 for part in parts for line in getattr(part, attribute)]
        if lines:
            print("\n%s:" % title)
            print("\n".join(lines))
    passed = sum(part.passed for part in parts)
    failed = sum(len(part.failures) for part in parts)
    skipped = sum(len(part.skips) for part in parts)
    print("\n%d passed, %d failed" % (passed, failed) + (", %d skipped" % skipped if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
