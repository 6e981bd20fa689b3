"""The duration of copies on the copy stream, measured with events, because the host does not see it."""

from __future__ import annotations

from time import perf_counter_ns

from gpuloader.devices.base import Device, DeviceCalls, Event, Stream
from gpuloader.watch.stats import Meter
from gpuloader.watch.tracing import COPIES, is_tracing, mark

EVERY = 32
"""One copy in this many is timed, once as many have been, so that timing costs next to nothing per batch."""


class Timing:
    """One timed copy.

    Attributes
    ----------
    begun, done : Event
        Recorded before and behind it.
    weight : int
        The copies for which its duration counts.
    traced : bool
        Whether a trace shows it.
    """

    __slots__ = ("begun", "done", "traced", "weight")

    def __init__(self, begun: Event, done: Event, weight: int, traced: bool) -> None:
        self.begun, self.done, self.weight, self.traced = begun, done, weight, traced


class CopyTimer:
    """Times the copies of one copy stream: all of them while a trace runs, and ever fewer without one.

    The event behind a timed copy also tells when its host slot is free. So its owner asks for it, and the
    timer asks for nothing.

    Only the consumer calls it, from one thread at a time.

    Parameters
    ----------
    device : Device
        The device that is copied to.
    stream : Stream
        Its copy stream.
    meter : Meter
        Adds up the time; without a trace, each timed copy counts for those since the last one, too.
    """

    def __init__(self, device: Device, stream: Stream, meter: Meter) -> None:
        self._device = device
        self._stream = stream
        self._meter = meter
        self._row = device.name + COPIES
        self._untimed = 0
        self._gap = 1
        self._anchor: tuple[Event, int] | None = None
        self._spare: list[Event] = []

    def begin(self, device: DeviceCalls) -> Timing | None:
        """Record the start of the next copy, and return its timing, if it is timed."""
        self._untimed += 1
        if is_tracing():
            if self._anchor is None:
                self._set_anchor()
        else:
            self._anchor = None
            if self._untimed < self._gap:
                return None
            self._gap = min(2 * self._gap, EVERY)
        weight, self._untimed = self._untimed, 0
        timing = Timing(self._event(), self._event(), weight, self._anchor is not None)
        device.record(timing.begun, self._stream)
        return timing

    def count(self, timing: Timing, device: DeviceCalls) -> None:
        """Count a timed copy whose last event has been reached."""
        seconds = device.elapsed(timing.begun, timing.done)
        self._meter.copy += int(seconds * 1e9) * timing.weight
        if timing.traced and self._anchor is not None:
            event, time = self._anchor
            start = time + int(device.elapsed(event, timing.begun) * 1e9)
            mark("copy", start, start + int(seconds * 1e9), self._row)
        self._spare += timing.begun, timing.done

    def _event(self) -> Event:
        return self._spare.pop() if self._spare else self._device.event(timed=True)

    def _set_anchor(self) -> None:
        """Relate an event on the copy stream to the host's clock; waits for the copies in progress."""
        event = self._device.event(timed=True)
        self._device.record(event, self._stream)
        self._device.synchronize(event)
        self._anchor = event, perf_counter_ns()
