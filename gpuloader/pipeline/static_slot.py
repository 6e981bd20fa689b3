"""Delivering every batch of a loader into the same memory, so that a CUDA graph can be replayed over it."""

from __future__ import annotations

import gc
import math
import weakref
from collections import deque
from typing import Protocol

from gpuloader.base.errors import LoaderError, Misuse, SampleError
from gpuloader.collate.stream import StagedBatch
from gpuloader.devices.base import Device, DeviceCalls, DeviceMemory, Stream
from gpuloader.devices.cuda_failures import tell_capture
from gpuloader.fields.convert import IF_PICTURES, describe_field
from gpuloader.fields.spec import Array
from gpuloader.pipeline.device_slots import DeviceSlot, make_slot
from gpuloader.staging.layout import FieldLayout, Layout, align, arrange
from gpuloader.staging.lease import Lease


class Runnable(Protocol):
    """What delivers in a static slot: an epoch."""

    @property
    def is_running(self) -> bool:
        """Whether it may still deliver something."""


class StaticSlot:
    """The memory on one place in which a loader delivers all its batches, one after another.

    The first batch determines its size and where each field lies. It is never moved and never shared, so it
    outlasts the epochs: a graph that was captured over one batch computes with whichever batch is there.

    Only the consumer calls it, from one thread at a time; leases end in any thread.

    Parameters
    ----------
    device : Device
        The place's device.

    Attributes
    ----------
    epoch : weakref.ref or None
        The latest epoch that delivers here, a `Runnable`.
    """

    def __init__(self, device: Device) -> None:
        self.epoch: weakref.ref[Runnable] | None = None
        self._device = device
        self._slot: DeviceSlot | None = None
        self._layout = self._known = Layout((), 0)
        self._mask_at = 0
        self._freed: deque[tuple[int, DeviceSlot]] = deque()
        self._held: dict[int, int] = {}  # the number in its epoch of each delivered batch that is alive
        self._latest = 0

    def refuse_another(self) -> None:
        """Raise `Misuse` if an epoch is running, whose batches those of another one would overwrite."""
        if self._is_in_use():
            gc.collect()  # it may be garbage that has not been collected
        if self._is_in_use():
            raise Misuse(
                "another loop over this loader is running, and with static=True both would deliver in the "
                "same memory: end that loop first (close or drop its iterator), or make another loader"
            )

    def _is_in_use(self) -> bool:
        epoch = None if self.epoch is None else self.epoch()
        return epoch is not None and epoch.is_running

    def find_held(self) -> LoaderError | None:
        """Return the error for a request while the user holds a batch before the latest, or None.

        The latest may be held: a loop's variable does so until the next batch is there.
        """
        if self._find_stale() is None:
            return None
        gc.collect()  # it may be held by garbage only
        stale = self._find_stale()
        if stale is None:
            return None
        return Misuse(
            f"batch {stale} is still held, but its memory holds a later batch now: with static=True all "
            "batches lie in the same memory; drop a batch before you ask for the next but one, and keep "
            "copies of what you need longer (array.copy(), tensor.clone())"
        )

    def _find_stale(self) -> int | None:
        while self._freed:
            self._held.pop(self._freed.popleft()[0], None)
        return next((self._held[serial] for serial in self._held if serial != self._latest), None)

    def find_capture(self, device: DeviceCalls, known: Stream) -> LoaderError | None:
        """Return the error if a stream on which the latest batch is used is being captured, or None.

        `known` is a stream that is known not to be.
        """
        if self._slot is not None and self._slot.is_captured(device, known):
            return tell_capture(self._device.name, "its stream is being captured")
        return None

    def fit(self, staged: StagedBatch, mask: Array | None = None) -> tuple[DeviceMemory, Layout]:
        """Return the memory, which the first batch allocates, and where a batch's fields and mask lie there.

        Raises
        ------
        SampleError
            The batch has other shapes or dtypes than the first one.
        StagingMemoryError
            The device has too little memory.
        """
        layout = staged.layout
        if self._slot is None:
            self._layout = arrange(tuple((field.shape, field.dtype) for field in layout.fields))
            self._mask_at = align(self._layout.nbytes)
            # A later epoch may deliver masks, with one byte for each sample.
            longest = max((field.shape[0] for field in layout.fields if field.shape), default=0)
            self._slot = make_slot(self._device, self._device.alloc(self._mask_at + longest))
        elif layout is not self._known:
            self._check(staged)
        self._known = layout
        if mask is None:
            return self._slot.memory, self._layout
        fields = (*self._layout.fields, FieldLayout(self._mask_at, mask.shape, mask.dtype))
        return self._slot.memory, Layout(fields, self._mask_at + mask.nbytes)

    def _check(self, staged: StagedBatch) -> None:
        fields = staged.layout.fields
        names = None if staged.structure is None else staged.structure.array_names
        if len(fields) != len(self._layout.fields):
            raise _unlike(staged, f"{len(self._layout.fields)} arrays", f"{len(fields)} arrays")
        for number, (first, field) in enumerate(zip(self._layout.fields, fields, strict=True)):
            if (first.shape, first.dtype) != (field.shape, field.dtype):
                expected, got = (describe_field(one.shape, one.dtype) for one in (first, field))
                raise _unlike(staged, expected, got, str(number) if names is None else names[number])

    def take_over(self, device: DeviceCalls, stream: Stream) -> None:
        """Make later work on `stream` wait for all use of the latest batch, on whichever stream."""
        assert self._slot is not None
        if self._slot.streams != [stream]:  # otherwise that stream's own order is enough
            self._slot.release(device)
            self._slot.await_release(device, stream)

    def follow(self, device: DeviceCalls, stream: Stream) -> None:
        """Order the latest batch, which the user has not got yet, before the user's present stream."""
        assert self._slot is not None
        self.take_over(device, stream)
        self._slot.streams = [device.keep(stream)]

    def lend(self, number: int, stream: Stream) -> Lease:
        """Return a lease of batch `number` to a user who computes on `stream`, which the device keeps."""
        assert self._slot is not None
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
        if moves:
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
        f"length to a fixed one, e.g. with the transform Pad; for pictures, {IF_PICTURES}",
        batch=staged.number,
        field=field,
    )
