"""`Picture`: an encoded picture, and the values that a field of pictures may have."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.errors import PictureError, SampleError, SourceError
from gpuloader.fields.image_regions import Code, Part
from gpuloader.foreign import is_instance
from gpuloader.sources.images.decoding import (
    Header,
    Pixels,
    choose_shrink,
    decode,
    decode_briefly,
    decode_part,
    find_decodable,
    load_pillow,
    read_header,
    shrink_size,
)

# The geometry of a picture: which part of it to take, how to resample that, and how to mirror the result.

FILTERS = {"bilinear": 1.0, "bicubic": 2.0}
"""The filters, and how far each reaches, in pixels of the coarser of the two grids."""

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How to get a picture of one size from a picture of any size.

    The box is resampled to the size, as Pillow's ``resize(size, filter, box)`` does, columns first. The
    window is cut from the result, and mirrored.

    Attributes
    ----------
    box : tuple of float
        Left, top, right and bottom of the part to resample, in pixels of the source. The filter reaches
        beyond it.
    size : tuple of int
        Height and width to which the box is resampled.
    window : tuple of int
        Top, left, height and width of the part of that to keep. What lies outside is black.
    flip, flop : bool
        Whether to mirror the window left to right, and top to bottom.
    filter : str or None
        'bilinear' or 'bicubic', antialiased; None if nothing is resampled and the box is the whole source.
    scaled : bool
        Whether the decoder may shrink the source first.

    Examples
    --------
    >>> Geometry.of(375, 500).resized((256, 341), "bilinear").cut(16, 58, 224, 224).window
    (16, 58, 224, 224)
    """

    box: Box
    size: tuple[int, int]
    window: tuple[int, int, int, int]
    flip: bool = False
    flop: bool = False
    filter: str | None = None
    scaled: bool = False

    @classmethod
    def of(cls, height: int, width: int) -> Geometry:
        """Return the geometry that keeps a picture as it is."""
        return cls((0, 0, width, height), (height, width), (0, 0, height, width))

    @property
    def height(self) -> int:
        """The height of the result."""
        return self.window[2]

    @property
    def width(self) -> int:
        """The width of the result."""
        return self.window[3]

    def cut(self, top: int, left: int, height: int, width: int) -> Geometry:
        """Return the geometry that keeps only a part of this one's result."""
        if self.flip:
            left = self.width - left - width
        if self.flop:
            top = self.height - top - height
        # Not dataclasses.replace, which takes five times as long, for every picture.
        window = self.window[0] + top, self.window[1] + left, height, width
        return Geometry(self.box, self.size, window, self.flip, self.flop, self.filter, self.scaled)

    def mirrored(self, *, flip: bool = False, flop: bool = False) -> Geometry:
        """Return the geometry that mirrors this one's result."""
        flip, flop = self.flip != flip, self.flop != flop
        return Geometry(self.box, self.size, self.window, flip, flop, self.filter, self.scaled)

    @property
    def can_resize(self) -> bool:
        """Whether `resized` applies: nothing is resampled yet, and the window lies within the picture."""
        top, left, height, width = self.window
        inside = top >= 0 and left >= 0 and top + height <= self.size[0] and left + width <= self.size[1]
        return self.filter is None and inside

    def resized(self, size: tuple[int, int], filter: str, *, scaled: bool = False) -> Geometry:  # noqa: A002
        """Return the geometry that resamples this one's result, which is not resampled yet, to a size."""
        top, left, height, width = self.window
        box = left, top, left + width, top + height
        return Geometry(box, size, (0, 0, *size), self.flip, self.flop, filter, scaled)

    def find_region(self) -> tuple[int, int, int, int]:
        """Return top, left, bottom and right of the part of the source that the result depends on.

        >>> Geometry.of(400, 400).cut(100, 50, 200, 200).resized((100, 100), "bilinear").find_region()
        (99, 49, 301, 251)
        """
        if self.filter is None:
            top, left, height, width = self.window
            return top, left, top + height, left + width
        (first, last), (near, far) = self._reach(1), self._reach(0)
        return first, near, last, far

    def find_part(self, height: int, width: int) -> Part:
        """Return `find_region` with one more pixel on each side, clipped to a source of this size.

        Pillow and the kernel round the edges of the box to float32, so they may read one pixel more.

        >>> Geometry.of(40, 60).cut(10, 20, 8, 8).resized((4, 4), "bilinear").find_part(40, 60)
        (8, 18, 20, 30)
        """
        top, left, bottom, right = self.find_region()
        top, left = min(max(top - 1, 0), height - 1), min(max(left - 1, 0), width - 1)
        return top, left, max(min(bottom + 1, height), top + 1), max(min(right + 1, width), left + 1)

    def _reach(self, axis: int) -> tuple[int, int]:
        """Return the first source row (axis 1) or column (axis 0) that is read, and the one after the last.

        The source's own edges are not known here, so the end may lie beyond the source.
        """
        assert self.filter is not None
        start, stop, count = self.box[axis], self.box[axis + 2], self.size[1 - axis]
        begin, length = self.window[1 - axis], self.window[3 - axis]
        begin, end = min(max(begin, 0), count - 1), max(min(begin + length, count), 1)
        scale = (stop - start) / count
        support = FILTERS[self.filter] * max(scale, 1.0)
        low = math.floor(start + (begin + 0.5) * scale - support + 0.5)
        high = math.floor(start + (end - 0.5) * scale + support + 0.5)
        return max(low, 0), max(high, 1)

    def shrunk(self, height: int, width: int, shrunk: tuple[int, int]) -> Geometry:
        """Return the geometry for a source of this size that a decoder has shrunk to another size."""
        down, across = shrunk[0] / height, shrunk[1] / width
        left, top, right, bottom = self.box
        right, bottom = min(right * across, shrunk[1]), min(bottom * down, shrunk[0])
        return replace(self, box=(left * across, top * down, right, bottom))


_Bytes = bytes | bytearray | memoryview


class Picture:
    """An encoded picture, such as the contents of a JPEG file, which is decoded when its pixels are needed.

    NumPy takes it for an array of its pixels: ``np.asarray(picture)``. A loader decodes it where its batch is
    written, and only at the size that the transforms need.

    Parameters
    ----------
    data : bytes, bytearray or memoryview
        The encoded picture, in any format that Pillow reads.
    file : str
        The name to give in errors.
    upright : bool
        Whether to turn the picture as its Exif orientation says. False takes the pixels as they are stored,
        as torchvision does.

    Attributes
    ----------
    data : bytes
        The encoded picture.
    file : str
        The name that was passed.
    shape : tuple of int
        Height, width and 3.
    dtype : numpy.dtype
        uint8.

    Raises
    ------
    PictureError
        Raised when the size or the pixels are needed: the data is not a picture, is damaged or truncated, or
        has too many pixels.

    Examples
    --------
    >>> import io, pytest
    >>> image = pytest.importorskip("PIL.Image")
    >>> file = io.BytesIO()
    >>> image.new("RGB", (40, 30), "red").save(file, "PNG")
    >>> picture = Picture(file.getvalue())
    >>> picture.shape, np.asarray(picture)[0, 0]
    ((30, 40, 3), array([255,   0,   0], dtype=uint8))
    """

    __slots__ = ("_header", "data", "file", "upright")

    dtype = np.dtype(np.uint8)

    def __init__(self, data: _Bytes, file: str = "", *, upright: bool = False) -> None:
        self.data: bytes = data if isinstance(data, bytes) else bytes(data)
        self.file = file
        self.upright = upright
        self._header: Header | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, upright: bool = False) -> Picture:
        """Return the picture in a file; raise `SourceError` if the file cannot be read."""
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - faster for small files
                data = file.read()
        except OSError as error:
            raise SourceError(f"cannot read the picture: {error.strerror}", url=str(path)) from error
        return cls(data, str(path), upright=upright)

    @property
    def header(self) -> Header:
        """What the file says of itself."""
        if self._header is None:
            self._header = read_header(self.data, self.file, upright=self.upright)
        return self._header

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and 3."""
        return (*self.header.size, 3)

    def decode(self) -> Pixels:
        """Return the pixels, uint8 of shape (height, width, 3)."""
        return decode(self.data, self.header, self.file)

    def plan_decoding(self, geometry: Geometry) -> tuple[int, Geometry]:
        """Return the eighths of its size to decode the picture at, and the geometry for its pixels then."""
        header = self.header
        if not geometry.scaled or geometry.filter is None:
            return 8, geometry
        left, top, right, bottom = geometry.box
        box = (top, left, bottom, right) if header.orientation > 4 else geometry.box
        size = geometry.size[::-1] if header.orientation > 4 else geometry.size
        shrink = choose_shrink(header, box, size)
        height, width = header.size
        shrunk = shrink_size(header.size, shrink)
        return shrink, geometry if shrink == 8 else geometry.shrunk(height, width, shrunk)

    def decode_at(self, shrink: int, out: Pixels | None = None) -> Pixels | Any:
        """Return pixels to use before this thread decodes another picture, as `decode_briefly` does.

        Raises
        ------
        PictureError
            The picture cannot be decoded, or has another size than its header says.
        """
        pixels = decode_briefly(self.data, self.header, self.file, shrink, out)
        expected, found = shrink_size(self.header.size, shrink), size_of(pixels)
        if found != expected:
            names = (" x ".join(map(str, size)) for size in (expected, found))
            raise PictureError(
                "expected {} pixels, as the header says, got {}".format(*names), file=self.file
            )
        return pixels

    def find_decodable(self, shrink: int, part: Part) -> Part:
        """Return the part that `decode_part` decodes to get the right pixels of a part: itself, or more.

        Parameters
        ----------
        shrink : int
            The eighths of its size to decode the picture at.
        part : tuple of int
            The part's top, left, bottom and right, at that size.
        """
        return find_decodable(self.data, self.header, shrink, part)

    def decode_part(self, shrink: int, part: Part, out: Pixels | None = None) -> Pixels:
        """Return the pixels of what `find_decodable` returned, as `decode_at` does.

        Only within the part that `find_decodable` was given are they those of the whole picture.

        Raises
        ------
        PictureError
            As `decode_at` does.
        """
        top, left, bottom, right = part
        pixels = decode_part(self.data, self.header, shrink, part, out)
        if pixels is not None:
            return pixels
        whole = self.decode_at(shrink)
        if isinstance(whole, np.ndarray):
            found = whole[top:bottom, left:right]
        else:
            found = np.asarray(whole.crop((left, top, right, bottom)))
        if out is None:
            return np.ascontiguousarray(found)
        out[...] = found
        return out

    def to_pillow(self) -> Any:
        """Return the picture as an image of Pillow, of mode RGB; raises the errors of the class."""
        return load_pillow().fromarray(self.decode())

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(
                "an encoded picture has no pixels in memory yet: they cannot be had without a copy"
            )
        pixels = self.decode()
        return pixels if dtype is None else pixels.astype(dtype, copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self.data, self.file, self.upright)

    def __repr__(self) -> str:
        name = f" {self.file}" if self.file else ""
        return f"<Picture{name}: {len(self.data):,} bytes>"


def _make(data: bytes, file: str, upright: bool) -> Picture:
    return Picture(data, file, upright=upright)


def decode_code(code: Code) -> Pixels:
    """Return the pixels of the region that a code holds, uint8 of shape (height, width, channels).

    Raises
    ------
    PictureError
        The encoded picture cannot be decoded.
    """
    if not code.orientation:
        return code.data.reshape(code.shape)
    top, left, bottom, right = code.part
    picture = Picture(code.data.tobytes(), code.file, upright=code.orientation > 1)
    return np.ascontiguousarray(picture.decode()[top:bottom, left:right])


def is_encoded(value: object) -> bool:
    """Return whether a value is an encoded picture: bytes, or a dict of bytes and path as Hugging Face has.

    >>> is_encoded(b"..."), is_encoded({"bytes": b"...", "path": None}), is_encoded("a.jpg")
    (True, True, False)
    """
    return isinstance(value, _Bytes) or (isinstance(value, Mapping) and set(value) == {"bytes", "path"})


def as_picture(value: Any) -> Picture | Pixels | Any:
    """Return a value of a field of pictures as something to resample.

    Parameters
    ----------
    value : object
        A `Picture`; the bytes of one, alone or in a dict with its path; an image of Pillow; or uint8 pixels
        of shape (height, width), (height, width, 1) or (height, width, 3).

    Returns
    -------
    Picture, numpy.ndarray or PIL.Image.Image
        Arrays have shape (height, width, channels), images the mode RGB or L.

    Raises
    ------
    SampleError
        The value is none of these.
    """
    if isinstance(value, Picture):
        return value
    if isinstance(value, _Bytes):
        return Picture(value)
    if is_encoded(value):
        data, path = value["bytes"], value["path"]
        return Picture.read(path) if data is None else Picture(data, path or "")
    if is_instance(value, "PIL.Image", "Image"):
        return value if value.mode in ("RGB", "L") else value.convert("RGB")
    pixels = np.asarray(value) if hasattr(value, "__array__") else None
    if pixels is None or pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        found = type(value).__name__ if pixels is None else f"{pixels.dtype} of shape {pixels.shape}"
        raise SampleError(f"expected a picture: encoded bytes, or uint8 (height, width, 3), got {found}")
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.shape[2] not in (1, 3) or not pixels.size:
        raise SampleError(f"expected pixels of shape (height, width, 3), got {pixels.shape}")
    return np.ascontiguousarray(pixels)


def size_of(picture: Picture | Pixels | Any) -> tuple[int, int]:
    """Return the height and width of what `as_picture` returned.

    >>> size_of(np.zeros((3, 4, 3), np.uint8))
    (3, 4)
    """
    if isinstance(picture, Picture):
        return picture.header.size
    if isinstance(picture, np.ndarray):
        return picture.shape[0], picture.shape[1]
    return picture.height, picture.width
