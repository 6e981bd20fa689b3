"""Datasets that worker processes can import, and their batches; this module must not import CuPy."""

import sys

import numpy as np

from gpuloader import DataLoader, Dataset


class Pictures(Dataset):
    """Pictures of 16 x 16 x 3 bytes with labels, both functions of the index."""

    def __init__(self, count=48, size=16):
        self.count = count
        self.size = size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        return draw.integers(0, 256, (self.size, self.size, 3), np.uint8), np.int64(index % 10)


class Numbers(Dataset):
    """Rows filled with their index, and whether their process has loaded the CUDA driver and CuPy."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with open("/proc/self/maps") as maps:
            driver = "libcuda.so" in maps.read()
        return np.full(1024, index, np.float32), np.array([driver, "cupy" in sys.modules])


class Words(Dataset):
    """Sequences of varying length."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.arange(index % 7, dtype=np.int32) + index, np.int64(index)


def collect(dataset, places="gpu:0", *, epochs=2, **options):
    """Return the batches of some shuffled epochs, as lists of NumPy arrays."""
    loader = DataLoader(dataset, places=places, **{"batch_size": 7, "shuffle": True, "seed": 3, **options})
    batches = [
        [one.get() if hasattr(one, "get") else np.array(one) for one in batch]
        for _ in range(epochs)
        for batch in loader
    ]
    loader.close()
    return batches


def check_equal(got, expected):
    """Raise unless batches are the same, bit for bit."""
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected, strict=True):
        for array, wanted in zip(one, other, strict=True):
            assert (array.shape, array.dtype) == (wanted.shape, wanted.dtype)
            assert array.tobytes() == wanted.tobytes()
