"""The cases with torch's DataLoader, which indexes whole batches at once if the dataset can."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from typing import Any

from benchmarks.peers import Loader, workers
from benchmarks.peers.cases import Case
from benchmarks.peers.samples import Arrays, Pictures, Stream


def open_loaders(case: Case) -> dict[str, Loader]:
    """Return the usual loaders, and those of experts who know that an index may be a whole batch."""
    dataset = case.make(case.length)
    match case.name:
        case "arrays":
            return _index_tensors(case, dataset)
        case "lists":
            return {workers(count): _load(case, dataset, count) for count in (0, 2)}
        case "images":
            return {
                workers(2): _load(case, dataset, 2),
                f"batch sampler, {workers(2)}": _take_batches(case, _Whole(dataset), 2),
            }
        case "small":
            loaders = {workers(count): _load(case, dataset, count) for count in (0, 1)}
            whole = _Whole(dataset)
            return loaders | {
                f"batch sampler, {workers(count)}": _take_batches(case, whole, count) for count in (0, 1)
            }
        case "jpeg":
            return {workers(2): _load(case, dataset, 2)}
        case "pictures":
            return {f"Pillow, {workers(2)}": _load(case, dataset, 2)} | _open_torchvision(case, dataset)
        case "waits":
            warnings.filterwarnings("ignore", message="This DataLoader will create 16 worker processes")
            return {workers(count): _load(case, dataset, count) for count in (2, 16)}
        case "stream" | "stream_lists":
            return {workers(count): _read(case, dataset, count) for count in (0, 1)}
        case "ready" | "ready_images":
            return {workers(count): _read(case, _Tensors(dataset), count) for count in (0, 1)}
    return {}


def touch(batch: Any) -> object:
    """Read the first number of the first tensor."""
    return batch[0].numpy().item(0)


class _Together:
    """A dataset of tensors with `__getitems__`, which torch calls once for all samples of a batch."""

    def __init__(self, images: Any, labels: Any) -> None:
        self._images = images
        self._labels = labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        return self._images[index], self._labels[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return list(zip(self._images[indices], self._labels[indices], strict=True))


class _Whole:
    """A dataset whose index is a list of indices and whose sample is the whole batch."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, indices: list[int]) -> Any:
        return self._dataset.take(indices)


class _Tensors:
    """Ready batches as tensors that share the arrays' memory, so nothing is copied."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def samples(self) -> Iterator[Any]:
        import torch

        return ([torch.from_numpy(field) for field in batch] for batch in self._stream)


def _index_tensors(case: Case, dataset: Arrays) -> dict[str, Loader]:
    import torch
    from torch.utils.data import TensorDataset

    tensors = torch.from_numpy(dataset.images), torch.from_numpy(dataset.labels)
    single = TensorDataset(*tensors)
    return {
        "TensorDataset": _load(case, single, 0),
        "__getitems__": _load(case, _Together(*tensors), 0),
        "batch sampler": _take_batches(case, single, 0),
    }


class _Transformed:
    """Pictures decoded by Pillow and transformed by torchvision."""

    def __init__(self, pictures: Pictures, transform: Any) -> None:
        self._pictures = pictures
        self._transform = transform

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        picture = Image.open(io.BytesIO(self._pictures.file(index))).convert("RGB")
        return self._transform(picture), index


def _open_torchvision(case: Case, pictures: Pictures) -> dict[str, Loader]:
    try:
        from torchvision import transforms
    except (ImportError, RuntimeError):  # not installed, or built for another torch
        return {}
    steps = [
        transforms.RandomResizedCrop(pictures.SIZE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(pictures.MEAN, pictures.STD),
    ]
    dataset = _Transformed(pictures, transforms.Compose(steps))
    return {f"torchvision, {workers(2)}": _load(case, dataset, 2)}


def _load(case: Case, dataset: Any, count: int) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset, case.size, shuffle=case.shuffle, num_workers=count, persistent_workers=count > 0
    )


def _take_batches(case: Case, dataset: Any, count: int) -> Any:
    """Index the dataset once per batch, with a batch sampler and automatic batching off."""
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

    order = (RandomSampler if case.shuffle else SequentialSampler)(dataset)
    batches = BatchSampler(order, case.size, drop_last=False)
    return DataLoader(
        dataset, sampler=batches, batch_size=None, num_workers=count, persistent_workers=count > 0
    )


def _read(case: Case, stream: Stream | _Tensors, count: int) -> Any:
    from torch.utils.data import DataLoader, IterableDataset

    class Iterated(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            return stream.samples()

    # A class defined in a function cannot be pickled, so fork the worker on every system and Python version.
    context = {"multiprocessing_context": "fork", "persistent_workers": True} if count else {}
    return DataLoader(Iterated(), case.batch_size, num_workers=count, **context)
