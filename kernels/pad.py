"""`pad`: turn rows of varying length into one dense array, on the device or in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.kernels.dtypes import WORDS
from gpuloader.kernels.launching import (
    Library,
    check_array,
    check_size,
    find_word,
    launch,
    make_struct,
    obtain,
    obtain_on_device,
    spread_rows,
)

ENTRIES = tuple(f"pad<{word}>" for word in WORDS.values())

_PATTERN = 16
_SHAPE = np.dtype([(name, np.uint64) for name in ("rows", "longest", "steps", "words")], align=True)


def pad(
    values: Any,
    row_splits: Any,
    longest: int,
    fill: float = 0,
    *,
    mask: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Return rows of varying length as a dense array, with short rows filled up, on the device.

    Parameters
    ----------
    values : cupy.ndarray
        The steps of all rows, one row after the other, shape (steps, ...), any numeric dtype, contiguous.
    row_splits : cupy.ndarray
        Shape (n + 1,), int64: row i spans ``row_splits[i]`` to ``row_splits[i + 1]``. Splits that decrease or
        lie outside the values are clamped rather than refused, because checking would wait for the device.
    longest : int
        The number of steps per row of the result; longer rows are cut.
    fill : number
        The value that fills up short rows; it must fit the dtype of the values.
    mask : cupy.ndarray or None
        An array to set to True for steps that come from `values` and False for the others; shape
        (n, longest), bool, contiguous.
    out : cupy.ndarray or None
        The array to write to, shape (n, longest, ...), with the values' dtype; contiguous, not overlapping
        them. None allocates a new array.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the values' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or has another dtype; `longest` is not an integer.
    ValueError
        An array has another shape, is not contiguous, or is on another device; the fill does not fit the
        dtype.
    """
    shape, element = _check(values, row_splits, longest, fill, mask, "cupy")
    result, device = obtain_on_device(
        out, shape, values.dtype, values=values, row_splits=row_splits, mask=mask
    )
    if result.size or (mask is not None and mask.size):
        step = result.itemsize * _count(shape[2:])
        size = find_word(step, values.data.ptr, result.data.ptr)
        geometry = make_struct(_SHAPE, rows=shape[0], longest=shape[1], steps=len(values), words=step // size)
        pattern = np.frombuffer(element.tobytes() * (_PATTERN // element.itemsize), f"V{_PATTERN}")
        arguments = values, row_splits, result, mask, geometry, pattern
        grid = spread_rows(shape[0], shape[1] * max(step // size, 1))
        launch("pad", f"pad<{WORDS[size]}>", grid, arguments, device, stream)
    return result


def pad_on_host(
    values: NDArray[Any],
    row_splits: NDArray[np.int64],
    longest: int,
    fill: float = 0,
    *,
    mask: NDArray[np.bool_] | None = None,
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return rows of varying length as a dense array, with short rows filled up: the twin of `pad`.

    Examples
    --------
    >>> pad_on_host(np.array([1, 2, 3, 4]), np.array([0, 3, 4]), longest=3, fill=-1).tolist()
    [[1, 2, 3], [4, -1, -1]]
    """
    shape, element = _check(values, row_splits, longest, fill, mask, "numpy")
    result: NDArray[Any] = obtain("out", out, "numpy", shape, [values.dtype])
    begins = np.clip(row_splits[:-1], 0, len(values))
    lengths = np.clip(row_splits[1:], begins, len(values)) - begins
    places = np.arange(shape[1])
    filled = places < lengths[:, None]
    result[...] = element
    result[filled] = values[(begins[:, None] + places)[filled]]
    if mask is not None:
        mask[...] = filled
    return result


def _check(
    values: Any, row_splits: Any, longest: int, fill: float, mask: Any, library: Library
) -> tuple[tuple[int, ...], NDArray[Any]]:
    """Return the shape of the result and the fill as an array of one element."""
    check_array("values", values, library)
    check_array("row_splits", row_splits, library, shape=(None,), dtypes=[np.int64])
    if values.ndim == 0:
        raise ValueError("values must have at least one dimension, got shape ()")
    if not row_splits.size:
        raise ValueError("row_splits must have one more entry than there are rows, got no entry")
    size = values.dtype.itemsize
    if values.dtype.kind in "SUMm" or not size or _PATTERN % size:
        raise TypeError(f"values must be numbers of up to {_PATTERN} bytes, got {values.dtype}")
    shape = (row_splits.size - 1, check_size("longest", longest, 0, 2**40))
    if mask is not None:
        obtain("mask", mask, library, shape, [np.bool_])
    try:
        element = np.array(fill, values.dtype)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"fill must fit into {values.dtype}, got {fill!r}: {error}") from None
    if element.ndim:
        raise ValueError(f"fill must be one number, got shape {element.shape}")
    if values.dtype.kind in "iu" and element != fill:  # a fraction
        raise ValueError(f"fill must fit into {values.dtype}, got {fill!r}")
    return (*shape, *values.shape[1:]), element


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))
