"""Describe the hardware and software that figures depend on, without naming the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import numpy as np


def describe_machine() -> dict[str, str]:
    """Return the processor, cores, memory, system, and versions of Python, NumPy and this package.

    >>> sorted(describe_machine())
    ['cores', 'gpuloader', 'memory', 'numpy', 'processor', 'python', 'system']
    """
    try:
        version = importlib.metadata.version("gpuloader")
    except importlib.metadata.PackageNotFoundError:
        version = "from a folder, not installed"
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gpuloader": version,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    except (AttributeError, ValueError, OSError):
        return "unknown"
