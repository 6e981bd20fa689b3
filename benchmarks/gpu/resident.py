"""A small dataset in device memory: MNIST's size, many small steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu import consumers
from benchmarks.gpu.consumers import TorchConsumer, choose_consumer, epoch_of
from benchmarks.gpu.turns import Judged, measure
from gpuloader import DataLoader, TensorDataset

ROWS, COLUMNS, BATCH = 60_000, 784, 100
FLOOR = "torch DataLoader, TensorDataset, each batch copied"
OURS = "gpuloader, cache='device'"


def resident(repeats: int) -> list[Judged]:
    """Time shuffled epochs of 600 steps; every batch is summed on the device."""
    generator = np.random.default_rng(0)
    images = generator.random((ROWS, COLUMNS), np.float32)
    labels = generator.integers(0, 10, ROWS)
    expected, values = float(images.sum(dtype=np.float64)), float(images.size)
    consumer = choose_consumer()
    sources: dict[str, Any] = {}
    if isinstance(consumer, TorchConsumer):
        sources |= _torch(images, labels)
    else:
        print("left out: torch is not installed", file=sys.stderr)
    for name, cache in ((OURS, "device"), ("gpuloader, no cache", None)):
        sources[name] = _ours(images, labels, consumer.output, cache)
    case = Judged(
        f"{ROWS:,} x {COLUMNS} float32 with labels, shuffled, batches of {BATCH}",
        "ms per epoch",
        FLOOR,
        "20 times torch's DataLoader",
        {},
        OURS,
        1 / 20,
    )
    turns = {name: epoch_of(consumer, source, expected, values) for name, source in sources.items()}
    return [measure(case, turns, repeats)]


def _ours(images: Any, labels: Any, output: str, cache: str | None) -> Any:
    loader = DataLoader(
        TensorDataset(images, labels),
        places="gpu:0",
        batch_size=BATCH,
        shuffle=True,
        seed=0,
        cache=cache,
        output=output,
    )

    def batches() -> Iterator[Any]:
        for pictures, _ in loader:
            yield pictures

    return batches


def _torch(images: Any, labels: Any) -> dict[str, Any]:
    """Return torch's loader without workers, and a loop that indexes device tensors without a loader."""
    import torch
    import torch.utils.data

    tensors = torch.from_numpy(images), torch.from_numpy(labels)
    dataset = torch.utils.data.TensorDataset(*tensors)
    pinned = [
        torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, pin_memory=pin)
        for pin in (False, True)
    ]
    there = [tensor.to(consumers.DEVICE) for tensor in tensors]

    def copied(loader: Any) -> Iterator[Any]:
        for pictures, digits in loader:
            digits.to(consumers.DEVICE, non_blocking=True)
            yield pictures.to(consumers.DEVICE, non_blocking=True)

    def by_hand() -> Iterator[Any]:
        order = torch.randperm(ROWS, device=consumers.DEVICE)
        for start in range(0, ROWS, BATCH):
            chosen = order[start : start + BATCH]
            pictures, _ = there[0][chosen], there[1][chosen]
            yield pictures

    return {
        FLOOR: lambda: copied(pinned[0]),
        f"{FLOOR}, pinned": lambda: copied(pinned[1]),
        "torch by hand: indexing tensors on the device": by_hand,
    }
