"""Findings about host memory: how much, where, and how fast."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from gpuloader.base.control_group import ControlGroup, read_text
from gpuloader.base.errors import StagingMemoryError
from gpuloader.base.platforms import has_memory_files
from gpuloader.doctor.finding import Finding, show_bytes
from gpuloader.staging.arena import Arena

LITTLE, TOO_LITTLE = 1 << 30, 64 << 20
SMALL_SHARED = 1 << 30
"""Docker gives /dev/shm 64 MiB unless it is told otherwise."""
COPIED = 32 << 20
"""Bytes of the copy that is timed: more than the processor's caches hold, unless they are large."""
SLOW = 2e9


@dataclass(frozen=True, slots=True)
class Memory:
    """What memory there is, in bytes; None where that is not known.

    Attributes
    ----------
    total, available : int or None
        Of the machine.
    shared, shared_free : int or None
        Of ``/dev/shm``.
    lockable : int or None
        What this process may lock; None where nothing limits it.
    """

    total: int | None
    available: int | None
    shared: int | None
    shared_free: int | None
    lockable: int | None


def read_memory(root: Path = Path("/")) -> Memory:
    """Return what the kernel says below `root`, and this process's own limit.

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
    """Return the findings; `lock_refused` says whether the GPU's driver refused to page-lock memory."""
    return (
        available_finding(memory, group),
        group_finding(group),
        memory_file_finding(),
        shared_finding(memory),
        lock_finding(memory.lockable, lock_refused),
        copy_finding(host_bandwidth()),
    )


def available_finding(memory: Memory, group: ControlGroup) -> Finding:
    """Return how much this process may still take."""
    if memory.available is None:
        return Finding("memory", "not known on this system")
    left = memory.available
    if group.memory_limit is not None:
        left = min(left, max(group.memory_limit - group.memory_used, 0))
    value = f"{show_bytes(left)} available"
    if memory.total is not None:
        value += f" of {show_bytes(memory.total)}"
    advice = "A loader's slots are reserved at once: lower the batch size or prefetch_factor, or free memory."
    if left < TOO_LITTLE:
        return Finding("memory", value, "bad", advice)
    return Finding("memory", value, "note", advice) if left < LITTLE else Finding("memory", value)


def group_finding(group: ControlGroup) -> Finding:
    """Return what the control group allows."""
    if group.version is None:
        return Finding("control group", "none")
    name = f"version {group.version}"
    if group.memory_limit is None:
        return Finding("control group", f"{name}, memory without a limit")
    value = f"{name}, {show_bytes(group.memory_used)} of {show_bytes(group.memory_limit)}"
    if group.memory_used > 0.9 * group.memory_limit:
        advice = "The kernel ends processes at the limit: raise that of the container, e.g. docker run -m."
        return Finding("control group", value, "note", advice)
    return Finding("control group", value)


def memory_file_finding() -> Finding:
    """Return whether memory that processes and devices share can be had; it is tried."""
    try:
        arena = Arena(1 << 20, shared=True)
    except StagingMemoryError as error:
        advice = "Worker processes and GPUs need it: allow memfd_create in this sandbox, or free memory."
        return Finding("memory file", " ".join(str(error).split()), "bad", advice)
    if arena.descriptor is None:
        advice = "Worker processes need memory that they can map: use worker_type='thread'."
        return Finding("memory file", "not on this system", "note", advice)
    if not has_memory_files():
        return Finding("memory file", "works, as a file without a name")
    return Finding("memory file", "works: reserved, sealed and mapped")


def shared_finding(memory: Memory) -> Finding:
    """Return the size of ``/dev/shm``, which other libraries' workers fill."""
    if memory.shared is None or memory.shared_free is None:
        return Finding("/dev/shm", "not there; gpuloader does without")
    value = f"{show_bytes(memory.shared_free)} free of {show_bytes(memory.shared)}"
    if memory.shared_free < SMALL_SHARED:
        advice = (
            "gpuloader does without it; worker processes of torch and Paddle need more, in a container by "
            "docker run --shm-size=8g."
        )
        return Finding("/dev/shm", value, "note", advice)
    return Finding("/dev/shm", value)


def lock_finding(limit: int | None, refused: bool) -> Finding:
    """Return what may be locked in memory; NVIDIA's driver does not count what it locks itself."""
    if limit is None:
        return Finding("memlock limit", "none")
    value = show_bytes(limit)
    if refused:
        advice = "Page-locking was refused; try it again without this limit: ulimit -l unlimited."
        return Finding("memlock limit", value, "note", advice)
    return Finding("memlock limit", value)


def copy_finding(bandwidth: float) -> Finding:
    """Return how fast one core copies, in bytes a second: no loader stages faster with one worker."""
    value = f"{bandwidth / 1e9:.1f} GB/s by one core"
    if bandwidth < SLOW:
        advice = "That is slow: something else may use this machine; staging with several workers may help."
        return Finding("host copy", value, "note", advice)
    return Finding("host copy", value)


def host_bandwidth(nbytes: int = COPIED) -> float:
    """Return bytes copied a second, the best of some copies from memory to memory.

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
