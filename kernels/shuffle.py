"""`shuffle`: a seeded permutation of sample indices; the device computes the same one as the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.kernels.launching import (
    check_size,
    current_device,
    launch,
    make_struct,
    obtain,
    on_stream,
    sort,
    spread,
)
from gpuloader.order.permutation import PERMUTED, SORTED, SORTED_AT_MOST, derive_key, permute, sort_hashes

ENTRIES = ("hash_numbers", "take_numbers", "permute_positions")

_ROUNDS = 5
_NETWORK = np.dtype([("keys", np.uint64, 2 * _ROUNDS)])


def shuffle(
    count: int,
    seed: int,
    epoch: int,
    start: int = 0,
    stop: int | None = None,
    *,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Return the entries from position `start` to before `stop` of a permutation of ``range(count)``.

    The permutation is that of ``gpuloader.order.order.Shuffled(count, seed, epoch)``. With up to 2**18
    entries, the whole permutation is sorted even if only a part is requested. With more, only that part is
    computed, and nothing else is held in memory.

    Parameters
    ----------
    count : int
        The number of entries of the permutation, from 0 to 2**62.
    seed, epoch : int
        The order's seed and epoch, each from 0 to below 2**64.
    start, stop : int
        The part to return; None for `stop` means `count`.
    out : cupy.ndarray or None
        The array to write to, shape (stop - start,), int64, contiguous; None allocates a new array on the
        current device. With up to 2**18 entries, sorting also takes temporary memory from CuPy's pool, and a
        part takes as much as the whole.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the device.

    Raises
    ------
    TypeError
        A number is not an integer; `out` is not a CuPy array of int64.
    ValueError
        A number is out of range; `out` has another shape, or is not contiguous.
    """
    part = _plan(count, seed, epoch, start, stop)
    device = getattr(out, "device", None) if out is not None else current_device()
    result = obtain("out", out, "cupy", (part.amount,), [np.int64], device)
    if not part.amount:
        return result
    if part.is_sorted:
        _take_sorted(part, result, device, stream)
    else:
        rows = math.isqrt(part.count - 1) + 1
        keys = [derive_key(part.key, turn) for turn in range(2 * _ROUNDS)]
        numbers = part.start, part.amount, part.count, rows, -(-part.count // rows)
        arguments = result, *(np.uint64(number) for number in numbers), make_struct(_NETWORK, keys=keys)
        launch("shuffle", "permute_positions", spread(part.amount), arguments, device, stream)
    return result


def shuffle_on_host(
    count: int,
    seed: int,
    epoch: int,
    start: int = 0,
    stop: int | None = None,
    *,
    out: NDArray[np.int64] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[np.int64]:
    """Return a part of a permutation of ``range(count)``: the twin of `shuffle`.

    Examples
    --------
    >>> shuffle_on_host(5, seed=0, epoch=0).tolist()
    [1, 0, 4, 2, 3]
    """
    part = _plan(count, seed, epoch, start, stop)
    result: NDArray[np.int64] = obtain("out", out, "numpy", (part.amount,), [np.int64])
    stop = part.start + part.amount
    if part.is_sorted:
        entries = sort_hashes(part.count, part.key)[part.start : stop]
    else:
        entries = permute(np.arange(part.start, stop, dtype=np.uint64), part.count, part.key)
    result[...] = entries.view(np.int64)
    return result


@dataclass(frozen=True)
class _Part:
    """The checked arguments: a permutation, and the part of it to compute."""

    count: int
    key: int
    is_sorted: bool
    start: int
    amount: int


def _plan(count: int, seed: int, epoch: int, start: int, stop: int | None) -> _Part:
    count = check_size("count", count, 0, 2**62 + 1)
    seed, epoch = check_size("seed", seed, 0, 2**64), check_size("epoch", epoch, 0, 2**64)
    stop = count if stop is None else check_size("stop", stop, 0, count + 1)
    start = check_size("start", start, 0, stop + 1)
    is_sorted = count <= SORTED_AT_MOST
    key = derive_key(seed, epoch, SORTED if is_sorted else PERMUTED)
    return _Part(count, key, is_sorted, start, stop - start)


def _take_sorted(part: _Part, result: Any, device: Any, stream: Any) -> None:
    whole = part.amount == part.count
    # The whole permutation is as large as its hashes, so they can be sorted in the result itself.
    given = result.view(np.uint64) if whole else None
    with on_stream(stream):  # CuPy's pool ties memory to the stream that is current when it is allocated
        hashes = obtain("hashes", given, "cupy", (part.count,), [np.uint64], device)
    low = np.uint64(2 ** part.count.bit_length() - 1)
    arguments: tuple[Any, ...] = hashes, np.uint64(part.count), low, np.uint64(part.key)
    launch("shuffle", "hash_numbers", spread(part.count), arguments, device, stream)
    sort(hashes, device, stream)
    arguments = hashes, result, np.uint64(part.start), np.uint64(part.amount), low
    launch("shuffle", "take_numbers", spread(part.amount), arguments, device, stream)
