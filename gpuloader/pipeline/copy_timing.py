"""The duration of copies on the copy stream, measured with events, because the host does not see it."""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns

from gpuloader.devices.base import Device, DeviceCalls, Event, Stream
from gpuloader.watch.stats import Meter
from gpuloader.watch.tracing import COPIES, is_tracing, mark

EVERY = 8
"""One copy in this many is timed, so that two events and a driver query cost little per batch."""


class CopyTimer:
    """Times the copies of one copy stream: one in `EVERY`, and all of them while a trace runs.

    Only the consumer calls it, from one thread at a time.

    Parameters
    ----------
    device : Device
        The device that is copied to.
    stream : Stream
        Its copy stream.
    meter : Meter
        Adds up the time; without a trace, each timed copy counts for `EVERY` copies.
    """

    def __init__(self, device: Device, stream: Stream, meter: Meter) -> None:
        self._device = device
        self._stream = stream
        self._meter = meter
        self._row = device.name + COPIES
        self._issued = 0
        self._anchor: tuple[Event, int] | None = None
        self._begun: Event = None
        self._spare: list[Event] = []
        self._under_way: deque[tuple[Event, Event, int, bool]] = deque()

    def begin(self, device: DeviceCalls) -> None:
        """Record the start of the next copy, if this copy is timed."""
        self._begun = None
        tracing = is_tracing()
        self._issued += 1
        if not tracing:
            self._anchor = None
            if self._issued % EVERY != 1:
                return
        elif self._anchor is None:
            self._set_anchor()
        begun = self._event()
        device.record(begun, self._stream)
        self._begun = begun

    def end(self, device: DeviceCalls) -> None:
        """Record the end of the copy that `begin` has begun."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        done = self._event()
        device.record(done, self._stream)
        traced = self._anchor is not None
        self._under_way.append((begun, done, 1 if traced else EVERY, traced))

    def collect(self, device: DeviceCalls) -> None:
        """Count every timed copy that has finished."""
        under_way = self._under_way
        while under_way and device.query(under_way[0][1]):
            begun, done, weight, traced = under_way.popleft()
            seconds = device.elapsed(begun, done)
            self._meter.copy += int(seconds * 1e9) * weight
            if traced and self._anchor is not None:
                event, time = self._anchor
                start = time + int(device.elapsed(event, begun) * 1e9)
                mark("copy", start, start + int(seconds * 1e9), self._row)
            self._spare += begun, done

    def forget(self) -> None:
        """Drop the copies that are not counted yet: the epoch is over, and this may be a forked child."""
        self._under_way.clear()

    def _event(self) -> Event:
        return self._spare.pop() if self._spare else self._device.event(timed=True)

    def _set_anchor(self) -> None:
        """Relate an event on the copy stream to the host's clock; waits for the copies in progress."""
        event = self._device.event(timed=True)
        self._device.record(event, self._stream)
        self._device.synchronize(event)
        self._anchor = event, perf_counter_ns()
