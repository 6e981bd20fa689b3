"""The device protocol that the pipeline uses; `host.py`, `cuda.py` and `simulated.py` implement it.

One conformance suite, tests/devices/conformance.py, tests all implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.sources.images.regions import Code
from gpuloader.staging.arena import Layout, PageLocker
from gpuloader.staging.ring import Lease
from gpuloader.transforms.program import Program

Stream = Any
"""A queue of work on a device, run in order; its type depends on the device."""

Event = Any
"""A mark in a stream: recorded there, waited for by other streams, queried by the host."""


class HostMemory(Protocol):
    """The host memory that a copy reads from: a staging slot, or the mask of a batch."""

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The region as a uint8 array."""

    @property
    def address(self) -> int:
        """The region's start address."""


DeviceMemory = Any
"""Memory on a device; freed when nothing refers to it any more, but not before its last use has run."""


@dataclass(frozen=True, slots=True, eq=False)
class DevicePicture:
    """The pixels of a region that a device has decoded, row by row in its memory.

    Attributes
    ----------
    address : int
        The address of the first row.
    pitch : int
        Bytes from one row to the next.
    height, width : int
        Rows, and bytes of a row.
    owner : object
        The memory; it must be kept until the host knows that all reads have run.
    """

    address: int
    pitch: int
    height: int
    width: int
    owner: object


class Codec(Protocol):
    """Decodes pictures on one device."""

    def decode(self, codes: Sequence[Code], stream: Stream) -> list[DevicePicture | None]:
        """Decode encoded regions on a stream that has no other work; None for each that it cannot decode.

        The codes' data must stay as they are until what is on the stream has run. The host may wait for a
        part of the work, and the device may write into the pictures before `stream` gets there.

        Raises
        ------
        LoaderError
            The device or the decoder has failed.
        """

    def copy(self, target: DeviceMemory, picture: DevicePicture, stream: Stream, offset: int) -> None:
        """Enqueue a copy of a picture, without gaps between its rows, to byte `offset` of `target`."""


class DeviceCalls(Protocol):
    """The calls that are made for every batch.

    Attributes
    ----------
    name : str
        The device's name in messages, such as 'cpu' or 'gpu:0'.
    direct : bool
        Whether the user's arrays lie in the host slot itself, so that the pipeline copies nothing.
    """

    name: str
    direct: bool

    def event(self, *, timed: bool = False) -> Event:
        """Return a new event, which counts as reached until it is recorded; `timed` ones record the time."""

    def copy_async(
        self, target: DeviceMemory, source: HostMemory, nbytes: int, stream: Stream, offset: int = 0
    ) -> None:
        """Enqueue a copy of the first `nbytes` on `stream`, to `offset` bytes after the start of `target`.

        The caller must not change `source` until the copy has run.
        """

    def copy_between(
        self, target: DeviceMemory, source: DeviceMemory, nbytes: int, stream: Stream, to: int, at: int
    ) -> None:
        """Enqueue a copy of `nbytes` from byte `at` of `source` to byte `to` of `target`, on one device."""

    def captures(self, stream: Stream) -> bool:
        """Return whether `stream` is being captured into a graph; then nothing may be put on it."""

    def is_capturing(self, stream: Stream = None) -> bool:
        """Return whether the thread captures a graph, or `stream` is captured by anybody."""

    def record(self, event: Event, stream: Stream) -> None:
        """Mark the current end of `stream`; this replaces an earlier mark of the event."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Make later work on `stream` wait for the event's current mark; the host never waits."""

    def query(self, event: Event) -> bool:
        """Return whether the mark is reached; raise `LoaderError` if the device has failed."""

    def elapsed(self, start: Event, end: Event) -> float:
        """Return the seconds between two timed events that have been reached."""

    def run(self, program: Program, memory: DeviceMemory, stream: Stream) -> None:
        """Enqueue a program on `stream`; it computes within `memory`."""

    def keep(self, stream: Stream) -> Stream:
        """Return a stream of the calling thread, or the user's, in a form that any thread can record on."""

    def compile(self, program: Program, stop: Callable[[], bool]) -> None:
        """Compile the kernels that `run` would launch for a program, one by one until `stop` returns True."""

    def views(self, memory: DeviceMemory, layout: Layout, lease: Lease) -> list[Any]:
        """Return one array per field over device memory; each of their views keeps `lease` alive."""


class Device(DeviceCalls, Protocol):
    """A device's memory, streams and events.

    Every method may be called from any thread; none changes the calling thread's current device or
    stream. Only `synchronize` and `alloc` may block the caller.

    Attributes
    ----------
    locker : PageLocker or None
        Page-locks the slots that this device copies from; None if page-locking is of no use.
    """

    locker: PageLocker | None

    def current(self) -> AbstractContextManager[DeviceCalls]:
        """Return a block of one thread that yields the device's calls, which cost less there."""

    def again(self, calls: DeviceCalls) -> AbstractContextManager[DeviceCalls]:
        """Return another block like the one that has yielded `calls`, later in the same thread.

        If the user's code may have run between the blocks, it may have made another device current. Then only
        copies, `record`, `wait` and `query` are allowed, which work whatever is current.
        """

    def bus_id(self) -> str:
        """Return the device's position on the PCI bus, such as '0000:3B:00.0'; empty if it has none."""

    def codec(self) -> Codec:
        """Return what decodes pictures on the device.

        Raises
        ------
        MissingPackage
            The package that does it is not installed.
        LoaderError
            The device does not decode pictures, or a part that decoding needs is missing.
        """

    def alloc(self, nbytes: int) -> DeviceMemory:
        """Return new memory; raise `StagingMemoryError` if there is too little."""

    def stream(self, *, urgent: bool = False) -> Stream:
        """Return a new stream; only events order it with respect to others.

        Kernels on an `urgent` one go ahead of those on others, if the device has priorities.
        """

    def synchronize(self, event: Event) -> None:
        """Block the calling thread until the mark is reached."""

    def is_page_locked(self, address: int, nbytes: int) -> bool:
        """Return whether host memory is page-locked, so that a copy can run from it; any thread may ask."""

    def arrays(self, memory: DeviceMemory, layout: Layout) -> list[Any]:
        """Return the arrays that programs compute with, one per field; they keep the memory alive."""

    def consumer_stream(self) -> Stream:
        """Return the stream that the calling thread currently computes on."""

    def holds(self, memory: DeviceMemory, array: Any) -> bool:
        """Return whether an array, of whichever library, lies in `memory`."""
