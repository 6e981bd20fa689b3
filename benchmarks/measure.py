"""The measuring functions of all benchmark scripts; reports name the commit of the checkout."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import gpuloader
from gpuloader.bench import machine
from gpuloader.bench.measure import Candidate, Result, Spread, interleave, spread

__all__ = ["Candidate", "Result", "Spread", "describe_machine", "interleave", "spread", "write_report"]


def describe_machine() -> dict[str, str]:
    """Return the hardware and software that figures depend on, without naming the machine."""
    return {
        **machine.describe_machine(),
        "commit": _commit(),
        "package": Path(gpuloader.__file__).parent.name,
    }


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write a report to an indented JSON file; create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
