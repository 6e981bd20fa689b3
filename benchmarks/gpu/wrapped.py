"""The loader that a program already has, wrapped in another that copies its batches to the GPU ahead.

All candidates wrap the same loader of torch, whose batches are dicts of pictures, labels and text. The
consumer sums every array, so a candidate that leaves one in host memory pays for the copy there.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from benchmarks.gpu import consumers
from benchmarks.gpu.blocks import Pictures
from benchmarks.gpu.turns import Judged, measure
from gpuloader import prefetch

LENGTH, BATCH, WORKERS = 8192, 128, 8
FLOOR = "torch, to(device, non_blocking=True)"
OURS = "gpuloader.prefetch"

Wrap = Callable[[Any], Iterable[Any]]


def wrapped(
    repeats: int, *, length: int = LENGTH, workers: int = WORKERS, pinned: bool = True
) -> list[Judged]:
    """Time whole epochs of each wrapper around one loader of torch, with batches of bytes."""
    if importlib.util.find_spec("torch") is None:
        print("left out: torch is not installed", file=sys.stderr)
        return []
    pictures = Pictures(length)
    case = Judged(
        f"{length:,} images, 224 x 224 x 3 bytes, from torch's loader of dicts, batches of {BATCH}, "
        f"{workers} processes",
        "ms per epoch",
        FLOOR,
        "the time of torch's own copies, at most",
        {},
        OURS,
        1.0,
    )
    expected = _total(pictures)
    loader = _loader(pictures, workers, pinned=pinned)
    wraps = list_wraps()
    candidates = {name: _epoch(wrap, loader, expected) for name, wrap in wraps.items()}
    # Without pin_memory the loader's own thread for it is gone, and prefetch does the same work.
    plain = _loader(pictures, workers, pinned=False)
    candidates[f"{OURS}, without pin_memory"] = _epoch(wraps[OURS], plain, expected)
    return [measure(case, candidates, repeats)]


def list_wraps() -> dict[str, Wrap]:
    """Return the wrappers that are installed, by name; each returns a loader's batches on the device."""
    found: dict[str, Wrap] = {
        FLOOR: lambda loader: map(_move, loader),
        "torch, a hand-written stream prefetcher": _prefetched,
        # Once for all epochs, as in a program: its slots are pinned only then.
        OURS: cache(lambda loader: prefetch(loader, places=_place())),
    }
    others = {"torch_geometric": _geometric, "lightning": _lightning, "accelerate": _accelerate}
    for package, wrap in others.items():
        if importlib.util.find_spec(package):
            found[f"{package}'s loader"] = wrap
        else:
            print(f"left out: {package} is not installed", file=sys.stderr)
    return found


def _place() -> str:
    return "gpu:0" if consumers.DEVICE == "cuda" else "cpu"


def _total(pictures: Pictures) -> int:
    return sum(
        int(pictures[index][0].sum(dtype="int64")) + int(pictures[index][1]) for index in range(len(pictures))
    )


def _as_dict(samples: list[tuple[Any, ...]]) -> dict[str, Any]:
    import torch

    images, labels = zip(*samples, strict=True)
    return {
        "image": torch.stack(list(map(torch.from_numpy, images))),
        "label": torch.tensor([int(label) for label in labels]),
        "name": [f"{int(label)}.jpg" for label in labels],
    }


def _loader(pictures: Pictures, workers: int, *, pinned: bool) -> Any:
    import torch.utils.data

    return torch.utils.data.DataLoader(
        pictures,  # type: ignore[arg-type]
        batch_size=BATCH,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=pinned,
        collate_fn=_as_dict,
    )


def _move(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch on the device, copied without blocking on the current stream."""
    to = consumers.DEVICE
    return {key: value.to(to, non_blocking=True) if key != "name" else value for key, value in batch.items()}


def _prefetched(loader: Any) -> Iterator[Any]:
    """Copy the next batch on a separate stream, with the waits and the records that this takes."""
    import torch

    side = torch.cuda.Stream()
    following = None
    for batch in loader:
        with torch.cuda.stream(side):
            moved = _move(batch)
        if following is not None:
            yield following
        torch.cuda.current_stream().wait_stream(side)
        for value in moved.values():
            if hasattr(value, "record_stream"):
                value.record_stream(torch.cuda.current_stream())
        following = moved
    if following is not None:
        yield following


def _geometric(loader: Any) -> Iterable[Any]:
    from torch_geometric.loader import PrefetchLoader

    numbers = ({name: value for name, value in batch.items() if name != "name"} for batch in loader)
    batches: Iterable[Any] = PrefetchLoader(numbers, device=consumers.DEVICE)  # it cannot take text
    return batches


def _lightning(loader: Any) -> Iterable[Any]:
    import torch
    from lightning.fabric.wrappers import _FabricDataLoader

    batches: Iterable[Any] = _FabricDataLoader(loader, device=torch.device(consumers.DEVICE))
    return batches


def _accelerate(loader: Any) -> Iterable[Any]:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=consumers.DEVICE == "cpu", dataloader_config=DataLoaderConfiguration(non_blocking=True)
    )
    batches: Iterable[Any] = accelerator.prepare_data_loader(loader)
    return batches


def _epoch(wrap: Wrap, loader: Any, expected: int) -> Callable[[], float]:
    consumer = consumers.TorchConsumer()

    def batches() -> Iterator[Any]:
        for batch in wrap(loader):
            yield batch["image"]
            yield batch["label"]

    return consumers.epoch_of(consumer, batches, float(expected), 0.0)
