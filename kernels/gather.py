"""`gather`: rows of an array in the order of their indices, on the device or in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.kernels.dtypes import WORDS
from gpuloader.kernels.launching import (
    NO_ARRAY,
    Library,
    check_array,
    find_device,
    find_word,
    launch,
    obtain,
    spread_rows,
)

ENTRIES = tuple(f"gather<{word}>" for word in WORDS.values())


def gather(source: Any, indices: Any, *, span: Any = None, out: Any = None, stream: Any = None) -> Any:
    """Return ``source[indices]`` for whole rows, on the device.

    Parameters
    ----------
    source : cupy.ndarray
        Shape (rows, ...), any dtype, contiguous.
    indices : cupy.ndarray or None
        Shape (n,), int64, each from 0 to below the number of rows. They are not checked: that would wait for
        the device. One out of range reads what does not belong to the source, or ends the CUDA context. None,
        with a span: the position in the span is the row.
    span : cupy.ndarray or None
        Shape (2,), int64: the first and the last position in `indices` to be taken, with as many rows as
        `out` has; where it has more, the last is taken again. Not checked either. None: all of `indices`.
    out : cupy.ndarray or None
        Shape (n, ...) and dtype of the source, contiguous, apart from it; None makes a new one.
    stream : cupy.cuda.Stream or None
        Where the kernel runs; None is the current stream of the source's device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or of another dtype; with a span, there is no `out`.
    ValueError
        An array has another shape, is not contiguous, or lies on another device; or there is no row.
    """
    shape = _check(source, indices, span, out, "cupy")
    device = find_device(source=source, indices=indices, span=span)
    result = obtain("out", out, "cupy", shape, [source.dtype], device)
    if result.size and result.itemsize:
        row = result.nbytes // shape[0]
        size = find_word(row, source.data.ptr, result.data.ptr)
        words = row // size
        order, part = (NO_ARRAY if array is None else array for array in (indices, span))
        arguments = source, order, part, result, np.uint64(shape[0]), np.uint64(words)
        launch("gather", f"gather<{WORDS[size]}>", spread_rows(shape[0], words), arguments, device, stream)
    return result


def gather_on_host(
    source: NDArray[Any],
    indices: NDArray[np.int64] | None,
    *,
    span: NDArray[np.int64] | None = None,
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return ``source[indices]`` for whole rows: the twin of `gather`, which does check the indices.

    Examples
    --------
    >>> gather_on_host(np.array([[1, 2], [3, 4]]), np.array([1, 1, 0])).tolist()
    [[3, 4], [3, 4], [1, 2]]
    >>> order, span = np.array([4, 2, 0, 3, 1]), np.array([1, 2])
    >>> gather_on_host(np.arange(0, 50, 10), order, span=span, out=np.zeros(3, int)).tolist()
    [20, 0, 0]
    """
    shape = _check(source, indices, span, out, "numpy")
    result: NDArray[Any] = obtain("out", out, "numpy", shape, [source.dtype])
    rows = indices
    if span is not None:
        positions = np.minimum(np.arange(shape[0]) + span[0], span[1])
        rows = positions if indices is None else indices[positions]
    assert rows is not None
    if outside := np.flatnonzero((rows < 0) | (rows >= len(source))).tolist():
        raise IndexError(
            f"indices must be from 0 to {len(source) - 1}, got {rows[outside[0]]} at {outside[0]}"
        )
    np.take(source, rows, axis=0, out=result, mode="clip")  # "raise" goes through a second array
    return result


def _check(source: Any, indices: Any, span: Any, out: Any, library: Library) -> tuple[int, ...]:
    """Return the shape of the result."""
    check_array("source", source, library)
    if source.ndim == 0:
        raise ValueError("source must have rows, got shape ()")
    if indices is not None or span is None:
        check_array("indices", indices, library, shape=(None,), dtypes=[np.int64])
    count = 0 if indices is None else indices.size
    if span is not None:
        check_array("span", span, library, shape=(2,), dtypes=[np.int64])
        check_array("out", out, library)
        count = len(out) if out.ndim else 0
    if count and not len(source):
        raise ValueError(f"{count} indices cannot point into a source of shape {source.shape}")
    return count, *source.shape[1:]
