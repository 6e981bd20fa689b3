"""Datasets for tests with workers, which worker processes can import; this module must not import CuPy."""

import sys

import numpy as np

from gpuloader import Dataset


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
