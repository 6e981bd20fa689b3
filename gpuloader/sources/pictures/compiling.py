"""Decides whether Pillow or compiled code resizes a picture; both produce the same pixels."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from gpuloader.base.errors import LoaderError
from gpuloader.base.processes import start_thread
from gpuloader.sources.pictures import resizing

Resizer = Callable[..., None]
"""`resizing.resize`, compiled."""

# Pictures on which Pillow loses as much time as it takes to load the compiled code, and to compile it.
_LOAD_AFTER, _COMPILE_AFTER = 500, 4500

# A child that is forked while a thread uses Numba would wait for Numba's locks forever.
_using_numba = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_using_numba.acquire,
        after_in_parent=_using_numba.release,
        after_in_child=_using_numba.release,
    )


class LateResizer:
    """Compiles the resizing code after a process has resized enough pictures to repay the cost.

    A thread of its own does so, and Pillow resizes the pictures until it is done. Numba caches the compiled
    code in files: compiling takes the first process on a machine a few seconds, and loading takes others a
    fraction of a second. Threads that fork, and the end of the program, wait for it.

    Parameters
    ----------
    load_after, compile_after : int
        The number of pictures after which code in the cache is loaded, and other code is compiled.

    Examples
    --------
    >>> late = LateResizer(load_after=2)
    >>> late.find(), late.find()
    (None, None)
    """

    def __init__(self, load_after: int = _LOAD_AFTER, compile_after: int = _COMPILE_AFTER) -> None:
        self._due = load_after
        self._compile_after = compile_after
        self._pictures = itertools.count()
        self._turn = threading.Lock()  # released only if there is something left to do
        self._resizer: Resizer | None = None

    def find(self) -> Resizer | None:
        """Return the compiled function; None means that Pillow must resize the next picture."""
        is_due = self._resizer is None and next(self._pictures) >= self._due
        if is_due and self._turn.acquire(blocking=False):
            with suppress(LoaderError):  # the system starts no more threads
                atexit.register(start_thread("gpuloader-compiler", self._begin).join)
        return self._resizer

    def _begin(self) -> None:
        with _using_numba:
            is_last = self._due >= self._compile_after
            if is_last or is_cached():
                self._resizer = compile_resizer()
            else:
                self._due = self._compile_after
                self._turn.release()


def is_cached() -> bool:
    """Return whether Numba has compiled the resizing code before, or will never do so."""
    try:
        folder = _prepare(cache=True)[0].stats.cache_path
    except Exception:
        return True  # nothing is gained by trying later
    return any(Path(folder).glob(f"*{resizing.resize.__name__}-*.nbi"))


def compile_resizer() -> Resizer | None:
    """Return `resizing.resize`, compiled by Numba; None if Numba is not installed or fails."""
    for cache in (True, False):  # there may be no writable folder, or a damaged file
        with suppress(Exception):  # whatever is wrong with Numba, Pillow can take over
            dispatcher, signature = _prepare(cache=cache)
            dispatcher.compile(signature)
            dispatcher.disable_compile()  # for other types; it converts them
            compiled: Resizer = dispatcher
            return compiled
    return None


def _prepare(*, cache: bool) -> tuple[Any, Any]:
    """Return Numba's function, which is not compiled yet, and its signature."""
    numba: Any = import_module("numba")
    if numba.config.DISABLE_JIT:
        raise ValueError("Numba's compiler is switched off")
    picture, out = (numba.types.Array(numba.uint8, 3, "C", readonly=one) for one in (True, False))
    pair, box = numba.types.UniTuple(numba.int64, 2), numba.types.UniTuple(numba.float64, 4)
    signature = numba.void(picture, pair, box, pair, pair, numba.int64, numba.boolean, out)
    _register()
    return numba.njit(nogil=True, cache=cache)(resizing.resize), signature


@functools.cache
def _register() -> None:
    """Let `resizing.resize` call the other functions when it is compiled."""
    for function in _CALLED:
        import_module("numba.extending").register_jitable(function)


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
