"""The tests in this folder need a GPU; without a usable one, and only then, pytest does not collect them."""

import importlib
import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Keeps JAX from allocating three quarters of the device's memory at its first use.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

FOREIGN = [
    # CuPy, torch and JAX cause NumPy deprecation warnings that Python attributes to their callers.
    "ignore::DeprecationWarning",
    "ignore::PendingDeprecationWarning",
    "ignore::FutureWarning",
    # Once imported, JAX warns about every fork; forked workers do not use it.
    r"ignore:os\.fork\(\) was called:RuntimeWarning",
]


def find_missing():
    """Return why no GPU is usable, or None if one is."""
    try:
        import cupy
    except Exception as error:  # an unwritable home folder, for one
        return f"CuPy is not importable: {error}"
    return None if cupy.cuda.is_available() else "there is no CUDA device"


MISSING = find_missing()
REHEARSED = bool(MISSING) and "GPULOADER_REHEARSE" in os.environ
"""Whether test_kernels.py runs without a GPU, with twins in place of kernels, to see how long they take."""
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_collectionfinish():
    return f"tests/gpu is left out: {MISSING}" if MISSING else []


def pytest_collection_modifyitems(items):
    for item in items:
        if str(item.path).startswith(str(HERE)):  # a test of `parents` makes ten paths
            item.add_marker(pytest.mark.gpu)
            if MISSING and not REHEARSED:  # a file named on the command line is collected all the same
                item.add_marker(pytest.mark.skip(reason=MISSING))
            for warning in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(warning))


def import_or_skip(name):
    """Import a framework; skip the test if it is not installed or cannot use the GPU."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    module = importlib.import_module(name)
    if name == "torch" and not module.cuda.is_available():
        pytest.skip("this torch cannot use the GPU")
    if name == "jax":
        try:
            module.devices("gpu")
        except RuntimeError as error:
            pytest.skip(f"this JAX cannot use the GPU: {error}")
    return module


@pytest.fixture
def torch():
    return import_or_skip("torch")


@pytest.fixture
def jax():
    return import_or_skip("jax")


@pytest.fixture
def gpus():
    """Return the number of GPUs; skip the test if there is only one."""
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip("there is only one GPU")
    return count


@pytest.fixture
def say(capsys, request):
    """Return a function that prints a line despite output capture, for figures measured on hardware."""

    def show(text):
        with capsys.disabled():
            print(f"\n    {request.node.name}: {text}", flush=True)

    return show


@pytest.fixture
def landed(monkeypatch):
    """Return a list that collects the device addresses of every delivered batch's fields in the slot."""
    from gpuloader.devices.cuda_device import CudaCalls

    addresses = []
    original = CudaCalls.views

    def views(self, memory, layout, lease):
        if lease is not None:  # that of a batch; kernels are launched on views without one
            addresses.append([memory.address + field.offset for field in layout.fields])
        return original(self, memory, layout, lease)

    monkeypatch.setattr(CudaCalls, "views", views)
    return addresses
