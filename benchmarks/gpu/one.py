"""Run one case in its own process, so that a CUDA error in it does not affect the other cases.

python -m benchmarks.gpu.one CASE REPEATS FILE
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

CASES = {
    "bandwidth": "benchmarks.gpu.bandwidth",
    "steps": "benchmarks.gpu.steps",
    "host_time": "benchmarks.gpu.steps",
    "kernels": "benchmarks.gpu.kernels",
    "images": "benchmarks.gpu.images",
    "resident": "benchmarks.gpu.resident",
    "wrapped": "benchmarks.gpu.wrapped",
}
"""The module of each case's function, by the function's name."""


def main() -> None:
    """Measure the case and write its results."""
    name, repeats, file = sys.argv[1:]
    results = getattr(importlib.import_module(CASES[name]), name)(int(repeats))
    Path(file).write_text(json.dumps([result.to_json() for result in results]))


if __name__ == "__main__":
    main()
