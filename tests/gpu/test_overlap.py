"""Copies overlap with kernels, as events show; `benchmarks/gpu/run.py` measures the time of steps."""

import numpy as np

from gpuloader import DataLoader, TensorDataset
from gpuloader.kernels.spin import spin
from gpuloader.transforms.program import Plain
from tests.fakes import wait_until
from tests.loading import read_batches

MIB = 1 << 20


def test_the_next_copy_is_done_while_the_consumer_still_computes():
    """While a kernel holds the consumer's stream, the next step's `ready` event still completes."""
    import cupy

    loader = read_batches(lambda: ([np.zeros(MIB, np.uint8)] for _ in range(8)), "gpu:0", capacity=4)
    epoch = iter(loader)
    next(epoch)
    wait_until(lambda: loader.stats().batches >= 5)
    next(epoch)  # issues the copy of the following step before it returns
    spin(200_000_000)
    held = cupy.cuda.Event(disable_timing=True)
    held.record()
    [batches] = epoch._epoch._flying
    ready = batches[0].ready
    ready.synchronize()
    assert cupy.cuda.runtime.eventQuery(held.ptr) == 600  # the spin was still running when the copy ended
    held.synchronize()


class Slow(Plain):
    """A transform whose kernel keeps its stream busy."""

    field = "0"

    def bind(self, inputs):
        self.outputs = tuple(inputs)
        return self

    def on_device(self, inputs, outputs, stream):
        spin(300_000_000, stream=stream)


def test_a_host_slot_is_free_while_kernels_run_on_its_batch():
    import cupy

    rows = TensorDataset(np.zeros((8, MIB), np.uint8))
    epoch = iter(DataLoader(rows, places="gpu:0", batch_size=1, transforms=[Slow()]))
    next(epoch)
    [lane] = epoch._epoch.buffers.lanes
    copied, batch, _ = lane._copying[-1]
    copied.synchronize()
    lane.drain(lane.device)
    assert not lane._copying
    assert cupy.cuda.runtime.eventQuery(batch.ready.ptr) == 600  # the kernel was still running
    epoch.close()
