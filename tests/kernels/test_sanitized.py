"""Runs the kernel tests again with kernels built with address and undefined-behavior sanitizers."""

import pytest

from tests.kernels.shim import SANITIZED


@pytest.mark.skipif(SANITIZED, reason="these are the sanitized kernels")
def test_kernels_touch_nothing_that_is_not_theirs(sanitized_run):
    if sanitized_run is None:
        pytest.skip("g++ has no address sanitizer here")
    pytest.importorskip("cupy", reason="CuPy is not installed")
    done = sanitized_run()
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
