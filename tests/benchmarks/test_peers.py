"""Every installed library yields the same batches as the floor."""

import json
import subprocess
import sys

import pytest

from benchmarks.peers import FLOOR, OURS, PEERS, Peer
from benchmarks.peers.cases import CASES

# Runs in a separate process per library, because importing several into one is asking for trouble. The floor
# is NumPy alone and shares ours: making the pictures takes longer than reading them.
READ = """
import importlib.util, json, sys
from dataclasses import replace
from benchmarks.peers.cases import CASES
from benchmarks.peers import find_peer

def read_cases(peer):
    loading, read = peer.load(), {}
    for case in CASES.values():
        if case.name in peer.cases and (case.needs is None or importlib.util.find_spec(case.needs)):
            size = case.batch_size and 4
            loaders = loading.open_loaders(replace(case, batch_size=size, length=2 * (size or 1)))
            read[case.name] = {
                way: [float(loading.touch(batch)) for batch in loader] for way, loader in loaders.items()
            }
            del loaders
    return read

print(json.dumps([read_cases(find_peer(name)) for name in sys.argv[1:]]), file=sys.__stdout__)
"""


def read_all(*peers):
    command = [sys.executable, "-c", READ, *(peer.name for peer in peers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def floor_and_ours():
    return read_all(FLOOR, OURS)


@pytest.mark.parametrize("peer", [OURS, *PEERS.values()], ids=lambda peer: peer.name)
def test_all_cases_give_the_same_batches(peer, floor_and_ours):
    if peer.version() is None:
        pytest.skip(f"{peer.module} is not installed")
    floor, ours = floor_and_ours
    [read] = [ours] if peer is OURS else read_all(peer)
    assert set(read) == {name for name in floor if name in peer.cases}
    for name, ways in read.items():
        assert ways, name
        (expected, *_) = floor[name].values()
        for way, firsts in ways.items():
            assert len(firsts) == 2, (name, way)
            decodes = name == "jpeg" and peer.name == "tensorflow"
            if not CASES[name].shuffle and not decodes:
                assert firsts == pytest.approx(expected, rel=1e-6), (name, way)


def test_versions_are_those_installed_and_every_library_has_its_file():
    assert FLOOR.version() == __import__("numpy").__version__
    assert Peer("none", "no_such_module", ("no-such",)).version() is None
    assert Peer("built in", "json", ("no-such",)).version() == "unknown"
    for peer in (FLOOR, OURS, *PEERS.values()):
        assert peer.cases <= set(CASES)
        loading = peer.load()
        assert callable(loading.open_loaders)
        assert callable(loading.touch)
