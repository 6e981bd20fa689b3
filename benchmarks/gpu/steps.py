"""Measure the cost of a batch to a training step, in device time and in host time."""

from __future__ import annotations

import itertools
import statistics
import zlib
from collections.abc import Iterator
from time import perf_counter, perf_counter_ns
from typing import Any

import cupy
import numpy as np

from benchmarks.gpu.clocks import MIB, Pinned, copies, on_device, synchronize
from benchmarks.gpu.ready import ReadyBuffers
from benchmarks.gpu.turns import Judged, measure, take_turns
from gpuloader import DataLoader, TensorDataset
from gpuloader.kernels.spin import spin

STEPS = 60
WARM = 8
_WORK = bytes(64 << 10)
LONGEST = "the longer of copy and compute"


def steps(repeats: int) -> list[Judged]:
    """Time steps whose kernel takes 0.5, 1 and 2 times as long as the copy of their batch."""
    return [_steps(nbytes, ratio, repeats) for nbytes in (4 * MIB, 64 * MIB) for ratio in (0.5, 1.0, 2.0)]


def _steps(nbytes: int, ratio: float, repeats: int) -> Judged:
    """Time one kind of step as the interval between the ends of consecutive kernels, in device time."""
    buffers = ReadyBuffers(nbytes)
    pinned = Pinned(nbytes * buffers.slots)
    copy = copies(nbytes, [pinned.ptr + number * nbytes for number in range(buffers.slots)], STEPS)
    copy()
    compute = int(statistics.median(copy() for _ in range(5)) * ratio * 1e3)

    def step() -> float:
        events = []
        for arrays in buffers.epoch(STEPS):
            del arrays
            spin(compute)
            event = cupy.cuda.Event()
            event.record()
            events.append(event)
        events[-1].synchronize()
        last = STEPS - 1 - WARM
        return float(cupy.cuda.get_elapsed_time(events[WARM], events[-1])) / last * 1e3

    rows = take_turns(
        {"copy alone": copy, "compute alone": on_device(lambda: spin(compute), STEPS), "a step": step},
        repeats,
    )
    longest = max((rows["copy alone"], rows["compute alone"]), key=lambda one: one.median)
    return Judged(
        f"steps of {nbytes // MIB} MiB, compute {ratio:g} times the copy, prefilled slots",
        "µs per step",
        LONGEST,
        "1.02 times the longer of copy and compute",
        {LONGEST: longest, **rows},
        "a step",
        1.02,
    )


def host_time(repeats: int) -> list[Judged]:
    """Time the host's part of `next` when a batch is ready.

    With a reader, its thread fills slots while the consumer computes with the GIL released, and only `next`
    is timed. Prefilled slots, one batch after another, time the pipeline by itself.
    """
    batch = [np.zeros((32, 784), np.float32), np.zeros((32, 1), np.int64)]
    count = 400

    def reader() -> Iterator[Any]:
        return itertools.repeat(batch, count)

    read = DataLoader.from_generator(capacity=16, return_list=True)
    read.set_batch_generator(reader, places="gpu:0")
    images = np.zeros((100 * count, 784), np.float32)
    taken = DataLoader(TensorDataset(images), places="gpu:0", batch_size=100, shuffle=True)
    resident = DataLoader(TensorDataset(images), places="gpu:0", batch_size=100, shuffle=True, cache="device")
    buffers = ReadyBuffers(32 * 784 * 4 + 256)
    name = "from_generator, reader ahead"
    case = Judged(
        "host time of a ready batch, 32 x 784 float32 and labels",
        "µs per call of next",
        None,
        "at most 25",
        {},
        name,
        25.0,
    )
    candidates = {
        name: lambda: _calls(iter(read), pause=0.0005),
        "prefilled slots, one after another": lambda: _calls(buffers.epoch(count), pause=0),
        "arrays, 100 x 784, fetched by next itself": lambda: _calls(iter(taken), pause=0),
        "arrays on the device, 100 x 784, gathered there": lambda: _calls(iter(resident), pause=0),
    }
    return [measure(case, candidates, repeats)]


def compute_on_host(seconds: float) -> None:
    """Keep the calling thread busy for a while, with the GIL released nearly all the time."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        zlib.crc32(_WORK)


def _calls(epoch: Any, pause: float) -> float:
    """Return the median time of an epoch's calls; as in a loop, each includes dropping the previous batch."""
    times = []
    batch: Any = next(epoch)
    while True:
        compute_on_host(pause)
        begun = perf_counter_ns()
        try:
            batch = next(epoch)
        except StopIteration:
            break
        times.append(perf_counter_ns() - begun)
    del batch
    synchronize()
    return statistics.median(times) / 1e3
