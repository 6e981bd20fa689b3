"""Regions of pictures that a GPU decodes, as they are staged: encoded bytes, or pixels where it cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gpuloader.fields.spec import Array

# Regions of pictures, as they are staged for a GPU: pixels, and what the GPU is to make of them.

NUMBERS = 13
"""Numbers of a region's geometry; `gpuloader.kernels.resample` names them. Changes of color may follow."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The part of a picture that a kernel needs to resample it, of a shape (pixels, channels).

    A batch of them has three arrays: all pixels one behind the other, row splits, and geometry. The geometry
    is float32: 13 numbers, see `gpuloader.kernels.resample.GEOMETRY`; and pairs of numbers that change the
    colors, see `gpuloader.kernels.recolor`. The source is the pixels, row by row, or what decodes them into
    an array of that shape. So an encoded picture is decoded when its region is written, and no pixels wait
    for those of other samples.
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


Part = tuple[int, int, int, int]
"""Top, left, bottom and right of a part of a picture."""

_HEAD = 9  # numbers, of 8 bytes, before the bytes of a code


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """A region of a picture that a device gets, encoded or as pixels.

    `data` are the encoded picture, or the region's pixels row by row, uint8 of one dimension. `part` is top,
    left, bottom and right of the region in the upright picture; `orientation` is how the encoded picture is
    turned, as Exif counts, and 0 if the data are pixels. Errors name the `file`, and the sample's `index` in
    the dataset, which is -1 if it is not a number.
    """

    data: Array
    part: Part
    orientation: int = 1
    channels: int = 3
    file: str = ""
    index: int = -1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the region."""
        top, left, bottom, right = self.part
        return bottom - top, right - left, self.channels


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A picture that a device is to decode before a kernel resamples it.

    A batch of them has four arrays: what `read_codes` reads, row splits of the pixels, geometry, and an array
    without bytes whose first dimension is the number of all pixels. The geometry is that of a `Region`. If
    the device gets pixels, the code has no data, and `pixels` is the region, which is decoded when it is
    written.
    """

    code: Code
    geometry: Array
    pixels: Region | None = None

    dtype = np.dtype(np.uint8)
    level = 3

    @classmethod
    def of(cls, region: Region, file: str = "", index: int = -1) -> Encoded:
        """Return a region for a device that gets its pixels.

        >>> Encoded.of(Region((6, 3), np.float32([2, 3, 10, 20] + [0] * 9), np.zeros((6, 3)))).code.part
        (10, 20, 12, 23)
        """
        height, width, top, left = (int(number) for number in region.geometry[:4])
        part = top, left, top + height, left + width
        code = Code(np.empty(0, np.uint8), part, 0, region.step[0], file, index)
        return cls(code, region.geometry, region)

    @property
    def step(self) -> tuple[int, ...]:
        """The shape of a pixel."""
        return (self.code.channels,)

    @property
    def nbytes(self) -> int:
        """The bytes that `write` writes, a multiple of 8."""
        return 8 * _HEAD + -(-(self._size + len(self._name)) // 8) * 8

    @property
    def _size(self) -> int:
        return self.code.data.size if self.pixels is None else math.prod(self.pixels.shape)

    @property
    def _name(self) -> bytes:
        return self.code.file.encode("utf-8", "surrogatepass")

    def write(self, target: Array) -> None:
        """Write what `read_codes` reads; raise `PictureError` if there are pixels that cannot be decoded."""
        # All in one array of bytes, so that one copy takes a batch of files to the device. The head has
        # 8-byte numbers, which is why each code begins at a multiple of 8.
        code, name, begin = self.code, self._name, 8 * _HEAD
        end = begin + self._size
        numbers = *code.part, code.orientation, code.channels, code.index, end - begin, len(name)
        target[:begin].view(np.int64)[:] = numbers
        if self.pixels is None:
            target[begin:end] = code.data
        else:
            self.pixels.write(target[begin:end].reshape(self.pixels.shape))
        target[end : end + len(name)] = np.frombuffer(name, np.uint8)


def read_codes(data: Array) -> Iterator[Code]:
    """Yield the codes that lie one behind the other; their data are views.

    >>> code = Code(np.arange(5, dtype=np.uint8), (0, 0, 4, 6), file="a.jpg", index=7)
    >>> encoded = Encoded(code, np.zeros(13, np.float32))
    >>> data = np.zeros((2, encoded.nbytes), np.uint8)
    >>> encoded.write(data[0]); encoded.write(data[1])
    >>> for code in read_codes(data.reshape(-1)):
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
