"""Dividing an epoch among ranks: by arithmetic that is identical on all ranks and stores no permutation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.order.dividing import ALONE, Division, Sharding, Share
from gpuloader.order.order import InOrder, Mapped

uneven = st.sampled_from(["pad", "drop"])


def whole(order, start, stop):
    return [int(index) for index in order.slice(start, stop)]


@given(
    count=st.integers(1, 2**62),
    size=st.integers(1, 2**20),
    world_size=st.integers(1, 4096),
    rule=uneven,
    data=st.data(),
)
def test_no_number_outgrows_its_bits(count, size, world_size, rule, data):
    rank = data.draw(st.integers(0, world_size - 1))
    share = Share(InOrder(count), 0, size, Division(rank, world_size, rule))
    begin = data.draw(st.integers(0, max(len(share) - 5, 0)))
    entries = whole(share, begin, min(begin + 5, len(share)))
    assert all(0 <= entry < count for entry in entries)
    assert entries == sorted(entries)


class Sliced:
    """An order of the user's, which can only be sliced: ten indices backwards."""

    def __len__(self):
        return 10

    def slice(self, start, stop):
        return range(9 - start, 9 - stop, -1)


@pytest.mark.parametrize("start", [0, 3])
def test_an_order_of_the_users_is_divided_like_one_of_ours(start):
    ours = Mapped(InOrder(10), range(9, -1, -1))
    for rank in range(3):
        shares = [Share(order, start, 2, Division(rank, 3, "pad")) for order in (Sliced(), ours)]
        found = [whole(share, 0, len(share)) for share in shares]
        assert found[0] == found[1] != []
    with pytest.raises(ValueError, match="an order of 10 indices has no position 11"):
        Share(ours, 11, 1, ALONE)


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
