"""The fake CUDA runtime, for tests of devices."""

import contextlib

import pytest

from gpuloader.devices import cuda
from tests.fakes_cuda import FakeRuntime, make_cupy, run_twins, use_cupy


@pytest.fixture
def runtime(monkeypatch):
    """Yield the runtime under CuPy, with twins in place of kernels."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

    class Array(cupy.ndarray):
        """Exports itself, because CuPy's own capsule needs a driver."""

        __module__ = "cupy"

        def __dlpack__(self, *, stream=None):
            assert stream == -1  # any other value makes CuPy order its own current stream
            return self

    fake = FakeRuntime()
    run_twins(monkeypatch, fake)
    module = make_cupy(cupy, fake)
    module.ndarray = Array
    with use_cupy(monkeypatch, module):
        yield fake


@pytest.fixture(params=["global", "thread_local", "relaxed"])
def capture(request, runtime):
    """Return a context in which a new stream is current and is captured; the capture must survive it."""

    @contextlib.contextmanager
    def begin(stream=None, *, current=True):
        stream = stream or cuda.cupy.cuda.Stream(non_blocking=True)
        with stream if current else contextlib.nullcontext():
            runtime.begin_capture(stream.ptr, request.param)
            try:
                yield stream
            finally:
                runtime.end_capture(stream.ptr)

    return begin
