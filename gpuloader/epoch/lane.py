"""A lane: the part of the pipeline that takes staged batches to one place and hands them to the user."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.batches.stream import StagedBatch
from gpuloader.devices.base import Device, DeviceCalls, DeviceMemory, Event, Stream
from gpuloader.devices.outputs import NativeOutput, Output, find_capture
from gpuloader.epoch.device_slots import SPARE, DeviceSlot, DeviceSlots, StaticSlot, find_moves
from gpuloader.errors import LoaderError
from gpuloader.fields.spec import Array
from gpuloader.staging.arena import Arena, PageLocker
from gpuloader.staging.layout import FieldLayout, Layout, align
from gpuloader.staging.ring import Ring, lease_views
from gpuloader.transforms.program import Program
from gpuloader.transforms.programmer import Programmer
from gpuloader.watch.stats import Meter
from gpuloader.watch.tracing import COPIES, is_tracing, mark

if TYPE_CHECKING:
    from gpuloader.epoch.image_decoding import BatchDecoder, Decoded


# The masks of batches that may end in repeated samples: True for samples that count, False for padding.


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of one batch in host memory, for a place's device to copy; nobody writes to it.

    Attributes
    ----------
    array : numpy.ndarray
        The mask, bool, read-only.
    bytes : numpy.ndarray
        The same memory as uint8.
    address : int
        The start address of that memory.
    memory : object
        The object that keeps the memory mapped.
    """

    array: Array
    bytes: NDArray[np.uint8]
    address: int
    memory: object


class Masks:
    """The masks of one loader's batches, all of them windows of one stretch of host memory.

    The memory holds as many True as False, so each mask is the window around the border between them. Devices
    copy from it, so it is page-locked; it grows with the largest batch.

    Only the consumer calls it, from one thread at a time.

    Parameters
    ----------
    locker : PageLocker or None
        The device that page-locks the memory; None if no device copies from it.

    Examples
    --------
    >>> masks = Masks()
    >>> masks.get(2, 3).array, masks.get(0, 1).array
    (array([ True,  True, False]), array([False]))
    """

    def __init__(self, locker: PageLocker | None = None) -> None:
        self._locker = locker
        self._longest = 0
        self._arena: Arena | None = None

    def get(self, own: int, size: int) -> Mask:
        """Return the mask of a batch of `size` samples whose first `own` are not padding."""
        if self._arena is None or size > self._longest:
            self._longest = max(size, 2 * self._longest, 1)
            self._arena = Arena(2 * self._longest, self._locker)
            self._arena.bytes[: self._longest], self._arena.bytes[self._longest :] = 1, 0
        start = self._longest - own
        window = self._arena.bytes[start : start + size]
        array = window.view(bool)
        array.flags.writeable = False  # because later batches share the memory
        return Mask(array, window, self._arena.address + start, self._arena)


# The duration of copies on the copy stream, measured with events, because the host does not see it.

EVERY = 32
"""One copy in this many is timed, once as many have been, so that timing costs next to nothing per batch."""


class Timing:
    """One timed copy.

    Attributes
    ----------
    begun, done : Event
        Recorded before and behind it.
    weight : int
        The copies for which its duration counts.
    traced : bool
        Whether a trace shows it.
    """

    __slots__ = ("begun", "done", "traced", "weight")

    def __init__(self, begun: Event, done: Event, weight: int, traced: bool) -> None:
        self.begun, self.done, self.weight, self.traced = begun, done, weight, traced


class CopyTimer:
    """Times the copies of one copy stream: all of them while a trace runs, and ever fewer without one.

    The event behind a timed copy also tells when its host slot is free. So its owner asks for it, and the
    timer asks for nothing.

    Only the consumer calls it, from one thread at a time.

    Parameters
    ----------
    device : Device
        The device that is copied to.
    stream : Stream
        Its copy stream.
    meter : Meter
        Adds up the time; without a trace, each timed copy counts for those since the last one, too.
    """

    def __init__(self, device: Device, stream: Stream, meter: Meter) -> None:
        self._device = device
        self._stream = stream
        self._meter = meter
        self._row = device.name + COPIES
        self._untimed = 0
        self._gap = 1
        self._anchor: tuple[Event, int] | None = None
        self._spare: list[Event] = []

    def begin(self, device: DeviceCalls) -> Timing | None:
        """Record the start of the next copy, and return its timing, if it is timed."""
        self._untimed += 1
        if is_tracing():
            if self._anchor is None:
                self._set_anchor()
        else:
            self._anchor = None
            if self._untimed < self._gap:
                return None
            self._gap = min(2 * self._gap, EVERY)
        weight, self._untimed = self._untimed, 0
        timing = Timing(self._event(), self._event(), weight, self._anchor is not None)
        device.record(timing.begun, self._stream)
        return timing

    def count(self, timing: Timing, device: DeviceCalls) -> None:
        """Count a timed copy whose last event has been reached."""
        seconds = device.elapsed(timing.begun, timing.done)
        self._meter.copy += int(seconds * 1e9) * timing.weight
        if timing.traced and self._anchor is not None:
            event, time = self._anchor
            start = time + int(device.elapsed(event, timing.begun) * 1e9)
            mark("copy", start, start + int(seconds * 1e9), self._row)
        self._spare += timing.begun, timing.done

    def _event(self) -> Event:
        return self._spare.pop() if self._spare else self._device.event(timed=True)

    def _set_anchor(self) -> None:
        """Relate an event on the copy stream to the host's clock; waits for the copies in progress."""
        event = self._device.event(timed=True)
        self._device.record(event, self._stream)
        self._device.synchronize(event)
        self._anchor = event, perf_counter_ns()


@dataclass(slots=True)
class InFlightBatch:
    """A batch on its way to the user.

    Attributes
    ----------
    staged : StagedBatch
        The staged batch.
    slot : DeviceSlot or None
        Its device slot; None on a direct device.
    mask : Mask or None
        The mask that the user gets with it.
    mask_at : int
        The mask's offset in the device slot, behind all fields.
    ready : Event or None
        The event after which the batch can be used; None once the host knows that it is reached.
    arrays : list of array or None
        What the user gets, once it has been delivered.
    decoded : sequence of Decoded
        The pictures that are copied into the slot, until the host knows that the copies have run.
    """

    staged: StagedBatch
    slot: DeviceSlot | None
    mask: Mask | None = None
    mask_at: int = 0
    ready: Event = None
    arrays: list[Any] | None = None
    decoded: Sequence[Decoded] = ()

    def find_layout(self) -> Layout:
        """Return the layout of the arrays to deliver: the batch's fields, and its mask if it has one."""
        layout = self.staged.layout
        if self.mask is None:
            return layout
        mask = FieldLayout(self.mask_at, self.mask.array.shape, self.mask.array.dtype)
        return Layout((*layout.fields, mask), self.mask_at + self.mask.bytes.size, layout.turned)


class Lane:
    """Takes staged batches to one place: issues copies, hands out leases, and reclaims released slots.

    Only the consumer calls it, from one thread at a time. Nothing here waits for the user to release a batch.
    If the user holds all device slots, the lane allocates a new one. If the user holds too many host slots,
    it copies the batch.

    Parameters
    ----------
    device : Device
        The place's device.
    ring : Ring
        The source of the staged slots, to which they return.
    prefetch : int
        Batches copied ahead of the consumer; 0 on a direct device.
    meter : Meter
        Counts how long copies take.
    output : Output or None
        The framework whose arrays the user gets, and the stream on which the user computes; None for the
        device's own.
    programmer : Programmer or None
        Builds the programs that transform batches on the device after their copy. It may be replaced between
        epochs.
    static : StaticSlot or None
        Where all batches are delivered; None delivers each batch in a slot of its own.
    urgent : bool
        Whether kernels on the copy stream go ahead of those on streams of normal priority.

    Attributes
    ----------
    runs_only_ours : bool
        Whether nothing of the user's runs between `begin` and `issue`, not even to fetch a batch.
    """

    def __init__(
        self,
        device: Device,
        ring: Ring,
        prefetch: int,
        meter: Meter,
        output: Output | None = None,
        programmer: Programmer | None = None,
        static: StaticSlot | None = None,
        urgent: bool = False,
    ) -> None:
        self.device = device
        self.static = static
        self.programmer = None if device.direct else programmer
        self.runs_only_ours = False
        self._output = output or NativeOutput(device)
        self._convert = None if output is None else output.convert
        self._ring = ring
        self._slots = DeviceSlots(device)
        self.prefetch = prefetch
        # Each copy has an event of its own, directly behind it. A slot's `ready` lies behind kernels, which
        # the host slot need not wait for, and is recorded anew while the host may still ask about the last.
        self._copying: deque[tuple[Event, InFlightBatch, Timing | None]] = deque()
        self._spare: list[Event] = []
        self._is_late = False
        self._stream: Stream = None
        self._begun: DeviceCalls | None = None  # in this `next`, and not since a batch was issued
        self._copy_stream = None if device.direct else device.stream(urgent=urgent)
        self._timer = CopyTimer(device, self._copy_stream, meter)
        self._meter = meter
        self._urgent = urgent
        self._decoder: BatchDecoder | None = None

    @property
    def prefetch(self) -> int:
        """The batches copied ahead of the consumer."""
        return self._prefetch

    @prefetch.setter
    def prefetch(self, prefetch: int) -> None:
        self._prefetch = prefetch
        # One slot for the batch in use, one for each copied ahead, and one whose last use has not ended yet.
        # Batches that are moved to fixed addresses leave theirs at once.
        self._slots.least = prefetch + (1 if self.static is not None else 2)

    def find_capture(self) -> LoaderError | None:
        """Return the error for a batch that is requested while this thread captures a graph, or None.

        The consumer's stream that it asks about is the one of the next `drain` and `deliver`.
        """
        if self.device.direct:
            return None
        self._stream = self._output.stream()
        with self.device.current() as device:
            return self._find_capture(device, self._stream)

    def _find_capture(self, device: DeviceCalls, stream: Stream) -> LoaderError | None:
        error = find_capture(device, stream)
        if error is None and self.static is not None:
            return self.static.find_capture(device, stream)
        return error

    def begin(
        self, take: Callable[[], InFlightBatch | None]
    ) -> tuple[LoaderError | None, InFlightBatch | None]:
        """Look for a capture as `find_capture`; if there is none, drain, and deliver a batch at once.

        All that happens in one block of the device, so it must be the only lane of its pipeline.

        Parameters
        ----------
        take : callable
            Returns the batch to deliver, if there is one in flight; called only when it will be delivered.

        Returns
        -------
        tuple of (LoaderError or None, Landing or None)
            The error for a batch requested during a capture, and the batch that was delivered.
        """
        self._stream = stream = self._output.stream()
        with self.device.current() as device:
            error = self._find_capture(device, stream)
            if error is not None:
                return error, None
            self._drain(device, self._prefetch + self._ring.stretched // 2)
            landing = take()
            if landing is not None:
                landing.arrays = self._deliver(device, landing)
            self._begun = device
            return None, landing

    def follow(self, landing: InFlightBatch) -> None:
        """Order a delivered batch, which the user has not got yet, before the user's present stream, too."""
        stream = self._take_stream()
        assert landing.slot is not None
        with self.device.current() as device:
            if self.static is not None:
                self.static.follow(device, stream)
                return
            if landing.ready is not None:
                device.wait(stream, landing.ready)
        landing.slot.add_stream(stream)

    def compute(self, program: Program, memory: DeviceMemory) -> None:
        """Run a program on the copy stream over other memory, after earlier batches and before later ones."""
        self.device.run(program, memory, self._copy_stream)

    def issue(self, staged: StagedBatch, mask: Mask | None = None) -> InFlightBatch:
        """Issue the copy of a staged batch on the copy stream; its host slot returns after the copy.

        A mask is copied into the batch's own slot, so each batch has its own, ordered like its fields.
        """
        if self.device.direct:
            return InFlightBatch(staged, None, mask)
        begun, self._begun = self._begun, None
        try:
            program = None if self.programmer is None else self._program(staged)
            decoded: Sequence[Decoded] = ()
            if program is not None and program.decodings:
                decoded = self._decode(staged, program)
                program = self._program(staged)
            nbytes = staged.layout.nbytes if program is None else program.room.nbytes
            mask_at = 0 if mask is None else align(nbytes)
            slot = self._slots.take(nbytes if mask is None else mask_at + mask.bytes.size)
        except BaseException:
            self._ring.release(staged.slot)
            raise
        landing = InFlightBatch(staged, slot, mask, mask_at, decoded=decoded)
        known = begun if program is None or self.runs_only_ours else None
        with self.device.current() if known is None else self.device.again(known) as device:
            timing = self._copy(device, landing, slot, program)
            if program is None:
                self._mark_copy(device, landing, timing)
            elif self._is_resident:
                self._gather(device, landing, slot, program, timing)
            else:
                self._mark_copy(device, landing, timing)
                self._run(device, landing, slot, program)
        return landing

    @property
    def _is_resident(self) -> bool:
        """Whether the rows are on the device, so that hardly anything is copied."""
        return self.programmer is not None and self.programmer.sources is not None

    def _decode(self, staged: StagedBatch, program: Program) -> list[Decoded]:
        """Decode the batch's pictures; the decoder may leave samples out."""
        if self._decoder is None:
            # Imported late, because only loaders of pictures need it.
            from gpuloader.epoch.image_decoding import BatchDecoder

            self._decoder = BatchDecoder(self.device, urgent=self._urgent)
        before = staged.skipped
        decoded = self._decoder.decode(staged, program)
        self._meter.skipped += staged.skipped - before
        return decoded

    def _copy(
        self, device: DeviceCalls, landing: InFlightBatch, slot: DeviceSlot, program: Program | None
    ) -> Timing | None:
        """Enqueue the copy; return its timing, if it is timed."""
        staged, mask, stream = landing.staged, landing.mask, self._copy_stream
        try:
            slot.await_release(device, stream)
            timing = self._timer.begin(device)
            if mask is not None:
                device.copy_async(slot.memory, mask, mask.bytes.size, stream, landing.mask_at)
            for one in staged.apart:
                device.copy_async(slot.memory, one, one.bytes.size, stream, one.offset)
            if program is not None and self._decoder is not None and landing.decoded:
                self._decoder.place(device, landing.decoded, staged, program, slot.memory, stream)
                return timing
            in_slot = staged.layout.nbytes if staged.in_slot is None else staged.in_slot
            device.copy_async(slot.memory, staged.slot, in_slot, stream)
            return timing
        except BaseException:  # whichever call failed, no copy reads from the host slot
            self._ring.release(staged.slot)
            self._slots.give_back(slot)
            raise

    def _mark_copy(self, device: DeviceCalls, landing: InFlightBatch, timing: Timing | None) -> None:
        """Record the event after which the batch's host slot is free."""
        if timing is not None:
            copied = timing.done
        else:
            copied = self._spare.pop() if self._spare else self.device.event()
        landing.ready = copied
        device.record(copied, self._copy_stream)
        self._copying.append((copied, landing, timing))

    def _run(self, device: DeviceCalls, landing: InFlightBatch, slot: DeviceSlot, program: Program) -> None:
        try:
            device.run(program, slot.memory, self._copy_stream)
            device.record(slot.ready, self._copy_stream)
        except BaseException:
            self._slots.give_back(slot)  # what runs in it lies on the copy stream, ahead of the next copy
            raise
        landing.ready = slot.ready
        landing.staged.layout, landing.staged.levels = program.delivered, program.levels

    def _gather(
        self,
        device: DeviceCalls,
        landing: InFlightBatch,
        slot: DeviceSlot,
        program: Program,
        timing: Timing | None,
    ) -> None:
        """Run a program over rows that are on the device; one event marks the end of it and of the copy.

        The host slot holds row numbers at most, so it may as well wait for the kernels.
        """
        try:
            device.run(program, slot.memory, self._copy_stream)
        except BaseException:
            self._slots.give_back(slot)
            raise
        finally:
            self._mark_copy(device, landing, timing)
        landing.staged.layout, landing.staged.levels = program.delivered, program.levels

    def _program(self, staged: StagedBatch) -> Program | None:
        if self.programmer is None or staged.tree is None:
            return None
        names = staged.tree.array_names
        return self.programmer.program(names, staged.levels, staged.layout, drawn=True)

    def deliver(self, landing: InFlightBatch) -> list[Any]:
        """Return a batch's arrays, which hold its lease, and its mask last if it has one.

        The consumer's stream waits for the copy.
        """
        staged, slot = landing.staged, landing.slot
        if slot is None:
            return self.lease(staged, landing.mask)
        with self.device.current() as device:
            return self._deliver(device, landing)

    def _deliver(self, device: DeviceCalls, landing: InFlightBatch) -> list[Any]:
        slot = landing.slot
        assert slot is not None
        try:
            stream = self._take_stream()
            if landing.ready is not None:
                device.wait(stream, landing.ready)
            stream = device.keep(stream)
        except BaseException:
            self._slots.give_back(slot)
            raise
        layout = landing.staged.layout if landing.mask is None else landing.find_layout()
        if self.static is not None:
            arrays = self._deliver_static(self.static, device, landing, slot, stream)
        else:
            arrays = device.views(slot.memory, layout, self._slots.lend(slot, stream))
        return self._output.convert(layout.turn(arrays) if layout.turned else arrays, landing.ready)

    def _take_stream(self) -> Stream:
        """Return the consumer's stream, which was asked for already or is asked for now."""
        stream = self._output.stream() if self._stream is None else self._stream
        self._stream = None
        return self.device.consumer_stream() if stream is None else stream  # no batch has had arrays yet

    def settle(self, landing: InFlightBatch) -> None:
        """Wait until a batch is on the device, and allocate what delivering it and the next ones takes."""
        if landing.slot is not None:
            if landing.ready is not None:
                self.device.synchronize(landing.ready)
            self._slots.reserve()
        if self.static is not None:
            self.static.fit(landing.staged)

    def _deliver_static(
        self,
        static: StaticSlot,
        device: DeviceCalls,
        landing: InFlightBatch,
        slot: DeviceSlot,
        stream: Stream,
    ) -> list[Any]:
        """Copy a batch within the device to where all batches are delivered; its slot is free afterwards.

        The copy lies on the consumer's stream, behind all use of the batch before. What is slow, the copy
        over the bus and the transforms, has run ahead into the batch's own slot.
        """
        staged, mask = landing.staged, landing.mask
        try:
            memory, layout = static.fit(staged, None if mask is None else mask.array)
            static.take_over(device, stream)
            for nbytes, to, at in find_moves(landing.find_layout(), layout):
                device.copy_between(memory, slot.memory, nbytes, stream, to, at)
        except BaseException:
            self._slots.give_back(slot)
            raise
        self._slots.give_back_used(slot, device, stream)
        return device.views(memory, layout, static.lend(staged.number, stream))

    def lease(self, staged: StagedBatch, mask: Mask | None = None) -> list[Any]:
        """Return a batch's arrays on a direct device: views of the host slot, or a private copy."""
        ring = self._ring
        if self.static is not None:
            return self._lease_static(self.static, staged, mask)
        layout = staged.layout
        arrays: list[Any] = layout.turn(lease_views(ring.lend(staged.slot, layout), layout, ring.freed))
        if mask is not None:  # shared and read-only, which a tensor cannot be, so the tensor gets a copy
            arrays.append(mask.array if isinstance(self._output, NativeOutput) else mask.array.copy())
        return arrays if self._convert is None else self._convert(arrays, None)

    def _lease_static(self, static: StaticSlot, staged: StagedBatch, mask: Mask | None) -> list[Any]:
        """Copy a batch on a direct device to where all batches are delivered."""
        device = self.device
        try:
            memory, layout = static.fit(staged, None if mask is None else mask.array)
            sources = [*staged.slot.views(staged.layout), *([] if mask is None else [mask.array])]
            for array, source in zip(device.arrays(memory, layout), sources, strict=True):
                array[...] = source
        finally:
            self._ring.release(staged.slot)
        arrays = device.views(memory, layout, static.lend(staged.number, device.consumer_stream()))
        return self._output.convert(staged.layout.turn(arrays), None)

    def discard(self, landing: InFlightBatch) -> None:
        """Take back a batch that will not be delivered."""
        if landing.slot is None:
            self._ring.release(landing.staged.slot)
        else:
            self._slots.give_back(landing.slot)

    def drain(self) -> None:
        """Take back device slots whose lease has ended and host slots whose copy is done."""
        with self.device.current() as device:
            self._drain(device)

    def _drain(self, device: DeviceCalls, spare: int = 0) -> None:
        """Drain; do not ask about copies of up to `spare` batches, whose host slots nobody needs yet."""
        self._slots.drain(device, self._stream)
        copying = self._copying
        if len(copying) <= spare:
            return
        if len(copying) > 1 and not self._is_late and device.query(copying[-1][0]):
            while copying:  # one stream ran them all
                self._end_oldest_copy(device)
        while copying and device.query(copying[0][0]):
            self._end_oldest_copy(device)
        self._is_late = len(copying) > spare  # where the last copy has hardly run, ask about the first

    def finish_oldest_copy(self) -> bool:
        """Wait for the oldest copy in progress and take its host slot back; return False if there is none."""
        if not self._copying:
            return False
        self.device.synchronize(self._copying[0][0])
        self._end_oldest_copy(self.device)
        return True

    def _end_oldest_copy(self, device: DeviceCalls) -> None:
        copied, landing, timing = self._copying.popleft()
        if landing.ready is copied:
            landing.ready = None  # before the event is recorded for another copy
        if landing.decoded:
            landing.decoded = ()
        self._ring.release(landing.staged.slot)
        if timing is None:
            self._spare.append(copied)
        else:
            self._timer.count(timing, device)

    def close(self) -> None:
        """Wait for every copy in progress: host memory must not be freed before its last copy is done."""
        if self._copying:
            self.device.synchronize(self._copying[-1][0])
            while self._copying:
                with suppress(LoaderError):  # its time cannot be told
                    self._end_oldest_copy(self.device)
        self._begun = None
        self._slots.trim(self.prefetch + 1)


def count_slots(capacity: int, devices: Sequence[Device], prefetch: int) -> tuple[int, int]:
    """Return how many host slots a loader needs, and how many of them its users may hold.

    One is being filled, `capacity` wait in the queue, and one step is being grouped. If there are copies to
    devices, ``prefetch + 1`` steps are in flight. On direct devices the user holds host slots: two steps, and
    one slot more so that a slow garbage collector costs no copies.

    >>> from gpuloader.devices.host import HostDevice
    >>> count_slots(capacity=4, devices=[HostDevice()], prefetch=0)
    (9, 3)
    """
    step = len(devices)
    spare = SPARE * step + 1 if any(device.direct for device in devices) else 0
    copying = 0 if all(device.direct for device in devices) else step * (prefetch + 1)
    return capacity + 1 + step + copying + spare, spare
