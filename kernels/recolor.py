"""`recolor`: change the colors of pictures as Pillow does, and normalize them, on the device or in NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gpuloader.kernels.channels import CHANNELS, TARGETS, finish_on_host, make_constants
from gpuloader.kernels.dtypes import cpp_type, resolve_target
from gpuloader.kernels.launching import (
    Library,
    check_array,
    check_size,
    launch,
    make_struct,
    obtain,
    obtain_on_device,
    spread,
)
from gpuloader.kernels.recoloring import recolor_picture
from gpuloader.kernels.windows import Layout, check_layout, geometry_type, join_shape, measure

ENTRIES = (
    *(f"measure<{channels}>" for channels in CHANNELS),
    *(f"recolor<{channels}, {cpp_type(target)}>" for channels in CHANNELS for target in TARGETS),
)

MOST_CONTRASTS = 8
"""How many times the contrast of a picture can be changed."""

PARTS = 32
"""How many parts of each picture are added up by themselves."""

_PICTURES = geometry_type("samples", "pixels", "planar", "row", "first", "contrasts")
_THREADS, _EACH = 256, 4  # threads of a block that adds up, and pixels that a thread recolors


def recolor(
    pictures: Any,
    numbers: Any,
    *,
    first: int = 0,
    contrasts: int = 0,
    sums: Any = None,
    mean: ArrayLike = 0.0,
    std: ArrayLike = 1.0,
    scale: float = 1.0,
    out_layout: Layout = "CHW",
    dtype: DTypeLike = "float32",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Return pictures with changed colors, normalized, on the device.

    The pixels are those of Pillow's ``ImageEnhance`` and of torchvision's ``adjust_hue``, after each change
    rounded to bytes. Then ``(x * scale - mean) / std`` is computed as `normalize` does.

    Parameters
    ----------
    pictures : cupy.ndarray
        The pictures, uint8 of shape (n, height, width, channels), 1 or 3 channels; fewer than 2**31 values
        per picture; contiguous.
    numbers : cupy.ndarray
        The changes of each picture, float32 of shape (n, first + 2 * changes). From column `first` on, each
        change is a pair: what to change, and by how much. 1 is brightness, 2 contrast, 3 saturation, each by
        a factor; 4 is hue, by an integer from 0 to 255 in parts of the color wheel. Other numbers change
        nothing.
    first : int
        The first column of the changes.
    contrasts : int
        How many times the contrast of a picture is changed at most, 0 to 8. Later changes of a picture whose
        contrast changes more often are left out.
    sums : cupy.ndarray or None
        Memory for sums, uint64 of shape (n, contrasts, 32); contiguous. None allocates it.
    mean, std : float or sequence of float
        One number for all channels or one per channel, in units of ``pixels * scale``.
    scale : float
        The factor applied first; ``1 / 255`` maps bytes to 0 to 1.
    out_layout : {"CHW", "HWC"}
        The layout of the result.
    dtype : dtype-like
        The result's dtype: float32, float16, "bfloat16" as bits in uint16, or uint8, which is not normalized.
    out : cupy.ndarray or None
        The array to write to, with the result's shape and dtype; contiguous, not overlapping the pictures.
        None allocates a new array.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the pictures' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or has another dtype.
    ValueError
        An array has another shape, is not contiguous, or is on another device; a number is out of range.
    """
    plan = _plan(pictures, numbers, first, contrasts, out_layout, dtype, "cupy")
    constants = make_constants(plan.name, mean, std, scale, plan.channels)
    result, device = obtain_on_device(out, plan.shape, plan.held, pictures=pictures, numbers=numbers)
    if result.size:
        samples, pixels = plan.counts["samples"], plan.counts["pixels"]
        shape = samples, contrasts, PARTS
        sums = obtain("sums", sums, "cupy", shape, [np.uint64], device) if contrasts else None
        counts = make_struct(_PICTURES, **plan.counts)
        for contrast in range(contrasts):
            arguments = pictures, numbers, sums, counts, np.uint32(contrast)
            grid = spread(PARTS * _THREADS, samples)
            launch("recolor", f"measure<{plan.channels}>", grid, arguments, device, stream)
        entry = f"recolor<{plan.channels}, {cpp_type(plan.name)}>"
        given = pictures, numbers, sums, result, counts, constants
        launch("recolor", entry, spread(-(-pixels // _EACH), samples), given, device, stream)
    return result


def recolor_on_host(
    pictures: NDArray[np.uint8],
    numbers: NDArray[np.float32],
    *,
    first: int = 0,
    contrasts: int = 0,
    sums: NDArray[np.uint64] | None = None,  # noqa: ARG001
    mean: ArrayLike = 0.0,
    std: ArrayLike = 1.0,
    scale: float = 1.0,
    out_layout: Layout = "CHW",
    dtype: DTypeLike = "float32",
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return pictures with changed colors, normalized: the twin of `recolor`.

    Examples
    --------
    >>> red = np.array([[[[200, 0, 0]]]], np.uint8)
    >>> darker_gray = np.array([[1, 0.5, 3, 0]], np.float32)
    >>> recolor_on_host(red, darker_gray, dtype="uint8", out_layout="HWC").ravel().tolist()
    [30, 30, 30]
    """
    plan = _plan(pictures, numbers, first, contrasts, out_layout, dtype, "numpy")
    make_constants(plan.name, mean, std, scale, plan.channels)
    result: NDArray[Any] = obtain("out", out, "numpy", plan.shape, [plan.held])
    pixels = np.empty_like(pictures)
    for target, picture, row in zip(pixels, pictures, numbers[:, first:].tolist(), strict=True):
        target[...] = recolor_picture(picture, list(zip(row[::2], row[1::2], strict=True)), contrasts)
    finish_on_host(pixels, result, mean, std, scale, out_layout, dtype)
    return result


class _Plan(NamedTuple):
    """The checked arguments: the result's shape and dtype, its channels, and the kernel's geometry."""

    shape: tuple[int, ...]
    name: str
    held: np.dtype[Any]
    channels: int
    counts: dict[str, int]


def _plan(
    pictures: Any,
    numbers: Any,
    first: int,
    contrasts: int,
    out_layout: Layout,
    dtype: DTypeLike,
    library: Library,
) -> _Plan:
    check_array("pictures", pictures, library, shape=(None,) * 4, dtypes=[np.uint8])
    channels, height, width = measure(pictures, "HWC")
    if channels not in CHANNELS:
        raise ValueError(f"pictures must have 1 or 3 channels, got shape {pictures.shape}")
    check_array("numbers", numbers, library, shape=(len(pictures), None), dtypes=[np.float32])
    row = numbers.shape[1]
    first = check_size("first", first, 0)
    if row < first or (row - first) % 2:
        raise ValueError(f"numbers must have pairs from column {first} on, got shape {numbers.shape}")
    contrasts = check_size("contrasts", contrasts, 0, MOST_CONTRASTS + 1)
    check_layout("out_layout", out_layout)
    name, held = resolve_target(dtype, TARGETS)
    counts = {
        "samples": len(pictures),
        "pixels": height * width,
        "planar": int(out_layout == "CHW"),
        "row": row,
        "first": first,
        "contrasts": contrasts,
    }
    shape = (len(pictures), *join_shape(channels, height, width, out_layout))
    return _Plan(shape, name, held, channels, counts)
