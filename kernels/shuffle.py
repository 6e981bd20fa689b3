"""`shuffle`: a seeded permutation of sample indices, computed on the device with the numbers of the host."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.kernels.launching import Work, by_value, check_size, declare, obtain, on_stream, spread
from gpuloader.order.randomness import PERMUTED, SORTED, SORTED_AT_MOST, derive_key, permute, sort_hashes

ENTRIES = {"hash_numbers": (), "take_numbers": (), "permute_positions": ()}

_ROUNDS = 5


@declare()
def shuffle(
    count: int,
    seed: int,
    epoch: int,
    start: int = 0,
    stop: int | None = None,
    *,
    out: Any = None,
    stream: Any = None,
) -> Work:
    """Return a permutation of ``range(count)``, int64, from position `start` to before `stop`.

    The permutation is that of ``gpuloader.order.order.Shuffled(count, seed, epoch)``. The count is at most
    2**62. With up to 2**18 entries, the whole permutation is sorted even for a part: sorting takes temporary
    memory from CuPy's pool, as much for a part as for the whole. With more entries, only the part is
    computed, and nothing else is held in memory. A new array is on the current device.

    >>> shuffle.on_host(5, seed=0, epoch=0).tolist()
    [1, 0, 4, 2, 3]
    """
    count = check_size("count", count, 0, 2**62 + 1)
    seed, epoch = check_size("seed", seed, 0, 2**64), check_size("epoch", epoch, 0, 2**64)
    stop = count if stop is None else check_size("stop", stop, 0, count + 1)
    start = check_size("start", start, 0, stop + 1)
    amount = stop - start
    # A sort of up to 2**18 hashes takes little time and memory. Beyond, a Feistel network computes just the
    # requested part.
    is_sorted = count <= SORTED_AT_MOST
    key = derive_key(seed, epoch, SORTED if is_sorted else PERMUTED)

    def on_host(result: NDArray[Any]) -> None:
        if is_sorted:
            entries = sort_hashes(count, key)[start:stop]
        else:
            entries = permute(np.arange(start, stop, dtype=np.uint64), count, key)
        result[...] = entries.view(np.int64)

    def sorting(result: Any) -> Iterator[Any]:
        # The whole permutation is as large as its hashes, so they can be sorted in the result itself.
        given = result.view(np.uint64) if amount == count else None
        hashes = obtain("hashes", given, (count,), np.uint64, result.device, stream)
        # A hash keeps its high bits; the number it stands for takes the low ones, so one sort moves both.
        low = np.uint64(2 ** count.bit_length() - 1)
        yield "hash_numbers", spread(count), (hashes, np.uint64(count), low, np.uint64(key))
        yield sort, spread(count), (hashes,)
        yield "take_numbers", spread(amount), (hashes, result, np.uint64(start), np.uint64(amount), low)

    def permuting(result: Any) -> Iterator[Any]:
        # The network permutes a square of cells, with fewer than `rows` too many. An entry that lands in one
        # of those is permuted again.
        rows = math.isqrt(count - 1) + 1
        keys = [derive_key(key, turn) for turn in range(2 * _ROUNDS)]
        numbers = (np.uint64(number) for number in (start, amount, count, rows, -(-count // rows)))
        yield "permute_positions", spread(amount), (result, *numbers, by_value(keys, np.uint64))

    return Work((amount,), np.int64, on_host, sorting if is_sorted else permuting)


def sort(grid: Any, block: Any, arguments: tuple[Any, ...], *, stream: Any) -> None:
    """Sort a CuPy array in place, called like a kernel; temporary memory comes from CuPy's pool."""
    with on_stream(stream):
        arguments[0].sort()
