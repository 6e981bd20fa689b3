"""The arithmetic of orders: hashes of positions, and a permutation computed only at requested positions.

It uses integer arithmetic instead of `numpy.random`, whose shuffles may change between releases. Checkpoints
rely on an order, so it must stay the same on every machine and in every release.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""Positions and hashes: 64-bit integers that wrap around."""

_ALL = 2**64 - 1
# The constants of splitmix64 (Steele, Lea and Flood 2014, with Stafford's mixer 13).
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_0, _30, _27, _31, _MIX_1, _MIX_2 = (np.uint64(word) for word in (0, 30, 27, 31, _FIRST, _SECOND))
_BLOCK = 4096  # numbers to hash at a time
SORTED_AT_MOST = 2**18
"""Permutations up to this length are sorted once, in a few ms and 2 MiB; longer ones computed per slice."""

SORTED, PERMUTED, DRAWN, WEIGHTED, REPEATED, BUCKETED, MIXED = range(7)
"""Hashed together with seed and epoch, so that no two kinds of orders use the same random numbers."""

_ROUNDS = 5  # each for both halves; with ideal hashes two would suffice (Luby and Rackoff 1988)


def derive_key(*words: int) -> int:
    """Return a 64-bit hash of a sequence of 64-bit integers.

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
    """Return a 64-bit hash for every position: entries of the splitmix64 sequence of `key`.

    >>> [hex(word) for word in hash_positions(np.array([0, 1], np.uint64), 1234567)]
    ['0x599ed017fb08fc85', '0x2c73f08458540fa5']
    """
    words = positions * np.uint64(_STEP)
    _mix(words, np.uint64((key + _STEP) & _ALL))
    return words


def hash_for_keys(positions: Words, keys: Sequence[int]) -> Words:
    """Return the hashes of every position for each of several keys, shape (positions, keys)."""
    starts = np.array([(key + _STEP) & _ALL for key in keys], np.uint64)
    words: Words = np.add.outer(positions * np.uint64(_STEP), starts)
    _mix(words.reshape(-1), _0)
    return words


def _mix(words: Words, start: np.uint64) -> None:
    """Replace words, plus a start, by their hashes."""
    shifted = np.empty(min(_BLOCK, words.size), np.uint64)
    # Block by block, so that the eight passes run over data in the cache.
    for first in range(0, words.size, _BLOCK):
        block = words[first : first + _BLOCK]
        spare = shifted[: block.size]
        block += start
        block ^= np.right_shift(block, _30, out=spare)
        block *= _MIX_1
        block ^= np.right_shift(block, _27, out=spare)
        block *= _MIX_2
        block ^= np.right_shift(block, _31, out=spare)


def sort_hashes(count: int, key: int) -> Words:
    """Return a complete permutation of ``range(count)``: its numbers, sorted by their hashes.

    >>> sorted(sort_hashes(7, key=3).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    numbers = np.arange(count, dtype=np.uint64)
    hashes = hash_positions(numbers, key)
    # With each number in the low bits of its own hash, a plain sort suffices: no ties, no slower argsort.
    low = np.uint64(2 ** count.bit_length() - 1)
    hashes &= ~low
    hashes |= numbers
    hashes.sort()
    hashes &= low
    return hashes


def permute(positions: Words, count: int, key: int) -> Words:
    """Return the entries at `positions` of a permutation of ``range(count)``, without storing a permutation.

    Positions are below `count`, which is from 1 to 2**62. The key, below 2**64, selects the permutation.

    >>> sorted(permute(np.arange(7, dtype=np.uint64), 7, key=3).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    # A Feistel network over pairs (left, right): each half in turn is shifted by a hash of the other, which
    # is invertible. The pairs are the cells of the smallest near-square grid with at least `count` cells.
    # Near-square, so that both halves are at most 2**31 and their products stay within 64 bits.
    rows = math.isqrt(count - 1) + 1
    columns = -(-count // rows)
    image = _permute_cells(positions, rows, columns, key)
    # Positions that land beyond `count` go through the network again until they fall inside (Black and
    # Rogaway 2002). The grid has fewer than `rows` cells too many, so there are few of them.
    while (outside := np.flatnonzero(image >= np.uint64(count))).size:
        image[outside] = _permute_cells(image[outside], rows, columns, key)
    return image


def _permute_cells(cells: Words, rows: int, columns: int, key: int) -> Words:
    left, right = np.divmod(cells, np.uint64(columns))
    # Each round has its own key: the proof of Luby and Rackoff needs independent round functions.
    for turn in range(_ROUNDS):
        left = _shifted(left, right, rows, derive_key(key, 2 * turn))
        right = _shifted(right, left, columns, derive_key(key, 2 * turn + 1))
    left *= np.uint64(columns)
    left += right
    return left


def _shifted(half: Words, other: Words, size: int, key: int) -> Words:
    """Return ``(half + hash of other) mod size``."""
    shift = hash_positions(other, key)
    # The high half of the product is below `size`. `size` is at most 2**31, so nothing overflows.
    shift >>= np.uint64(32)
    shift *= np.uint64(size)
    shift >>= np.uint64(32)
    shift += half
    # If the sum is already below `size`, the difference wraps around to a huge number: the smaller is right.
    np.minimum(shift, shift - np.uint64(size), out=shift)
    return shift
