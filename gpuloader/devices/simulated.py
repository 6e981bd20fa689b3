"""A simulated device: a virtual clock, streams that run late and in random order, and a race detector.

Work on a stream runs only when something forces it: the host synchronizes, the host queries an event (which
runs a few steps of random streams), or the host reads an array. So missing synchronization in a lane
eventually shows up as stale bytes. The race detector does not have to wait for that. Each stream has a vector
clock (Fidge 1988, Mattern 1989), and events pass clocks on. Two uses of the same memory conflict if at least
one of them writes. If neither happens before the other, `RaceError` is raised every time, when the second use
is put on its stream.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.devices.base import Codec, Device, DeviceImage, HostMemory
from gpuloader.errors import DecodeError, LoaderError, StagingMemoryError
from gpuloader.sources.images.image import decode_code
from gpuloader.sources.images.regions import Code
from gpuloader.staging import Layout, Lease, PageLocker, Slot
from gpuloader.transforms.program import BatchProgram, KernelCall

_POISON = 0xAB


class RaceError(LoaderError):
    """Two uses of the same memory are not ordered, and at least one of them writes."""


@dataclass(eq=False, slots=True)
class SimulatedWork:
    """One entry of a stream: wait for `after`, then do the work; waiting for an event is waiting for one."""

    issued: float = 0.0  # the virtual time at which the host enqueued it
    duration: float = 0.0
    after: SimulatedWork | None = None
    work: Callable[[], object] | None = None
    clock: Counter[int] = field(default_factory=Counter)  # of this entry and of all that precede it
    reached: bool = False
    time: float = 0.0  # the virtual time at which it was done


@dataclass(eq=False)
class SimulatedEvent:
    """An event; holds the entry of a stream that its last recording marked."""

    mark: SimulatedWork | None = None


@dataclass(eq=False)
class SimulatedStream:
    """A stream: its pending work, its vector clock, and the virtual time at which it is idle.

    The clock counts what happens, in each stream, before the next work on this one. The union of two clocks,
    as of all counters, takes the larger count of each stream.
    """

    number: int
    work: deque[SimulatedWork] = field(default_factory=deque)
    clock: Counter[int] = field(default_factory=Counter)
    time: float = 0.0


@dataclass(eq=False)
class SimulatedMemory:
    """Device memory: host bytes, and each stream's latest uses, as their numbers and ticks."""

    nbytes: int
    bytes: NDArray[np.uint8]
    writer: tuple[int, int] | None = None
    readers: dict[int, int] = field(default_factory=dict)
    __array_interface__: dict[str, Any] = field(default_factory=dict)  # set where arrays lie in the memory

    def use(self, stream: SimulatedStream, *, writes: bool) -> None:
        """Note a use by a stream; raise `RaceError` unless all conflicting uses happened before it."""
        clock = stream.clock
        # Two reads never conflict. Work that this stream's clock does not count may still be running.
        if self.writer is not None and clock[self.writer[0]] < self.writer[1]:
            act = "overwritten" if writes else "read"
            raise RaceError(f"device memory is {act} before the copy into it is known to be done")
        if not writes:
            self.readers[stream.number] = clock[stream.number]
            return
        for number, tick in self.readers.items():
            if clock[number] < tick:
                raise RaceError("device memory is overwritten while a kernel may still read the batch in it")
        self.writer, self.readers = (stream.number, clock[stream.number]), {}


class SimulatedArray:
    """An array of a batch on a simulated device; it is sliced, and read by kernels and `numpy.asarray`."""

    def __init__(self, device: SimulatedDevice, memory: SimulatedMemory, data: Any, lease: Lease) -> None:
        self._device, self._memory, self._data, self._lease = device, memory, data, lease
        self.shape, self.dtype = data.shape, data.dtype

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:  # without the values, whose copy may not be done
        return f"<SimulatedArray {self.shape} {self.dtype} on {self._device.name}>"

    def _view(self, data: Any) -> SimulatedArray:
        return SimulatedArray(self._device, self._memory, data, self._lease)

    def __getitem__(self, key: Any) -> SimulatedArray:
        return self._view(self._data[key])

    def reshape(self, *shape: Any) -> SimulatedArray:
        """Return a view of another shape."""
        return self._view(self._data.reshape(*shape))

    def transpose(self, axes: tuple[int, ...]) -> SimulatedArray:
        """Return a view with its dimensions in another order."""
        return self._view(self._data.transpose(axes))

    def launch_read(self, stream: SimulatedStream | None = None, duration: float = 0.0) -> list[Any]:
        """Launch a kernel that reads this array; it appends the values it saw to the returned list."""
        seen: list[Any] = []
        data = self._data  # not self: a kernel does not keep the user's batch alive
        self._device.launch(lambda: seen.append(data.copy()), [self._memory], stream, duration)
        return seen

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        seen = self.launch_read()
        self._device.finish(self._device.consumer_stream())
        return np.asarray(seen[0], dtype)


class SimulatedDevice(Device):
    """A device whose copies take virtual time and whose streams run in random order.

    Parameters
    ----------
    name : str
        The device's name in messages.
    seed : int
        The seed of the random order.
    copy_time : callable
        Returns the virtual seconds that a copy takes, given its number of bytes.
    memory_limit : int or None
        Total bytes that `alloc` hands out before it raises `StagingMemoryError`; None means no limit.
    locker : PageLocker or None
        Pins the slots; pass one that refuses, to test how the loader handles that.
    bus_id : str
        The device's position on the PCI bus, which determines its NUMA node.
    codec : Codec or None
        Decodes images; None decodes them as workers do.

    Examples
    --------
    >>> device = SimulatedDevice()
    >>> stream, event = device.stream(), device.event()
    >>> device.launch(lambda: None, [], stream, duration=2.0)
    >>> device.record(event, stream); device.synchronize(event); device.now
    2.0
    """

    direct = False

    def __init__(
        self,
        name: str = "simulated:0",
        *,
        seed: int = 0,
        copy_time: Callable[[int], float] = lambda _: 1.0,
        memory_limit: int | None = None,
        locker: PageLocker | None = None,
        bus_id: str = "",
        codec: Codec | None = None,
    ) -> None:
        self.name = name
        self._codec = codec
        self._bus_id = bus_id
        self.locker = locker
        self.now = 0.0
        self._random = random.Random(seed)
        self._copy_time = copy_time
        self._memory_left = memory_limit
        self._streams: list[SimulatedStream] = []
        self._known: Counter[int] = Counter()  # what the host has learned to be done
        self._lock = threading.RLock()
        self._default = self.stream()
        self._current = threading.local()

    def bus_id(self) -> str:
        """Return the position that was passed."""
        return self._bus_id

    def codec(self) -> Codec:
        """Return what decodes images."""
        return _SimulatedCodec(self) if self._codec is None else self._codec

    def alloc(self, nbytes: int) -> SimulatedMemory:
        """Return poisoned memory."""
        if self._memory_left is not None:
            if nbytes > self._memory_left:
                raise StagingMemoryError(
                    f"cannot allocate {nbytes:,} bytes on {self.name}: {self._memory_left:,} bytes are left"
                )
            self._memory_left -= nbytes
        # A poison value, so that a batch read before its copy shows up as wrong values and not as zeros.
        return SimulatedMemory(nbytes, np.full(max(nbytes, 1), _POISON, np.uint8))

    def stream(self, *, urgent: bool = False) -> SimulatedStream:  # noqa: ARG002
        """Return a new stream; there are no priorities."""
        with self._lock:
            stream = SimulatedStream(len(self._streams))
            self._streams.append(stream)
            return stream

    def event(self, *, timed: bool = False) -> SimulatedEvent:  # noqa: ARG002
        """Return a new event; all events record the virtual time."""
        return SimulatedEvent()

    def _enqueue(
        self,
        stream: SimulatedStream,
        work: Callable[[], object] | None,
        reads: Iterable[SimulatedMemory] = (),
        writes: SimulatedMemory | None = None,
        duration: float = 0.0,
    ) -> SimulatedWork:
        """Put work on a stream; raise `RaceError` now if its uses of memory are not ordered behind others."""
        with self._lock:
            # Whatever the host has waited for precedes this work.
            stream.clock |= self._known
            stream.clock[stream.number] += 1
            for memory in reads:
                memory.use(stream, writes=False)
            if writes is not None:
                writes.use(stream, writes=True)
            stream.work.append(SimulatedWork(self.now, duration, None, work, stream.clock.copy()))
            return stream.work[-1]

    def copy_async(
        self,
        target: SimulatedMemory,
        source: HostMemory,
        nbytes: int,
        stream: SimulatedStream,
        offset: int = 0,
    ) -> None:
        """Enqueue a copy on `stream`; when it runs, it raises `RaceError` if `source` has changed since."""
        region = source.bytes[:nbytes]
        promised = zlib.crc32(region.data)

        def copy() -> None:
            if zlib.crc32(region.data) != promised:
                raise RaceError("a host slot was rewritten before the copy out of it had run")
            target.bytes[offset : offset + nbytes] = region

        self._enqueue(stream, copy, writes=target, duration=self._copy_time(nbytes))

    def copy_between(
        self,
        target: SimulatedMemory,
        source: SimulatedMemory,
        nbytes: int,
        stream: SimulatedStream,
        to: int,
        at: int,
    ) -> None:
        """Enqueue a copy within the device, which takes no virtual time."""
        copy = partial(np.copyto, target.bytes[to : to + nbytes], source.bytes[at : at + nbytes])
        self._enqueue(stream, copy, [source], target)

    def launch(
        self,
        kernel: Callable[[], None],
        reads: list[SimulatedMemory],
        stream: SimulatedStream | None = None,
        duration: float = 0.0,
    ) -> None:
        """Enqueue a kernel that reads the given memory on a stream; None means the consumer's stream."""
        self._enqueue(stream or self.consumer_stream(), kernel, reads, duration=duration)

    def arrays(self, memory: SimulatedMemory, layout: Layout) -> list[NDArray[Any]]:
        """Return one NumPy array per field over the memory's bytes, which refer to it by their bases."""
        memory.__array_interface__ = memory.bytes.__array_interface__
        return Slot(np.asarray(memory), memory).views(layout)

    def run(self, program: BatchProgram, memory: SimulatedMemory, stream: SimulatedStream) -> None:
        """Enqueue a program on a stream; it computes within `memory`, and may read other device memory."""
        # A program knows what it reads elsewhere, such as a cached dataset, as arrays over its bytes.
        found: list[SimulatedMemory] = []
        for step in program.steps:
            options = step.operation.options if isinstance(step.operation, KernelCall) else {}
            for given in options.values():
                owner = getattr(getattr(given, "base", None), "base", None)
                if isinstance(owner, SimulatedMemory):
                    found.append(owner)
        self._enqueue(stream, partial(program.run_on_host, self.arrays(memory, program.whole)), found, memory)

    def record(self, event: SimulatedEvent, stream: SimulatedStream) -> None:
        """Mark the current end of `stream`."""
        event.mark = self._enqueue(stream, None)

    def wait(self, stream: SimulatedStream, event: SimulatedEvent) -> None:
        """Make later work on `stream` wait for the event's current mark."""
        with self._lock:
            # As in CUDA, the mark that the event has now counts, and recording again does not move the wait.
            if event.mark is not None:
                stream.clock |= event.mark.clock
                stream.work.append(SimulatedWork(after=event.mark))

    def query(self, event: SimulatedEvent) -> bool:
        """Run a few steps of random streams, then return whether the mark is reached."""
        with self._lock:
            for _ in range(self._random.randrange(4)):
                self._step()
            if event.mark is None:
                return True
            if event.mark.reached:
                self._known |= event.mark.clock
            return event.mark.reached

    def synchronize(self, event: SimulatedEvent) -> None:
        """Run streams in random order until the mark is reached."""
        with self._lock:
            if (mark := event.mark) is None:
                return
            while not mark.reached:
                if not self._step():
                    raise LoaderError(f"{self.name}: the host waits for an event that will never be reached")
            self._known |= mark.clock
            self.now = max(self.now, mark.time)

    def elapsed(self, start: SimulatedEvent, end: SimulatedEvent) -> float:
        """Return the virtual seconds between two events that have been reached."""
        if start.mark is None or end.mark is None:
            raise LoaderError(f"{self.name}: the time of an event was asked for that was never recorded")
        return end.mark.time - start.mark.time

    def finish(self, stream: SimulatedStream) -> None:
        """Block the host until all work on `stream` has run."""
        event = self.event()
        self.record(event, stream)
        self.synchronize(event)

    def holds(self, memory: SimulatedMemory, array: Any) -> bool:
        """Return whether an array of a batch lies in `memory`."""
        return isinstance(array, SimulatedArray) and array._memory is memory

    def consumer_stream(self) -> SimulatedStream:
        """Return the calling thread's current stream."""
        return getattr(self._current, "stream", self._default)

    @contextmanager
    def use(self, stream: SimulatedStream) -> Iterator[None]:
        """Make `stream` the calling thread's current stream within the block."""
        before, self._current.stream = self.consumer_stream(), stream
        try:
            yield
        finally:
            self._current.stream = before

    def views(self, memory: SimulatedMemory, layout: Layout, lease: Lease) -> list[SimulatedArray]:
        """Return one simulated array per field."""
        return list(map(partial(SimulatedArray, self, memory, lease=lease), self.arrays(memory, layout)))

    def _step(self) -> bool:
        """Run the first entry of a random stream that need not wait; return False if there is none."""
        ready = []
        for stream in self._streams:
            if stream.work and (stream.work[0].after is None or stream.work[0].after.reached):
                ready.append(stream)
        if not ready:
            return False
        stream = self._random.choice(ready)
        one = stream.work.popleft()
        if one.work is not None:
            one.work()
        begun = max(stream.time, one.issued, 0.0 if one.after is None else one.after.time)
        stream.time = begun + one.duration
        one.reached, one.time = True, stream.time
        return True


class _SimulatedCodec:
    """Decodes images with the CPU's decoders, but late, and in memory that the device checks for races."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device

    def decode(self, codes: Sequence[Code], stream: SimulatedStream) -> list[DeviceImage | None]:
        """Decode as `Codec.decode` does; raise `RaceError` late if a code has changed since."""
        return [self._decode(code, stream) for code in codes]

    def _decode(self, code: Code, stream: SimulatedStream) -> DeviceImage | None:
        try:
            pixels = decode_code(code)
        except DecodeError:
            return None
        height, width, channels = pixels.shape
        memory = self._device.alloc(pixels.size)
        promised = zlib.crc32(code.data.data)

        def compute() -> None:
            # The pixels are known already; what matters is that the slot is left alone until now.
            if zlib.crc32(code.data.data) != promised:
                raise RaceError("a host slot was rewritten before what was encoded in it was decoded")
            memory.bytes[: pixels.size] = pixels.reshape(-1)

        self._device._enqueue(stream, compute, writes=memory)
        address = memory.bytes.__array_interface__["data"][0]
        return DeviceImage(address, width * channels, height, width * channels, memory)

    def copy(self, target: SimulatedMemory, image: DeviceImage, stream: SimulatedStream, offset: int) -> None:
        """Enqueue a copy of a decoded image."""
        assert isinstance(image.owner, SimulatedMemory)
        self._device.copy_between(target, image.owner, image.height * image.width, stream, offset, 0)
