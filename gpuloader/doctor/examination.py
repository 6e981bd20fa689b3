"""Check everything a loader needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gpuloader.devices.places import Place
from gpuloader.doctor.attempt import Attempt, attempt
from gpuloader.doctor.finding import Report, Section
from gpuloader.doctor.gpus import gpu_findings, read_gpus
from gpuloader.doctor.memory import memory_findings, read_memory
from gpuloader.doctor.processors import processor_findings, read_processors
from gpuloader.doctor.software import installed_distributions, software_findings
from gpuloader.system.cores import read_control_group


def examine(
    place: Place | None = None,
    *,
    root: Path = Path("/"),
    attempt: Attempt = attempt,
    tell: Callable[[str], object] = lambda _: None,
) -> Report:
    """Inspect the machine and try what a loader does on it; this takes some seconds.

    Parameters
    ----------
    place : place or None
        Where batches should land. If it is a GPU, an unusable GPU is bad. With None, an unusable GPU is bad
        only if the machine has one.
    root : path
        The folder that contains ``proc``, ``sys`` and ``dev``.
    attempt : callable
        A function that runs a trial, which may hang.
    tell : callable
        A function called with the part of the machine to be checked next.

    Returns
    -------
    Report
        The findings, in four sections.
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
