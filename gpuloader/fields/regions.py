"""Regions of pictures, as they are staged for a GPU: decoded pixels, and what the GPU is to make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.fields.spec import Array

NUMBERS = 13
"""Numbers of a region's geometry; `gpuloader.kernels.resample` names them."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The part of a picture that a kernel needs to resample it.

    A batch of them has three arrays: all pixels one behind the other, row splits, and geometry.

    Attributes
    ----------
    pixels : numpy.ndarray
        The region, row by row, uint8 of shape (pixels, channels).
    geometry : numpy.ndarray
        What to make of it, float32 of shape (13,); see `gpuloader.kernels.resample.GEOMETRY`.
    """

    pixels: Array
    geometry: Array

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the pixels, by which collation recognizes a field of arrays."""
        return self.pixels.dtype


def join_geometry(regions: Sequence[Region]) -> Array:
    """Return the geometry of several regions, float32 of shape (regions, 13).

    >>> join_geometry([]).shape
    (0, 13)
    """
    rows = [region.geometry for region in regions]
    return np.stack(rows) if rows else np.zeros((0, NUMBERS), np.float32)
