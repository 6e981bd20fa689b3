"""Regions of pictures, as they are staged for a GPU: pixels, and what the GPU is to make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gpuloader.fields.spec import Array

NUMBERS = 13
"""Numbers of a region's geometry; `gpuloader.kernels.resample` names them. Changes of color may follow."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The part of a picture that a kernel needs to resample it.

    A batch of them has three arrays: all pixels one behind the other, row splits, and geometry. An encoded
    picture is decoded when its region is written, so that no pixels wait for those of other samples.

    Attributes
    ----------
    shape : tuple of int
        The number of pixels, and the channels of each.
    geometry : numpy.ndarray
        What to make of it, float32: 13 numbers, see `gpuloader.kernels.resample.GEOMETRY`; and pairs of
        numbers that change its colors, see `gpuloader.kernels.recolor`.
    source : numpy.ndarray or callable
        The pixels, row by row, uint8 of that shape; or what decodes them into an array of that shape.
    """

    shape: tuple[int, int]
    geometry: Array
    source: Array | Callable[[Array], None]

    dtype = np.dtype(np.uint8)  # by which collation recognizes a field of arrays
    level = 2  # of a field of regions, whose arrays are one more

    @property
    def step(self) -> tuple[int, ...]:
        """The shape of a pixel."""
        return self.shape[1:]

    @property
    def pixels(self) -> Array:
        """The pixels, decoded now if they have to be."""
        if isinstance(self.source, np.ndarray):
            return self.source
        pixels = np.empty(self.shape, self.dtype)
        self.write(pixels)
        return pixels

    def write(self, target: Array) -> None:
        """Write the pixels into an array of their shape; raise `PictureError` if they cannot be decoded."""
        if isinstance(self.source, np.ndarray):
            target[...] = self.source
        else:
            self.source(target)


class HasGeometry(Protocol):
    """A region, in whatever form it is staged."""

    @property
    def geometry(self) -> Array:
        """The region's geometry."""


def join_geometry(regions: Sequence[HasGeometry]) -> Array:
    """Return the geometry of several regions, float32 of shape (regions, 13).

    >>> join_geometry([]).shape
    (0, 13)
    """
    rows = [region.geometry for region in regions]
    return np.stack(rows) if rows else np.zeros((0, NUMBERS), np.float32)
