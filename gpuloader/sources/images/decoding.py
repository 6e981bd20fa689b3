"""Decodes pictures: JPEG by libjpeg-turbo if simplejpeg is installed, anything else by Pillow.

The pixels are those of Pillow's ``Image.open(file).convert("RGB")``, whichever of the two decodes.
"""

from __future__ import annotations

import ctypes
import io
import math
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import MissingPackage, PictureError, describe_error, missing_package
from gpuloader.fields.image_regions import Part

# Decodes part of a JPEG with C functions of TurboJPEG 3, which no Python package exposes.
#
# The package ``turbojpeg`` contains the library; otherwise the system's libjpeg-turbo 3 is used. For rows
# above the part, the library only unpacks the coefficients. It does not read rows below the part, and
# computes no pixels in columns beside it. See ``tj3SetCroppingRegion`` in TurboJPEG's documentation,
# https://libjpeg-turbo.org/Documentation/Documentation.

_DECOMPRESS = 1  # TJINIT_DECOMPRESS
_RGB = 0  # TJPF_RGB
_PROGRESSIVE = 12  # TJPARAM_PROGRESSIVE
_SCALE_DENOMINATOR = 8
_INTERPOLATED = 8  # columns: wide enough for the decoder to interpolate colors

_SYSTEM = {"darwin": "libturbojpeg.dylib", "win32": "turbojpeg.dll"}.get(sys.platform, "libturbojpeg.so.0")


def widen(part: Part, width: int, unit: int) -> Part:
    """Return the columns to decode so that the pixels of a part equal those of the whole picture.

    The decoder begins at whole units. It interpolates colors between columns, but not at the edges of what it
    decodes, and not at all if that is very narrow.

    Parameters
    ----------
    part : tuple of int
        The part's top, left, bottom and right.
    width : int
        The picture's width.
    unit : int
        The columns of a unit.

    Examples
    --------
    >>> widen((5, 40, 9, 60), 100, unit=16), widen((5, 96, 9, 100), 100, unit=16)
    ((5, 32, 9, 61), (5, 80, 9, 100))
    """
    top, left, bottom, right = part
    left = max(min(left - 1, width - _INTERPOLATED), 0) // unit * unit
    return top, left, bottom, min(max(right + 1, left + _INTERPOLATED), width)


class _Region(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int) for name in ("x", "y", "width", "height"))


class _Factor(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int) for name in ("numerator", "denominator"))


class TurboJPEG:
    """TurboJPEG 3 in a given library. Any thread may call the method.

    Parameters
    ----------
    library : str
        The path or the name of the library.

    Raises
    ------
    AttributeError
        The library has no such functions.
    OSError
        There is no such library.
    """

    def __init__(self, library: str) -> None:
        # Releasing the interpreter's lock takes longer than a brief call.
        decoding, brief = ctypes.CDLL(library), ctypes.PyDLL(library)
        handle, address, size, number = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._open = _declare(brief.tj3Init, handle, number)
        self._read = _declare(brief.tj3DecompressHeader, number, handle, ctypes.c_char_p, size)
        self._get = _declare(brief.tj3Get, number, handle, number)
        self._shrink = _declare(brief.tj3SetScalingFactor, number, handle, _Factor)
        self._crop = _declare(brief.tj3SetCroppingRegion, number, handle, _Region)
        self._decompress = _declare(
            decoding.tj3Decompress8, number, handle, ctypes.c_char_p, size, address, number, number
        )
        self._idle: deque[int] = deque()  # as many handles as threads have decoded at the same time

    def decode_part(self, data: bytes, part: Part, shrink: int, out: NDArray[np.uint8]) -> bool:
        """Decode a part of a JPEG; return False if its data is damaged or cannot be decoded in part.

        A progressive JPEG cannot: where scans are missing, the decoder smooths over the edges of blocks, and
        it would smooth less at the edges of the part.

        Parameters
        ----------
        data : bytes
            The JPEG.
        part : tuple of int
            What `widen` returned, after shrinking the picture.
        shrink : int
            The eighths of its size to shrink the picture to: 1, 2, 4 or 8.
        out : numpy.ndarray
            Memory for the pixels, uint8 of shape (height, width, 3), contiguous.
        """
        try:
            handle = self._idle.pop()
        except IndexError:
            handle = self._open(_DECOMPRESS)
        if not handle:
            return False
        top, left, bottom, right = part
        try:
            return not (
                self._read(handle, data, len(data))
                or self._get(handle, _PROGRESSIVE)
                or self._shrink(handle, _Factor(1, _SCALE_DENOMINATOR // shrink))
                or self._crop(handle, _Region(left, top, right - left, bottom - top))
                or self._decompress(handle, data, len(data), out.ctypes.data, out.strides[0], _RGB)
            )
        finally:
            self._idle.append(handle)


def _declare(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


@cache
def load_turbojpeg() -> TurboJPEG | None:
    """Return TurboJPEG 3, or None if no library of it is found."""
    for library in (*_list_bundled(), _SYSTEM):
        try:
            return TurboJPEG(library)
        except (OSError, AttributeError):  # no such library; or that of TurboJPEG 2
            continue
    return None


def _list_bundled() -> list[str]:
    """Return the paths of the libraries in the package ``turbojpeg``."""
    try:
        files = distribution("turbojpeg").files or []
    except PackageNotFoundError:
        return []
    return [str(file.locate()) for file in files if ".libs" in str(file) and "turbojpeg" in file.name]


Pixels = NDArray[np.uint8]
"""Pixels of shape (height, width, channels)."""

_JPEG, _END_OF_JPEG = b"\xff\xd8\xff", b"\xff\xd9"
_TURBO = ("YCbCr", "Gray", "GRAY")  # what is left to Pillow: CMYK, YCCK, and RGB stored as such
_UNITS = {"444": 8, "422": 16, "420": 16, "440": 8, "411": 32, "Gray": 8}  # columns, by the subsampling
_EIGHTHS = 8  # a decoder shrinks to n / 8 of the size
_KEPT = 64 << 20  # bytes: memory that a thread keeps for its next picture


class Header(NamedTuple):
    """What a file says of itself before it is decoded.

    Attributes
    ----------
    height, width : int
        The size of the stored picture.
    is_turbo : bool
        Whether libjpeg-turbo decodes it.
    orientation : int
        How it is turned, as Exif counts: 1 is upright.
    unit : int
        The columns of a unit, by which a decoder can begin; 0 if unknown.
    """

    height: int
    width: int
    is_turbo: bool
    orientation: int = 1
    unit: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the upright picture."""
        return (self.width, self.height) if self.orientation > 4 else (self.height, self.width)


@cache
def load_pillow() -> Any:
    """Return the module ``PIL.Image``; raise `MissingPackage` if Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise missing_package("decoding pictures", "pillow", "images") from None
    return Image


@cache
def load_turbo() -> Any:
    """Return the module ``simplejpeg``, or None if it is not installed."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


class _Scratch(threading.local):
    """Memory of a thread for the picture that it decodes, so that the kernel need not provide new pages."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def take(self, shape: tuple[int, ...], whole: tuple[int, ...] | None = None) -> Pixels:
        """Return an array of this shape, valid until the thread asks for the next.

        For a part of a picture, `whole` is the shape to reserve, so that the memory need not grow for the
        next part. The system provides only the pages that are written.
        """
        count, kept = math.prod(shape), math.prod(whole or shape)
        if kept > _KEPT:
            return np.empty(shape, np.uint8)
        if kept > self._memory.size:
            self._memory = np.empty(kept, np.uint8)
        return self._memory[:count].reshape(shape)


_scratch = _Scratch()


@contextmanager
def _reporting(file: str) -> Iterator[None]:
    """Raise whatever a decoder raises as a `PictureError` that names the file."""
    try:
        yield
    except (PictureError, MissingPackage, MemoryError):
        raise
    except load_pillow().UnidentifiedImageError as error:  # whose text is the address of the data
        problem = "cannot decode the picture: its data is in no format that Pillow knows"
        raise PictureError(problem, file=file) from error
    except Exception as error:  # the decoders raise many types for damaged files
        raise PictureError(f"cannot decode the picture: {describe_error(error)}", file=file) from error


def read_header(data: bytes, file: str = "", *, upright: bool = False) -> Header:
    """Return the size of an encoded picture without decoding it.

    Raises
    ------
    PictureError
        The data is empty, is not a picture, or has more pixels than Pillow accepts.
    """
    if not len(data):
        raise PictureError("the file is empty", file=file)
    with _reporting(file):
        header = _read_jpeg(data) or _read_other(data)
        most = load_pillow().MAX_IMAGE_PIXELS
        if most is not None and header.height * header.width > 2 * most:
            raise PictureError(
                f"the picture has {header.height} x {header.width} pixels, more than the {2 * most:,} that "
                "are decoded; raise PIL.Image.MAX_IMAGE_PIXELS if that is meant",
                file=file,
            )
        if not header.height or not header.width:
            raise PictureError("the picture has no pixels", file=file)
        return header._replace(orientation=_read_orientation(data)) if upright else header


def _read_jpeg(data: bytes) -> Header | None:
    turbo = load_turbo()
    if turbo is None or bytes(data[:3]) != _JPEG:
        return None
    try:
        height, width, colors, subsampling = turbo.decode_jpeg_header(data)
    except ValueError:
        return None  # Pillow may know better
    return Header(height, width, colors in _TURBO, unit=_UNITS.get(subsampling, 0))


def _read_other(data: bytes) -> Header:
    with open_image(data) as image:
        width, height = image.size
    return Header(height, width, is_turbo=False)


def _read_orientation(data: bytes) -> int:
    if bytes(data[:3]) == _JPEG and b"Exif\0\0" not in data[: 1 << 17]:
        return 1
    with open_image(data) as image:
        found = image.getexif().get(0x0112, 1)
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def open_image(data: bytes) -> Any:
    """Return an image of Pillow that has not been decoded yet."""
    pillow = load_pillow()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # `read_header` has the limit
        return pillow.open(io.BytesIO(data))


def decode(data: bytes, header: Header, file: str = "") -> Pixels:
    """Return the pixels of an encoded picture, uint8 of shape (height, width, 3).

    Raises
    ------
    PictureError
        The data is damaged or truncated.
    """
    with _reporting(file):
        if header.is_turbo:
            pixels = _decode_turbo(data, header, None)
            if pixels is not None:
                return _turn(pixels, header.orientation)
        return _turn(np.array(_convert(data)), header.orientation)


def decode_briefly(
    data: bytes,
    header: Header,
    file: str = "",
    shrink: int = _EIGHTHS,
    out: Pixels | None = None,
) -> Pixels | Any:
    """Return the pixels of an encoded picture for use until this thread decodes the next one.

    Parameters
    ----------
    data : bytes
        The encoded picture.
    header : Header
        Its header.
    file : str
        The file to name in errors.
    shrink : int
        The eighths of its size to which the decoder may shrink it, if it can.
    out : numpy.ndarray or None
        Memory of the result's size to decode into if possible, contiguous; None has the thread's own.

    Returns
    -------
    numpy.ndarray or PIL.Image.Image
        Pixels of shape (height, width, 3), or an image of mode RGB.
    """
    with _reporting(file):
        if header.is_turbo:
            pixels = _decode_turbo(data, header, _scratch, shrink, out)
            if pixels is not None:
                return _turn(pixels, header.orientation)
        image = _convert(data, header, shrink)
        return image if header.orientation == 1 else _turn(np.array(image), header.orientation)


def find_decodable(data: bytes, header: Header, shrink: int, part: Part) -> Part:
    """Return the part that `decode_part` decodes to get the right pixels of a part: itself, or more columns.

    Parameters
    ----------
    data : bytes
        The encoded picture.
    header : Header
        Its header.
    shrink : int
        The eighths of its size to decode it at.
    part : tuple of int
        The part's top, left, bottom and right, at that size.
    """
    if _find_part_decoder(data, header) is None:
        return part
    _, width = shrink_size(header.size, shrink)
    return widen(part, width, max(header.unit * shrink // _EIGHTHS, 1))


def decode_part(
    data: bytes, header: Header, shrink: int, part: Part, out: Pixels | None = None
) -> Pixels | None:
    """Return the pixels of what `find_decodable` returned, for use as those of `decode_briefly`.

    Parameters
    ----------
    data, header, shrink : bytes, Header, int
        As for `find_decodable`.
    part : tuple of int
        What it returned.
    out : numpy.ndarray or None
        Memory of the part's size to decode into, contiguous; None has the thread's own.

    Returns
    -------
    numpy.ndarray or None
        The pixels. None if TurboJPEG 3 is missing, if the picture is not an upright JPEG, or if it is
        damaged; the caller then decodes the whole picture.
    """
    library = _find_part_decoder(data, header)
    if library is None:
        return None
    top, left, bottom, right = part
    if out is None:
        out = _scratch.take((bottom - top, right - left, 3), (*shrink_size(header.size, shrink), 3))
    return out if library.decode_part(data, part, shrink, out) else None


def _find_part_decoder(data: bytes, header: Header) -> TurboJPEG | None:
    # Without this marker, the file may be cut off below the part, which TurboJPEG would not notice.
    is_sound = header.is_turbo and header.orientation == 1 and bytes(data[-2:]) == _END_OF_JPEG
    return load_turbojpeg() if is_sound and header.unit else None


def _decode_turbo(
    data: bytes,
    header: Header,
    scratch: _Scratch | None,
    shrink: int = _EIGHTHS,
    out: Pixels | None = None,
) -> Pixels | None:
    """Return pixels in the stored orientation; None if the data is damaged, so that Pillow decides."""
    height, width = shrink_size((header.height, header.width), shrink)
    options = {} if shrink == _EIGHTHS else {"min_height": height, "min_width": width, "min_factor": 1}
    buffer = None if scratch is None else scratch.take((height, width, 3))
    if out is not None and header.orientation == 1:
        buffer = out
    try:
        pixels: Pixels = load_turbo().decode_jpeg(data, "RGB", buffer=buffer, **options)
    except ValueError:
        return None
    return pixels


def _convert(data: bytes, header: Header | None = None, shrink: int = _EIGHTHS) -> Any:
    with open_image(data) as image:
        if header is not None and shrink != _EIGHTHS:
            image.draft(None, (header.width * shrink // _EIGHTHS, header.height * shrink // _EIGHTHS))
        image.load()
        return image if image.mode == "RGB" else image.convert("RGB")  # which would copy one of this mode


def _turn(pixels: Pixels, orientation: int) -> Pixels:
    """Return pixels turned upright; a view, or a copy of them."""
    if orientation == 1:
        return pixels
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def shrink_size(size: tuple[int, ...], shrink: int) -> tuple[int, int]:
    """Return the height and width of a picture of this size, decoded at so many eighths of it.

    >>> shrink_size((375, 500), 4)
    (188, 250)
    """
    height, width = size
    return -(-height * shrink // _EIGHTHS), -(-width * shrink // _EIGHTHS)


def choose_shrink(header: Header, box: tuple[float, float, float, float], size: tuple[int, int]) -> int:
    """Return the eighths of its size to decode a picture at; its box stays at least as large as `size`.

    Only halves are chosen: libjpeg-turbo takes twice as long for 7 / 8 as for the whole picture, because it
    has vector code for the whole, a half, a quarter and an eighth alone.

    >>> choose_shrink(Header(1000, 1000, True), (0, 0, 1000, 1000), (224, 224))
    2
    """
    if not header.is_turbo:
        return _EIGHTHS
    left, top, right, bottom = box
    needed = max(size[0] / (bottom - top), size[1] / (right - left))
    return next((part for part in (1, 2, 4) if part >= needed * _EIGHTHS), _EIGHTHS)


# Which encoded pictures a GPU decodes: JPEG files of the usual kinds that are whole, by their markers.

_START, _END, _SCAN, _FRAMES = 0xD8, 0xD9, 0xDA, (0xC0, 0xC1, 0xC2)
_TABLES = {0xDB: "quantization", 0xC4: "huffman"}
_OTHER_FRAMES = frozenset(range(0xC0, 0xD0)) - {*_FRAMES, 0xC4, 0xC8}
_ADOBE = 0xEE
_BITS = 8
_SAMPLINGS = ((1, 1), (2, 1), (2, 2), (1, 2), (4, 1))
"""Pixels per sample of color, across and down: 4:4:4, 4:2:2, 4:2:0, 4:4:0 and 4:1:1."""


class _Frame(NamedTuple):
    bits: int
    height: int
    components: tuple[tuple[int, int, int], ...]  # identifier, sampling across and down


def is_plain(data: bytes) -> bool:
    """Return whether a picture is a whole JPEG file that GPU decoders read as the CPU's do.

    That is baseline or progressive, of 8 bits, gray or YCbCr of a usual subsampling, with its tables and its
    end. The compressed pixels themselves are not looked at.

    Examples
    --------
    >>> import io, pytest
    >>> pillow = pytest.importorskip("PIL.Image")
    >>> file = io.BytesIO()
    >>> pillow.new("RGB", (20, 10)).save(file, "JPEG")
    >>> is_plain(file.getvalue()), is_plain(file.getvalue()[:-20]), is_plain(b"GIF89a")
    (True, False, False)
    """
    if bytes(data[:2]) != bytes([0xFF, _START]):
        return False
    frame: _Frame | None = None
    adobe: int | None = None
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
            frame = _read_frame(body)
        elif marker in _TABLES:
            tables.add(_TABLES[marker])
        elif marker == _ADOBE and bytes(body[:5]) == b"Adobe" and len(body) >= 12:
            adobe = body[11]
        elif marker == _SCAN:
            is_whole = data.rfind(bytes([0xFF, _END]), at) > 0
            return is_whole and len(tables) == len(_TABLES) and frame is not None and _is_usual(frame, adobe)
    return False


def _read_frame(body: bytes) -> _Frame | None:
    if len(body) < 6 or len(body) < 6 + 3 * body[5]:
        return None
    parts = [body[first : first + 2] for first in range(6, 6 + 3 * body[5], 3)]
    components = tuple((name, sampling >> 4, sampling & 15) for name, sampling in parts)
    return _Frame(body[0], body[1] << 8 | body[2], components)


def _is_usual(frame: _Frame, adobe: int | None) -> bool:
    """Return whether the components are gray or YCbCr; `adobe` is the color transform that Adobe notes."""
    if frame.bits != _BITS or not frame.height:
        return False
    names, *samplings = zip(*frame.components, strict=True) if frame.components else ((),)
    if len(names) == 1:
        return True
    luma, *chroma = zip(*samplings, strict=True) if samplings else ((),)
    is_color = len(names) == 3 and names != tuple(b"RGB") and adobe in (None, 1)
    return is_color and luma in _SAMPLINGS and set(chroma) == {(1, 1)}
