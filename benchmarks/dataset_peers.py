"""Data sets through torch and Paddle, as their users would write it; each function runs in a host of its own.

Workers are persistent and started by the turn that warms up. Paddle's loader converts batches in a thread
of its own by default (`use_buffer_reader`), and is left at that.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from benchmarks import dataset_samples
from benchmarks.dataset_floor import turn
from benchmarks.measure import Candidate


def arrays_torch() -> dict[str, Candidate]:
    """TensorDataset; a data set with `__getitems__`; and whole batches, which few people know of.

    The last indexes the tensors once a batch: a sampler of batches with `batch_size=None`.
    """
    import torch.utils.data as data

    dataset = dataset_samples.flat_images()
    single, together = data.TensorDataset(*_tensors(dataset)), _Together(*_tensors(dataset))
    batches = data.BatchSampler(data.RandomSampler(single), 100, drop_last=False)
    loaders = {
        "torch, TensorDataset": data.DataLoader(single, batch_size=100, shuffle=True),
        "torch, __getitems__": data.DataLoader(together, batch_size=100, shuffle=True),
        "torch, sampler of batches": data.DataLoader(single, sampler=batches, batch_size=None),
    }
    return _turns(loaders, _touch_torch)


def arrays_paddle() -> dict[str, Candidate]:
    """Samples as views of arrays, and TensorDataset."""
    import paddle

    paddle.set_device("cpu")
    dataset = dataset_samples.flat_images()
    tensors = paddle.io.TensorDataset([paddle.to_tensor(dataset.images), paddle.to_tensor(dataset.labels)])
    loaders = {
        "paddle, Dataset of arrays": _paddle(dataset, 100, 0, shuffle=True),
        "paddle, TensorDataset": _paddle(tensors, 100, 0, shuffle=True),
    }
    return _turns(loaders, _touch_paddle)


def lists_torch() -> dict[str, Candidate]:
    """The digits' lists, without workers and with two."""
    dataset = dataset_samples.digit_lists()
    return _turns({_named("torch", n): _torch(dataset, 100, n, shuffle=True) for n in (0, 2)}, _touch_torch)


def lists_paddle() -> dict[str, Candidate]:
    """The digits' lists, without workers and with two."""
    dataset = dataset_samples.digit_lists()
    return _turns(
        {_named("paddle", n): _paddle(dataset, 100, n, shuffle=True) for n in (0, 2)}, _touch_paddle
    )


def images_torch() -> dict[str, Candidate]:
    """Pictures through two workers."""
    return _turns({_named("torch", 2): _torch(dataset_samples.pictures(), 64, 2)}, _touch_torch)


def images_paddle() -> dict[str, Candidate]:
    """Pictures through two workers."""
    return _turns({_named("paddle", 2): _paddle(dataset_samples.pictures(), 64, 2)}, _touch_paddle)


def jpeg_torch() -> dict[str, Candidate]:
    """JPEGs through two workers."""
    return _turns({_named("torch", 2): _torch(dataset_samples.jpegs(), 32, 2)}, _touch_torch)


def waits_torch() -> dict[str, Candidate]:
    """Waiting samples through two workers; and through sixteen, more than there are cores."""
    warnings.filterwarnings("ignore", message="This DataLoader will create 16 worker processes")
    dataset = dataset_samples.Waits(640)
    return _turns({_named("torch", n): _torch(dataset, 32, n) for n in (2, 16)}, _touch_torch)


def small_torch() -> dict[str, Candidate]:
    """1 kB batches through one worker."""
    return _turns({_named("torch", 1): _torch(dataset_samples.Rows(8_000), 8, 1)}, _touch_torch)


class _Together:
    """A data set of tensors that torch asks for a batch's samples at once."""

    def __init__(self, images: Any, labels: Any) -> None:
        self._images = images
        self._labels = labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        return self._images[index], self._labels[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return list(zip(self._images[indices], self._labels[indices], strict=True))


def _tensors(dataset: dataset_samples.Arrays) -> tuple[Any, Any]:
    import torch

    return torch.from_numpy(dataset.images), torch.from_numpy(dataset.labels)


def _torch(dataset: Any, batch_size: int, workers: int, *, shuffle: bool = False) -> Any:
    import torch.utils.data

    return torch.utils.data.DataLoader(
        dataset, batch_size, shuffle=shuffle, num_workers=workers, persistent_workers=workers > 0
    )


def _paddle(dataset: Any, batch_size: int, workers: int, *, shuffle: bool = False) -> Any:
    import paddle

    paddle.set_device("cpu")
    return paddle.io.DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def _named(library: str, workers: int) -> str:
    return f"{library}, {workers or 'no'} worker{'' if workers == 1 else 's'}"


def _turns(loaders: dict[str, Any], touch: Any) -> dict[str, Candidate]:
    return {name: partial(turn, loader, touch) for name, loader in loaders.items()}


def _touch_torch(tensor: Any) -> object:
    return tensor.numpy().item(0)


def _touch_paddle(tensor: Any) -> object:
    return tensor.item(0)
