"""Device slots: how many a prompt loop needs, and batches at fixed addresses."""

import gc
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
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
from gpuloader.testing import CustomPlace, RaceError, SimulatedDevice, simulated_places
from gpuloader.transforms import Cast, Pad
from tests.fakes import nothing_left_behind
from tests.loading import read_batches

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

            stream.work.append(SimulatedWork(work=hop))


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
    [buffers] = loader._epochs._idle
    assert len(buffers.lanes[0]._slots.free) == prefetch + 2


def test_with_one_slot_less_every_step_costs_a_hop(monkeypatch):
    """The test above can fail."""
    monkeypatch.setattr(device_slots.DeviceSlots, "_add_early", lambda self, nbytes: None)
    seconds, _ = run()
    assert seconds >= STEPS * (1.0 + HOP)


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
    place, transforms = CustomPlace(device), [Cast("0", "float32")]
    numbers = TensorDataset(np.arange(2 * STEPS))
    return DataLoader(
        numbers, places=place, batch_size=2, prefetch=prefetch, transforms=transforms, **options
    )


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


def test_fixed_addresses_overlap_too():
    seconds, loader = run(static=True)
    assert seconds <= STEPS + 1.0 + 2 * HOP
    [buffers] = loader._epochs._idle
    assert len(buffers.lanes[0]._slots.free) == 2


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


# Batches at fixed addresses: same memory for all, ordered behind the last use, and what must not be done.


ROWS = np.arange(24).reshape(12, 2)


def load(places="cpu", rows=ROWS, batch_size=3, **options):
    return DataLoader(
        TensorDataset(rows, rows[:, 0] * 10), places=places, batch_size=batch_size, static=True, **options
    )


def read(places="cpu", counts=(3, 3, 3), **options):
    """Return a loader over a reader whose batches have the given numbers of samples."""
    loader = DataLoader.from_generator(capacity=2, return_list=True, static=True, **options)
    return loader.set_batch_generator(
        lambda: ([np.full((count, 2), number)] for number, count in enumerate(counts)), places=places
    )


def address(array):
    data = getattr(array, "_data", array)  # of a simulated array
    return data.ctypes.data


def addresses(loader):
    return {tuple(address(field) for field in batch) for batch in loader}


@pytest.fixture(params=["cpu", "simulated"])
def place(request):
    return "cpu" if request.param == "cpu" else simulated_places(1)[0]


class TestAddresses:
    def test_are_the_same_for_every_batch_of_every_epoch(self, place):
        for loader in (load(place), load(place, num_workers=2, worker_type="thread"), read(place)):
            assert len(addresses(loader) | addresses(loader)) == 1

    def test_hold_the_right_values(self, place):
        seen = [(np.array(rows), np.array(labels)) for rows, labels in load(place, shuffle=True, seed=3)]
        wanted = list(
            DataLoader(TensorDataset(ROWS, ROWS[:, 0] * 10), places="cpu", batch_size=3, shuffle=True, seed=3)
        )
        for (rows, labels), (rows_wanted, labels_wanted) in zip(seen, wanted, strict=True):
            np.testing.assert_array_equal(rows, rows_wanted)
            np.testing.assert_array_equal(labels, labels_wanted)

    def test_differ_from_place_to_place(self):
        for places in (simulated_places(2), cpu_places(2)):
            found = [[address(rows) for rows, _ in step] for step in load(places) if gc.collect() is not None]
            assert found == [found[0]] * 2
            assert len(set(found[0])) == 2

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

    def test_of_transformed_fields_whose_place_in_the_slot_varies(self):
        """Ragged rows take more or less room ahead of the padded ones."""
        for places in (*simulated_places(1), "cpu"):
            rows = [(np.arange(1 + number % 4), number) for number in range(12)]
            loader = DataLoader(
                rows,
                places=places,
                batch_size=3,
                ragged=["0"],
                transforms=[Pad("0", 4), Cast("1", "float32")],
                static=True,
            )
            found = []
            for number, (padded, labels) in enumerate(loader):
                found.append((address(padded), address(labels)))
                first = np.array(padded)[0].tolist()
                length = 1 + 3 * number % 4
                assert first == [*range(length), *[0] * (4 - length)]
                assert np.array(labels).tolist() == [3.0 * number, 3.0 * number + 1, 3.0 * number + 2]
            assert found == [found[0]] * 4

    def test_stay_when_the_source_is_set_again(self, place):
        loader = read(place)
        first = addresses(loader)
        loader.set_batch_generator(lambda: ([np.full((3, 2), n)] for n in range(2)), places=place)
        assert addresses(loader) == first

    def test_of_tensors(self):
        torch = pytest.importorskip("torch")
        found = {rows.data_ptr() for rows, labels in load(output="torch")}
        assert len(found) == 1
        for _, labels in load(output="torch"):
            assert isinstance(labels, torch.Tensor)

    def test_cannot_be_fixed_for_jax(self):
        with pytest.raises(ValueError, match="output='jax' delivers copies"):
            load(output="jax")


class TestHolding:
    """The batch that a loop's variable refers to may be held while the next is requested, and no other."""

    def test_two_batches_is_an_error(self, place):
        epoch = iter(load(place))
        first = next(epoch)
        second = next(epoch)
        with pytest.raises(Misuse, match="batch 0 is still held, but its memory holds a later batch now"):
            next(epoch)
        del first
        third = next(epoch)  # the epoch goes on
        assert np.array(third[1]).tolist() == [120, 140, 160]
        del second, third
        assert len(list(itertools.islice(epoch, 1))) == 1

    @pytest.mark.parametrize("count", [2, 5])
    def test_all_batches_is_an_error_at_the_latest_at_the_end(self, place, count):
        loader = load(place, rows=ROWS[: 2 * count], batch_size=2)
        with pytest.raises(LoaderError, match="batch 0 is still held"):
            list(loader)

    def test_one_that_was_replaced_is_an_error_even_without_the_latest(self, place):
        epoch = iter(read(place))
        first = next(epoch)
        next(epoch)
        with pytest.raises(Misuse, match="batch 0 is still held"):
            next(epoch)
        del first

    def test_a_slice_counts(self, place):
        epoch = iter(load(place))
        corner = next(epoch)[0][1:]
        next(epoch)
        with pytest.raises(Misuse, match="batch 0"):
            next(epoch)
        del corner

    def test_over_the_end_of_an_epoch(self, place):
        loader = load(place)
        last = None
        for last in loader:  # noqa: B007
            pass
        epoch = iter(loader)
        first = next(epoch)
        with pytest.raises(Misuse, match="batch 3 is still held"):
            next(epoch)
        del last, first
        next(epoch)

    def test_garbage_does_not_count(self, place):
        gc.collect()
        gc.disable()
        try:
            for batch in load(place):
                cycle = [batch]
                cycle.append(cycle)
        finally:
            gc.enable()

    def test_copies_may_be_kept(self, place):
        kept = [np.array(labels)[0] for _, labels in load(place)]
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
        with pytest.raises(
            SampleError, match=r"batch 2, field '0': expected .*\(3, 2\).*got .*\(2, 2\).*drop_last=True"
        ):
            next(epoch)
        assert list(epoch) == []

    def test_on_several_places(self):
        for places in (simulated_places(3), cpu_places(3)):
            loader = read(places, counts=(3, 3, 3, 3, 2, 3))
            with pytest.raises(SampleError, match="batch 4"):
                for _ in loader:
                    pass
            [buffers] = loader._epochs._idle
            buffers.ring.drain()
            assert buffers.ring.free == buffers.ring.count

    def test_another_dtype_or_number_of_fields(self, place):
        batches = {
            "another": [[np.zeros((2, 2))], [np.zeros((2, 2), "float32")]],
            "2 arrays": [[np.zeros(2)], [np.zeros(2), np.zeros(2)]],
        }
        for readings in batches.values():
            loader = read_batches(lambda readings=readings: iter(readings), place, static=True)
            with pytest.raises(SampleError, match=r"expected .* as in the loader's first batch"):
                for _ in loader:
                    pass


class TestSeveralLoops:
    def test_at_once_are_an_error(self, place):
        for loader in (load(place), read(place)):
            first = iter(loader)
            next(first)
            with pytest.raises(Misuse, match="another loop over this loader is running"):
                next(iter(loader))
            first.close()
            assert len(addresses(loader)) == 1

    def test_one_that_was_left_by_an_error_does_not_count(self, place):
        loader, held = load(place), []
        gc.disable()
        try:
            with pytest.raises(Misuse):
                for batch in loader:
                    held.append(batch)
            held.clear()
            batch = None
            assert len(addresses(loader)) == 1
        finally:
            gc.enable()

    def test_one_that_was_left_does_not_count(self, place):
        loader = load(place)
        for _ in loader:
            break
        del _
        gc.collect()
        assert len(addresses(loader)) == 1

    def test_nothing_is_left_behind(self, place):
        with nothing_left_behind():
            loader = load(place, num_workers=1)
            assert len(addresses(loader)) == 1
            del loader
            gc.collect()


@given(
    count=st.integers(1, 8),
    places=st.integers(1, 2),
    seed=st.integers(0, 999),
    prefetch=st.integers(1, 3),
    ahead=st.booleans(),
    uses=st.lists(
        st.sampled_from(["replay", "side", "two streams", "other thread's stream"]), min_size=1, max_size=4
    ),
    duration=st.sampled_from([0.0, 0.5, 3.0]),
)
@settings(max_examples=150, deadline=None)
def test_a_graph_replayed_at_the_addresses_sees_each_batch(
    count, places, seed, prefetch, ahead, uses, duration
):
    """A graph is a kernel that knows addresses alone, and runs as late as the streams may."""
    where = simulated_places(places, seed)
    rows = np.arange(count * places * 2).reshape(-1, 2)
    loader = DataLoader(
        rows, places=where, batch_size=1, prefetch=prefetch, use_buffer_reader=ahead, static=True
    )
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
                if use != "replay":
                    ready = device.event()
                    device.record(ready, main)
                    device.wait(side[index], ready)
                    replay(side[index])
                    record_stream(batch, side[index])
                seen.append((values, rows[number * places + index], 1 + use.startswith(("two", "other"))))
            del batch, step
    for place, stream in zip(where, side, strict=True):
        place.device.finish(place.device.consumer_stream())
        place.device.finish(stream)
    for values, wanted, times in seen:
        assert [value[0].tolist() for value in values] == [wanted.tolist()] * times


def test_a_stream_that_nobody_told_of_is_a_race():
    """The test above can fail."""
    [place] = simulated_places(1)
    device, side = place.device, place.device.stream()
    with pytest.raises(RaceError):
        for batch in DataLoader(ROWS, places=place, batch_size=3, static=True):
            ready = device.event()
            device.record(ready, device.consumer_stream())
            device.wait(side, ready)
            batch.launch_read(side, duration=5.0)
            del batch


def test_batches_on_changing_streams_follow_one_another():
    [place] = simulated_places(1, seed=5)
    device = place.device
    streams = [device.stream(), device.stream()]
    epoch, seen = iter(DataLoader(ROWS, places=place, batch_size=3, static=True)), []
    for number in range(4):
        with device.use(streams[number % 2]):
            batch = next(epoch)
            seen.append(batch.launch_read(duration=2.0))
    for stream in streams:
        device.finish(stream)
    assert [values[0][0, 0] for values in seen] == [0, 6, 12, 18]
