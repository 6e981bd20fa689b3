"""The CPU as a device: all work runs immediately, and batches lie in the slot itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.devices.base import Device, HostMemory
from gpuloader.staging.arena import Layout, PageLocker
from gpuloader.staging.ring import Lease
from gpuloader.transforms.program import BatchProgram

_ONLY_STREAM = "host"
_ONLY_EVENT = "done"


class HostBuffer:
    """Host memory in the role of device memory."""

    __slots__ = ("bytes",)

    def __init__(self, nbytes: int) -> None:
        self.bytes: NDArray[np.uint8] = np.empty(nbytes, np.uint8)


@dataclass(eq=False)
class HostDevice(Device):
    """The host as a device; no work is ever pending, so every event is reached.

    >>> device = HostDevice()
    >>> event = device.event()
    >>> device.record(event, device.stream()); device.query(event)
    True
    """

    name: str = "cpu"
    # For a `CUDAPinnedPlace`: pins the slots, so that the user's own copies to a GPU run at full speed.
    locker: PageLocker | None = None
    direct = True

    def alloc(self, nbytes: int) -> HostBuffer:
        """Return new host memory."""
        return HostBuffer(nbytes)

    def stream(self, *, urgent: bool = False) -> str:
        """Return the host's only stream."""
        return _ONLY_STREAM

    def event(self, *, timed: bool = False) -> str:
        """Return the host's only event, which is always reached."""
        return _ONLY_EVENT

    def copy_async(
        self, target: HostBuffer, source: HostMemory, nbytes: int, stream: str, offset: int = 0
    ) -> None:
        """Copy immediately."""
        target.bytes[offset : offset + nbytes] = source.bytes[:nbytes]

    def copy_between(
        self, target: HostBuffer, source: HostBuffer, nbytes: int, stream: str, to: int, at: int
    ) -> None:
        """Copy immediately."""
        target.bytes[to : to + nbytes] = source.bytes[at : at + nbytes]

    def record(self, event: str, stream: str) -> None:
        """Do nothing: no work is ever pending."""

    def wait(self, stream: str, event: str) -> None:
        """Do nothing: no work is ever pending."""

    def synchronize(self, event: str) -> None:
        """Do nothing: no work is ever pending."""

    def query(self, event: str) -> bool:
        """Return True: no work is ever pending."""
        return True

    def elapsed(self, start: str, end: str) -> float:
        """Return 0: no work is ever pending."""
        return 0.0

    def run(self, program: BatchProgram, memory: HostBuffer, stream: str) -> None:
        """Run a program immediately."""
        program.run_on_host(self.arrays(memory, program.whole))

    def arrays(self, memory: HostBuffer, layout: Layout) -> list[NDArray[Any]]:
        """Return one NumPy array per field."""
        return [np.ndarray(one.shape, one.dtype, memory.bytes, one.offset) for one in layout.fields]

    def holds(self, memory: HostBuffer, array: Any) -> bool:
        """Return whether an array lies in `memory`."""
        return bool(np.may_share_memory(memory.bytes, array))

    def consumer_stream(self) -> str:
        """Return the host's only stream."""
        return _ONLY_STREAM

    def views(self, memory: HostBuffer, layout: Layout, lease: Lease) -> list[NDArray[Any]]:
        """Return one NumPy array per field."""
        # NumPy keeps the object whose interface it reads, and every view keeps its base. So the lease ends
        # with the last view, and no finalizer has to know about slices and reshapes.
        lease.__array_interface__ = memory.bytes.__array_interface__
        region = np.asarray(lease)
        return [np.ndarray(field.shape, field.dtype, region, field.offset) for field in layout.fields]
