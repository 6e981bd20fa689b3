"""What a `DataLoader` is asked, checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuloader.base.checks import check_count, check_word
from gpuloader.base.platforms import usable_cores
from gpuloader.collate.form import Collation, check_fill
from gpuloader.devices.base import Device
from gpuloader.fetch.worker_options import WorkerOptions
from gpuloader.fields.spec import FeedSpec
from gpuloader.sources.dataset import IterableDataset
from gpuloader.sources.frameworks import is_iterable_only
from gpuloader.transforms.program import Programmer, Transform
from gpuloader.watch.tuning import BUDGET

AUTO = "auto"
METHODS = ("fork", "forkserver", "spawn")
_MOST_SEED = 2**64 - 1
_OWN_BATCHES = "batches that the loader puts together itself: not beside collate_fn or batch_size=None"


def check_workers(
    *,
    num_workers: int | str,
    worker_type: str,
    prefetch_factor: int,
    prefetch: int | str = 1,
    memory_budget: int | None = None,
    iterable: bool = False,
    in_order: bool,
    timeout: float,
    worker_init_fn: Callable[[int], object] | None,
    persistent_workers: bool,
    start_method: str | None,
    on_worker_death: str,
) -> WorkerOptions:
    """Return what was asked of workers.

    Raises
    ------
    ValueError
        A number is out of range, or a word is none of those known.
    TypeError
        ``worker_init_fn`` cannot be called.

    >>> check_workers(
    ...     num_workers=2, worker_type="thread", prefetch_factor=2, in_order=True, timeout=0,
    ...     worker_init_fn=None, persistent_workers=False, start_method=None, on_worker_death="raise",
    ... ).count
    2
    """
    tuned, deepens = num_workers == AUTO, prefetch == AUTO
    if tuned and iterable:
        raise ValueError(
            "num_workers='auto' needs a data set with indices: what an iterable one gives depends on how "
            "many workers read it"
        )
    if tuned:
        num_workers = 1
    if isinstance(num_workers, bool) or not isinstance(num_workers, int | np.integer) or num_workers < 0:
        raise ValueError(f"num_workers must be 'auto' or an integer of 0 or more, got {num_workers!r}")
    if memory_budget is not None and not (tuned or deepens):
        raise ValueError("memory_budget bounds what num_workers='auto' and prefetch='auto' take; give one")
    check_word("worker_type", worker_type, ("process", "thread"))
    check_word("on_worker_death", on_worker_death, ("raise", "respawn"))
    if start_method is not None:
        check_word("start_method", start_method, METHODS)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < math.inf:
        raise ValueError(f"timeout must be a number of seconds of 0 or more, got {timeout!r}")
    if worker_init_fn is not None and not callable(worker_init_fn):
        raise TypeError(f"worker_init_fn must be callable, got {type(worker_init_fn).__name__}")
    if persistent_workers and not num_workers:
        raise ValueError("persistent_workers needs num_workers of 1 or more")
    return WorkerOptions(
        int(num_workers),
        worker_type,
        check_count("prefetch_factor", prefetch_factor),
        bool(in_order),
        float(timeout),
        worker_init_fn,
        bool(persistent_workers),
        start_method,
        on_worker_death == "respawn",
        most_workers() if tuned else 0,
        deepens,
        BUDGET if memory_budget is None else check_count("memory_budget", memory_budget),
    )


def most_workers() -> int:
    """Return how many workers ``num_workers='auto'`` may come to: some wait for a disk, not for a core.

    >>> 4 <= most_workers() <= 32
    True
    """
    return min(max(4 * usable_cores(), 4), 32)


def check_collation(
    *,
    feeds: tuple[FeedSpec, ...] | None,
    collate_fn: Callable[[Any], Any] | None,
    batched: bool,
    ragged: Iterable[str],
    pad: Mapping[str, float] | None,
    transforms: Sequence[Transform] = (),
    on_host: bool = True,
) -> Collation:
    """Return what was asked of collation.

    Raises
    ------
    ValueError
        Padded or ragged fields with a ``collate_fn``, without batches, or in both ways at once; a field
        that the feeds do not declare of level 1.
    TypeError
        ``collate_fn`` cannot be called, or the fields are not names.
    """
    if collate_fn is not None and not callable(collate_fn):
        raise TypeError(f"collate_fn must be callable, got {type(collate_fn).__name__}")
    if isinstance(ragged, str) or not isinstance(ragged, Iterable):
        raise TypeError(f"ragged must be a list of field names, got {ragged!r}")
    names, pads = frozenset(ragged), _check_pads(pad)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"ragged must be a list of field names, got {ragged!r}")
    if (names or pads) and (collate_fn is not None or not batched):
        raise ValueError(f"ragged and pad are for {_OWN_BATCHES}")
    if both := sorted(names & pads.keys()):
        raise ValueError(f"the fields {both} are both in ragged and in pad; choose one")
    if feeds is not None:
        if names:
            raise ValueError("with a feed_list, declare ragged fields by lod_level=1 instead")
        levels = {feed.name: feed.lod_level for feed in feeds}
        if wrong := sorted(name for name in pads if levels.get(name) != 1):
            raise ValueError(f"pad names {wrong}, which the feed_list does not declare with lod_level=1")
        for feed in feeds:
            if feed.name in pads:
                check_fill(pads[feed.name], feed.dtype)
    for transform in transforms:
        if not all(hasattr(transform, name) for name in ("field", "draws", "bind", "draw", "check")):
            got = type(transform).__name__
            if isinstance(transform, type):
                got = f"the class {transform.__name__}, not one made of it"
            raise TypeError(f"expected a transform, got {got}; see gpuloader.transforms")
    if transforms and (collate_fn is not None or not batched):
        raise ValueError(f"transforms are for {_OWN_BATCHES}")
    programmer = None
    if transforms:
        from gpuloader.transforms.pictures import fuse  # whose kernels take their time to import

        programmer = Programmer(fuse(transforms))
    return Collation(feeds, collate_fn, batched, names, pads, programmer, on_host)


def all_on_host(devices: Sequence[Device], transforms: Sequence[Transform]) -> bool:
    """Return whether batches land on hosts alone.

    Raises
    ------
    ValueError
        With transforms: some do and some do not, so there would be two places to run them at.
    """
    direct = {device.direct for device in devices}
    if transforms and len(direct) > 1:
        raise ValueError("transforms run where batches land: give places that are all GPUs, or all hosts")
    return direct == {True}


def check_dataset(dataset: object) -> bool:
    """Return whether a data set is iterable rather than indexed.

    Raises
    ------
    TypeError
        It is neither.

    >>> check_dataset([1, 2]), check_dataset(iter([1, 2]))
    (False, True)
    """
    if isinstance(dataset, IterableDataset) or is_iterable_only(dataset):
        return True
    if hasattr(dataset, "__getitem__"):
        return False
    if isinstance(dataset, Iterable):
        return True
    raise TypeError(
        f"a data set has __getitem__ and __len__, or __iter__; got {type(dataset).__name__}, which has "
        "neither (for a generator function use DataLoader.from_generator)"
    )


def check_seed(seed: object) -> int | None:
    """Return a seed of 64 bits, or None where none is given."""
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= _MOST_SEED:
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1, got {seed!r}")
    return int(seed)


def check_flags(**flags: object) -> None:
    """Raise `TypeError` for a flag that is neither True nor False.

    >>> check_flags(shuffle=True)
    """
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, got {value!r}")


def _check_pads(pad: object) -> dict[str, float]:
    if pad is None:
        return {}
    if not isinstance(pad, Mapping) or not all(isinstance(name, str) for name in pad):
        raise TypeError(f"pad must map field names to what to fill up with, got {pad!r}")
    for name, fill in pad.items():
        if not isinstance(fill, int | float | np.number):
            raise TypeError(f"pad must fill up field {name!r} with a number, got {fill!r}")
    return dict(pad)
