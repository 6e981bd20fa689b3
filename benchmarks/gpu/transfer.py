"""What the road to one GPU costs: bandwidth beside a raw copy, host time a batch, step time beside its parts.

python benchmarks/gpu/transfer.py [--repeats N] [--output FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import cupy
import numpy as np

from benchmarks.measure import Result, Spread, describe_machine, interleave
from benchmarks.run import render
from gpuloader import CUDAPlace, DataLoader
from gpuloader.collate.stream import StagedBatch
from gpuloader.devices import open_device
from gpuloader.kernels.spin import spin
from gpuloader.staging.layout import arrange
from gpuloader.staging.ring import Ring
from gpuloader.transfer import Lane

KIB, MIB = 1 << 10, 1 << 20
SIZES = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]


def bandwidth(nbytes: int, repeats: int) -> Result:
    """Time one copy after another of staged slots through a lane, and the same bytes by bare memcpyAsync.

    Staging is left out: it is the processor's speed, and measured by the other benchmarks.
    """
    count = max(8, min(200, 2048 * MIB // nbytes))
    pinned = cupy.cuda.alloc_pinned_memory(nbytes)
    target = cupy.cuda.alloc(nbytes)
    stream = cupy.cuda.Stream(non_blocking=True)

    def bare() -> float:
        start = perf_counter()
        for _ in range(count):
            cupy.cuda.runtime.memcpyAsync(target.ptr, pinned.ptr, nbytes, 1, stream.ptr)
        stream.synchronize()
        return (perf_counter() - start) / count * 1e6

    device = open_device(CUDAPlace(0))
    ring = Ring(4, 0, device.locker)
    lane = Lane(device, ring, prefetch=1)
    layout = arrange((((nbytes,), np.dtype(np.uint8)),))

    def ours() -> float:
        start = perf_counter()
        for number in range(count):
            lane.drain()
            while not ring.free and number:
                lane.finish_oldest_copy()
            landing = lane.issue(StagedBatch(ring.acquire(nbytes), layout, (0,), number))
            lane.deliver(landing)
        lane.close()
        return (perf_counter() - start) / count * 1e6

    rows = interleave({"bare memcpyAsync": bare, "gpuloader, copy and delivery": ours}, repeats)
    return Result(
        f"copies of {nbytes // KIB:,} KiB", "µs a copy", "bare memcpyAsync", "at most 1.03 at 16 MiB", rows
    )


def host_time(repeats: int) -> Result:
    """Time what `next` costs the host when the batch is ready, 32 x 784 float32 with labels."""
    batch = [np.zeros((32, 784), np.float32), np.zeros((32, 1), np.int64)]
    loader = DataLoader.from_generator(capacity=64, return_list=True)
    loader.set_batch_generator(lambda: itertools.repeat(batch, 400), places="gpu:0")

    def run() -> float:
        times = []
        epoch = iter(loader)
        for _ in range(400):
            start = perf_counter_ns()
            arrays = next(epoch)
            times.append((perf_counter_ns() - start) / 1000)
            del arrays
            end = perf_counter() + 0.0002  # the reader gets ahead again
            while perf_counter() < end:
                pass
        return statistics.median(times)

    return Result(
        "host time of a ready batch", "µs", None, "at most 25", interleave({"next(epoch)": run}, repeats)
    )


def steps(nbytes: int, ratio: float, repeats: int) -> Result:
    """Time a step whose kernel takes `ratio` times as long as staging or copying, whichever is longer."""
    source = [np.zeros(nbytes, np.uint8)]
    count = 30

    def reader() -> Iterator[Any]:
        return itertools.repeat(source, count)

    loader = DataLoader.from_generator(capacity=4, return_list=True).set_batch_generator(
        reader, places="gpu:0"
    )
    for _ in loader:
        pass
    stage = loader.stats().stage / loader.stats().batches * 1e6
    pinned, target = cupy.cuda.alloc_pinned_memory(nbytes), cupy.cuda.alloc(nbytes)
    stream = cupy.cuda.Stream(non_blocking=True)

    def copy() -> float:
        start = perf_counter()
        for _ in range(10):
            cupy.cuda.runtime.memcpyAsync(target.ptr, pinned.ptr, nbytes, 1, stream.ptr)
        stream.synchronize()
        return (perf_counter() - start) / 10 * 1e6

    longest = max(stage, statistics.median(copy() for _ in range(5)))
    compute = longest * ratio

    def step() -> float:
        events = []
        for _ in loader:
            spin(int(compute * 1000))
            event = cupy.cuda.Event()
            event.record()
            events.append(event)
        events[-1].synchronize()
        gaps = [cupy.cuda.get_elapsed_time(one, other) for one, other in itertools.pairwise(events[5:])]
        return statistics.mean(gaps) * 1000

    longest_of_all = Spread(max(longest, compute), longest, compute)
    rows = {
        "longest of stage, copy, compute": longest_of_all,
        **interleave({"a step": step}, repeats),
    }
    return Result(
        f"steps of {nbytes // MIB} MiB, compute {ratio:g} x the rest",
        "µs a step",
        "longest of stage, copy, compute",
        "at most 1.1",
        rows,
    )


def main() -> None:
    """Measure, print the tables, and write them to a file named after the GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    gpu = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    machine = describe_machine() | {
        "gpu": gpu,
        "driver": str(cupy.cuda.runtime.driverGetVersion()),
        "cupy": cupy.__version__,
    }
    cases = [bandwidth(nbytes, options.repeats) for nbytes in SIZES]
    cases.append(host_time(options.repeats))
    cases += [steps(64 * MIB, ratio, options.repeats) for ratio in (0.5, 1.0, 2.0)]
    report = {
        "machine": machine,
        "repeats": options.repeats,
        "cases": [case.to_json() for case in cases],
    }
    print(render(report))
    name = gpu.lower().replace(" ", "-")
    output = options.output or Path(__file__).parents[1] / "results" / f"{name}.json"
    output.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
