"""What every script here measures with; figures of a checkout name its commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import gpuloader
from gpuloader.bench import machine
from gpuloader.bench.measure import Candidate, Result, Spread, interleave

__all__ = ["Candidate", "Result", "Spread", "describe_machine", "interleave"]


def describe_machine() -> dict[str, str]:
    """Return what the figures depend on; nothing that names the machine itself."""
    return {
        **machine.describe_machine(),
        "commit": _commit(),
        "package": Path(gpuloader.__file__).parent.name,
    }


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
