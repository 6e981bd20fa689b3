"""The cases with Grain, as chains of `MapDataset` and `IterDataset`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.measure import Endless
from benchmarks.peers import Loader, workers
from benchmarks.peers.cases import Case


def open_loaders(case: Case) -> dict[str, Loader]:
    """Return chains that batch before they read, without threads for data in memory, as Grain advises."""
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():  # Grain's users parse them when their program starts
        flags.FLAGS(["bench"])
    dataset = case.make(case.length)
    match case.name:
        case "arrays":
            rows = grain.MapDataset.range(case.length).shuffle(seed=1).batch(case.size)
            return {
                "no thread": _repeat(case, _chain(case, dataset)),
                "batches of indices": _repeat(case, rows.map(dataset.take)),
            }
        case "lists" | "images":
            return _with_and_without(case, dataset, 2)
        case "small":
            return _with_and_without(case, dataset, 1)
        case "jpeg":
            return {
                workers(2, "thread"): _read_ahead(_chain(case, dataset), 2),
                workers(2): _repeat(case, _chain(case, dataset), processes=2),
            }
        case "waits":
            return {workers(16, "thread"): _read_samples_ahead(case, dataset, 16)}
        case "stream" | "stream_lists":
            return {"IterDataset": _read(dataset).batch(case.size, batch_fn=_stack)}
        case "ready" | "ready_images":
            return {"IterDataset": _read(dataset)}
    return {}


def touch(batch: Any) -> object:
    """Read the first number of the first array."""
    return batch[0].item(0)


def _chain(case: Case, dataset: Any) -> Any:
    import grain

    chain = grain.MapDataset.source(dataset)
    if case.shuffle:
        chain = chain.shuffle(seed=1)
    return chain.batch(case.size)


def _with_and_without(case: Case, dataset: Any, processes: int) -> dict[str, Loader]:
    chain = _chain(case, dataset)
    return {"no thread": _repeat(case, chain), workers(processes): _repeat(case, chain, processes)}


def _repeat(case: Case, chain: Any, processes: int = 0) -> Endless:
    """Read all epochs from one iterator, because the worker processes end with it."""
    import grain

    endless = chain.repeat().to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    if processes:
        endless = endless.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes))
    return Endless(iter(endless), case.batches, ahead=3 * processes)


def _read_ahead(chain: Any, threads: int) -> Any:
    """Make whole batches in threads, prefetching two per thread."""
    import grain

    return chain.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads))


def _read_samples_ahead(case: Case, dataset: Any, threads: int) -> Any:
    """Read single samples in threads, two batches ahead, and batch them afterwards."""
    import grain

    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * case.size)
    return grain.MapDataset.source(dataset).to_iter_dataset(options).batch(case.size)


def _stack(samples: Any) -> Any:
    images, labels = zip(*samples, strict=True)
    return np.asarray(images, np.float32), np.asarray(labels)


def _read(stream: Any) -> Any:
    import grain

    class Position(grain.DatasetIterator):
        def __init__(self) -> None:
            super().__init__()
            self._items: Iterator[Any] = iter(stream)
            self._taken = 0

        def __next__(self) -> Any:
            self._taken += 1
            return next(self._items)

        def get_state(self) -> dict[str, int]:
            return {"taken": self._taken}

        def set_state(self, state: dict[str, int]) -> None:
            self._items = iter(stream)
            self._taken = 0
            while self._taken < state["taken"]:
                next(self)

    class Iterated(grain.IterDataset):
        def __iter__(self) -> Position:
            return Position()

    return Iterated()
