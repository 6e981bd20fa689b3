"""The arithmetic of orders: hashes of positions, and a permutation that is computed only where asked.

Written out in whole numbers rather than taken from `numpy.random`, whose shuffles may change from one
release to the next: an order that a checkpoint relies on has to be the same everywhere, for ever.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""Positions and hashes: whole numbers of 64 bits, which wrap around."""

_ALL = 2**64 - 1
# The constants of splitmix64 (Steele, Lea and Flood 2014, with Stafford's mixer 13).
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_30, _27, _31, _MIX_1, _MIX_2 = (np.uint64(word) for word in (30, 27, 31, _FIRST, _SECOND))
_BLOCK = 4096  # words hashed at once
SORTED_AT_MOST = 2**18
"""Permutations up to here are sorted once, in some milliseconds and 2 MiB; beyond, computed where asked."""

SORTED, PERMUTED, DRAWN, WEIGHTED = range(4)
"""Hashed along with seed and epoch, so that no two ways to draw use the same numbers."""

_ROUNDS = 5  # of both halves; with ideal hashes, two would do (Luby and Rackoff 1988)


def derive_key(*words: int) -> int:
    """Return a hash of whole numbers of 64 bits, in the order given.

    Examples
    --------
    >>> hex(derive_key(0, 0))
    '0xa706dd2f4d197e6f'
    """
    key = 0
    for word in words:
        key = ((key ^ word) + _STEP) & _ALL
        key = ((key ^ key >> 30) * _FIRST) & _ALL
        key = ((key ^ key >> 27) * _SECOND) & _ALL
        key ^= key >> 31
    return key


def hash_positions(positions: Words, key: int) -> Words:
    """Return one hash of 64 bits for every position: entries of the splitmix64 sequence of `key`.

    Examples
    --------
    >>> [hex(word) for word in hash_positions(np.array([0, 1], np.uint64), 1234567)]
    ['0x599ed017fb08fc85', '0x2c73f08458540fa5']
    """
    words = positions * np.uint64(_STEP)
    start = np.uint64((key + _STEP) & _ALL)
    shifted = np.empty(min(_BLOCK, words.size), np.uint64)
    # Block by block: eight passes over what lies in the cache, not over all of it.
    for first in range(0, words.size, _BLOCK):
        block = words[first : first + _BLOCK]
        spare = shifted[: block.size]
        block += start
        block ^= np.right_shift(block, _30, out=spare)
        block *= _MIX_1
        block ^= np.right_shift(block, _27, out=spare)
        block *= _MIX_2
        block ^= np.right_shift(block, _31, out=spare)
    return words


def sort_hashes(count: int, key: int) -> Words:
    """Return a permutation of ``range(count)`` as a whole: its numbers, sorted by their hashes.

    Examples
    --------
    >>> sorted(sort_hashes(7, key=3).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    numbers = np.arange(count, dtype=np.uint64)
    hashes = hash_positions(numbers, key)
    # A number in the low bits of its own hash comes along with the sort: no ties, and no slower argsort.
    low = np.uint64(2 ** count.bit_length() - 1)
    hashes &= ~low
    hashes |= numbers
    hashes.sort()
    hashes &= low
    return hashes


def permute(positions: Words, count: int, key: int) -> Words:
    """Return where a permutation of ``range(count)`` sends `positions`, holding no permutation in memory.

    A Feistel network over pairs (left, right): each half in turn is shifted by a hash of the other, which
    can be undone, so it permutes. The pairs are the cells of the smallest near-square that holds `count`;
    the few cells beyond it are sent through again until they fall inside (Black and Rogaway 2002).

    Parameters
    ----------
    positions : ndarray of uint64
        Each below `count`.
    count : int
        From 1 to 2**62.
    key : int
        Which permutation, below 2**64.

    Returns
    -------
    ndarray of uint64
        As many, different where the positions differ.

    Examples
    --------
    >>> sorted(permute(np.arange(7, dtype=np.uint64), 7, key=3).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    rows = math.isqrt(count - 1) + 1
    columns = -(-count // rows)
    image = _permute_cells(positions, rows, columns, key)
    while (outside := np.flatnonzero(image >= np.uint64(count))).size:
        image[outside] = _permute_cells(image[outside], rows, columns, key)
    return image


def _permute_cells(cells: Words, rows: int, columns: int, key: int) -> Words:
    left, right = np.divmod(cells, np.uint64(columns))
    for turn in range(_ROUNDS):
        left = _shifted(left, right, rows, derive_key(key, 2 * turn))
        right = _shifted(right, left, columns, derive_key(key, 2 * turn + 1))
    left *= np.uint64(columns)
    left += right
    return left


def _shifted(half: Words, other: Words, size: int, key: int) -> Words:
    """Return ``(half + hash of other) mod size``."""
    shift = hash_positions(other, key)
    # The high half of a product is a number below `size`; `size` is at most 2**31, so nothing overflows.
    shift >>= np.uint64(32)
    shift *= np.uint64(size)
    shift >>= np.uint64(32)
    shift += half
    # Where nothing is to be taken off, the difference wraps around to a huge number: the smaller is right.
    np.minimum(shift, shift - np.uint64(size), out=shift)
    return shift
