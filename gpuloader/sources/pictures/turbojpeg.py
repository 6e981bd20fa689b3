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
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.fields.encoded import Part

Take = Callable[[tuple[int, ...]], NDArray[np.uint8]]
"""Returns uint8 memory of the given shape."""

Found = tuple[NDArray[np.uint8], tuple[int, int]]
"""Pixels of shape (height, width, 3), and their top and left in the picture."""

_DECOMPRESS = 1  # TJINIT_DECOMPRESS
_RGB = 0  # TJPF_RGB
_SUBSAMPLING, _WIDTH, _HEIGHT = 4, 5, 6  # TJPARAM
_UNITS = 8, 16, 16, 8, 8, 32, 8  # tjMCUWidth: columns that are decoded at once, by the kind of subsampling
_EIGHTHS = 8
_INTERPOLATED = 8  # columns: wide enough for the decoder to interpolate colors

_SYSTEM = {"darwin": "libturbojpeg.dylib", "win32": "turbojpeg.dll"}.get(sys.platform, "libturbojpeg.so.0")


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

    def decode_part(self, data: bytes, part: Part, shrink: int, take: Take) -> Found | None:
        """Return the pixels of a part of a JPEG, and some around it.

        Within the part, they equal the pixels of the whole picture.

        Parameters
        ----------
        data : bytes
            The JPEG.
        part : tuple of int
            The part's top, left, bottom and right, after shrinking the picture.
        shrink : int
            The eighths of its size to shrink the picture to: 1, 2, 4 or 8.
        take : callable
            Called with the shape of the pixels to obtain their memory.

        Returns
        -------
        tuple or None
            The pixels, and their top and left in the picture. None if the data is damaged or cannot be
            decoded in part.
        """
        try:
            handle = self._idle.pop()
        except IndexError:
            handle = self._open(_DECOMPRESS)
        if not handle:
            return None
        try:
            return self._decode(handle, data, part, shrink, take)
        finally:
            self._idle.append(handle)

    def _decode(self, handle: int, data: bytes, part: Part, shrink: int, take: Take) -> Found | None:
        if self._read(handle, data, len(data)) or self._shrink(handle, _Factor(1, _EIGHTHS // shrink)):
            return None
        kind = self._get(handle, _SUBSAMPLING)
        height, width = (-(-self._get(handle, one) * shrink // _EIGHTHS) for one in (_HEIGHT, _WIDTH))
        top, left, bottom, right = part
        if not 0 <= kind < len(_UNITS) or bottom > height or right > width:
            return None
        unit = max(_UNITS[kind] * shrink // _EIGHTHS, 1)
        # The decoder interpolates colors between columns. It does not at the edges of a part, and nowhere in
        # a very narrow part.
        left = max(min(left - 1, width - _INTERPOLATED), 0) // unit * unit
        right = min(max(right + 1, left + _INTERPOLATED), width)
        if self._crop(handle, _Region(left, top, right - left, bottom - top)):
            return None
        pixels = take((bottom - top, right - left, 3))
        failed = self._decompress(handle, data, len(data), pixels.ctypes.data, pixels.strides[0], _RGB)
        return None if failed else (pixels, (top, left))


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
