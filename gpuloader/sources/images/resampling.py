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
from numpy.typing import NDArray

from gpuloader.errors import LoaderError
from gpuloader.sources.images import resampling as resizing
from gpuloader.sources.images.decoding import Pixels, load_pillow, shrink_size
from gpuloader.sources.images.image import Box, Geometry, Picture, size_of
from gpuloader.system.processes import start_thread

# Resizes pictures as Pillow does, bit for bit, in functions that Numba compiles; see `compiling`.
#
# They are plain functions, which also run without Numba, slowly. `resize` sums weighted pixels along x,
# rounds the sums to bytes, and sums those along y, as Pillow does. Each loop runs over a whole line of
# values, so that the compiler vectorizes it. For the sums along x, a strip of rows is transposed first,
# which places the pixels of a column side by side. A pixel takes four bytes there; the fourth is unused.

Taps = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]
"""Each output's first pixel, its number of pixels, and their weights, in units of 2**-22."""

Pair = tuple[int, int]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Sums = NDArray[np.int32]

_BITS = 22  # of a weight's fraction
_STRIP_ROWS = 64  # rows to resize along x at once
_BLOCK = 16  # rows to transpose at once: as many lines as fit into the CPU's cache
_HALF = np.int32(1 << (_BITS - 1))
_SHIFT, _LEAST, _MOST = np.int32(_BITS), np.int32(0), np.int32(255)
_GREEN, _BLUE = np.uint32(8), np.uint32(16)


def resize(
    pixels: Pixels, corner: Pair, box: Box, size: Pair, window: Pair, turn: int, cubic: bool, out: Pixels
) -> None:
    """Write a window of a resized box of a picture; pixels outside the resized box are black.

    Parameters
    ----------
    pixels : numpy.ndarray
        The part of the picture that the result depends on, or more of it; uint8 (height, width, 3).
    corner : tuple of int
        The top and left of that part in the picture.
    box : tuple of float
        The left, top, right and bottom of the box, in the picture.
    size : tuple of int
        The height and width to resize the box to.
    window : tuple of int
        The top and left of the result in the resized box.
    turn : int
        1 mirrors the result left to right, 2 top to bottom, 3 both.
    cubic : bool
        Whether the filter is bicubic; otherwise it is bilinear.
    out : numpy.ndarray
        The result; uint8 (height, width, 3).

    Examples
    --------
    >>> ramp = np.repeat(np.arange(0, 40, 2, np.uint8), 3).reshape(1, 20, 3)
    >>> out = np.empty((1, 4, 3), np.uint8)
    >>> resize(ramp, (0, 0), (0, 0, 20, 1), (1, 4), (0, 0), 1, False, out)
    >>> out[0, :, 0].tolist()
    [33, 24, 14, 5]
    """
    height, width, _ = out.shape
    top, bottom = max(-window[0], 0), min(size[0] - window[0], height)
    left, right = max(-window[1], 0), min(size[1] - window[1], width)
    if top > 0 or left > 0 or bottom < height or right < width:
        out[:] = 0
    if top >= bottom or left >= right:
        return
    rows, columns = bottom - top, right - left
    firsts, counts, weights = find_taps(
        corner[0], pixels.shape[0], box[1], box[3], size[0], window[0] + top, rows, cubic
    )
    across = find_taps(corner[1], pixels.shape[1], box[0], box[2], size[1], window[1] + left, columns, cubic)
    begin, end = firsts[0], firsts[-1] + counts[-1]
    lines = np.empty((end - begin, columns * 4), np.uint8)
    resize_across(pixels[begin:end], across, turn & 1 != 0, lines)
    if turn & 1:
        left, right = width - right, width - left
    sums, line = np.empty(columns * 4, np.int32), np.empty((columns, 4), np.uint8)
    for row in range(rows):
        add_lines(lines, firsts[row] - begin, counts[row], weights[row], sums)
        pack(sums, line.reshape(-1))
        copy_colors(line, out[height - 1 - top - row if turn & 2 else top + row, left:right])


def find_taps(
    begin: int, length: int, low: float, high: float, whole: int, start: int, outputs: int, cubic: bool
) -> Taps:
    """Return the taps of a range of outputs along one axis.

    Every operation is rounded to double by itself, in Pillow's order.

    Parameters
    ----------
    begin, length : int
        The range of the picture's pixels that is available. The taps count from `begin`.
    low, high : float
        The box's edges, which Pillow rounds to float32.
    whole : int
        The number of pixels to resize the box to.
    start, outputs : int
        The first output, and the number of outputs.
    cubic : bool
        Whether the filter is bicubic.

    Examples
    --------
    >>> firsts, counts, weights = find_taps(0, 4, 0.0, 4.0, 2, 0, 2, False)
    >>> firsts.tolist(), counts.tolist(), (weights / 2**22).round(3).tolist()
    ([0, 1], [3, 3], [[0.429, 0.429, 0.143, 0.0, 0.0], [0.143, 0.429, 0.429, 0.0, 0.0]])
    """
    edge = np.float32(low)
    step = np.float64(np.float32(high) - edge) / whole
    stretch = max(step, 1.0)
    support = stretch * 2.0 if cubic else stretch
    shrink = 1.0 / stretch
    most = int(np.ceil(support)) * 2 + 1
    firsts, counts = np.empty(outputs, np.int64), np.empty(outputs, np.int64)
    weights, values = np.zeros((outputs, most), np.int32), np.empty(most, np.float64)
    for output in range(outputs):
        center = np.float64(edge) + (start + output + 0.5) * step
        first = min(max(int(center - support + 0.5), begin), begin + length)
        count = min(max(int(center + support + 0.5), begin), begin + length) - first
        total = 0.0
        for tap in range(count):
            values[tap] = weigh(abs((tap + first - center + 0.5) * shrink), cubic)
            total += values[tap]
        for tap in range(count):
            value = values[tap] / total if total != 0.0 else values[tap]
            weights[output, tap] = np.int32((-0.5 if value < 0.0 else 0.5) + value * (1 << _BITS))
        firsts[output], counts[output] = first - begin, count
    return firsts, counts, weights


def weigh(x: float, cubic: bool) -> float:
    """Return the filter's value at a distance from its center.

    >>> weigh(0.25, False), weigh(0.5, True), weigh(1.5, True), weigh(2.0, True)
    (0.75, 0.5625, -0.0625, 0.0)
    """
    if not cubic:
        return 1.0 - x if x < 1.0 else 0.0
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1.0
    if x < 2.0:
        return (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return 0.0


def resize_across(pixels: Pixels, taps: Taps, flip: bool, lines: Bytes) -> None:
    """Write rows of pixels, resized along x and optionally mirrored, with four bytes per pixel."""
    firsts, counts, weights = taps
    columns = len(firsts)
    begin, end = firsts[0], firsts[-1] + counts[-1]
    source, result = (
        np.empty((end - begin, _STRIP_ROWS), np.uint32),
        np.empty((columns, _STRIP_ROWS), np.uint32),
    )
    source_bytes, result_bytes = source.view(np.uint8), result.view(np.uint8)
    sums, target = np.empty(_STRIP_ROWS * 4, np.int32), lines.view(np.uint32)
    for start in range(0, len(pixels), _STRIP_ROWS):
        rows = min(_STRIP_ROWS, len(pixels) - start)
        transpose_pixels(pixels[start : start + rows, begin:end], source)
        for column in range(columns):
            first, count = firsts[column] - begin, counts[column]
            add_lines(source_bytes, first, count, weights[column], sums[: rows * 4])
            pack(sums[: rows * 4], result_bytes[columns - 1 - column if flip else column])
        transpose_back(result, target[start : start + rows])


def transpose_pixels(pixels: Pixels, result: Words) -> None:
    """Transpose pixels of shape (rows, columns, 3) into words of shape (columns, at least rows)."""
    for column in range(pixels.shape[1]):
        line = result[column]
        for row in range(len(pixels)):
            red, green, blue = pixels[row, column, 0], pixels[row, column, 1], pixels[row, column, 2]
            line[row] = np.uint32(red) | np.uint32(green) << _GREEN | np.uint32(blue) << _BLUE


def transpose_back(words: Words, result: Words) -> None:
    """Transpose words of shape (columns, at least rows) into (rows, columns).

    >>> result = np.empty((2, 2), np.uint32)
    >>> transpose_back(np.array([[1, 2, 9], [3, 4, 9]], np.uint32), result)
    >>> result.tolist()
    [[1, 3], [2, 4]]
    """
    for start in range(0, len(result), _BLOCK):
        part = result[start : start + _BLOCK]
        for column in range(part.shape[1]):
            line = words[column, start : start + _BLOCK]
            for row in range(len(part)):
                part[row, column] = line[row]


def add_lines(lines: Bytes, first: int, count: int, weights: Sums, sums: Sums) -> None:
    """Write the weighted sums of lines, for `round_to_byte`."""
    sums[:] = _HALF
    for tap in range(count):
        weight, line = weights[tap], lines[first + tap]
        for place in range(len(sums)):
            sums[place] = np.int32(sums[place] + np.int32(weight * np.int32(line[place])))


def pack(sums: Sums, line: Bytes) -> None:
    """Write sums as bytes."""
    for place in range(len(sums)):
        line[place] = round_to_byte(sums[place])


def copy_colors(line: Bytes, pixels: Bytes) -> None:
    """Copy pixels of four bytes to pixels of three."""
    for column in range(len(pixels)):
        for channel in range(3):
            pixels[column, channel] = line[column, channel]


def round_to_byte(total: np.int32) -> np.uint8:
    """Return a sum as a byte.

    >>> [int(round_to_byte(np.int32(total))) for total in (-5 << 22, 7 << 22, 300 << 22)]
    [0, 7, 255]
    """
    return np.uint8(min(max(np.int32(total >> _SHIFT), _LEAST), _MOST))


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
