"""The slots of one loader: which are free, which are leased, and when the user's batch must be a copy."""

from __future__ import annotations

import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.errors import QueueClosed
from gpuloader.staging.arena import Arena, PageLocker
from gpuloader.staging.layout import Layout, align

GROWTH = 1.25
"""A slot that must grow takes this much more than it needs, so slowly longer batches rarely grow it again."""


class Slot:
    """One contiguous host region that a batch is written into.

    Attributes
    ----------
    bytes : numpy.ndarray
        The region, uint8.
    address : int
        Where it starts.
    nbytes : int
        Its size.
    interface : dict
        The region in NumPy's array interface, made once: a lease hands it out.
    memory : object
        What keeps the region mapped.
    in_ring : bool
        False for a private copy, which no ring takes back.
    """

    __slots__ = ("_layout", "_views", "address", "bytes", "in_ring", "interface", "memory", "nbytes")

    def __init__(self, region: NDArray[np.uint8], memory: object, *, in_ring: bool = True) -> None:
        self.in_ring = in_ring
        self.replace(region, memory)

    def replace(self, region: NDArray[np.uint8], memory: object) -> None:
        """Lie in another region from now on; only a slot that no lease refers to may move."""
        self.bytes = region
        self.nbytes = region.size
        self.memory = memory
        self.interface: dict[str, Any] = region.__array_interface__
        self.address: int = self.interface["data"][0]
        self._layout: Layout | None = None
        self._views: list[NDArray[Any]] = []

    def views(self, layout: Layout) -> list[NDArray[Any]]:
        """Return one array a field to write a batch of this layout into; they hold no lease."""
        if layout is not self._layout:
            self._views = [
                np.ndarray(field.shape, field.dtype, self.bytes, field.offset) for field in layout.fields
            ]
            self._layout = layout
        return self._views


class Ring:
    """A fixed number of slots that go round: free, filled, leased, free.

    ``free + with the fetcher, in the queue or under copy + leased = count``, and `lend` keeps
    ``leased <= spare``. So ``count - spare`` slots always move, whatever the user keeps: the fetcher never
    waits for the user, only for the consumer's next step.

    `acquire` and `fit` are the fetchers', from any thread, and `acquire` may wait; everything else is the
    consumer's, from one thread at a time, except `freed`, to which a lease's finalizer appends from any
    thread, even inside a lock.

    Parameters
    ----------
    count : int
        How many slots.
    spare : int
        How many of them the user may hold at once; batches beyond that are delivered as private copies.
    locker : PageLocker or None
        Page-locks the memory for a device.
    shared : bool
        Whether worker processes map the memory and write into it.

    Attributes
    ----------
    allocated : bool
        Whether the memory is reserved: from the first `acquire` on.
    slot_nbytes : int
        What each slot was reserved with, 0 before; single ones may have grown since.
    """

    def __init__(
        self, count: int, spare: int, locker: PageLocker | None = None, *, shared: bool = False
    ) -> None:
        self.count = count
        self.allocated = False
        self.slot_nbytes = 0
        self.freed: deque[Slot] = deque()
        self.leased = 0
        self._spare = spare
        self._locker = locker
        self._shared = shared
        self._allocating = threading.Lock()
        # The slot freed last is taken first: it is still in the processor's cache. One credit a free slot
        # stands in a C queue, which waits without a Python-level lock; False there means closed.
        self._free: deque[Slot] = deque()
        self._credits: SimpleQueue[bool] = SimpleQueue()

    def acquire(self, nbytes: int) -> Slot:
        """Take a free slot of at least `nbytes`, waiting until there is one.

        The first call reserves the memory of all slots at that size; a slot too small for a later batch
        grows by itself.

        Raises
        ------
        QueueClosed
            The consumer has gone.
        StagingMemoryError
            The memory is not there.
        """
        if not self.allocated:
            self._reserve(max(nbytes, 1))
        if not self._credits.get():
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
        """Take a free slot of whatever size, or return None at once where none is free or reserved yet."""
        try:
            credit = self._credits.get_nowait()
        except Empty:
            return None
        if not credit:
            self._credits.put(False)
            return None
        return self._free.pop()

    def fit(self, slot: Slot, nbytes: int) -> None:
        """Give a slot that nobody reads memory of at least `nbytes`, if it has less."""
        if nbytes > slot.nbytes:
            arena = Arena(align(int(nbytes * GROWTH)), self._locker, shared=self._shared)
            slot.replace(arena.bytes, arena)

    def _return(self, slot: Slot) -> None:
        self._free.append(slot)
        self._credits.put(True)

    def _reserve(self, nbytes: int) -> None:
        with self._allocating:  # several threads may come with the first batches
            if self.allocated:
                return
            self.slot_nbytes = align(nbytes)
            self._add(self.count, self.slot_nbytes)
            self.allocated = True

    def _add(self, count: int, size: int) -> None:
        arena = Arena(size * count, self._locker, shared=self._shared)
        for start in range(0, arena.nbytes, size):
            self._return(Slot(arena.bytes[start : start + size], arena))

    def grow(self, more: int) -> None:
        """Go round with so many slots more, of the size of the first ones; the consumer's.

        Raises
        ------
        StagingMemoryError
            The memory is not there.
        """
        with self._allocating:
            if self.allocated:
                self._add(more, self.slot_nbytes)
            self.count += more

    def release(self, slot: Slot) -> None:
        """Give a slot back that no lease refers to."""
        if slot.in_ring:
            self._return(slot)

    def lend(self, slot: Slot, layout: Layout) -> Slot:
        """Return the slot the user may hold: `slot` itself, or a private copy where too many are held."""
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
        """How many slots are free now."""
        return len(self._free)

    def interrupt(self) -> None:
        """Make every waiting and later `acquire` raise `QueueClosed`, until `rearm`."""
        self._credits.put(False)

    def rearm(self) -> bool:
        """Undo `interrupt`, once nobody waits in `acquire`; return whether all slots are there and usable."""
        for credit in [self._credits.get() for _ in range(self._credits.qsize())]:
            if credit:
                self._credits.put(credit)
        if any(isinstance(slot.memory, Arena) and slot.memory.closed for slot in self._free):
            return False  # we are garbage, and our memory was finalized before us
        return not self.allocated or self.free + self.leased == self.count
