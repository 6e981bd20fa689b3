"""Findings about NUMA nodes: whether this process runs, and its slots lie, near the GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuloader.doctor.finding import Finding
from gpuloader.system.cores import Cores, find_node, own_cores, read_nodes, show_cores


@dataclass(frozen=True, slots=True)
class Nodes:
    """The NUMA nodes of a machine, and where its GPUs are.

    Attributes
    ----------
    cores : dict of int to set of int
        The cores of each node.
    of_gpus : tuple of (int or None)
        The node of each GPU; None if the kernel does not know it.
    allowed : set of int
        The cores on which this process may run.
    """

    cores: Mapping[int, Cores] = field(default_factory=dict)
    of_gpus: tuple[int | None, ...] = ()
    allowed: Cores = frozenset()


def read_gpu_nodes(buses: Sequence[str], root: Path = Path("/"), allowed: Cores | None = None) -> Nodes:
    """Read the nodes below `root`, and those of GPUs at these positions on the PCI bus."""
    of_gpus = tuple(find_node(bus_id, root) for bus_id in buses)
    return Nodes(read_nodes(root), of_gpus, own_cores() if allowed is None else allowed)


def node_findings(nodes: Nodes) -> list[Finding]:
    """Report where slots and workers for each GPU go, and why not to its node if they do not.

    >>> near = Nodes({0: frozenset({0, 1}), 1: frozenset({2, 3})}, (1,), frozenset({0, 1, 2, 3}))
    >>> [(finding.value, finding.verdict) for finding in node_findings(near)]
    [('gpu:0 is on node 1 of 2; slots and workers go to its cores 2-3', 'good')]
    """
    if not nodes.of_gpus or not nodes.cores:
        return []
    if len(nodes.cores) == 1:
        return [Finding("NUMA", "one node; all memory is equally near")]
    return [_find(nodes, f"gpu:{index}", node) for index, node in enumerate(nodes.of_gpus)]


def _find(nodes: Nodes, gpu: str, node: int | None) -> Finding:
    cores = nodes.cores.get(-1 if node is None else node, frozenset())
    if not cores:
        advice = (
            "Slots and workers go wherever the system puts them. If you know the node, start the program "
            "with numactl --cpunodebind=NODE."
        )
        return Finding("NUMA", f"{gpu} is on no known node of the {len(nodes.cores)}", "note", advice)
    near, where = cores & nodes.allowed, f"{gpu} is on node {node} of {len(nodes.cores)}"
    if near:
        return Finding("NUMA", f"{where}; slots and workers go to its cores {show_cores(near)}")
    advice = (
        f"Copies to {gpu} cross the link between processors, which is slower and shared. Start the program "
        f"on the node's cores, e.g. with taskset -c {show_cores(cores)}."
    )
    return Finding("NUMA", f"{where}, and this process may not run there", "note", advice)
