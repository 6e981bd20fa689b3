"""Every installed library yields the same batches as the floor."""

import json
import subprocess
import sys

import pytest

from benchmarks.peers import FLOOR, OURS, PEERS, Peer
from benchmarks.peers.cases import CASES

# Runs in a separate process per library, because importing several into one is asking for trouble.
READ = """
import importlib.util, json, sys
from dataclasses import replace
from benchmarks.peers.cases import CASES
from benchmarks.peers import find_peer

peer = find_peer(sys.argv[1])
loading, read = peer.load(), {}
for case in CASES.values():
    if case.name in peer.cases and (case.needs is None or importlib.util.find_spec(case.needs)):
        size = case.batch_size and 4
        loaders = loading.open_loaders(replace(case, batch_size=size, length=2 * (size or 1)))
        read[case.name] = {
            way: [float(loading.touch(batch)) for batch in loader] for way, loader in loaders.items()
        }
        del loaders
print(json.dumps(read), file=sys.__stdout__)
"""


def read_all(peer):
    done = subprocess.run(
        [sys.executable, "-c", READ, peer.name], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def floor():
    return read_all(FLOOR)


@pytest.mark.parametrize("peer", [OURS, *PEERS.values()], ids=lambda peer: peer.name)
def test_all_cases_give_the_same_batches(peer, floor):
    if peer.version() is None:
        pytest.skip(f"{peer.module} is not installed")
    read = read_all(peer)
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
