"""Which processor cores are near a GPU, on machines whose memory is divided into several NUMA nodes.

Each node has cores and memory of its own. A copy to a GPU from the memory of another node crosses the link
between the processors, which is slower and shared. The kernel places a page on the node of the core that
first writes to it. So what is first written on cores near the GPU lies near it; no memory policy has to be
set, which containers forbid, and the user's own policy and limits hold.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from gpuloader.base.control_group import read_text

T = TypeVar("T")

Cores = frozenset[int]
"""Numbers of processor cores; if empty, any."""


def read_nodes(root: Path = Path("/")) -> dict[int, Cores]:
    """Return the cores of each NUMA node that has some, by the node's number.

    Parameters
    ----------
    root : path
        The folder that contains ``sys``.

    >>> read_nodes(Path("/nowhere"))
    {}
    """
    nodes = {
        int(folder.name.removeprefix("node")): parse_cores(read_text(folder / "cpulist") or "")
        for folder in (root / "sys/devices/system/node").glob("node[0-9]*")
    }
    return {number: nodes[number] for number in sorted(nodes) if nodes[number]}


def parse_cores(text: str) -> Cores:
    r"""Return the cores in a list as the kernel writes it; text of another form is an empty one.

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


def find_node(bus_id: str, root: Path = Path("/")) -> int | None:
    """Return the NUMA node of a device on the PCI bus, such as '0000:3B:00.0'; None if it is unknown."""
    text = (read_text(root / "sys/bus/pci/devices" / bus_id.lower() / "numa_node") or "").strip()
    return int(text) if text.isdecimal() else None  # -1: the kernel does not know it


def own_cores() -> Cores:
    """Return the cores on which the calling thread may run; empty if the system does not tell."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def find_cores_near(
    bus_ids: Callable[[], Iterable[str]], root: Path = Path("/"), allowed: Cores | None = None
) -> Cores:
    """Return this process's cores on the NUMA node that all given devices share; empty if none are nearer.

    That is also the case on a machine with one node, if the devices are on several nodes or on an unknown
    one, and if the user has restricted this process to cores of one node, whichever that is.

    Parameters
    ----------
    bus_ids : callable
        Returns the devices' positions on the PCI bus; called only if there are several nodes.
    root : path
        The folder that contains ``sys``.
    allowed : set of int or None
        The cores to choose from; None: those on which the calling thread may run.
    """
    nodes = read_nodes(root)
    if len(nodes) < 2:
        return frozenset()
    allowed = own_cores() if allowed is None else allowed
    found = {find_node(one, root) for one in bus_ids()}
    node = found.pop() if len(found) == 1 else None
    near = nodes.get(node, frozenset()) & allowed if node is not None else frozenset()
    return frozenset() if near == allowed else near


def bind(cores: Cores) -> None:
    """Restrict the calling thread, and what it starts, to those of its cores that are in `cores`.

    Does nothing if there are none, or on systems without affinity.
    """
    near = cores & own_cores()
    if near:
        with contextlib.suppress(OSError):  # a sandbox may forbid it, or the core is gone
            os.sched_setaffinity(0, near)


def call_near(cores: Cores, function: Callable[[], T]) -> T:
    """Call a function on given cores, in a thread of its own, so that memory it first writes to lies there.

    >>> call_near(own_cores(), lambda: 5), call_near(frozenset(), lambda: 6)
    (5, 6)
    """
    if not cores:
        return function()
    returned: list[T] = []
    raised: list[BaseException] = []

    def call() -> None:
        bind(cores)
        try:
            returned.append(function())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, name="gpuloader: memory near a GPU", daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return returned[0]


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
