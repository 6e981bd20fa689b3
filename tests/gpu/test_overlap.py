"""Copies run beside kernels: shown by events, and by how long steps take against their parts."""

import itertools
import statistics

import numpy as np
import pytest

from gpuloader import DataLoader
from gpuloader.kernels.spin import spin
from tests.fakes import wait_until

MIB = 1 << 20


def test_the_next_copy_is_done_while_the_consumer_still_computes():
    """A latch: the consumer's stream is held, and the next step's `ready` comes all the same."""
    import cupy

    loader = DataLoader.from_generator(capacity=4, return_list=True)
    loader.set_batch_generator(lambda: ([np.zeros(MIB, np.uint8)] for _ in range(8)), places="gpu:0")
    epoch = iter(loader)
    next(epoch)
    wait_until(lambda: loader.stats().batches >= 5)
    next(epoch)  # issues the copy of the step behind it before it returns
    spin(200_000_000)
    held = cupy.cuda.Event(disable_timing=True)
    held.record()
    [landings] = epoch._pipeline._flying
    ready = landings[0].slot.ready
    ready.synchronize()
    assert cupy.cuda.runtime.eventQuery(held.ptr) == 600  # the spin had not ended when the copy had
    held.synchronize()


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_a_step_takes_as_long_as_the_longest_of_stage_copy_and_compute(ratio):
    """Staging is measured too: one host thread may write a slot more slowly than the bus empties it."""
    import cupy

    nbytes, steps = 64 * MIB, 30
    source = np.zeros(nbytes, np.uint8)
    loader = DataLoader.from_generator(capacity=4, return_list=True)
    loader.set_batch_generator(lambda: ([source] for _ in range(steps)), places="gpu:0")
    for _ in loader:
        pass
    stage = loader.stats().stage / loader.stats().batches * 1e3
    longest = max(measure_copy(nbytes), stage)
    compute = longest * ratio
    times = []
    for _ in range(5):
        events = []
        for _ in loader:
            spin(int(compute * 1e6))
            event = cupy.cuda.Event()
            event.record()
            events.append(event)
        events[-1].synchronize()
        gaps = [cupy.cuda.get_elapsed_time(one, other) for one, other in itertools.pairwise(events[5:])]
        times.append(statistics.mean(gaps))
    assert statistics.median(times) <= 1.1 * max(longest, compute)


def measure_copy(nbytes):
    """Return the milliseconds a raw copy from page-locked memory takes, the median of nine."""
    import cupy

    pinned = cupy.cuda.alloc_pinned_memory(nbytes)
    target = cupy.cuda.alloc(nbytes)
    stream = cupy.cuda.Stream(non_blocking=True)
    times = []
    for _ in range(9):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        cupy.cuda.runtime.memcpyAsync(target.ptr, pinned.ptr, nbytes, 1, stream.ptr)
        end.record(stream)
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end))
    return statistics.median(times)
