"""`normalize`: images to floats of mean 0 and deviation 1; crops, mirrors and changes layout in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gpuloader.kernels.dtypes import FLOATS, cpp_type, resolve_target, round_to
from gpuloader.kernels.launching import (
    Library,
    check_array,
    launch,
    make_struct,
    obtain,
    obtain_on_device,
    spread_images,
)
from gpuloader.kernels.windows import (
    Layout,
    as_pixels,
    check_layout,
    check_window,
    cut_windows,
    geometry_type,
    join_shape,
    measure,
)

_SOURCES = ("uint8", "float32")
_TARGETS = tuple(name for name in FLOATS if name != "float64")

ENTRIES = tuple(
    f"normalize<{cpp_type(source)}, {cpp_type(target)}>" for source in _SOURCES for target in _TARGETS
)

_BITS = np.dtype(np.uint16)
_PIECE = (
    2**17
)  # values the twin converts at once: few enough for the CPU's cache, enough to amortize the calls

_MOST_CHANNELS = 16
_CHANNELS = np.dtype([("factor", np.float32, _MOST_CHANNELS), ("offset", np.float32, _MOST_CHANNELS)])
_IMAGES = geometry_type(
    "samples", "channels", "height", "width", "out_height", "out_width", "planar", "out_planar"
)


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
) -> Any:
    """Return ``(images * scale - mean) / std``, channel by channel, on the device.

    The kernel computes one float32 multiply-add, ``x * (scale / std) + (-mean / std)``, rounded once. Both
    constants are rounded to float32 once. The result is then rounded to `dtype`, to nearest, ties to even.

    Parameters
    ----------
    images : cupy.ndarray
        The images, shape (n, height, width, channels) or (n, channels, height, width) depending on `layout`;
        uint8 or float32; 1 to 16 channels; fewer than 2**31 values per sample; contiguous.
    mean, std : float or sequence of float
        One number for all channels or one per channel, in units of ``images * scale``.
    scale : float
        The factor applied first; ``1 / 255`` maps bytes to 0 to 1.
    layout, out_layout : {"HWC", "CHW"}
        The layouts of the images and of the result.
    dtype : dtype-like
        The result's dtype: float32, float16, or "bfloat16" as bits in uint16.
    size : (int, int) or None
        Height and width of the result, at most those of the images; None keeps theirs.
    windows : cupy.ndarray or None
        For every sample: top, left, and whether to mirror left to right (0 or not 0). Shape (n, 3), int32.
        The window is cut out first, then mirrored. A window that reaches over the edge is moved inside. None
        cuts the window at the top left, not mirrored.
    out : cupy.ndarray or None
        The array to write to, with the result's shape and dtype; contiguous, not overlapping the images.
        None allocates a new array.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the images' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or has another dtype.
    ValueError
        An array has another shape, is not contiguous, or is on another device; a number is out of range.
    """
    plan = _plan(images, mean, std, scale, layout, out_layout, dtype, size, windows, "cupy")
    result, device = obtain_on_device(out, plan.shape, plan.held, images=images, windows=windows)
    if result.size:
        channels = np.zeros((), _CHANNELS)
        channels["factor"][: plan.factor.size] = plan.factor
        channels["offset"][: plan.offset.size] = plan.offset
        arguments = images, windows, result, make_struct(_IMAGES, **plan.counts), channels
        entry = f"normalize<{cpp_type(images.dtype.name)}, {cpp_type(plan.name)}>"
        row = plan.counts["out_width"] * (1 if plan.counts["out_planar"] else plan.counts["channels"])
        grid = spread_images(plan.counts["samples"], plan.counts["out_height"], -(-row // 4))
        launch("normalize", entry, grid, arguments, device, stream)
    return result


def normalize_on_host(
    images: NDArray[Any],
    mean: ArrayLike,
    std: ArrayLike,
    *,
    scale: float = 1.0,
    layout: Layout = "HWC",
    out_layout: Layout = "CHW",
    dtype: DTypeLike = "float32",
    size: Sequence[int] | None = None,
    windows: NDArray[np.int32] | None = None,
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return ``(images * scale - mean) / std``, channel by channel: the twin of `normalize`.

    Examples
    --------
    >>> images = np.array([[[[0, 128], [255, 64]]]], np.uint8)  # one image of 1 x 2 pixels and two channels
    >>> normalize_on_host(images, mean=[0, 128], std=[255, 64]).tolist()
    [[[[0.0, 1.0]], [[0.0, -1.0]]]]
    """
    plan = _plan(images, mean, std, scale, layout, out_layout, dtype, size, windows, "numpy")
    result: NDArray[Any] = obtain("out", out, "numpy", plan.shape, [plan.held])
    pixels, target = as_pixels(images, layout), as_pixels(result, out_layout)
    held = target.view(_BITS if plan.name == "bfloat16" else plan.held)
    step = max(_PIECE // max(target[:1].size, 1), 1)
    for first in range(0, len(pixels), step):
        piece = slice(first, first + step)
        part = _cut(pixels[piece], None if windows is None else windows[piece], *target.shape[1:3])
        if images.dtype == np.uint8:
            table = _tabulate(plan.factor.tobytes(), plan.offset.tobytes(), plan.name)
            for channel in range(plan.factor.size):
                # A byte is never out of range, and any other mode would buffer the result to check that.
                table[channel].take(part[..., channel], out=held[piece, ..., channel], mode="clip")
        else:
            held[piece] = round_to(_multiply_add(part, plan.factor, plan.offset), plan.name)
    return result


def _cut(pixels: NDArray[Any], windows: NDArray[np.int32] | None, height: int, width: int) -> NDArray[Any]:
    """Return windows of images laid out as (n, height, width, channels); without `windows`, a view."""
    if windows is None:
        return pixels[:, :height, :width]
    result = np.empty((len(pixels), height, width, pixels.shape[3]), pixels.dtype)
    cut_windows(pixels, windows, result)
    return result


@lru_cache(maxsize=64)
def _tabulate(factor: bytes, offset: bytes, name: str) -> NDArray[Any]:
    """Return the result for every byte in every channel, shape (channels, 256)."""
    constants = [np.frombuffer(part, np.float32)[:, None] for part in (factor, offset)]
    table = round_to(_multiply_add(np.arange(256, dtype=np.float32), *constants), name)
    table.flags.writeable = False
    return table


@dataclass(frozen=True)
class _Plan:
    """The checked arguments: the result's shape and dtype, the kernel's geometry, and the constants."""

    shape: tuple[int, ...]
    name: str
    held: np.dtype[Any]
    counts: dict[str, int]
    factor: NDArray[np.float32]
    offset: NDArray[np.float32]


def _plan(
    images: Any,
    mean: ArrayLike,
    std: ArrayLike,
    scale: float,
    layout: Layout,
    out_layout: Layout,
    dtype: DTypeLike,
    size: Sequence[int] | None,
    windows: Any,
    library: Library,
) -> _Plan:
    check_array("images", images, library, shape=(None,) * 4, dtypes=_SOURCES)
    check_layout("layout", layout)
    check_layout("out_layout", out_layout)
    channels, height, width = measure(images, layout, _MOST_CHANNELS)
    samples = len(images)
    out_height, out_width = (height, width) if size is None else check_window(size, height, width)
    if windows is not None:
        check_array("windows", windows, library, shape=(samples, 3), dtypes=[np.int32])
    name, held = resolve_target(dtype, _TARGETS)
    counts = {
        "samples": samples,
        "channels": channels,
        "height": height,
        "width": width,
        "out_height": out_height,
        "out_width": out_width,
        "planar": int(layout == "CHW"),
        "out_planar": int(out_layout == "CHW"),
    }
    shape = (samples, *join_shape(channels, out_height, out_width, out_layout))
    return _Plan(shape, name, held, counts, *find_constants(mean, std, scale, channels))


def as_constant(name: str, given: ArrayLike) -> NDArray[np.float64]:
    """Return a mean, a std or a scale as an array, without checking its number of channels.

    Raises
    ------
    TypeError
        The value does not consist of numbers.
    ValueError
        A number is not finite, a std is 0, or a scale is more than one number.

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
    """Return the factor and the offset for every channel; raise as `normalize` does.

    >>> [part.tolist() for part in find_constants(128, 64, 1.0, channels=2)]
    [[0.015625, 0.015625], [-2.0, -2.0]]
    """
    parts = {}
    for name, given in {"mean": mean, "std": std, "scale": scale}.items():
        part = as_constant(name, given)
        if part.shape not in ((), (1,), (channels,)):
            raise ValueError(f"{name} must be one number for each of {channels} channels, got {given!r}")
        parts[name] = np.broadcast_to(part, channels)
    with np.errstate(all="ignore"):
        factor = (parts["scale"] / parts["std"]).astype(np.float32)
        offset = (-parts["mean"] / parts["std"]).astype(np.float32)
    if not (np.isfinite(factor).all() and np.isfinite(offset).all()):
        raise ValueError(f"scale / std and mean / std must fit into float32, got std {std!r}")
    return factor, offset


def _multiply_add(
    values: NDArray[np.float32], factor: NDArray[np.float32], offset: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return ``values * factor + offset`` in float32, rounded once like a fused multiply-add.

    In double, the product of two floats is exact and the sum is rounded; the conversion to float rounds it
    again. Rounding twice can give another result only if the double is a tie between two floats, or if the
    float is subnormal. Those values are computed again, exactly.
    """
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
    """Return ``values * factor + offset`` in float32, rounded once, by rounding to odd in double first.

    After rounding to odd, a second rounding gives the same result as a single rounding would. See Boldo and
    Melquiond, "Emulation of FMA and correctly rounded sums" (2008).
    """
    product, added = values * factor.astype(np.float64), offset.astype(np.float64)
    total = product + added
    part = total - product
    lost = (product - (total - part)) + (added - part)  # exact: Knuth's TwoSum
    inexact = np.isfinite(lost) & (lost != 0)
    even = (total.view(np.int64) & 1) == 0
    towards = np.where(lost > 0, np.inf, -np.inf)
    result: NDArray[np.float64] = np.where(inexact & even, np.nextafter(total, towards), total)
    return result.astype(np.float32)
