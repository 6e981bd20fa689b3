"""The ring loses and duplicates no slot, and a lease ends with the last view, whatever anybody does."""

import gc
import itertools
import mmap
import sys
import threading
from collections import deque
from time import perf_counter_ns

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuloader.errors import QueueClosed, StagingMemoryError
from gpuloader.staging import (
    FIRST_NBYTES,
    FIRST_SLOTS,
    LARGE,
    MOST_STRETCHED,
    Ring,
    Slot,
    arrange,
    find_runs,
    lease_views,
)
from tests.fakes import run_threads

LAYOUT = arrange((((2, 3), np.dtype("int64")),))


class RingMachine(RuleBasedStateMachine):
    """A fetcher fills slots, a consumer lends or returns them, and a user keeps or drops views."""

    def __init__(self):
        super().__init__()
        self.ring = Ring(count=4, spare=2)
        self.filled = deque()
        self.held = []
        self.number = 0

    @rule()
    @precondition(lambda self: not self.ring.allocated or self.ring.free)
    def fetch(self):
        slot = self.ring.acquire(LAYOUT.nbytes)
        self.number += 1
        slot.views(LAYOUT)[0][...] = self.number
        self.filled.append((slot, self.number))

    @rule()
    @precondition(lambda self: self.filled)
    def deliver(self):
        slot, number = self.filled.popleft()
        self.held.append((lease(self.ring, slot)[1:, ::2], number))

    @rule()
    @precondition(lambda self: self.filled)
    def give_back(self):
        self.ring.release(self.filled.pop()[0])

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def drop(self, data):
        self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

    @rule()
    def drain(self):
        self.ring.drain()

    @invariant()
    def what_users_hold_is_theirs(self):
        assert all((view == number).all() for view, number in self.held)

    @invariant()
    def slots_are_neither_lost_nor_doubled(self):
        if self.ring.allocated:
            assert self.ring.free + len(self.filled) + self.ring.leased == self.ring.count
        assert self.ring.leased <= 2

    def teardown(self):
        self.held.clear()
        while self.filled:
            self.ring.release(self.filled.pop()[0])
        self.ring.drain()
        assert self.ring.free == (self.ring.count if self.ring.allocated else 0)


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def lease(ring, slot=None):
    """Deliver a slot; return the view that holds it."""
    [view] = lease_views(ring.lend(slot or ring.acquire(LAYOUT.nbytes), LAYOUT), LAYOUT, ring.freed)
    return view


def test_slots_lie_in_one_mapping_at_aligned_places_and_the_one_freed_last_is_taken_first():
    ring = Ring(count=5, spare=0)
    slots = [ring.acquire(1000) for _ in range(5)]
    starts = sorted(slot.address for slot in slots)
    assert [start - starts[0] for start in starts] == [n * 1024 for n in range(5)]
    assert len({id(slot.memory) for slot in slots}) == 1
    ring.release(slots[1])
    ring.release(slots[0])
    assert ring.acquire(10) is slots[0]


def test_a_slot_that_is_too_small_grows_and_stays_grown():
    ring = Ring(count=1, spare=0)
    slot = ring.acquire(100)
    ring.release(slot)
    assert ring.acquire(10_000) is slot
    assert slot.bytes.size >= 10_000
    slot.bytes[:] = 1
    address = slot.address
    ring.release(slot)
    assert ring.acquire(12_000).address == address


@pytest.mark.parametrize("grows", [False, True])
def test_who_waits_gets_the_slot_that_comes_back_or_is_added(grows):
    ring = Ring(count=1, spare=0)
    slot = ring.acquire(10)
    got = []
    waiter = threading.Thread(target=lambda: got.append(ring.acquire(10)), daemon=True)
    waiter.start()
    if grows:
        ring.grow(1)
    else:
        ring.release(slot)
    waiter.join(60)
    assert [one is slot for one in got] == [not grows]


def test_closing_wakes_everyone_who_waits_until_it_is_undone():
    ring = Ring(count=1, spare=0)
    slot, begun = ring.acquire(10), threading.Semaphore(0)

    def wait():
        begun.release()
        with pytest.raises(QueueClosed):
            ring.acquire(10)

    def close():
        for _ in range(3):
            begun.acquire()
        ring.interrupt()

    threading.Thread(target=close).start()
    run_threads(wait, 3)
    for _ in range(2):
        assert ring.take() is None
        with pytest.raises(QueueClosed):
            ring.acquire(10)
    assert not ring.rearm()  # one slot is still taken
    ring.release(slot)
    assert ring.rearm()
    assert ring.acquire(10) is slot


@pytest.mark.parametrize("layout", [LAYOUT, arrange((((0, 3), np.dtype("float32")),))], ids=["full", "empty"])
def test_a_lease_that_ended_counts_only_once_it_is_drained(layout):
    ring = Ring(count=2, spare=1)
    views = lease_views(ring.lend(ring.acquire(layout.nbytes), layout), layout, ring.freed)
    assert views[0].shape == layout.fields[0].shape
    del views
    assert (ring.free, ring.leased) == (1, 1)
    for _ in range(2):
        ring.drain()
        assert (ring.free, ring.leased) == (2, 0)


def test_many_threads_never_hold_the_same_slot():
    ring = Ring(count=3, spare=0)
    torn = []

    def fetch(name):
        for turn in range(200):
            slot = ring.acquire(256)
            slot.bytes[:8] = name
            slot.bytes[8:16] = turn % 256
            if (slot.bytes[:8] != name).any() or (slot.bytes[8:16] != turn % 256).any():
                torn.append((name, turn))
            ring.release(slot)

    ring.release(ring.acquire(256))  # the first call creates the slots
    names = itertools.count()
    run_threads(lambda: fetch(next(names)))
    assert torn == []
    assert ring.free == 3


def test_a_private_copy_shares_nothing_with_the_ring_and_does_not_return_to_it():
    ring = Ring(count=2, spare=0)
    slot = ring.acquire(LAYOUT.nbytes)
    slot.views(LAYOUT)[0][...] = 4
    private = ring.lend(slot, LAYOUT)
    [view] = lease_views(private, LAYOUT, ring.freed)
    slot.bytes[:] = 0
    assert (view == 4).all()
    del view
    ring.release(private)
    ring.drain()
    assert (ring.free, ring.leased) == (2, 0)


@pytest.mark.parametrize("early", [False, True], ids=["later", "before the first batch"])
def test_a_ring_grows_by_slots_of_the_first_size_and_keeps_count(early):
    ring = Ring(3, 1)
    if early:
        ring.grow(2)
    taken = ring.acquire(1000)
    if not early:
        ring.grow(2)
    assert (ring.count, ring.free) == (5, 4)
    others = [ring.take() for _ in range(4)]
    assert all(slot is not None and slot.nbytes == taken.nbytes == ring.slot_nbytes for slot in others)
    assert ring.take() is None
    for slot in (taken, *others):
        assert not ring.rearm()
        ring.release(slot)
    assert ring.rearm()


def test_what_cannot_grow_is_as_it_was():
    ring = Ring(1, 0)
    slot = ring.acquire(100)
    with pytest.raises(StagingMemoryError):
        ring.grow(1 << 50)
    ring.release(slot)
    with pytest.raises(MemoryError):
        ring.acquire(1 << 50)
    assert ring.count == ring.free == 1
    assert ring.rearm()


@pytest.mark.parametrize(
    ("stretch", "nbytes", "count"), [(10 * 256, 200, 10), (1 << 20, 200, MOST_STRETCHED), (10 * 256, 768, 4)]
)
def test_small_slots_are_more_than_asked_for_within_so_many_bytes(stretch, nbytes, count):
    ring = Ring(4, 1, stretch=stretch)
    assert (ring.stretched, ring.slot_nbytes, ring.reserved_in) == (0, 0, 0)
    begun = perf_counter_ns()
    ring.acquire(nbytes)
    assert (ring.count, ring.stretched, ring.free) == (count, count - 4, count - 1)
    assert ring.slot_nbytes == -(-nbytes // 256) * 256
    assert 0 < ring.reserved_in <= perf_counter_ns() - begun


@pytest.mark.parametrize(("spare", "first"), [(1, FIRST_SLOTS), (FIRST_SLOTS, 2 * FIRST_SLOTS)])
def test_of_many_slots_only_the_first_are_reserved_until_all_are_in_use(spare, first):
    """At least twice as many as users may hold; later ones are also reserved for who does not wait."""
    ring = Ring(first * 3 + 5, spare)
    assert ring.take() is None
    mapped, slots = [], []
    for number in range(ring.count):
        slots.append(ring.acquire(100) if number % 2 == 0 else ring.take())
        mapped.append(len({id(slot.memory) for slot in slots}))
    assert len(slots) == len({slot.address for slot in slots}) == ring.count
    assert (mapped.index(2), mapped.index(3)) == (first, first * 2)
    assert ring.take() is None
    for slot in slots:
        ring.release(slot)
    assert ring.rearm()


@pytest.mark.parametrize(
    ("nbytes", "shared", "reserved"),
    [
        (LARGE, True, [4, 3]),  # those that users may hold come later
        (LARGE // 2, True, [7]),
        (LARGE, False, [2, 2, 3]),  # a loop that reads by itself needs no more than two
        (LARGE // 2, False, [4, 3]),  # as many as fit into the huge page of two
        (FIRST_NBYTES // 4, False, [4, 3]),
        (100, False, [7]),
    ],
)
def test_large_slots_are_reserved_when_they_are_needed(nbytes, shared, reserved, monkeypatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 14, raising=False)
    ring = Ring(7, 3, shared=shared)
    slots = [ring.acquire(nbytes)]
    assert ring.free == 6
    before = ring.reserved_in
    slots += [ring.take() for _ in range(6)]
    assert ring.take() is None
    assert (ring.reserved_in > before) == (len(reserved) > 1)  # also the later ones are no time of the reader
    memory = [slot.memory for slot in slots]
    assert [memory.count(one) for one in dict.fromkeys(memory)] == reserved


def test_a_slot_whose_credit_an_interrupt_took_along_is_free_in_the_next_epoch():
    ring = Ring(2, 0)
    ring.release(ring.acquire(10))
    ring._credits.get()  # a Ctrl-C comes before the slot is taken, too
    assert ring.rearm()
    assert None not in (ring.take(), ring.take())
    assert ring.take() is None


def test_a_ring_whose_memory_was_finalized_says_so():
    """In a garbage cycle, the memory may be finalized before a loader that would use the ring again."""
    ring = Ring(2, 1)
    slot = ring.acquire(10)
    ring.release(slot)
    assert not ring.is_finalized
    slot.memory._end()  # as its finalizer does
    assert slot.memory.closed
    assert ring.is_finalized


def test_views_of_two_layouts_are_made_once_and_lie_where_each_says():
    """A batch with random draws is written by two layouts, in turn."""
    one, two, three = (
        arrange((((count,), np.dtype("uint8")), ((2,), np.dtype("float32")))) for count in (3, 5, 7)
    )
    slot = Slot(np.arange(512, dtype=np.uint8), None)
    first, second = slot.views(one), slot.views(two)
    assert slot.views(one) is first
    assert slot.views(two) is second
    for layout in (three, one, two, three):
        for view, field in zip(slot.views(layout), layout.fields, strict=True):
            assert (view.shape, view.dtype) == (field.shape, field.dtype)
            assert view.ctypes.data == slot.address + field.offset
    Ring(1, 0).fit(slot, 1024)
    slot.bytes[:] = 0
    assert slot.views(one)[0].tolist() == [0, 0, 0]


# Leases: a slot is freed when the last view of its batch dies, in whatever thread, and not before.


FIELDS = arrange((((4, 6), np.dtype("float32")), ((4,), np.dtype("int64")), ((0, 2), np.dtype("uint8"))))
ALIKE = find_runs(arrange((((4, 6), np.dtype("float32")),) * 3))


@pytest.fixture
def slot():
    region = np.arange(FIELDS.nbytes).astype(np.uint8)
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


@pytest.mark.parametrize("fields", [FIELDS, ALIKE], ids=["different", "alike"])
@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_every_kind_of_view_keeps_the_lease_and_a_copy_does_not(make, fields):
    slot, freed = Slot(np.zeros(fields.nbytes, np.uint8), None), deque()
    arrays = lease_views(slot, fields, freed)
    view, copies = make(arrays[0]), [arrays[0].copy(), arrays[0][[0, 1]], arrays[0] + 1]
    del arrays
    gc.collect()
    assert not freed
    held = [view]
    del view
    run_threads(held.clear, 1)  # the last view may die in another thread
    assert list(freed) == [slot]
    assert len(copies) == 3


def test_fields_that_are_alike_lie_where_a_writer_put_them():
    row, others = ((3,), np.dtype("int16")), [((2, 2), np.dtype("float64")), ((0,), np.dtype("uint8"))]
    for fields in ([row] * 4, [*others, row, row], [row, row, *others, row], [others[1]] * 2, others, []):
        layout = find_runs(arrange(tuple(fields)))
        slot, freed = Slot(np.zeros(max(layout.nbytes, 1), np.uint8), None), deque()
        for number, view in enumerate(slot.views(layout)):
            view[...] = number
        leased = lease_views(slot, layout, freed)
        assert [(one.shape, one.dtype) for one in leased] == fields
        assert all((one == number).all() for number, one in enumerate(leased))
    named = np.dtype("int16", metadata={"unit": "m"})
    layout = find_runs(arrange((((3,), named), row)))
    assert [
        one.dtype.metadata for one in lease_views(Slot(np.zeros(512, np.uint8), None), layout, deque())
    ] == [
        {"unit": "m"},
        None,
    ]


def test_each_lease_of_a_slot_counts_for_itself_also_in_a_cycle(slot):
    freed = deque()
    first, second = lease_views(slot, FIELDS, freed), [lease_views(slot, FIELDS, freed)]
    del first
    assert list(freed) == [slot]
    second.append(second)
    del second
    assert list(freed) == [slot]
    gc.collect()  # which frees the cycle
    assert list(freed) == [slot, slot]


def test_the_finalizer_runs_no_python_code_in_which_an_interrupt_could_be_lost(slot):
    called, freed = [], deque()
    batch = lease_views(slot, FIELDS, freed)
    sys.setprofile(lambda frame, event, argument: called.append(event))
    try:
        del batch
    finally:
        sys.setprofile(None)
    assert len(freed) == 1
    assert "call" not in called  # Python code; calls of C code are "c_call"
