"""Decides whether Pillow or compiled code resizes a picture; both produce the same pixels."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gpuloader.sources.pictures import resizing

Resizer = Callable[..., None]
"""`resizing.resize`, compiled."""

_PAYS_AFTER = 500  # pictures: on them, Pillow loses as much time as loading the compiled code takes


class LateResizer:
    """Compiles the resizing code after a process has resized enough pictures to repay the cost.

    Until then, and while one thread compiles, Pillow resizes the pictures. Numba caches the compiled code in
    files: compiling takes the first process on a machine a few seconds, and others a fraction of a second.

    Parameters
    ----------
    pays_after : int
        The number of pictures that Pillow resizes before one thread begins to compile.

    Examples
    --------
    >>> late = LateResizer(pays_after=2)
    >>> late.find(), late.find()
    (None, None)
    """

    def __init__(self, pays_after: int = _PAYS_AFTER) -> None:
        self._pays_after = pays_after
        self._pictures = itertools.count()
        self._turn = threading.Lock()  # never released, so only one thread ever compiles
        self._resizer: Resizer | None = None

    def find(self) -> Resizer | None:
        """Return the compiled function; None means that Pillow must resize the next picture."""
        pays = self._resizer is None and next(self._pictures) >= self._pays_after
        if pays and self._turn.acquire(blocking=False):
            self._resizer = compile_resizer()
        return self._resizer


@cache
def compile_resizer() -> Resizer | None:
    """Return `resizing.resize`, compiled by Numba; None if Numba is not installed or fails."""
    if find_spec("numba") is None:
        return None
    try:
        numba: Any = import_module("numba")
        register_jitable = import_module("numba.extending").register_jitable
        if numba.config.DISABLE_JIT:
            return None
        picture, out = (numba.types.Array(numba.uint8, 3, "C", readonly=one) for one in (True, False))
        pair, box = numba.types.UniTuple(numba.int64, 2), numba.types.UniTuple(numba.float64, 4)
        signature = numba.void(picture, pair, box, pair, pair, numba.int64, numba.boolean, out)
        for function in _CALLED:
            register_jitable(function)
        try:
            compiled: Resizer = numba.njit(signature, nogil=True, cache=True)(resizing.resize)
        except RuntimeError:  # Numba finds no writable folder for its cache
            compiled = numba.njit(signature, nogil=True)(resizing.resize)
    except Exception:  # whatever is wrong with Numba, Pillow can take over
        return None
    return compiled


_CALLED = (
    resizing.find_taps,
    resizing.weigh,
    resizing.resize_across,
    resizing.transpose_pixels,
    resizing.transpose_back,
    resizing.add_lines,
    resizing.pack,
    resizing.copy_colors,
    resizing.round_to_byte,
)

LATE_RESIZER = LateResizer()
"""This process's own."""
