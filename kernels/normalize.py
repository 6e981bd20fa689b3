"""`normalize`: images to floats of mean 0 and deviation 1; crops, mirrors and changes layout in one pass.

It also has what `resample` and `recolor` do with each channel at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gpuloader.kernels.cast import resolve_target, round_to
from gpuloader.kernels.compiler import CPP_TYPES
from gpuloader.kernels.crop import IMAGES, Layout, as_hwc, check_window, cut_windows, join_shape, measure
from gpuloader.kernels.launching import Work, by_value, declare, spread_images, takes
from gpuloader.sources.images import resampling

_SOURCES = ("uint8", "float32")
_TARGETS = ("float16", "bfloat16", "float32")

ENTRIES = {"normalize<{}, {}>": (_SOURCES, _TARGETS)}

_MOST_CHANNELS = 16
# Values the twin converts at once: few enough for the CPU's cache, enough to amortize the calls.
_PIECE = 2**17


@declare(images=takes(*_SOURCES, shape=IMAGES), windows=takes("int32", shape=("samples", 3), optional=True))
def normalize(
    images: Any,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    scale: float = 1.0,
    layout: Layout = "HWC",
    out_layout: Layout = "CHW",
    dtype: DTypeLike = "float32",
    size: Sequence[int] | None = None,
    windows: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Work:
    """Return ``(images * scale - mean) / std``, channel by channel.

    Computed as one float32 multiply-add, ``x * (scale / std) + (-mean / std)``, rounded once. Both
    constants are rounded to float32 once. The result is then rounded to `dtype`, to nearest, ties to even.

    Parameters
    ----------
    images : array
        The images, uint8 or float32, 1 to 16 channels, fewer than 2**31 values per sample.
    mean, std, scale : float or sequence of float, except for the scale
        One number for all channels or one per channel, in units of ``images * scale``; a scale of ``1 / 255``
        maps bytes to 0 to 1.
    layout, out_layout : {"HWC", "CHW"}
        The layouts of the images and of the result.
    dtype : dtype-like
        The result's dtype: float32, float16, or "bfloat16" as bits in uint16.
    size, windows : (int, int) or None, array or None
        As for `crop`; without a size, the images keep theirs, and without windows, they are cut at the top
        left.
    out, stream : array or None, cupy.cuda.Stream or None
        As for any `Kernel`.

    >>> images = np.array([[[[0, 128], [255, 64]]]], np.uint8)  # one image of 1 x 2 pixels and two channels
    >>> normalize.on_host(images, mean=[0, 128], std=[255, 64]).tolist()
    [[[[0.0, 1.0]], [[0.0, -1.0]]]]
    """
    channels, height, width = measure(images, layout, _MOST_CHANNELS)
    out_height, out_width = (height, width) if size is None else check_window(size, height, width)
    name, held = resolve_target(dtype, _TARGETS)
    factor, offset = find_constants(mean, std, scale, channels)

    def on_host(result: NDArray[Any]) -> None:
        _write(name, factor, offset, out_layout, as_hwc(images, layout), result, windows)

    def on_device(result: Any) -> Iterator[Any]:
        planar = layout == "CHW", out_layout == "CHW"
        counts = by_value([len(images), channels, height, width, out_height, out_width, *planar])
        # By value, as parameters of the kernel, so a launch allocates and copies nothing.
        constants = np.zeros((2, _MOST_CHANNELS), np.float32)
        constants[:, :channels] = factor, offset
        # A thread writes neighbors, in one store: four of a plane's row, or 16 bytes of a row's pixels and
        # their channels.
        row, each = (out_width, 4) if out_layout == "CHW" else (out_width * channels, 16 // held.itemsize)
        entry = f"normalize<{CPP_TYPES[images.dtype.name]}, {CPP_TYPES[name]}>"
        grid = spread_images(len(images), out_height, -(-row // each))
        yield entry, grid, (images, windows, result, counts, by_value(constants, np.float32))

    shape = (len(images), *join_shape(channels, out_height, out_width, out_layout))
    return Work(shape, held, on_host, on_device)


def _write(
    name: str,
    factor: NDArray[np.float32],
    offset: NDArray[np.float32],
    out_layout: Layout,
    pixels: NDArray[Any],
    result: NDArray[Any],
    windows: NDArray[np.int32] | None = None,
) -> None:
    """Write windows of images, normalized unless the result is uint8; images are in the layout HWC."""
    target = as_hwc(result, out_layout)
    if name == "uint8":
        target[...] = pixels
        return
    # A dtype of ml_dtypes holds the same bits, but NumPy would convert to it.
    if name == "bfloat16":
        target = target.view(np.uint16)
    _, height, width, channels = target.shape
    step = max(_PIECE // max(target[:1].size, 1), 1)
    look_up = resampling.LATE_RESIZER.look_up  # None until it is compiled
    for first in range(0, len(pixels), step):
        piece = slice(first, first + step)
        part = pixels[piece, :height, :width]
        if windows is not None:
            part = np.empty(part.shape, part.dtype)
            cut_windows(pixels[piece], windows[piece], part)
        if pixels.dtype == np.uint8:
            # There are only 256 results per channel: looking them up is faster than computing them.
            table = _tabulate(factor.tobytes(), offset.tobytes(), name)
            if look_up is not None and name == "float32":
                look_up(table, part, target[piece])
                continue
            for channel in range(channels):
                # A byte is never out of range; any other mode would buffer the result to check that.
                table[channel].take(part[..., channel], out=target[piece, ..., channel], mode="clip")
        else:
            target[piece] = round_to(_multiply_add(part, factor, offset), name)


def as_constant(name: str, given: ArrayLike) -> NDArray[np.float64]:
    """Return a mean, a std or a scale as an array, or raise; its number of channels is not checked.

    >>> as_constant("mean", [0.4, 0.5, 0.6]).shape
    (3,)
    """
    try:
        part = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {given!r}") from None
    if name == "scale" and part.ndim:
        raise ValueError(f"scale must be one number, got {given!r}")
    if not np.isfinite(part).all() or (name == "std" and not part.all()):
        raise ValueError(f"{name} must be finite{' and not 0' if name == 'std' else ''}, got {given!r}")
    return part


def find_constants(
    mean: ArrayLike, std: ArrayLike, scale: float, channels: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the factor and the offset for every channel, or raise.

    >>> [part.tolist() for part in find_constants(128, 64, 1.0, channels=2)]
    [[0.015625, 0.015625], [-2.0, -2.0]]
    """
    parts = {}
    for name, given in {"mean": mean, "std": std, "scale": scale}.items():
        part = as_constant(name, given)
        if part.shape not in ((), (1,), (channels,)):
            advice = "" if channels <= 4 else "; does `layout` say where the images have them?"
            raise ValueError(
                f"{name} must be one number for each of {channels} channels, got {given!r}{advice}"
            )
        parts[name] = np.broadcast_to(part, channels)
    # Divided in double: the quotient of two rounded floats would be rounded twice.
    with np.errstate(all="ignore"):
        factor = (parts["scale"] / parts["std"]).astype(np.float32)
        offset = (-parts["mean"] / parts["std"]).astype(np.float32)
    if not (np.isfinite(factor).all() and np.isfinite(offset).all()):
        raise ValueError(f"scale / std and mean / std must fit into float32, got std {std!r}")
    return factor, offset


# ---------------------------------------------------------------------------------------------------------
# What kernels that make images of bytes do with each channel at the end; the device's part is channels.cuh

# The numbers of channels that images of bytes may have.
CHANNELS = (1, 3)

# The dtypes that images of bytes are made into.
TARGETS = (*_TARGETS, "uint8")

_MOST_FINISHED = 4  # the size of the structure in channels.cuh


# A result's dtype, by its name and as its array's; the kernel's constants; the twin's last step.
Finish = tuple[str, np.dtype[Any], NDArray[Any], Callable[[NDArray[np.uint8], NDArray[Any]], None]]


def plan_finish(
    channels: int, mean: ArrayLike, std: ArrayLike, scale: float, out_layout: Layout, dtype: DTypeLike
) -> Finish:
    """Return what becomes of images of bytes, in the layout HWC: normalized, unless the result is uint8.

    >>> *_, write = plan_finish(1, 2, 1, 1, "CHW", "float32")
    >>> out = np.zeros((1, 1, 1, 2), np.float32)
    >>> write(np.array([[[[4], [8]]]], np.uint8), out)
    >>> out.tolist()
    [[[[2.0, 6.0]]]]
    """
    if channels not in CHANNELS:
        raise ValueError(f"images must have 1 or 3 channels, got {channels}")
    name, held = resolve_target(dtype, TARGETS)
    factor, offset = find_constants(mean, std, scale, channels)
    if name == "uint8" and not ((factor == 1).all() and (offset == 0).all()):
        raise ValueError("a result of dtype uint8 is not normalized: leave mean, std and scale out")
    constants = np.zeros((2, _MOST_FINISHED), np.float32)
    constants[:, :channels] = factor, offset
    return name, held, by_value(constants, np.float32), partial(_write, name, factor, offset, out_layout)


# ---------------------------------------------------------------------------------------------------------
# The twin's multiply-add, which NumPy lacks: a GPU rounds it once


@lru_cache(maxsize=64)
def _tabulate(factor: bytes, offset: bytes, name: str) -> NDArray[Any]:
    """Return the result for every byte in every channel, shape (channels, 256)."""
    scale, shift = np.frombuffer(factor, np.float32)[:, None], np.frombuffer(offset, np.float32)[:, None]
    table = round_to(_multiply_add(np.arange(256, dtype=np.float32), scale, shift), name)
    table.flags.writeable = False
    return table


def _multiply_add(
    values: NDArray[np.float32], factor: NDArray[np.float32], offset: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return ``values * factor + offset`` in float32, rounded once like a fused multiply-add."""
    # In double, the product of two floats is exact and the sum is rounded; the conversion to float rounds it
    # again. Rounding twice can only give a different result if the double is a tie between two floats, or if
    # the float is subnormal. These values, about one in 2**29, are computed again, exactly.
    with np.errstate(all="ignore"):
        total = values * factor.astype(np.float64) + offset.astype(np.float64)
        result: NDArray[np.float32] = total.astype(np.float32)
        doubtful = (total.view(np.int64) & 0x1FFFFFFF) == 0x10000000
        doubtful |= np.abs(total) < 2.0**-125
        doubtful &= total != 0
        if doubtful.any():
            parts = (np.broadcast_to(part, total.shape)[doubtful] for part in (values, factor, offset))
            result[doubtful] = _multiply_add_exactly(*parts)
    return result


def _multiply_add_exactly(
    values: NDArray[np.float32], factor: NDArray[np.float32], offset: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return ``values * factor + offset`` in float32, rounded once, by rounding to odd in double first."""
    # After rounding to odd, a second rounding gives the same result as a single one would. See Boldo and
    # Melquiond, "Emulation of FMA and correctly rounded sums" (2008).
    product, added = values * factor.astype(np.float64), offset.astype(np.float64)
    total = product + added
    part = total - product
    lost = (product - (total - part)) + (added - part)  # exact: Knuth's TwoSum
    inexact = np.isfinite(lost) & (lost != 0)
    even = (total.view(np.int64) & 1) == 0
    towards = np.where(lost > 0, np.inf, -np.inf)
    result: NDArray[np.float64] = np.where(inexact & even, np.nextafter(total, towards), total)
    return result.astype(np.float32)
