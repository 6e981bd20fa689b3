"""What decoding an image takes: its header, memory, and a library, with the errors that they raise.

JPEG is decoded by libjpeg-turbo if simplejpeg is installed, anything else by Pillow. The pixels are those of
Pillow's ``Image.open(file).convert("RGB")``, whichever library decodes. `Image` puts this together.
"""

from __future__ import annotations

import io
import math
import threading
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import DecodeError, MissingPackage, describe_error, import_package

Pixels = NDArray[np.uint8]
"""Pixels of shape (height, width, channels)."""

EIGHTHS = 8
"""A decoder can shrink to n / 8 of the size; this means the whole size."""

_JPEG, _LAST = b"\xff\xd8\xff", b"\xff\xd9"  # the first bytes of a JPEG file, and the last ones
_TURBO = ("YCbCr", "Gray", "GRAY")  # Pillow decodes the rest: CMYK, YCCK, and RGB stored as such
_UNITS = {"444": 8, "422": 16, "420": 16, "440": 8, "411": 32, "Gray": 8}  # columns, by the subsampling
_KEPT = 64 << 20  # bytes of memory that a thread keeps for its next image


load_pillow = cache(partial(import_package, "PIL.Image", "decoding images", "images", "pillow"))
"""Returns the module ``PIL.Image``; raises `MissingPackage` if Pillow is not installed."""


@cache
def load_turbo() -> Any:
    """Return the module ``simplejpeg``, or None if it is not installed."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


# ---------------------------------------------------------------------------------------------------------
# Before decoding: the header, which says how large the image is


class Header(NamedTuple):
    """What a file says about itself before it is decoded."""

    stored: tuple[int, int]  # height and width of the stored image
    size: tuple[int, int]  # height and width of the upright image
    is_turbo: bool  # whether libjpeg-turbo decodes it
    orientation: int = 1  # how it is turned, in Exif's numbering: 1 is upright
    unit: int = 0  # the columns per unit at which a decoder can begin; 0 if parts cannot be decoded


def read_header(data: bytes, file: str = "", *, upright: bool = False) -> Header:
    """Return what an encoded image says about itself, without decoding it.

    Raises `DecodeError` if the data is empty, is not an image, or has more pixels than Pillow accepts.
    """
    if not data:
        raise DecodeError("the file is empty", file=file)
    is_jpeg = data.startswith(_JPEG)
    try:
        height, width, colors, subsampling = -1, -1, "", ""
        if is_jpeg and (turbo := load_turbo()) is not None:
            try:  # noqa: SIM105 - a `with` takes longer
                height, width, colors, subsampling = turbo.decode_jpeg_header(data)
            except ValueError:
                pass  # Pillow may know better
        if height < 0:
            with open_by_pillow(data) as image:
                height, width = image.height, image.width
        most = load_pillow().MAX_IMAGE_PIXELS
        if most is not None and height * width > 2 * most:
            raise DecodeError(
                f"the image has {height} x {width} pixels, more than the {2 * most:,} that are decoded; "
                "raise PIL.Image.MAX_IMAGE_PIXELS if that is meant",
                file=file,
            )
        if not height or not width:
            raise DecodeError("the image has no pixels", file=file)
        orientation = 1
        # Without this mark near its start, a JPEG has no orientation, so Pillow need not look for it.
        if upright and not (is_jpeg and b"Exif\0\0" not in data[: 1 << 17]):
            with open_by_pillow(data) as image:
                orientation = _find_orientation(image)
    except Exception as error:
        raise_for_file(error, file)
    stored, is_turbo = (height, width), colors in _TURBO
    # Without the last marker, the file may be cut off below a part, and TurboJPEG would not notice.
    has_parts = is_turbo and orientation == 1 and data.endswith(_LAST)
    unit = _UNITS.get(subsampling, 0) if has_parts else 0
    return Header(stored, (width, height) if orientation > 4 else stored, is_turbo, orientation, unit)


def _find_orientation(image: Any) -> int:
    found = image.getexif().get(0x0112, 1)
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def open_by_pillow(data: bytes) -> Any:
    """Return a Pillow image that has not been decoded yet."""
    # Not under `catch_warnings`, for the sake of Pillow's warning about large images: after that, Python
    # would repeat warnings of other threads that it has already shown.
    return load_pillow().open(io.BytesIO(data))


def raise_for_file(error: Exception, file: str) -> NoReturn:
    """Raise whatever a decoder raised as a `DecodeError` that names the file."""
    # The decoders raise many types for damaged files, so everything but these is treated as damage.
    if isinstance(error, DecodeError | MissingPackage | MemoryError):
        raise error
    if isinstance(error, load_pillow().UnidentifiedImageError):  # its text is the address of the data
        problem = "its data is in no format that Pillow knows"
    else:
        problem = describe_error(error)
    raise DecodeError(f"cannot decode the image: {problem}", file=file) from error


def shrink_size(size: tuple[int, int], shrink: int) -> tuple[int, int]:
    """Return the height and width of an image of this size, decoded at so many eighths of it.

    >>> shrink_size((375, 500), 4)
    (188, 250)
    """
    if shrink == EIGHTHS:
        return size
    height, width = size
    return -(-height * shrink // EIGHTHS), -(-width * shrink // EIGHTHS)


# ---------------------------------------------------------------------------------------------------------
# Decoding: memory for the pixels, and values as they are stored

_thread = threading.local()
_NONE = np.empty(0, np.uint8)


def take_scratch(shape: tuple[int, ...], whole: tuple[int, ...] | None = None) -> Pixels:
    """Return memory of the calling thread, valid until the thread asks for more.

    For a part of an image, `whole` is the shape to reserve, so that the memory need not grow for the next
    part.
    """
    # Each new array of this size would consist of new pages, which the system has to clear. Of a reserved
    # whole, only the pages that are written cost memory.
    kept = math.prod(whole or shape)
    if kept > _KEPT:
        return np.empty(shape, np.uint8)
    memory = getattr(_thread, "memory", _NONE)
    if kept > memory.size:
        memory = _thread.memory = np.empty(kept, np.uint8)
    return np.ndarray(shape, np.uint8, memory)


def decode_as_stored(data: bytes, file: str, bottom: int, *, upright: bool) -> NDArray[Any] | Any:
    """Return the values of an encoded image as they are stored, such as the numbers of a palette's colors.

    They are a loaded image of Pillow, or an array if it was turned upright. Values below the row `bottom` may
    be missing. Raises `DecodeError` if the data is damaged above it or truncated, or has more pixels than
    Pillow accepts.
    """
    if not len(data):
        raise DecodeError("the file is empty", file=file)
    try:
        # Opened once, without the header of other images, because opening takes as long as a small mask.
        with open_by_pillow(data) as image:
            # A PNG is stored from the top, and reading it is most of the time that a mask takes. Without its
            # last chunk it may be cut off, which reading only its top would not show.
            from_top = image.format == "PNG" and "interlace" not in image.info and data[-8:-4] == b"IEND"
            if from_top and not upright and len(image.tile) == 1:
                [(codec, (left, top, right, end), *how)] = image.tile
                if top < bottom < end:
                    image.tile = [(codec, (left, top, right, bottom), *how)]
            image.load()
            orientation = _find_orientation(image) if upright else 1
        return image if orientation == 1 else turn_upright(np.array(image), orientation)
    except Exception as error:
        raise_for_file(error, file)


def turn_upright(pixels: Pixels, orientation: int) -> Pixels:
    """Return pixels turned upright, given how they are turned, in Exif's numbering."""
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


# ---------------------------------------------------------------------------------------------------------
# Which encoded images a GPU decodes: complete JPEG files of the usual kinds, judged by their markers

_START, _END, _SCAN, _FRAMES = 0xD8, 0xD9, 0xDA, (0xC0, 0xC1, 0xC2)
_TABLES = {0xDB: "quantization", 0xC4: "huffman"}
_OTHER_FRAMES = frozenset(range(0xC0, 0xD0)) - {*_FRAMES, 0xC4, 0xC8}
_ADOBE = 0xEE
_SAMPLINGS = ((1, 1), (2, 1), (2, 2), (1, 2), (4, 1))
"""Pixels per sample of color, across and down: 4:4:4, 4:2:2, 4:2:0, 4:4:0 and 4:1:1."""


def is_plain(data: bytes) -> bool:
    """Return whether an image is a complete JPEG file that GPU decoders read like the CPU's.

    That is: baseline or progressive, 8 bits, gray or YCbCr with a usual subsampling, with its tables and its
    end. The compressed pixels themselves are not examined.

    >>> import io, pytest
    >>> pillow = pytest.importorskip("PIL.Image")
    >>> file = io.BytesIO()
    >>> pillow.new("RGB", (20, 10)).save(file, "JPEG")
    >>> is_plain(file.getvalue()), is_plain(file.getvalue()[:-20]), is_plain(b"GIF89a")
    (True, False, False)
    """
    if bytes(data[:2]) != bytes([0xFF, _START]):
        return False
    frame: bytes | None = None
    adobe: int | None = None  # the color transform that Adobe's programs record
    tables: set[str] = set()
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return False
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        length = data[at + 2] << 8 | data[at + 3]
        body, at = data[at + 4 : at + 2 + length], at + 2 + length
        if length < 2 or marker in _OTHER_FRAMES or (marker in _FRAMES and frame is not None):
            return False
        if marker in _FRAMES:
            frame = body if len(body) >= 6 and len(body) >= 6 + 3 * body[5] else None
        elif marker in _TABLES:
            tables.add(_TABLES[marker])
        elif marker == _ADOBE and bytes(body[:5]) == b"Adobe" and len(body) >= 12:
            adobe = body[11]
        elif marker == _SCAN:
            # Without its end, a file was cut off. Only the CPU's decoder knows whether that is an error.
            is_whole = data.rfind(bytes([0xFF, _END]), at) > 0
            return is_whole and len(tables) == len(_TABLES) and frame is not None and _is_usual(frame, adobe)
    return False


def _is_usual(frame: bytes, adobe: int | None) -> bool:
    """Return whether a frame has 8 bits, a height, and components that are gray or YCbCr."""
    bits, height, components = frame[0], frame[1] << 8 | frame[2], frame[5]
    if bits != 8 or not height or not components:  # a height of 0 means that it follows the pixels
        return False
    if components == 1:
        return True
    names = frame[6 : 6 + 3 * components : 3]
    luma, *chroma = ((one >> 4, one & 15) for one in frame[7 : 7 + 3 * components : 3])
    # Components that are named R, G and B are not converted, nor are those that Adobe marks this way.
    is_color = components == 3 and bytes(names) != b"RGB" and adobe in (None, 1)
    return is_color and luma in _SAMPLINGS and set(chroma) == {(1, 1)}
