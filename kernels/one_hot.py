"""`one_hot`: turn labels into rows of zeros with a single one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.kernels.cast import FLOATS, INTEGERS, NUMBER_WORDS, WORDS, find_word, resolve_target
from gpuloader.kernels.compiler import CPP_TYPES
from gpuloader.kernels.launching import Work, check_size, declare, spread_rows, takes

ENTRIES = {"one_hot<{}, {}>": (INTEGERS, NUMBER_WORDS)}


@declare(labels=takes(*INTEGERS))
def one_hot(
    labels: Any, classes: int, dtype: DTypeLike = "float32", *, out: Any = None, stream: Any = None
) -> Work:
    """Return a row of zeros for every label, with a one in the label's column.

    Labels have any shape, and the result has shape ``(*labels.shape, classes)``. A label outside 0 to
    ``classes - 1`` gets a row of zeros. The result may be bool, any integer or float; "bfloat16" is bits in
    uint16.

    >>> one_hot.on_host(np.array([2, 0, 7]), 3, "uint8").tolist()
    [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    """
    name, held = resolve_target(dtype, ("bool", *INTEGERS, *FLOATS))
    classes = check_size("classes", classes, 0, 2**40)
    # NumPy has no 1 of bfloat16 to convert, but its bits are known.
    one = np.array(0x3F80, np.uint16).view(held) if name == "bfloat16" else np.ones((), held)

    def on_host(result: NDArray[Any]) -> None:
        result[...] = np.zeros((), held)
        rows, flat = result.reshape(labels.size, classes), labels.reshape(-1)
        known = np.flatnonzero((flat >= 0) & (flat < classes))
        rows[known, flat[known].astype(np.intp)] = one

    def on_device(result: Any) -> Iterator[Any]:
        # The bits of a one in the low bytes of a 64-bit word, as the kernel expects them.
        bits = np.zeros(8, np.uint8)
        bits[: held.itemsize] = one.reshape(1).view(np.uint8)
        arguments = labels, result, np.uint64(labels.size), np.uint64(classes), bits.view("<u8")[0]
        entry = f"one_hot<{CPP_TYPES[labels.dtype.name]}, {WORDS[held.itemsize]}>"
        is_wide = find_word(classes * held.itemsize, result.data.ptr) == 16  # what a thread writes
        words = classes * held.itemsize // 16 if is_wide else classes
        yield entry, spread_rows(labels.size, words), arguments

    return Work((*labels.shape, classes), held, on_host, on_device)
