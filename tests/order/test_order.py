"""Orders: values that can be sliced anywhere, and depend on nothing but their fields."""

import pickle
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.order.dividing import Division, Share
from gpuloader.order.order import (
    Drawn,
    InOrder,
    Mapped,
    Order,
    Repeated,
    Shuffled,
    Weighted,
    Windowed,
    interleave,
    iterate,
    shuffle_chunks,
)
from tests.fakes import run_threads

SORTED_AT_MOST = 2**18  # longer permutations are computed per slice

seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 2**64 - 1)


def whole(order: Order) -> list[int]:
    return np.asarray(order.slice(0, len(order))).tolist()


def shard(base, batch_size, ranks, rank, drop_last=False):
    """Return what a `DistributedBatchSampler` reads on one rank."""
    return Share(base, 0, batch_size, Division(rank, ranks, "repeat"), drop_last)


@st.composite
def orders(draw):
    """Any order that fits into memory, shorter or longer than the chunks that are computed at once."""
    count = draw(st.integers(1, 20) | st.integers(4000, 9000) | st.just(300_001))
    draws = draw(st.integers(0, 20) | st.integers(4000, 9000))
    seed, epoch = draw(seeds), draw(epochs)
    bases = [
        InOrder(count),
        Shuffled(count, seed, epoch),
        Shuffled(count, seed, epoch, draws=min(draws, count)),
        Drawn(count, draws, seed, epoch),
        Weighted(np.arange(1, count + 1), draws, True, seed, epoch),
        Weighted(np.arange(1, count + 1), min(draws, count), False, seed, epoch),
    ]
    if count > draws:
        sizes = np.diff([0, *sorted(draw(st.lists(st.integers(0, count), max_size=20))), count])
        bases.append(Windowed(sizes, draw(st.integers(1, 9)), seed, epoch))
    base = draw(st.sampled_from(bases))
    if draw(st.booleans()):
        return Mapped(base, np.arange(count)[::-1])
    if isinstance(base, InOrder | Shuffled) and draw(st.booleans()):
        ranks = draw(st.integers(1, 9))
        rank, size = draw(st.integers(0, ranks - 1)), draw(st.integers(1, 300))
        return shard(base, size, ranks, rank, draw(st.booleans()))
    return base


@given(order=orders(), data=st.data())
def test_any_slice_is_that_part_of_the_whole_and_pickles_are_the_fields(order, data):
    small = len(pickle.dumps(order))
    expected = np.asarray(order.slice(0, len(order)))
    assert len(order) == len(expected)
    for _ in range(3):
        start = data.draw(st.integers(0, len(order)))
        stop = data.draw(st.integers(start, min(len(order), start + 5000)))
        assert np.array_equal(order.slice(start, stop), expected[start:stop])
    assert list(iterate(order)) == expected.tolist()
    shipped = pickle.dumps(order)
    assert len(shipped) == small  # without what it has computed
    assert np.array_equal(pickle.loads(shipped).slice(0, len(order)), expected)


@given(
    sizes=st.lists(st.integers(0, 30), max_size=30),
    window=st.integers(1, 9),
    seed=seeds,
    epoch=st.integers(0, 9),
)
def test_an_order_of_chunks_has_every_index_once_and_whole_chunks_in_each_window(sizes, window, seed, epoch):
    order = Windowed(np.array(sizes, np.int64), window, seed, epoch)
    found = whole(order)
    assert sorted(found) == list(range(sum(sizes)))
    chunks = np.repeat(np.arange(len(sizes)), sizes)[np.array(found, np.int64)].tolist()
    turns = shuffle_chunks(len(sizes), seed, epoch).tolist()
    for start in range(0, len(turns), window):
        here = turns[start : start + window]
        count = sum(sizes[chunk] for chunk in here)
        assert Counter(chunks[:count]) == {chunk: sizes[chunk] for chunk in here if sizes[chunk]}
        chunks = chunks[count:]


def test_chunks_and_their_rows_are_shuffled_differently_in_every_epoch():
    orders = [whole(Windowed(np.full(100, 10), 4, seed=1, epoch=epoch)) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    firsts = [Windowed(np.full(8, 10), 2, seed, 0).slice(0, 1)[0] for seed in range(2000)]
    check_uniform(np.bincount(firsts, minlength=80))


LONG = [SORTED_AT_MOST - 1, SORTED_AT_MOST, SORTED_AT_MOST + 1, 300_001, 2**19, 1_000_003]
GRIDS = [512**2 + 512, 724**2, 724**2 + 1]  # full, and with one row more


@pytest.mark.parametrize("count", LONG + GRIDS)
def test_a_long_shuffled_order_has_every_index_once(count):
    seen = np.bincount(Shuffled(count, seed=5, epoch=2).slice(0, count), minlength=count)
    assert seen.size == count
    assert (seen == 1).all()


@given(count=st.integers(SORTED_AT_MOST + 1, 2**62), seed=seeds, epoch=epochs, data=st.data())
def test_a_slice_of_a_huge_shuffled_order_is_different_indices_within_it(count, seed, epoch, data):
    start = data.draw(st.integers(0, count - 1000))
    part = Shuffled(count, seed, epoch).slice(start, start + 1000)
    assert part.dtype == np.int64
    assert 0 <= part.min() <= part.max() < count
    assert len(set(part.tolist())) == 1000


def check_uniform(counts: np.ndarray, case: object = None) -> None:
    """Fail, naming the case, if chi-squared is over five standard deviations from its expectation."""
    expected = counts.sum() / counts.size
    assert expected >= 5, "too few samples for the test"
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = counts.size - 1
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom) + 5, case


@pytest.mark.parametrize("vary", ["seed", "epoch"])
def test_every_permutation_of_a_few_is_as_likely(vary):
    seen = Counter()
    for number in range(4800):
        seed, epoch = (number, 3) if vary == "seed" else (3, number)
        seen[tuple(whole(Shuffled(4, seed, epoch)))] += 1
    assert len(seen) == 24
    check_uniform(np.array(list(seen.values())))


@pytest.mark.parametrize("count", [1000, SORTED_AT_MOST + 1, 10**9])
@pytest.mark.parametrize("vary", ["seed", "epoch"])
def test_the_first_index_is_any_as_likely_over_consecutive_seeds_and_epochs(count, vary):
    key = (lambda number: (number, 0)) if vary == "seed" else (lambda number: (0, number))
    # Computes a single position, not the chunk around it.
    firsts = [Shuffled(count, *key(number)).at(np.zeros(1, np.int64))[0] for number in range(800)]
    check_uniform(np.bincount(np.array(firsts) * 20 // count, minlength=20))
    check_uniform(cells_of(np.array(firsts[:-1]), np.array(firsts[1:]), count, 8))


def cells_of(left: np.ndarray, right: np.ndarray, count: int, parts: int) -> np.ndarray:
    return np.bincount(left * parts // count * parts + right * parts // count, minlength=parts * parts)


@pytest.mark.parametrize("count", [2**16, SORTED_AT_MOST, SORTED_AT_MOST + 1, 300_001, 2**19 - 1])
def test_indices_near_each_other_are_unrelated(count):
    indices = Shuffled(count, seed=0, epoch=0).slice(0, count)
    for apart in (1, 2, 513, 548, 4096):
        check_uniform(cells_of(indices[:-apart], indices[apart:], count, 32), apart)
    check_uniform(cells_of(np.arange(count), indices, count, 32))


@pytest.mark.parametrize("count", [5000, 300_001])
@pytest.mark.parametrize("other", [(0, 1), (1, 0), (1, 1), (2**63, 0), (2**64 - 1, 0), (0, 2**32)])
def test_orders_of_other_seeds_and_epochs_are_unrelated(count, other):
    first = Shuffled(count, 0, 0).slice(0, count)
    second = Shuffled(count, *other).slice(0, count)
    check_uniform(cells_of(first, second, count, 16))
    assert (first == second).sum() < 12  # one on average
    assert (np.roll(first, 1) == second).sum() < 12


def test_indices_are_drawn_evenly_and_independently():
    drawn = Drawn(10, draws=20_000, seed=1, epoch=0).slice(0, 20_000)
    check_uniform(np.bincount(drawn, minlength=10))
    check_uniform(np.bincount(drawn[:-1] * 10 + drawn[1:], minlength=100))


def test_weights_are_met_with_replacement():
    weights = np.array([0, 1, 2, 0, 5, 0.5, 0])
    drawn = Weighted(weights, 40_000, True, seed=3, epoch=1).slice(0, 40_000)
    seen = np.bincount(drawn, minlength=7)
    assert seen[weights == 0].sum() == 0
    expected = 40_000 * weights / weights.sum()
    assert (np.abs(seen - expected) <= 5 * np.sqrt(expected)).all()


def test_weights_are_met_without_replacement():
    weights = np.array([1.0, 2, 0, 5])
    pairs = Counter(tuple(whole(Weighted(weights, 2, False, seed=3, epoch=epoch))) for epoch in range(4000))
    # As if drawn one after another: the first by weight, the second by weight among the rest.
    for (first, second), seen in pairs.items():
        chance = weights[first] / 8 * weights[second] / (8 - weights[first])
        assert abs(seen - 4000 * chance) < 5 * np.sqrt(4000 * chance)
    assert len(pairs) == 6


@given(
    weights=st.lists(st.just(0.0) | st.floats(5e-324, 1e300), min_size=1, max_size=50),
    seed=seeds,
    replacement=st.booleans(),
)
def test_no_index_of_weight_zero_is_drawn_whatever_the_scale(weights, seed, replacement):
    positive = [index for index, weight in enumerate(weights) if weight]
    draws = (50 if positive else 0) if replacement else len(positive)
    drawn = whole(Weighted(weights, draws, replacement, seed, epoch=0))
    assert set(drawn) <= set(positive)
    assert replacement or sorted(drawn) == positive


PINNED = [
    (Shuffled(10, 0, 0), 0, [1, 9, 0, 8, 4, 6, 7, 2, 3, 5]),
    (Shuffled(10, 0, 1), 0, [6, 3, 1, 5, 4, 0, 8, 2, 7, 9]),
    (Shuffled(10, 2**64 - 1, 7), 0, [6, 9, 0, 7, 5, 3, 8, 2, 1, 4]),
    (Shuffled(1000, 42, 3), 500, [21, 290, 373, 555, 63]),
    (Shuffled(2**18, 42, 3), 500, [118867, 39202, 6352, 231626]),
    (Shuffled(300_001, 0, 0), 0, [299999, 291509, 41908, 275928, 260240, 149863]),
    (Shuffled(10**9, 42, 3), 999_999_000, [499002212, 428697263, 350852022, 589719324]),
    (Shuffled(2**62, 1, 1), 2**61, [3597683898671303564, 2552626088241638453]),
    (Drawn(10, 8, 0, 0), 0, [1, 3, 8, 3, 6, 8, 8, 2]),
    (Drawn(2**62, 2**62, 1, 2), 2**61, [368991267994968489, 3059778363568600702]),
    (Repeated(2**62, 2**62, 2**64 - 1, 2**64 - 1), 2**61, [896199501873263761, 3576510742455271471]),
    (Repeated(5, 2**62, 2**64 - 1, 2**64 - 1), 2**62 - 6, [2, 3, 4, 0, 1, 2]),
    (Weighted([1, 2, 3, 4], 10, True, 0, 0), 0, [1, 3, 3, 2, 1, 2, 3, 3, 1, 2]),
    (Weighted([1, 2, 3, 4, 0, 6], 5, False, 0, 0), 0, [1, 2, 5, 3, 0]),
]


@pytest.mark.parametrize(("order", "start", "expected"), PINNED, ids=lambda value: str(value)[:40])
def test_an_order_is_the_same_for_ever(order, start, expected):
    """If this fails, a checkpoint resumes in a different order from the one it was written with."""
    assert order.slice(start, start + len(expected)).tolist() == expected


def test_threads_that_slice_one_order_get_what_one_would():
    order, steps = Shuffled(300_001, 1, 1), iter([37, 100, 1000, 5000])
    expected = Shuffled(300_001, 1, 1).slice(0, 40_000).tolist()

    def slice_all():
        step = next(steps)
        for start in range(0, 40_000, step):
            stop = min(start + step, 40_000)
            assert order.slice(start, stop).tolist() == expected[start:stop]

    run_threads(slice_all)


def test_what_a_slice_gave_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        Shuffled(100, 0, 0).slice(0, 10)[0] = 5


def test_weights_are_kept_as_they_were():
    weights = np.ones(4)
    order = Weighted(weights, 10, True, 0, 0)
    weights[:] = [1, 0, 0, 0]
    assert set(whole(order)) != {0}


def test_mapped_gives_what_stands_at_the_positions():
    assert whole(Mapped(InOrder(3), np.array([7, 8, 9]))) == [7, 8, 9]
    assert sorted(whole(Mapped(Shuffled(3, 0, 0), np.array([7, 8, 9])))) == [7, 8, 9]
    assert whole(Mapped(InOrder(0), np.array([]))) == []
    for base in (InOrder(5), Shuffled(5, 0, 0)):
        with pytest.raises(IndexError):
            Mapped(base, np.arange(3)).slice(0, 5)


@pytest.mark.parametrize(
    "order", [InOrder(5), Shuffled(5, 0, 0), Drawn(5, 5, 0, 0), Mapped(InOrder(5), range(5))]
)
@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 6), (3, 2), (6, 6), (-2, -1)])
def test_a_slice_outside_is_an_error_that_names_it(order, start, stop):
    with pytest.raises(IndexError, match=f"order of 5 indices has no slice {start}:{stop}"):
        order.slice(start, stop)


# Sequences spread evenly over one, which can be entered anywhere.


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
    assert interleave([3, 1, 5], 0, 9)[0].tolist() == [2, 0, 2, 0, 1, 2, 2, 0, 2]  # in every release


def test_huge_counts_cost_what_is_asked_for():
    counts = [10**15, 3 * 10**15, 7]
    start = 2 * 10**15 + 12345
    owners, ranks = interleave(counts, start, start + 8)
    assert owners.tolist().count(1) == 6
    assert abs(int(ranks[owners == 0][0]) - start // 4) < 3
    again, _ = interleave(counts, start + 3, start + 8)
    assert again.tolist() == owners[3:].tolist()
