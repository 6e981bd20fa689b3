"""Run one case in a process of its own, so that a device it breaks is nobody else's.

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
}
"""Name of a case's function, and the module it is in."""


def main() -> None:
    """Measure, and write the results."""
    name, repeats, file = sys.argv[1:]
    results = getattr(importlib.import_module(CASES[name]), name)(int(repeats))
    Path(file).write_text(json.dumps([result.to_json() for result in results]))


if __name__ == "__main__":
    main()
