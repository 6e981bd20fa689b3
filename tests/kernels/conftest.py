"""Fixtures: kernels built for the CPU through the shim, and launchers that run them."""

import contextlib
import importlib.util
import shutil

import numpy as np
import pytest

from gpuloader.kernels import launching, shuffle
from gpuloader.kernels.compiler import kernel_names
from tests.ahead import Ahead
from tests.kernels.sanitized import find_sanitizer, run_sanitized
from tests.kernels.shim import SANITIZED, Kernels, build, read


@pytest.fixture(scope="session")
def kernels(request, tmp_path_factory):
    """Return the kernels, which stand in for those that CuPy compiles; built ahead where tests follow."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed, so kernels cannot run on the CPU")
    tested = {item.path.stem.removeprefix("test_") for item in request.session.items}
    folders = {name: tmp_path_factory.mktemp(name) for name in kernel_names()}
    wanted = [(name,) for name in kernel_names() if tested & {name, "conformance", "on_streams"}]
    library = Ahead(lambda name: build(name, folders[name]), wanted)
    yield Kernels(library)
    library.close()


@pytest.fixture(scope="session", autouse=True)
def sanitized_run(request):
    """Run the tests with sanitizers on another core, if they are to run at all; None if they cannot."""
    wanted = any(item.path.stem == "test_sanitized" for item in request.session.items) and not SANITIZED
    library = find_sanitizer() if wanted and importlib.util.find_spec("cupy") else None
    if library is None:
        yield None
        return
    run = Ahead(lambda: run_sanitized(library), [()])
    yield run
    run.close()


@pytest.fixture(scope="module")
def device(kernels):
    """Return the kernels, with all launchers running them on CuPy arrays in host memory."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    kernels.launches.clear()
    kernels.shape = None
    with pytest.MonkeyPatch.context() as patch, cupy.cuda.using_allocator(kernels.allocate):
        patch.setattr(launching, "load_kernel", kernels.load)
        patch.setattr(launching, "on_device", lambda device: contextlib.nullcontext())
        patch.setattr(shuffle, "on_stream", lambda stream: contextlib.nullcontext())
        patch.setattr(launching, "current_device", lambda: cupy.cuda.Device(0))
        patch.setattr(shuffle, "sort", lambda array, device, stream: np.ndarray.sort(read(array)))
        yield kernels
