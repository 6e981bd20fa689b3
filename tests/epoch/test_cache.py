"""Caches: the same batches in the same order, from arrays that are read once."""

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuloader import (
    BatchSampler,
    CPUPlace,
    DataLoader,
    Dataset,
    DistributedBatchSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    StagingMemoryError,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    data,
    sample_rng,
)
from gpuloader.devices.host import HostDevice
from gpuloader.epoch import cache, sending
from gpuloader.epoch.lane import Lane
from gpuloader.errors import LoaderError, SampleError
from gpuloader.order.order import Shuffled
from gpuloader.order.permutation import SORTED_AT_MOST
from gpuloader.staging.ring import Slot
from gpuloader.testing import CustomPlace, RaceError, SimulatedDevice, simulated_places
from gpuloader.transforms import Cast, Normalize, RandomCropFlip
from tests.fakes import nothing_left_behind
from tests.loading import load
from tests.sample_sets import assert_same

COUNT = 70  # more than one batch while the cache is filled
KINDS = ["host", "device"]


class Counting(Dataset):
    """Counts how often each sample is read."""

    def __init__(self, count=COUNT):
        self.reads = [0] * count
        self.lock = threading.Lock()

    def __getitem__(self, index):
        index = range(len(self.reads))[index]
        with self.lock:
            self.reads[index] += 1
        return np.full((3, 2), index, np.uint8), index * 1.5

    def __len__(self):
        return len(self.reads)


class Drawing(Counting):
    def __getitem__(self, index):
        return super().__getitem__(index)[0], sample_rng().random(2)


class Dicts(Counting):
    def __getitem__(self, index):
        images, number = super().__getitem__(index)
        return {"image": images, "meta": (number, {"index": index})}


class Bare(Counting):
    def __getitem__(self, index):
        return super().__getitem__(index)[0]


def as_numpy(batch):
    """Return a batch with NumPy arrays instead of the device's."""
    if isinstance(batch, dict):
        return {name: as_numpy(entry) for name, entry in batch.items()}
    if isinstance(batch, list | tuple):
        return [as_numpy(entry) for entry in batch]
    return np.asarray(batch)


def epochs(dataset, count=3, places="cpu", **options):
    loader = DataLoader(dataset, places=places, **{"batch_size": 8, "seed": 4, **options})
    return [as_numpy(list(loader)) for _ in range(count)]


def make_places(kind, count=1):
    return [CPUPlace()] * count if kind == "cpu" else simulated_places(count)


PLACES = ["cpu", "simulated"]


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("kind", KINDS)
class TestTheSameBatches:
    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("kept", [Counting, Drawing, Dicts, Bare])
    def test_epoch_after_epoch(self, kind, places, kept, shuffle):
        dataset = kept()
        wanted = epochs(kept(), shuffle=shuffle)
        found = epochs(dataset, shuffle=shuffle, cache=kind, places=make_places(places))
        if kept is Drawing:  # a cached sample keeps its first random draw
            assert_same(found[0], wanted[0])
            found, wanted = ([[one[0] for one in epoch] for epoch in both] for both in (found, wanted))
        assert_same(found, wanted)
        assert dataset.reads == [1] * COUNT

    @pytest.mark.parametrize("workers", [{"worker_type": "thread"}, {"start_method": "fork"}])
    def test_read_by_workers(self, kind, places, workers):
        if workers.get("start_method") and (kind, places) != ("device", "simulated"):
            pytest.skip("once is enough")
        dataset = Counting()
        found = epochs(
            dataset, shuffle=True, cache=kind, places=make_places(places), num_workers=2, **workers
        )
        assert_same(found, epochs(Counting(), shuffle=True))
        assert dataset.reads == [int(workers.get("worker_type") == "thread")] * COUNT

    def test_with_transforms(self, kind, places):
        steps = [RandomCropFlip("image", (2, 1)), Normalize("image", std=0.5), Cast("meta.0", "float16")]

        class Pictures(Dicts):
            def __getitem__(self, index):
                sample = super().__getitem__(index)
                return {**sample, "image": sample["image"][..., None] + np.arange(2, dtype=np.uint8)[:, None]}

        found = epochs(Pictures(), shuffle=True, cache=kind, places=make_places(places), transforms=steps)
        assert_same(found, epochs(Pictures(), shuffle=True, transforms=steps))

    @pytest.mark.parametrize("count", [2, 3])
    def test_in_shards_and_in_turn(self, kind, places, count):
        for options in ({"split": "shards", "uneven": "pad"}, {}):
            where = make_places(places, count)
            found = epochs(Counting(), shuffle=True, cache=kind, places=where, **options)
            assert_same(found, epochs(Counting(), shuffle=True, places=[CPUPlace()] * count, **options))

    def test_of_a_subset(self, kind, places):
        for source in (TensorDataset(np.arange(COUNT), np.arange(COUNT) * 0.5), Counting()):
            part = Subset(source, [5, -1, 5, 60, 2, 0, 9])
            options = {"shuffle": True, "batch_size": 3}
            assert_same(
                epochs(part, cache=kind, places=make_places(places), **options), epochs(part, **options)
            )

    @pytest.mark.parametrize("return_list", [True, False])
    def test_of_declared_fields(self, kind, places, return_list):
        feeds = [data("image", [None, 3, 2], "float32"), data("number", [None, 1], "float64")]
        options = {"feed_list": feeds, "return_list": return_list, "shuffle": True}
        found = epochs(Counting(), cache=kind, places=make_places(places), **options)
        assert_same(found, epochs(Counting(), **options))

    def test_of_declared_fields_with_transforms(self, kind, places):
        """The fields have their declared names, as without a cache."""
        feeds = [data("image", [None, 3, 2]), data("number", [None], "float64")]
        options = {"feed_list": feeds, "transforms": [Cast("number", "int32", 2), Cast("image", "uint8")]}
        found = epochs(Counting(), cache=kind, places=make_places(places), **options)
        assert_same(found, epochs(Counting(), **options))

    def test_resumed(self, kind, places):
        [whole] = epochs(Counting(), 1, shuffle=True)
        options = {"batch_size": 8, "shuffle": True, "cache": kind}
        loader = DataLoader(Counting(), places=make_places(places), seed=4, **options)
        epoch = iter(loader)
        assert_same([as_numpy(next(epoch)) for _ in range(3)], whole[:3])
        again = DataLoader(Counting(), places=make_places(places), **options)
        again.load_state_dict(loader.state_dict())
        assert_same(as_numpy(list(again)), whole[3:])

    def test_with_a_batch_sampler(self, kind, places):
        batches = [[3], [1, 2, 69, -1], list(range(40)), [0, 0]]
        options = {"batch_sampler": batches, "batch_size": 1}
        found = epochs(Counting(), cache=kind, places=make_places(places), **options)
        assert_same(found, epochs(Counting(), **options))

    def test_an_index_that_is_none(self, kind, places):
        options = {"batch_sampler": [[3, 1], [2, 70]], "batch_size": 1, "cache": kind}
        with pytest.raises(SampleError, match=r"batch 1, sample 1, dataset index 70.*: the dataset has 70"):
            epochs(Counting(), places=make_places(places), **options)


def copied_by(monkeypatch, device):
    """Return a list that receives the bytes of every later copy from a slot to a device; masks are apart."""
    sizes, copy = [], device.copy_async

    def copy_async(target, source, nbytes, stream, offset=0):
        if isinstance(source, Slot):
            sizes.append(nbytes)
        copy(target, source, nbytes, stream, offset)

    monkeypatch.setattr(device, "copy_async", copy_async)
    return sizes


class Kept(Sampler):
    """A sampler of the user."""

    def __iter__(self):
        yield from range(COUNT - 1, -1, -1)

    def __len__(self):
        return COUNT


ENDS = 16  # bytes of a batch's first and last position


class TestTheOrderOnTheDevice:
    """The device computes an epoch's permutation; a batch carries two positions, or else row numbers."""

    @pytest.mark.parametrize(
        ("options", "nbytes"),
        [
            ({"shuffle": True}, ENDS),
            ({"shuffle": False}, ENDS),
            (
                {"batch_size": 1, "batch_sampler": BatchSampler(range(COUNT), shuffle=True, batch_size=7)},
                ENDS,
            ),
            ({"sampler": RandomSampler(range(COUNT), num_samples=35)}, ENDS),
            ({"shuffle": True, "shard": (1, 3)}, ENDS),
            ({"shuffle": False, "shard": (2, 3), "uneven": "drop"}, ENDS),
            ({"shuffle": True, "shard": (1, 3), "uneven": "repeat", "batch_size": 8}, 8 * 8),
            ({"shuffle": True, "shard": (1, 2), "uneven": "repeat"}, ENDS),
            ({"sampler": RandomSampler(range(COUNT), replacement=True)}, 7 * 8),
            ({"sampler": SubsetRandomSampler(range(0, COUNT, 2))}, 7 * 8),
            ({"sampler": Kept()}, 7 * 8),
            ({"batch_size": 1, "batch_sampler": DistributedBatchSampler(range(COUNT), 7, 2, 1, True)}, 7 * 8),
        ],
    )
    def test_what_a_batch_brings(self, monkeypatch, options, nbytes):
        device = SimulatedDevice()
        options = {"batch_size": 7, **options}
        loader = DataLoader(Counting(), places=CustomPlace(device), cache="device", seed=4, **options)
        plain = load(Counting(), seed=4, **options)
        assert_same(as_numpy(list(loader)), as_numpy(list(plain)))
        sizes = copied_by(monkeypatch, device)
        for _ in range(2):
            assert_same(as_numpy(list(loader)), as_numpy(list(plain)))
        assert set(sizes) == {nbytes}
        assert len(sizes) == 2 * len(plain)

    def test_nothing_is_permuted_on_the_host(self, monkeypatch):
        """At least without random transforms, when the host need not know the samples of a batch."""
        loader = DataLoader(
            TensorDataset(np.arange(50)),
            places=simulated_places(1),
            batch_size=8,
            shuffle=True,
            cache="device",
        )
        monkeypatch.setattr(Shuffled, "slice", None)
        monkeypatch.setattr(Shuffled, "at", None)
        found = np.concatenate([np.asarray(numbers) for _ in range(2) for [numbers] in loader])
        assert sorted(found.tolist()) == sorted([*range(50)] * 2)

    @pytest.mark.parametrize("count", [1, SORTED_AT_MOST, SORTED_AT_MOST + 1, 300_000])
    @pytest.mark.parametrize("draws", [None, 1000])
    def test_is_the_hosts_sorted_or_computed(self, count, draws):
        rows = TensorDataset(np.arange(count))
        sampler = RandomSampler(rows, num_samples=None if draws is None else min(draws, count))
        options = {"batch_size": 40_000, "sampler": sampler, "seed": 2**64 - 1}
        plain = load(rows, **options)
        loader = DataLoader(rows, places=simulated_places(2), cache="device", **options)
        for _ in range(2):
            wanted = np.concatenate([numbers.copy() for [numbers] in plain])
            found = np.concatenate([np.asarray(part) for step in loader for [part] in step])
            np.testing.assert_array_equal(found, wanted)

    @given(
        count=st.integers(0, 60),
        size=st.integers(1, 20),
        places=st.integers(1, 4),
        remainder=st.sampled_from(["drop", "pad", None]),
        shuffle=st.booleans(),
        drop_last=st.booleans(),
        start=st.integers(0, 8),
        seed=st.integers(0, 2**64 - 1),
        draws=st.booleans(),
    )
    @settings(max_examples=50, deadline=None)
    def test_is_the_same_wherever_it_is_entered(
        self, count, size, places, remainder, shuffle, drop_last, start, seed, draws
    ):
        """In shards or in turn, padded or not, from the start or resumed, over two epochs."""
        assume(remainder != "drop" or size >= places)
        steps = [RandomCropFlip("0", (2, 2)), Cast("1", "float32")] if draws else []
        pictures = np.arange(count * 12, dtype=np.uint16).reshape(count, 4, 3, 1)
        dataset = TensorDataset(pictures, np.arange(count) * 3)
        shuffle = shuffle and count > 0  # an empty dataset cannot be shuffled
        options = {"batch_size": size, "shuffle": shuffle, "drop_last": drop_last, "transforms": steps}
        if remainder is not None:
            options |= {"split": "shards", "uneven": remainder}
        plain = DataLoader(dataset, places=[CPUPlace()] * places, seed=seed, **options)
        wanted = [as_numpy(list(plain)) for _ in range(2)]
        where = simulated_places(places, seed % 100)
        loader = DataLoader(dataset, places=where, cache="device", seed=seed, **options)
        epoch = iter(loader)
        begun = [as_numpy(step) for _, step in zip(range(start), epoch, strict=False)]
        assert_same(begun, wanted[0][:start])
        again = DataLoader(dataset, places=simulated_places(places), cache="device", seed=seed, **options)
        again.load_state_dict(loader.state_dict())
        for rest in (as_numpy(list(epoch)), as_numpy(list(again))):
            if len(begun) == start:  # otherwise the epoch ended, and the state starts the next one
                assert_same(rest, wanted[0][start:])
        assert_same(as_numpy(list(loader)), wanted[1])

    def test_epochs_side_by_side_have_each_their_own(self):
        dataset = TensorDataset(np.arange(COUNT))
        options = {"batch_size": 8, "shuffle": True, "seed": 4}
        plain = load(dataset, **options)
        wanted = [as_numpy(list(plain)) for _ in range(4)]
        loader = DataLoader(dataset, places=simulated_places(1), cache="device", **options)
        for first in (0, 2):  # the second pass overwrites what the first left
            both = list(zip(iter(loader), iter(loader), strict=True))
            assert_same(as_numpy([one for one, _ in both]), wanted[first])
            assert_same(as_numpy([other for _, other in both]), wanted[first + 1])

    def test_two_places_on_one_device_share_the_arrays(self, monkeypatch):
        device = SimulatedDevice()
        sizes = copied_by(monkeypatch, device)
        rows = np.arange(4000)
        loader = DataLoader(
            TensorDataset(rows),
            places=[CustomPlace(device)] * 2,
            batch_size=100,
            shuffle=True,
            cache="device",
        )
        found = [np.asarray(part) for step in loader for [part] in step]
        assert sizes == [rows.nbytes] + [ENDS] * 40
        assert sorted(np.concatenate(found).tolist()) == rows.tolist()

    def test_another_device_behind_two_places_on_one_has_the_arrays_too(self):
        first, second = (CustomPlace(SimulatedDevice()) for _ in range(2))
        rows = np.arange(60)
        loader = DataLoader(
            TensorDataset(rows), places=[first, first, second], batch_size=4, shuffle=True, cache="device"
        )
        found = [np.asarray(part) for step in loader for [part] in step]
        assert sorted(np.concatenate(found).tolist()) == rows.tolist()

    def test_is_computed_ahead_of_the_batches_that_read_it(self, monkeypatch):
        """On another stream it could be late, or overwrite an order that an earlier epoch still reads."""
        compute = Lane.compute
        monkeypatch.setattr(
            Lane,
            "compute",
            lambda lane, program, memory: lane.device.run(program, memory, lane.device.stream()),
        )
        where = simulated_places(1, seed=3)
        rows = TensorDataset(np.arange(COUNT))
        wrong = DataLoader(rows, places=where, batch_size=8, shuffle=True, seed=4, cache="device")
        with pytest.raises(RaceError, match="read before the copy into it is known to be done"):
            list(wrong)
        monkeypatch.setattr(Lane, "compute", compute)


def test_nothing_is_left_behind():
    with nothing_left_behind():
        for kind in KINDS:
            epochs(Counting(), cache=kind, places=simulated_places(2), shuffle=True)
            loader = DataLoader(Counting(), places=simulated_places(1), cache=kind)
            next(iter(loader))
            del loader
        gc.collect()


def test_the_hosts_arrays_go_when_the_device_has_them(monkeypatch):
    brought, original = [], cache.upload

    def upload(arrays, *where):
        brought.extend(weakref.ref(array) for array in arrays)
        return original(arrays, *where)

    monkeypatch.setattr(cache, "upload", upload)
    rows = TensorDataset(np.arange(COUNT))
    for dataset in (Counting(), Subset(rows, range(0, COUNT, 2))):
        brought.clear()
        loader = DataLoader(dataset, places=simulated_places(2), cache="device", batch_size=8, shuffle=True)
        list(loader)
        gc.collect()
        assert brought
        assert all(array() is None for array in brought)
        assert sum(len(np.asarray(part[0])) for step in loader for part in step) == len(dataset)


def test_arrays_are_not_read_again():
    """Batches of a dataset of arrays are gathered from these arrays, without a second copy on the host."""
    arrays = np.arange(40.0).reshape(20, 2)
    loader = load(TensorDataset(arrays), cache="host", batch_size=4)
    list(loader)
    assert loader._epochs._fetching._gatherer._arrays[0] is arrays


class TestTooLittleMemory:
    @pytest.mark.parametrize("kind", KINDS)
    def test_on_the_host(self, monkeypatch, kind):
        monkeypatch.setattr(cache, "available_memory", lambda: 900)
        message = r"70 cached samples need 980 bytes of host memory, but only 900 are available"
        with pytest.raises(StagingMemoryError, match=message):
            epochs(Counting(), cache=kind, places=simulated_places(1))
        monkeypatch.setattr(cache, "available_memory", lambda: 980)
        epochs(Counting(), 1, cache=kind, places=simulated_places(1))

    def test_on_the_device(self):
        with nothing_left_behind():
            place = CustomPlace(SimulatedDevice(memory_limit=1000))
            with pytest.raises(StagingMemoryError, match=r"1,072 bytes on simulated:0: 1,000 bytes are left"):
                epochs(Counting(), cache="device", places=place)

    def test_on_the_device_is_told_before_all_is_read(self):
        dataset = Counting(5000)
        loader = DataLoader(
            dataset, places=CustomPlace(SimulatedDevice(memory_limit=1000)), cache="device", batch_size=8
        )
        for _ in range(2):
            with pytest.raises(StagingMemoryError, match="a cache of 70,000 bytes does not fit on simul"):
                next(iter(loader))
            gc.collect()  # drops what was read ahead
        assert sum(dataset.reads) <= 1000

    def test_for_the_order_beside_the_arrays(self):
        """The arrays take 1,072 bytes, their order 560; without shuffling there is no order."""
        with nothing_left_behind():
            place = CustomPlace(SimulatedDevice(memory_limit=1500))
            with pytest.raises(
                StagingMemoryError, match=r"order of 560 bytes does not fit on simulated:0.*cache='host'"
            ):
                epochs(Counting(), cache="device", places=place, shuffle=True)
            place = CustomPlace(SimulatedDevice(memory_limit=20_000))
            epochs(Counting(), cache="device", places=place, shuffle=True)


class TestWhatCannotBeKept:
    @pytest.mark.parametrize(
        ("options", "conflict"),
        [
            ({"collate_fn": list}, "collate_fn"),
            ({"batch_size": None}, "batch_size=None"),
            ({"on_bad": "skip"}, "on_bad='skip'"),
            ({"ragged": ["0"]}, "ragged"),
            ({"pad": {"0": 0}}, "pad"),
            (
                {"feed_list": [data("image", [None, 2], lod_level=1), data("number", [None, 1])]},
                "fields of varying length",
            ),
        ],
    )
    def test_is_refused_and_named_alone(self, options, conflict):
        with pytest.raises(ValueError, match=f"be combined with {conflict}$"):
            load(Counting(), cache="host", **options)

    def test_an_iterable_data_set(self):
        class Stream(IterableDataset):
            def __iter__(self):
                yield from range(3)

        with pytest.raises(ValueError, match="cache needs a map-style dataset"):
            load(Stream(), cache="host")

    @pytest.mark.parametrize(
        ("sample", "names"), [("text", ""), ((1, "text"), "1"), ({"number": 1, "what": None}, "what")]
    )
    def test_objects(self, sample, names):
        with pytest.raises(LoaderError, match=rf"not arrays and cannot be cached: \['{names}'\]; leave them"):
            list(load([sample] * 5, cache="host"))

    def test_samples_of_several_sizes(self):
        samples = [np.zeros(one) for one in (2, 2, 3)]
        with pytest.raises(
            SampleError, match=r"dataset index 2.*expected shape \(2,\).*, got \(3,\)"
        ) as caught:
            list(load(samples, cache="host"))
        assert "a cache needs all samples to have one form; leave cache out" in str(caught.value)
        assert "ragged" not in str(caught.value)

    def test_samples_of_another_size_later_on(self):
        samples = [np.zeros(3)] * 64 + [np.zeros(1)]  # alone in its batch, and would broadcast to the row
        message = r"dataset index 64, field '0': expected shape \(3,\) and dtype float64 .*, got shape \(1,\)"
        with pytest.raises(SampleError, match=f"{message}.*a cache needs all samples to have one form"):
            list(load(samples, cache="host"))

    @pytest.mark.parametrize("cache", ["host", "device"])
    @pytest.mark.parametrize(
        ("first", "later", "message"),
        [
            (1, 0.5, r"field '0': expected shape \(\) and dtype int64 as in sample 0, got .* dtype float64"),
            ({"a": 1}, {"b": 1}, r"expected a dict with the keys \['a'\] .* as in sample 0, got .*\['b'\]"),
            ((1, 2), (1, 2, 3), "expected a list of 2 .* as in sample 0, got a list of 3"),
            ((1, 2), {"a": 1}, "expected a list of 2 .* as in sample 0, got a dict"),
        ],
    )
    def test_samples_of_another_form_later_on(self, first, later, message, cache):
        places = "cpu" if cache == "host" else simulated_places(1)
        with pytest.raises(SampleError, match=f"dataset index 64.*{message}.*leave cache out"):
            list(DataLoader([first] * 64 + [later] * 3, places=places, cache=cache))

    def test_no_samples(self):
        with pytest.raises(LoaderError, match="the dataset is empty: there is nothing to cache"):
            list(load([], cache="host", batch_sampler=[[0]]))

    def test_an_unknown_word(self):
        with pytest.raises(ValueError, match="cache must be one of 'host', 'device' or None, got 'disk'"):
            load([1], cache="disk")


class TestUpload:
    @given(
        sizes=st.lists(
            st.tuples(st.integers(0, 70), st.sampled_from(["u1", "i2", "f4", "f8", "c16", "?"])), max_size=4
        ),
        chunk=st.integers(1, 300),
        seed=st.integers(0, 9),
    )
    @settings(max_examples=40, deadline=None)
    def test_of_any_size_in_chunks_of_any_size(self, sizes, chunk, seed):
        random = np.random.default_rng(seed)
        arrays = [random.integers(0, 200, (rows, 3)).astype(dtype) for rows, dtype in sizes]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sending, "UPLOAD_NBYTES", chunk)
            for device in (SimulatedDevice(seed=seed), HostDevice()):
                for array, there in zip(arrays, sending.upload(arrays, device), strict=True):
                    assert there.dtype == array.dtype
                    np.testing.assert_array_equal(there, array)

    def test_of_what_does_not_lie_in_one_piece(self):
        array = np.arange(60).reshape(6, 10)[::2, 1::3]
        array.flags.writeable = False
        [there] = sending.upload([array], SimulatedDevice())
        np.testing.assert_array_equal(there, array)

    @pytest.mark.parametrize("chunk", [64, 1000])
    def test_batches_after_it(self, monkeypatch, chunk):
        monkeypatch.setattr(sending, "UPLOAD_NBYTES", chunk)
        found = epochs(Counting(), cache="device", places=simulated_places(2), shuffle=True)
        assert_same(found, epochs(Counting(), places=[CPUPlace()] * 2, shuffle=True))

    def test_waits_for_what_leaves_its_slots(self, monkeypatch):
        """Without waiting, the simulated device notices that a slot is overwritten during a copy."""
        device = SimulatedDevice(seed=1)
        monkeypatch.setattr(sending, "UPLOAD_NBYTES", 16)
        synchronize = device.synchronize
        monkeypatch.setattr(device, "synchronize", lambda event: None)
        sending.upload([np.arange(200)], device)
        monkeypatch.setattr(device, "synchronize", synchronize)
        with pytest.raises(LoaderError, match="rewritten before the copy"):
            device.finish(device._streams[-1])
