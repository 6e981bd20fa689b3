"""What a reading thread and its consumer share: staged batches, whose turn it is, and who waits for whom."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator
from queue import Empty, SimpleQueue
from time import perf_counter_ns

from gpuloader.base.errors import QueueClosed
from gpuloader.collate.stream import StagedBatch
from gpuloader.staging.ring import Ring
from gpuloader.watch.pace import PAYS, Pace

_BURST = 2 << 20  # bytes of short batches that are read for one hand-over, so that they stay in the caches
_PATIENCE = 1_000_000  # nanoseconds that the consumer waits for several short batches instead of one
_IDLE = 1e-3  # seconds without a question from the consumer, after which the thread reads beside its step


class Relay:
    """What the consumer and its reading thread share; it does not refer to the loader, which may be dropped.

    Whoever holds `turn` reads. The other fields change under `mutex`, except that the ends of `items` and the
    flags may be looked at without it: a look that is out of date costs a wake-up or a second look.
    """

    def __init__(self, batches: Iterator[StagedBatch], ring: Ring, capacity: int, pace: Pace) -> None:
        self.batches = batches
        self.ring = ring
        self.capacity = capacity
        self.pace = pace
        self.items: deque[StagedBatch] = deque()
        self.turn = threading.Lock()
        self.mutex = threading.Lock()
        self.ending: BaseException | None = None
        self.closed = self.paused = False
        self.alternates = not pace.beside
        self.consumer_waits = self.reader_waits = False
        self.waiting_since = 0
        self.ready: SimpleQueue[None] = SimpleQueue()  # a permit for the consumer, another for the reader
        self.room: SimpleQueue[None] = SimpleQueue()

    def has_news(self) -> bool:
        """Whether the consumer need not wait."""
        return bool(self.items) or self.ending is not None

    @property
    def room_for(self) -> int:
        """The number of batches to read ahead."""
        return self.capacity + self.ring.stretched

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another batch."""
        return len(self.items) >= self.room_for

    @property
    def must_wait(self) -> bool:
        """Whether the reader has to wait."""
        return self.is_full or self.paused or (self.alternates and not self.consumer_waits)

    @property
    def is_burst(self) -> bool:
        """Whether enough short batches have been read for the consumer to be woken."""
        count = len(self.items)
        return count >= self.room_for or (self.alternates and count * self.ring.slot_nbytes >= _BURST)

    def read(self) -> bool:
        """Read one batch in the reading thread, which holds `turn`; return False at the end."""
        changes, begun, reserved_in = self.pace.changes, perf_counter_ns(), self.ring.reserved_in
        try:
            staged = next(self.batches)
        except StopIteration:
            self.ending = QueueClosed("the reader has no more batches")
            return False
        except BaseException as error:
            self.ending = error
            return False
        ended = perf_counter_ns()
        self.items.append(staged)
        self.pace.note_read(ended - begun - (self.ring.reserved_in - reserved_in), changes)
        self.alternates = not self.pace.beside
        # While the consumer waits for short batches, several are read for one wake-up. Without a free slot,
        # the next read might wait for the consumer.
        if self.consumer_waits and (
            (ended - begun >= PAYS and not self.alternates)
            or ended - self.waiting_since >= _PATIENCE
            or self.is_burst
            or not self.ring.free
        ):
            self.wake_consumer()
        return True

    def wake_consumer(self) -> None:
        """Give the consumer a permit, if it waits for news."""
        with self.mutex:
            waits, self.consumer_waits = self.consumer_waits, False
        if waits:
            self.ready.put(None)

    def wake_reader(self) -> None:
        """Give the reader a permit, if it waits."""
        with self.mutex:
            waits, self.reader_waits = self.reader_waits, False
        if waits:
            self.room.put(None)

    def wait_for_news(self) -> None:
        """Wait until a batch or the end has arrived, and let the reader read meanwhile."""
        with self.mutex:
            if self.has_news():
                return
            self.waiting_since = perf_counter_ns()
            self.consumer_waits = True
            reader_waits, self.reader_waits = self.reader_waits, False
        if reader_waits:
            self.room.put(None)
        try:
            self.ready.get(timeout=_PATIENCE * 1e-9)
            return
        except Empty:
            pass
        # The batch after a short one may be a long one, so the wait ends here if a batch has arrived.
        with self.mutex:
            if self.consumer_waits and self.has_news():
                self.consumer_waits = False
                return
        self.ready.get()

    def wait_for_room(self) -> None:
        """Wait, in the reading thread, until it may read again."""
        with self.mutex:
            if self.closed or not self.must_wait:
                return
            self.reader_waits = True
        self.wake_consumer()
        if self.paused or self.pace.trying or not self.alternates:
            self.room.get()
        else:
            self.wait_for_a_long_step()

    def wait_for_a_long_step(self) -> None:
        """Wait until the consumer waits for a batch, or has long not asked for one."""
        count = len(self.items)
        while True:
            try:
                self.room.get(timeout=20 * _IDLE if self.is_full else _IDLE)
                return
            except Empty:
                before, count = count, len(self.items)
            if count == before and not self.is_full:
                break
        with self.mutex:
            is_called, self.reader_waits = not self.reader_waits, False
        if is_called:
            self.room.get()
        else:
            self.pace.mixed = True

    def drop(self) -> None:
        """Close the source and return all slots; called with `turn`, by the last one to read."""
        try:
            if isinstance(self.batches, Generator):
                self.batches.close()
        except BaseException as error:
            self.ending = self.ending or error
        while self.items:
            self.ring.release(self.items.popleft().slot)


def run(relay: Relay) -> None:
    """Read until the end, or until the consumer closes: the main function of the reading thread."""
    while True:
        with relay.turn:
            if relay.closed or relay.ending is not None or not (relay.is_full or relay.read()):
                break
        if relay.must_wait:
            relay.wait_for_room()
    with relay.turn:
        if relay.closed:
            relay.drop()
    relay.wake_consumer()
