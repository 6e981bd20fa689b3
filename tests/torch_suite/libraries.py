"""The two libraries that the cases run on, behind the same names: those of ``torch.utils.data``."""

import contextlib
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch.utils.data

import gpuloader.torch
from tests.torch_suite.differences import DIFFERENCES


@dataclass(frozen=True)
class Library:
    """A library; every name of ``torch.utils.data`` is an attribute."""

    name: str  # 'gpuloader' or 'torch'
    module: ModuleType  # where the names come from

    def __getattr__(self, name):
        return getattr(self.module, name)

    def differs(self, key):
        """Return whether this library behaves in gpuloader's way where the two differ on purpose."""
        assert key in DIFFERENCES, f"describe {key!r} in differences.py"
        return self.name == "gpuloader"

    @contextlib.contextmanager
    def raises(self, kind, match=None):
        """Expect that the user's own code raises `kind`; gpuloader adds to its notes where it was raised."""
        with pytest.raises(kind, match=match) as caught:
            yield
        if self.name == "gpuloader":
            assert any(note.startswith("gpuloader: ") for note in caught.value.__notes__)


# PyTorch waits this long, in seconds, for a worker that is busy or dead before it ends it; 5 by default.
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.5

OURS = pytest.param(Library("gpuloader", gpuloader.torch), id="gpuloader")
# PyTorch warns of many workers, of page-locked memory without a GPU, and of what it deprecates.
THEIRS = pytest.param(
    Library("torch", torch.utils.data), id="torch", marks=pytest.mark.filterwarnings("ignore")
)
LIBRARIES = [OURS, THEIRS]


def on_both(ours, theirs):
    """Return parameters of `lib` and another one: all of `ours` here, and fewer on the judge, `theirs`."""
    return [
        pytest.param(*lib.values, one, id=f"{lib.id}-{number}", marks=lib.marks)
        for lib, some in ((OURS, ours), (THEIRS, theirs))
        for number, one in enumerate(some)
    ]


def assert_same_on_both(program):
    """Assert that a program, seeded alike, gives the same on gpuloader and on PyTorch."""
    found = []
    for one in LIBRARIES:
        torch.manual_seed(0)
        found.append(program(*one.values))
    assert found[0] == found[1]
