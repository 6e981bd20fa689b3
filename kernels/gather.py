"""`gather`: rows of an array in the order of their indices, on the device or in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.kernels.dtypes import WORDS
from gpuloader.kernels.launching import (
    Library,
    check_array,
    find_device,
    find_word,
    launch,
    obtain,
    spread_rows,
)

ENTRIES = tuple(f"gather<{word}>" for word in WORDS.values())


def gather(source: Any, indices: Any, *, out: Any = None, stream: Any = None) -> Any:
    """Return ``source[indices]`` for whole rows, on the device.

    Parameters
    ----------
    source : cupy.ndarray
        Shape (rows, ...), any dtype, contiguous.
    indices : cupy.ndarray
        Shape (n,), int64, each from 0 to below the number of rows. They are not checked: that would wait for
        the device. One out of range reads what does not belong to the source, or ends the CUDA context.
    out : cupy.ndarray or None
        Shape (n, ...) and dtype of the source, contiguous, apart from it; None makes a new one.
    stream : cupy.cuda.Stream or None
        Where the kernel runs; None is the current stream of the source's device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or of another dtype.
    ValueError
        An array has another shape, is not contiguous, or lies on another device; or there is no row.
    """
    shape = _check(source, indices, "cupy")
    device = find_device(source=source, indices=indices)
    result = obtain("out", out, "cupy", shape, [source.dtype], device)
    if result.size and result.itemsize:
        row = result.nbytes // shape[0]
        size = find_word(row, source.data.ptr, result.data.ptr)
        words = row // size
        arguments = source, indices, result, np.uint64(shape[0]), np.uint64(words)
        launch("gather", f"gather<{WORDS[size]}>", spread_rows(shape[0], words), arguments, device, stream)
    return result


def gather_on_host(
    source: NDArray[Any],
    indices: NDArray[np.int64],
    *,
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return ``source[indices]`` for whole rows: the twin of `gather`, which does check the indices.

    Examples
    --------
    >>> gather_on_host(np.array([[1, 2], [3, 4]]), np.array([1, 1, 0])).tolist()
    [[3, 4], [3, 4], [1, 2]]
    """
    result: NDArray[Any] = obtain("out", out, "numpy", _check(source, indices, "numpy"), [source.dtype])
    if outside := np.flatnonzero((indices < 0) | (indices >= len(source))).tolist():
        raise IndexError(
            f"indices must be from 0 to {len(source) - 1}, got {indices[outside[0]]} at {outside[0]}"
        )
    np.take(source, indices, axis=0, out=result, mode="clip")  # "raise" goes through a second array
    return result


def _check(source: Any, indices: Any, library: Library) -> tuple[int, ...]:
    """Return the shape of the result."""
    check_array("source", source, library)
    check_array("indices", indices, library, shape=(None,), dtypes=[np.int64])
    if source.ndim == 0:
        raise ValueError("source must have rows, got shape ()")
    if indices.size and not len(source):
        raise ValueError(f"{indices.size} indices cannot point into a source of shape {source.shape}")
    return indices.size, *source.shape[1:]
