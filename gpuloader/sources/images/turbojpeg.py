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

from gpuloader.sources.images.regions import Part

_DECOMPRESS = 1  # TJINIT_DECOMPRESS
_RGB = 0  # TJPF_RGB
_PROGRESSIVE = 12  # TJPARAM_PROGRESSIVE
_INTERPOLATED = 8  # columns: wide enough for the decoder to interpolate colors
_SYSTEM = {"darwin": "libturbojpeg.dylib", "win32": "turbojpeg.dll"}.get(sys.platform, "libturbojpeg.so.0")


def widen(part: Part, width: int, unit: int) -> Part:
    """Return a part with more columns, so that the pixels that were asked for equal those of the whole image.

    `width` is the image's, and `unit` is the number of columns in one of the units that it is stored in.

    >>> widen((5, 40, 9, 60), 100, unit=16), widen((5, 96, 9, 100), 100, unit=16)
    ((5, 32, 9, 61), (5, 80, 9, 100))
    """
    # The decoder begins at whole units. It interpolates colors between columns, but not at the edges of what
    # it decodes, and not at all if that is very narrow. So there is one more column on each side.
    top, left, bottom, right = part
    left = max(min(left - 1, width - _INTERPOLATED), 0) // unit * unit
    return top, left, bottom, min(max(right + 1, left + _INTERPOLATED), width)


class _Rectangle(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_int),
        ("y", ctypes.c_int),
        ("width", ctypes.c_int),
        ("height", ctypes.c_int),
    )


class _Fraction(ctypes.Structure):
    _fields_ = (("numerator", ctypes.c_int), ("denominator", ctypes.c_int))


class TurboJPEG:
    """TurboJPEG 3 in a given library. Any thread may call the method.

    Raises `OSError` if there is no such library, and `AttributeError` if it is one of TurboJPEG 2.
    """

    def __init__(self, library: str) -> None:
        # Decoding releases the interpreter's lock (CDLL). The other calls keep it (PyDLL), because releasing
        # it takes longer than they do.
        decoding, brief = ctypes.CDLL(library), ctypes.PyDLL(library)
        handle, address, size, number = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._open = _declare(brief.tj3Init, handle, number)
        self._read = _declare(brief.tj3DecompressHeader, number, handle, ctypes.c_char_p, size)
        self._get = _declare(brief.tj3Get, number, handle, number)
        self._shrink = _declare(brief.tj3SetScalingFactor, number, handle, _Fraction)
        self._crop = _declare(brief.tj3SetCroppingRegion, number, handle, _Rectangle)
        self._decompress = _declare(
            decoding.tj3Decompress8, number, handle, ctypes.c_char_p, size, address, number, number
        )
        # A handle serves one thread at a time, and making one takes a while. A deque's pop and append are
        # atomic, so it ends up with as many handles as threads have decoded at the same time.
        self._idle: deque[int] = deque()

    def decode_part(self, data: bytes, part: Part, shrink: int, out: NDArray[np.uint8]) -> bool:
        """Decode what `widen` returned, at some eighths of the size; return False if that cannot be done.

        `out` is memory for the pixels, uint8 of shape (height, width, 3), contiguous.
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
                # Where scans of a progressive JPEG are missing, the decoder smooths over the edges of blocks,
                # and it would smooth less at the edges of the part.
                or self._get(handle, _PROGRESSIVE)
                or self._shrink(handle, _Fraction(1, 8 // shrink))
                or self._crop(handle, _Rectangle(left, top, right - left, bottom - top))
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
