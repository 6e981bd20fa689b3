"""How many device slots a prompt loop needs so that copies overlap with its work, by the virtual clock."""

import numpy as np
import pytest

from gpuloader import DataLoader, StagingMemoryError
from gpuloader.epoch import device_slots
from gpuloader.testing import CustomPlace, SimulatedDevice

HOP = 0.25  # the time in which work on one stream follows that on another
STEPS = 40


class Hopping(SimulatedDevice):
    """A device on which a stream that waits for another one starts a little later."""

    def wait(self, stream, event):
        mark = event.mark
        super().wait(stream, event)
        if mark is not None:

            def hop():
                stream.time = max(stream.time, mark.time + HOP)

            stream.work.append((None, hop))


def run(prefetch=1, **options):
    """Run a loop whose steps take as long as its copies, and that drops each batch; return the time."""
    device = Hopping(seed=prefetch, copy_time=lambda nbytes: 1.0)
    loader = DataLoader(
        np.arange(2 * STEPS), places=CustomPlace(device), batch_size=2, prefetch=prefetch, **options
    )
    for batch in loader:
        batch.launch_read(duration=1.0)
        del batch
    device.finish(device.consumer_stream())
    return device.now, loader


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_copies_and_steps_of_equal_length_overlap_but_for_one_hop(prefetch):
    seconds, loader = run(prefetch)
    assert seconds == STEPS + 1.0 + HOP
    [road] = loader._epochs._idle
    assert len(road.lanes[0]._slots.free) == prefetch + 2


def test_with_one_slot_less_every_step_costs_a_hop(monkeypatch):
    """The test above can fail."""
    monkeypatch.setattr(device_slots.DeviceSlots, "_add_early", lambda self, nbytes: None)
    seconds, _ = run()
    assert seconds >= STEPS * (1.0 + HOP)


def test_fixed_addresses_overlap_too():
    seconds, loader = run(static=True)
    assert seconds <= STEPS + 1.0 + 2 * HOP
    [road] = loader._epochs._idle
    assert len(road.lanes[0]._slots.free) == 2


def test_a_device_without_room_for_the_additional_slot_goes_without():
    device = SimulatedDevice(memory_limit=2 * 16)
    loader = DataLoader(np.arange(2 * STEPS), places=CustomPlace(device), batch_size=2)
    for batch in loader:
        batch.launch_read()
        del batch
    assert loader.stats().steps == STEPS
    device = SimulatedDevice(memory_limit=16)
    with pytest.raises(StagingMemoryError):
        list(DataLoader(np.arange(2 * STEPS), places=CustomPlace(device), batch_size=2))
