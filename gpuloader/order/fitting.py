"""Checks that a user's samplers fit the dataset, and the options that they are passed as."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from gpuloader.base.errors import BadType, BadValue
from gpuloader.base.once import refuse_read
from gpuloader.order.agreement import find_classes, find_order
from gpuloader.order.bucket_sampler import BucketSampler
from gpuloader.order.mixed import MixSampler
from gpuloader.order.sampler import Sampler, SequenceSampler

_OF_INDICES = ("SequentialSampler", "SequenceSampler", "RandomSampler", "SubsetRandomSampler")
_OF_DRAWN_INDICES = ("WeightedRandomSampler", "DistributedSampler")


class StoredOrder(SequenceSampler):
    """The indices of a dataset in order, with which a loader fills its cache.

    It fits a `MixDataset` too: a cache holds every sample once, and is read in the order of the mix.
    """


def check_samplers(
    dataset: Any,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Any] | None,
    batch_size: int | None,
) -> None:
    """Check the samplers that were passed to a loader of a map-style dataset.

    Raises
    ------
    TypeError
        One is not iterable. Or a sampler of batches was passed as `sampler`, or one of single indices as
        `batch_sampler`. Or the dataset is a `MixDataset`, whose weights would be lost.
    ReaderError
        One is a generator that has been read already.
    ValueError
        A `BucketSampler` has another number of lengths than the dataset has samples.

    Examples
    --------
    >>> check_samplers("abc", None, BucketSampler([3, 1], 2), 1)
    Traceback (most recent call last):
    gpuloader.base.errors.BadValue: the BucketSampler has 2 lengths, but the dataset has 3 samples: pass t...
    """
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is None:
            continue
        if not isinstance(value, Iterable):
            raise BadType(f"{name} must be iterable, got {type(value).__name__}")
        refuse_read(value, f"the {name} is", "pass a list, or an object whose __iter__ makes a new iterator")
        _check_order(name, value, dataset)
        if isinstance(value, BucketSampler):
            _check_lengths(value, dataset)
    if isinstance(sampler, BucketSampler) and batch_size is not None:
        raise BadType(
            f"a {type(sampler).__name__} yields whole batches: pass it as batch_sampler, without a batch_size"
        )
    if _yields_indices(batch_sampler):
        raise BadType(
            f"a {type(batch_sampler).__name__} yields single indices: pass it as sampler, with a batch_size"
        )


def _check_order(name: str, given: object, dataset: Any) -> None:
    """Raise `TypeError` if a dataset that has a mixed order of its own would be read in another one."""
    default = getattr(dataset, "default_sampler", None)
    own = default(False) if callable(default) else None
    if not isinstance(own, MixSampler) or isinstance(given, StoredOrder):
        return
    innermost: Any = given
    for _ in range(3):  # a batch sampler, its sampler, and one more that wraps it
        if own.mixes_like(innermost):
            return
        inner = getattr(innermost, "sampler", None)
        innermost = getattr(innermost, "batch_sampler", None) if inner is None else inner
    raise BadType(
        f"the {name}, of type {type(given).__name__}, would read the {type(dataset).__name__} without its "
        "weights: leave it out, because the loader reads a mix in an order of its own, which shuffle=True "
        "shuffles and shard divides; for an order of your own, read ConcatDataset(mix.datasets)"
    )


def _check_lengths(sampler: BucketSampler, dataset: Any) -> None:
    count = len(dataset) if isinstance(dataset, Sized) else len(sampler.lengths)
    if len(sampler.lengths) != count:
        raise BadValue(
            f"the {type(sampler).__name__} has {len(sampler.lengths)} lengths, but the dataset has {count} "
            "samples: pass the length of each sample, in the dataset's order; for a Subset, "
            "lengths[subset.indices]"
        )


def _yields_indices(sampler: object) -> bool:
    """Return whether this is surely a sampler of single indices, not of batches."""
    if type(sampler) in find_classes(*_OF_INDICES, *_OF_DRAWN_INDICES):
        return True
    return isinstance(sampler, Sampler) and find_order(sampler, 0, 0) is not None
