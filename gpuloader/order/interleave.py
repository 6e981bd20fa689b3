"""Spread several sequences evenly over one: any stretch of it has each in proportion to its length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuloader.order.computed import Indices


def interleave(counts: Sequence[int], start: int, stop: int) -> tuple[Indices, Indices]:
    """Return positions `start` to `stop` of the sequence that spreads `counts[i]` entries of each i evenly.

    Entry k of the n entries of i has the time (k + 1/2) / n; all entries are sorted by time, and then by i.
    The cost is proportional to ``stop - start``, wherever `start` is.

    Parameters
    ----------
    counts : sequence of int
        How many entries each owner has, each below 2**52.
    start, stop : int
        The positions, at most the sum of the counts.

    Returns
    -------
    tuple of ndarray
        For each position, its owner, and how many earlier positions have the same owner.

    Examples
    --------
    >>> owners, ranks = interleave([2, 4], 0, 6)
    >>> owners.tolist(), ranks.tolist()
    ([1, 0, 1, 1, 0, 1], [0, 0, 1, 2, 1, 3])
    """
    total, slack = sum(counts), len(counts)
    if start >= stop:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # Up to time t, an owner has t * count entries, give or take a half. So these times enclose the positions,
    # with room to spare for what rounding does.
    first = [_count_before(count, (start - slack) / total) for count in counts]
    last = [_count_before(count, (stop + slack) / total) for count in counts]
    owners = np.repeat(np.arange(len(counts)), np.subtract(last, first))
    ranks = np.concatenate([np.arange(begin, end) for begin, end in zip(first, last, strict=True)])
    order = np.lexsort((owners, _times(ranks, np.asarray(counts, np.int64)[owners])))
    chosen = order[start - sum(first) : stop - sum(first)]
    return owners[chosen], ranks[chosen]


def _times(ranks: Indices, counts: Indices) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return (ranks + 0.5) / counts


def _count_before(count: int, time: float) -> int:
    """Return how many of an owner's entries have an earlier time; rounding may add one that has this time."""
    return min(max(round(time * count), 0), count)
