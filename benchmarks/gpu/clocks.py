"""Time on the device and on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter

import cupy

from gpuloader.kernels.spin import spin

HOST_TO_DEVICE, DEVICE_TO_DEVICE = 1, 3
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Pinned:
    """Page-locked memory of exactly this size from cudaHostAlloc, every page of it written once.

    Attributes
    ----------
    ptr : int
        Its address.
    """

    def __init__(self, nbytes: int) -> None:
        self._memory = cupy.cuda.pinned_memory.PinnedMemory(nbytes)
        self.ptr: int = self._memory.ptr
        ctypes.memset(self.ptr, 0, nbytes)


def copies(nbytes: int, sources: list[int], count: int) -> Callable[[], float]:
    """Return what copies `count` times from the given host addresses in turn, in microseconds a copy."""
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
    """Return what times `count` launches on the current stream, in microseconds of the device each.

    The device spins for `ahead` seconds meanwhile, so that all of them are queued when the first one starts
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
    """Return what times the same launches, in microseconds of the host each."""

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
    """Wait for everything on the current device."""
    cupy.cuda.runtime.deviceSynchronize()
