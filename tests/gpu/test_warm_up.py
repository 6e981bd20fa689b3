"""A loader that is warm: kernels are compiled, memory is there, and the copy stream has its priority."""

import re

import numpy as np
import pytest

from gpuloader import CUDAPlace, DataLoader, TensorDataset
from gpuloader.devices.opening import open_device
from gpuloader.transforms import Cast, Normalize


def load(**options):
    images = np.arange(64 * 8 * 8 * 3, dtype=np.uint8).reshape(64, 8, 8, 3)
    return DataLoader(TensorDataset(images, np.arange(64)), places="gpu:0", batch_size=8, **options)


@pytest.mark.parametrize("options", [{}, {"cache": "device"}, {"static": True}, {"num_workers": 1}], ids=str)
def test_the_loop_compiles_and_allocates_nothing(options, monkeypatch):
    import cupy

    loader = load(transforms=[Normalize("0", 0.5, 0.25), Cast("1", "float32")], **options)
    loader.warm_up()
    free, _ = cupy.cuda.runtime.memGetInfo()
    monkeypatch.setattr(cupy, "RawKernel", lambda *_, **__: pytest.fail("compiled a kernel"))
    monkeypatch.setattr(cupy, "RawModule", lambda *_, **__: pytest.fail("compiled a kernel"))
    sums = []
    for images, labels in loader:
        sums.append(labels)
        del images
        labels = sums.pop().sum()
    assert cupy.cuda.runtime.memGetInfo()[0] >= free - (4 << 20)  # CuPy's pool, for the sums
    assert float(labels) == sum(range(56, 64))


@pytest.mark.parametrize(
    ("options", "priority"),
    [
        ({}, 0),
        ({"transforms": [Cast("1", "float32")]}, -1),
        ({"cache": "device"}, -1),
        ({"copy_priority": "high"}, -1),
    ],
)
def test_the_copy_stream_has_a_high_priority_where_kernels_run_on_it(options, priority):
    loader = load(**options)
    loader.warm_up()
    for batch in loader:
        del batch
    [road] = loader._loading._idle
    assert road.lanes[0]._copy_stream.priority == priority


def test_a_gpu_has_a_position_on_the_bus():
    """Its NUMA node is looked up there."""
    assert re.fullmatch(
        r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", open_device(CUDAPlace(0)).bus_id()
    )
