"""The device protocol that the epoch uses; `host.py`, `cuda_device.py` and `simulated.py` implement it.

One conformance suite, tests/devices/conformance.py, tests all implementations.

A lane drives its device from the thread that asks for batches. It takes the device's calls once per step with
`current` and makes all calls of the step through them. Other threads come in at only five points: worker
threads ask `is_page_locked`, the reading thread pins the slots that it grows, a compiling thread calls
`compile`, finalizers free memory in whichever thread drops a batch, and any thread of the user may call
`record_stream`. None of these calls may end a user's capture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import LoaderError
from gpuloader.sources.images.regions import Code
from gpuloader.staging import Layout, Lease, PageLocker

if TYPE_CHECKING:
    from gpuloader.transforms.program import BatchProgram

Stream = Any
"""A queue of work on a device, run in order; its type depends on the device."""

Event = Any
"""A mark in a stream: recorded there, waited for by other streams, queried by the host."""

DeviceMemory = Any
"""Memory on a device; freed when nothing refers to it any more, but not before its last use has run."""


class HostMemory(Protocol):
    """The host memory that a copy reads from: a staging slot, or the mask of a batch."""

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The region as a uint8 array."""

    @property
    def address(self) -> int:
        """The region's start address."""


@dataclass(slots=True, eq=False, repr=False)
class DeviceImage:
    """The pixels of a region that a device has decoded, row by row in its memory."""

    address: int  # of the first row
    pitch: int  # bytes from one row to the next
    height: int  # rows
    width: int  # bytes of a row
    owner: object  # the memory, to be kept until the host knows that all reads have run


class Codec(Protocol):
    """Decodes images on one device; a lane calls it once for each batch of encoded images."""

    def decode(self, codes: Sequence[Code], stream: Stream) -> list[DeviceImage | None]:
        """Decode encoded regions on a stream that has no other work; None for each that it cannot decode.

        The codes' data must not change until the work on the stream has run. The host may wait for a part of
        the work, and the device may write into the images before `stream` gets there. Raises `LoaderError` if
        the device or the decoder has failed.
        """

    def copy(self, target: DeviceMemory, image: DeviceImage, stream: Stream, offset: int) -> None:
        """Enqueue a copy of an image, without gaps between its rows, to byte `offset` of `target`."""


class DeviceCalls(Protocol):
    """The calls made for every batch, by the thread that asks for batches.

    Where a method already has a result, it is that of devices without contexts, graphs and compiled kernels.

    Messages use `name`, such as 'cpu' or 'gpu:0'. `direct` says that the user's arrays lie in the host slot
    itself, so that nothing is copied.
    """

    name: str
    direct: bool

    def event(self, *, timed: bool = False) -> Event:
        """Return a new event, which counts as reached until it is recorded; `timed` ones record the time."""

    def copy_async(
        self, target: DeviceMemory, source: HostMemory, nbytes: int, stream: Stream, offset: int = 0
    ) -> None:
        """Enqueue a copy of the first `nbytes` on `stream`, to `offset` bytes after the start of `target`.

        Called once per batch, and again for a mask and for each image that the host had to decode. The caller
        must not change `source` until the copy has run.
        """

    def copy_between(
        self, target: DeviceMemory, source: DeviceMemory, nbytes: int, stream: Stream, to: int, at: int
    ) -> None:
        """Enqueue a copy from byte `at` of `source` to byte `to` of `target`; once per batch with static."""

    def captures(self, stream: Stream) -> bool:  # noqa: ARG002
        """Return whether `stream` is being captured into a graph; then nothing may be put on it."""
        return False

    def is_capturing(self, stream: Stream = None) -> bool:  # noqa: ARG002
        """Return whether the thread captures a graph, or `stream` is captured; before every batch.

        This only queries the states of streams. In PyTorch's mode, querying an event or allocating, by any
        thread, would invalidate the user's capture, and our events would become part of the graph.
        """
        return False

    def record(self, event: Event, stream: Stream) -> None:
        """Mark the current end of `stream`; this replaces an earlier mark of the event.

        Two or three times per batch: behind the copy, behind the program, and behind the user's last use.
        """

    def wait(self, stream: Stream, event: Event) -> None:
        """Make later work on `stream` wait for the event's current mark; the host never waits."""

    def query(self, event: Event) -> bool:
        """Return whether the mark is reached; raise `LoaderError` if the device has failed."""

    def elapsed(self, start: Event, end: Event) -> float:
        """Return the seconds between two timed events that have been reached."""

    def run(self, program: BatchProgram, memory: DeviceMemory, stream: Stream) -> None:
        """Enqueue a program on `stream` that computes within `memory`; once per batch with transforms."""

    def keep(self, stream: Stream) -> Stream:
        """Return a stream of the calling thread or of the user in a form that any thread can record on."""
        return stream

    def compile(self, program: BatchProgram, stop: Callable[[], bool]) -> None:  # noqa: ARG002
        """Compile the kernels that `run` would launch for a program, one by one until `stop` returns True.

        A separate thread calls it, while the first `next` waits for samples.
        """
        return

    def views(self, memory: DeviceMemory, layout: Layout, lease: Lease) -> list[Any]:
        """Return one array per field, once per batch; every view of them keeps `lease` alive."""


class Device(DeviceCalls, Protocol):
    """A device's memory, streams and events.

    Any thread may call any method; none changes the calling thread's current device or stream. Only
    `synchronize` and `alloc` may block the caller. `locker` pins the slots that the device copies from; None
    if pinning has no use. One that `compiles` launches kernels that it has to compile first.
    """

    locker: PageLocker | None
    compiles: bool = False

    def current(self) -> AbstractContextManager[DeviceCalls]:
        """Return a block, for one thread, that yields the device's calls, which cost less there."""
        return nullcontext(self)

    def again(self, calls: DeviceCalls) -> AbstractContextManager[DeviceCalls]:  # noqa: ARG002
        """Return another block like the one that has yielded `calls`, later in the same step and thread.

        If user code may have run between the blocks, another device may be current. Then only copies,
        `record`, `wait` and `query` are allowed, because they work whichever device is current.
        """
        return nullcontext(self)

    def bus_id(self) -> str:
        """Return the device's position on the PCI bus, such as '0000:3B:00.0'; empty if it has none."""
        return ""

    def codec(self) -> Codec:
        """Return the object that decodes images on the device; once per lane.

        Raises
        ------
        MissingPackage
            The package for decoding is not installed.
        LoaderError
            The device does not decode images, or a part that decoding needs is missing.
        """
        raise LoaderError(f"{self.name} decodes no images: workers do")

    def alloc(self, nbytes: int) -> DeviceMemory:
        """Return new memory, for a slot or a cache; raise `StagingMemoryError` if there is too little."""

    def stream(self, *, urgent: bool = False) -> Stream:
        """Return a new stream, up to three per lane; only events order it relative to others.

        Kernels on an `urgent` stream go ahead of those on others, if the device has priorities.
        """

    def synchronize(self, event: Event) -> None:
        """Block the calling thread until the mark is reached."""

    def is_page_locked(self, address: int, nbytes: int) -> bool:  # noqa: ARG002
        """Return whether host memory is pinned, so that a copy can run from it; any thread may ask."""
        return False

    def arrays(self, memory: DeviceMemory, layout: Layout) -> list[Any]:
        """Return the arrays that programs compute with, one per field; they keep the memory alive."""

    def consumer_stream(self) -> Stream:
        """Return the stream that the calling thread currently computes on; called before every batch."""

    def holds(self, memory: DeviceMemory, array: Any) -> bool:
        """Return whether an array of any library lies in `memory`; for `record_stream`."""


def tell_capture(name: str, found: str = "its stream is being captured") -> LoaderError:
    """Return the error for a batch requested from the device `name` while a stream is being captured.

    >>> print(tell_capture("gpu:0"))  # doctest: +ELLIPSIS
    gpu:0: its stream is being captured; a loader cannot deliver a batch during a graph capture: ...
    """
    return LoaderError(
        f"{name}: {found}; a loader cannot deliver a batch during a graph capture: fetch the batch "
        "before, and capture over it with static=True, or copy it into the graph's input"
    )
