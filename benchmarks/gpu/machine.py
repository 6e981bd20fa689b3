"""Describe the hardware and software that figures depend on, including the GPU.

python -m benchmarks.gpu.machine prints the description as JSON; without a GPU, ``gpu`` is empty, and
``failure`` says why.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys

import numpy as np

from benchmarks.measure import describe_machine
from gpuloader.errors import describe_error


def describe_gpu_machine(commit: str | None) -> dict[str, str]:
    """Return `describe_machine`'s description with the first GPU, the driver and the GPU libraries."""
    import cupy

    runtime = cupy.cuda.runtime
    machine = describe_host(commit) | {
        "gpu": runtime.getDeviceProperties(0)["name"].decode(),
        "driver": _driver(),
        "CUDA of the driver": _version(runtime.driverGetVersion()),
        "CUDA runtime": _version(runtime.runtimeGetVersion()),
        "cupy": cupy.__version__,
    }
    for library in ("torch", "timm", "torch_geometric", "lightning", "accelerate"):
        if importlib.util.find_spec(library):
            machine[library] = importlib.metadata.version(library)
    return machine


def describe_host(commit: str | None) -> dict[str, str]:
    """Return `describe_machine`'s description, also where git is not installed."""
    try:
        machine = describe_machine()
    except OSError as error:
        machine = {
            "cores": str(os.cpu_count()),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "commit": f"unknown ({error.strerror})",
        }
    return machine if commit is None else machine | {"commit": commit}


def slug(name: str) -> str:
    """Return a device's name in a form that suits file names.

    >>> slug("NVIDIA H200")
    'nvidia-h200'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip() or "unknown"


def main() -> None:
    """Print the description of this machine."""
    try:
        machine = describe_gpu_machine(None)
    except Exception as error:  # from CUDA, or because CuPy is missing or cannot find one of its libraries
        version = getattr(sys.modules.get("cupy"), "__version__", "")
        machine = describe_host(None) | {"cupy": version, "gpu": "", "failure": describe_error(error)}
    print(json.dumps(machine))


if __name__ == "__main__":
    main()
