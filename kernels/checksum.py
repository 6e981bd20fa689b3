"""`checksum`: a 64-bit checksum of an array's bytes, the same on the device and in NumPy.

Tests on real devices use it to check, without a copy to the host, that a batch held by a user has not
changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.fields.ragged import array_module
from gpuloader.kernels.compiler import load_kernel

_GRID, _BLOCK = 1024, 256


# Not declared: it takes any array, also one in pieces, and its result is not written but added to.
def checksum(array: Any) -> Any:
    """Return the checksum of a CuPy array's bytes, uint64 of shape (1,); on CuPy's current stream."""
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
    # Mixed with its position, a word counts differently elsewhere. Sums modulo 2**64 commute, so the device's
    # threads may add in any order.
    total += _mix(words ^ _mix(positions)).sum(dtype=np.uint64)
    return total


def _mix_length(nbytes: int) -> np.uint64:
    # Without the length, zeros at the end would not count: the last word is filled up with zeros anyway.
    return np.uint64(_mix(~np.array([nbytes], np.uint64))[0])


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64 of numbers (Steele et al. 2014)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return result
