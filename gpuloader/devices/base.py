"""What the pipeline asks of a device. `host.py`, `cuda.py` and `simulated.py` answer; one suite tests all."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.staging.arena import PageLocker
from gpuloader.staging.layout import Layout
from gpuloader.staging.lease import Lease
from gpuloader.transforms.program import Program

Stream = Any
"""A queue of work on a device, run in order; what it is, only its device knows."""

Event = Any
"""A mark in a stream: `record`ed there, `wait`ed for by other streams, `query`ed by the host."""


class HostMemory(Protocol):
    """A host region a copy reads from: a staging slot."""

    bytes: NDArray[np.uint8]
    address: int


DeviceMemory = Any
"""A region on a device; freed when nothing refers to it any more, and not before its last use."""


class Device(Protocol):
    """Memory, one kind of stream and one kind of event.

    Every method may be called from any thread; none changes the calling thread's current device or
    stream. Only `synchronize` and `alloc` may make the caller wait.

    Attributes
    ----------
    name : str
        For messages: 'cpu', 'gpu:0'.
    direct : bool
        The user's arrays lie in the host slot itself, and the pipeline copies nothing.
    locker : PageLocker or None
        Page-locks the slots this device copies from.
    """

    name: str
    direct: bool
    locker: PageLocker | None

    def alloc(self, nbytes: int) -> DeviceMemory:
        """Return fresh memory; raise `StagingMemoryError` where there is too little."""

    def stream(self) -> Stream:
        """Return a new stream that is ordered against others by events alone."""

    def event(self, *, timed: bool = False) -> Event:
        """Return a new event; never recorded, it counts as complete. A `timed` one knows when it was."""

    def copy_async(
        self, target: DeviceMemory, source: HostMemory, nbytes: int, stream: Stream, offset: int = 0
    ) -> None:
        """Put a copy of the first `nbytes` on `stream`, to `offset` bytes behind the start of `target`.

        `source` stays untouched until it has run.
        """

    def record(self, event: Event, stream: Stream) -> None:
        """Mark the present end of `stream`; an earlier mark of this event is forgotten."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Hold later work on `stream` until the event's present mark is reached; never holds the host."""

    def query(self, event: Event) -> bool:
        """Return whether the mark is reached; raise `LoaderError` where the device has failed."""

    def synchronize(self, event: Event) -> None:
        """Hold the calling thread until the mark is reached."""

    def elapsed(self, start: Event, end: Event) -> float:
        """Return the seconds between two timed events that were reached."""

    def arrays(self, memory: DeviceMemory, layout: Layout) -> list[Any]:
        """Return what programs compute with: one array a field, which keeps the memory alive."""

    def run(self, program: Program, memory: DeviceMemory, stream: Stream) -> None:
        """Put what a program computes within `memory` on `stream`."""

    def consumer_stream(self) -> Stream:
        """Return the stream the calling thread computes on now."""

    def views(self, memory: DeviceMemory, layout: Layout, lease: Lease) -> list[Any]:
        """Return one array a field over device memory; each view of them keeps `lease` alive."""
