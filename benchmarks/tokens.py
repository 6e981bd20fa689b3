"""Windows over a memory-mapped file of tokens: `gpuloader.TokenWindows`, and loops in bare NumPy.

Figures are microseconds per batch of 64 windows of 1,024 tokens, which start at random. The file has 50
million tokens of uint16 and is read from the page cache. The consumer reads the first token of each batch.

- The floor stacks slices of the array, as most training scripts do.
- The second loop selects the windows from a view of all windows in one call, which few know.
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hosts import take_turns
from benchmarks.measure import Candidate, Result, turn

BATCH, LENGTH, TOKENS, BATCHES = 64, 1024, 50_000_000, 500
FLOOR = "bare NumPy, slices stacked"


def tokens(repeats: int) -> Result:
    """Time batches of random windows; the goal is 0.8 of bare NumPy's tokens a second."""
    return Result(
        f"Token windows, {BATCH} × {LENGTH} uint16, at random",
        "µs per batch",
        FLOOR,
        "at most 1.25 times the floor, without workers and with 2",
        take_turns([own], repeats),
    )


def own() -> dict[str, Candidate]:
    """Return all candidates; they share one library, and so one process."""
    from gpuloader import DataLoader, RandomSampler, TokenWindows

    file = write_file()
    windows = TokenWindows(file, LENGTH, stride=1)

    def load(**options: Any) -> Any:
        sampler = RandomSampler(windows, replacement=True, num_samples=BATCH * BATCHES)
        return DataLoader(windows, places="cpu", batch_size=BATCH, sampler=sampler, seed=0, **options)

    return {
        FLOOR: partial(turn, Loop(partial(stack_slices, file)), look),
        "bare NumPy, selected from a view of all windows": partial(
            turn, Loop(partial(select_windows, file)), look
        ),
        "gpuloader, no worker": partial(turn, load(), look),
        "gpuloader, 2 workers": partial(turn, load(num_workers=2), look),
        "gpuloader, 2 threads": partial(turn, load(num_workers=2, worker_type="thread"), look),
    }


class Loop:
    """Epochs of a function that yields batches without end."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return islice(self._begin(), BATCHES)


def stack_slices(file: np.ndarray[Any, Any]) -> Iterator[Any]:
    """Yield batches of random windows, each a slice of the array."""
    random = np.random.default_rng(0)
    while True:
        starts = random.integers(0, len(file) - LENGTH, BATCH)
        yield np.stack([file[start : start + LENGTH] for start in starts])


def select_windows(file: np.ndarray[Any, Any]) -> Iterator[Any]:
    """Yield batches of random windows, selected with one index array."""
    random = np.random.default_rng(0)
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(file), LENGTH)
    while True:
        yield windows[random.integers(0, len(windows), BATCH)]


def look(batch: Any) -> object:
    """Read the first token of a batch."""
    return int(batch[0, 0])


def write_file() -> np.memmap[Any, Any]:
    """Write the tokens into a folder that is removed when this process exits; return them as a memory map."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "tokens.bin"
    np.random.default_rng(0).integers(0, 50_000, TOKENS).astype(np.uint16).tofile(path)
    mapped = np.memmap(path, np.uint16, "r")
    int(mapped.max())  # reads the file into the page cache
    return mapped
