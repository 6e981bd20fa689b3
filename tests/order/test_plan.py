"""Plans: the indices of each batch, starting at any batch."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import BatchSampler, LoaderError, Sampler
from gpuloader.order import plan as plans
from gpuloader.order.batching import Batching, as_sampler
from gpuloader.order.dividing import Division
from gpuloader.order.order import Drawn, InOrder, Mapped, Shuffled
from gpuloader.order.plan import GroupedPlan, OrderedPlan


def choose(dataset, sampler=None, batch_sampler=None, batch_size=1, shuffle=False, drop_last=False):
    given = as_sampler(sampler, batch_sampler)
    options = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
    return Batching.choose(dataset, iterable=False, given=given, **options)


def listed(plan, start=0):
    return [list(map(int, batch)) for batch in plan.batches(start)]


@given(
    count=st.integers(0, 200),
    size=st.integers(1, 30),
    drop_last=st.booleans(),
    kind=st.integers(0, 3),
    ahead=st.sampled_from([1, 7, 64, 1 << 14]),
    data=st.data(),
)
def test_any_batch_of_an_order_is_found_at_once(count, size, drop_last, kind, ahead, data):
    order = [
        InOrder(count),
        Shuffled(count, 1, 2),
        Drawn(max(count, 1), count, 1, 2),
        Mapped(Shuffled(count, 1, 2), np.arange(count)[::-1]),
    ][kind]
    indices = list(map(int, order.slice(0, count)))
    wanted = [indices[start : start + size] for start in range(0, count, size)]
    if drop_last and wanted and len(wanted[-1]) < size:
        wanted.pop()
    start = data.draw(st.integers(0, len(wanted) + 2))
    plan = OrderedPlan(order, size, drop_last)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "_AHEAD", ahead)
        assert listed(plan, start) == wanted[start:]


@pytest.mark.parametrize("count", [6, 7, 8, 9])
@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize("uneven", ["pad", "repeat", "drop"])
def test_a_divided_plan_knows_whether_a_rank_reads_from_the_start_again(count, base, uneven):
    divided = [OrderedPlan(InOrder(count), 2, False, Division(rank, 3, uneven), base) for rank in range(3)]
    read = [index for plan in divided for batch in listed(plan) for index in batch]
    wraps = any(index < base or (not index and read.count(0) > 1) for index in read)
    assert [plan.wraps for plan in divided] == [wraps] * 3


def test_a_batch_samplers_batches_are_copied():
    reused = [1, 2]
    plan = GroupedPlan([reused, (3,), range(4, 6), np.array([7, 8]), {9: None}, iter([10])])
    batches = list(plan.batches(0))
    reused.append(0)
    assert batches == [[1, 2], (3,), range(4, 6), [7, 8], [9], [10]]
    assert all(type(index) is int for batch in batches for index in batch)
    assert next(iter(plan.batches(4))) == [9]


@pytest.mark.parametrize("given", [3, "ab", b"ab", None, [], (), range(0), np.zeros(0, int), iter([])])
def test_what_a_batch_sampler_must_not_yield(given):
    batches = GroupedPlan([[1], given]).batches(0)
    assert next(batches) == [1]
    message = "at least one index per batch, got none"
    if isinstance(given, int | str | bytes | None):
        message = f"sequences of indices, got {given!r}; if it yields single indices, pass it as sampler"
    with pytest.raises(LoaderError, match=f"a batch sampler must yield {message}"):
        next(batches)


def test_groups_of_a_sampler():
    assert list(GroupedPlan("abcde", 2, drop_last=False).batches(1)) == [["c", "d"], ["e"]]
    assert list(GroupedPlan("abcde", 2, drop_last=True).batches(0)) == [["a", "b"], ["c", "d"]]
    assert list(GroupedPlan("abc", 2, drop_last=True).batches(2)) == []
    with pytest.raises(ValueError, match="the sampler ended after 3 items"):
        list(GroupedPlan("abc", 2, drop_last=True).batches(5))
    with pytest.raises(ValueError, match="the sampler ended after 0 items"):
        list(GroupedPlan("", 2, drop_last=True).batches(1))
    drawn = []
    endless = (drawn.append(number) or number for number in itertools.count())
    assert next(GroupedPlan(endless, 2, drop_last=False).batches(3)) == [6, 7]
    assert len(drawn) == 8  # no more than requested


@pytest.mark.parametrize(
    ("given", "size"), [(4, 4), (np.int64(4), 4), (0, None), ("4", None), ([2, 3], None)]
)
def test_a_batch_samplers_size_counts_where_it_is_one(given, size):
    sampler = type("Own", (list,), {"batch_size": given})([[0]])
    found = choose("abc", batch_sampler=sampler).size
    assert (found, type(found)) == (size, type(size))


class Backwards(Sampler):
    """A sampler of the user's, with a length and no order."""

    def __iter__(self):
        return iter(self.data_source)


@pytest.mark.parametrize("make", [list, np.array, tuple, lambda indices: Backwards(indices), dict.fromkeys])
@pytest.mark.parametrize(("drop_last", "wanted"), [(True, [[4, 3], [2, 1]]), (False, [[4, 3], [2, 1], [0]])])
def test_drop_last_counts_with_any_iterable_as_sampler(make, drop_last, wanted):
    sampler = make(range(4, -1, -1))
    batching = choose("abcde", sampler=sampler, batch_size=2, drop_last=drop_last)
    assert listed(batching.plan(0, 0, base=1)) == [[3, 2], [1, 0]]
    grouped = choose("abcde", batch_sampler=BatchSampler(sampler=sampler, batch_size=2, drop_last=drop_last))
    for one in (batching, grouped):
        assert listed(one.plan(0, 0)) == wanted
        assert one.count() == len(wanted)
    if not isinstance(sampler, Backwards | dict):  # which may differ between ranks
        divided = choose("abcde", sampler=sampler, batch_size=1, drop_last=drop_last)
        parts = [
            listed(divided.divide((rank, 2), "drop", dataset="abcde", in_order=True).settle().plan(0, 0))
            for rank in (0, 1)
        ]
        assert parts == [[[4], [2]], [[3], [1]]]
