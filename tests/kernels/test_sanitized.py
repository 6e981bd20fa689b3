"""Runs the kernel tests again with kernels built with address and undefined-behavior sanitizers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuloader.kernels.compiler import kernel_names
from tests.kernels.shim import SANITIZED

HERE = Path(__file__).parent


@pytest.mark.skipif(SANITIZED, reason="these are the sanitized kernels")
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_kernels_touch_nothing_that_is_not_theirs():
    pytest.importorskip("cupy", reason="CuPy is not installed")
    library = subprocess.check_output(["g++", "-print-file-name=libasan.so"], text=True).strip()
    if not Path(library).is_absolute():
        pytest.skip("g++ has no address sanitizer here")
    done = subprocess.run(
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
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
