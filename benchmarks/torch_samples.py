"""Measure `gpuloader.torch` without workers beside PyTorch's loader, on samples of PyTorch programs."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.measure import Result, compare_epochs

BATCHES, SIZE = 200, 32


class Made:
    """A dataset of what a function returns for an index."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return BATCHES * SIZE

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def torch_samples(repeats: int) -> list[Result]:
    """Time epochs of 200 batches of 32 samples, and epochs of 3 batches, in processor time per batch."""
    import torch
    from torch.utils import data

    torch.set_num_threads(1)
    rows, labels = torch.rand(BATCHES * SIZE, 784), torch.arange(BATCHES * SIZE)
    arrays, images = rows.numpy(), torch.zeros(64, 3, 64, 64, dtype=torch.uint8)
    kinds: dict[str, Any] = {
        "a TensorDataset of rows and labels": data.TensorDataset(rows, labels),
        "a tensor of 784 float32 and a number": Made(lambda index: (rows[index], index)),
        "an image of 3 × 64 × 64 uint8 and a number": Made(lambda index: (images[index % 64], index)),
        "a dict of a tensor and a dict of labels": Made(
            lambda index: {"image": rows[index], "of": {"label": labels[index], "index": index}}
        ),
        "an array of 784 float32 and a number": Made(lambda index: (arrays[index], index)),
        "a number": Made(lambda index: index),
        "a text and a number": Made(lambda index: (str(index), index)),
    }
    results = []
    for name, dataset in kinds.items():
        results.append(_compare(name, {"shuffle": True}, dataset, 1, BATCHES, repeats))
    few = data.Subset(kinds["a number"], range(3 * SIZE))
    results.append(_compare("a number, in epochs of 3 batches", {}, few, 200, 600, repeats))
    function = {"collate_fn": lambda samples: torch.stack([row for row, _ in samples])}
    pairs = kinds["a tensor of 784 float32 and a number"]
    results.append(_compare("rows that a collate_fn stacks", function, pairs, 1, BATCHES, repeats))
    return results


class Epochs:
    """Several epochs of a loader, one after another."""

    def __init__(self, loader: Any, count: int) -> None:
        self.loader, self.count = loader, count

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.count):
            yield from self.loader


def _compare(
    name: str, options: dict[str, Any], dataset: Any, epochs: int, batches: int, repeats: int
) -> Result:
    from torch.utils import data

    import gpuloader.torch

    gc.collect()
    gc.freeze()  # otherwise a collection of all of PyTorch's objects, some 50 ms, strikes either of the two
    kinds = {"PyTorch": data.DataLoader, "gpuloader.torch": gpuloader.torch.DataLoader}
    loaders = {whose: Epochs(kind(dataset, SIZE, **options), epochs) for whose, kind in kinds.items()}
    rows = compare_epochs(loaders, batches, argparse.Namespace(warm=0, repeats=repeats))
    return Result(name, "µs of processor time per batch of 32", "PyTorch", "none", rows)
