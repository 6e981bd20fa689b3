"""The same pictures through torch and timm, as their careful users would write it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.data

from benchmarks.gpu import consumers
from benchmarks.gpu.blocks import MEAN, STD, Pictures, PlanarPictures
from gpuloader import prefetch
from gpuloader.transforms import Normalize

Batches = Callable[[], Iterator[Any]]
SHARED_MEMORY = "/dev/shm"
"""The folder where torch's workers put their batches."""


class Floats(Pictures):
    """Pictures normalized by the worker that fetches them, as torchvision's transforms do."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Return a picture as 3 x height x width float32, and its label."""
        image, label = super().__getitem__(index)
        planes = torch.from_numpy(image.transpose(2, 0, 1)).contiguous()
        return planes.to(torch.float32).div_(255).sub_(self.mean).div_(self.std), int(label)


def floats(length: int, batch: int, workers: int) -> Batches:
    """Return torch's loader of pinned float batches, copied without blocking on the compute stream."""
    loader = _loader(Floats(length), batch, workers, itemsize=4)

    def batches() -> Iterator[Any]:
        for images, labels in loader:
            labels.to(consumers.DEVICE, non_blocking=True)
            yield images.to(consumers.DEVICE, non_blocking=True)

    return batches


def prefetched(length: int, batch: int, workers: int) -> Batches:
    """Return torch's loader of bytes, which copies and normalizes the next batch on a separate stream."""
    loader = _loader(Pictures(length), batch, workers, itemsize=1)
    device = consumers.DEVICE
    mean, std = (
        torch.tensor([value * 255 for value in values], device=device).view(1, 3, 1, 1)
        for values in (MEAN, STD)
    )
    side = torch.cuda.Stream()

    def load(epoch: Iterator[Any]) -> Any:
        try:
            images, labels = next(epoch)
        except StopIteration:
            return None
        with torch.cuda.stream(side):
            labels = labels.to(device, non_blocking=True)
            planes = images.to(device, non_blocking=True).permute(0, 3, 1, 2)
            planes = planes.to(torch.float32, memory_format=torch.contiguous_format)
            return planes.sub_(mean).div_(std), labels

    def batches() -> Iterator[Any]:
        epoch = iter(loader)
        following = load(epoch)
        while following is not None:
            torch.cuda.current_stream().wait_stream(side)
            images, labels = following
            for tensor in (images, labels):
                tensor.record_stream(torch.cuda.current_stream())
            following = load(epoch)
            yield images

    return batches


def timms(length: int, batch: int, workers: int) -> Batches:
    """Return timm's loader: `fast_collate` collates bytes, `PrefetchLoader` copies and normalizes them."""
    from timm.data.loader import PrefetchLoader, fast_collate

    loader = PrefetchLoader(
        _loader(PlanarPictures(length), batch, workers, itemsize=1, collate_fn=fast_collate),
        mean=MEAN,
        std=STD,
        device=torch.device(consumers.DEVICE),
    )

    def batches() -> Iterator[Any]:
        for images, _ in loader:
            yield images

    return batches


def wrapped(length: int, batch: int, workers: int) -> Batches:
    """Return the same loader of bytes as for the others, which `prefetch` copies and normalizes."""
    place = "gpu:0" if consumers.DEVICE == "cuda" else consumers.DEVICE
    steps = [Normalize("0", MEAN, STD, scale=1 / 255)]
    loader = prefetch(_loader(Pictures(length), batch, workers, itemsize=1), places=place, transforms=steps)

    def batches() -> Iterator[Any]:
        for images, _ in loader:
            yield images

    return batches


def _loader(dataset: Pictures, batch: int, workers: int, *, itemsize: int, **options: Any) -> Any:
    """Return torch's loader, after checking for shared memory: without enough, its workers die of SIGBUS."""
    needed = 3 * workers * batch * int(np.prod(dataset.images.shape[1:])) * itemsize
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < needed:
        raise RuntimeError(f"{SHARED_MEMORY} has {free:,} bytes free, torch's workers need about {needed:,}")
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=batch,
        num_workers=workers,
        pin_memory=True,
        persistent_workers=True,
        timeout=60,
        **options,
    )
