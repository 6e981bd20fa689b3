"""Datasets of the cases; module-level, so that every start method can pickle them."""

import os
import time

import numpy as np
import torch
from torch.utils import data

import gpuloader.torch

torch.manual_seed(11)
PICTURES = torch.randn(100, 2, 3, 5)
LABELS = torch.randperm(50).repeat(2)


def pictures(lib):
    """Return 100 pictures with labels, as a dataset of tensors."""
    return lib.TensorDataset(PICTURES, LABELS)


class Numbers(data.Dataset):
    """The numbers from 0."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index


class Made(Numbers):
    """What a function makes of each index."""

    def __init__(self, make, count=6):
        super().__init__(count)
        self.make = make

    def __getitem__(self, index):
        return self.make(index)


class _Stream:
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))

    def __len__(self):
        return self.count


class TorchStream(_Stream, data.IterableDataset):
    """The numbers from 0, from every worker."""


class OwnStream(_Stream, gpuloader.torch.IterableDataset):
    """The numbers from 0, from every worker."""


def stream(lib, count):
    """Return an iterable dataset of the library's class, with the numbers from 0."""
    return (TorchStream if lib.name == "torch" else OwnStream)(count)


class Shares(data.IterableDataset):
    """As many numbers from each worker as its size says."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __iter__(self):
        return iter(range(self.sizes[data.get_worker_info().id]))

    def __len__(self):
        return sum(self.sizes)


class WorkerNumbers(data.IterableDataset):
    """The worker's own number, as often as its share of the length."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        info = data.get_worker_info()
        yield from [info.id] * (self.length // info.num_workers)


class Unwritten(data.Dataset):
    """A dataset whose author forgot `__getitem__`."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


class Broken(data.IterableDataset):
    """An iterable dataset that fails before its first item."""

    def __iter__(self):
        raise RuntimeError("the stream is broken")


class Slow(Numbers):
    """Sleeps before the first sample."""

    def __getitem__(self, index):
        time.sleep(60)
        return index


class Processes(Numbers):
    """The process that loads each sample."""

    def __getitem__(self, index):
        return os.getpid()


class Seeds(Numbers):
    """The seed of torch's global generator where the sample is loaded."""

    def __getitem__(self, index):
        return torch.initial_seed() % 2**63


class Asking(Numbers):
    """What `worker_init_fn` has left in the worker's copy of the dataset."""

    def __getitem__(self, index):
        return torch.tensor(self.found)


class Nested(Numbers):
    """A dict in a dict."""

    def __getitem__(self, index):
        return {"picture": torch.full((4, 2), float(index)), "about": {"number": index}}


class Remembering(Numbers):
    """Samples that show a setting of the dataset, which the program changes between epochs."""

    setting = 0

    def __getitem__(self, index):
        return self.setting


class Multiplied(Numbers):
    """Multiplies matrices large enough for several threads, with NumPy or torch."""

    def __init__(self, library):
        super().__init__(2)
        self.library = library
        self.matrix = {"numpy": np, "torch": torch}[library].ones((600, 600))
        self[0]

    def __getitem__(self, index):
        return float((self.matrix @ self.matrix)[0, 0])


class ChosenProcessors(data.IterableDataset):
    """The processors that the worker may run on."""

    def __iter__(self):
        torch.randperm(1)
        return iter(os.sched_getaffinity(0))
