"""A lane: the life of a batch on one place, from the staged slot to the user and back.

    staged ──issue──▶ a device slot is taken      (waits for `released`, on the copy stream)
                      one copy runs               (then `copied`: the host slot is free)
                      kernels of transforms run   (behind `copied` on a stream of their own; then `ready`)
           ──begin or deliver──▶ the user's stream waits for `ready`; the arrays hold a lease of the slot
           ──drain──▶ the lease has ended: `released` is recorded on the user's streams; the slot is free

On a host the user's arrays lie in the staged slot itself, so all of this reduces to `lease`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuloader.batches.staged import StagedBatch
from gpuloader.devices.base import Device, DeviceCalls, DeviceMemory, Event, Stream, tell_capture
from gpuloader.devices.outputs import Output, SharedOutput
from gpuloader.epoch.delivery import SampleMask
from gpuloader.epoch.device_slots import DeviceSlot, DeviceSlots, StaticSlot, find_moves
from gpuloader.errors import LoaderError
from gpuloader.staging import SPARE, FieldLayout, Layout, Lease, Ring, align, lease_views
from gpuloader.watch.meter import COPIES, Meter, is_tracing, mark

if TYPE_CHECKING:
    from gpuloader.epoch.image_decoding import BatchDecoder, Decoded
    from gpuloader.transforms.program import BatchProgram, Programmer


def count_slots(capacity: int, devices: Sequence[Device], prefetch: int) -> tuple[int, int]:
    """Return how many host slots a loader needs, and how many of them its users may hold.

    >>> from gpuloader.devices.host import HostDevice
    >>> count_slots(capacity=4, devices=[HostDevice()], prefetch=0)
    (9, 3)
    """
    places = len(devices)
    direct = [*map(attrgetter("direct"), devices)]
    # On hosts the user holds the slots themselves: two steps, and one slot more so that a slow garbage
    # collector causes no copies. On devices the user holds device slots.
    spare = SPARE * places + 1 if any(direct) else 0
    copying = 0 if all(direct) else places * (prefetch + 1)
    # `capacity` batches wait in the queue, one is being filled, and one step is incomplete. Every batch
    # that can wait has its own slot, so keeping batches cannot deadlock.
    return capacity + 1 + places + copying + spare, spare


@dataclass(slots=True, eq=False, repr=False)
class InFlightBatch:
    """A batch on its way to the user."""

    staged: StagedBatch
    slot: DeviceSlot | None  # None on a direct device
    mask: SampleMask | None = None
    mask_at: int = 0  # the mask's offset in the device slot, behind all fields
    ready: Event = None  # after which the batch can be used; None once the host knows that it was reached
    arrays: list[Any] | None = None  # what the user gets, once it has been delivered
    decoded: Sequence[Decoded] = ()  # images to copy in, until the host knows that they were copied


@dataclass(eq=False, repr=False)
class Lane:
    """Takes staged batches to one place: issues copies, hands out leases, and reclaims released slots.

    Only the consumer calls it, from one thread at a time. The consumer's current stream must wait for a copy,
    CuPy keeps the current device and stream per thread, and this way no other thread has to wake up. Nothing
    here waits for the user to release a batch: a user who holds all device slots gets a new one, and one who
    holds too many host slots gets a copy.
    """

    device: Device
    _ring: Ring
    prefetch: int  # steps copied ahead of the consumer; may change between steps
    _meter: Meter
    _output: Output  # the framework whose arrays the user gets, and the stream on which the user computes
    # Builds the programs that transform batches after their copy; may be replaced between epochs.
    programmer: Programmer | None = None
    static: StaticSlot | None = None  # where all batches are delivered; None delivers each in its own slot
    _urgent: bool = False  # whether kernels of transforms run ahead of those on streams of normal priority

    def __post_init__(self) -> None:
        device, output = self.device, self._output
        # Whether no user code runs between `begin` and `issue`, not even to fetch a batch.
        self.runs_only_ours = False
        # Whether a host's arrays become tensors.
        self._wraps = not isinstance(output, SharedOutput) or output.wrap is not None
        if device.direct:
            self.programmer = None
        else:
            self._slots = DeviceSlots(device)
        # Besides those copied ahead: the slot in use, and one that the GPU is still finishing with. With one
        # slot fewer, a copy into the slot of a promptly dropped batch would wait for the work on that batch,
        # and every step would cost another hop between streams. Batches that are moved to fixed addresses
        # leave their slots immediately.
        self._behind = 1 if self.static is not None else 2
        # Each copy has its own event, directly behind it. A slot's `ready` lies behind kernels, which the
        # host slot need not wait for, and may be recorded again while the host still asks about its last use.
        self._copying: deque[tuple[Event, InFlightBatch, Timing | None]] = deque()
        self._spare: list[Event] = []
        self._is_late = False
        self._stream: Stream = None  # the consumer's, when last checked for a capture
        self._begun: DeviceCalls | None = None  # in this `next`, and not since a batch was issued
        self._copy_stream = None if device.direct else device.stream(urgent=self._urgent)
        # Separate streams, so that a batch is copied while kernels compute the previous one.
        self._kernel_stream = self._copy_stream
        if self.programmer is not None and self.programmer.sources is None:
            self._kernel_stream = device.stream(urgent=self._urgent)
        self._timer = CopyTimer(device, self._copy_stream, self._meter)
        self._decoder: BatchDecoder | None = None

    # A batch arrives: its copy is issued, and its kernels behind it.

    def issue(self, staged: StagedBatch, mask: SampleMask | None = None) -> InFlightBatch:
        """Issue the copy of a staged batch on the copy stream; its host slot returns after the copy."""
        if self.device.direct:
            return InFlightBatch(staged, None, mask)
        begun, self._begun = self._begun, None
        try:
            program: BatchProgram | None = None
            decoded: Sequence[Decoded] = ()
            if self.programmer is not None:
                find = partial(self.programmer.program, staged.tree.array_names, drawn=True)
                program = find(staged.levels, staged.layout)
                if program.decodings:
                    if self._decoder is None:
                        # Imported late, because only loaders of images need it.
                        from gpuloader.epoch.image_decoding import BatchDecoder

                        self._decoder = BatchDecoder(self.device, urgent=self._urgent)
                    before = len(staged.skipped)
                    decoded = self._decoder.decode(staged, program)
                    self._meter.left_out(staged.skipped[before:])
                    program = find(staged.levels, staged.layout)  # samples that are left out change both
            nbytes = staged.layout.nbytes if program is None else program.whole.nbytes
            # The mask lies in the batch's own slot, so it is ordered like the fields, by the same events.
            mask_at = 0 if mask is None else align(nbytes)
            room = nbytes if mask is None else mask_at + mask.bytes.size
            slot = self._slots.take(room, self.prefetch + self._behind)
        except BaseException:
            self._ring.release(staged.slot)
            raise
        batch = InFlightBatch(staged, slot, mask, mask_at, decoded=decoded)
        # If the rows are already on the device, the host slot holds at most row numbers. It can wait for the
        # kernels as well, so one stream and one event do for both.
        resident = program is not None and self.programmer is not None and self.programmer.sources is not None
        # Since `begin`, the reader may have made another device current. That affects kernels, not copies.
        known = begun if program is None or self.runs_only_ours else None
        with self.device.current() if known is None else self.device.again(known) as device:
            timing = self._copy(device, batch, slot, program)
            if not resident:
                self._mark_copy(device, batch, timing)
            if program is None:
                return batch
            stream = self._copy_stream if resident else self._kernel_stream
            try:
                if stream is not self._copy_stream:
                    slot.is_computing = True
                    device.wait(stream, batch.ready)
                device.run(program, slot.memory, stream)
                if not resident:
                    device.record(slot.ready, stream)
                    batch.ready = slot.ready
            except BaseException:
                if slot.is_computing:  # behind the launched kernels; the next copy waits for this
                    with suppress(Exception):
                        device.record(slot.ready, stream)
                self._slots.give_back(slot)
                raise
            finally:
                if resident:
                    self._mark_copy(device, batch, timing)
            staged.layout, staged.levels = program.delivered, program.levels
        return batch

    def _copy(
        self, device: DeviceCalls, batch: InFlightBatch, slot: DeviceSlot, program: BatchProgram | None
    ) -> Timing | None:
        """Enqueue the copy; return its timing if it is timed."""
        staged, mask, stream = batch.staged, batch.mask, self._copy_stream
        try:
            slot.await_release(device, stream)
            timing = self._timer.begin(device)
            if mask is not None:
                device.copy_async(slot.memory, mask, mask.bytes.size, stream, batch.mask_at)
            for source, offset in staged.apart:  # already pinned by the loader that `prefetch` wraps
                device.copy_async(slot.memory, source, source.bytes.size, stream, offset)
            if program is not None and self._decoder is not None and batch.decoded:
                self._decoder.place(device, batch.decoded, staged, program, slot.memory, stream)
            else:
                in_slot = staged.layout.nbytes if staged.in_slot is None else staged.in_slot
                device.copy_async(slot.memory, staged.slot, in_slot, stream)
            return timing
        except BaseException:  # whichever call failed, no copy reads the host slot now
            self._ring.release(staged.slot)
            self._slots.give_back(slot)
            raise

    def _mark_copy(self, device: DeviceCalls, batch: InFlightBatch, timing: Timing | None) -> None:
        """Record the event after which the batch's host slot is free."""
        if timing is not None:
            copied = timing.done
        else:
            copied = self._spare.pop() if self._spare else self.device.event()
        batch.ready = copied
        device.record(copied, self._copy_stream)
        self._copying.append((copied, batch, timing))

    def compute(self, program: BatchProgram, memory: DeviceMemory) -> None:
        """Run a program over other memory on the copy stream, between earlier and later batches."""
        self.device.run(program, memory, self._copy_stream)

    def settle(self, batch: InFlightBatch) -> None:
        """Wait until a batch is on the device, and allocate what it and the next ones need for delivery."""
        if batch.slot is not None:
            if batch.ready is not None:
                self.device.synchronize(batch.ready)
            least = self.prefetch + self._behind
            self._slots.reserve(least, least)  # so that no step has to
        if self.static is not None:
            self.static.fit(batch.staged)

    # The user asks for a step and gets the batch.

    def begin(
        self, flying: deque[list[InFlightBatch]] | None = None, *, drains: bool = True
    ) -> tuple[LoaderError | None, InFlightBatch | None]:
        """Look for a capture; if there is none, drain, deliver the oldest batch in flight and return it.

        All of this happens in one block of the device. A lane that is not the only one of its epoch only
        looks, and `drains` nothing. The batch leaves `flying` only when it will be delivered; None delivers
        nothing. The consumer's stream that is checked is used by the next `drain` and `deliver`.
        """
        self._stream = stream = self._output.stream()
        with self.device.current() as device:
            # Nothing may be called before this question. In CUDA's capture mode 'global', which PyTorch uses,
            # an allocation or a query by any thread ends the capture, and events recorded on a captured
            # stream become part of the user's graph.
            if device.is_capturing(stream) or (self.static and self.static.is_captured(device, stream)):
                return tell_capture(device.name), None
            if not drains:
                return None, None
            # Each question about a copy costs the host a CUDA call. There are as many slots as steps in
            # flight, and more if they are small, so some slots can come back a step later.
            self.drain(device, self.prefetch + self._ring.stretched // 2)
            batch = flying.popleft()[0] if flying else None
            if batch is not None:
                batch.arrays = self.deliver(device, batch)
            self._begun = device
            return None, batch

    def follow(self, batch: InFlightBatch) -> None:
        """Order a delivered batch, not yet handed over, before the user's current stream as well."""
        # A Ctrl-C came while the next batch was read, and the user may ask again on another stream.
        assert batch.slot is not None
        stream = self.device.consumer_stream() if self._stream is None else self._stream
        with self.device.current() as device:
            if self.static is not None:
                self.static.follow(device, stream)
                return
            if batch.ready is not None:
                device.wait(stream, batch.ready)
        batch.slot.add_stream(stream)

    def deliver(self, device: DeviceCalls, batch: InFlightBatch) -> list[Any]:
        """Return a batch's arrays, which hold its lease, and its mask last if it has one."""
        slot = batch.slot
        assert slot is not None
        try:
            # None: no batch has had arrays yet
            stream = self.device.consumer_stream() if self._stream is None else self._stream
            if batch.ready is not None:
                device.wait(stream, batch.ready)  # the host does not wait
            stream = device.keep(stream)
            staged, mask, layout = batch.staged, batch.mask, batch.staged.layout
            if mask is not None:
                last = FieldLayout(batch.mask_at, mask.array.shape, mask.array.dtype)
                layout = Layout((*layout.fields, last), batch.mask_at + mask.bytes.size, layout.turned)
            if self.static is not None:
                # This copy lies on the consumer's stream, behind all use of the previous batch. The slow
                # parts, the copy over the bus and the transforms, have run ahead into the batch's own slot. A
                # copy from the host straight into this memory would wait for the user's graph and never
                # overlap with it. At 3 TB/s, this one takes 7 µs for 10 MB.
                memory, fixed = self.static.fit(staged, None if mask is None else mask.array)
                self.static.take_over(device, stream)
                for nbytes, to, at in find_moves(layout, fixed):
                    device.copy_between(memory, slot.memory, nbytes, stream, to, at)
        except BaseException:
            self._slots.give_back(slot)
            raise
        slot.streams = [stream]
        slot.is_computing = False  # the user's stream waits for it, and the next copy for the user's stream
        if self.static is None:
            arrays = device.views(slot.memory, layout, Lease(slot, self._slots.freed))
        else:
            slot.release(device)
            self._slots.give_back(slot)
            arrays = device.views(memory, fixed, self.static.lend(staged.number, stream))
        return self._output.convert(layout.turn(arrays) if layout.turned else arrays, batch.ready)

    def lease(self, staged: StagedBatch, mask: SampleMask | None = None) -> list[Any]:
        """Return a batch's arrays on a direct device: views of the host slot, or a private copy."""
        layout = staged.layout
        if self.static is not None:
            device = self.device
            try:
                memory, fixed = self.static.fit(staged, None if mask is None else mask.array)
                sources = [*staged.slot.views(layout), *([] if mask is None else [mask.array])]
                for array, source in zip(device.arrays(memory, fixed), sources, strict=True):
                    array[...] = source
            finally:
                self._ring.release(staged.slot)
            lease = self.static.lend(staged.number, device.consumer_stream())
            return self._output.convert(layout.turn(device.views(memory, fixed, lease)), None)
        if staged.own is not None:
            arrays: list[Any] = staged.own
            self._ring.release(staged.slot)
            if self._wraps:  # a tensor is neither read-only, nor has it negative strides
                for number, one in enumerate(arrays):
                    if not one.flags.writeable or min(one.strides, default=0) < 0:
                        arrays[number] = one.copy()
        else:
            # The user gets the slot's own views, so a batch is written once and never copied.
            arrays = lease_views(self._ring.lend(staged.slot, layout), layout, self._ring.freed)
        if layout.turned:
            arrays = layout.turn(arrays)
        if mask is not None:  # shared and read-only, which a tensor cannot be, so the tensor gets a copy
            # A new view for each batch, because a user may change the shape of an array in place.
            arrays.append(mask.array.copy() if self._wraps else mask.array[:])
        return self._output.convert(arrays, None)

    # The batch is dropped: its slots come back.

    def discard(self, batch: InFlightBatch) -> None:
        """Take back a batch that will not be delivered."""
        if batch.slot is None:
            self._ring.release(batch.staged.slot)
        else:
            self._slots.give_back(batch.slot)

    def drain(self, device: DeviceCalls, spare: int = 0) -> None:
        """Take back device slots whose lease has ended and host slots whose copy is done.

        Copies of up to `spare` batches are not asked about, because nobody needs their host slots yet.
        """
        self._slots.drain(device, self._stream)
        copying = self._copying
        if len(copying) <= spare:
            return
        if len(copying) > 1 and not self._is_late and device.query(copying[-1][0]):
            while copying:  # one stream ran them all, so one question tells for all
                self._end_oldest_copy(device)
        while copying and device.query(copying[0][0]):
            self._end_oldest_copy(device)
        # Then the last copy has rarely run yet, so the next call asks about the first.
        self._is_late = len(copying) > spare

    def finish_oldest_copy(self) -> bool:
        """Wait for the oldest copy in progress and take its host slot back; return False if there is none."""
        if not self._copying:
            return False
        self.device.synchronize(self._copying[0][0])  # directly behind the copy, and so ahead of its kernels
        self._end_oldest_copy(self.device)
        return True

    def _end_oldest_copy(self, device: DeviceCalls) -> None:
        copied, batch, timing = self._copying.popleft()
        if batch.ready is copied:
            batch.ready = None  # before the event is recorded for another copy
        batch.decoded = ()
        self._ring.release(batch.staged.slot)
        if timing is None:
            self._spare.append(copied)
        else:
            self._timer.count(timing, device)

    def close(self) -> None:
        """Wait for every copy in progress, before which host memory must not be freed; take slots back."""
        if self._copying:
            self.device.synchronize(self._copying[-1][0])
            while self._copying:
                with suppress(LoaderError):  # its duration is unknown
                    self._end_oldest_copy(self.device)
        self._begun = self._stream = None
        if not self.device.direct:
            self._slots.trim(self.prefetch + 1)
            with self.device.current() as device:
                self._slots.drain(device, None)


# The duration of copies on the copy stream, measured with events, because the host cannot see it.

EVERY = 32
"""In the long run, one copy in this many is timed, so that timing costs next to nothing per batch."""


class Timing(NamedTuple):
    """One timed copy; `done` also tells when the host slot is free, so the lane asks for it."""

    begun: Event
    done: Event
    weight: int  # the number of copies that its duration stands for
    traced: bool


@dataclass(slots=True, eq=False, repr=False)
class CopyTimer:
    """Times the copies of one copy stream: all of them during a trace, otherwise ever fewer."""

    device: Device
    stream: Stream
    meter: Meter
    _untimed: int = 0  # copies since the last timed one
    _gap: int = 1
    _anchor: tuple[Event, int] | None = None  # an event and the host's time at it, for a trace
    _spare: list[Event] = field(default_factory=list)

    def begin(self, device: DeviceCalls) -> Timing | None:
        """Record the start of the next copy, and return its timing if it is timed."""
        self._untimed += 1
        if is_tracing():
            if self._anchor is None:  # align the clocks of host and device once; waits for copies in progress
                event = self.device.event(timed=True)
                self.device.record(event, self.stream)
                self.device.synchronize(event)
                self._anchor = event, perf_counter_ns()
        else:
            self._anchor = None
            if self._untimed < self._gap:
                return None
            # Short loops get times soon, long ones pay for few.
            self._gap = min(2 * self._gap, EVERY)
        weight, self._untimed = self._untimed, 0
        if len(self._spare) < 2:  # one is left after a Ctrl-C between the two below
            self._spare += self.device.event(timed=True), self.device.event(timed=True)
        timing = Timing(self._spare.pop(), self._spare.pop(), weight, self._anchor is not None)
        device.record(timing.begun, self.stream)
        return timing

    def count(self, timing: Timing, device: DeviceCalls) -> None:
        """Count a timed copy whose last event has been reached."""
        seconds = device.elapsed(timing.begun, timing.done)
        self.meter.copy += int(seconds * 1e9) * timing.weight
        if timing.traced and self._anchor is not None:
            event, time = self._anchor
            start = time + int(device.elapsed(event, timing.begun) * 1e9)
            mark("copy", start, start + int(seconds * 1e9), self.device.name + COPIES)
        self._spare += timing.begun, timing.done
