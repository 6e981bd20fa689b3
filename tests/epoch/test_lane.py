"""A lane over the fake CUDA runtime, with streams that run only as far as a test lets them."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest

from gpuloader import CUDAPlace, LoaderError
from gpuloader.batches.stream import StagedBatch
from gpuloader.devices.opening import open_device
from gpuloader.epoch.lane import Lane
from gpuloader.staging.layout import arrange
from gpuloader.staging.ring import Ring
from gpuloader.watch.stats import Meter
from tests.fakes_cuda import FakeRuntime, make_cupy, read, use_cupy

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

LAYOUT = arrange((((4, 8), np.dtype("float32")),))
DEFAULT_STREAM = -1  # of the first device, as the fake runtime numbers them


@pytest.fixture
def runtime(monkeypatch):
    fake = FakeRuntime()
    with use_cupy(monkeypatch, make_cupy(cupy, fake)):
        yield fake


class Road:
    """A ring of `slots` host slots, and a lane that copies from it; nothing runs by itself."""

    def __init__(self, runtime, monkeypatch, slots=6, programmer=None):
        monkeypatch.setattr(runtime, "step", lambda: False)
        self.runtime = runtime
        self.ring = Ring(slots, 0)
        self.lane = Lane(open_device(CUDAPlace(0)), self.ring, 1, Meter(), None, programmer)
        self.number = 0

    def issue(self, layout=LAYOUT):
        """Stage the next batch and issue its copy."""
        slot = self.ring.acquire(layout.nbytes)
        slot.views(layout)[0][...] = self.number
        structure = SimpleNamespace(array_names=["0"])
        self.number += 1
        return self.lane.issue(StagedBatch(slot, layout, (0,), self.number - 1, structure))

    def drop(self, landing):
        """Deliver a batch and drop it at once, while nothing of it has run."""
        self.lane.deliver(landing)
        gc.collect()

    def run_copies(self):
        """Run the copy stream as far as it does not wait for another one."""
        self.runtime.run_stream(self.lane._copy_stream.ptr)

    @property
    def held(self):
        """The number of host slots that are under copy, after the lane has looked."""
        self.lane.drain()
        return self.ring.count - self.ring.free


@pytest.fixture
def road(runtime, monkeypatch):
    return Road(runtime, monkeypatch)


class TestHostSlots:
    def test_are_free_as_soon_as_their_copy_has_run(self, road):
        """Even if another batch is already on its way into the same device slot."""
        landings = [road.issue(), road.issue(), road.issue()]
        assert road.held == 3
        road.drop(landings[0])
        assert road.held == 3
        road.issue()  # into the first batch's device slot, behind the work on that batch
        assert road.held == 4
        road.run_copies()  # the last copy waits for the consumer, the first three do not
        assert road.held == 1
        road.runtime.run_stream(DEFAULT_STREAM)
        road.run_copies()
        assert road.held == 0

    def test_do_not_wait_for_kernels(self, runtime, monkeypatch):
        held = []

        def compute(arrays, stream):
            held.append(runtime.block_stream(stream.ptr))

        program = SimpleNamespace(
            room=LAYOUT, delivered=LAYOUT, levels=(0,), steps=(), decodings=(), run_on_device=compute
        )
        programmer = SimpleNamespace(program=lambda *_, drawn: program, sources=None)
        road = Road(runtime, monkeypatch, programmer=programmer)
        landing = road.issue()
        road.run_copies()
        assert held  # the kernel is still running
        assert road.held == 0
        [array] = road.lane.deliver(landing)
        seen = runtime.launch_read(array)
        runtime.run_stream(DEFAULT_STREAM)
        assert not seen  # the batch, unlike its host slot, waits for the kernel
        held[0].reach()
        road.run_copies()
        runtime.run_stream(DEFAULT_STREAM)
        assert seen[0][0, 0] == 0

    def test_are_each_asked_about_by_their_own_copy(self, road):
        """The events of copies are used again, and never while an older copy is asked about by one."""
        for _ in range(30):
            landings = [road.issue(), road.issue()]
            assert road.held == 2
            road.run_copies()
            assert road.held == 0
            for landing in landings:
                [array] = road.lane.deliver(landing)
                road.runtime.run_stream(DEFAULT_STREAM)
                assert read(array)[0, 0] == landing.staged.number
                del array, landing
            road.runtime.run_stream(DEFAULT_STREAM)
        assert len(road.lane._spare) == 2


class TestAStep:
    """What `begin` does in one look at the device; `take` says which batch to deliver."""

    def test_delivers_a_batch(self, road):
        landing = road.issue()
        road.run_copies()
        error, delivered = road.lane.begin(lambda: landing)
        assert error is None
        assert delivered is landing
        assert read(landing.arrays[0])[0, 0] == 0

    def test_asks_about_copies_only_if_their_slots_are_needed(self, road):
        """With one step ahead, one host slot may stay; when it is one too many, all that are done return."""
        nothing = lambda: None  # noqa: E731
        for _ in range(2):  # the first copy is timed, which takes a question more
            road.issue()
            road.run_copies()
            assert road.held == 0
        road.issue()
        road.run_copies()
        road.runtime.calls.clear()
        road.lane.begin(nothing)
        assert not road.runtime.calls["eventQuery"]
        road.issue()
        road.run_copies()
        road.lane.begin(nothing)
        assert road.runtime.calls["eventQuery"] == 1
        assert road.ring.free == road.ring.count

    def test_takes_no_batch_that_cannot_be_delivered(self, road):
        road.issue()
        road.runtime.failed = 700
        with pytest.raises(LoaderError, match="700"):
            road.lane.begin(pytest.fail)
        road.runtime.failed = 0


def test_a_batch_whose_copy_is_known_to_be_done_is_not_waited_for_again(road):
    """Its event may belong to a later copy by then, which the consumer must not wait for."""
    first = road.issue()
    road.run_copies()
    assert road.held == 0
    road.issue()  # takes the event of the first copy
    [array] = road.lane.deliver(first)
    seen = road.runtime.launch_read(array)
    road.runtime.run_stream(DEFAULT_STREAM)
    assert seen[0][0, 0] == 0
