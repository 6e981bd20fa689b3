"""A lane over the fake CUDA runtime, with streams that run only as far as a test lets them."""

import gc
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from gpuloader import CUDAPlace, LoaderError
from gpuloader.batches.staged import StagedBatch
from gpuloader.devices.outputs import SharedOutput
from gpuloader.devices.places import open_device
from gpuloader.epoch.lane import Lane
from gpuloader.staging import Ring, arrange
from gpuloader.watch.meter import Meter
from tests.fakes_cuda import FakeRuntime, make_cupy, read, use_cupy

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

LAYOUT = arrange((((4, 8), np.dtype("float32")),))
DEFAULT_STREAM = -1  # of the first device, as the fake runtime numbers them


@pytest.fixture
def runtime(monkeypatch):
    fake = FakeRuntime()
    with use_cupy(monkeypatch, make_cupy(cupy, fake)):
        yield fake


class Copying:
    """A ring of `slots` host slots, and a lane that copies from it; nothing runs by itself."""

    def __init__(self, runtime, monkeypatch, slots=6, programmer=None):
        monkeypatch.setattr(runtime, "step", lambda: False)
        self.runtime = runtime
        device = open_device(CUDAPlace(0))
        self.ring = Ring(slots, 0, device.locker)  # copies from other memory would be waited for
        self.lane = Lane(device, self.ring, 1, Meter(), SharedOutput(device.consumer_stream), programmer)
        self.number = 0

    def issue(self, layout=LAYOUT):
        """Stage the next batch and issue its copy."""
        slot = self.ring.acquire(layout.nbytes)
        slot.views(layout)[0][...] = self.number
        structure = SimpleNamespace(array_names=["0"])
        self.number += 1
        return self.lane.issue(StagedBatch(slot, layout, (0,), self.number - 1, structure))

    def drop(self, batch):
        """Deliver a batch and drop it at once, while nothing of it has run."""
        self.lane.deliver(self.lane.device, batch)
        gc.collect()

    def run_copies(self):
        """Run the copy stream as far as it does not wait for another one."""
        self.runtime.run_stream(self.lane._copy_stream.ptr)

    @property
    def held(self):
        """The number of host slots that are under copy, after the lane has looked."""
        self.lane.drain(self.lane.device)
        return self.ring.count - self.ring.free


@pytest.fixture
def copying(runtime, monkeypatch):
    copying = Copying(runtime, monkeypatch)
    yield copying
    del copying.lane, copying.ring


class TestHostSlots:
    def test_are_free_as_soon_as_their_copy_has_run(self, copying):
        """Even if another batch is already on its way into the same device slot."""
        batches = [copying.issue(), copying.issue(), copying.issue()]
        assert copying.held == 3
        copying.drop(batches[0])
        assert copying.held == 3
        copying.issue()  # into the first batch's device slot, behind the work on that batch
        assert copying.held == 4
        copying.run_copies()  # the last copy waits for the consumer, the first three do not
        assert copying.held == 1
        copying.runtime.run_stream(DEFAULT_STREAM)
        copying.run_copies()
        assert copying.held == 0

    def test_do_not_wait_for_kernels(self, runtime, monkeypatch):
        held = []

        def compute(arrays, stream):
            held.append(runtime.block_stream(stream.ptr))

        steps = [SimpleNamespace(operation="the user's")]
        program = SimpleNamespace(
            whole=LAYOUT, delivered=LAYOUT, levels=(0,), steps=steps, decodings=(), run_on_device=compute
        )
        programmer = SimpleNamespace(program=lambda *_, drawn: program, sources=None)
        copying = Copying(runtime, monkeypatch, programmer=programmer)
        batch = copying.issue()
        copying.run_copies()
        assert held  # the kernel is still running
        assert copying.held == 0
        [array] = copying.lane.deliver(copying.lane.device, batch)
        seen = runtime.launch_read(array)
        runtime.run_stream(DEFAULT_STREAM)
        assert not seen  # the batch, unlike its host slot, waits for the kernel
        held[0].reach()
        runtime.run_stream(copying.lane._kernel_stream.ptr)
        runtime.run_stream(DEFAULT_STREAM)
        assert seen[0][0, 0] == 0

    def test_are_each_asked_about_by_their_own_copy(self, copying):
        """The events of copies are used again, and never while an older copy is asked about by one."""
        for _ in range(30):
            batches = [copying.issue(), copying.issue()]
            assert copying.held == 2
            copying.run_copies()
            assert copying.held == 0
            for batch in batches:
                [array] = copying.lane.deliver(copying.lane.device, batch)
                copying.runtime.run_stream(DEFAULT_STREAM)
                assert read(array)[0, 0] == batch.staged.number
                del array, batch
            copying.runtime.run_stream(DEFAULT_STREAM)
        assert len(copying.lane._spare) == 2


class TestAStep:
    """What `begin` does in one look at the device."""

    def test_delivers_a_batch_unless_the_device_fails(self, copying):
        batch = copying.issue()
        flying = deque([[batch]])
        copying.runtime.failed = 700
        with pytest.raises(LoaderError, match="700"):
            copying.lane.begin(flying)
        assert len(flying) == 1
        copying.runtime.failed = 0
        copying.run_copies()
        error, delivered = copying.lane.begin(flying)
        assert error is None
        assert delivered is batch
        assert read(batch.arrays[0])[0, 0] == 0

    def test_asks_about_copies_only_if_their_slots_are_needed(self, copying):
        """With one step ahead, one host slot may stay; when it is one too many, all that are done return."""
        for _ in range(2):  # the first copy is timed, which takes a question more
            copying.issue()
            copying.run_copies()
            assert copying.held == 0
        copying.issue()
        copying.run_copies()
        copying.runtime.calls.clear()
        copying.lane.begin(None)
        assert not copying.runtime.calls["eventQuery"]
        copying.issue()
        copying.run_copies()
        copying.lane.begin(None)
        assert copying.runtime.calls["eventQuery"] == 1
        assert copying.ring.free == copying.ring.count


def test_a_batch_whose_copy_is_known_to_be_done_is_not_waited_for_again(copying):
    """Its event may belong to a later copy by then, which the consumer must not wait for."""
    first = copying.issue()
    copying.run_copies()
    assert copying.held == 0
    copying.issue()  # takes the event of the first copy
    [array] = copying.lane.deliver(copying.lane.device, first)
    seen = copying.runtime.launch_read(array)
    copying.runtime.run_stream(DEFAULT_STREAM)
    assert seen[0][0, 0] == 0
