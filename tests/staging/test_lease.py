"""Leases: a slot is freed when the last view of its batch dies, in whatever thread, and not before."""

import gc
import sys
import threading
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloader.staging.arena import Arena
from gpuloader.staging.layout import arrange
from gpuloader.staging.ring import Lease, Slot, lease_views

LAYOUT = arrange((((4, 6), np.dtype("float32")), ((4,), np.dtype("int64")), ((0, 2), np.dtype("uint8"))))


@pytest.fixture
def slot():
    region = np.arange(LAYOUT.nbytes).astype(np.uint8)
    return Slot(region, region)


VIEWS = {
    "a slice": lambda array: array[1:, ::2],
    "one row": lambda array: array[2],
    "a reshape": lambda array: array.reshape(-1),
    "a transpose": lambda array: array.T,
    "another dtype": lambda array: array.view(np.uint8),
    "a memoryview": lambda array: memoryview(array),
    "a view of a view of a view": lambda array: array[1:].reshape(-1)[::3].view(np.int32)[1:],
    "an array that only adopts it": lambda array: np.asarray(memoryview(array)),
    "what iterating gives": lambda array: next(iter(array)),
    "DLPack": np.from_dlpack,
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_every_kind_of_view_keeps_the_lease(slot, make):
    freed = deque()
    arrays = lease_views(slot, LAYOUT, freed)
    view = make(arrays[0])
    del arrays
    gc.collect()
    assert not freed
    del view
    gc.collect()
    assert list(freed) == [slot]


def test_a_copy_keeps_no_lease(slot):
    freed = deque()
    arrays = lease_views(slot, LAYOUT, freed)
    copies = [arrays[0].copy(), arrays[0][[0, 1]], arrays[0] + 1]
    del arrays
    assert list(freed) == [slot]
    assert len(copies) == 3


def test_one_field_left_is_enough(slot):
    freed = deque()
    floats, numbers, empty = lease_views(slot, LAYOUT, freed)
    del floats, numbers
    assert not freed
    del empty
    assert list(freed) == [slot]


def test_views_lie_in_the_slot_at_the_layouts_offsets(slot):
    for view, field in zip(lease_views(slot, LAYOUT, deque()), LAYOUT.fields, strict=True):
        assert (view.shape, view.dtype) == (field.shape, field.dtype)
        if view.size:
            assert view.ctypes.data == slot.address + field.offset
            assert view.flags.writeable
            assert np.shares_memory(view, slot.bytes)


def test_each_lease_of_a_slot_counts_for_itself(slot):
    freed = deque()
    first, second = lease_views(slot, LAYOUT, freed), lease_views(slot, LAYOUT, freed)
    del first
    assert list(freed) == [slot]
    del second
    assert list(freed) == [slot, slot]


def test_a_lease_keeps_the_memory_although_arena_and_slot_are_forgotten():
    freed = deque()
    arena = Arena(1 << 16)
    slot = Slot(arena.bytes[4096:8192], arena)
    [floats, *_] = lease_views(slot, LAYOUT, freed)
    floats[...] = 5
    del slot, arena
    gc.collect()
    assert (floats == 5).all()


def test_the_last_view_may_die_in_another_thread(slot):
    freed, held = deque(), []
    held.append(lease_views(slot, LAYOUT, freed)[0])
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join(10)
    assert list(freed) == [slot]


def test_a_batch_in_a_cycle_is_freed_by_the_collector(slot):
    freed = deque()
    loop = [lease_views(slot, LAYOUT, freed)]
    loop.append(loop)
    del loop
    assert not freed
    gc.collect()
    assert list(freed) == [slot]


def test_the_token_owns_anything():
    freed, owner = deque(), object()
    token = Lease(owner, freed)
    assert not hasattr(token, "__array_interface__")
    del token
    assert freed.pop() is owner


@given(order=st.permutations(range(6)), cuts=st.lists(st.integers(0, 3), min_size=6, max_size=6))
@settings(deadline=None, max_examples=50)
def test_a_slot_is_free_exactly_when_the_last_view_has_gone(order, cuts):
    region = np.zeros(LAYOUT.nbytes, np.uint8)
    freed, slot = deque(), Slot(region, region)
    arrays = lease_views(slot, LAYOUT, freed)
    held = {number: arrays[number % 2][cut:] for number, cut in enumerate(cuts)}
    del arrays
    for number in order:
        assert not freed
        del held[number]
    assert list(freed) == [slot]


def test_the_finalizer_runs_no_python_code_in_which_an_interrupt_could_be_lost(slot):
    called = []
    freed = deque()
    batch = lease_views(slot, LAYOUT, freed)
    sys.setprofile(lambda frame, event, argument: called.append(event))
    try:
        del batch
    finally:
        sys.setprofile(None)
    assert len(freed) == 1
    assert "call" not in called  # Python code; calls of C code are "c_call"
