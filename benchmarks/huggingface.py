"""A Hugging Face dataset: gpuloader, torch's DataLoader, and Hugging Face's own batches without a loader.

Figures are microseconds per batch of 256 rows, over whole epochs, from the start of the first. A row has an
embedding of 64 float32, a label, a text of a few words and up to 40 tokens. The 60,000 rows lie in an Arrow
file that is read from the page cache, and are shuffled. Each library has its own process (see
`benchmarks.hosts`). Each turn makes a new loader with new workers. The consumer reads the first number of
each batch.
"""

from __future__ import annotations

import atexit
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.hosts import take_turns
from benchmarks.measure import Candidate, Result

BATCH, ROWS, WIDTH, LONGEST = 256, 60_000, 64, 40
FLOOR = "datasets' own batches, no loader"
TITLE = "Hugging Face dataset, shuffled batches of 256: embedding, label, text and tokens"


def huggingface(repeats: int) -> Result:
    """Time whole first epochs; the goal is twice torch's rows a second with two workers each."""
    goal = "half of torch's time with 2 workers each, the first epoch included"
    try:
        version("datasets"), version("torch")
    except PackageNotFoundError as missing:
        print(f"left out: a Hugging Face dataset needs {missing.name}", file=sys.stderr)
        return Result(TITLE, "µs per batch", None, goal, {})
    return Result(TITLE, "µs per batch", FLOOR, goal, take_turns([own, torch_own], repeats))


def own() -> dict[str, Candidate]:
    """Return the candidates of the floor and of gpuloader."""
    from gpuloader import DataLoader

    rows = make_rows().with_format("numpy")

    def load(**options: Any) -> Iterable[Any]:
        return DataLoader(
            rows, places="cpu", batch_size=BATCH, shuffle=True, seed=0, pad={"tokens": 0}, **options
        )

    return {
        FLOOR: partial(time_epoch, partial(take_batches, rows)),
        "gpuloader, no worker": partial(time_epoch, load),
        "gpuloader, 2 workers": partial(time_epoch, partial(load, num_workers=2)),
    }


def torch_own() -> dict[str, Candidate]:
    """Return torch's candidates, whose collate function pads the tokens."""
    import torch
    from torch.utils.data import DataLoader, default_collate

    rows = make_rows().with_format("torch")

    def pad(samples: list[dict[str, Any]]) -> dict[str, Any]:
        tokens = [sample.pop("tokens") for sample in samples]
        padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        return {**default_collate(samples), "tokens": padded}

    def load(**options: Any) -> Iterable[Any]:
        return DataLoader(rows, batch_size=BATCH, shuffle=True, collate_fn=pad, **options)

    return {
        "torch, no worker": partial(time_epoch, load),
        "torch, 2 workers": partial(time_epoch, partial(load, num_workers=2)),
    }


def take_batches(rows: Any) -> Iterable[Any]:
    """Yield the batches that Hugging Face makes for shuffled lists of indices."""
    order = np.random.default_rng(0).permutation(ROWS)
    for start in range(0, ROWS, BATCH):
        yield rows[order[start : start + BATCH]]


def time_epoch(load: Callable[[], Iterable[Any]]) -> float:
    """Return the microseconds per batch of the first epoch of a new loader, its making included."""
    begin, count = perf_counter(), 0
    for batch in load():
        float(batch["embedding"][0][0])
        count += 1
    return (perf_counter() - begin) / count * 1e6


def make_rows() -> Any:
    """Write the rows into a folder that is removed when this process exits; return the dataset."""
    import datasets

    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    random = np.random.default_rng(0)
    lengths = random.integers(5, LONGEST + 1, ROWS)
    columns = {
        "embedding": list(random.random((ROWS, WIDTH), np.float32)),
        "label": random.integers(0, 10, ROWS),
        "text": [f"the text of row {row}" for row in range(ROWS)],
        "tokens": [random.integers(0, 30_000, length) for length in lengths],
    }
    features = {
        "embedding": datasets.List(datasets.Value("float32"), length=WIDTH),
        "label": datasets.ClassLabel(num_classes=10),
        "text": datasets.Value("string"),
        "tokens": datasets.List(datasets.Value("int32")),
    }
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns, datasets.Features(features)).save_to_disk(folder.name)
    return datasets.load_from_disk(folder.name)
