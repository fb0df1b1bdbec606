"""Fixtures of the tool's suite: recordings that several tests read."""
import sys

sys.dont_write_bytecode = True

import pytest

import tool_runs

# The oldest, one in the middle and the newest of the list; where they are missing, what there is.
WANTED = [(3, 8), (3, 11), (3, 13)]


def chosen():
    found = [python for python in tool_runs.PYTHONS if python.version[:2] in WANTED and not python.free_threaded]
    by_version = {python.version[:2]: python for python in found or tool_runs.PYTHONS}
    return list(by_version.values())


@pytest.fixture(scope="session", params=chosen(), ids=tool_runs.interpreters.name)
def shares_recording(request, tmp_path_factory):
    """A recording of KNOWN_SHARES by each interpreter."""
    if tool_runs.why_no_perf():
        pytest.skip(tool_runs.why_no_perf())
    directory = tmp_path_factory.mktemp("shares")
    script = directory / "shares.py"
    script.write_text(tool_runs.KNOWN_SHARES)
    result = tool_runs.record(directory / "recording", request.param.path, script)
    assert result.status == 0, result
    return directory / "recording"
