"""Measure how much of the bus bandwidth a loader uses, compared with bare copies."""

from __future__ import annotations

from time import perf_counter

from benchmarks.gpu.blocks import Blocks
from benchmarks.gpu.clocks import GIB, KIB, MIB, Pinned, copies, synchronize
from benchmarks.gpu.ready import ReadyBuffers
from benchmarks.gpu.turns import Judged, measure
from benchmarks.measure import Candidate
from gpuloader import CUDAPlace, DataLoader
from gpuloader.devices.places import open_device
from gpuloader.staging import Arena

SIZES = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
GOALS = {MIB: 0.85, 16 * MIB: 0.97}
WORKERS = 8

BARE = "bare memcpyAsync, cudaHostAlloc"
REGISTERED = "bare memcpyAsync, registered memory file"
OURS = "gpuloader, prefilled slots"
DEEP = "gpuloader, prefilled slots, prefetch=4"
WORKED = f"gpuloader, slots filled by {WORKERS} processes"


def bandwidth(repeats: int) -> list[Judged]:
    """Time copies of each size: bare, through the pipeline alone, and through a whole loader.

    Bare copies rotate through as many buffers as the pipeline has slots, so that both read host memory that
    is not in the processor's caches. The whole loader shows how fast processes fill slots; it has no goal.
    """
    return [_one(nbytes, repeats) for nbytes in SIZES]


def _one(nbytes: int, repeats: int) -> Judged:
    count = max(16, min(1000, 2 * GIB // nbytes))
    buffers = ReadyBuffers(nbytes)
    pinned = Pinned(nbytes * buffers.slots)
    arena = Arena(nbytes * buffers.slots, open_device(CUDAPlace(0)).locker)
    starts = [number * nbytes for number in range(buffers.slots)]
    candidates = {
        BARE: copies(nbytes, [pinned.ptr + start for start in starts], count),
        REGISTERED: copies(nbytes, [arena.address + start for start in starts], count),
        OURS: _through(buffers, count),
    }
    if nbytes <= 64 * MIB:
        candidates[DEEP] = _through(ReadyBuffers(nbytes, prefetch=4, capacity=4), count)
    if nbytes in (MIB, 16 * MIB, 64 * MIB):
        candidates[WORKED] = _worked(nbytes, min(count, 128))
    share = GOALS.get(nbytes)
    name = f"{nbytes // MIB:,} MiB" if nbytes >= MIB else f"{nbytes // KIB:,} KiB"
    return measure(
        Judged(
            f"copies of {name}",
            "µs per copy",
            BARE,
            "none" if share is None else f"{share:g} of the bare copy's bandwidth",
            {},
            OURS,
            None if share is None else 1 / share,
        ),
        candidates,
        repeats,
    )


def _through(buffers: ReadyBuffers, count: int) -> Candidate:
    def run() -> float:
        epoch = buffers.epoch(count)
        start = perf_counter()
        for arrays in epoch:
            del arrays
        synchronize()
        return (perf_counter() - start) / count * 1e6

    return run


def _worked(nbytes: int, count: int) -> Candidate:
    rows = 16
    loader = DataLoader(
        Blocks(nbytes // rows, count * rows),
        places="gpu:0",
        batch_size=rows,
        num_workers=WORKERS,
        persistent_workers=True,
    )

    def run() -> float:
        start = perf_counter()
        seen = 0
        for batch in loader:
            seen += 1
            del batch
        synchronize()
        if seen != count:
            raise RuntimeError(f"expected {count} batches, got {seen}")
        return (perf_counter() - start) / count * 1e6

    return run
