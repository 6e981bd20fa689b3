"""`checksum`: a 64-bit checksum of an array's bytes, the same on the device and in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.fields.ragged import array_module
from gpuloader.kernels.compiling import load_kernel

_BLOCK = 256
_GRID = 1024


def checksum(array: Any) -> Any:
    """Return the checksum of a CuPy array's bytes, on its device and on CuPy's current stream.

    Parameters
    ----------
    array : cupy.ndarray
        The array, of any dtype and shape; copied if it is not contiguous.

    Returns
    -------
    cupy.ndarray
        One uint64, shape (1,). Reading its value waits for the device.
    """
    cupy = array_module(array)
    whole = cupy.ascontiguousarray(array)
    total = cupy.full(1, _mix_length(whole.nbytes), cupy.uint64)
    if whole.nbytes:
        load_kernel("checksum")((_GRID,), (_BLOCK,), (whole, np.uint64(whole.nbytes), total))
    return total


def checksum_on_host(array: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the checksum of a NumPy array's bytes: the twin of `checksum`.

    >>> left, right = np.arange(3), np.array([0, 2, 1])
    >>> bool(checksum_on_host(left) == checksum_on_host(right)), checksum_on_host(left).shape
    (False, (1,))
    """
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    padded = np.zeros(-(-data.size // 8) * 8, np.uint8)
    padded[: data.size] = data
    words = padded.view("<u8").astype(np.uint64)
    positions = np.arange(words.size, dtype=np.uint64)
    total = np.array([_mix_length(data.size)], np.uint64)
    total += _mix(words ^ _mix(positions)).sum(dtype=np.uint64)
    return total


def _mix_length(nbytes: int) -> np.uint64:
    return np.uint64(_mix(~np.array([nbytes], np.uint64))[0])


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return result
