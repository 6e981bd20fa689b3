"""`resample`: crop and resize pictures of any size as Pillow does, mirror and normalize them, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
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
from gpuloader.kernels.resizing import INTERPOLATIONS, Interpolation, resize_on_host
from gpuloader.kernels.windows import Layout, check_layout, join_shape

GEOMETRY = (
    *("height", "width", "row", "column"),
    *("left", "top", "right", "bottom"),
    *("tall", "wide", "y", "x", "turn"),
)
"""The numbers of a picture's geometry, all float32, which holds integers up to 2**24.

Of a picture, only the region that the result depends on may be there. The numbers are height and width of
the region, and its first row and column in the picture; the edges of the box in the picture, which may have
fractions; height and width to resize the box to; top and left of the result in there; and the turn: 1 mirrors
the result left to right, 2 top to bottom, 3 both. Pixels outside the resized box are black.
"""

ENTRIES = tuple(f"resample<{channels}, {cpp_type(target)}>" for channels in CHANNELS for target in TARGETS)

_PICTURES = np.dtype(
    [("samples", np.uint64), ("pixels", np.int64)]
    + [(name, np.int32) for name in ("out_height", "out_width", "out_planar", "cubic", "numbers")],
    align=True,
)

_TILE_COLUMNS, _TILE_ROWS, _THREADS = 32, 16, 256
_GREATEST = 2**24  # height or width: exact as a float, like the edges of a box


def resample(
    values: Any,
    row_splits: Any,
    geometry: Any,
    size: Sequence[int],
    *,
    interpolation: Interpolation = "bilinear",
    mean: ArrayLike = 0.0,
    std: ArrayLike = 1.0,
    scale: float = 1.0,
    out_layout: Layout = "CHW",
    dtype: DTypeLike = "float32",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Return a box of each picture, resized, mirrored and normalized, on the device.

    The resized pixels are those of two calls of Pillow's ``Image.resize`` with `box`, the first along x, the
    second along y: antialiased, with each pass rounded to bytes. The filter reaches beyond the box into the
    picture. Then a picture may be mirrored, and ``(x * scale - mean) / std`` is computed as `normalize` does.

    Parameters
    ----------
    values : cupy.ndarray
        The pixels of all pictures, one picture behind the other, each row by row; shape (pixels, channels),
        uint8, 1 or 3 channels, contiguous.
    row_splits : cupy.ndarray
        Shape (n + 1,), int64: picture i spans the pixels ``row_splits[i]`` to ``row_splits[i + 1]``.
    geometry : cupy.ndarray
        The 13 numbers of `GEOMETRY` for each picture, float32, shape (n, 13); further columns are not read. A
        picture whose numbers are impossible is black rather than refused, because checking would wait for
        the device.
    size : (int, int)
        Height and width of the result.
    interpolation : {"bilinear", "bicubic"}
        The filter.
    mean, std : float or sequence of float
        One number for all channels or one per channel, in units of ``pixels * scale``.
    scale : float
        The factor applied first; ``1 / 255`` maps bytes to 0 to 1.
    out_layout : {"CHW", "HWC"}
        The layout of the result.
    dtype : dtype-like
        The result's dtype: float32, float16, "bfloat16" as bits in uint16, or uint8, which is not normalized.
    out : cupy.ndarray or None
        The array to write to, with the result's shape and dtype; contiguous. None allocates a new array.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the values' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or has another dtype.
    ValueError
        An array has another shape, is not contiguous, or is on another device; a number is out of range.
    """
    plan = _plan(values, row_splits, geometry, size, interpolation, out_layout, dtype, "cupy")
    constants = make_constants(plan.name, mean, std, scale, plan.channels)
    result, device = obtain_on_device(
        out, plan.shape, plan.held, values=values, row_splits=row_splits, geometry=geometry
    )
    if result.size:
        samples, (height, width) = len(geometry), plan.size
        pictures = make_struct(
            _PICTURES,
            samples=samples,
            pixels=len(values),
            out_height=height,
            out_width=width,
            out_planar=out_layout == "CHW",
            cubic=interpolation == "bicubic",
            numbers=geometry.shape[1],
        )
        tiles = -(-height // _TILE_ROWS) * -(-width // _TILE_COLUMNS)
        arguments = values, row_splits, geometry, result, pictures, constants
        entry = f"resample<{plan.channels}, {cpp_type(plan.name)}>"
        launch("resample", entry, spread(tiles * _THREADS, samples), arguments, device, stream)
    return result


def resample_on_host(
    values: NDArray[np.uint8],
    row_splits: NDArray[np.int64],
    geometry: NDArray[np.float32],
    size: Sequence[int],
    *,
    interpolation: Interpolation = "bilinear",
    mean: ArrayLike = 0.0,
    std: ArrayLike = 1.0,
    scale: float = 1.0,
    out_layout: Layout = "CHW",
    dtype: DTypeLike = "float32",
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return a box of each picture, resized, mirrored and normalized: the twin of `resample`.

    Examples
    --------
    >>> picture = np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6, 1)
    >>> pixels, splits = picture.reshape(-1, 1), np.array([0, 24])
    >>> whole = np.array([[4, 6, 0, 0, 0, 0, 6, 4, 2, 3, 0, 0, 0]], np.float32)
    >>> resample_on_host(pixels, splits, whole, (2, 3), dtype="uint8").tolist()
    [[[[50, 68, 86], [144, 162, 180]]]]
    """
    plan = _plan(values, row_splits, geometry, size, interpolation, out_layout, dtype, "numpy")
    make_constants(plan.name, mean, std, scale, plan.channels)
    result: NDArray[Any] = obtain("out", out, "numpy", plan.shape, [plan.held])
    pixels = np.zeros((len(geometry), *plan.size, plan.channels), np.uint8)
    for number, numbers in enumerate(geometry[:, : len(GEOMETRY)].tolist()):
        begin, end = row_splits[number : number + 2].tolist()
        if 0 <= begin <= end <= len(values) and _is_possible(numbers, end - begin):
            height, width, *corner = (int(one) for one in numbers[:4])
            *window, turn = (int(one) for one in numbers[8:])
            region = values[begin : begin + height * width].reshape(height, width, -1)
            resized = resize_on_host(region, numbers[4:8], plan.size, interpolation, window, corner)
            pixels[number] = resized[:: -1 if turn & 2 else 1, :: -1 if turn & 1 else 1]
    finish_on_host(pixels, result, mean, std, scale, out_layout, dtype)
    return result


def _is_possible(numbers: Sequence[float], pixels: int) -> bool:
    height, width, row, column, left, top, right, bottom, tall, wide, y, x, turn = numbers
    return (
        all(1 <= one <= _GREATEST for one in (height, width, tall, wide))
        and int(height) * int(width) <= pixels
        and all(0 <= one <= _GREATEST for one in (row, column))
        and 0 <= left < right <= _GREATEST
        and 0 <= top < bottom <= _GREATEST
        and all(-_GREATEST <= one <= _GREATEST for one in (y, x))
        and 0 <= turn <= 3
    )


class _Plan(NamedTuple):
    """The checked arguments: the result's shape and dtype, and its size and channels."""

    shape: tuple[int, ...]
    name: str
    held: np.dtype[Any]
    size: tuple[int, int]
    channels: int


def _plan(
    values: Any,
    row_splits: Any,
    geometry: Any,
    size: Sequence[int],
    interpolation: str,
    out_layout: Layout,
    dtype: DTypeLike,
    library: Library,
) -> _Plan:
    check_array("values", values, library, shape=(None, None), dtypes=[np.uint8])
    check_array("geometry", geometry, library, shape=(None, None), dtypes=[np.float32])
    if geometry.shape[1] < len(GEOMETRY):
        raise ValueError(f"geometry must have {len(GEOMETRY)} columns or more, got shape {geometry.shape}")
    samples, channels = len(geometry), values.shape[1]
    check_array("row_splits", row_splits, library, shape=(samples + 1,), dtypes=[np.int64])
    if channels not in CHANNELS:
        raise ValueError(f"values must have 1 or 3 channels, got shape {values.shape}")
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"interpolation must be 'bilinear' or 'bicubic', got {interpolation!r}")
    check_layout("out_layout", out_layout)
    if not isinstance(size, Sequence) or len(size) != 2:
        raise ValueError(f"size must be (height, width), got {size!r}")
    height = check_size("height in size", size[0], 0, 2**16)
    width = check_size("width in size", size[1], 0, 2**16)
    name, held = resolve_target(dtype, TARGETS)
    shape = (samples, *join_shape(channels, height, width, out_layout))
    return _Plan(shape, name, held, (height, width), channels)
