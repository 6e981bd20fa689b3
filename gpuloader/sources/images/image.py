"""`Image`: an encoded image, the geometry that gives it a size, and other values that count as images."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.errors import DecodeError, SampleError, SourceError
from gpuloader.foreign import is_instance
from gpuloader.sources.images import decoding
from gpuloader.sources.images.regions import Code, Part

# ---------------------------------------------------------------------------------------------------------
# The geometry of an image: which part of it to take, how to resample that, and how to mirror the result

FILTERS = {"bilinear": 1.0, "bicubic": 2.0}
"""The filters, and how far each reaches, in pixels of the coarser of the two grids."""

Box = tuple[float, float, float, float]


class Geometry(NamedTuple):
    """How to get an image of one size from an image of any size.

    The box is resampled to the size, as Pillow's ``resize(size, filter, box)`` does, columns first. The
    window is cut from the result, and mirrored.

    >>> Geometry.of(375, 500).resized((256, 341), "bilinear").cut(16, 58, 224, 224).window
    (16, 58, 224, 224)
    """

    box: Box  # left, top, right and bottom of what to resample, in pixels; the filter reaches beyond it
    size: tuple[int, int]  # height and width to which the box is resampled
    # Top, left, height and width of the part of that to keep. What lies outside is black.
    window: tuple[int, int, int, int]
    flip: bool = False  # whether to mirror the window left to right
    flop: bool = False  # and top to bottom
    # 'bilinear' or 'bicubic', antialiased; None if nothing is resampled and the box is the whole image
    filter: str | None = None
    scaled: bool = False  # whether the decoder may shrink the image first

    @classmethod
    @lru_cache(typed=True)  # many images have the same size
    def of(cls, height: int, width: int) -> Geometry:
        """Return the geometry that keeps an image as it is."""
        return cls((0, 0, width, height), (height, width), (0, 0, height, width))

    # These three are called for every image; `_replace` would take three times as long.

    def cut(self, top: int, left: int, height: int, width: int) -> Geometry:
        """Return the geometry that keeps only a part of this one's result."""
        y, x, tall, wide = self.window
        if self.flip:
            left = wide - left - width
        if self.flop:
            top = tall - top - height
        window = y + top, x + left, height, width
        return Geometry(self.box, self.size, window, self.flip, self.flop, self.filter, self.scaled)

    def mirrored(self, *, flip: bool = False, flop: bool = False) -> Geometry:
        """Return the geometry that mirrors this one's result."""
        flip, flop = self.flip != flip, self.flop != flop
        return Geometry(self.box, self.size, self.window, flip, flop, self.filter, self.scaled)

    def resized(self, size: tuple[int, int], filter: str, *, scaled: bool = False) -> Geometry:  # noqa: A002
        """Return the geometry that resamples this one's result, not resampled so far, to a size."""
        top, left, height, width = self.window
        box = left, top, left + width, top + height
        return Geometry(box, size, (0, 0, *size), self.flip, self.flop, filter, scaled)

    def find_region(self) -> Part:
        """Return top, left, bottom and right of the part of the image that the result depends on.

        The image's own size is not known here, so the end may lie beyond it.

        >>> Geometry.of(400, 400).cut(100, 50, 200, 200).resized((100, 100), "bilinear").find_region()
        (99, 49, 301, 251)
        """
        top, left, height, width = self.window
        if self.filter is None:
            return top, left, top + height, left + width
        ends = []
        for axis, begin, length in ((1, top, height), (0, left, width)):
            start, count = self.box[axis], self.size[1 - axis]
            begin, end = min(max(begin, 0), count - 1), max(min(begin + length, count), 1)
            scale = (self.box[axis + 2] - start) / count
            support = FILTERS[self.filter] * max(scale, 1.0)
            low = math.floor(start + (begin + 0.5) * scale - support + 0.5)
            high = math.floor(start + (end - 0.5) * scale + support + 0.5)
            ends.append((max(low, 0), max(high, 1)))
        (first, last), (near, far) = ends
        return first, near, last, far

    def find_part(self, height: int, width: int) -> Part:
        """Return `find_region` with one more pixel on each side, clipped to an image of this size.

        >>> Geometry.of(40, 60).cut(10, 20, 8, 8).resized((4, 4), "bilinear").find_part(40, 60)
        (8, 18, 20, 30)
        """
        # Pillow and the kernel round the edges of the box to float32, so they may read one more pixel.
        top, left, bottom, right = self.find_region()
        top, left = min(max(top - 1, 0), height - 1), min(max(left - 1, 0), width - 1)
        return top, left, max(min(bottom + 1, height), top + 1), max(min(right + 1, width), left + 1)


class Affine(NamedTuple):
    """How to turn, move, stretch and slant an image that keeps its size; what lies outside is black."""

    # a, b, c, d, e and f, as Pillow has them: x and y in the result are a * x + b * y + c and
    # d * x + e * y + f in the image.
    matrix: tuple[float, float, float, float, float, float]
    size: tuple[int, int]  # the image's height and width
    filter: str

    def transform(self, image: Any, filter: str, fill: int = 0) -> Any:  # noqa: A002
        """Return the result for a Pillow image, with another filter; `fill` is the value outside."""
        pillow = decoding.load_pillow()
        kind, (height, width) = pillow.Resampling[filter.upper()], self.size
        return image.transform((width, height), pillow.Transform.AFFINE, self.matrix, kind, fillcolor=fill)


Step = Geometry | Affine
"""What moves the pixels of an image, and what belongs to them."""


# ---------------------------------------------------------------------------------------------------------
# Encoded images

_Bytes = bytes | bytearray | memoryview


class Image:
    """An encoded image, such as the contents of a JPEG file, which is decoded when its pixels are needed.

    NumPy treats it as an array of its pixels: ``np.asarray(image)``. A loader decodes it where its batch is
    written, and only at the size that the transforms need.

    Parameters
    ----------
    data, file : bytes, bytearray or memoryview, str
        The encoded image, in any format that Pillow reads; and the name to use in errors.
    upright : bool
        Whether to turn the image as its Exif orientation says. False takes the pixels as they are stored, as
        torchvision does.

    Attributes
    ----------
    data, file, upright : bytes, str, bool
        What was passed.
    shape, dtype : tuple of int, numpy.dtype
        Height, width and 3; and uint8.

    Raises
    ------
    DecodeError
        Raised when the size or the pixels are needed: the data is not an image, is damaged or truncated, or
        has too many pixels.

    Examples
    --------
    >>> import io, pytest
    >>> pillow = pytest.importorskip("PIL.Image")
    >>> file = io.BytesIO()
    >>> pillow.new("RGB", (40, 30), "red").save(file, "PNG")
    >>> image = Image(file.getvalue())
    >>> image.shape, np.asarray(image)[0, 0]
    ((30, 40, 3), array([255,   0,   0], dtype=uint8))
    """

    __slots__ = ("_header", "data", "file", "upright")

    dtype = np.dtype(np.uint8)

    def __init__(self, data: _Bytes, file: str = "", *, upright: bool = False) -> None:
        self.data: bytes = data if isinstance(data, bytes) else bytes(data)
        self.file = file
        self.upright = upright
        self._header: decoding.Header | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, upright: bool = False) -> Image:
        """Return the image in a file; raise `SourceError` if the file cannot be read."""
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - faster for small files
                data = file.read()
        except OSError as error:
            raise SourceError(f"cannot read the image: {error.strerror}", url=str(path)) from error
        return cls(data, str(path), upright=upright)

    @property
    def header(self) -> decoding.Header:
        """What the file says about itself."""
        if self._header is None:
            self._header = decoding.read_header(self.data, self.file, upright=self.upright)
        return self._header

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and 3."""
        return (*self.header.size, 3)

    def decode(self) -> decoding.Pixels:
        """Return the pixels in memory of their own, uint8 of shape (height, width, 3)."""
        own = np.empty(self.shape, np.uint8)
        pixels = self.decode_at(decoding.EIGHTHS, own)
        return own if pixels is own else np.array(pixels)

    def plan_decoding(self, geometry: Geometry) -> tuple[int, Geometry]:
        """Return the eighths of its size to decode the image at, and the geometry for its pixels then."""
        if not geometry.scaled or geometry.filter is None or not self.header.is_turbo:
            return decoding.EIGHTHS, geometry
        left, top, right, bottom = geometry.box
        needed = max(geometry.size[0] / (bottom - top), geometry.size[1] / (right - left))
        # The box stays at least as large as its result. Only halves are chosen: libjpeg-turbo takes twice as
        # long for 7 / 8 as for the whole image, because it has vector code only for the whole, a half, a
        # quarter and an eighth.
        shrink = next((part for part in (1, 2, 4) if part >= needed * decoding.EIGHTHS), decoding.EIGHTHS)
        if shrink == decoding.EIGHTHS:
            return shrink, geometry
        size = height, width = self.header.size
        tall, wide = decoding.shrink_size(size, shrink)
        down, across = tall / height, wide / width
        box = left * across, top * down, min(right * across, wide), min(bottom * down, tall)
        return shrink, geometry._replace(box=box)

    def decode_at(self, shrink: int, out: decoding.Pixels | None = None) -> decoding.Pixels | Any:
        """Return the pixels at `shrink` eighths of the size, for use until this thread decodes another image.

        They are an array, or an image of Pillow of mode RGB, and lie in `out` if the decoder can write there.
        Raises `DecodeError` if the image cannot be decoded, or its size differs from what its header says.
        """
        data, (stored, _, is_turbo, orientation, _) = self.data, self.header
        size = height, width = decoding.shrink_size(stored, shrink)
        try:
            if is_turbo:
                into = decoding.take_scratch((*size, 3)) if out is None or orientation > 1 else out
                try:
                    # It takes a minimum size instead of a factor, and then looks for the factor.
                    found = decoding.load_turbo().decode_jpeg(
                        data, "RGB", min_height=height, min_width=width, buffer=into
                    )
                except ValueError:
                    pass  # It also refuses what libjpeg only warns about, so Pillow decides what is damaged.
                else:
                    if found.shape == into.shape:  # it is a view of `into`
                        return into if orientation == 1 else decoding.turn_upright(into, orientation)
            with decoding.open_by_pillow(data) as image:
                if shrink < decoding.EIGHTHS:
                    least = tuple(length * shrink // decoding.EIGHTHS for length in reversed(stored))
                    image.draft(None, least)
                image.load()
                if image.mode != "RGB":  # converting an RGB image would copy it
                    image = image.convert("RGB")
            if size_of(image) != size:
                got = f"{image.height} x {image.width}"
                problem = f"expected {height} x {width} pixels, as the header says, got {got}"
                raise DecodeError(problem, file=self.file)
            return image if orientation == 1 else decoding.turn_upright(np.array(image), orientation)
        except Exception as error:
            decoding.raise_for_file(error, self.file)

    def find_decodable(self, shrink: int, part: Part) -> Part:
        """Return the part that `decode_part` decodes to get the right pixels of a part: itself, or more.

        `shrink` is the eighths of its size at which to decode the image, and `part` is the top, left, bottom
        and right at that size.
        """
        header = self.header
        if not header.unit:
            return part
        # Imported late, because whole images are decoded without it.
        from gpuloader.sources.images.turbojpeg import INTERPOLATED, load_turbojpeg

        if load_turbojpeg() is None:
            return part
        # The decoder begins at whole units of columns. It interpolates colors between columns, but not at the
        # edges of what it decodes, and not at all if that is very narrow. So one more column is decoded on
        # each side.
        top, left, bottom, right = part
        _, width = decoding.shrink_size(header.size, shrink)
        unit = max(header.unit * shrink // decoding.EIGHTHS, 1)
        left = max(min(left - 1, width - INTERPOLATED), 0) // unit * unit
        return top, left, bottom, min(max(right + 1, left + INTERPOLATED), width)

    def decode_part(self, shrink: int, part: Part, out: decoding.Pixels | None = None) -> decoding.Pixels:
        """Return the pixels of what `find_decodable` returned, as `decode_at` does.

        Only the part that `find_decodable` was given has the whole image's pixels. `out` may have any shape
        with the right number of bytes.
        """
        top, left, bottom, right = part
        shape = bottom - top, right - left, 3
        whole = decoding.shrink_size(self.header.size, shrink)
        into = None if out is None else out.reshape(shape)
        # The decoder of whole images decodes a whole image, straight into its final memory if it can.
        is_whole = into is not None and part == (0, 0, *whole)
        if self.header.unit and not is_whole:
            from gpuloader.sources.images.turbojpeg import load_turbojpeg

            if (decoder := load_turbojpeg()) is not None:
                target = decoding.take_scratch(shape, (*whole, 3)) if into is None else into
                if decoder.decode_part(self.data, part, shrink, target):
                    return target if out is None else out
        image = self.decode_at(shrink, into if is_whole else None)
        if isinstance(image, np.ndarray):
            found = image[top:bottom, left:right]
        else:
            found = np.asarray(image.crop((left, top, right, bottom)))
        if into is None or out is None:
            return np.ascontiguousarray(found)
        if image is not into:
            into[...] = found
        return out

    def to_pillow(self) -> Any:
        """Return the image as a Pillow image of mode RGB; raises the errors of the class."""
        return decoding.load_pillow().fromarray(self.decode())

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("an encoded image has no pixels in memory: they cannot be had without a copy")
        pixels = self.decode()
        return pixels if dtype is None else pixels.astype(dtype, copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self.data, self.file, self.upright)

    def __repr__(self) -> str:
        name = f" {self.file}" if self.file else ""
        return f"<Image{name}: {len(self.data):,} bytes>"


Picture = Image
"""An earlier name of the class, which programs may still import."""


def _make(data: bytes, file: str, upright: bool) -> Image:
    return Image(data, file, upright=upright)  # pickles name this function


# ---------------------------------------------------------------------------------------------------------
# Other values that count as images


def decode_code(code: Code) -> decoding.Pixels:
    """Return the pixels of the region that a code holds, uint8 of shape (height, width, channels).

    Raises `DecodeError` if the encoded image cannot be decoded.
    """
    if not code.orientation:
        return code.data.reshape(code.shape)
    top, left, bottom, right = code.part
    image = Image(code.data.tobytes(), code.file, upright=code.orientation > 1)
    return np.ascontiguousarray(image.decode()[top:bottom, left:right])


def is_encoded(value: object) -> bool:
    """Return whether a value is an encoded image: bytes, or a dict of bytes and path as Hugging Face has.

    >>> is_encoded(b"..."), is_encoded({"bytes": b"...", "path": None}), is_encoded("a.jpg")
    (True, True, False)
    """
    return isinstance(value, _Bytes) or (isinstance(value, Mapping) and set(value) == {"bytes", "path"})


def as_image(value: Any) -> Image | decoding.Pixels | Any:
    """Return a value of a field of images as something to resample.

    The value is an `Image`; the bytes of one, alone or in a dict with its path; a Pillow image; or uint8
    pixels of shape (height, width), (height, width, 1) or (height, width, 3). Returns an `Image`, an array of
    shape (height, width, channels), or a Pillow image of the mode RGB or L. Raises `SampleError` for any
    other value.
    """
    if isinstance(value, Image):
        return value
    if isinstance(value, _Bytes):
        return Image(value)
    if is_encoded(value):
        data, path = value["bytes"], value["path"]
        return Image.read(path) if data is None else Image(data, path or "")
    if is_instance(value, "PIL.Image", "Image"):
        return value if value.mode in ("RGB", "L") else value.convert("RGB")
    pixels = np.asarray(value) if hasattr(value, "__array__") else None
    if pixels is None or pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        found = type(value).__name__ if pixels is None else f"{pixels.dtype} of shape {pixels.shape}"
        raise SampleError(f"expected an image: encoded bytes, or uint8 (height, width, 3), got {found}")
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.shape[2] not in (1, 3) or not pixels.size:
        advice = "; move the channels last: array.transpose(1, 2, 0)" if pixels.shape[0] in (1, 3, 4) else ""
        advice = "; leave out the alpha channel: array[..., :3]" if pixels.shape[2] == 4 else advice
        raise SampleError(f"expected pixels of shape (height, width, 3), got {pixels.shape}{advice}")
    return np.ascontiguousarray(pixels)


def size_of(image: Image | decoding.Pixels | Any) -> tuple[int, int]:
    """Return the height and width of what `as_image` returned.

    >>> size_of(np.zeros((3, 4, 3), np.uint8))
    (3, 4)
    """
    if isinstance(image, np.ndarray):
        return image.shape[0], image.shape[1]
    return image.header.size if isinstance(image, Image) else (image.height, image.width)
