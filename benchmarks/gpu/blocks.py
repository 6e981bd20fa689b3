"""Datasets for worker processes; this module must not import CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

HEIGHT = WIDTH = 224
DISTINCT = 256
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Blocks:
    """Samples of `nbytes` bytes, all views of one array."""

    def __init__(self, nbytes: int, length: int) -> None:
        self.block = np.zeros(nbytes, np.uint8)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return self.block


class Pictures:
    """`length` pictures with labels, uint8, height x width x 3; 256 different ones, repeated."""

    def __init__(self, length: int) -> None:
        size = DISTINCT, HEIGHT, WIDTH, 3
        self.images = np.random.default_rng(0).integers(0, 256, size, np.uint8)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.images[index % DISTINCT], np.int64(index % DISTINCT)

    def total(self) -> float:
        """Return the sum of all pictures' normalized values, in float64."""
        seen = np.bincount(np.arange(self.length) % DISTINCT, minlength=DISTINCT)
        sums = self.images.sum(axis=(1, 2), dtype=np.float64)
        means = np.asarray(MEAN) * HEIGHT * WIDTH
        return float((seen[:, None] * (sums / 255 - means) / np.asarray(STD)).sum())


class PlanarPictures(Pictures):
    """The same pictures as 3 x height x width, the layout in which `timm` collates arrays."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.planes = np.ascontiguousarray(self.images.transpose(0, 3, 1, 2))

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.planes[index % DISTINCT], int(index % DISTINCT)
