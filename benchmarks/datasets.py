"""Data sets through `gpuloader.DataLoader(dataset, ...)`, the bare floor, torch and Paddle.

Figures are microseconds a batch over whole epochs, the start of each epoch included; shuffled cases draw a
new order each epoch, but the floor, which has its order given. Workers are started by the turn that warms
up and persist. Every library has a process of its own (see `benchmarks.hosts`). Of each batch the consumer
reads one number, the very first: a loader that hands over memory which is not mapped yet, as torch's and
Paddle's workers do, pays for one page of it and not for all.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from typing import Any

from benchmarks import dataset_peers as peers
from benchmarks import dataset_samples
from benchmarks.dataset_floor import BareLoop, BareTake, touch, turn
from benchmarks.hosts import Factory, take_turns
from benchmarks.measure import Candidate, Result, Spread

TAKE = "bare loop of np.take"
BARE = "bare loop, one thread"


def arrays(repeats: int) -> Result:
    """Time batches of 100 out of 50,000 shuffled rows of 784 float32 with labels, data in memory.

    The floor takes the rows of a given order into the same two buffers, batch after batch.
    """
    return _result(
        "dataset of arrays, 100 x 784 float32, shuffled, no worker",
        TAKE,
        "6 times torch's TensorDataset, 3 times its __getitems__, 0.85 of the floor's rate",
        _turns(arrays_own, repeats, torch=peers.arrays_torch, paddle=peers.arrays_paddle),
    )


def arrays_own() -> dict[str, Candidate]:
    """The floor, and TensorDataset in the consumer's thread."""
    dataset = dataset_samples.flat_images()
    loaders = {TAKE: BareTake(dataset, 100)}
    if takes_datasets():
        from gpuloader import TensorDataset

        tensors = TensorDataset([dataset.images, dataset.labels])
        loaders["gpuloader, TensorDataset"] = _load(tensors, 100, shuffle=True)
    return _candidates(loaders)


def lists(repeats: int) -> Result:
    """Time digits that are lists of 784 Python floats, made into arrays sample by sample, shuffled, by 100.

    Nearly all of the time goes into the data set's own `np.array(...)`, in every row of the table. Lists do
    not fit the caches, and forked workers copy the pages that they count references on.
    """
    return _result(
        "dataset of lists, 100 x 784 floats made into float32, shuffled",
        BARE,
        "without workers 0.95 of the floor's rate, with 2 workers 1.7 times torch's with 2",
        _turns(lists_own, repeats, torch=peers.lists_torch, paddle=peers.lists_paddle),
    )


def lists_own() -> dict[str, Candidate]:
    """The floor, no workers, and two."""
    dataset = dataset_samples.digit_lists()
    loaders = {BARE: BareLoop(dataset, 100, shuffle=True)}
    if takes_datasets():
        loaders |= {_named(n): _load(dataset, 100, num_workers=n, shuffle=True) for n in (0, 2)}
    return _candidates(loaders)


def images(repeats: int) -> Result:
    """Time batches of 64 x 3 x 224 x 224 uint8 whose samples are views of an array: nothing but moving."""
    return _result(
        "dataset of images, 64 x 3 x 224 x 224 uint8, 2 workers",
        BARE,
        "10 times torch, 20 times Paddle",
        _turns(images_own, repeats, torch=peers.images_torch, paddle=peers.images_paddle),
    )


def images_own() -> dict[str, Candidate]:
    """The floor, no workers, and two."""
    dataset = dataset_samples.pictures()
    loaders = {BARE: BareLoop(dataset, 64, shuffle=False)}
    if takes_datasets():
        loaders |= {_named(n): _load(dataset, 64, num_workers=n) for n in (0, 2)}
    return _candidates(loaders)


def jpeg(repeats: int) -> Result:
    """Time batches of 32 JPEGs of 256 x 256, decoded by Pillow and resized to 224 x 224 x 3 uint8."""
    title, goal = "dataset of JPEGs, 32 decoded by Pillow, 2 workers", "1.1 times torch"
    if not importlib.util.find_spec("PIL"):
        print("left out: JPEGs need Pillow", file=sys.stderr)
        return Result(title, "µs a batch", None, goal, {})
    return _result(title, BARE, goal, _turns(jpeg_own, repeats, torch=peers.jpeg_torch))


def jpeg_own() -> dict[str, Candidate]:
    """The floor, and two workers."""
    dataset = dataset_samples.jpegs()
    loaders = {BARE: BareLoop(dataset, 32, shuffle=False)}
    if takes_datasets():
        loaders[_named(2)] = _load(dataset, 32, num_workers=2)
    return _candidates(loaders)


def waits(repeats: int) -> Result:
    """Time batches of 32 samples that each wait 2 ms, as for a disk or a server.

    Threads cost so little that there can be more of them than cores; torch's only workers are processes.
    """
    return _result(
        "dataset that waits, 32 samples of 2 ms",
        BARE,
        "16 threads 7 times torch's 2 workers",
        _turns(waits_own, repeats, torch=peers.waits_torch),
    )


def waits_own() -> dict[str, Candidate]:
    """The floor, and sixteen threads."""
    dataset = dataset_samples.Waits(640)
    loaders = {BARE: BareLoop(dataset, 32, shuffle=False)}
    if takes_datasets():
        loaders["gpuloader, 16 threads"] = _load(dataset, 32, num_workers=16, worker_type="thread")
    return _candidates(loaders)


def small(repeats: int) -> Result:
    """Time batches of 8 x 32 float32, 1 kB, from one worker: what handing a batch over costs."""
    return _result(
        "small batches, 8 x 32 float32, 1 worker",
        BARE,
        "at most 100",
        _turns(small_own, repeats, torch=peers.small_torch),
    )


def small_own() -> dict[str, Candidate]:
    """The floor, and one worker."""
    dataset = dataset_samples.Rows(8_000)
    loaders = {BARE: BareLoop(dataset, 8, shuffle=False)}
    if takes_datasets():
        loaders[_named(1)] = _load(dataset, 8, num_workers=1)
    return _candidates(loaders)


def takes_datasets() -> bool:
    """Return whether this gpuloader loads data sets; a line on stderr says if it does not."""
    import gpuloader

    try:
        gpuloader.DataLoader([1, 2, 3], places="cpu")
    except TypeError:
        print("left out: this gpuloader takes no data sets", file=sys.stderr)
        return False
    return True


def _load(dataset: Any, batch_size: int, **options: Any) -> Any:
    from gpuloader import DataLoader

    workers = options.get("num_workers", 0)
    return DataLoader(dataset, places="cpu", batch_size=batch_size, persistent_workers=workers > 0, **options)


def _named(workers: int) -> str:
    return f"gpuloader, {workers or 'no'} worker{'' if workers == 1 else 's'}"


def _candidates(loaders: dict[str, Any]) -> dict[str, Candidate]:
    return {name: partial(turn, loader, touch) for name, loader in loaders.items()}


def _turns(own: Factory, repeats: int, **others: Factory) -> dict[str, Spread]:
    """Measure ours and those of the named libraries that are installed."""
    installed = [factory for library, factory in others.items() if importlib.util.find_spec(library)]
    return take_turns([own, *installed], repeats)


def _result(case: str, floor: str, goal: str, rows: dict[str, Spread]) -> Result:
    return Result(case, "µs a batch", floor, goal, rows)
