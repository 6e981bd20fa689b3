"""A library in its own process: its figures, its errors, and how it ends."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.hosts import Host, TurnFailed
from benchmarks.peers import FLOOR
from benchmarks.peers.cases import CASES
from benchmarks.peers.running import open_host

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs groups of processes")


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
    hosts = []

    def start(**options):
        hosts.append(Host(__name__, script.__name__, **options))
        assert hosts[-1].ways() == ["fine", "raise", "exit", "die", "hang"]
        return hosts[-1]

    yield start
    for host in hosts:
        host.close()


def test_it_says_its_ways_and_runs_them_until_it_is_asked_to_finish():
    host = open_host(FLOOR, replace(CASES["small"], length=16))
    try:
        assert host.ways() == ["bare loop"]
        assert host.turn("bare loop") > 0
        assert host.turn("bare loop") > 0
        host.finish()
    finally:
        host.close()
    host.close()
    with pytest.raises(TurnFailed, match="has ended"):
        host.turn("bare loop")


def test_after_an_error_it_goes_on(scripted):
    host = scripted()
    with pytest.raises(TurnFailed, match=r"^ValueError: no$"):
        host.turn("raise")
    assert host.turn("fine") == 2.5


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("exit", r"^its process ended \(exit code 3\): what it said at last$"),
        ("die", r"^its process ended \(SIGABRT\)"),
    ],
)
def test_when_its_process_ends_the_error_says_how(scripted, way, message):
    host = scripted()
    with pytest.raises(TurnFailed, match=message):
        host.turn(way)
    with pytest.raises(TurnFailed, match="has ended"):
        host.turn("fine")


def test_one_that_hangs_is_ended_at_the_limit():
    host = Host(__name__, script.__name__, limit=20)
    try:
        host.ways()
        host._limit = 0.2
        with pytest.raises(TurnFailed, match="no answer within 0 s"):
            host.turn("hang")
    finally:
        host.close()


def test_a_library_that_cannot_be_imported_says_so():
    host = Host("no_such_module", "open")
    try:
        with pytest.raises(TurnFailed, match="No module named 'no_such_module'"):
            host.ways()
    finally:
        host.close()
