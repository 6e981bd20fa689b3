"""Pictures end to end: from a dataset of bytes through eight processes to normalized floats on the GPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.blocks import HEIGHT, MEAN, STD, WIDTH, Pictures
from benchmarks.gpu.consumers import TorchConsumer, choose_consumer, epoch_of
from benchmarks.gpu.turns import Judged, measure
from gpuloader import DataLoader
from gpuloader.transforms import Normalize

LENGTH = 8192
BATCH = 128
WORKERS = 8
FLOOR = "torch, floats from the workers, pinned"


def images(repeats: int) -> list[Judged]:
    """Time whole epochs; each batch becomes 128 x 3 x 224 x 224 float32 on the device and is summed there."""
    consumer = choose_consumer()
    dataset = Pictures(LENGTH)
    expected, values = dataset.total(), float(LENGTH * HEIGHT * WIDTH * 3)
    sources: dict[str, Any] = {}
    if isinstance(consumer, TorchConsumer):
        from benchmarks.gpu import image_peers as peers

        sources[FLOOR] = peers.floats(LENGTH, BATCH, WORKERS)
        sources["torch, bytes, a hand-written stream prefetcher"] = peers.prefetched(LENGTH, BATCH, WORKERS)
        if importlib.util.find_spec("timm"):
            sources["timm PrefetchLoader, bytes"] = peers.timms(LENGTH, BATCH, WORKERS)
        else:
            print("left out: timm is not installed", file=sys.stderr)
        sources["torch, bytes, gpuloader.prefetch"] = peers.wrapped(LENGTH, BATCH, WORKERS)
    else:
        print("left out: torch is not installed", file=sys.stderr)
    sources["gpuloader, bytes, Normalize on the device"] = _ours(dataset, consumer.output)
    case = Judged(
        f"{LENGTH:,} images, 224 x 224 x 3 bytes, to float32 on the GPU, batches of {BATCH}, "
        f"{WORKERS} processes",
        "ms per epoch",
        FLOOR,
        "3 times torch",
        {},
        "gpuloader, bytes, Normalize on the device",
        1 / 3,
    )
    turns = {name: epoch_of(consumer, source, expected, values) for name, source in sources.items()}
    return [measure(case, turns, repeats)]


def _ours(dataset: Pictures, output: str) -> Any:
    loader = DataLoader(
        dataset,
        places="gpu:0",
        batch_size=BATCH,
        num_workers=WORKERS,
        persistent_workers=True,
        transforms=[Normalize("0", MEAN, STD, scale=1 / 255)],
        output=output,
    )

    def batches() -> Iterator[Any]:
        for pictures, _ in loader:
            yield pictures

    return batches
