"""Device slots: how many a prompt loop needs, and batches at fixed addresses."""

import gc
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import (
    DataLoader,
    LoaderError,
    SampleError,
    StagingMemoryError,
    TensorDataset,
    cpu_places,
    record_stream,
)
from gpuloader.devices.simulated import SimulatedWork
from gpuloader.epoch import device_slots
from gpuloader.errors import Misuse
from gpuloader.testing import CustomPlace, SimulatedDevice, simulated_places
from gpuloader.transforms import Cast, Pad
from tests.fakes import no_other_collection
from tests.loading import read_batches

HOP = 0.25  # the time in which work on one stream follows that on another
STEPS = 40
NUMBERS = np.arange(2 * STEPS)


class Hopping(SimulatedDevice):
    """A device on which a stream that waits for another one starts a little later."""

    def wait(self, stream, event):
        mark = event.mark
        super().wait(stream, event)
        if mark is not None:

            def hop():
                stream.time = max(stream.time, mark.time + HOP)

            stream.work.append(SimulatedWork(work=hop))


def run(prefetch=1, **options):
    """Run a loop whose steps take as long as its copies, and that drops each batch.

    Return the time, and how many slots the device has then.
    """
    device = Hopping(seed=prefetch, copy_time=lambda nbytes: 1.0)
    loader = load_numbers(device, prefetch=prefetch, **options)
    for batch in loader:
        batch.launch_read(duration=1.0)
        del batch
    device.finish(device.consumer_stream())
    [buffers] = loader._epochs._idle
    return device.now, len(buffers.lanes[0]._slots.free)


def load_numbers(device, numbers=NUMBERS, **options):
    return DataLoader(numbers, places=CustomPlace(device), batch_size=2, **options)


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_copies_and_steps_of_equal_length_overlap_but_for_one_hop(prefetch, monkeypatch):
    assert run(prefetch) == (STEPS + 1.0 + HOP, prefetch + 2)
    seconds, slots = run(prefetch, static=True)  # at fixed addresses, too
    assert seconds <= STEPS + 1.0 + 2 * HOP
    assert slots == prefetch + 1
    # The test can fail: with one slot less every step costs a hop.
    monkeypatch.setattr(device_slots.DeviceSlots, "reserve", lambda self, least, most: None)
    assert run()[0] >= STEPS * (1.0 + HOP)


class Computing(SimulatedDevice):
    """A device on which a program takes as long as a copy; it fails behind the launch of number `failing`."""

    launched, failing = 0, None

    def run(self, program, memory, stream):
        super().run(program, memory, stream)
        self.launch(lambda: None, [memory], stream, duration=1.0)
        self.launched += 1
        if self.launched == self.failing:
            raise LoaderError("the second kernel cannot be launched")


def augment(device, prefetch=1, **options):
    transforms = [Cast("0", "float32")]
    return load_numbers(device, TensorDataset(NUMBERS), prefetch=prefetch, transforms=transforms, **options)


@pytest.mark.parametrize("prefetch", [1, 2, 4])
@pytest.mark.parametrize("static", [False, True])
def test_the_copy_of_a_batch_runs_beside_the_kernels_of_the_one_before(prefetch, static):
    """A step costs the longest of copy, kernels and model, and not the sum of the first two."""
    device = Computing(seed=prefetch, copy_time=lambda nbytes: 1.0)
    seen = []
    for [batch] in augment(device, prefetch, static=static):
        seen.append(batch.launch_read(duration=1.0))
        del batch
    device.finish(device.consumer_stream())
    assert [values.tolist() for [values] in seen] == np.arange(2.0 * STEPS).reshape(-1, 2).tolist()
    assert device.now == STEPS + 2.0


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_waits_for_kernels_of_a_batch_that_nobody_got(seed):
    """Those of a loop that ended early, or that failed between two kernels, may still run in the slot."""
    device = Computing(seed=seed)
    loader = augment(device, prefetch=3)
    next(iter(loader)).clear()
    gc.collect()
    device.failing = device.launched + 2
    with pytest.raises(LoaderError, match="second kernel"):
        for _ in loader:
            pass
    for number, [batch] in enumerate(loader):
        assert np.asarray(batch).tolist() == [2.0 * number, 2.0 * number + 1]


def test_a_device_without_room_for_the_additional_slot_goes_without():
    loader = load_numbers(SimulatedDevice(memory_limit=2 * 16))
    for batch in loader:
        batch.launch_read()
        del batch
    assert loader.stats().steps == STEPS
    with pytest.raises(StagingMemoryError):
        list(load_numbers(SimulatedDevice(memory_limit=16)))


# Batches at fixed addresses: same memory for all, ordered behind the last use, and what must not be done.


ROWS = np.arange(24).reshape(12, 2)


def load(places="cpu", rows=ROWS, **options):
    dataset = TensorDataset(rows, rows[:, 0] * 10)
    return DataLoader(dataset, places=places, **{"batch_size": 3, "static": True, **options})


def read(places="cpu", counts=(3, 3, 3), **options):
    """Return a loader over a reader whose batches have the given numbers of samples."""
    batches = [[np.full((count, 2), number)] for number, count in enumerate(counts)]
    return read_batches(lambda: iter(batches), places, static=True, **options)


def address(array):
    data = getattr(array, "_data", array)  # of a simulated array
    return data.ctypes.data


def addresses(loader):
    return {tuple(address(field) for field in batch) for batch in loader}


def use_up(loader):
    for _ in loader:
        pass


class TestAddresses:
    def test_are_the_same_for_every_batch_of_every_epoch(self, place):
        for loader in (load(place), load(place, num_workers=2, worker_type="thread"), read(place)):
            assert len(addresses(loader) | addresses(loader)) == 1

    def test_of_parts_and_their_masks(self):
        rows = np.arange(10)
        for places in (simulated_places(2), cpu_places(2)):
            loader = DataLoader(rows, places=places, batch_size=5, split="shards", uneven="pad", static=True)
            found, seen = [], []
            for step in loader:
                found.append([address(array) for part in step for array in part])
                seen.append([np.array(array).tolist() for part in step for array in part])
            assert found == [found[0]] * 2
            assert seen[1] == [[5, 6, 7], [True] * 3, [8, 9, 9], [True, True, False]]

    def test_of_transformed_fields_whose_place_in_the_slot_varies(self, place):
        """Ragged rows take more or less room ahead of the padded ones."""
        rows = [(np.arange(1 + number % 4), number) for number in range(12)]
        options = {"ragged": ["0"], "transforms": [Pad("0", 4), Cast("1", "float32")], "static": True}
        found = set()
        for number, (padded, labels) in enumerate(DataLoader(rows, places=place, batch_size=3, **options)):
            found.add((address(padded), address(labels)))
            length = 1 + 3 * number % 4
            assert np.array(padded)[0].tolist() == [*range(length), *[0] * (4 - length)]
            assert np.array(labels).tolist() == [3.0 * number, 3.0 * number + 1, 3.0 * number + 2]
        assert len(found) == 1

    def test_of_tensors(self):
        torch = pytest.importorskip("torch")
        found = {rows.data_ptr() for rows, labels in load(output="torch")}
        assert len(found) == 1
        for _, labels in load(output="torch"):
            assert isinstance(labels, torch.Tensor)


class TestHolding:
    """The batch that a loop's variable refers to may be held while the next is requested, and no other."""

    def test_two_batches_is_an_error(self, place):
        for loader, in_third in ((load(place), 120), (read(place, counts=(3, 3, 3, 3)), 2)):
            epoch = iter(loader)
            first = next(epoch)[-1][1:]  # a slice counts
            second = next(epoch)
            for _ in range(2):
                with pytest.raises(Misuse, match="batch 0 is still held, but its memory holds a later batch"):
                    next(epoch)
                second = None  # one that was replaced is an error even without the latest
            del first, second
            third = next(epoch)  # the epoch goes on
            assert np.array(third[-1]).ravel()[0] == in_third
            del third
            assert len(list(itertools.islice(epoch, 1))) == 1

    @pytest.mark.parametrize("count", [2, 5])
    def test_all_batches_is_an_error_at_the_latest_at_the_end(self, place, count):
        loader = load(place, rows=ROWS[: 2 * count], batch_size=2)
        with pytest.raises(LoaderError, match="batch 0 is still held"):
            list(loader)

    def test_over_the_end_of_an_epoch(self, place):
        loader = load(place)
        for last in loader:  # noqa: B007
            pass
        epoch = iter(loader)
        first = next(epoch)
        with pytest.raises(Misuse, match="batch 3 is still held"):
            next(epoch)
        del last, first
        next(epoch)

    def test_garbage_and_copies_do_not_count(self, place):
        kept = []
        with no_other_collection():
            for batch in load(place):
                cycle = [batch]
                cycle.append(cycle)
                kept.append(np.array(batch[1])[0])
        assert kept == [0, 60, 120, 180]


class TestShapes:
    def test_a_last_batch_that_is_not_full_is_refused_at_once(self):
        with pytest.raises(ValueError, match="last one has 2 samples instead of 5: pass drop_last=True"):
            load(batch_size=5)
        assert len(addresses(load(batch_size=5, drop_last=True))) == 1
        assert len(addresses(load(batch_size=50))) == 1  # the only one

    def test_parts_that_are_padded_to_one_shape(self):
        options = {"split": "shards", "batch_size": 4, "rows": ROWS[:7]}
        assert len(next(iter(load(cpu_places(2), uneven="pad", **options)))) == 2
        with pytest.raises(ValueError, match="last one has 3 samples instead of 4"):
            load(cpu_places(2), uneven="drop", **options)

    @pytest.mark.parametrize("double_buffer", [True, False])
    def test_that_were_not_known_are_an_error_that_says_what_to_do(self, place, double_buffer):
        epoch = iter(read(place, counts=(3, 3, 2, 3), use_double_buffer=double_buffer))
        next(epoch)
        next(epoch)
        message = r"batch 2, field '0': expected .*\(3, 2\).*got .*\(2, 2\).*drop_last=True"
        with pytest.raises(SampleError, match=message):
            next(epoch)
        assert list(epoch) == []

    def test_on_several_places(self):
        for places in (simulated_places(3), cpu_places(3)):
            loader = read(places, counts=(3, 3, 3, 3, 2, 3))
            with pytest.raises(SampleError, match="batch 4"):
                use_up(loader)
            [buffers] = loader._epochs._idle
            buffers.ring.drain()
            assert buffers.ring.free == buffers.ring.count

    @pytest.mark.parametrize(
        "batches", [[[np.zeros(2)], [np.zeros(2, "float32")]], [[np.zeros(2)], [np.zeros(2), np.zeros(2)]]]
    )
    def test_another_dtype_or_number_of_fields(self, place, batches):
        with pytest.raises(SampleError, match=r"expected .* as in the loader's first batch"):
            use_up(read_batches(lambda: iter(batches), place, static=True))

    def test_of_a_field_behind_one_that_has_two_arrays(self, place):
        rows = [{"a": np.arange(3), "b": np.zeros(1 + row // 4)} for row in range(8)]
        with pytest.raises(SampleError, match=r"batch 1, field 'b': expected .*\(4,\).* got .*\(8,\)"):
            use_up(DataLoader(rows, places=place, batch_size=4, static=True, ragged=["a", "b"]))


class TestSeveralLoops:
    def test_at_once_are_an_error(self, place):
        for loader in (load(place), read(place)):
            first = iter(loader)
            next(first)
            with pytest.raises(Misuse, match="another loop over this loader is running"):
                next(iter(loader))
            first.close()
            assert len(addresses(loader)) == 1

    def test_one_that_was_left_does_not_count(self, place):
        loader, held = load(place), []
        with no_other_collection():
            with pytest.raises(Misuse):
                for batch in loader:
                    held.append(batch)
            held.clear()
            batch = None
            assert len(addresses(loader)) == 1
        for _ in loader:
            break
        del _
        gc.collect()
        assert len(addresses(loader)) == 1


@given(
    count=st.integers(1, 8),
    places=st.integers(1, 2),
    seed=st.integers(0, 999),
    prefetch=st.integers(1, 3),
    ahead=st.booleans(),
    uses=st.lists(st.sampled_from(["main", "side", "both"]), min_size=1, max_size=4),
    duration=st.sampled_from([0.0, 0.5, 3.0]),
)
def test_a_graph_replayed_at_the_addresses_sees_each_batch(
    count, places, seed, prefetch, ahead, uses, duration
):
    """A graph is a kernel that knows addresses alone, and runs as late as the streams may."""
    where = simulated_places(places, seed)
    rows = np.arange(count * places * 2).reshape(-1, 2)
    options = {"prefetch": prefetch, "use_buffer_reader": ahead, "static": True}
    loader = DataLoader(rows, places=where, batch_size=1, **options)
    graphs, seen = {}, []
    side = [place.device.stream() for place in where]
    for epoch in range(2):
        for number, step in enumerate(loader):
            for index, (place, batch) in enumerate(zip(where, [step] if places == 1 else step, strict=True)):
                device, main = place.device, place.device.consumer_stream()
                memory, data = graphs.setdefault(index, (batch._memory, batch._data))  # captured once
                use, values = uses[(number + epoch) % len(uses)], []

                def replay(stream, values=values, memory=memory, data=data, device=device):
                    device.launch(lambda: values.append(data.copy()), [memory], stream, duration)

                if use != "side":
                    replay(main)
                if use != "main":
                    follow(device, side[index])
                    replay(side[index])
                    record_stream(batch, side[index])
                seen.append((values, rows[number * places + index], 1 + (use == "both")))
            del batch, step
    for place, stream in zip(where, side, strict=True):
        place.device.finish(place.device.consumer_stream())
        place.device.finish(stream)
    for values, wanted, times in seen:
        assert [value[0].tolist() for value in values] == [wanted.tolist()] * times


def follow(device, stream):
    """Make later work on the stream wait for what the consumer's stream does now."""
    ready = device.event()
    device.record(ready, device.consumer_stream())
    device.wait(stream, ready)
