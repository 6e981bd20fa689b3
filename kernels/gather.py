"""`gather`: copy rows of an array in the order of their indices, on the device or in NumPy.

`fuse_gathers` makes one launch of several that gather by the same indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.kernels.dtypes import WORDS
from gpuloader.kernels.launching import (
    Library,
    check_array,
    count_lanes,
    find_kernel,
    find_word,
    launch,
    obtain,
    obtain_on_device,
    spread_rows,
)
from gpuloader.kernels.recording import Launch

ENTRIES = (*(f"gather<{word}>" for word in WORDS.values()), "gather_fields")

_SIZES = {f"gather<{word}>": size for size, word in WORDS.items()}
_MOST_FIELDS = 8
_THREADS, _ONE = 256, 1 << 16  # of a block, and the numerator of the lanes' inverses
_AHEAD = 4  # words that a lane copies at once
_FIELD = np.dtype(
    [(name, np.uint64) for name in ("source", "out", "words")]
    + [(name, np.uint32) for name in ("word", "lanes", "inverse")],
    align=True,
)
_FIELDS = np.dtype([("fields", _FIELD, (_MOST_FIELDS,))])


def gather(source: Any, indices: Any, *, span: Any = None, out: Any = None, stream: Any = None) -> Any:
    """Return ``source[indices]`` for whole rows, on the device.

    Parameters
    ----------
    source : cupy.ndarray
        The rows, shape (rows, ...), any dtype, contiguous.
    indices : cupy.ndarray or None
        The rows to copy, shape (n,), int64, each from 0 to below the number of rows. They are not checked,
        because that would wait for the device: an index out of range reads foreign memory or destroys the
        CUDA context. None is allowed with a span; positions are then row numbers.
    span : cupy.ndarray or None
        The first and the last position in `indices` to copy, shape (2,), int64; not checked either. As many
        rows are copied as `out` has; if the span is shorter, its last row is repeated. None copies all
        `indices`.
    out : cupy.ndarray or None
        The array to write to, shape (n, ...), with the source's dtype; contiguous, not overlapping the
        source. None allocates a new array; a span requires `out`.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the source's device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or has another dtype; or there is a span but no `out`.
    ValueError
        An array has another shape, is not contiguous, or is on another device; or the source has no rows.
    """
    shape = _check(source, indices, span, out, "cupy")
    result, device = obtain_on_device(out, shape, source.dtype, source=source, indices=indices, span=span)
    if result.size and result.itemsize:
        row = result.nbytes // shape[0]
        size = find_word(row, source.data.ptr, result.data.ptr)
        words = row // size
        arguments = source, indices, span, result, np.uint64(shape[0]), np.uint64(words)
        grid = spread_rows(shape[0], words, _AHEAD)
        launch("gather", f"gather<{WORDS[size]}>", grid, arguments, device, stream)
    return result


def gather_on_host(
    source: NDArray[Any],
    indices: NDArray[np.int64] | None,
    *,
    span: NDArray[np.int64] | None = None,
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return ``source[indices]`` for whole rows: the twin of `gather`, but with the indices checked.

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
    np.take(source, rows, axis=0, out=result, mode="clip")  # mode "raise" would buffer the result
    return result


def fuse_gathers(launches: Sequence[Launch]) -> list[Launch]:
    """Return launches that compute the same, with neighboring gathers by the same indices in one launch.

    The arrays must live as long as the launches are repeated.
    """
    fused: list[Launch] = []
    gathers: list[Launch] = []
    for launch_ in launches:
        gathered = launch_.entry in _SIZES
        if gathers and not (gathered and _are_alike(gathers[0], launch_) and len(gathers) < _MOST_FIELDS):
            fused.append(_fuse(gathers))
            gathers = []
        if gathered:
            gathers.append(launch_)
        else:
            fused.append(launch_)
    return [*fused, _fuse(gathers)] if gathers else fused


def _are_alike(one: Launch, other: Launch) -> bool:
    """Return whether two gathers take the same rows."""
    (_, indices, span, _, rows, _), (_, *same, _, count, _) = one.arguments, other.arguments
    return indices is same[0] and span is same[1] and bool(rows == count)


def _fuse(gathers: list[Launch]) -> Launch:
    if len(gathers) == 1:
        return gathers[0]
    fields = np.zeros((), _FIELDS)
    grids = []
    for number, gathered in enumerate(gathers):
        source, indices, span, out, rows, words = gathered.arguments
        lanes = count_lanes(int(words))
        inverse = -(-_ONE // lanes)
        fields["fields"][number] = (
            source.data.ptr,
            out.data.ptr,
            words,
            _SIZES[gathered.entry],
            lanes,
            inverse,
        )
        grids.append(gathered.grid)
    grid = (*(max(sizes) for sizes in zip(*grids, strict=True)), len(gathers))
    kernel = find_kernel("gather", "gather_fields")
    return Launch("gather_fields", kernel, grid, (_THREADS,), (indices, span, rows, fields))


def _check(source: Any, indices: Any, span: Any, out: Any, library: Library) -> tuple[int, ...]:
    """Return the shape of the result."""
    check_array("source", source, library)
    if source.ndim == 0:
        raise ValueError("source must have at least one dimension, got shape ()")
    if indices is not None or span is None:
        check_array("indices", indices, library, shape=(None,), dtypes=[np.int64])
    count = 0 if indices is None else indices.size
    if span is not None:
        check_array("span", span, library, shape=(2,), dtypes=[np.int64])
        check_array("out", out, library)
        count = len(out) if out.ndim else 0
    if count and not len(source):
        raise ValueError(f"cannot gather {count} rows from an empty source of shape {source.shape}")
    return count, *source.shape[1:]
