"""Caches: the same batches in the same order, from arrays that are read once."""

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuloader import (
    BatchSampler,
    CPUPlace,
    DataLoader,
    Dataset,
    DistributedBatchSampler,
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
from gpuloader.order.randomness import SORTED_AT_MOST
from gpuloader.staging import Slot
from gpuloader.testing import CustomPlace, RaceError, SimulatedDevice, simulated_places
from gpuloader.transforms import Cast, RandomCropFlip
from tests.fakes import nothing_left_behind
from tests.loading import load
from tests.rank_loaders import Stream
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
        return self.make(index)

    def make(self, index):
        return np.full((3, 2), index, np.uint8), index * 1.5

    def __len__(self):
        return len(self.reads)


class Drawing(Counting):
    def make(self, index):
        return super().make(index)[0], sample_rng().random(2)


class Dicts(Counting):
    def make(self, index):
        image = np.arange(2, dtype=np.uint8)[:, None] + np.full((3, 2, 1), index, np.uint8)
        return {"image": image, "meta": (index * 1.5, {"index": index})}


class Bare(Counting):
    def make(self, index):
        return super().make(index)[0]


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


def make_places(kind, count=1, seed=0):
    return [CPUPlace()] * count if kind == "cpu" else simulated_places(count, seed)


def check_same(kind, places, make=Counting, count=1, **options):
    """Fail unless a loader with a cache delivers what one without it does on a host."""
    found = epochs(make(), cache=kind, places=make_places(places, count), **options)
    assert_same(found, epochs(make(), places=[CPUPlace()] * count, **options))


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
    kind=st.sampled_from(["device", "device", "host"]),
    where=st.sampled_from(["simulated", "simulated", "cpu"]),
)
def test_an_epoch_is_the_same_wherever_it_is_entered(
    count, size, places, remainder, shuffle, drop_last, start, seed, draws, kind, where
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
    wanted = epochs(dataset, 2, [CPUPlace()] * places, seed=seed, **options)
    options |= {"cache": kind, "seed": seed}
    loader = load(dataset, places=make_places(where, places, seed % 100), **options)
    epoch = iter(loader)
    begun = [as_numpy(step) for _, step in zip(range(start), epoch, strict=False)]
    assert_same(begun, wanted[0][:start])
    again = load(dataset, places=make_places(where, places), **options)
    again.load_state_dict(loader.state_dict())
    for rest in (as_numpy(list(epoch)), as_numpy(list(again))):
        if len(begun) == start:  # otherwise the epoch ended, and the state starts the next one
            assert_same(rest, wanted[0][start:])
    assert_same(as_numpy(list(loader)), wanted[1])


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

    def test_read_by_workers(self, kind, places):
        ways = [({"worker_type": "thread"}, 1)]
        if (kind, places) == ("device", "simulated"):  # once is enough
            ways.append(({"start_method": "fork"}, 0))
        for workers, reads in ways:
            dataset = Counting()
            options = {"shuffle": True, "places": make_places(places), "num_workers": 2, **workers}
            assert_same(epochs(dataset, cache=kind, **options), epochs(Counting(), shuffle=True))
            assert dataset.reads == [reads] * COUNT

    def test_of_a_subset(self, kind, places):
        for source in (TensorDataset(np.arange(COUNT), np.arange(COUNT) * 0.5), Counting()):
            part = Subset(source, [5, -1, 5, 60, 2, 0, 9])
            check_same(kind, places, lambda part=part: part, shuffle=True, batch_size=3)

    def test_of_declared_fields(self, kind, places):
        feeds = [data("image", [None, 3, 2], "float32"), data("number", [None, 1], "float64")]
        for return_list in (True, False):
            check_same(kind, places, feed_list=feeds, return_list=return_list, shuffle=True)
        # With transforms, too, the fields have their declared names.
        feeds = [data("image", [None, 3, 2]), data("number", [None], "float64")]
        steps = [Cast("number", "int32", 2), Cast("image", "uint8")]
        check_same(kind, places, feed_list=feeds, transforms=steps)

    def test_with_a_batch_sampler(self, kind, places):
        batches = [[3], [1, 2, 69, -1], list(range(40)), [0, 0]]
        check_same(kind, places, batch_sampler=batches, batch_size=1)
        options = {"batch_sampler": [[3, 1], [2, 70]], "batch_size": 1, "cache": kind}
        problem = "batch 1, sample 1, dataset index 70.*: the sampler.s index 70 is out of range for 70"
        with pytest.raises(SampleError, match=problem):
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


def on_devices(rows, places, **options):
    """Return a loader of shuffled rows that are cached on devices."""
    return DataLoader(TensorDataset(rows), places=places, **{"cache": "device", "shuffle": True, **options})


def numbers_of(loader):
    """Return the numbers of an epoch over one field, place by place."""
    parts = [np.ravel(np.asarray(part)) for step in loader for part in step]
    return np.concatenate(parts).tolist()


ENDS = 16  # bytes of a batch's first and last position


class TestTheOrderOnTheDevice:
    """The device computes an epoch's permutation; a batch carries two positions, or else row numbers."""

    @pytest.mark.parametrize(
        ("options", "nbytes"),
        [
            ({"shuffle": True}, ENDS),
            ({"shuffle": False}, ENDS),
            ({"batch_size": 1, "batch_sampler": BatchSampler(range(COUNT), None, True, 7)}, ENDS),
            ({"sampler": RandomSampler(range(COUNT), num_samples=35)}, ENDS),
            ({"shuffle": True, "shard": (1, 3)}, ENDS),
            ({"shuffle": False, "shard": (2, 3), "uneven": "drop"}, ENDS),
            ({"shuffle": True, "shard": (1, 3), "uneven": "repeat", "batch_size": 8}, 8 * 8),
            ({"shuffle": True, "shard": (1, 2), "uneven": "repeat"}, ENDS),
            ({"sampler": RandomSampler(range(COUNT), replacement=True)}, 7 * 8),
            ({"sampler": SubsetRandomSampler(range(0, COUNT, 2))}, 7 * 8),
            ({"sampler": Kept(range(COUNT))}, 7 * 8),
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
        loader = on_devices(np.arange(50), simulated_places(1), batch_size=8)
        monkeypatch.setattr(Shuffled, "slice", None)
        monkeypatch.setattr(Shuffled, "at", None)
        for _ in range(2):
            assert sorted(numbers_of(loader)) == [*range(50)]

    @pytest.mark.parametrize("count", [1, SORTED_AT_MOST, SORTED_AT_MOST + 1, 300_000])
    @pytest.mark.parametrize("draws", [None, 1000])
    def test_is_the_hosts_sorted_or_computed(self, count, draws):
        sampler = RandomSampler(range(count), num_samples=None if draws is None else min(draws, count))
        options = {"batch_size": 40_000, "sampler": sampler, "seed": 2**64 - 1, "shuffle": False}
        plain = load(TensorDataset(np.arange(count)), **options)
        loader = on_devices(np.arange(count), simulated_places(2), **options)
        for _ in range(2):
            assert numbers_of(loader) == numbers_of(plain)

    def test_epochs_side_by_side_have_each_their_own(self):
        rows = np.arange(COUNT)
        wanted = epochs(TensorDataset(rows), 4, shuffle=True)
        loader = on_devices(rows, simulated_places(1), batch_size=8, seed=4)
        for first in (0, 2):  # the second pass overwrites what the first left
            both = list(zip(iter(loader), iter(loader), strict=True))
            assert_same(as_numpy([one for one, _ in both]), wanted[first])
            assert_same(as_numpy([other for _, other in both]), wanted[first + 1])

    def test_two_places_on_one_device_share_the_arrays(self, monkeypatch):
        device, another = SimulatedDevice(), SimulatedDevice()
        sizes, rows = copied_by(monkeypatch, device), np.arange(4000)
        loader = on_devices(rows, [CustomPlace(device)] * 2, batch_size=100)
        assert sorted(numbers_of(loader)) == rows.tolist()
        assert sizes == [rows.nbytes] + [ENDS] * 40
        loader = on_devices(rows, [CustomPlace(one) for one in (device, device, another)], batch_size=8)
        assert sorted(numbers_of(loader)) == rows.tolist()

    def test_is_computed_ahead_of_the_batches_that_read_it(self, monkeypatch):
        """On another stream it could be late, or overwrite an order that an earlier epoch still reads."""

        def compute(lane, program, memory):
            lane.device.run(program, memory, lane.device.stream())

        monkeypatch.setattr(Lane, "compute", compute)
        with pytest.raises(RaceError, match="read before the copy into it is known to be done"):
            list(on_devices(np.arange(COUNT), simulated_places(1, seed=3), batch_size=8, seed=4))


def test_the_hosts_arrays_go_when_the_device_has_them(monkeypatch):
    brought, original = [], cache.upload

    def upload(arrays, *where):
        brought.extend(weakref.ref(array) for array in arrays)
        return original(arrays, *where)

    monkeypatch.setattr(cache, "upload", upload)
    for dataset in (Counting(), Subset(TensorDataset(np.arange(COUNT)), range(0, COUNT, 2))):
        brought.clear()
        loader = load(dataset, places=simulated_places(2), cache="device", batch_size=8, shuffle=True)
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


def limited(nbytes):
    return CustomPlace(SimulatedDevice(memory_limit=nbytes))


class TestTooLittleMemory:
    @pytest.mark.parametrize("kind", KINDS)
    def test_on_the_host(self, monkeypatch, kind):
        monkeypatch.setattr(cache, "available_memory", lambda: 900)
        message = r"70 cached samples need 980 bytes of host memory, but only 900 are available"
        with pytest.raises(StagingMemoryError, match=message):
            epochs(Counting(), cache=kind, places=simulated_places(1))
        monkeypatch.setattr(cache, "available_memory", lambda: 980)
        epochs(Counting(), 1, cache=kind, places=simulated_places(1))

    def test_on_the_device_is_told_before_all_is_read(self):
        dataset = Counting(5000)
        loader = load(dataset, places=limited(1000), cache="device", batch_size=8)
        for _ in range(2):
            with pytest.raises(StagingMemoryError, match="a cache of 70,000 bytes does not fit on simul"):
                next(iter(loader))
            gc.collect()  # drops what was read ahead
        assert sum(dataset.reads) <= 1000

    def test_for_the_order_beside_the_arrays(self):
        """The arrays take 1,072 bytes, their order 560; without shuffling there is no order."""
        message = r"order of 560 bytes does not fit on simulated:0.*cache='host'"
        with nothing_left_behind():
            with pytest.raises(StagingMemoryError, match=message):
                epochs(Counting(), cache="device", places=limited(1500), shuffle=True)
            epochs(Counting(), cache="device", places=limited(20_000), shuffle=True)


VARYING = [data("image", [None, 2], lod_level=1), data("number", [None, 1])]


class TestWhatCannotBeKept:
    @pytest.mark.parametrize(
        ("options", "conflict"),
        [
            ({"collate_fn": list}, "collate_fn"),
            ({"batch_size": None}, "batch_size=None"),
            ({"on_bad": "skip"}, "on_bad='skip'"),
            ({"ragged": ["0"]}, "ragged"),
            ({"pad": {"0": 0}}, "pad"),
            ({"feed_list": VARYING}, "fields of varying length"),
        ],
    )
    def test_is_refused_and_named_alone(self, options, conflict):
        with pytest.raises(ValueError, match=f"be combined with {conflict}$"):
            load(Counting(), cache="host", **options)

    @pytest.mark.parametrize(
        ("sample", "names"), [("text", ""), ((1, "text"), "1"), ({"number": 1, "what": None}, "what")]
    )
    def test_objects(self, sample, names):
        with pytest.raises(LoaderError, match=rf"not arrays and cannot be cached: \['{names}'\]; leave them"):
            list(load([sample] * 5, cache="host"))

    def test_samples_of_several_sizes(self):
        message = r"dataset index 2.*expected shape \(2,\).*, got \(3,\)"
        with pytest.raises(SampleError, match=message) as caught:
            list(load([np.zeros(size) for size in (2, 2, 3)], cache="host"))
        assert "a cache needs all samples to have one form; leave cache out" in str(caught.value)
        assert "ragged" not in str(caught.value)

    @pytest.mark.parametrize("cache", ["host", "device"])
    @pytest.mark.parametrize(
        ("first", "later", "message"),
        [
            (1, 0.5, r"field '0': expected shape \(\) and dtype int64 as in sample 0, got .* dtype float64"),
            ({"a": 1}, {"b": 1}, r"expected a dict with the keys \['a'\] .* as in sample 0, got .*\['b'\]"),
            ((1, 2), (1, 2, 3), "expected a list of 2 .* as in sample 0, got a list of 3"),
            ((1, 2), {"a": 1}, "expected a list of 2 .* as in sample 0, got a dict"),
            # Of another size, alone in its batch, and it would broadcast to the row.
            (np.zeros(3), np.zeros(1), r"field '0': expected shape \(3,\) and .*, got shape \(1,\)"),
        ],
    )
    def test_samples_of_another_form_later_on(self, first, later, message, cache):
        places = "cpu" if cache == "host" else simulated_places(1)
        message = f"dataset index 64.*{message}.*a cache needs all samples to have one form; leave cache out"
        with pytest.raises(SampleError, match=message):
            list(DataLoader([first] * 64 + [later], places=places, cache=cache))

    def test_no_samples(self):
        with pytest.raises(LoaderError, match="the dataset is empty: there is nothing to cache"):
            list(load([], cache="host", batch_sampler=[[0]]))
        with pytest.raises(ValueError, match="cache needs a map-style dataset"):
            load(Stream(3), cache="host")
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
    def test_of_any_size_in_chunks_of_any_size(self, sizes, chunk, seed):
        random = np.random.default_rng(seed)
        arrays = [random.integers(0, 200, (rows, 3)).astype(dtype) for rows, dtype in sizes]
        in_pieces = np.arange(60).reshape(6, 10)[::2, 1::3]
        in_pieces.flags.writeable = False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sending, "UPLOAD_NBYTES", chunk)
            for device in (SimulatedDevice(seed=seed), HostDevice()):
                there = sending.upload([*arrays, in_pieces], device)
                assert_same([np.asarray(one) for one in there], [*arrays, in_pieces])

    def test_waits_for_what_leaves_its_slots(self, monkeypatch):
        """Without waiting, the simulated device notices that a slot is overwritten during a copy."""
        device = SimulatedDevice(seed=1)
        monkeypatch.setattr(sending, "UPLOAD_NBYTES", 16)
        with monkeypatch.context() as patch:
            patch.setattr(device, "synchronize", lambda event: None)
            sending.upload([np.arange(200)], device)
        with pytest.raises(LoaderError, match="rewritten before the copy"):
            device.finish(device._streams[-1])
