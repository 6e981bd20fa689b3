"""The end of an epoch, and the error for one that is empty because an earlier one has read its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpuloader.base.errors import ReaderError
from gpuloader.base.once import find_kept, may_start_over
from gpuloader.loader.state import Progress
from gpuloader.order.agreement import find_classes
from gpuloader.order.batching import Batching
from gpuloader.order.sampler import Sampler
from gpuloader.sources.dataset import ChainDataset

OF_DATASETS = (
    "pass a generator function to DataLoader.from_generator, or an object whose __iter__ makes a new iterator"
)
OF_BATCHES = "pass a loader, a list, or an object whose __iter__ makes a new iterator"
_OF_SAMPLERS = "pass a list, or an object whose __iter__ makes a new iterator"
_OF_CLASSES = "make a new iterator in every call, for example by writing __iter__ with yield"
_OF_READERS = "make a new iterator in every call, for example by writing the reader with yield"


def end_epoch(progress: Progress, find: Callable[[], str]) -> None:
    """Record that an epoch is over.

    Parameters
    ----------
    progress : Progress
        What the user has received of the epoch.
    find : callable
        Returns what can be read only once, and what to do instead; empty if the source starts over.

    Raises
    ------
    ReaderError
        It is not the first epoch, nothing was received, and its source can be read only once.
    """
    progress.end()
    if not progress.epoch or progress.batches or progress.beyond or progress.base or progress.own is not None:
        return
    if problem := find():
        raise ReaderError(f"epoch {progress.epoch} has no samples, because {problem}") from None


def find_spent(dataset: Any, batching: Batching, *, drops: bool) -> str:
    """Return which part of a loader's source can be read only once; see `end_epoch`.

    `drops` is whether the epoch may have had samples, but too few for a step.
    """
    if batching.iterable:
        is_chain = isinstance(dataset, (ChainDataset, *find_classes("ChainDataset")))
        parts = dataset.datasets if is_chain else []
        found = (_describe("the dataset", one, OF_DATASETS, drops) for one in (dataset, *parts))
        return next(filter(None, found), "")
    sampler = batching.sampler
    name = "sampler" if sampler is not None else "batch_sampler"
    for what, one in _inside(f"the {name}", batching.batch_sampler if sampler is None else sampler):
        if problem := _describe(what, one, _OF_SAMPLERS, drops):
            return problem
    return ""


def find_spent_batches(batches: Any, *, drops: bool) -> str:
    """Return that batches can be read only once, if so; see `find_spent`."""
    return _describe("the iterable of batches", batches, OF_BATCHES, drops)


def find_spent_reader(reader: Callable[[], Any], *, drops: bool) -> str:
    """Return that a reader returns the same iterator in every call, if so; see `find_spent`."""
    kept = find_kept(reader)
    if kept is None or (drops and may_start_over(kept)):
        return ""
    return f"the reader returns the same {type(kept).__name__} every time, {_READ}: {_OF_READERS}"


_READ = "and an earlier epoch has read it"


def _inside(what: str, sampler: Any) -> Iterator[tuple[str, Any]]:
    """Yield a sampler, what it reads from, and so on, each with a name."""
    for _ in range(3):  # a batch sampler, its sampler, and one more that wraps it
        if sampler is None or getattr(type(sampler), "__iter__", None) is Sampler.__iter__:
            return  # it only computes its order
        yield what, sampler
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, Iterator):
            yield f"the generator of {what}", generator
        what, sampler = f"the sampler of {what}", getattr(sampler, "sampler", None)


def _describe(what: str, source: Any, instead: str, drops: bool) -> str:
    """Return that a source is an iterator, or returns the same one every time; empty if it starts over."""
    kind = type(source).__name__
    kept = find_kept(lambda: iter(source))
    if kept is None or (drops and may_start_over(kept)):
        return ""
    if kept is source:
        return f"{what} is a {kind}, which can be read only once, {_READ}: {instead}"
    return f"{kind}.__iter__ returns the same {type(kept).__name__} every time, {_READ}: {_OF_CLASSES}"
