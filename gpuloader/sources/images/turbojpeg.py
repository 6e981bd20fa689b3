"""Decodes part of a JPEG with C functions of TurboJPEG 3 that no Python package exposes.

The package ``turbojpeg`` contains the library; otherwise the system's libjpeg-turbo 3 is used. For rows above
the part, the library only unpacks the coefficients. It does not read rows below the part, and computes no
pixels in columns next to it. See ``tj3SetCroppingRegion`` in TurboJPEG's documentation,
https://libjpeg-turbo.org/Documentation/Documentation.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.sources.images.regions import Part

_DECOMPRESS = 1  # TJINIT_DECOMPRESS
_RGB = 0  # TJPF_RGB
_PROGRESSIVE = 12  # TJPARAM_PROGRESSIVE
INTERPOLATED = 8
"""Columns of a part that is wide enough for the decoder to interpolate colors."""
_SYSTEM = {"darwin": "libturbojpeg.dylib", "win32": "turbojpeg.dll"}.get(sys.platform, "libturbojpeg.so.0")


class _Rectangle(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int), ("width", ctypes.c_int), ("height", ctypes.c_int))


class _Fraction(ctypes.Structure):
    _fields_ = (("numerator", ctypes.c_int), ("denominator", ctypes.c_int))


class TurboJPEG:
    """TurboJPEG 3 in a given library. Any thread may call the method.

    Raises `OSError` if there is no such library, and `AttributeError` if it is one of TurboJPEG 2.
    """

    def __init__(self, library: str) -> None:
        self.library = library
        # Decoding releases the interpreter's lock (CDLL). The other calls keep it (PyDLL), because releasing
        # it takes longer than they do.
        decoding, brief = ctypes.CDLL(library), ctypes.PyDLL(library)
        self._open, self._read, self._get = brief.tj3Init, brief.tj3DecompressHeader, brief.tj3Get
        self._shrink, self._crop = brief.tj3SetScalingFactor, brief.tj3SetCroppingRegion
        self._decompress = decoding.tj3Decompress8
        handle, number, data, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t
        declared: tuple[tuple[Any, ...], ...] = (
            (self._open, handle, number),
            (self._read, number, handle, data, size),
            (self._get, number, handle, number),
            (self._shrink, number, handle, _Fraction),
            (self._crop, number, handle, _Rectangle),
            (self._decompress, number, handle, data, size, ctypes.c_void_p, number, number),
        )
        for function, result, *arguments in declared:
            function.restype, function.argtypes = result, arguments
        # A handle serves one thread at a time, and creating one takes a while. A deque's pop and append are
        # atomic, so it ends up with as many handles as threads have decoded at the same time.
        self._idle: deque[int] = deque()

    def decode_part(self, data: bytes, part: Part, shrink: int, out: NDArray[np.uint8]) -> bool:
        """Decode what `Image.find_decodable` returned, at some eighths of the size.

        Returns False if that cannot be done. `out` is memory for the pixels, uint8 of shape (height, width,
        3), contiguous.
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


@cache
def load_turbojpeg() -> TurboJPEG | None:
    """Return TurboJPEG 3, from the package ``turbojpeg`` or the system; None if neither has it."""
    libraries: list[str] = []
    with suppress(PackageNotFoundError):
        for file in distribution("turbojpeg").files or ():
            if ".libs" in str(file) and "turbojpeg" in file.name:
                libraries.append(str(file.locate()))
    for library in (*libraries, _SYSTEM):
        try:
            return TurboJPEG(library)
        except (OSError, AttributeError):  # no such library; or that of TurboJPEG 2
            continue
    return None
