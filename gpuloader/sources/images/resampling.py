"""Resamples images as Pillow does, but columns first whatever Pillow would choose; and changes their colors.

Pillow resizes a process's first images, and code that Numba compiles resizes the rest. Both produce the same
pixels, so the change in the middle of an epoch is invisible. What normalizes them is compiled along with it.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import math
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gpuloader.errors import LoaderError
from gpuloader.sources.images.decoding import Pixels, load_pillow, shrink_size
from gpuloader.sources.images.image import Geometry, Image, size_of
from gpuloader.system.threads import start_thread

# ---------------------------------------------------------------------------------------------------------
# When resizing is compiled

Resizer = Callable[..., None]
"""`resizing.resize`, compiled."""

# The number of images at which Pillow has lost as much time as loading the compiled code takes, or compiling
# it. At worst, a process that switches then takes twice as long as if it had known the number of images.
_LOAD_AFTER, _COMPILE_AFTER = 500, 4500

# A child that is forked while a thread uses Numba would wait for Numba's locks forever.
_using_numba = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_using_numba.acquire, after_in_parent=_using_numba.release, after_in_child=_using_numba.release
    )


class LateResizer:
    """Compiles the resizing code after a process has resized enough images to repay the cost.

    A separate thread does so, and Pillow resizes the images until it is done. Code in Numba's cache is loaded
    after `load_after` images, and other code is compiled after `compile_after`.

    >>> late = LateResizer(load_after=2)
    >>> late.find(), late.find()
    (None, None)
    """

    def __init__(self, load_after: int = _LOAD_AFTER, compile_after: int = _COMPILE_AFTER) -> None:
        self._due = load_after
        self._compile_after = compile_after
        self._images = itertools.count()  # atomic, so threads count together
        self._turn = threading.Lock()  # released only if there is something left to do
        self._resizer: Resizer | None = None
        self.look_up: Callable[..., None] | None = None  # `resizing.look_up`, compiled

    def find(self) -> Resizer | None:
        """Return the compiled function; None means that Pillow must resize the next image."""
        is_due = self._resizer is None and next(self._images) >= self._due
        if is_due and self._turn.acquire(blocking=False):
            with suppress(LoaderError):  # the system cannot start another thread
                # The end of the program waits, because the thread may be in the middle of Numba's compiler.
                atexit.register(start_thread("gpuloader-compiler", self._begin).join)
        return self._resizer

    def _begin(self) -> None:
        with _using_numba:
            is_last = self._due >= self._compile_after
            # Compiling takes the first process on a machine a few seconds; loading takes others a fraction.
            if is_last or is_cached():
                self._resizer = compile_function("resize")
                self.look_up = self._resizer and compile_function("look_up")
            else:
                self._due = self._compile_after
                self._turn.release()


def is_cached() -> bool:
    """Return whether Numba has compiled the resizing code before, or never will."""
    try:
        function, _ = _prepare("resize", cache=True)
        return any(Path(function.stats.cache_path).glob("*resize-*.nbi"))
    except Exception:
        return True  # nothing is gained by trying later


def compile_function(name: str) -> Callable[..., None] | None:
    """Return a function of `resizing`, compiled by Numba; None if Numba is not installed or fails."""
    for cache in (True, False):  # there may be no writable folder, or a damaged file
        with suppress(Exception):  # whatever is wrong with Numba, Pillow can take over
            dispatcher, signature = _prepare(name, cache=cache)
            dispatcher.compile(signature)
            dispatcher.disable_compile()  # for other types; it converts them
            compiled: Callable[..., None] = dispatcher
            return compiled
    return None


def _prepare(name: str, *, cache: bool) -> tuple[Any, Any]:
    """Return a function as Numba's, which is not compiled yet, and its signature."""
    # Imported late, because most programs end before the code is needed.
    from gpuloader.sources.images import resizing

    numba: Any = import_module("numba")
    if numba.config.DISABLE_JIT:
        raise ValueError("Numba's compiler is switched off")
    image, out = (numba.types.Array(numba.uint8, 3, "C", readonly=one) for one in (True, False))
    pair, box = numba.types.UniTuple(numba.int64, 2), numba.types.UniTuple(numba.float64, 4)
    tables = numba.types.Array(numba.float32, 2, "C", readonly=True)
    images = numba.types.Array(numba.uint8, 4, "A", readonly=True)  # windows of images, too
    signature = {
        "resize": numba.void(image, pair, box, pair, pair, numba.int64, numba.boolean, out),
        "look_up": numba.void(tables, images, numba.types.Array(numba.float32, 4, "A")),
    }[name]
    _register(resizing.CALLED)
    return numba.njit(nogil=True, cache=cache)(getattr(resizing, name)), signature


@functools.cache
def _register(functions: tuple[Callable[..., Any], ...]) -> None:
    """Let compiled code call these functions; once per process."""
    for function in functions:
        import_module("numba.extending").register_jitable(function)


LATE_RESIZER = LateResizer()
"""This process's own resizer."""

# ---------------------------------------------------------------------------------------------------------
# Resampling by either of the two

_STRIP = 4 << 20  # bytes of an image to copy at a time for the first pass
_PART_FROM = 1 << 15  # pixels of an image of which a part is decoded in less time than all of it
_MODES = {1: "L", 3: "RGB"}


def apply_geometry(image: Image | Pixels | Any, geometry: Geometry) -> Pixels | Any:
    """Return the image that a geometry describes, as pixels or as a Pillow image.

    It equals Pillow's ``resize`` of the columns, and then of the rows, bit for bit. Only the rows that the
    result depends on are computed. `image` is what `as_image` returned; an `Image` is decoded at the size
    that the geometry allows, and raises `DecodeError` if it cannot be.

    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("PIL")
    >>> ramp = np.repeat(np.arange(0, 200, 2, np.uint8), 3).reshape(1, 100, 3)
    >>> geometry = Geometry.of(1, 100).resized((1, 4), "bilinear")
    >>> np.asarray(apply_geometry(ramp, geometry))[0, :, 0].tolist()
    [29, 74, 124, 169]
    """
    resizer = None if geometry.filter is None else LATE_RESIZER.find()
    corner = 0, 0
    if isinstance(image, Image):
        shrink, geometry = image.plan_decoding(geometry)
        # Pillow only resizes boxes of whole images: moving the box into a part's coordinates would round its
        # edges differently. And a part of a small image is not decoded any sooner than all of it.
        height, width = image.header.size
        if resizer is None or height * width < _PART_FROM:
            image = image.decode_at(shrink)
        else:
            needed = geometry.find_part(*shrink_size((height, width), shrink))
            part = image.find_decodable(shrink, needed)
            image, corner = image.decode_part(shrink, part), part[:2]
    is_colored = image.shape[2] == 3 if isinstance(image, np.ndarray) else image.mode == "RGB"
    if resizer is None or not is_colored:  # the compiled code takes three channels
        return apply_by_pillow(image, geometry)
    if not isinstance(image, np.ndarray):
        top, left, bottom, right = geometry.find_part(image.height, image.width)
        image, corner = np.asarray(image.crop((left, top, right, bottom))), (top, left)
    box, size, (top, left, height, width), flip, flop, kind, _ = geometry
    out = np.empty((height, width, 3), np.uint8)
    resizer(image, corner, box, size, (top, left), flip + 2 * flop, kind == "bicubic", out)
    return out


def apply_by_pillow(image: Pixels | Any, geometry: Geometry) -> Any:
    """Return what `apply_geometry` returns, but from pixels or a Pillow image, as a Pillow image."""
    top, left, height, width = geometry.window
    if geometry.filter is None:
        image = _take(image, top, left, height, width)
    else:
        image = _resize(image, geometry)
        if (top, left, height, width) != (0, 0, *geometry.size):
            image = image.crop((left, top, left + width, top + height))
    pillow = load_pillow()
    if geometry.flip:
        image = image.transpose(pillow.Transpose.FLIP_LEFT_RIGHT)
    if geometry.flop:
        image = image.transpose(pillow.Transpose.FLIP_TOP_BOTTOM)
    return image


def _resize(image: Pixels | Any, geometry: Geometry) -> Any:
    pillow = load_pillow()
    kind = pillow.Resampling[str(geometry.filter).upper()]
    left, top, right, bottom = geometry.box
    height, width = geometry.size
    tall, wide = size_of(image)
    first, _, last, far = geometry.find_region()
    last, far = min(last, tall), min(max(far, math.ceil(right)), wide)
    # Columns first. Pillow itself would begin with the rows if that is less work, and each pass rounds to
    # bytes, so the order shows in the pixels. A large image takes several strips, so that a thread does not
    # hold a copy of the decoded image as well.
    step = max(_STRIP // (far * 4), 1)
    strips: list[tuple[int, Any]] = []
    for start in range(first, last, step):
        rows = min(step, last - start)
        strip = _take(image, start, 0, rows, far)
        if (left, right) != (0, width) or far != width:
            strip = strip.resize((width, rows), kind, (left, 0, right, rows))
        strips.append((start, strip))
    # Then the rows. Those above and below are not read, but with them the box needs no shift, which would
    # round differently.
    below = max(math.ceil(bottom), last)
    image = strips[0][1]
    if len(strips) > 1 or first or below > last:
        image = pillow.new(image.mode, (width, below))
        for start, strip in strips:
            image.paste(strip, (0, start))
    if (top, bottom) != (0, height) or below != height:
        image = image.resize((width, height), kind, (0, top, width, bottom))
    return image


def _take(image: Pixels | Any, top: int, left: int, height: int, width: int) -> Any:
    """Return a part of an image as a Pillow image; what lies outside the image is black."""
    if not isinstance(image, np.ndarray):
        return image.crop((left, top, left + width, top + height))
    tall, wide, channels = image.shape
    if top < 0 or left < 0 or top + height > tall or left + width > wide:
        return _take(image, 0, 0, tall, wide).crop((left, top, left + width, top + height))
    # The decoder for raw data copies rows from anywhere in memory, so only this part is touched.
    start = (top * wide + left) * channels
    data = image.reshape(-1)[start : start + ((height - 1) * wide + width) * channels]
    mode = _MODES[channels]
    return load_pillow().frombytes(mode, (width, height), data, "raw", mode, wide * channels, 1)


def as_pillow(made: Pixels | Any) -> Any:
    """Return what `apply_geometry` returned as a Pillow image."""
    return load_pillow().fromarray(made) if isinstance(made, np.ndarray) else made


def as_pixels(made: Pixels | Any) -> Pixels:
    """Return what `apply_geometry` returned as pixels of shape (height, width, channels)."""
    if isinstance(made, np.ndarray):
        return made
    channels = len(made.getbands())
    return np.frombuffer(made.tobytes(), np.uint8).reshape(made.height, made.width, channels)


# ---------------------------------------------------------------------------------------------------------
# Colors

CHANGES = ("brightness", "contrast", "saturation", "hue")
"""The properties that can change at random; the kernel `recolor` counts from 1."""


@functools.cache
def load_operations() -> Mapping[str, Callable[[Any, float], Any]]:
    """Return the functions that change a Pillow image by an amount, by name."""
    from PIL import ImageEnhance, ImageFilter, ImageOps

    return {
        "brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
        "contrast": lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
        "saturation": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
        "hue": _turn_hue,
        "sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
        "gray": lambda image, _: image.convert("L").convert(image.mode),
        "blur": lambda image, radius: image.filter(ImageFilter.GaussianBlur(radius)),
        "posterize": lambda image, bits: ImageOps.posterize(image, int(bits)),
        "solarize": lambda image, level: ImageOps.solarize(image, level),
        "autocontrast": lambda image, _: ImageOps.autocontrast(image),
        "equalize": lambda image, _: ImageOps.equalize(image),
        "identity": lambda image, _: image,
    }


def _turn_hue(image: Any, turns: float) -> Any:
    if image.mode != "RGB":  # gray images have no hue
        return image
    pillow = load_pillow()
    hue, saturation, value = image.convert("HSV").split()
    turned = pillow.fromarray(np.asarray(hue) + np.uint8(find_shift(turns)))
    return pillow.merge("HSV", (turned, saturation, value)).convert("RGB")


def find_shift(turns: float) -> int:
    """Return a shift of hue as a byte, as torchvision rounds it.

    >>> find_shift(0.5), find_shift(-0.1)
    (127, 231)
    """
    return int(turns * 255) % 256
