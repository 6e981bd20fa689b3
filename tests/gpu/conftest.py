"""Tests here need a GPU: without a usable one they are skipped when collected, and for no other reason."""

import importlib
import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Read by JAX when it first meets the device: it would take three quarters of its memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

FOREIGN = [
    # What CuPy, torch and JAX have still to learn of newer NumPys is attributed to whoever calls them.
    "ignore::DeprecationWarning",
    "ignore::PendingDeprecationWarning",
    "ignore::FutureWarning",
    # JAX says this of every fork once it was imported; a worker that is forked does not use it.
    r"ignore:os\.fork\(\) was called:RuntimeWarning",
]


def missing():
    """Return why no GPU can be used, or None if one can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not importable: {error}"
    return None if cupy.cuda.is_available() else "no CUDA device is here"


def pytest_collection_modifyitems(items):
    here = [item for item in items if HERE in item.path.parents]
    reason = missing() if here else None
    for item in here:
        item.add_marker(pytest.mark.gpu)
        for warning in FOREIGN:
            item.add_marker(pytest.mark.filterwarnings(warning))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def import_or_skip(name):
    """Return a framework that can use the GPU."""
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
def say(capsys, request):
    """Return what prints a line past the capture: figures that a run on hardware should show."""

    def show(text):
        with capsys.disabled():
            print(f"\n    {request.node.name}: {text}", flush=True)

    return show


@pytest.fixture
def landed(monkeypatch):
    """Return a list that gets, for every batch delivered, the device addresses of its fields in the slot."""
    from gpuloader.devices.cuda import CudaDevice

    addresses = []
    original = CudaDevice.views

    def views(self, memory, layout, lease):
        addresses.append([memory.address + field.offset for field in layout.fields])
        return original(self, memory, layout, lease)

    monkeypatch.setattr(CudaDevice, "views", views)
    return addresses
