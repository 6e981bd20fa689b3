"""A library in its own process: its figures, its errors, and how it ends."""

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.hosts import Host, TurnFailed
from benchmarks.peers import FLOOR
from benchmarks.peers.cases import CASES
from benchmarks.peers.running import open_host


class Scripted:
    """A side with one way for each kind of failure; it runs in the host process."""

    def ways(self):
        print("what libraries print does not get between the answers")
        return ["fine", "raise", "exit", "die", "hang"]

    def turn(self, way):
        if way == "raise":
            raise TurnFailed("ValueError: no")
        if way == "exit":
            print("what it said at last", file=sys.stderr, flush=True)
            os._exit(3)
        if way == "die":
            os.abort()
        if way == "hang":
            os.read(os.pipe()[0], 1)
        return 2.5

    def finish(self):
        pass

    def close(self):
        pass


def script():
    return Scripted()


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Let the host process find this module even if the package is installed elsewhere."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.fixture
def scripted():
    with contextlib.ExitStack() as stack:
        yield lambda *side, **options: stack.enter_context(contextlib.closing(Host(*side, **options)))


def test_it_says_its_ways_and_runs_them_until_it_is_asked_to_finish():
    with contextlib.closing(open_host(FLOOR, replace(CASES["small"], length=16))) as host:
        assert host.ways() == ["bare loop"]
        assert host.turn("bare loop") > 0
        assert host.turn("bare loop") > 0
        host.finish()
    host.close()
    with pytest.raises(TurnFailed, match="has ended"):
        host.turn("bare loop")


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("exit", r"^its process ended \(exit code 3\): what it said at last$"),
        ("die", r"^its process ended \(SIGABRT\)"),
        ("hang", "no answer within 0 s"),
    ],
)
def test_after_an_error_it_goes_on_and_after_the_end_of_its_process_it_says_how(scripted, way, message):
    host = scripted(__name__, script.__name__, limit=20)
    assert host.ways() == ["fine", "raise", "exit", "die", "hang"]
    with pytest.raises(TurnFailed, match=r"^ValueError: no$"):
        host.turn("raise")
    assert host.turn("fine") == 2.5
    host._limit = 0.2 if way == "hang" else 20
    with pytest.raises(TurnFailed, match=message):
        host.turn(way)
    with pytest.raises(TurnFailed, match="has ended"):
        host.turn("fine")


def test_a_library_that_cannot_be_imported_says_so(scripted):
    with pytest.raises(TurnFailed, match="No module named 'no_such_module'"):
        scripted("no_such_module", "open").ways()
