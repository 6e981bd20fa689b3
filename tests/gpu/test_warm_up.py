"""A loader that is warm: kernels are compiled, memory is there, and the copy stream has its priority."""

import re
import threading
import time

import numpy as np
import pytest

from gpuloader import CUDAPlace, DataLoader, Dataset, TensorDataset
from gpuloader.devices.places import open_device
from gpuloader.kernels import compiler
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
    assert loader._epochs._idle[0].lanes[0]._copy_stream.priority == -1  # where kernels run on it


def test_a_thread_compiles_while_the_first_batch_is_read(monkeypatch):
    import cupy

    made, module = [], cupy.RawModule

    def make(**options):
        made.append(threading.current_thread().name)
        return module(**options)

    class Slow(Dataset):
        def __getitem__(self, index):
            deadline = time.monotonic() + 60
            while index and not made and time.monotonic() < deadline:
                time.sleep(0.001)
            return np.full((4, 4, 3), index, np.uint8)

        def __len__(self):
            return 8

    monkeypatch.setattr(cupy, "RawModule", make)
    compiler._load.cache_clear()
    try:
        loader = DataLoader(Slow(), places="gpu:0", batch_size=4, transforms=[Cast("0", "float32", 0.5)])
        for number, images in enumerate(loader):
            assert "gpuloader-compiler" not in [one.name for one in threading.enumerate()]
            np.testing.assert_array_equal(images[:, 0, 0, 0].get(), (np.arange(4) + 4 * number) / 2)
    finally:
        compiler._load.cache_clear()
    assert made == ["gpuloader-compiler"]


def test_a_gpu_has_a_position_on_the_bus():
    """Its NUMA node is looked up there."""
    assert re.fullmatch(
        r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", open_device(CUDAPlace(0)).bus_id()
    )
