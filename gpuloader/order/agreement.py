"""What ranks can agree on: which samplers yield the same indices on every rank, and which divide already."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.order.batch_sampler import BatchSampler, DistributedBatchSampler
from gpuloader.order.computed import as_indices
from gpuloader.order.order import InOrder, Mapped, Order
from gpuloader.order.sampler import RandomSampler, Sampler, SequenceSampler

_DIVIDING = (
    ("num_replicas", "rank"),
    ("nranks", "local_rank"),
    ("num_processes", "process_index"),
    ("world_size", "rank"),
    ("_world_size", "_rank"),
)
"""Attributes of samplers that yield one rank's indices: PyTorch's, Paddle's, Accelerate's and others'."""

_MODULES = ("torch.utils.data", "paddle.io")


class Listed(Sampler[int]):
    """A fixed list of indices, the same in every epoch.

    Examples
    --------
    >>> Listed([4, 2]).order(seed=0, epoch=0).slice(0, 2).tolist()
    [4, 2]
    """

    def __init__(self, indices: Sequence[int] | NDArray[np.int64]) -> None:
        super().__init__()
        self._order = Mapped(InOrder(len(indices)), as_indices("sampler", indices))

    def order(self, seed: int, epoch: int) -> Order:  # noqa: ARG002
        """Return the listed indices."""
        return self._order


def divides(sampler: object) -> bool:
    """Return whether a sampler, or one that it reads from, yields the indices of one rank.

    >>> divides(DistributedBatchSampler("abc", 2)), divides([0, 1, 2])
    (True, False)
    """
    for _ in range(3):  # a batch sampler, its sampler, and one more that wraps it
        if isinstance(sampler, DistributedBatchSampler) or any(
            all(hasattr(sampler, name) for name in names) for names in _DIVIDING
        ):
            return True
        inner = getattr(sampler, "sampler", None)
        sampler = getattr(sampler, "batch_sampler", None) if inner is None else inner
    return False


def find_shared(sampler: object, batch_sampler: object) -> Sampler[Any] | None:
    """Return the sampler whose order ranks can divide; None if they have to iterate over the user's.

    Each rank iterates over a batch sampler, and over a sampler with ``set_epoch``, which is how a sampler
    tells that its order depends on the epoch alone.

    Raises
    ------
    ValueError
        Ranks might not agree on the indices, or the samplers divide them already.

    >>> find_shared(None, BatchSampler(sampler=[2, 0, 1], batch_size=2)).order(0, 0).slice(0, 3).tolist()
    [2, 0, 1]
    """
    name = type(sampler if batch_sampler is None else batch_sampler).__name__
    if divides(batch_sampler) or divides(sampler):
        raise ValueError(f"{name} already divides the dataset among ranks: pass it or shard, not both")
    grouped = sampler if batch_sampler is None else _find_grouped(batch_sampler)
    source = as_source(grouped)
    if source is not None:
        return source
    given = sampler if batch_sampler is None else batch_sampler
    draws = isinstance(getattr(given, "sampler", given), _find_drawing())
    tells = batch_sampler is not None or callable(getattr(sampler, "set_epoch", None))
    if isinstance(given, Iterator) or draws or not tells:
        raise ValueError(
            f"shard needs an order that is the same on every rank, which {name} does not guarantee: pass "
            "shuffle=True with a seed, a list of indices as sampler, one of gpuloader's samplers, a sampler "
            "with a method set_epoch, or a batch_sampler that yields the same batches on every rank"
        )
    return None


def as_source(sampler: object) -> Sampler[Any] | None:
    """Return a sampler with an order that every rank computes alike, or None if there is none.

    Indices in anything with a length that can be indexed are listed once, here.

    >>> type(as_source(range(3))).__name__, as_source(iter([1, 2]))
    ('Listed', None)
    """
    if isinstance(sampler, Sampler) and find_order(sampler, 0, 0) is not None:
        return sampler
    if type(sampler) in find_classes("SequentialSampler", "SequenceSampler"):
        return SequenceSampler(getattr(sampler, "data_source"))  # noqa: B009 - another package's attribute
    if isinstance(sampler, str | bytes | Mapping) or not isinstance(sampler, Sized):
        return None
    entries: Any = sampler
    if isinstance(entries, Sequence | np.ndarray) or hasattr(entries, "__array__"):
        return Listed(entries)
    if not hasattr(entries, "__getitem__"):
        return None
    return Listed([entries[position] for position in range(len(entries))])


def find_order(sampler: object, seed: int, epoch: int) -> Order | None:
    """Return the order of a sampler of single indices, or None if it has to be iterated.

    A `BatchSampler` that is passed as `sampler` yields lists of indices.

    >>> find_order(BatchSampler("abc"), 0, 0) is None, len(find_order(SequenceSampler("abc"), 0, 0))
    (True, 3)
    """
    if isinstance(sampler, Sampler) and not isinstance(sampler, BatchSampler):
        return sampler.order(seed, epoch)
    return None


def _find_grouped(batch_sampler: object) -> object:
    """Return the sampler whose indices a batch sampler groups without changing them, or None."""
    kinds: list[Any] = [BatchSampler, *find_classes("BatchSampler")]
    for kind in kinds:
        if isinstance(batch_sampler, kind) and type(batch_sampler).__iter__ is kind.__iter__:
            # Paddle's planner may make it group several batches into one.
            is_plain = getattr(batch_sampler, "_acc_steps", 1) == 1
            return getattr(batch_sampler, "sampler", None) if is_plain else None
    return None


def _find_drawing() -> tuple[type[Any], ...]:
    """Return the samplers that draw their indices themselves, so that each rank would draw others."""
    names = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
    return (RandomSampler, *find_classes(*names))


def find_classes(*names: str) -> tuple[type[Any], ...]:
    """Return the classes of these names in PyTorch and Paddle, if those are imported.

    >>> find_classes("NoSuchSampler")
    ()
    """
    found = (getattr(sys.modules.get(module), name, None) for module in _MODULES for name in names)
    return tuple(kind for kind in found if isinstance(kind, type))
