"""A fake library whose loaders yield or raise what a test chooses."""

from benchmarks.peers import Peer
from benchmarks.peers.cases import CASES
from benchmarks.peers.running import open_peer


class FakePeer:
    """A library that may or may not be installed, for some of the cases, and the functions of its file."""

    def __init__(self, name, loaders, version="1.0", cases=frozenset(CASES)):
        self.name = name
        self.cases = cases
        self.distributions = (name,)
        self.loaders = loaders
        self.version = lambda: version
        self.load = lambda: self

    def open_loaders(self, case):
        if isinstance(self.loaders, Exception):
            raise self.loaders
        return self.loaders

    def touch(self, batch):
        return batch[0]


class Failing:
    """A loader whose epochs raise an error after `good` epochs."""

    def __init__(self, error, good=0):
        self.error = error
        self.good = good

    def __iter__(self):
        if self.good:
            self.good -= 1
            return iter([[1.0]] * 4)
        raise self.error


def open_briefly(peer: Peer, case):
    """Open a library's side in this process, with turns of one epoch."""
    return open_peer(peer, case, least=0.0)
