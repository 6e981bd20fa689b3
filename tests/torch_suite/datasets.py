"""Datasets of the cases; module-level, so that every start method can pickle them."""

import os

import torch
from torch.utils import data

torch.manual_seed(11)
PICTURES = torch.randn(100, 2, 3, 5)
LABELS = torch.randperm(50).repeat(2)


def seeded():
    return torch.Generator().manual_seed(3)


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


class Items(data.IterableDataset):
    """The items of a list, or of what a function returns in each worker."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items() if callable(self.items) else self.items)


class Stream(Items):
    """The numbers from 0, from every worker; it has a length."""

    def __init__(self, count):
        super().__init__(range(count))

    def __len__(self):
        return len(self.items)


def tell_process(index):
    """Return the process that loads a sample."""
    return os.getpid()


class Remembering(Numbers):
    """Samples that show a setting of the dataset, which the program changes between epochs."""

    setting = 0

    def __getitem__(self, index):
        return self.setting
