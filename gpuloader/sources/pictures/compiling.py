"""When the resizing of pictures is compiled, and when Pillow does it: both make the same pixels."""

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

_PAYS_AFTER = 500  # pictures, with which Pillow takes as much longer as it takes to load what is compiled


class LateResizer:
    """Compiles the resizing once a process has resized so many pictures that it pays.

    The thread that asks for the next one compiles. The others, and all before, resize with Pillow. Numba
    keeps what it has compiled in files, so it takes a few seconds once on a machine, and part of a second in
    later processes.

    Parameters
    ----------
    pays_after : int
        The number of pictures.

    Examples
    --------
    >>> late = LateResizer(pays_after=2)
    >>> late.find(), late.find()
    (None, None)
    """

    def __init__(self, pays_after: int = _PAYS_AFTER) -> None:
        self._pays_after = pays_after
        self._pictures = itertools.count()
        self._turn = threading.Lock()  # never released, so that only one thread ever compiles
        self._resizer: Resizer | None = None

    def find(self) -> Resizer | None:
        """Return the compiled function for the next picture; None has Pillow resize it."""
        pays = self._resizer is None and next(self._pictures) >= self._pays_after
        if pays and self._turn.acquire(blocking=False):
            self._resizer = compile_resizer()
        return self._resizer


@cache
def compile_resizer() -> Resizer | None:
    """Return `resizing.resize`, compiled by Numba; None if Numba is not installed, or does not compile."""
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
        except RuntimeError:  # no folder for its files can be written to
            compiled = numba.njit(signature, nogil=True)(resizing.resize)
    except Exception:  # whatever is wrong with Numba here, Pillow does the same
        return None
    return compiled


_CALLED = (
    resizing.find_taps,
    resizing.weigh,
    resizing.resize_across,
    resizing.turn_pixels,
    resizing.turn_back,
    resizing.add_lines,
    resizing.pack,
    resizing.copy_colors,
    resizing.round_to_byte,
)

LATE_RESIZER = LateResizer()
"""That of this process."""
