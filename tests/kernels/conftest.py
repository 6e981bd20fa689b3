"""Fixtures: kernels built for the CPU through the shim, and launchers that run them."""

import contextlib
import shutil

import numpy as np
import pytest

from gpuloader.kernels import launching, shuffle
from gpuloader.kernels.compiling import kernel_names
from tests.ahead import Ahead
from tests.kernels.shim import Kernels, build, read


@pytest.fixture(scope="session")
def kernels(request, tmp_path_factory):
    """Return the kernels, which stand in for those that CuPy compiles; built ahead where tests follow."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed, so kernels cannot run on the CPU")
    tested = {item.path.stem.removeprefix("test_") for item in request.session.items}
    folders = {name: tmp_path_factory.mktemp(name) for name in kernel_names()}
    library = Ahead(
        lambda name: build(name, folders[name]), [(name,) for name in kernel_names() if name in tested]
    )
    yield Kernels(library)
    library.close()


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
        patch.setattr(shuffle, "current_device", lambda: cupy.cuda.Device(0))
        patch.setattr(shuffle, "sort", lambda array, device, stream: np.ndarray.sort(read(array)))
        yield kernels
