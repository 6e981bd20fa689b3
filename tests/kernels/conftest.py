"""Fixtures: kernels built for the CPU through the shim, and launchers that run them."""

import contextlib
import os
import shutil
import threading
from functools import cache

import numpy as np
import pytest

from gpuloader.kernels import launching, shuffle
from tests.kernels.shim import Kernels, build, read


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """Return the kernels, which stand in for those that CuPy compiles."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed, so kernels cannot run on the CPU")
    folder = tmp_path_factory.getbasetemp()
    # Of a process that shares this run. A test that starts another pytest hands down xdist's variable.
    if folder.name == f"popen-{os.environ.get('PYTEST_XDIST_WORKER')}":
        folder = folder.parent
    find, lock = cache(lambda name: build(name, folder)), threading.Lock()

    def library(name):
        with lock:  # threads that compile ahead and that launch may want the same one
            return find(name)

    return Kernels(library)


@pytest.fixture(scope="module")
def device(kernels):
    """Return the kernels, with all launchers running them on CuPy arrays in host memory."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    kernels.launches.clear()
    kernels.shape = None
    with pytest.MonkeyPatch.context() as patch, cupy.cuda.using_allocator(kernels.allocate):
        patch.setattr(launching, "load_kernel", kernels.load)
        patch.setattr(launching, "on_device", lambda device: contextlib.nullcontext())
        patch.setattr(launching, "on_stream", lambda stream: contextlib.nullcontext())
        patch.setattr(launching, "current_device", lambda: cupy.cuda.Device(0))
        patch.setattr(shuffle, "sort", lambda *_, stream: np.ndarray.sort(read(_[2][0])))
        yield kernels
