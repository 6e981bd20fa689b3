"""Documents packed into rows: `gpuloader.PackedSequences`, and documents joined and cut in bare NumPy.

Figures are nanoseconds of processor time per token, on one core. The lengths of the documents are log-normal,
665 tokens on average, and the rows have 2,048 tokens; a batch has 8 rows, shuffled.

- The floor joins all documents and cuts the result into rows, as most training scripts do. It has no padding,
  cuts nearly every document, and makes labels, but neither positions nor where documents begin.
- The second loop packs by first fit over a window, row by row in plain Python, and makes all four arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import Any

import numpy as np

from benchmarks.hosts import take_turns
from benchmarks.measure import Candidate, Result, spread

DOCUMENTS, LENGTH, ROWS, WINDOW = 20_000, 2048, 8, 4096
FLOOR = "bare NumPy, joined and cut"


def packing(repeats: int) -> list[Result]:
    """Time packing and loading, and count padding."""
    title = f"{DOCUMENTS:,} documents packed into rows of {LENGTH:,} tokens"
    times = take_turns([own], repeats)
    return [
        Result(
            title, "ns of processor time per token", FLOOR, "at most 200: 5 million tokens a second", times
        ),
        Result(
            f"{title}: padding",
            "percent of all tokens",
            None,
            "at most 2",
            {"gpuloader": spread([100 * (1 - pack().fill)])},
        ),
    ]


def own() -> dict[str, Candidate]:
    """Return all candidates; they share one library, and so one process."""
    from gpuloader import DataLoader

    tokens, starts = make_documents()
    packed = pack()

    def load(rows: Any) -> Iterator[Any]:
        # Without a thread that reads ahead, whose time would be that of another core.
        options: dict[str, Any] = {"places": "cpu", "use_buffer_reader": False}
        return iter(DataLoader(rows, batch_size=ROWS, shuffle=True, seed=0, **options))

    return {
        FLOOR: partial(time, partial(join_and_cut, tokens)),
        "first fit in plain Python": partial(time, partial(fit_in_python, tokens, starts)),
        "gpuloader, packing": partial(time, lambda: [pack()]),
        "gpuloader, loading": partial(time, lambda: load(packed)),
        "gpuloader, packing and loading": partial(time, lambda: load(pack())),
    }


def time(begin: Callable[[], Any]) -> float:
    """Run an epoch; return the processor's nanoseconds per token."""
    count = len(make_documents()[0])
    begun = process_time()
    for _ in begin():
        pass
    return (process_time() - begun) * 1e9 / count


_made: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []


def make_documents() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the tokens of all documents, and where each begins."""
    if not _made:
        random = np.random.default_rng(0)
        lengths = random.lognormal(6, 1, DOCUMENTS).astype(np.int64) + 1
        tokens = random.integers(0, 50_000, lengths.sum()).astype(np.uint16)
        _made.append((tokens, np.cumsum(lengths) - lengths))
    return _made[0]


def pack() -> Any:
    """Return the documents packed by gpuloader."""
    from gpuloader import PackedSequences

    tokens, starts = make_documents()
    return PackedSequences(tokens, LENGTH, documents=starts, window=WINDOW)


def join_and_cut(tokens: np.ndarray[Any, Any]) -> Iterator[Any]:
    """Yield shuffled batches of rows of the joined documents, and their labels."""
    rows = tokens[: (len(tokens) - 1) // LENGTH * LENGTH].reshape(-1, LENGTH)
    labels = tokens[1 : rows.size + 1].reshape(-1, LENGTH)
    order = np.random.default_rng(0).permutation(len(rows))
    for first in range(0, len(rows), ROWS):
        chosen = order[first : first + ROWS]
        yield rows[chosen], labels[chosen].astype(np.int64)


def fit_in_python(tokens: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> Iterator[Any]:
    """Yield batches of packed rows, each piece in the first row that has room for it."""
    rows: list[list[np.ndarray[Any, Any]]] = []
    bounds = [*starts.tolist(), len(tokens)]
    for first in range(0, DOCUMENTS, WINDOW):
        last = min(first + WINDOW, DOCUMENTS)
        documents = [tokens[bounds[at] : bounds[at + 1]] for at in range(first, last)]
        pieces = [one[at : at + LENGTH] for one in documents for at in range(0, len(one), LENGTH)]
        opened: list[list[np.ndarray[Any, Any]]] = []
        room: list[int] = []
        for piece in sorted(pieces, key=len, reverse=True):
            row = next((at for at, left in enumerate(room) if left >= len(piece)), len(room))
            if row == len(room):
                opened.append([])
                room.append(LENGTH)
            opened[row].append(piece)
            room[row] -= len(piece)
        rows += opened
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    for begin in range(0, len(rows), ROWS):
        batch = []
        for number in order[begin : begin + ROWS]:
            row, positions = np.zeros(LENGTH, np.uint16), np.zeros(LENGTH, np.int32)
            labels, at, cuts = np.full(LENGTH, -100), 0, [0]
            for piece in rows[number]:
                end = at + len(piece)
                row[at:end], positions[at:end] = piece, np.arange(len(piece))
                labels[at : end - 1] = piece[1:]
                at = end
                cuts.append(end)
            batch.append((row, labels, positions, np.array(cuts, np.int32)))
        yield [np.stack(arrays) for arrays in list(zip(*batch, strict=True))[:3]]
