"""Running the kernels' tests again, with kernels built with address and undefined-behavior sanitizers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from gpuloader.kernels.compiler import kernel_names

HERE = Path(__file__).parent


def find_sanitizer():
    """Return the library to load first, or None."""
    if shutil.which("g++") is None:
        return None
    found = subprocess.run(
        ["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return found if Path(found).is_absolute() else None


def run_sanitized(library):
    """Return the completed process."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "agree or the_time_asked_for"]
        + [str(HERE / f"test_{name}.py") for name in ("conformance", *kernel_names())],
        env={
            **os.environ,
            "GPULOADER_SANITIZE": "1",
            "LD_PRELOAD": library,
            "ASAN_OPTIONS": "detect_leaks=0",
        },
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
