"""How long copies take on the copy stream: read off events there, since the host never sees it."""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns

from gpuloader.devices.base import Device, Event, Stream
from gpuloader.watch.stats import Meter
from gpuloader.watch.tracing import COPIES, is_tracing, mark

EVERY = 8
"""One copy in so many is timed, so that two events and a question to the driver cost little a batch."""


class CopyTimer:
    """Times copies of one copy stream: one in `EVERY`, and all of them while a trace runs.

    All calls are the consumer's, one at a time.

    Parameters
    ----------
    device : Device
        Whose copies.
    stream : Stream
        The copy stream.
    meter : Meter
        Counts their time; a copy timed for all stands for `EVERY`.
    """

    def __init__(self, device: Device, stream: Stream, meter: Meter) -> None:
        self._device = device
        self._stream = stream
        self._meter = meter
        self._row = device.name + COPIES
        self._issued = 0
        self._anchor: tuple[Event, int] | None = None
        self._spare: list[Event] = []
        self._under_way: deque[tuple[Event, Event, int, bool]] = deque()

    def begin(self) -> Event:
        """Mark the start of the copy that is issued next; None where this one is not timed."""
        tracing = is_tracing()
        self._issued += 1
        if not tracing:
            self._anchor = None
            if self._issued % EVERY != 1:
                return None
        elif self._anchor is None:
            self._set_anchor()
        begun = self._event()
        self._device.record(begun, self._stream)
        return begun

    def end(self, begun: Event) -> None:
        """Mark the end of the copy that `begin` marked the start of."""
        if begun is None:
            return
        done = self._event()
        self._device.record(done, self._stream)
        traced = self._anchor is not None
        self._under_way.append((begun, done, 1 if traced else EVERY, traced))

    def collect(self) -> None:
        """Count every timed copy that has run."""
        under_way = self._under_way
        while under_way and self._device.query(under_way[0][1]):
            begun, done, weight, traced = under_way.popleft()
            seconds = self._device.elapsed(begun, done)
            self._meter.copy += int(seconds * 1e9) * weight
            if traced and self._anchor is not None:
                event, time = self._anchor
                start = time + int(self._device.elapsed(event, begun) * 1e9)
                mark("copy", start, start + int(seconds * 1e9), self._row)
            self._spare += begun, done

    def forget(self) -> None:
        """Give up on the copies that were not counted yet: the epoch is over, perhaps in a forked child."""
        self._under_way.clear()

    def _event(self) -> Event:
        return self._spare.pop() if self._spare else self._device.event(timed=True)

    def _set_anchor(self) -> None:
        """Learn what time on the host an event on the copy stream is; waits for the copies under way."""
        event = self._device.event(timed=True)
        self._device.record(event, self._stream)
        self._device.synchronize(event)
        self._anchor = event, perf_counter_ns()
