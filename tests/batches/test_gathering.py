"""Batches from arrays: one vectorized take per field, straight into the slot, with every index checked."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import SampleError, Subset, TensorDataset
from gpuloader.batches.gathering import Gatherer
from gpuloader.batches.tree import Tree
from gpuloader.order.order import Mapped, Shuffled
from gpuloader.order.plan import OrderedPlan
from gpuloader.sources.array_rows import find_arrays
from tests.loading import make_slot

ARRAYS = (np.arange(20).reshape(10, 2), np.arange(10.0), np.arange(30, dtype="i2").reshape(10, 3).T.copy().T)


def take(gatherer, indices, parts=1):
    if parts == 1:
        staged = gatherer.assemble(3, indices, make_slot)
    else:
        gathering = gatherer.begin(3, indices, make_slot)
        count = len(indices)
        for part in reversed(range(parts)):
            gathering.fetch(part * count // parts, (part + 1) * count // parts)
        staged = gathering.finish()
    assert (staged.number, staged.tree) == (3, Tree.flat("012"))
    return staged.slot.views(staged.layout)


good = st.integers(-10, 9)


@given(
    st.one_of(
        st.lists(good, min_size=1, max_size=12),
        st.lists(good, min_size=1, max_size=12).map(np.array),
        st.lists(good, min_size=1, max_size=12).map(lambda indices: np.array(indices, np.int32)),
        st.lists(st.integers(0, 9), min_size=1, max_size=9).map(lambda indices: np.array(indices, np.uint8)),
        st.builds(range, st.integers(0, 9), st.integers(0, 10), st.integers(1, 3)).filter(len),
        st.builds(range, st.integers(0, 9), st.integers(-11, 9), st.integers(-3, -1)).filter(len),
    ),
    st.booleans(),
    st.integers(1, 3),
)
def test_rows_are_those_of_the_indices(indices, is_part, parts):
    rows = np.array([7, 3, 3, 0, 9, 1, 2, 4, 8, 6]) if is_part else None
    where = np.arange(10) if rows is None else rows
    taken = take(Gatherer(ARRAYS, rows), indices, parts)
    for array, batch in zip(ARRAYS, taken, strict=True):
        np.testing.assert_array_equal(batch, array[where[list(indices)]])
        assert batch.dtype == array.dtype


@pytest.mark.parametrize(
    "indices", [["a"], [1.5], [[1], [2]], [[1], [2, 3]], [None], [True], [2**64], [2**63]]
)
def test_what_is_no_index(indices):
    with pytest.raises(SampleError) as caught:
        Gatherer(ARRAYS, None).assemble(4, indices, make_slot)
    assert caught.value.batch == 4


def test_each_batch_of_an_order_is_checked():
    gatherer = Gatherer(ARRAYS, None)
    for order in (Shuffled(10, 0, 0), Mapped(Shuffled(10, 0, 0), np.arange(10))):
        for batch in OrderedPlan(order, 3, drop_last=False).batches(0):
            np.testing.assert_array_equal(take(gatherer, batch)[1], batch)
    outside = Mapped(Shuffled(11, 0, 0), np.arange(11))
    with pytest.raises(SampleError, match="out of range for 10 samples"):
        for batch in OrderedPlan(outside, 3, drop_last=False).batches(0):
            take(gatherer, batch)
    shared = np.array([1, 2, 3])
    take(gatherer, shared[:2])
    shared[1] = 99
    with pytest.raises(SampleError, match="dataset index 99"):
        take(gatherer, shared[:2])


@pytest.mark.parametrize("lie", ["C", "F", "strided", "reversed"])
@pytest.mark.parametrize("indices", [range(64), np.arange(64)[::-1].copy()], ids=["range", "array"])
def test_a_take_needs_no_memory_of_its_own(lie, indices):
    """Neither memory of the batch's size nor, if `take` cannot use the array as it is, of the dataset's."""
    array = {
        "C": lambda: np.zeros((512, 4096), np.float32),
        "F": lambda: np.zeros((512, 4096), np.float32, order="F"),
        "strided": lambda: np.zeros((512, 8192), np.float32)[:, ::2],
        "reversed": lambda: np.zeros((512, 4096), np.float32)[::-1],
    }[lie]()
    array[5] = 5
    gatherer = Gatherer([array], None)
    slot = make_slot(gatherer.layout(64).nbytes)
    gatherer.assemble(0, indices, lambda nbytes: slot)
    tracemalloc.start()
    staged = gatherer.assemble(1, indices, lambda nbytes: slot)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 10  # a batch has 1 MiB, the dataset 8
    [batch] = slot.views(staged.layout)
    np.testing.assert_array_equal(batch, array[list(indices)])


def test_only_arrays_in_native_order_are_taken_from():
    native, foreign = np.arange(4), np.arange(4).astype(">i8")
    assert find_arrays(TensorDataset(native)) is not None
    assert find_arrays(TensorDataset(native, foreign)) is None
    assert find_arrays(Subset(TensorDataset(foreign), [1])) is None
