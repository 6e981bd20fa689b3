"""Decodes a part of a JPEG by the C functions of TurboJPEG 3, which no Python package offers.

They are in the library that the package ``turbojpeg`` brings along, and in libjpeg-turbo 3 if the system has
it. Of rows above the part, only the coefficients are unpacked; rows below it are not even read. Of columns
beside it, no pixels are computed. See ``tj3SetCroppingRegion`` in TurboJPEG's documentation,
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
"""Returns uint8 memory of a shape."""

Found = tuple[NDArray[np.uint8], tuple[int, int]]
"""Pixels of shape (height, width, 3), and their top and left in the picture."""

_DECOMPRESS = 1  # TJINIT_DECOMPRESS
_RGB = 0  # TJPF_RGB
_SUBSAMPLING, _WIDTH, _HEIGHT = 4, 5, 6  # TJPARAM
_UNITS = 8, 16, 16, 8, 8, 32, 8  # tjMCUWidth: columns that are decoded at once, by the kind of subsampling
_EIGHTHS = 8
_INTERPOLATED = 8  # columns

_SYSTEM = {"darwin": "libturbojpeg.dylib", "win32": "turbojpeg.dll"}.get(sys.platform, "libturbojpeg.so.0")


class _Region(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int) for name in ("x", "y", "width", "height"))


class _Factor(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int) for name in ("numerator", "denominator"))


class TurboJPEG:
    """TurboJPEG 3, of any library that has it; any thread may call the method.

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
        # Threads that let each other run for a moment lose more time than a short call takes.
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
        self._idle: deque[int] = deque()  # one handle for each thread that decodes at the same time

    def decode_part(self, data: bytes, part: Part, shrink: int, take: Take) -> Found | None:
        """Return pixels of at least a part of a JPEG; those of the part are the same as of the whole.

        Parameters
        ----------
        data : bytes
            The JPEG.
        part : tuple of int
            Top, left, bottom and right of the part, in the picture after shrinking it.
        shrink : int
            The eighths of its size to decode it at: 1, 2, 4 or 8.
        take : callable
            Called for the memory of the pixels.

        Returns
        -------
        tuple or None
            The pixels, and their top and left in the picture; None if the data is damaged, or is none that
            can be decoded in part.
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
        # Colors are interpolated between neighbors, which the outermost columns of a part lack; and not at
        # all in a part of so few columns.
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
    """Return TurboJPEG 3, or None if it is not there."""
    for library in (*_list_bundled(), _SYSTEM):
        try:
            return TurboJPEG(library)
        except (OSError, AttributeError):  # no such library; or that of TurboJPEG 2
            continue
    return None


def _list_bundled() -> list[str]:
    """Return the libraries that the package ``turbojpeg`` has brought along."""
    try:
        files = distribution("turbojpeg").files or []
    except PackageNotFoundError:
        return []
    return [str(file.locate()) for file in files if ".libs" in str(file) and "turbojpeg" in file.name]
