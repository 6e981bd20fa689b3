"""Runs the kernel tests with kernels built with address and undefined-behavior sanitizers.

`make kernels` does so, apart from the suite: building the kernels takes longer than all of their tests.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from gpuloader.kernels.compiler import kernel_names

HERE = Path(__file__).parent


def find_sanitizer() -> str:
    """Return the library of the address sanitizer; stop without one."""
    if shutil.which("g++") is None or importlib.util.find_spec("cupy") is None:
        sys.exit("not run: this needs g++ and CuPy")
    library = subprocess.check_output(["g++", "-print-file-name=libasan.so"], text=True).strip()
    if not Path(library).is_absolute():
        sys.exit("not run: g++ has no address sanitizer here")
    return library


def main() -> None:
    sanitizing = {"GPULOADER_SANITIZE": "1", "LD_PRELOAD": find_sanitizer(), "ASAN_OPTIONS": "detect_leaks=0"}
    os.environ.update(sanitizing)
    tests = [str(HERE / f"test_{name}.py") for name in ("conformance", *kernel_names())]
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "agree or the_time_asked_for", *tests]
    os.chdir(HERE.parents[1])
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main()
