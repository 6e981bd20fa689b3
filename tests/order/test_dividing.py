"""Dividing an epoch among ranks: by arithmetic that is identical on all ranks and stores no permutation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloader.order.dividing import ALONE, Division, RankInfo, Sharding, Share, cut, span
from gpuloader.order.order import InOrder, Mapped, Shuffled

uneven = st.sampled_from(["pad", "drop"])


def ranks(world_size, rule="pad"):
    return [Division(rank, world_size, rule) for rank in range(world_size)]


def whole(order, start, stop):
    return [int(index) for index in order.slice(start, stop)]


class Sliced:
    """A user-defined order, which can only be sliced."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def slice(self, start, stop):
        return range(self.count - start - 1, self.count - stop - 1, -1)


@given(
    count=st.integers(0, 300),
    start=st.integers(0, 300),
    size=st.integers(1, 20),
    world_size=st.integers(1, 16),
    rule=uneven,
    drop_last=st.booleans(),
    kind=st.integers(0, 3),
)
@settings(max_examples=200, deadline=None)
def test_a_step_of_all_ranks_is_the_order_cut_up(count, start, size, world_size, rule, drop_last, kind):
    order = [InOrder(count), Shuffled(count, 1, 2), Mapped(InOrder(count), range(count)), Sliced(count)][kind]
    start = min(start, count)
    shares = [Share(order, start, size, one, drop_last) for one in ranks(world_size, rule)]
    step, wanted = size * world_size, [[] for _ in shares]
    for begin in range(start, count, step):
        indices = whole(order, begin, min(begin + step, count))
        if len(indices) < step and drop_last:
            break
        parts, own = cut(indices, world_size, rule)
        for division, part, batches, counted in zip(ranks(world_size, rule), parts, wanted, own, strict=True):
            if part:
                batches.append(part)
                assert division.own(count - begin, size) == (counted, len(part))
    for share, batches in zip(shares, wanted, strict=True):
        assert len(share) == sum(map(len, batches))
        assert whole(share, 0, len(share)) == [index for batch in batches for index in batch]
        assert len(batches) == share.division.count(count - start, size, drop_last=drop_last)


@given(count=st.integers(0, 200), size=st.integers(1, 9), world_size=st.integers(1, 16), rule=uneven)
@settings(max_examples=200, deadline=None)
def test_items_are_dealt_one_by_one(count, size, world_size, rule):
    count = min(count, size * world_size)
    dealt = [division.own(count, size, items=True) for division in ranks(world_size, rule)]
    assert len({size for _, size in dealt}) == 1
    assert all(own <= size <= own + 1 for own, size in dealt)
    lost = count - sum(own for own, _ in dealt)
    assert lost == (count % world_size if rule == "drop" else 0)


@given(
    count=st.integers(1, 2**62),
    size=st.integers(1, 2**20),
    world_size=st.integers(1, 4096),
    rule=uneven,
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_no_number_outgrows_its_bits(count, size, world_size, rule, data):
    rank = data.draw(st.integers(0, world_size - 1))
    share = Share(InOrder(count), 0, size, Division(rank, world_size, rule))
    begin = data.draw(st.integers(0, max(len(share) - 5, 0)))
    entries = whole(share, begin, min(begin + 5, len(share)))
    assert all(0 <= entry < count for entry in entries)
    assert entries == sorted(entries)


def test_of_an_empty_order_nobody_gets_anything():
    for rule in ("pad", "drop", "error"):
        share = Share(InOrder(0), 0, 4, Division(2, 3, rule))
        assert len(share) == share.division.count(0, 4) == 0
        assert whole(share, 0, 0) == []
    with pytest.raises(ValueError, match="an order of 5 indices has no position 6"):
        Share(InOrder(5), 6, 1, ALONE)


def test_parts_are_as_even_as_can_be():
    assert [span(5, 4, part, "pad")[:2] for part in range(4)] == [(0, 2), (2, 1), (3, 1), (4, 1)]
    assert [span(2, 4, part, "pad")[:2] for part in range(4)] == [(0, 1), (1, 1), (2, 0), (2, 0)]


@pytest.mark.parametrize(
    ("shard", "error", "message"),
    [
        ("rank", ValueError, "shard must be one of 'auto', got 'rank'"),
        ((2, 2), ValueError, "the rank in shard must be an integer from 0 to 1, got 2"),
        ((-1, 2), ValueError, "the rank in shard must be an integer"),
        ((0, -1), ValueError, "the world size in shard must be an integer"),
        ((0, 0), ValueError, "the world size in shard must be an integer of 1 or more, got 0"),
        (("0", "2"), ValueError, "the world size in shard must be an integer of 1 or more, got '2'"),
        ((0.0, 1), ValueError, "the rank in shard must be an integer"),
        ((1,), TypeError, r"shard must be 'auto', a pair \(rank, world_size\) or None, got \(1,\)"),
        (3, TypeError, "shard must be 'auto', a pair"),
    ],
)
def test_what_is_no_shard_is_refused(shard, error, message):
    with pytest.raises(error, match=message):
        Sharding.of(shard, "pad")


def test_auto_asks_the_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "5")
    sharding = Sharding.of("auto", "drop")
    assert sharding.divide() == Division(3, 5, "drop")
    assert RankInfo.of(None) == RankInfo((3, 5))
    assert RankInfo.of(Division(1, 2, "pad")) == RankInfo((1, 2), (1,))
    monkeypatch.delenv("RANK")
    assert RankInfo.of(None) == RankInfo(None)  # the error is raised only when a dataset asks
    with pytest.raises(ValueError, match="sets WORLD_SIZE='5' but not RANK"):
        sharding.divide()


def test_an_uneven_end_is_an_error_that_gives_the_numbers():
    division = Division(0, 4, "error")
    division.check_even(24, 4, drop_last=False)
    division.check_even(25, 4, drop_last=True)
    with pytest.raises(ValueError, match="25 samples fill 1 steps of 4 ranks and leave 9"):
        division.check_even(25, 4, drop_last=False)
