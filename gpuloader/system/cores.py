"""Finds the processor cores near a GPU, on machines whose memory is divided into several NUMA nodes.

Each node has its own cores and memory. A copy to a GPU from the memory of another node crosses the link
between the processors, which is slower and shared. The kernel places a page on the node of the core that
first writes to it, so memory first written on cores near the GPU lies near it. This needs no memory policy,
which containers forbid, and respects the user's own policy and limits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

# The memory and CPU limits of this process's control group, version 1 or 2.

_UNLIMITED = 1 << 60  # bytes; version 1 reports "no limit" as the largest multiple of the page size


class ControlGroup(NamedTuple):
    """Limits on this process, including those inherited from parent groups.

    Attributes
    ----------
    version : int or None
        1 or 2; None without control groups.
    memory_limit : int or None
        Memory limit in bytes; None if there is none.
    memory_used : int
        Bytes counted against that limit, minus the file cache, which the kernel reclaims on demand.
    processors : float or None
        CPU quota in processors; None if there is none.
    """

    version: int | None = None
    memory_limit: int | None = None
    memory_used: int = 0
    processors: float | None = None


def read_control_group(root: str | os.PathLike[str] = "") -> ControlGroup:
    """Return the limits of this process's control group; `root` contains ``proc`` and ``sys``.

    >>> read_control_group("/nowhere")
    ControlGroup(version=None, memory_limit=None, memory_used=0, processors=None)
    """
    # The path of this process's group for each controller. Version 2 has one group and no controller.
    paths: dict[str, str] = {}
    for line in read_text(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    # As text, because each batch of slots asks, and as paths this would take several times as long.
    mount = f"{root}/sys/fs/cgroup"
    if os.path.isfile(f"{mount}/cgroup.controllers"):  # noqa: PTH113
        version = 2
        folders = {mount: ""}
        limit_name, used_name = "memory.max", "memory.current"
        cached = ("inactive_file", "active_file")
    elif os.path.isdir(f"{mount}/memory"):  # noqa: PTH112
        version = 1
        # Which of the folders for processors exists depends on the distribution.
        folders = {f"{mount}/memory": "memory", f"{mount}/cpu": "cpu", f"{mount}/cpu,cpuacct": "cpu"}
        limit_name, used_name = "memory.limit_in_bytes", "memory.usage_in_bytes"
        cached = ("total_inactive_file", "total_active_file")
    else:
        return ControlGroup()
    limits: list[tuple[int, int]] = []  # of each group, and what is used of it
    quotas: list[float] = []
    for folder, controller in folders.items():
        parts = paths.get(controller, "/").split("/")
        # Every parent limits it, too. A container may see only the mount, and paths that lead out of it.
        for group in ("/".join((folder, *parts[1:end])) for end in range(len(parts), 0, -1)):
            if "/.." in group:
                continue
            # A file of another controller is not there, and limits nothing.
            limit = read_text(f"{group}/{limit_name}")
            if limit.isdecimal() and int(limit) < _UNLIMITED:
                used, cache = read_text(f"{group}/{used_name}"), 0
                for line in read_text(f"{group}/memory.stat").splitlines():
                    name, _, value = line.partition(" ")
                    cache += int(value) if name in cached else 0
                limits.append((int(limit), max(int(used or 0) - cache, 0)))
            if version == 1:
                quota = read_text(f"{group}/cpu.cfs_quota_us")
                period = read_text(f"{group}/cpu.cfs_period_us")
            else:
                quota, _, period = read_text(f"{group}/cpu.max").partition(" ")
            if quota.isdecimal() and int(quota) and int(period or 0):  # "max" or -1: no limit
                quotas.append(int(quota) / int(period))
    # The group with the least memory left determines the limit.
    memory_limit, memory_used = min(limits, key=lambda one: one[0] - one[1], default=(None, 0))
    return ControlGroup(version, memory_limit, memory_used, min(quotas, default=None))


def read_text(file: str | os.PathLike[str]) -> str:
    """Return the text of a kernel file without spaces around it; empty if it is missing or unreadable."""
    try:
        with open(file, "rb", buffering=0) as opened:  # noqa: PTH123 - in half the time of `Path.read_text`
            return opened.read().decode(errors="replace").strip()
    except OSError:
        return ""


T = TypeVar("T")

# Numbers of processor cores; an empty set means any.
Cores = frozenset[int]


def read_nodes(root: str | os.PathLike[str] = "") -> dict[int, Cores]:
    """Return the cores of each NUMA node that has any, by the node's number; `root` contains ``sys``.

    >>> read_nodes("/nowhere")
    {}
    """
    nodes: dict[int, Cores] = {}
    with contextlib.suppress(OSError):  # missing, or too few descriptors to list it
        for name in os.listdir(folder := f"{root}/sys/devices/system/node"):  # noqa: PTH208
            number = name.removeprefix("node")
            if number.isdecimal() and (cores := parse_cores(read_text(f"{folder}/{name}/cpulist"))):
                nodes[int(number)] = cores
    return dict(sorted(nodes.items()))


def parse_cores(text: str) -> Cores:
    r"""Return the cores in a list as the kernel writes it; an empty set for text of another form.

    >>> sorted(parse_cores("0-2,8\n")), parse_cores("\n")
    ([0, 1, 2, 8], frozenset())
    """
    cores: set[int] = set()
    try:
        for part in filter(None, text.strip().split(",")):
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return frozenset()
    return frozenset(cores)


def find_node(bus_id: str, root: str | os.PathLike[str] = "") -> int | None:
    """Return the NUMA node of a device on the PCI bus, such as '0000:3B:00.0'; None if it is unknown."""
    text = read_text(f"{root}/sys/bus/pci/devices/{bus_id.lower()}/numa_node")
    return int(text) if text.isdecimal() else None  # -1: the kernel does not know it


def own_cores() -> Cores:
    """Return the cores on which the calling thread may run; empty if the system does not say."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def find_cores_near(
    bus_ids: Callable[[], Iterable[str]], root: str | os.PathLike[str] = "", allowed: Cores | None = None
) -> Cores:
    """Return this process's cores on the NUMA node that all given devices share; empty if none are nearer.

    `bus_ids` returns the devices' positions on the PCI bus, and `allowed` are the cores to choose from. The
    default is those on which the calling thread may run.
    """
    nodes = read_nodes(root)
    if len(nodes) < 2:  # then the devices need not be queried
        return frozenset()
    allowed = own_cores() if allowed is None else allowed
    found = {find_node(one, root) for one in bus_ids()}
    # Devices on several nodes share none, and a machine may not tell where devices are.
    node = found.pop() if len(found) == 1 else None
    near = nodes.get(node, frozenset()) & allowed if node is not None else frozenset()
    # The user may have restricted this process to the cores of any one node.
    return frozenset() if near == allowed else near


def bind(cores: Cores) -> None:
    """Restrict the calling thread, and what it starts, to those of its cores that are in `cores`, if any."""
    near = cores & own_cores()
    if near:
        with contextlib.suppress(OSError):  # a sandbox may forbid it, or the core is gone
            os.sched_setaffinity(0, near)


def call_near(cores: Cores, function: Callable[[], T]) -> T:
    """Call a function on given cores, so that memory it first writes to lies there.

    >>> call_near(own_cores(), lambda: 5), call_near(frozenset(), lambda: 6)
    (5, 6)
    """
    if not cores:
        return function()
    # In the calling thread: if another thread hung, there would be no limit to waiting for it.
    before = own_cores()
    try:
        bind(cores)
        return function()
    finally:
        if before:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, before)


def show_cores(cores: Iterable[int]) -> str:
    """Return a list of cores as the kernel writes it.

    >>> show_cores([0, 1, 2, 3, 8, 10, 11])
    '0-3,8,10-11'
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], core]
        else:
            runs.append([core])
    return ",".join("-".join(map(str, run)) for run in runs)
