"""Stretches: a batch as first and last position in an order, with its indices computed on request."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.order.order import InOrder, Shuffled, Stretch
from gpuloader.order.plan import OrderedPlan, ShardedPlan


@given(
    count=st.integers(0, 40),
    size=st.integers(1, 9),
    shards=st.integers(1, 5),
    remainder=st.sampled_from(["drop", "pad"]),
    shuffled=st.booleans(),
    start=st.integers(0, 9),
)
def test_those_of_positions_are_the_batches_of_the_order(count, size, shards, remainder, shuffled, start):
    order = Shuffled(count, 3, 1) if shuffled else InOrder(count)
    plans = [OrderedPlan(one, size, drop_last=False) for one in (order, InOrder(count))]
    if shards > 1:
        plans = [ShardedPlan(plan, shards, remainder) for plan in plans]
    batches, positions = (list(plan.batches(start)) for plan in plans)
    assert len(batches) == len(positions)
    for batch, part in zip(batches, positions, strict=True):
        stretch = Stretch.of(order, part)
        assert len(stretch) == len(batch)
        np.testing.assert_array_equal(stretch.indices(), batch)


def test_an_order_is_looked_into_only_where_it_is_asked():
    stretch = Stretch.of(object(), range(4, 9))
    assert (stretch.first, stretch.last, stretch.count) == (4, 8, 5)
