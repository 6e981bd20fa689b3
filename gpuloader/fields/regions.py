"""Regions of pictures, as they are staged for a GPU: pixels or encoded bytes, and what to make of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    level = 2  # of a field of regions, which has one array more

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the pixels, by which collation recognizes a field of arrays."""
        return self.pixels.dtype

    @property
    def step(self) -> tuple[int, ...]:
        """The shape of a pixel."""
        return self.pixels.shape[1:]


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """A region of a picture that a device gets, encoded or as pixels.

    Attributes
    ----------
    data : numpy.ndarray
        The encoded picture; or the region's pixels, row by row; uint8 of one dimension.
    part : tuple of int
        Top, left, bottom and right of the region in the upright picture.
    orientation : int
        How the encoded picture is turned, as Exif counts; 0 if the data are pixels.
    channels : int
        The channels of a pixel.
    file : str
        The name to give in errors.
    index : int
        The sample's index in the dataset; -1 if it is not a number.
    """

    data: Array
    part: tuple[int, int, int, int]
    orientation: int = 0
    channels: int = 3
    file: str = ""
    index: int = -1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the region."""
        top, left, bottom, right = self.part
        return bottom - top, right - left, self.channels

    def to_parts(self) -> list[Array]:
        """Return what `read_codes` reads, as arrays of bytes to write one behind the other."""
        name = np.frombuffer(self.file.encode("utf-8", "surrogatepass"), np.uint8)
        numbers = *self.part, self.orientation, self.channels, self.index, self.data.size, name.size
        fill = np.zeros(-(self.data.size + name.size) % 8, np.uint8)
        return [np.array(numbers, np.int64).view(np.uint8), self.data, name, fill]


def read_codes(data: Array) -> Iterator[Code]:
    """Yield the codes whose parts lie one behind the other; their data are views.

    >>> codes = [Code(np.arange(5, dtype=np.uint8), (0, 0, 4, 6), 1, file="a.jpg", index=7)] * 2
    >>> for code in read_codes(np.concatenate([part for code in codes for part in code.to_parts()])):
    ...     print(code.data.tolist(), code.shape, code.orientation, code.file, code.index)
    [0, 1, 2, 3, 4] (4, 6, 3) 1 a.jpg 7
    [0, 1, 2, 3, 4] (4, 6, 3) 1 a.jpg 7
    """
    start = 0
    while start < data.size:
        begin = start + 8 * _HEAD
        top, left, bottom, right, *rest, size, name = data[start:begin].view(np.int64).tolist()
        orientation, channels, index = rest
        end = begin + size + name
        file = data[begin + size : end].tobytes().decode("utf-8", "surrogatepass")
        yield Code(data[begin : begin + size], (top, left, bottom, right), orientation, channels, file, index)
        start = end + -(size + name) % 8


_HEAD = 9  # numbers before the bytes of a code


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A picture that a device is to decode before a kernel resamples it.

    A batch of them has four arrays: the codes one behind the other, row splits of the pixels, geometry, and
    an array without bytes whose first dimension is the number of pixels.

    Attributes
    ----------
    code : Code
        What the device gets.
    geometry : numpy.ndarray
        As for a `Region`.
    """

    code: Code
    geometry: Array

    level = 3

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the pixels."""
        return self.code.data.dtype

    @property
    def step(self) -> tuple[int, ...]:
        """The shape of a pixel."""
        return (self.code.channels,)


def join_geometry(regions: Sequence[Region | Encoded]) -> Array:
    """Return the geometry of several regions, float32 of shape (regions, 13).

    >>> join_geometry([]).shape
    (0, 13)
    """
    rows = [region.geometry for region in regions]
    return np.stack(rows) if rows else np.zeros((0, NUMBERS), np.float32)
