"""Time off the processor, from a recording that has the scheduler's events.

A thread leaves the processor in a sample of `sched:sched_switch`, whose stack says what it waits in, and is
back at its next PERF_RECORD_SWITCH IN. What lies between is the weight of one sample, in nanoseconds of
real time, whether the thread slept, waited for a lock or a device, or only for its turn.
perf writes both with `-e sched:sched_switch -c 1 --switch-events`; without `-c 1` it leaves out some samples.
"""
import re

from . import perf, recording, stacks, ui

EVENT = b"sched:sched_switch"
SWITCH = re.compile(rb"\s*(.*?)\s+(-?\d+)/(-?\d+)\s+(\d+)\.(\d+):\s+PERF_RECORD_SWITCH(?:_CPU_WIDE)? (IN|OUT)\b")

WITHOUT_EVENTS = ("%s has no samples of sched:sched_switch, so it does not know of time off the processor; record with "
                  "`-e sched:sched_switch -c 1 --switch-events`, which needs root, CAP_PERFMON, or "
                  "kernel.perf_event_paranoid -1 and a readable /sys/kernel/tracing")
WITHOUT_SWITCHES = ("%s has samples of sched:sched_switch, but no switch events, which tell when a thread was back; "
                    "record with --switch-events, too")
INCOMPLETE = ("only %d of %d times off the processor have a stack, the rest is left out; record with -c 1 "
              "for all of them")
ENOUGH = 0.95


def script(source):
    return perf.output(["script", *source.script_options(), "--no-inline", "--ns", "--max-stack",
                        recording.MOST_FRAMES, "--show-switch-events", "-F", stacks.FIELDS])


def _time(seconds, fraction):
    return int(seconds + fraction.ljust(9, b"0"))


def parse(stream, table, seen):
    """Samples of the time off the processor. `seen` counts the events of both kinds."""
    away = {}                       # (pid, tid) -> (time, body)
    for head, body in stacks.blocks(stream):
        # Switch events are lines in front of a sample's.
        lines = [head] + body.split(b"\n") if body else [head]
        while lines:
            switch = SWITCH.match(lines[0])
            if not switch:
                break
            comm, pid, tid, seconds, fraction, direction = switch.groups()
            lines.pop(0)
            seen[direction] = seen.get(direction, 0) + 1
            if direction == b"IN" and (pid, tid) in away:
                left, waiting = away.pop((pid, tid))
                thread = table.thread_number(stacks.Thread(int(pid), int(tid), comm.decode("utf-8", "replace")))
                stack = table.stack_number(waiting) if thread is not None else None
                if stack is not None:
                    yield stacks.Sample(thread, stack, max(_time(seconds, fraction) - left, 0), left, "off-cpu")
        found = stacks.HEAD.match(lines[0]) if lines else None
        if found and found[7] == EVENT:
            seen[EVENT] = seen.get(EVENT, 0) + 1
            away[found[2], found[3]] = _time(found[4], found[5]), b"\n".join(lines[1:])


def read(source, selection):
    """(table, iterator of Samples), as stacks.read."""
    table = stacks.Table(selection, source.interpreters)
    return table, _read(source, table)


def _read(source, table):
    seen = {}
    with script(source) as stream, ui.Progress("reading samples") as progress:
        for count, sample in enumerate(parse(stream, table, seen)):
            if not count & 0xFFF:
                progress.update(ui.number_text(count))
            yield sample
    if not seen.get(EVENT):
        raise ui.UserError(WITHOUT_EVENTS % source.path)
    if not seen.get(b"IN"):
        raise ui.UserError(WITHOUT_SWITCHES % source.path)
    if seen[EVENT] < ENOUGH * seen.get(b"OUT", 0):
        ui.say(INCOMPLETE % (seen[EVENT], seen[b"OUT"]))
