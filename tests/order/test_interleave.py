"""Sequences spread evenly over one, which can be entered anywhere."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.order.order import interleave

counts_of = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any)


@given(counts=counts_of, cuts=st.tuples(st.integers(0, 240), st.integers(0, 240)))
def test_every_entry_comes_once_in_turn_wherever_one_starts(counts, cuts):
    total = sum(counts)
    owners, ranks = interleave(counts, 0, total)
    for owner, count in enumerate(counts):
        assert ranks[owners == owner].tolist() == list(range(count))
    start, stop = sorted(min(cut, total) for cut in cuts)
    some_owners, some_ranks = interleave(counts, start, stop)
    assert some_owners.tolist() == owners[start:stop].tolist()
    assert some_ranks.tolist() == ranks[start:stop].tolist()


@given(counts=counts_of)
def test_every_beginning_has_each_in_proportion(counts):
    owners, _ = interleave(counts, 0, sum(counts))
    for owner, count in enumerate(counts):
        share = Fraction(count, sum(counts))
        for position, had in enumerate(np.cumsum(owners == owner).tolist(), 1):
            assert abs(had - position * share) <= Fraction(len(counts) + 1, 2)


def test_it_does_not_change_between_releases():
    owners, _ = interleave([3, 1, 5], 0, 9)
    assert owners.tolist() == [2, 0, 2, 0, 1, 2, 2, 0, 2]


def test_huge_counts_cost_what_is_asked_for():
    counts = [10**15, 3 * 10**15, 7]
    start = 2 * 10**15 + 12345
    owners, ranks = interleave(counts, start, start + 8)
    assert owners.tolist().count(1) == 6
    assert abs(int(ranks[owners == 0][0]) - start // 4) < 3
    again, _ = interleave(counts, start + 3, start + 8)
    assert again.tolist() == owners[3:].tolist()
