"""The slots of one lane in device memory: which are free, and what must end before they are used again."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from gpuloader.base.errors import StagingMemoryError
from gpuloader.base.living import Living
from gpuloader.devices.base import Device, DeviceCalls, DeviceMemory, Event, Stream
from gpuloader.staging.lease import Lease
from gpuloader.staging.ring import GROWTH

SPARE = 2
"""Batches that the user usually holds per place: the current one, and the next one while asking for it."""


class DeviceSlot:
    """A region of device memory that holds one batch after another.

    Attributes
    ----------
    device : Device
        The device of the memory.
    memory : DeviceMemory
        The region.
    ready : Event
        Recorded on the copy stream after the program that runs over a batch in the slot, if there is one.
    streams : list of Stream
        The streams on which the user computes with the batch: the one it was delivered to, and those of
        `record_stream`. Empty while no user has the slot.
    """

    __slots__ = ("__weakref__", "_released", "_waiting", "device", "memory", "ready", "streams")

    def __init__(self, device: Device, memory: DeviceMemory) -> None:
        self.device, self.memory, self.ready = device, memory, device.event()
        self.streams: list[Stream] = []
        self._released: list[Event] = [device.event()]  # one per stream
        self._waiting = 0  # events of the last user that the next copy has to wait for

    def add_stream(self, stream: Stream) -> None:
        """Note that the user computes with the batch on another stream, too; any thread may call it."""
        kept = self.device.keep(stream)
        if kept not in self.streams:
            if len(self._released) == len(self.streams):
                self._released.append(self.device.event())
            self.streams.append(kept)

    def is_captured(self, device: DeviceCalls, known: Stream) -> bool:
        """Return whether one of its streams, other than `known`, is being captured."""
        for stream in self.streams:
            if stream is not known and stream != known and device.captures(stream):
                return True
        return False

    def release(self, device: DeviceCalls) -> None:
        """Mark the end of the user's work on every stream; if this raises, it may be called again."""
        for event, stream in zip(self._released, self.streams):  # noqa: B905 - an earlier user had more streams
            device.record(event, stream)
        self._waiting = len(self.streams)
        self.streams = []

    def await_release(self, device: DeviceCalls, stream: Stream) -> None:
        """Make later work on `stream` wait for the last user's."""
        if self._waiting:
            for event in self._released[: self._waiting]:
                device.wait(stream, event)
            self._waiting = 0


_all: Living[DeviceSlot] = Living()
_adding = threading.Lock()


def make_slot(device: Device, memory: DeviceMemory) -> DeviceSlot:
    """Return a slot over device memory, which `find_slot` finds as long as it exists."""
    slot = DeviceSlot(device, memory)
    with _adding:
        _all.add(slot)
    return slot


def find_slot(array: Any) -> DeviceSlot | None:
    """Return the slot that an array of a batch lies in, or None; any thread may ask."""
    with _adding:
        slots = list(_all)
    return next((slot for slot in slots if slot.streams and slot.device.holds(slot.memory, array)), None)


class DeviceSlots:
    """The device slots of one lane; their number follows the batches that the user holds.

    Only the consumer calls it, from one thread at a time. Freeing memory waits for the whole device, so
    nothing is freed while an epoch runs.

    Parameters
    ----------
    device : Device
        Where the slots lie.
    least : int
        As the attribute.

    Attributes
    ----------
    least : int
        Slots to allocate before one is used again. A slot can be written only after the work on its last
        batch, so with too few, a copy waits for work that it could overlap with. 0 once the device is full.
    free, freed : deque of DeviceSlot
        The slots that can be used now, and those whose lease has ended since the last `drain`; leases append
        to the latter from any thread.
    """

    def __init__(self, device: Device, least: int = 1) -> None:
        self.free: deque[DeviceSlot] = deque()
        self.freed: deque[DeviceSlot] = deque()
        self._device = device
        self.least = least
        self._nbytes = 0  # of each new slot
        self._outgrown: list[DeviceSlot] = []  # too small for the batches of this epoch
        self._out = 0  # slots in use now
        self._most = self._most_before = 0  # in use at once, at most, in this epoch and in the one before

    def take(self, nbytes: int) -> DeviceSlot:
        """Return a slot of at least `nbytes`, a new one if none is free.

        Raises
        ------
        StagingMemoryError
            The device has too little memory.
        """
        slot = self._add_early(nbytes) if len(self.free) + self._out < self.least else None
        if slot is None and self.free:
            slot = self.free.popleft()
        if slot is None or slot.memory.nbytes < nbytes:
            if slot is not None:
                self._outgrown.append(slot)
            if nbytes > self._nbytes:
                self._nbytes = int(nbytes * GROWTH) if self._nbytes else nbytes
            slot = make_slot(self._device, self._alloc(self._nbytes))
        self._out += 1
        if self._out > self._most:
            self._most = self._out
        return slot

    def _add_early(self, nbytes: int) -> DeviceSlot | None:
        """Return a new slot although one may be free, if the device has room for it."""
        if nbytes > self._nbytes:
            return None
        try:
            return make_slot(self._device, self._device.alloc(self._nbytes))
        except StagingMemoryError:
            self.least = 0
            return None

    def reserve(self) -> None:
        """Allocate the slots that later batches of the present size will take."""
        while self._nbytes and len(self.free) + self._out < self.least:
            slot = self._add_early(self._nbytes)
            if slot is not None:
                self.free.append(slot)

    def _alloc(self, nbytes: int) -> DeviceMemory:
        try:
            return self._device.alloc(nbytes)
        except StagingMemoryError:
            if not self._outgrown:  # then no slot is free, not even one that is too small
                raise
            self.free = deque(slot for slot in self.free if slot.memory.nbytes >= nbytes)
            self._outgrown.clear()
            return self._device.alloc(nbytes)

    def give_back_used(self, slot: DeviceSlot, device: DeviceCalls, stream: Stream) -> None:
        """Take back a slot that work on `stream` still reads, after which the next copy into it runs."""
        slot.streams = [stream]
        slot.release(device)
        self.give_back(slot)

    def lend(self, slot: DeviceSlot, stream: Stream) -> Lease:
        """Return a lease of the slot to a user who computes on `stream`, which the device keeps."""
        slot.streams = [stream]
        return Lease(slot, self.freed)

    def give_back(self, slot: DeviceSlot) -> None:
        """Take back a slot that no user has; what runs in it lies on the copy stream."""
        self._out -= 1
        self.free.append(slot)

    def drain(self, device: DeviceCalls, stream: Stream) -> None:
        """Take back the slots whose lease has ended; those used on a stream that is captured come later.

        `stream` is known not to be captured.
        """
        freed = self.freed
        for _ in range(len(freed)):
            slot = freed[0]
            if slot.streams != [stream] and slot.is_captured(device, stream):
                freed.rotate(-1)
                continue
            slot.release(device)  # if this raises, the slot stays for the next try
            freed.popleft()
            self.give_back(slot)

    def trim(self, in_flight: int) -> None:
        """Free what neither this epoch nor the last one used; `in_flight` batches were copied at a time."""
        self._outgrown.clear()
        # How many are in flight depends on the reader's speed, so the most in use varies by that number.
        kept = max(self._most, self._most_before, SPARE) + in_flight
        while self.free and len(self.free) + self._out > kept:
            self.free.pop()
        self._most_before, self._most = self._most, self._out
