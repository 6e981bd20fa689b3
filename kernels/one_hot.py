"""`one_hot`: turn labels into rows of zeros with a single one, on the device or in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.kernels.dtypes import FLOATS, INTEGERS, WORDS, cpp_type, resolve_target
from gpuloader.kernels.launching import (
    Library,
    check_array,
    check_size,
    launch,
    obtain,
    obtain_on_device,
    spread_rows,
)

_DTYPES = ("bool", *INTEGERS, *FLOATS)
_BYTES = (1, 2, 4, 8)

ENTRIES = tuple(f"one_hot<{cpp_type(label)}, {WORDS[size]}>" for label in INTEGERS for size in _BYTES)


def one_hot(
    labels: Any, classes: int, dtype: DTypeLike = "float32", *, out: Any = None, stream: Any = None
) -> Any:
    """Return a row of zeros for every label, with a one in the label's column, on the device.

    Parameters
    ----------
    labels : cupy.ndarray
        The labels, of any shape and any integer dtype; contiguous. A label outside 0 to ``classes - 1`` gets
        a row of zeros.
    classes : int
        The number of columns.
    dtype : dtype-like
        The result's dtype: bool, an integer, float16, float32, float64, or "bfloat16" as bits in uint16.
    out : cupy.ndarray or None
        The array to write to, shape ``(*labels.shape, classes)``, with the result's dtype; contiguous. None
        allocates a new array.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the labels' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or has another dtype; `classes` is not an integer.
    ValueError
        An array has another shape, is not contiguous, or is on another device; `classes` is below 0.
    """
    shape, name, held = _check(labels, classes, dtype, "cupy")
    result, device = obtain_on_device(out, shape, held, labels=labels)
    if result.size:
        word = WORDS[held.itemsize]
        # The bits of a one in the low bytes of a 64-bit word, as the kernel expects them.
        one = np.zeros(8, np.uint8)
        one[: held.itemsize] = _one(name, held).reshape(1).view(np.uint8)
        arguments = labels, result, np.uint64(labels.size), np.uint64(shape[-1]), one.view("<u8")[0]
        entry = f"one_hot<{cpp_type(labels.dtype.name)}, {word}>"
        launch("one_hot", entry, spread_rows(labels.size, shape[-1]), arguments, device, stream)
    return result


def one_hot_on_host(
    labels: NDArray[Any],
    classes: int,
    dtype: DTypeLike = "float32",
    *,
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return a row of zeros for every label, with a one in the label's column: the twin of `one_hot`.

    Examples
    --------
    >>> one_hot_on_host(np.array([2, 0, 7]), 3, "uint8").tolist()
    [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    """
    shape, name, held = _check(labels, classes, dtype, "numpy")
    result: NDArray[Any] = obtain("out", out, "numpy", shape, [held])
    result[...] = np.zeros((), held)
    rows = result.reshape(math.prod(shape[:-1]), shape[-1])
    flat = labels.reshape(-1)
    known = np.flatnonzero((flat >= 0) & (flat < shape[-1]))
    rows[known, flat[known].astype(np.intp)] = _one(name, held)
    return result


def _check(
    labels: Any, classes: int, dtype: DTypeLike, library: Library
) -> tuple[tuple[int, ...], str, np.dtype[Any]]:
    """Return the shape of the result, the name of its dtype, and the dtype of the array that holds it."""
    check_array("labels", labels, library, dtypes=INTEGERS)
    name, held = resolve_target(dtype, _DTYPES)
    return (*labels.shape, check_size("classes", classes, 0, 2**40)), name, held


def _one(name: str, held: np.dtype[Any]) -> NDArray[Any]:
    if name == "bfloat16":
        return np.array(0x3F80, np.uint16).view(held)
    return np.ones((), held)
