"""The slots of one lane in device memory: which are free, and what must end before they are reused."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gpuloader.batches.staged import StagedBatch
from gpuloader.devices.base import Device, DeviceCalls, DeviceMemory, Event, Stream
from gpuloader.errors import LoaderError, Misuse, SampleError, StagingMemoryError
from gpuloader.fields.convert import IF_IMAGES, describe_field
from gpuloader.fields.spec import Array
from gpuloader.staging import GROWTH, SPARE, FieldLayout, Layout, Lease, align, arrange
from gpuloader.system.finalizers import Living


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class DeviceSlot:
    """A region of device memory that holds one batch after another.

        free ──take──▶ being copied into ──lend──▶ leased ──last view dies──▶ freed ──drain──▶ free

    `drain` records `released` behind the user's work, and the next copy waits for that on the device. So a
    user may drop a batch long before the kernels that read it have run.
    """

    device: Device
    memory: DeviceMemory
    ready: Event = None  # recorded behind the program that runs over a batch in the slot
    is_computing: bool = False  # whether that program runs on its own stream, for a batch not delivered yet
    # Where the user computes with the batch: the stream it was delivered to, and those of `record_stream`.
    # Empty while no user has the slot.
    streams: list[Stream] = field(default_factory=list)
    _released: list[Event] = field(default_factory=list)  # one per stream, and at least one
    _waiting: int = 0  # events of the last user that the next copy has to wait for

    def __post_init__(self) -> None:
        self.ready = self.device.event()
        self._released.append(self.device.event())
        with _adding:
            _all.add(self)

    def add_stream(self, stream: Stream) -> None:
        """Note that the user also computes with the batch on another stream; any thread may call it."""
        # A per-thread default stream has the same handle in every thread. If another thread drains, it
        # records on the legacy default stream instead, which waits for the first thread's.
        kept = self.device.keep(stream)
        if kept not in self.streams:
            if len(self._released) == len(self.streams):
                self._released.append(self.device.event())
            # A stream of another GPU is refused here. In a later step, the error would end the epoch.
            if not self.device.captures(kept):
                self.device.record(self._released[len(self.streams)], kept)
            self.streams.append(kept)

    def is_captured(self, device: DeviceCalls, known: Stream) -> bool:
        """Return whether one of its streams, other than `known`, is being captured."""
        # `known` has already been checked in this step, and each check costs the host a CUDA call.
        for stream in self.streams:
            if stream is not known and stream != known and device.captures(stream):
                return True
        return False

    def release(self, device: DeviceCalls) -> None:
        """Mark the end of the user's work on every stream; may be called again if this raises."""
        # Reference counts alone would not suffice: the user may drop a batch long before the kernels that
        # read it have run. The host never waits for these events; the next copy into the slot does.
        for event, stream in zip(self._released, self.streams):  # noqa: B905 - an earlier user had more streams
            device.record(event, stream)
        self._waiting = len(self.streams)
        self.streams = []

    def await_release(self, device: DeviceCalls, stream: Stream) -> None:
        """Make later work on `stream` wait for the last user, and for kernels of undelivered batches."""
        if self.is_computing:
            device.wait(stream, self.ready)
            self.is_computing = False
        if self._waiting:
            for event in self._released[: self._waiting]:
                device.wait(stream, event)
            self._waiting = 0


_all: Living[DeviceSlot] = Living()
_adding = threading.Lock()


def find_slot(array: Any) -> DeviceSlot | None:
    """Return the slot that an array of a batch lies in, or None; any thread may ask."""
    # Only `record_stream` asks, rarely, and there are few slots per lane. So a search suffices; an index
    # would have to follow slots as they grow and disappear.
    with _adding:
        slots = list(_all)
    return next((slot for slot in slots if slot.streams and slot.device.holds(slot.memory, array)), None)


@dataclass(slots=True, eq=False, repr=False)
class DeviceSlots:
    """The device slots of one lane; their number follows the batches that the user holds.

    Only the consumer calls it, from one thread at a time; leases append to `freed` from any thread.

    The memory does not come from CuPy's pool, which gives a freed block to the next copy immediately,
    although kernels may still read it. And ``cudaFree`` waits for the whole device, so nothing is freed while
    an epoch runs.
    """

    device: Device
    free: deque[DeviceSlot] = field(default_factory=deque)
    freed: deque[DeviceSlot] = field(default_factory=deque)  # leases that have ended since the last `drain`
    _is_full: bool = False  # whether the device had no memory for another slot
    _nbytes: int = 0  # of each new slot
    _outgrown: list[DeviceSlot] = field(default_factory=list)  # too small for the batches of this epoch
    _out: int = 0  # slots in use now
    _most: int = 0  # the most in use at once in this epoch
    _most_before: int = 0  # and in the previous one

    def take(self, nbytes: int, least: int) -> DeviceSlot:
        """Return a slot of at least `nbytes`, a new one if none is free or there are fewer than `least`.

        A slot can be written only after the work on its last batch, so with too few, a copy waits for work
        that it could overlap with. Raises `StagingMemoryError` if the device has too little memory.
        """
        if nbytes <= self._nbytes and len(self.free) + self._out < least:
            self.reserve(least, 1)
        slot = self.free.popleft() if self.free else None
        if slot is None or slot.memory.nbytes < nbytes:
            if slot is not None:
                self._outgrown.append(slot)
            # The first size is exact, because most loaders' batches keep it. Growing shows that these do not.
            if nbytes > self._nbytes:
                self._nbytes = int(nbytes * GROWTH) if self._nbytes else nbytes
            try:
                memory = self.device.alloc(self._nbytes)
            except StagingMemoryError:
                if not self._outgrown:  # no slot is free, not even one that is too small
                    raise
                self.free = deque(slot for slot in self.free if slot.memory.nbytes >= self._nbytes)
                self._outgrown.clear()
                slot = None  # too small as well, and the last reference to its memory
                memory = self.device.alloc(self._nbytes)
            slot = DeviceSlot(self.device, memory)
        self._out = out = self._out + 1
        if out > self._most:
            self._most = out
        return slot

    def reserve(self, least: int, most: int) -> None:
        """Add up to `most` free slots of the current size while there are fewer than `least`."""
        for _ in range(min(most, least - len(self.free) - self._out) if self._nbytes else 0):
            if self._is_full:
                return
            try:
                self.free.appendleft(DeviceSlot(self.device, self.device.alloc(self._nbytes)))
            except StagingMemoryError:
                self._is_full = True  # these slots only save time: the epoch continues without them

    def give_back(self, slot: DeviceSlot) -> None:
        """Take back a slot that no user has; the next copy waits for the work in it."""
        self._out -= 1
        self.free.append(slot)

    def drain(self, device: DeviceCalls, stream: Stream) -> None:
        """Take back the slots whose lease has ended; those used on a captured stream follow later.

        `stream` is known not to be captured.
        """
        freed = self.freed
        for _ in range(len(freed)):
            slot = freed[0]
            # An event recorded on a captured stream would become part of the user's graph.
            if slot.streams != [stream] and slot.is_captured(device, stream):
                freed.rotate(-1)
                continue
            slot.release(device)  # if this raises, the slot stays for the next attempt
            self.give_back(freed.popleft())

    def trim(self, in_flight: int) -> None:
        """Free what neither this epoch nor the last one used; `in_flight` batches are in progress."""
        self._outgrown.clear()
        # What the last two epochs used at the same time is kept, so loops that alternate between holding many
        # batches and few allocate nothing. The number in flight depends on the reader's speed, so the most in
        # use varies by that number.
        kept = max(self._most, self._most_before, SPARE) + in_flight
        while self.free and len(self.free) + self._out > kept:
            self.free.pop()
        self._most_before, self._most = self._most, self._out


# Delivering every batch of a loader into the same memory, so that a CUDA graph can be replayed over it.


class StaticSlot:
    """The memory on one place in which a loader delivers all its batches, one after another.

    The first batch determines its size and where each field lies. It is never moved and never shared, so it
    outlasts the epochs: a graph that was captured over one batch computes with whichever batch is there.

    Only the consumer calls it, from one thread at a time; leases end in any thread.
    """

    def __init__(self, device: Device) -> None:
        self.epoch: weakref.ref[Any] | None = None  # the latest `Epoch` that delivers here
        self._device = device
        # The layout of the latest batch; None before the first, for which the memory is allocated.
        self._known: Layout | None = None
        # The leases of all batches are counted, so a batch that is alive two requests later is an error
        # instead of an array that has silently changed.
        self._freed: deque[tuple[int, DeviceSlot]] = deque()
        self._held: dict[int, int] = {}  # the number in its epoch of each delivered batch that is alive
        self._latest = 0

    def refuse_another(self) -> None:
        """Raise `Misuse` if an epoch is running: another one would overwrite its batches."""
        for _ in range(2):
            epoch = None if self.epoch is None else self.epoch()
            if epoch is None or not epoch.is_running:
                return
            del epoch
            gc.collect()  # it may be garbage that is not collected yet
        raise Misuse(
            "another loop over this loader is running, and with static=True both would deliver in the "
            "same memory: end that loop first (close or drop its iterator), or make another loader"
        )

    def find_held(self) -> LoaderError | None:
        """Return the error for a request while the user holds a batch before the latest, or None.

        The latest may be held: a loop's variable does so until the next batch is there.
        """
        for attempt in range(2):
            while self._freed:
                self._held.pop(self._freed.popleft()[0], None)
            stale = next((self._held[serial] for serial in self._held if serial != self._latest), None)
            if stale is None:
                return None
            if not attempt:
                gc.collect()  # perhaps only garbage holds it
        return Misuse(
            f"batch {stale} is still held, but its memory holds a later batch now: with static=True all "
            "batches lie in the same memory; drop it before you ask for the second batch after it, and keep "
            "copies of what you need longer (array.copy(), tensor.clone())"
        )

    def is_captured(self, device: DeviceCalls, known: Stream) -> bool:
        """Return whether a stream other than `known`, on which the latest batch is used, is captured."""
        return self._known is not None and self._slot.is_captured(device, known)

    def fit(self, staged: StagedBatch, mask: Array | None = None) -> tuple[DeviceMemory, Layout]:
        """Return the memory, allocated for the first batch, and where a batch's fields and mask lie in it.

        Raises `SampleError` if the batch has other shapes or dtypes than the first one.
        """
        layout = staged.layout
        if self._known is None:
            # On a device, other memory may lie between the fields. With strides, a batch is on the host.
            specs = tuple((one.shape, one.dtype) for one in layout.fields)
            self._layout = layout if any(one.strides for one in layout.fields) else arrange(specs)
            self._mask_at = align(self._layout.nbytes)
            # A later epoch may deliver masks, with one byte for each sample.
            longest = max((field.shape[0] for field in layout.fields if field.shape), default=0)
            self._slot = DeviceSlot(self._device, self._device.alloc(self._mask_at + longest))
        elif layout is not self._known:
            self._check(staged)
        self._known = layout  # equal batches share one layout, so for most this is one comparison
        if mask is None:
            return self._slot.memory, self._layout
        fields = (*self._layout.fields, FieldLayout(self._mask_at, mask.shape, mask.dtype))
        return self._slot.memory, Layout(fields, self._mask_at + mask.nbytes)

    def _check(self, staged: StagedBatch) -> None:
        fields = staged.layout.fields
        named = zip(staged.tree.array_names, staged.levels, strict=False)
        # A field of sequences has several arrays.
        names = [name for name, level in named for _ in range(1 + level)] or [*map(str, range(len(fields)))]
        if len(fields) != len(self._layout.fields):
            raise _unlike(staged, f"{len(self._layout.fields)} arrays", f"{len(fields)} arrays")
        for number, (first, later) in enumerate(zip(self._layout.fields, fields, strict=True)):
            if (first.shape, first.dtype) != (later.shape, later.dtype):
                expected, got = (describe_field(one.shape, one.dtype) for one in (first, later))
                raise _unlike(staged, expected, got, names[number])

    def take_over(self, device: DeviceCalls, stream: Stream) -> None:
        """Make later work on `stream` wait for all use of the latest batch, on whichever stream."""
        if self._slot.streams != [stream]:  # on the same stream, its own order suffices
            self._slot.release(device)
            self._slot.await_release(device, stream)

    def follow(self, device: DeviceCalls, stream: Stream) -> None:
        """Order the latest batch, not yet received by the user, before the user's current stream."""
        self.take_over(device, stream)
        self._slot.streams = [device.keep(stream)]

    def lend(self, number: int, stream: Stream) -> Lease:
        """Return a lease of batch `number` to a user who computes on `stream`, which the device keeps."""
        self._slot.streams = [stream]
        self._latest += 1
        self._held[self._latest] = number
        return Lease((self._latest, self._slot), self._freed)


def find_moves(source: Layout, target: Layout) -> list[tuple[int, int, int]]:
    """Return the copies that move all fields: for each its bytes, and where they lie in target and source.

    Fields that lie at the same distance from one another in both are moved by one copy.

    >>> import numpy as np
    >>> before = arrange((((3,), np.dtype("uint8")), ((4,), np.dtype("int32")), ((9,), np.dtype("int8"))))
    >>> find_moves(before, before)
    [(521, 0, 0)]
    >>> after = arrange((((4,), np.dtype("int32")), ((9,), np.dtype("int8"))))
    >>> find_moves(Layout(before.fields[1:], before.nbytes), after)
    [(265, 0, 256)]
    """
    moves: list[tuple[int, int, int]] = []
    for one, other in zip(source.fields, target.fields, strict=True):
        nbytes = math.prod(one.shape) * one.dtype.itemsize
        if moves:  # each copy costs the host a call, whatever its size
            moved, to, at = moves[-1]
            if one.offset - at == other.offset - to >= moved:
                moves[-1] = (one.offset - at + nbytes, to, at)
                continue
        moves.append((nbytes, other.offset, one.offset))
    return moves


def _unlike(staged: StagedBatch, expected: str, got: str, field: str | None = None) -> SampleError:
    return SampleError(
        f"expected {expected} as in the loader's first batch, got {got}; with static=True all batches must "
        "have one shape: choose drop_last=True for a last batch that is not full, and pad fields of varying "
        f"length to a fixed one, e.g. with the transform Pad; for images, {IF_IMAGES}",
        batch=staged.number,
        field=field,
    )
