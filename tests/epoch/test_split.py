"""Shards: a step is one batch in equal parts, one per place, and masks mark which samples count."""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuloader import BatchSampler, DataLoader, cpu_places, data
from gpuloader.epoch.delivery import Masks, add_mask
from gpuloader.errors import LoaderError
from gpuloader.testing import CustomPlace, SimulatedDevice, simulated_places
from tests.fakes import loader_threads, nothing_left_behind
from tests.rank_loaders import Stream
from tests.sample_sets import Made, Pair


def pair(index):
    assert type(index) is int
    return np.array([index, -index]), index


def pairs(count):
    return Made(pair, count)


class Pairs(Stream):
    def __iter__(self):
        return map(pair, super().__iter__())


def make(dataset, places, **options):
    return DataLoader(dataset, places=places, **{"seed": 6, **options})


def in_shards(dataset, places, remainder="error", **options):
    return make(dataset, places, split="shards", uneven=remainder, **options)


def whole_batches(dataset, **options):
    """Return the batches of one place, as lists of numbers."""
    return [labels.tolist() for _, labels in make(dataset, "cpu", **options)]


def look(step, masked):
    """Return all labels of a step, and how many samples each place got."""
    labels, counts = [], []
    for images, numbers, *masks in step:
        images, numbers = np.asarray(images), np.asarray(numbers)
        np.testing.assert_array_equal(images, np.stack([numbers, -numbers], 1))
        counts.append(len(numbers))
        if masked:
            mask = np.asarray(masks[0])
            assert mask.dtype == bool
            assert mask.shape == numbers.shape
            numbers = numbers[mask]
        labels += numbers.tolist()
    return labels, counts


def epoch_of(loader, masked=False):
    found = []
    for step in loader:
        labels, counts = look(step, masked)
        assert len(set(counts)) == 1
        found.append(labels)
    return found


def wanted_of(batches, places, remainder):
    """Return the samples of whole batches that remain after the remainder is dropped or padded."""
    if remainder == "drop":
        batches = [batch[: len(batch) // places * places] for batch in batches]
    return [batch for batch in batches if batch]


cuts = {
    "count": st.integers(0, 60),
    "size": st.integers(1, 20),
    "places": st.integers(1, 8),
    "remainder": st.sampled_from(["error", "drop", "pad"]),
}


class TestShardsMakeUpBatches:
    @given(
        **cuts,
        shuffle=st.booleans(),
        drop_last=st.booleans(),
        workers=st.sampled_from([0, 0, 2]),
        seed=st.none() | st.integers(0, 9),
    )
    def test_on_hosts_and_devices(self, count, size, places, remainder, shuffle, drop_last, workers, seed):
        assume(remainder == "pad" or size >= places)
        assume(remainder != "error" or size % places == 0)
        where = cpu_places(places) if seed is None else simulated_places(places, seed)
        shuffle = shuffle and count > 0  # an empty dataset cannot be shuffled
        options = {"batch_size": size, "shuffle": shuffle, "drop_last": drop_last}
        if workers:
            options |= {"num_workers": workers, "worker_type": "thread"}
        if remainder == "error" and count % size % places and not drop_last:
            with pytest.raises(ValueError, match=f"cannot be cut into {places} equal parts"):
                in_shards(pairs(count), where, remainder, **options)
            return
        whole, loader = (
            make(pairs(count), "cpu", **options),
            in_shards(pairs(count), where, remainder, **options),
        )
        for _ in range(2):
            wanted = wanted_of([labels.tolist() for _, labels in whole], places, remainder)
            steps = ([step] for step in loader) if places == 1 else loader
            assert epoch_of(steps, masked=remainder == "pad" and places > 1) == wanted
            assert remainder == "drop" or len(loader) == len(wanted)

    @pytest.mark.parametrize("places", [cpu_places(8), simulated_places(4)])
    @pytest.mark.parametrize("workers", [{}, {"num_workers": 2}])
    def test_in_processes_too(self, places, workers):
        options = {"batch_size": 16, "shuffle": True}
        found = epoch_of(in_shards(pairs(45), places, "pad", **options, **workers), masked=True)
        assert found == whole_batches(pairs(45), **options)

    @pytest.mark.parametrize("remainder", ["drop", "pad"])
    def test_of_a_batch_sampler(self, remainder):
        """With 'drop', nothing is left of a batch that has fewer samples than there are places."""
        batches = [[1, 2, 3, 4], [5], [6, 7, 8], [9], [9, 9, 9, 9, 9], [0]]
        for sampler in (batches, BatchSampler(pairs(11), batch_size=4)):
            loader = in_shards(pairs(11), cpu_places(2), remainder, batch_sampler=sampler)
            wanted = wanted_of(whole_batches(pairs(11), batch_sampler=sampler), 2, remainder)
            assert epoch_of(loader, remainder == "pad") == wanted

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize(("remainder", "drop_last"), [("drop", False), ("error", True)])
    def test_of_an_iterable_data_set(self, workers, remainder, drop_last):
        options = {"batch_size": 6, "num_workers": workers, "worker_type": "thread", "drop_last": drop_last}
        found = epoch_of(in_shards(Pairs(20), cpu_places(3), remainder, **options))
        assert found == [[*range(6)], [*range(6, 12)], [*range(12, 18)]]

    def test_dicts_and_single_fields(self):
        feeds = [data("image", [None, 2], "int64"), data("label", [None], "int64")]
        loader = in_shards(pairs(5), cpu_places(2), "pad", batch_size=6, feed_list=feeds, return_list=False)
        [[first, second]] = list(loader)
        assert list(first) == list(second) == ["image", "label", "mask"]
        assert second["mask"].tolist() == [True, True, False]
        [[(numbers, mask), _]] = in_shards(range(3), cpu_places(2), "pad", batch_size=4)
        assert (numbers.tolist(), mask.tolist()) == ([0, 1], [True, True])


@given(**cuts, after=st.integers(0, 6), sampled=st.booleans())
def test_an_epoch_resumes_where_it_stopped(count, size, places, remainder, after, sampled):
    assume(places > 1)
    assume(remainder != "error" or (size % places == 0 and (count % size) % places == 0))
    assume(remainder == "pad" or size >= places)
    options = {"batch_size": size, "shuffle": count > 0}  # an empty dataset cannot be shuffled
    if sampled:
        order = np.random.default_rng(0).permutation(count).tolist()
        sizes = itertools.cycle([1, size, 2, size] if remainder == "drop" else [size])
        batches = []
        while order:
            batches.append([order.pop() for _ in range(min(next(sizes), len(order)))])
        options = {"batch_sampler": batches}
    masked = remainder == "pad"
    whole = epoch_of(in_shards(pairs(count), cpu_places(places), remainder, **options), masked)
    loader = in_shards(pairs(count), cpu_places(places), remainder, **options)
    epoch = iter(loader)
    assert epoch_of(itertools.islice(epoch, after), masked) == whole[:after]
    again = in_shards(pairs(count), simulated_places(places), remainder, **options)
    again.load_state_dict(loader.state_dict())
    if after <= len(whole):  # else the state starts the next epoch
        assert epoch_of(again, masked) == whole[after:]


class TestMasks:
    def test_cannot_be_written_to(self):
        [[(*_, first), (*_, second)]] = in_shards(pairs(3), cpu_places(2), "pad", batch_size=4)
        assert (first.tolist(), second.tolist()) == ([True, True], [True, False])
        for mask in (first, second):
            with pytest.raises(ValueError, match="read-only"):
                mask[0] = False

    def test_are_windows_of_one_memory_that_stay_valid_when_a_longer_one_is_made(self):
        masks = Masks()
        short = masks.get(1, 2)
        for size in range(1, 300):
            for own in {0, 1, size // 2, size}:
                mask = masks.get(own, size)
                assert mask.array.tolist() == [True] * own + [False] * (size - own)
                assert mask.address == mask.array.ctypes.data
        assert masks.get(2, 3).memory is masks.get(0, 300).memory is not short.memory
        assert short.array.tolist() == [True, False]

    def test_are_on_the_shards_own_device(self):
        """Even if two devices have the same name."""
        devices = [SimulatedDevice(), SimulatedDevice()]
        [step] = in_shards(pairs(3), [CustomPlace(device) for device in devices], "pad", batch_size=4)
        for device, (_, numbers, mask) in zip(devices, step, strict=True):
            assert numbers._device is mask._device is device

    def test_do_not_take_a_fields_name(self):
        masked = [Made(lambda index: {"mask": index}, count) for count in (3, 4)]
        with pytest.raises(LoaderError, match=r"the samples have a field 'mask'.*uneven='drop'"):
            list(in_shards(masked[0], cpu_places(2), "pad", batch_size=2))
        assert len(list(in_shards(masked[1], cpu_places(2), batch_size=2))) == 2

    def test_stand_last_or_in_a_dict_of_the_same_class(self):
        assert add_mask([1, 2], 3) == [1, 2, 3]
        assert add_mask((1, 2), 3) == (1, 2, 3)
        assert add_mask(Pair(1, 2), 3) == [Pair(1, 2), 3]  # its class has no room for a mask
        assert add_mask("text", 3) == ["text", 3]
        batch = add_mask(collections.defaultdict(list, a=1), 3)
        assert (type(batch), batch) == (collections.defaultdict, {"a": 1, "mask": 3})


class TestErrors:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"shuffle": True},
            {"batch_size": 1, "batch_sampler": BatchSampler(pairs(9), batch_size=4)},
            {"shard": (1, 2), "remainder": "repeat"},
        ],
    )
    def test_of_a_last_batch_that_will_not_divide(self, options):
        """The error comes before the first step, not after the last."""
        message = "last batch, of 1 samples, cannot be cut into 4 equal parts; choose drop_last"
        with pytest.raises(ValueError, match=message):
            in_shards(pairs(9), cpu_places(4), **{"batch_size": 4, **options})

    @pytest.mark.parametrize("workers", [0, 2])
    def test_of_a_last_batch_that_does_not_divide(self, workers):
        """The loader cannot know this earlier if only the sampler knows the number of samples."""
        options = {"sampler": range(9), "batch_size": 4, "num_workers": workers, "worker_type": "thread"}
        with nothing_left_behind():
            epoch = iter(in_shards(pairs(9), cpu_places(4), **options))
            assert [look(next(epoch), False)[0] for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
            with pytest.raises(LoaderError, match="of 1 samples cannot be cut into 4 equal parts; choose"):
                next(epoch)
            assert list(epoch) == []
            del epoch
        assert not loader_threads()


@pytest.mark.parametrize("split", ["shards", "batches"])
@pytest.mark.parametrize("cache", [None, "device"])
def test_all_devices_have_their_copies_before_the_user_has_the_first(monkeypatch, split, cache):
    """A step's copies, one per part, are issued on all streams before any part is delivered."""
    places, log = simulated_places(3), []

    def watch(device, name, number):
        real = getattr(device, name)

        def call(*arguments, **named):
            log.append((name, number))
            return real(*arguments, **named)

        monkeypatch.setattr(device, name, call)

    for number, place in enumerate(places):
        watch(place.device, "copy_async", number)
        watch(place.device, "views", number)
    loader = make(pairs(54), places, batch_size=6, split=split, cache=cache, use_buffer_reader=False)
    if cache:
        list(loader)
    log.clear()
    steps = len(list(loader))
    assert steps == (9 if split == "shards" else 3)
    assert log == [(name, number) for name in ("copy_async", "views") for number in range(3)] * steps
