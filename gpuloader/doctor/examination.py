"""Look at everything a loader needs, in one go."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gpuloader.base.control_group import read_control_group
from gpuloader.devices.places import Place
from gpuloader.doctor.attempt import Attempt, attempt
from gpuloader.doctor.finding import Report, Section
from gpuloader.doctor.gpus import gpu_findings, read_gpus
from gpuloader.doctor.memory import memory_findings, read_memory
from gpuloader.doctor.processors import processor_findings, read_processors
from gpuloader.doctor.software import installed_distributions, software_findings


def examine(
    place: Place | None = None,
    *,
    root: Path = Path("/"),
    attempt: Attempt = attempt,
    tell: Callable[[str], object] = lambda _: None,
) -> Report:
    """Look at the machine, and try what can be tried; this takes some seconds.

    Parameters
    ----------
    place : place or None
        Where batches are to land. A GPU that is asked for and cannot be used is bad; with None it is bad
        only if there is one.
    root : path
        Below which ``proc``, ``sys`` and ``dev`` are read.
    attempt : callable
        How things are tried that may hang.
    tell : callable
        Told what is being looked at.

    Returns
    -------
    Report
    """
    installed, group = installed_distributions(), read_control_group(root)
    tell("the GPUs")
    gpus, lock_refused = gpu_findings(read_gpus(installed, attempt, root), place, attempt)
    tell("the software")
    software = software_findings(installed)
    tell("worker processes")
    processors = processor_findings(read_processors(root), group, os.environ, attempt)
    tell("the memory")
    memory = memory_findings(read_memory(root), group, lock_refused)
    return Report(
        (
            Section("Software", software),
            Section("GPU", gpus),
            Section("Processors", processors),
            Section("Memory", memory),
        )
    )
