"""Findings about processors, threads and worker processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuloader.base.control_group import ControlGroup
from gpuloader.base.platforms import allowed_cores
from gpuloader.doctor.attempt import Attempt
from gpuloader.doctor.finding import Finding

THREADS = "OMP_NUM_THREADS"
WORKER_SECONDS = 60.0
FEW_FILES, TOO_FEW_FILES = 256, 32
"""A loader with workers has some ten descriptors open, and a few more for each process."""


@dataclass(frozen=True, slots=True)
class Processors:
    """What of the machine's processors this process may use.

    Attributes
    ----------
    present : int
        Those of the machine.
    allowed : int
        Those it may be scheduled on.
    start_methods : tuple of str
        How processes can be started here, Python's own choice first.
    files : int or None
        Descriptors it may have open; None where nothing limits them.
    files_open : int
        Those it has open.
    """

    present: int
    allowed: int
    start_methods: tuple[str, ...]
    files: int | None
    files_open: int


def read_processors(root: Path = Path("/")) -> Processors:
    """Return what holds for this process, whose open files are listed below `root`.

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
    """Return the findings; `attempt` starts a worker process, if the system can."""
    findings = (
        cores_finding(processors, group),
        threads_finding(environment),
        files_finding(processors),
        start_finding(processors),
    )
    return (*findings, worker_finding(attempt)) if "forkserver" in processors.start_methods else findings


def start_finding(processors: Processors) -> Finding:
    """Return how worker processes start."""
    methods = processors.start_methods
    if "forkserver" in methods:
        return Finding("start method", f"forkserver for workers; Python's own choice is {methods[0]}")
    advice = "There is no fork server on this system: use worker_type='thread'."
    return Finding("start method", f"only {', '.join(methods)}", "note", advice)


def cores_finding(processors: Processors, group: ControlGroup) -> Finding:
    """Return how many cores there are to use, and why not all."""
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
        f"Keep num_workers at {most} or below: more of them only take turns, and os.cpu_count() says "
        f"{processors.present}.",
    )


def threads_finding(environment: Mapping[str, str]) -> Finding:
    """Return what the environment tells libraries of linear algebra about threads."""
    value = environment.get(THREADS, "").strip()
    if not value:
        return Finding(THREADS, "not set; workers get a fair share each")
    if not value.replace(",", "").isdecimal() or int(value.split(",")[0]) < 1:
        advice = f"Set it to a number of threads of 1 or more, or unset {THREADS}."
        return Finding(THREADS, repr(value), "note", advice)
    return Finding(THREADS, value)


def files_finding(processors: Processors) -> Finding:
    """Return whether enough files can be open at once."""
    if processors.files is None:
        return Finding("open files", f"{processors.files_open}, without a limit")
    value = f"{processors.files_open} of {processors.files:,}"
    left = processors.files - processors.files_open
    advice = "Raise the limit: ulimit -n 4096."
    if left < TOO_FEW_FILES:
        return Finding("open files", value, "bad", advice)
    if left < FEW_FILES:
        return Finding("open files", value, "note", advice)
    return Finding("open files", value)


def worker_finding(attempt: Attempt) -> Finding:
    """Return whether a worker process starts and fetches."""
    outcome = attempt("worker", seconds=WORKER_SECONDS)
    if outcome.problem:
        advice = (
            "Worker processes fail here; use worker_type='thread' until the cause is gone, often a sandbox "
            "that forbids memory files or sockets."
        )
        return Finding("worker process", outcome.problem, "bad", advice)
    return Finding("worker process", f"started and read its samples in {outcome.answer['seconds']:.2f} s")
