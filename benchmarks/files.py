"""Parquet files: `gpuloader.ParquetDataset`, the bare loop over Arrow's batches, and torch.

Figures are microseconds per batch of 256 rows, over whole epochs. The file has 200,000 rows of 64 float32
(a fixed-size list) and an int64, in row groups of 20,000, and is read from the page cache. Each library has
its own process (see `benchmarks.hosts`). The consumer reads the first number of each batch.
"""

from __future__ import annotations

import atexit
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hosts import take_turns
from benchmarks.measure import Candidate, Result, turn
from benchmarks.peers.floor import touch

BATCH, ROWS, GROUP, WIDTH = 256, 200_000, 20_000, 64
BARE = "pyarrow's iter_batches, bare loop"
COPIED = "the same, columns copied into one buffer each"


def parquet(repeats: int) -> Result:
    """Time batches of 256 rows; the goal is to be no slower than a bare loop that copies the same bytes."""
    title = "Parquet, batches of 256 x 64 float32 with labels"
    goal = "the copying loop's time; a fifth of torch's row by row"
    if not importlib.util.find_spec("pyarrow"):
        print("left out: Parquet needs pyarrow", file=sys.stderr)
        return Result(title, "µs per batch", None, goal, {})
    others = [torch_own] if importlib.util.find_spec("torch") else []
    return Result(title, "µs per batch", COPIED, goal, take_turns([own, *others], repeats))


def own() -> dict[str, Candidate]:
    """Return the candidates of the floors and of gpuloader."""
    from gpuloader import DataLoader, ParquetDataset

    path = write_file()

    def load(workers: int = 0, **options: Any) -> Any:
        dataset = ParquetDataset(path, **options)
        return Passes(
            DataLoader(
                dataset, places="cpu", batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0
            ).__iter__,
            lambda batch: batch["image"],
        )

    return _candidates(
        {
            BARE: Passes(partial(read_batches, path), lambda batch: batch.column("label").to_numpy()),
            COPIED: Passes(partial(copy_batches, path), lambda buffers: buffers[0]),
            "gpuloader, no worker": load(),
            "gpuloader, no worker, shuffled by 65,536": load(shuffle=True, shuffle_buffer=65_536),
            "gpuloader, 2 workers": load(2),
        }
    )


def torch_own() -> dict[str, Candidate]:
    """Return torch's candidates: yielding rows, which torch collates, and yielding whole batches."""
    from torch.utils.data import DataLoader, IterableDataset

    path = write_file()

    class Rows(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for batch in read_batches(path):
                image, label = as_arrays(batch)
                yield from zip(image, label.tolist(), strict=True)

    class Batches(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            import torch

            for batch in read_batches(path):
                yield [torch.from_numpy(array.copy()) for array in as_arrays(batch)]

    loaders = {
        "torch, rows": DataLoader(Rows(), batch_size=BATCH),
        "torch, whole batches": DataLoader(Batches(), batch_size=None),
    }
    first = {
        name: Passes(loader.__iter__, lambda batch: batch[0].numpy()) for name, loader in loaders.items()
    }
    return _candidates(first)


class Passes:
    """Epochs for `turn`; each batch is a list of the one array to look at."""

    def __init__(self, begin: Callable[[], Iterable[Any]], look: Callable[[Any], Any]) -> None:
        self._begin = begin
        self._look = look

    def __iter__(self) -> Iterator[list[Any]]:
        for batch in self._begin():
            yield [self._look(batch)]


def read_batches(path: str) -> Iterator[Any]:
    """Yield Arrow's batches untouched."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, pre_buffer=True) as file:
        yield from file.iter_batches(BATCH)


def copy_batches(path: str) -> Iterator[list[Any]]:
    """Copy each of Arrow's batches into the same two buffers and yield them."""
    buffers = [np.empty((BATCH, WIDTH), np.float32), np.empty(BATCH, np.int64)]
    for batch in read_batches(path):
        for buffer, array in zip(buffers, as_arrays(batch), strict=True):
            np.copyto(buffer[: len(array)], array)
        yield buffers


def as_arrays(batch: Any) -> list[Any]:
    """Return a batch's columns as NumPy arrays, without a copy."""
    image = batch.column("image").flatten().to_numpy().reshape(-1, WIDTH)
    return [image, batch.column("label").to_numpy()]


def write_file() -> str:
    """Write the file into a folder that is removed when this process exits; return its path."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = str(Path(folder.name) / "rows.parquet")
    pixels = pa.array(np.random.default_rng(0).random(ROWS * WIDTH, np.float32))
    image = pa.FixedSizeListArray.from_arrays(pixels, WIDTH)
    write_table(pa.table({"image": image, "label": np.arange(ROWS)}), path, row_group_size=GROUP)
    return path


def _candidates(loaders: dict[str, Any]) -> dict[str, Candidate]:
    return {name: partial(turn, loader, touch) for name, loader in loaders.items()}
