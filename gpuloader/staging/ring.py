"""The slots of one loader: which are free, which are leased, and when a batch must be delivered as a copy."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import QueueClosed
from gpuloader.staging.arena import Arena, PageLocker, check_available
from gpuloader.staging.layout import Layout, align
from gpuloader.system.cores import Cores
from gpuloader.system.finalizers import calling

GROWTH = 1.25
"""A slot grows to this multiple of the size it needs, so slowly growing batches rarely grow it again.

This applies to slots on hosts and on devices.
"""
FIRST_SLOTS = 64
"""The slots that are reserved at once; the others of a ring that has more follow when they are needed."""
MOST_STRETCHED = 40
"""The most slots of a ring that is stretched because its slots are small."""


class Views(list[NDArray[Any]]):
    """The arrays through which a batch is written into a slot.

    Attributes
    ----------
    prepared : object
        What a writer keeps with them, so that it need not prepare it for every batch; None at first.
    """

    __slots__ = ("prepared",)

    def __init__(self, arrays: Iterable[NDArray[Any]] = ()) -> None:
        super().__init__(arrays)
        self.prepared: Any = None


class Slot:
    """One contiguous region of host memory that holds one batch.

    Attributes
    ----------
    bytes : numpy.ndarray
        The region as a uint8 array.
    address : int
        Start address of the region.
    nbytes : int
        Size of the region in bytes.
    interface : dict
        The region's NumPy array interface, created once and used by every lease.
    memory : object
        The object that keeps the region mapped.
    in_ring : bool
        False for a private copy, which does not return to a ring.
    """

    __slots__ = (
        "_layout", "_other", "_views", "address", "bytes", "in_ring", "interface", "memory", "nbytes",
    )  # fmt: skip

    def __init__(self, region: NDArray[np.uint8], memory: object, *, in_ring: bool = True) -> None:
        self.in_ring = in_ring
        self.replace(region, memory)

    def replace(self, region: NDArray[np.uint8], memory: object) -> None:
        """Move to another region; allowed only while no lease refers to the slot."""
        self.bytes = region
        self.nbytes = region.size
        self.memory = memory
        self.interface: dict[str, Any] = region.__array_interface__
        self.address: int = self.interface["data"][0]
        self._layout: Layout | None = None
        self._views = Views()
        self._other: tuple[Layout | None, Views] = None, Views()

    def views(self, layout: Layout) -> Views:
        """Return one array per field for writing a batch of this layout; the arrays hold no lease."""
        if layout is not self._layout:
            # A batch with random draws is written by two layouts, in turn.
            latest = self._layout, self._views
            self._layout, self._views = self._other
            self._other = latest
        if layout is not self._layout:
            self._views = Views(
                np.ndarray(field.shape, field.dtype, self.bytes, field.offset) for field in layout.fields
            )
            self._layout = layout
        return self._views


class Ring:
    """A fixed number of slots that circulate: free, filled, leased, free.

    Of many slots only the first are reserved at once, and then twice as many whenever all are in use. So
    memory follows the batches that there are, and not a capacity that is larger than the dataset.

    ``free + (being filled, queued or being copied) + leased = count``, and `lend` keeps ``leased <= spare``.
    So ``count - spare`` slots always circulate, however many batches the user keeps: the fetcher never waits
    for the user to drop a batch, only for the consumer's next step.

    Fetchers call `acquire` and `fit`, from any thread; `acquire` may wait. The consumer calls everything
    else, from one thread at a time. Only `freed` is different: a lease's finalizer appends to it from any
    thread, even one that holds a lock.

    Parameters
    ----------
    count : int
        Number of slots.
    spare : int
        Number of slots the user may hold at once; further batches are delivered as private copies.
    locker : PageLocker or None
        The device that page-locks the memory.
    shared : bool
        Whether worker processes map the memory and write into it.
    stretch : int
        Bytes within which small slots are more than `count`, `MOST_STRETCHED` at most.
    near : set of int
        The processor cores near which the memory is to lie; empty: wherever the system puts it.

    Attributes
    ----------
    allocated : bool
        Whether the memory is reserved, which the first `acquire` does.
    stretched : int
        Number of slots added because they are small; 0 before the first `acquire`.
    slot_nbytes : int
        Initial size of each slot in bytes, 0 before the first `acquire`; single slots may have grown since.
    reserved_in : int
        Nanoseconds that the first `acquire` took to reserve the memory.
    """

    def __init__(
        self,
        count: int,
        spare: int,
        locker: PageLocker | None = None,
        *,
        shared: bool = False,
        stretch: int = 0,
        near: Cores = frozenset(),
    ) -> None:
        self.count = count
        self._near = near
        self.stretched = 0
        self._stretch = stretch
        self.allocated = False
        self.slot_nbytes = 0
        self.reserved_in = 0
        self.freed: deque[Slot] = deque()
        self.leased = 0
        self._reserved = 0
        self._spare = spare
        self._locker = locker
        self._shared = shared
        self._allocating = threading.Lock()
        # The slot freed last is taken first, because it is still in the processor's cache. For each free slot
        # there is one credit in a C queue, which waits without a Python-level lock; False there means closed.
        self._free: deque[Slot] = deque()
        self._credits: SimpleQueue[bool] = SimpleQueue()

    def acquire(self, nbytes: int) -> Slot:
        """Take a free slot of at least `nbytes`, waiting until there is one.

        The first call reserves the memory of the slots at that size. A slot that is too small for a later
        batch grows individually.

        Raises
        ------
        QueueClosed
            The consumer has closed the loader.
        StagingMemoryError
            The memory is not available.
        """
        if not self.allocated:
            self._reserve(max(nbytes, 1))
        while (credit := self._look()) is None:
            if not self._extend():
                credit = self._credits.get()
                break
        if not credit:
            self._credits.put(False)
            raise QueueClosed("the consumer has closed the loader")
        slot = self._free.pop()
        if nbytes > slot.nbytes:
            try:
                self.fit(slot, nbytes)
            except BaseException:
                self._return(slot)
                raise
        return slot

    def take(self) -> Slot | None:
        """Take a free slot of any size without waiting, or return None if none is free or reserved yet.

        Raises
        ------
        StagingMemoryError
            The memory is not available.
        """
        while (credit := self._look()) is None:
            if not self.allocated or not self._extend():
                return None
        if not credit:
            self._credits.put(False)
            return None
        return self._free.pop()

    def _look(self) -> bool | None:
        """Return a credit, or None if there is none now."""
        try:
            return self._credits.get_nowait()
        except Empty:
            return None

    def fit(self, slot: Slot, nbytes: int) -> None:
        """Grow a slot that nobody is reading to at least `nbytes`, if it is smaller."""
        if nbytes > slot.nbytes:
            arena = Arena(align(int(nbytes * GROWTH)), self._locker, shared=self._shared, near=self._near)
            slot.replace(arena.bytes, arena)

    def _return(self, slot: Slot) -> None:
        self._free.append(slot)
        self._credits.put(True)

    def _reserve(self, nbytes: int) -> None:
        with self._allocating:  # several threads may bring the first batches
            if self.allocated:
                return
            begun = perf_counter_ns()
            size = self.slot_nbytes = align(nbytes)
            stretched = max(min(self._stretch // size, MOST_STRETCHED) - self.count, 0)
            first = max(FIRST_SLOTS, 2 * self._spare)
            if self.count > first:
                check_available(size * self.count)
            self._add(min(self.count + stretched, first), size)
            self.count += stretched
            self.stretched = stretched
            self.reserved_in = perf_counter_ns() - begun
            self.allocated = True

    def _extend(self) -> bool:
        """Reserve more slots; return False if all are reserved."""
        with self._allocating:
            if self._free:  # another thread was faster
                return True
            more = min(self._reserved, self.count - self._reserved)
            if more > 0:
                self._add(more, self.slot_nbytes)
            return more > 0

    def _add(self, count: int, size: int) -> None:
        arena = Arena(size * count, self._locker, shared=self._shared, near=self._near)
        for start in range(0, arena.nbytes, size):
            self._return(Slot(arena.bytes[start : start + size], arena))
        self._reserved += count

    def grow(self, more: int) -> None:
        """Add `more` slots of the initial size; called by the consumer.

        Raises
        ------
        StagingMemoryError
            The memory is not available.
        """
        with self._allocating:
            if self.allocated:
                self._add(more, self.slot_nbytes)
            self.count += more

    def release(self, slot: Slot) -> None:
        """Return a slot that no lease refers to."""
        if slot.in_ring:
            self._return(slot)

    def lend(self, slot: Slot, layout: Layout) -> Slot:
        """Return the slot to lease to the user: `slot` itself, or a private copy once `spare` are lent."""
        if self.leased < self._spare:
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
                self._return(slot)

    @property
    def free(self) -> int:
        """Number of slots that are free now, including those yet to be reserved."""
        return len(self._free) + self.count - self._reserved if self.allocated else 0

    @property
    def is_finalized(self) -> bool:
        """Whether the garbage collector has closed memory of free slots.

        It finalizes all that belongs to a garbage cycle, even if one of the finalizers keeps the ring alive.
        """
        return any(isinstance(slot.memory, Arena) and slot.memory.closed for slot in self._free)

    def interrupt(self) -> None:
        """Make all waiting and later `acquire` calls raise `QueueClosed`, until `rearm`."""
        self._credits.put(False)

    def rearm(self) -> bool:
        """Undo `interrupt` once no thread waits in `acquire`; return whether all slots are back."""
        for credit in [self._credits.get() for _ in range(self._credits.qsize())]:
            if credit:
                self._credits.put(credit)
        return not self.allocated or self.free + self.leased == self.count


# Leases: a slot stays reserved until the user's last view of the delivered batch is gone.

_ndarray, _asarray = np.ndarray, np.asarray  # looked up once, because they are called for every batch


class Lease:
    """A token that all views of a batch keep alive; when the last view dies, `owner` is appended to `freed`.

    The arrays have the lease as their base object, so slices, reshapes and views of views keep it alive. A
    reference to an array alone would not guarantee that. The finalizer runs in whatever thread drops the last
    view, perhaps while that thread holds a lock. So it only appends to a deque, which the loader checks on
    its next step, and runs no Python code, in which a Ctrl-C would be lost.
    """

    __slots__ = ("__array_interface__", "_release")

    def __init__(self, owner: Any, freed: deque[Any], interface: dict[str, Any] | None = None) -> None:
        self._release = partial(freed.append, owner)
        if interface is not None:
            self.__array_interface__ = interface

    __del__ = calling("_release")


def lease_views(slot: Slot, layout: Layout, freed: deque[Any]) -> list[NDArray[Any]]:
    """Return one array per field in a host slot; `slot` is appended to `freed` when the last view dies.

    Examples
    --------
    >>> from gpuloader.staging.layout import arrange
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
    return [_ndarray(field.shape, field.dtype, region, field.offset) for field in layout.fields]
