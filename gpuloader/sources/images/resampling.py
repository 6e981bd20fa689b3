"""Resamples pictures as Pillow does, columns first, whatever order Pillow itself would choose."""

from __future__ import annotations

import atexit
import functools
import itertools
import math
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gpuloader.errors import LoaderError
from gpuloader.sources.images import resizing
from gpuloader.sources.images.decoding import Pixels, load_pillow, shrink_size
from gpuloader.sources.images.image import Geometry, Picture, size_of
from gpuloader.system.threads import start_thread

# Decides whether Pillow or compiled code resizes a picture; both produce the same pixels.

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


_STRIP = 4 << 20  # bytes of a picture that are copied at once for the first pass
_MODES = {1: "L", 3: "RGB"}


def resample(picture: Picture | Pixels | Any, geometry: Geometry) -> Pixels | Any:
    """Return the picture that a geometry describes, as pixels or as an image of Pillow.

    It equals Pillow's ``resize`` of the columns, and then of the rows, bit for bit. Only the rows that the
    result depends on are computed.

    Parameters
    ----------
    picture : Picture, numpy.ndarray or PIL.Image.Image
        What `as_picture` returns. A `Picture` is decoded at the size that the geometry allows.
    geometry : Geometry
        What to take from the picture.

    Raises
    ------
    PictureError
        The picture cannot be decoded.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("PIL")
    >>> ramp = np.repeat(np.arange(0, 200, 2, np.uint8), 3).reshape(1, 100, 3)
    >>> geometry = Geometry.of(1, 100).resized((1, 4), "bilinear")
    >>> np.asarray(resample(ramp, geometry))[0, :, 0].tolist()
    [29, 74, 124, 169]
    """
    resizer = None if geometry.filter is None else LATE_RESIZER.find()
    corner = 0, 0
    if isinstance(picture, Picture):
        shrink, geometry = picture.plan_decoding(geometry)
        if resizer is None:  # Pillow resizes boxes of whole pictures only
            picture = picture.decode_at(shrink)
        else:
            needed = geometry.find_part(*shrink_size(picture.header.size, shrink))
            part = picture.find_decodable(shrink, needed)
            picture, corner = picture.decode_part(shrink, part), part[:2]
    if resizer is None or not _is_colored(picture):
        return _resample_by_pillow(picture, geometry)
    if not isinstance(picture, np.ndarray):
        top, left, bottom, right = geometry.find_part(picture.height, picture.width)
        picture, corner = np.asarray(picture.crop((left, top, right, bottom))), (top, left)
    return _resize_compiled(resizer, picture, geometry, corner)


def _resize_compiled(resizer: Resizer, pixels: Pixels, geometry: Geometry, corner: tuple[int, int]) -> Pixels:
    out = np.empty((geometry.height, geometry.width, 3), np.uint8)
    turn = geometry.flip + 2 * geometry.flop
    resizer(
        pixels,
        corner,
        geometry.box,
        geometry.size,
        geometry.window[:2],
        turn,
        geometry.filter == "bicubic",
        out,
    )
    return out


def _resample_by_pillow(picture: Pixels | Any, geometry: Geometry) -> Any:
    top, left, height, width = geometry.window
    if geometry.filter is None:
        image = _take(picture, top, left, height, width)
    else:
        image = _resize(picture, geometry)
        if (top, left, height, width) != (0, 0, *geometry.size):
            image = image.crop((left, top, left + width, top + height))
    pillow = load_pillow()
    if geometry.flip:
        image = image.transpose(pillow.Transpose.FLIP_LEFT_RIGHT)
    if geometry.flop:
        image = image.transpose(pillow.Transpose.FLIP_TOP_BOTTOM)
    return image


def _resize(picture: Pixels | Any, geometry: Geometry) -> Any:
    pillow = load_pillow()
    kind = pillow.Resampling[str(geometry.filter).upper()]
    left, top, right, bottom = geometry.box
    height, width = geometry.size
    tall, wide = size_of(picture)
    first, _, last, far = geometry.find_region()
    last, far = min(last, tall), min(max(far, math.ceil(right)), wide)
    # Rows above and below are not read, but with them the box needs no shift, which would round otherwise.
    below = max(math.ceil(bottom), last)
    step = max(_STRIP // (far * 4), 1)
    strips: list[tuple[int, Any]] = []
    for start in range(first, last, step):
        rows = min(step, last - start)
        image = _take(picture, start, 0, rows, far)
        if (left, right) != (0, width) or far != width:
            image = image.resize((width, rows), kind, (left, 0, right, rows))
        strips.append((start, image))
    if len(strips) > 1 or first or below > last:
        image = pillow.new(image.mode, (width, below))
        for start, strip in strips:
            image.paste(strip, (0, start))
    if (top, bottom) != (0, height) or below != height:
        image = image.resize((width, height), kind, (0, top, width, bottom))
    return image


def _is_colored(picture: Pixels | Any) -> bool:
    return bool(picture.shape[2] == 3 if isinstance(picture, np.ndarray) else picture.mode == "RGB")


def _take(picture: Pixels | Any, top: int, left: int, height: int, width: int) -> Any:
    """Return a part of a picture as an image of Pillow; what lies outside of the picture is black."""
    if not isinstance(picture, np.ndarray):
        return picture.crop((left, top, left + width, top + height))
    tall, wide = picture.shape[:2]
    if top < 0 or left < 0 or top + height > tall or left + width > wide:
        whole = _take(picture, 0, 0, tall, wide)
        return whole.crop((left, top, left + width, top + height))
    channels = picture.shape[2]
    # The decoder for raw data copies rows from anywhere in memory, so only this part is touched.
    start = (top * wide + left) * channels
    data = picture.reshape(-1)[start : start + ((height - 1) * wide + width) * channels]
    mode = _MODES[channels]
    return load_pillow().frombytes(mode, (width, height), data, "raw", mode, wide * channels, 1)


def as_image(made: Pixels | Any) -> Any:
    """Return what `resample` returned as an image of Pillow."""
    return load_pillow().fromarray(made) if isinstance(made, np.ndarray) else made


def as_pixels(image: Pixels | Any) -> Pixels:
    """Return what `resample` returned as pixels of shape (height, width, channels)."""
    if isinstance(image, np.ndarray):
        return image
    channels = len(image.getbands())
    return np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, channels)
