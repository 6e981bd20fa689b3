"""Regions of images, as they are staged for a GPU: pixels, or encoded bytes that the GPU decodes itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from gpuloader.fields.spec import Array

Part = tuple[int, int, int, int]
"""Top, left, bottom and right of a part of an image."""

NUMBERS = 13
"""Numbers in a region's geometry; `gpuloader.kernels.resample` names them. Changes of color may follow."""


@dataclass(slots=True, eq=False, repr=False)
class Region:
    """The part of an image that a kernel needs to resample it.

    A batch of regions has three arrays: all pixels one after another, row splits, and geometry.
    """

    shape: tuple[int, int]  # the number of pixels, and the channels of each
    geometry: Array  # float32: `NUMBERS` numbers, then pairs that change colors, see `kernels.recolor`
    # The pixels, uint8 of that shape; or what decodes them into an array of that shape. An encoded image is
    # decoded only when its region is written, so that no pixels wait in memory for those of other samples.
    source: Array | Callable[[Array], object]

    dtype = np.dtype(np.uint8)  # lets collation recognize a field of arrays
    level = 2  # that of a field of regions: the number of its arrays minus one

    @property
    def step(self) -> tuple[int, ...]:
        """The shape of a pixel."""
        return self.shape[1:]

    def write(self, target: Array) -> None:
        """Write the pixels into an array of their shape; raise `DecodeError` if they cannot be decoded."""
        if isinstance(self.source, np.ndarray):
            target[...] = self.source
        else:
            self.source(target)


# The numbers of a code, in front of its bytes. All are int64, and each code is padded to a multiple of 8
# bytes, so the next code's numbers are aligned.
_HEAD = 9


@dataclass(slots=True, eq=False, repr=False)
class Code:
    """A region of an image for a device: the encoded image, or the region's pixels."""

    data: Array  # the encoded image; or the region's pixels, row by row; uint8 of one dimension
    part: Part  # of the upright image
    orientation: int = 1  # how the encoded image is turned, in Exif's numbering; 0 if the data are pixels
    channels: int = 3
    file: str = ""  # to name in errors
    index: int = -1  # the sample's index in the dataset, to name in errors; -1 if it is not a number

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the region."""
        top, left, bottom, right = self.part
        return bottom - top, right - left, self.channels


@dataclass(slots=True, eq=False, repr=False)
class Encoded:
    """An image that a device is to decode before a kernel resamples it.

    A batch of them has four arrays: what `read_codes` reads, row splits of the pixels, geometry, and an array
    without bytes whose first dimension is the number of all pixels. So a batch's layout says how much memory
    the decoded pixels need, although they are never staged.
    """

    code: Code  # without data if there are pixels
    geometry: Array  # as for a `Region`
    pixels: Region | None = None  # the region, if the device gets its pixels

    dtype = np.dtype(np.uint8)
    level = 3

    @classmethod
    def of(cls, region: Region, file: str = "", index: int = -1) -> Encoded:
        """Return a region for a device that gets its pixels.

        >>> Encoded.of(Region((6, 3), np.float32([2, 3, 10, 20] + [0] * 9), np.zeros((6, 3)))).code.part
        (10, 20, 12, 23)
        """
        height, width, top, left = region.geometry[:4].astype(int).tolist()
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
        size = self.code.data.size if self.pixels is None else math.prod(self.pixels.shape)
        return 8 * _HEAD + -(-(size + len(_encode_name(self.code.file))) // 8) * 8

    def write(self, target: Array) -> None:
        """Write what `read_codes` reads; raise `DecodeError` if there are pixels that cannot be decoded."""
        # All in one array of bytes, so that a batch of files is one field of the slot.
        code, name, begin = self.code, _encode_name(self.code.file), 8 * _HEAD
        end = begin + (code.data.size if self.pixels is None else math.prod(self.pixels.shape))
        numbers = *code.part, code.orientation, code.channels, code.index, end - begin, len(name)
        target[:begin].view(np.int64)[:] = numbers
        if self.pixels is None:
            target[begin:end] = code.data
        else:
            self.pixels.write(target[begin:end].reshape(self.pixels.shape))
        target[end : end + len(name)] = np.frombuffer(name, np.uint8)


def _encode_name(file: str) -> bytes:
    return file.encode("utf-8", "surrogatepass")  # a file's name need not be valid text


def read_codes(data: Array) -> Iterator[Code]:
    """Yield codes that lie one after another; their data are views.

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
