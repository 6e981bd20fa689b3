"""A library that is made up: its loaders give what a test wants, or fail as it wants."""

from gpuloader.bench.cases import CASES
from gpuloader.bench.peers import Peer
from gpuloader.bench.sides import Here


class FakeLoading:
    """What the file of a library has, with loaders that were given."""

    def __init__(self, loaders):
        self.loaders = loaders

    def open_loaders(self, case):
        if isinstance(self.loaders, Exception):
            raise self.loaders
        return self.loaders

    def touch(self, batch):
        return batch[0]


class FakePeer:
    """A library that is installed or not, and can do some cases."""

    def __init__(self, name, loaders, version="1.0", cases=frozenset(CASES)):
        self.name = name
        self.cases = cases
        self.distributions = (name,)
        self._loading = FakeLoading(loaders)
        self._version = version

    def version(self):
        return self._version

    def load(self):
        return self._loading


class Failing:
    """A loader whose epochs end in an error, from the given one on."""

    def __init__(self, error, good=0):
        self.error = error
        self.good = good

    def __iter__(self):
        if self.good:
            self.good -= 1
            return iter([[1.0]] * 4)
        raise self.error


def open_briefly(peer: Peer, case):
    """Open a library's side here, with turns of one epoch."""
    return Here(peer, case, least=0.0)
