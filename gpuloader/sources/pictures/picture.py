"""`Picture`: an encoded picture, and the values that a field of pictures may have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.base.errors import PictureError, SampleError, SourceError
from gpuloader.fields.encoded import Code, Part
from gpuloader.sources.pictures.decoding import (
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
from gpuloader.sources.pictures.geometry import Geometry
from gpuloader.sources.recognizing import is_instance

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
