"""Findings about processors, threads and worker processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuloader.doctor.attempt import Attempt
from gpuloader.doctor.finding import Finding
from gpuloader.system.cores import ControlGroup
from gpuloader.system.platforms import allowed_cores

THREADS = "OMP_NUM_THREADS"
WORKER_SECONDS = 60.0
FEW_FILES, TOO_FEW_FILES = 256, 32
"""Free descriptors. A loader with workers opens about ten, and a few more for each worker process."""


@dataclass(frozen=True, slots=True)
class Processors:
    """The cores, start methods and open files that this process may use.

    Attributes
    ----------
    present : int
        Cores of the machine.
    allowed : int
        Cores that this process may be scheduled on.
    start_methods : tuple of str
        The available methods to start processes, Python's default first.
    files : int or None
        The most descriptors that this process may open; None if there is no limit.
    files_open : int
        Descriptors that this process has open.
    """

    present: int
    allowed: int
    start_methods: tuple[str, ...]
    files: int | None
    files_open: int


def read_processors(root: Path = Path("/")) -> Processors:
    """Read this process's limits; its open files are listed below `root`.

    >>> read_processors().allowed >= 1
    True
    """
    present = os.cpu_count() or 1
    allowed = allowed_cores()
    try:
        opened = sum(1 for _ in (root / "proc/self/fd").iterdir())
    except OSError:
        opened = 0
    methods = tuple(multiprocessing.get_all_start_methods())
    return Processors(present, allowed, methods, _file_limit(), opened)


def _file_limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def processor_findings(
    processors: Processors, group: ControlGroup, environment: Mapping[str, str], attempt: Attempt
) -> tuple[Finding, ...]:
    """Return the findings; `attempt` starts a worker process if the system has a fork server."""
    findings = (
        cores_finding(processors, group),
        threads_finding(environment),
        files_finding(processors),
        start_finding(processors),
    )
    return (*findings, worker_finding(attempt)) if "forkserver" in processors.start_methods else findings


def start_finding(processors: Processors) -> Finding:
    """Report how worker processes start."""
    methods = processors.start_methods
    if "forkserver" in methods:
        return Finding("start method", f"forkserver for workers; Python's default is {methods[0]}")
    advice = "This system has no fork server. Use worker_type='thread'."
    return Finding("start method", f"only {', '.join(methods)}", "note", advice)


def cores_finding(processors: Processors, group: ControlGroup) -> Finding:
    """Report how many cores are usable, and why not all."""
    usable = float(processors.allowed)
    reasons = []
    if processors.allowed < processors.present:
        reasons.append("affinity")
    if group.processors is not None and group.processors < usable:
        usable = group.processors
        reasons = ["control group"]
    value = f"{usable:g} of {processors.present} usable"
    if not reasons:
        return Finding("cores", value)
    most = max(int(usable), 1)
    return Finding(
        "cores",
        f"{value} ({reasons[0]})",
        "note",
        f"Keep num_workers at {most} or below: more workers would only take turns. os.cpu_count() returns "
        f"{processors.present} here.",
    )


def threads_finding(environment: Mapping[str, str]) -> Finding:
    """Report the number of threads that the environment sets for linear algebra libraries."""
    value = environment.get(THREADS, "").strip()
    if not value:
        return Finding(THREADS, "not set; each worker gets a fair share of the cores")
    if not value.replace(",", "").isdecimal() or int(value.split(",")[0]) < 1:
        advice = f"Set {THREADS} to 1 thread or more, or unset it."
        return Finding(THREADS, repr(value), "note", advice)
    return Finding(THREADS, value)


def files_finding(processors: Processors) -> Finding:
    """Report whether this process can open enough files."""
    if processors.files is None:
        return Finding("open files", f"{processors.files_open}, no limit")
    value = f"{processors.files_open} of {processors.files:,}"
    left = processors.files - processors.files_open
    advice = "Raise the limit: ulimit -n 4096."
    if left < TOO_FEW_FILES:
        return Finding("open files", value, "bad", advice)
    if left < FEW_FILES:
        return Finding("open files", value, "note", advice)
    return Finding("open files", value)


def worker_finding(attempt: Attempt) -> Finding:
    """Report whether a worker process starts and fetches samples."""
    outcome = attempt("worker", seconds=WORKER_SECONDS)
    if outcome.problem:
        advice = (
            "Worker processes fail here, often because a sandbox forbids memory files or sockets. Use "
            "worker_type='thread' until that is fixed."
        )
        return Finding("worker process", outcome.problem, "bad", advice)
    return Finding("worker process", f"started and fetched samples in {outcome.answer['seconds']:.2f} s")
