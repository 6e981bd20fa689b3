"""Host memory for batches: how fields lie in a slot, the memory of all slots, their ring, and leases on them.

A `Layout` is pure arithmetic, so memory needs are known before anything runs. An `Arena` is one unnamed
mapping, reserved before the first write and pinned once. A `Ring` knows which slots of a loader are free or
leased, and when a batch must be delivered as a copy::

    free ──acquire, take──▶ being filled, queued or being copied ──lend──▶ leased ──drain──▶ free
                                         └───────────release───────────▶ free

    free + (being filled, queued or being copied) + leased = count, and leased <= spare

So ``count - spare`` slots always circulate, however many batches the user keeps. The fetcher never waits for
the user to drop a batch, only for the consumer's next step. That proves that keeping batches cannot deadlock.
"""

from __future__ import annotations

import itertools
import math
import mmap
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import QueueClosed, StagingMemoryError, warn
from gpuloader.system import platforms
from gpuloader.system.cores import Cores, call_near
from gpuloader.system.finalizers import Finalizer, Living, calling, closing_once, once

# Where the fields of a batch lie.

ALIGNMENT = 256
"""Alignment of every field in bytes: enough for any vector load, and the same as CUDA's own allocator."""


class FieldLayout(NamedTuple):
    """One field's part of a slot."""

    offset: int  # bytes from the start of the slot, a multiple of `ALIGNMENT`
    shape: tuple[int, ...]  # of the whole batch
    dtype: np.dtype[Any]
    strides: tuple[int, ...] | None = None  # in bytes; None for rows without gaps, in C order


class Layout(NamedTuple):
    """The arrangement of one batch's fields in a slot."""

    fields: tuple[FieldLayout, ...]  # in the order of the feed list
    nbytes: int  # from the start of the first field to the end of the last, all moved by one copy
    # For fields that are delivered with their dimensions in another order than in memory: the field's number
    # and that order, as for `numpy.transpose`.
    turned: tuple[tuple[int, tuple[int, ...]], ...] = ()
    # The same fields, with those that are alike and in a row as one, whose first dimension counts them; empty
    # if none are, or nobody has looked for them.
    runs: tuple[FieldLayout, ...] = ()

    def turn(self, arrays: list[Any]) -> list[Any]:
        """Return the fields' arrays with their dimensions in the order of delivery, not that of memory.

        >>> field = FieldLayout(0, (2, 4, 4, 3), np.dtype("float32"))
        >>> [image] = Layout((field,), 384, ((0, (0, 3, 1, 2)),)).turn([np.zeros(field.shape)])
        >>> image.shape
        (2, 3, 4, 4)
        """
        for number, axes in self.turned:
            arrays[number] = arrays[number].transpose(axes)
        return arrays

    def shorten(self, count: int) -> Layout:
        """Return the layout of a batch of only `count` samples in a slot laid out for more."""
        if not self.fields:
            return self
        fields = tuple(FieldLayout(one.offset, (count, *one.shape[1:]), one.dtype) for one in self.fields)
        # Offsets stay, because the existing rows have been written already; only the end comes earlier.
        last = fields[-1]
        return Layout(fields, last.offset + math.prod(last.shape) * last.dtype.itemsize)


def arrange(fields: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]) -> Layout:
    """Return the layout of the given ``(shape, dtype)`` pairs, one after another, each aligned.

    >>> layout = arrange((((32, 784), np.dtype("float32")), ((32, 1), np.dtype("int64"))))
    >>> [field.offset for field in layout.fields], layout.nbytes
    ([0, 100352], 100608)
    """
    placed = []
    end = 0
    for shape, dtype in fields:
        offset = align(end)
        placed.append(FieldLayout(offset, shape, dtype))
        end = offset + math.prod(shape) * dtype.itemsize
    return Layout(tuple(placed), end)


def arrange_last(
    fields: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...], last: Collection[int]
) -> tuple[Layout, Layout]:
    """Return a layout in which the fields with these numbers lie last, and the layout of the other fields.

    >>> byte = np.dtype("uint8")
    >>> whole, others = arrange_last((((300,), byte), ((5,), byte)), last=[0])
    >>> [field.offset for field in whole.fields], whole.nbytes, others.nbytes
    ([256, 0], 556, 5)
    """
    others = [number for number in range(len(fields)) if number not in last]
    order = [*others, *sorted(last)]
    placed = arrange(tuple(fields[number] for number in order))
    found = dict(zip(order, placed.fields, strict=True))
    whole = Layout(tuple(found[number] for number in range(len(fields))), placed.nbytes)
    return whole, arrange(tuple(fields[number] for number in others))


def find_runs(layout: Layout) -> Layout:
    """Return a layout that was arranged, with its `runs`.

    >>> row = (32,), np.dtype("float32")
    >>> find_runs(arrange((row, row, row, ((32,), np.dtype("int64"))))).runs[0]
    FieldLayout(offset=0, shape=(3, 32), dtype=dtype('float32'), strides=(256, 4))
    """
    runs = []
    # Equal dtypes may differ in their metadata, so only the same one counts.
    by_kind = itertools.groupby(layout.fields, lambda field: (field.shape, id(field.dtype)))
    for (shape, _), (first, *others) in by_kind:
        step, row = others[0].offset - first.offset if others else 0, np.empty(shape[1:], first.dtype)
        strides = step, row.nbytes, *row.strides
        runs.append(FieldLayout(first.offset, (1 + len(others), *shape), first.dtype, strides))
    return layout._replace(runs=tuple(runs)) if len(runs) < len(layout.fields) else layout


def align(nbytes: int) -> int:
    """Round `nbytes` up to the next multiple of `ALIGNMENT`.

    >>> align(0), align(1), align(256)
    (0, 256, 256)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


# The memory of slots.

_numbers = itertools.count()
_CERTAIN = 16 << 20
"""Fewer bytes than this are reserved without checking that they are available: the check takes longer."""


class PageLocker(Protocol):
    """A device that can pin the host memory it copies from."""

    def page_lock(self, address: int, nbytes: int) -> None:
        """Pin `nbytes` of mapped memory at `address`; raise `OSError` if the driver refuses."""

    def page_unlocker(self, address: int, memory: object) -> Callable[[], object]:
        """Return a function that undoes `page_lock`, immediately or later; a second call does nothing.

        It is called after the last copy. The mapping exists as long as `memory` is kept.
        """


_refused: Living[PageLocker] = Living()  # those whose refusal was reported


class Arena:
    """One host memory mapping for many slots; it lives as long as anything refers to the arena.

    Pinned memory has exactly `nbytes`; CuPy's pool would round up to powers of two. Memory for the CPU alone
    may have more, to fill huge pages.

    A batch that the user keeps holds it through its lease. `near` are the processor cores near which the
    memory is to lie; empty: wherever the system puts it. With `shared`, worker processes map `descriptor`,
    which stays None if processes cannot share memory. Raises `StagingMemoryError` if there is too little for
    these bytes, or for the `whole` of which they are the first.

    >>> arena = Arena(1 << 16)
    >>> arena.bytes.shape, arena.page_locked
    ((65536,), False)
    """

    def __init__(
        self,
        nbytes: int,
        locker: PageLocker | None = None,
        *,
        shared: bool = False,
        near: Cores = frozenset(),
        whole: int = 0,
    ) -> None:
        self.number = next(_numbers)  # identifies it in messages to workers
        self._ended: list[bool] = []
        self._end = once(partial(self._ended.append, True))
        self.page_locked = False
        self.descriptor: int | None = None
        needed = max(nbytes, whole)
        if needed > _CERTAIN:
            check_available(needed)
        try:
            # This thread touches the pages first, on the cores near the GPU, so the kernel places them there.
            # That needs no system call for memory policies; containers forbid those.
            self._mapping = call_near(near, partial(self._map, nbytes, locker is not None, shared))
        except (OSError, ValueError) as error:
            raise StagingMemoryError(_shortage(nbytes, str(error))) from error
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)
        self.nbytes = self.bytes.size
        self.address: int = self.bytes.ctypes.data
        if locker is not None:
            self._page_lock(locker)

    def _map(self, nbytes: int, locked: bool, shared: bool) -> mmap.mmap:
        # Memory for the CPU alone is private and anonymous, because Linux uses huge pages only there. Writing
        # 10 MB batches then takes a sixth less time, and no file descriptor stays open.
        if not (shared or locked) or not platforms.can_share_memory():
            return platforms.map_memory(nbytes, stays=False)
        # Memory that a device copies from must be shared with forked children: a private page would move when
        # it is written after a fork, away from the address that the device reads.
        if not shared and not platforms.has_memory_files():
            return platforms.map_memory(nbytes, stays=True)
        # A memory file has no name, so a crash leaves nothing behind.
        self.descriptor = platforms.open_memory_file("gpuloader-arena")
        self._end = once(self._end, closing_once(self.descriptor))
        # Reserved before the first write: a shortage is then an error, not SIGBUS. Sealed, because a worker
        # that shrinks the file would crash every other process.
        platforms.reserve(self.descriptor, nbytes)
        platforms.seal(self.descriptor, writable=True)
        mapping = mmap.mmap(self.descriptor, nbytes)
        platforms.prefault(mapping)  # staging never waits for new pages
        return mapping

    def _page_lock(self, locker: PageLocker) -> None:
        try:
            locker.page_lock(self.address, self.nbytes)
        except OSError as error:
            # Pageable memory works, too, but copies are slower and overlap less. A refusal for one slot holds
            # for all later slots, so one warning is enough.
            if locker in list(_refused):
                return
            _refused.add(locker)
            warn(
                f"{self.nbytes:,} bytes of staging memory could not be pinned ({error}); copying to "
                "the device from pageable memory instead, which is slower and overlaps less",
                RuntimeWarning,
            )
        else:
            self.page_locked = True
            # It keeps the mapping, because unpinning precedes unmapping.
            self._unlock = Finalizer(locker.page_unlocker(self.address, self._mapping))

    @property
    def closed(self) -> bool:
        """Whether the arena was finalized; in a garbage cycle, that may happen before its users are."""
        return bool(self._ended)

    __del__ = calling("_end")


def _shortage(nbytes: int, reason: str) -> str:
    return (
        f"{nbytes:,} bytes of host memory for the loader's slots could not be reserved: {reason}; "
        "lower the batch size, prefetch_factor or the capacity, or raise the memory limit of this machine or "
        "container"
    )


check_available = partial(platforms.check_memory, shortage=_shortage)
"""Raises `StagingMemoryError` if the system reports less memory than a number of bytes."""


# The slots of one loader.

GROWTH = 1.25
"""A slot grows to this multiple of the size it needs, so slowly growing batches rarely grow it again.

This applies to slots on hosts and on devices.
"""
FIRST_SLOTS = 64
"""The slots that are reserved first; a larger ring reserves the others when they are needed."""
FIRST_NBYTES = 256 << 10
"""Slots of the CPU alone are reserved first up to this many bytes, but at least two of them."""
LARGE = 1 << 20
"""Slots of at least this many bytes are reserved for the user's batches only when they are needed."""
SPARE = 2
"""Batches that the user usually holds per place: the current one, and the next one while asking for it."""
MOST_STRETCHED = 40
"""The most slots of a ring that was stretched because its slots are small."""


class HostBytes:
    """An array in host memory as a device copies it: its bytes, which keep it alive, and its address."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.bytes: NDArray[np.uint8] = array.reshape(-1).view(np.uint8)
        self.address: int = array.__array_interface__["data"][0]


class SlotViews(list[NDArray[Any]]):
    """The arrays through which a batch is written into a slot."""

    # What a writer has prepared for these arrays: what it was prepared from, and the targets to write to.
    # Kept, so that they are not prepared for every batch.
    prepared: tuple[object, list[Any]] = None, []


class Slot:
    """One contiguous region of host memory that holds one batch."""

    __slots__ = (
        "_layout", "_other", "_views", "address", "bytes", "in_ring", "interface", "memory", "nbytes",
    )  # fmt: skip

    def __init__(self, region: NDArray[np.uint8], memory: object, *, in_ring: bool = True) -> None:
        self.in_ring = in_ring  # False for a private copy, which does not return to a ring
        self.bytes = region
        self.nbytes = region.size
        self.memory: Any = memory  # keeps the region mapped; that of a ring is an arena
        self.interface: dict[str, Any] = region.__array_interface__  # created once, for every lease
        self.address: int = self.interface["data"][0]
        self._layout: Layout | None = None
        self._views = SlotViews()
        self._other: tuple[Layout | None, SlotViews] = None, SlotViews()

    def views(self, layout: Layout) -> SlotViews:
        """Return one array per field for writing a batch of this layout; the arrays hold no lease."""
        if layout is not self._layout:
            # A batch with random draws is written by two layouts, in turn.
            latest = self._layout, self._views
            self._layout, self._views = self._other
            self._other = latest
        if layout is not self._layout:
            self._views = SlotViews()
            for part in layout.fields:
                self._views.append(np.ndarray(part.shape, part.dtype, self.bytes, part.offset, part.strides))
            self._layout = layout
        return self._views


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Ring:
    """A number of slots that circulate: free, filled, leased, free.

    Only the first of many slots are reserved at the beginning; whenever all are in use, their number doubles.
    So memory use follows the batches that exist, not a capacity larger than the dataset.

    Fetchers call `acquire`, `take`, `fit` and `release`, from any thread; `acquire` may wait. The consumer
    calls everything else, from one thread at a time. The exception is `freed`: a lease's finalizer appends to
    it from any thread, even one that holds a lock.
    """

    count: int
    spare: int  # slots that the user may hold at a time; further batches are delivered as private copies
    locker: PageLocker | None = None  # the device that pins the memory
    _: KW_ONLY
    shared: bool = False  # whether worker processes map the memory and write into it
    stretch: int = 0  # bytes up to which small slots may exceed `count`, up to `MOST_STRETCHED` slots
    near: Cores = frozenset()  # the cores to place the memory near; empty: wherever the system puts it
    stretched: int = 0  # slots added because they are small
    allocated: bool = False  # whether the first `acquire` has reserved memory
    slot_nbytes: int = 0  # initial size of each slot; single slots may have grown since
    reserved_in: int = 0  # nanoseconds spent on reserving, which are not the reader's time
    leased: int = 0
    freed: deque[Slot] = field(default_factory=deque)  # leases that have ended since the last `drain`
    _reserved: int = 0  # slots that have memory
    _allocating: threading.Lock = field(default_factory=threading.Lock)  # several threads may come first
    # The slot freed last is taken first, because it is still in the processor's cache. Each free slot has one
    # credit in a C queue, which waits without a Python-level lock; False there means closed.
    _free: deque[Slot] = field(default_factory=deque)
    _credits: SimpleQueue[bool] = field(default_factory=SimpleQueue)

    def acquire(self, nbytes: int) -> Slot:
        """Take a free slot of at least `nbytes`, waiting until there is one.

        The first call reserves the memory of the slots at that size. A slot that is too small for a later
        batch grows individually. Raises `QueueClosed` if the consumer has closed the loader, and
        `StagingMemoryError` if memory is too small.
        """
        credit = self._find_credit(nbytes)
        if credit is None:
            credit = self._credits.get()
        if not credit:
            self._credits.put(False)  # for the next waiting thread
            raise QueueClosed("the consumer has closed the loader")
        slot = self._free.pop()
        if nbytes > slot.nbytes:
            try:
                self.fit(slot, nbytes)
            except BaseException:
                self.release(slot)
                raise
        return slot

    def take(self) -> Slot | None:
        """Take a free slot of any size without waiting, or return None if none is free or reserved yet."""
        credit = self._find_credit(0) if self.allocated else None
        if credit:
            return self._free.pop()
        if credit is False:
            self._credits.put(False)
        return None

    def _find_credit(self, nbytes: int) -> bool | None:
        """Take a credit without waiting, and reserve more slots if there is none; None if all are in use."""
        while True:
            try:
                return self._credits.get_nowait()
            except Empty:
                if not self._extend(nbytes):
                    return None

    def fit(self, slot: Slot, nbytes: int) -> None:
        """Grow a slot that nobody is reading to at least `nbytes`, if it is smaller."""
        if nbytes > slot.nbytes:
            # The other slots stay as they are: perhaps only this batch is this large.
            arena = Arena(align(int(nbytes * GROWTH)), self.locker, shared=self.shared, near=self.near)
            larger = Slot(arena.bytes, arena, in_ring=slot.in_ring)
            for name in Slot.__slots__:
                setattr(slot, name, getattr(larger, name))

    def _extend(self, nbytes: int) -> bool:
        """Reserve the first slots, for batches of `nbytes`, or double them; return False if none are left."""
        with self._allocating:
            if self._free:  # another thread was faster
                return True
            if self.allocated:
                more = min(self._reserved, self.count - self._reserved)
                if more > 0:
                    self._add(more)
                return more > 0
            size = self.slot_nbytes = align(max(nbytes, 1))
            # Small slots cost little memory, and with more of them a thread reads short batches in bursts.
            # They are reserved once the others are in use: a loop that reads inline needs none of them.
            stretched = max(min(self.stretch // size, MOST_STRETCHED) - self.count, 0)
            # Few loops hold as many batches as allowed, and large slots take long to fault in.
            now = self.count - self.spare if size >= LARGE else self.count
            now = max(min(now, max(FIRST_SLOTS, 2 * self.spare)), 1)
            if self.locker is None and not self.shared:  # a loop that reads by itself needs two
                now = min(now, max(FIRST_NBYTES // size, 2))
            if self.locker is not None:  # page-locking takes too long for the middle of an epoch
                now += stretched
            self._add(now, size * self.count)  # too little memory shows now, not in the middle of an epoch
            self.count += stretched
            self.stretched = stretched
            self.allocated = True
            return True

    def _add(self, count: int, whole: int = 0) -> None:
        begun, size = perf_counter_ns(), self.slot_nbytes
        arena = Arena(size * count, self.locker, shared=self.shared, near=self.near, whole=whole)
        # Where huge pages are mapped, more slots may fit into them.
        count = max(count, min(arena.nbytes // size, self.count - self._reserved))
        for start in range(0, count * size, size):
            self._free.append(Slot(arena.bytes[start : start + size], arena))
            self._credits.put(True)
        self._reserved += count
        self.reserved_in += perf_counter_ns() - begun

    def grow(self, more: int) -> None:
        """Add `more` slots of the initial size; raises `StagingMemoryError`."""
        with self._allocating:
            if self.allocated:
                self._add(more)
            self.count += more

    def release(self, slot: Slot) -> None:
        """Return a slot that no lease refers to."""
        if slot.in_ring:
            self._free.append(slot)
            self._credits.put(True)

    def lend(self, slot: Slot, layout: Layout) -> Slot:
        """Return the slot to lease to the user: `slot` itself, or a private copy once `spare` are lent."""
        # Never wait for the user: somebody who keeps all batches in a list pays only for a copy of each.
        if self.leased < self.spare:
            self.leased += 1
            return slot
        private = np.empty(max(layout.nbytes, 1), np.uint8)
        private[: layout.nbytes] = slot.bytes[: layout.nbytes]
        self.release(slot)
        return Slot(private, private, in_ring=False)

    def drain(self) -> None:
        """Take back every slot whose lease has ended."""
        while self.freed:
            slot = self.freed.popleft()
            if slot.in_ring:
                self.leased -= 1
                self._free.append(slot)
                self._credits.put(True)

    @property
    def free(self) -> int:
        """Number of slots that are free now, including those yet to be reserved."""
        return len(self._free) + self.count - self._reserved if self.allocated else 0

    @property
    def is_finalized(self) -> bool:
        """Whether the garbage collector has closed memory of free slots.

        It finalizes everything in a garbage cycle, even if one of the finalizers keeps the ring alive.
        """
        return any(slot.memory.closed for slot in self._free)

    def interrupt(self) -> None:
        """Make all waiting and later `acquire` calls raise `QueueClosed`, until `rearm`."""
        self._credits.put(False)

    def rearm(self) -> bool:
        """Undo `interrupt` once no thread waits in `acquire`; return whether all slots are back."""
        # Every `interrupt` has left a False, and a Ctrl-C may have come between a credit and its slot. Then
        # `_extend` would see a free slot for ever, of which nobody can take the credit.
        self._credits = SimpleQueue()
        for _ in self._free:
            self._credits.put(True)
        return len(self._free) + self.leased == self._reserved


# Leases: a slot stays reserved until the user's last view of the delivered batch is gone.

_ndarray, _asarray = np.ndarray, np.asarray  # looked up once, because they are called for every batch


class Lease:
    """A token that all views of a batch keep alive; when the last view dies, `owner` is appended to `freed`.

    The lease is the arrays' base object, so slices, reshapes and views of views keep it alive. A reference to
    an array alone would not guarantee that.
    """

    __slots__ = ("__array_interface__", "_release")

    def __init__(self, owner: Any, freed: deque[Any], interface: dict[str, Any] | None = None) -> None:
        # The finalizer runs in whatever thread drops the last view, perhaps while that thread holds a lock.
        # So it only appends to a deque, which the loader checks on its next step. And it runs no Python code,
        # in which a Ctrl-C would be lost.
        self._release = partial(freed.append, owner)
        if interface is not None:
            self.__array_interface__ = interface

    __del__ = calling("_release")


def lease_views(slot: Slot, layout: Layout, freed: deque[Any]) -> list[NDArray[Any]]:
    """Return one array per field in a host slot; `slot` is appended to `freed` when the last view dies.

    >>> from gpuloader.staging import arrange
    >>> freed = deque()
    >>> slot = Slot(np.zeros(256, np.uint8), None)
    >>> [batch] = lease_views(slot, arrange((((2, 3), np.dtype("float32")),)), freed)
    >>> corner = batch[:1, :1].T
    >>> del batch; len(freed)
    0
    >>> del corner; freed.popleft() is slot
    True
    """
    region = _asarray(Lease(slot, freed, slot.interface))
    arrays: list[NDArray[Any]] = []
    if layout.runs:
        for offset, shape, dtype, strides in layout.runs:
            # An item of an array takes a third of the time of an array of its own. `+=` would add numbers.
            arrays.extend(_ndarray(shape, dtype, region, offset, strides))
        return arrays
    for part in layout.fields:
        arrays.append(_ndarray(part.shape, part.dtype, region, part.offset, part.strides))
    return arrays
