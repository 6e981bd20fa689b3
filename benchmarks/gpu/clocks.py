"""Clocks for device time and host time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter

import cupy

from gpuloader.kernels.spin import spin

HOST_TO_DEVICE, DEVICE_TO_DEVICE = 1, 3
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Pinned:
    """Page-locked memory of exactly `nbytes` bytes from cudaHostAlloc, with every page written once.

    Attributes
    ----------
    ptr : int
        The memory's address.
    """

    def __init__(self, nbytes: int) -> None:
        self._memory = cupy.cuda.pinned_memory.PinnedMemory(nbytes)
        self.ptr: int = self._memory.ptr
        ctypes.memset(self.ptr, 0, nbytes)


def copies(nbytes: int, sources: list[int], count: int) -> Callable[[], float]:
    """Return a function that times `count` copies from the host addresses in turn, in µs per copy."""
    stream = cupy.cuda.Stream(non_blocking=True)
    target = cupy.cuda.Memory(nbytes)
    copy = cupy.cuda.runtime.memcpyAsync

    def run() -> float:
        start = perf_counter()
        for number in range(count):
            copy(target.ptr, sources[number % len(sources)], nbytes, HOST_TO_DEVICE, stream.ptr)
        stream.synchronize()
        return (perf_counter() - start) / count * 1e6

    return run


def on_device(launch: Callable[[], object], count: int, ahead: float = 0.02) -> Callable[[], float]:
    """Return a function that times `count` launches on the current stream, in device µs per launch.

    The device spins for `ahead` seconds first, so that all launches are queued when the first one starts
    and none waits for the host.
    """

    def run() -> float:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        spin(int(ahead * 1e9))
        start.record()
        for _ in range(count):
            launch()
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) / count * 1e3

    return run


def on_host(launch: Callable[[], object], count: int, ahead: float = 0.02) -> Callable[[], float]:
    """Return a function that times the same launches, in host µs per launch."""

    def run() -> float:
        spin(int(ahead * 1e9))
        start = perf_counter()
        for _ in range(count):
            launch()
        seconds = perf_counter() - start
        synchronize()
        return seconds / count * 1e6

    return run


def synchronize() -> None:
    """Wait for all work on the current device."""
    cupy.cuda.runtime.deviceSynchronize()
