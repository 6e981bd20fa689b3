"""Findings about host memory: its size, its limits, and its speed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from gpuloader.doctor.finding import Finding, show_bytes
from gpuloader.errors import StagingMemoryError
from gpuloader.staging.arena import Arena
from gpuloader.system.cores import ControlGroup, read_text
from gpuloader.system.platforms import has_memory_files

LITTLE, TOO_LITTLE = 1 << 30, 64 << 20
SMALL_SHARED = 1 << 30
"""Bytes free in /dev/shm; Docker's default size is 64 MiB."""
COPIED = 32 << 20
"""Bytes of the timed copy: more than all but the largest processor caches hold."""
SLOW = 2e9


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of the machine, in bytes; None if unknown.

    Attributes
    ----------
    total, available : int or None
        The machine's memory.
    shared, shared_free : int or None
        The size of ``/dev/shm`` and its free part.
    lockable : int or None
        The most that this process may lock; None if there is no limit.
    """

    total: int | None
    available: int | None
    shared: int | None
    shared_free: int | None
    lockable: int | None


def read_memory(root: Path = Path("/")) -> Memory:
    """Read the kernel's figures below `root`, and this process's lock limit.

    >>> read_memory(Path("/nowhere")).total is None
    True
    """
    lines = [line.split() for line in (read_text(root / "proc/meminfo") or "").splitlines()]
    sizes = {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if len(line) > 1}
    try:
        shared = os.statvfs(root / "dev/shm")
    except (OSError, AttributeError):
        total = free = None
    else:
        total, free = shared.f_blocks * shared.f_frsize, shared.f_bavail * shared.f_frsize
    return Memory(sizes.get("MemTotal"), sizes.get("MemAvailable"), total, free, _lock_limit())


def _lock_limit() -> int | None:
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    except (ImportError, AttributeError, ValueError):  # Windows, and systems without this limit
        return None
    return None if soft == resource.RLIM_INFINITY else soft


def memory_findings(memory: Memory, group: ControlGroup, lock_refused: bool) -> tuple[Finding, ...]:
    """Return the findings; `lock_refused` is whether the GPU driver refused to page-lock memory."""
    return (
        available_finding(memory, group),
        group_finding(group),
        memory_file_finding(),
        shared_finding(memory),
        lock_finding(memory.lockable, lock_refused),
        copy_finding(host_bandwidth()),
    )


def available_finding(memory: Memory, group: ControlGroup) -> Finding:
    """Report how much memory this process can still allocate."""
    if memory.available is None:
        return Finding("memory", "unknown on this system")
    left = memory.available
    if group.memory_limit is not None:
        left = min(left, max(group.memory_limit - group.memory_used, 0))
    value = f"{show_bytes(left)} available"
    if memory.total is not None:
        value += f" of {show_bytes(memory.total)}"
    advice = "A loader reserves all its slots at once. Lower batch_size or prefetch_factor, or free memory."
    if left < TOO_LITTLE:
        return Finding("memory", value, "bad", advice)
    return Finding("memory", value, "note", advice) if left < LITTLE else Finding("memory", value)


def group_finding(group: ControlGroup) -> Finding:
    """Report the control group's memory limit."""
    if group.version is None:
        return Finding("control group", "none")
    name = f"version {group.version}"
    if group.memory_limit is None:
        return Finding("control group", f"{name}, no memory limit")
    value = f"{name}, {show_bytes(group.memory_used)} of {show_bytes(group.memory_limit)}"
    if group.memory_used > 0.9 * group.memory_limit:
        advice = "The kernel kills processes at the limit. Raise the container's, e.g. docker run -m."
        return Finding("control group", value, "note", advice)
    return Finding("control group", value)


def memory_file_finding() -> Finding:
    """Report whether memory to share with processes and devices can be allocated, by trying it."""
    try:
        arena = Arena(1 << 20, shared=True)
    except StagingMemoryError as error:
        advice = "Worker processes and GPUs need one. Allow memfd_create in this sandbox, or free memory."
        return Finding("memory file", " ".join(str(error).split()), "bad", advice)
    if arena.descriptor is None:
        advice = "Worker processes need memory that they can map. Use worker_type='thread'."
        return Finding("memory file", "not supported on this system", "note", advice)
    if not has_memory_files():
        return Finding("memory file", "works, as an unnamed file")
    return Finding("memory file", "works: reserved, sealed and mapped")


def shared_finding(memory: Memory) -> Finding:
    """Report the free space in ``/dev/shm``, which the workers of other libraries use."""
    if memory.shared is None or memory.shared_free is None:
        return Finding("/dev/shm", "missing; gpuloader does not need it")
    value = f"{show_bytes(memory.shared_free)} free of {show_bytes(memory.shared)}"
    if memory.shared_free < SMALL_SHARED:
        advice = (
            "gpuloader does not need it, but worker processes of torch and Paddle need more. In a container: "
            "docker run --shm-size=8g."
        )
        return Finding("/dev/shm", value, "note", advice)
    return Finding("/dev/shm", value)


def lock_finding(limit: int | None, refused: bool) -> Finding:
    """Report the limit on locked memory, which does not count memory locked by the NVIDIA driver itself."""
    if limit is None:
        return Finding("memlock limit", "none")
    value = show_bytes(limit)
    if refused:
        advice = "Page-locking was refused. Try again without this limit: ulimit -l unlimited."
        return Finding("memlock limit", value, "note", advice)
    return Finding("memlock limit", value)


def copy_finding(bandwidth: float) -> Finding:
    """Report how fast one core copies, given bytes per second: the upper bound on staging by one worker."""
    value = f"{bandwidth / 1e9:.1f} GB/s on one core"
    if bandwidth < SLOW:
        advice = "That is slow. Other programs may be using this machine; several workers may stage faster."
        return Finding("host copy", value, "note", advice)
    return Finding("host copy", value)


def host_bandwidth(nbytes: int = COPIED) -> float:
    """Return the bandwidth of the fastest of some memory-to-memory copies, in bytes per second.

    >>> host_bandwidth(1 << 20) > 0
    True
    """
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    best = 0.0
    for _ in range(4):
        start = perf_counter()
        np.copyto(target, source)
        best = max(best, nbytes / (perf_counter() - start))
    return best
