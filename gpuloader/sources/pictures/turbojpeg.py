"""Decodes part of a JPEG with C functions of TurboJPEG 3, which no Python package exposes.

The package ``turbojpeg`` contains the library; otherwise the system's libjpeg-turbo 3 is used. For rows above
the part, the library only unpacks the coefficients. It does not read rows below the part, and computes no
pixels in columns beside it. See ``tj3SetCroppingRegion`` in TurboJPEG's documentation,
https://libjpeg-turbo.org/Documentation/Documentation.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.fields.encoded import Part

_DECOMPRESS = 1  # TJINIT_DECOMPRESS
_RGB = 0  # TJPF_RGB
_PROGRESSIVE = 12  # TJPARAM_PROGRESSIVE
_EIGHTHS = 8
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
                or self._shrink(handle, _Factor(1, _EIGHTHS // shrink))
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
