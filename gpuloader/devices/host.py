"""The CPU as a device: all work runs immediately, and batches lie in the slot itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.devices.base import Device, HostMemory
from gpuloader.staging import Layout, Lease, PageLocker, Slot

if TYPE_CHECKING:
    from gpuloader.transforms.program import BatchProgram


@dataclass(eq=False, repr=False)
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

    def alloc(self, nbytes: int) -> Slot:
        """Return new host memory."""
        return Slot(np.empty(nbytes, np.uint8), None, in_ring=False)

    def stream(self, *, urgent: bool = False) -> str:
        """Return the host's only stream."""
        return "host"

    def event(self, *, timed: bool = False) -> str:
        """Return the host's only event, which is always reached."""
        return "done"

    def copy_async(self, target: Slot, source: HostMemory, nbytes: int, stream: str, offset: int = 0) -> None:
        """Copy immediately."""
        target.bytes[offset : offset + nbytes] = source.bytes[:nbytes]

    def copy_between(self, target: Slot, source: Slot, nbytes: int, stream: str, to: int, at: int) -> None:
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

    def run(self, program: BatchProgram, memory: Slot, stream: str) -> None:
        """Run a program immediately."""
        program.run_on_host(self.arrays(memory, program.whole))

    def arrays(self, memory: Slot, layout: Layout) -> list[NDArray[Any]]:
        """Return one NumPy array per field."""
        return [*memory.views(layout)]

    def holds(self, memory: Slot, array: Any) -> bool:
        """Return whether an array lies in `memory`."""
        return bool(np.may_share_memory(memory.bytes, array))

    consumer_stream = stream

    def views(self, memory: Slot, layout: Layout, lease: Lease) -> list[NDArray[Any]]:
        """Return one NumPy array per field."""
        # NumPy keeps the object whose interface it reads, and every view keeps its base. So the lease ends
        # with the last view, and no finalizer has to know about slices and reshapes.
        lease.__array_interface__ = memory.interface
        region = np.asarray(lease)
        return [np.ndarray(one.shape, one.dtype, region, one.offset, one.strides) for one in layout.fields]
