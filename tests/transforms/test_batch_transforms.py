"""Transforms: the same bits on every place and with any workers; random draws depend on the sample alone."""

import gc
import itertools
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import CPUPlace, DataLoader, Ragged, Subset, TensorDataset
from gpuloader.errors import LoaderError, SampleError
from gpuloader.testing import CustomPlace, SimulatedDevice, simulated_places
from gpuloader.transforms import Cast, Normalize, OneHot, Pad, RandomCropFlip
from tests.api.streams import Items
from tests.fakes import nothing_left_behind
from tests.sample_sets import Made

COUNT = 23
PICTURES = np.random.default_rng(0).integers(0, 256, (COUNT, 9, 8, 3), np.uint8)
LABELS = np.random.default_rng(1).integers(0, 5, COUNT)
STEPS = [
    RandomCropFlip("0", (6, 5)),
    Normalize("0", mean=(0.4, 0.5, 0.6), std=0.25, scale=1 / 255),
    OneHot("1", 5),
    Cast("1", "float16", 0.5),
]


def sample(index):
    return PICTURES[index], LABELS[index]


SAMPLES = Made(sample, COUNT)
"""Pictures and labels behind Python code, so that the loader cannot gather them from arrays."""


def load(dataset=None, places="cpu", steps=STEPS, **options):
    options = {"batch_size": 4, "shuffle": True, "seed": 11, **options}
    dataset = TensorDataset(PICTURES, LABELS) if dataset is None else dataset
    return DataLoader(dataset, places=places, transforms=steps, **options)


def rows_of(loader):
    """Return one epoch's batches as (images, labels) in NumPy, for any places; shards follow one another."""
    found = []
    for step in loader:
        batches = step if isinstance(step[0], list) else [step]
        found += [tuple(np.asarray(field) for field in batch) for batch in batches]
    return found


def by_label_row(loader):
    images, labels = zip(*rows_of(loader), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def expected(seed=11, steps=STEPS, **options):
    return by_label_row(load(seed=seed, steps=steps, **options))


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


WAYS = {
    "two places": {"places": [CPUPlace()] * 2},
    "three places": {"places": [CPUPlace()] * 3},
    "threads": {"dataset": SAMPLES, "num_workers": 3, "worker_type": "thread"},
    "processes": {"dataset": SAMPLES, "num_workers": 2},
    "a dataset's code": {"dataset": SAMPLES},
    "arrays in threads": {"num_workers": 2},
    "a cache on the host": {"dataset": SAMPLES, "cache": "host"},
    "a cache of arrays": {"cache": "host"},
    "a cache, as if on a device": {"cache": "device"},
    "ready made": {"dataset": Subset(TensorDataset(PICTURES, LABELS), range(COUNT))},
}
DEVICE_WAYS = {
    "plain": {},
    "a dataset's code": {"dataset": SAMPLES},
    "threads": {"dataset": SAMPLES, "num_workers": 2, "worker_type": "thread"},
    "processes": {"dataset": SAMPLES, "num_workers": 2},
    "a cache on the host": {"dataset": SAMPLES, "cache": "host"},
    "a cache on the device": {"dataset": SAMPLES, "cache": "device"},
    "arrays on the device": {"cache": "device"},
    "no reading ahead": {"use_buffer_reader": False},
    "far ahead": {"prefetch": 3},
}


class TestTheSamePictures:
    @pytest.mark.parametrize("way", WAYS)
    def test_on_hosts(self, way):
        assert_same(by_label_row(load(**WAYS[way])), expected())

    @pytest.mark.parametrize("places", [1, 3])
    @pytest.mark.parametrize("way", DEVICE_WAYS)
    def test_on_devices(self, way, places):
        found = by_label_row(load(places=simulated_places(places), **DEVICE_WAYS[way]))
        assert_same(found, expected())

    @pytest.mark.parametrize("cache", [None, "host", "device"])
    def test_in_shards(self, cache):
        options = {"batch_size": 6, "split": "shards", "uneven": "pad", "cache": cache}
        wanted = rows_of(load(batch_size=6))
        for places in ([CPUPlace()] * 4, simulated_places(4)):
            steps = list(load(places=places, **options))
            assert len(steps) == len(wanted)
            for step, (images, labels) in zip(steps, wanted, strict=True):
                masks = [np.asarray(mask) for _, _, mask in step]
                for field, whole in enumerate((images, labels)):
                    parts = [np.asarray(one[field])[mask] for one, mask in zip(step, masks, strict=True)]
                    np.testing.assert_array_equal(np.concatenate(parts), whole)

    def test_by_hand(self):
        """Compares with the formula; the window is the whole picture, which may be mirrored."""
        steps = [RandomCropFlip("0", (9, 8)), Normalize("0", mean=0.5, std=0.25, scale=1 / 255, to="HWC")]
        images, _ = expected(steps=steps, shuffle=False)
        mirrored = 0
        for image, picture in zip(images, PICTURES, strict=True):
            plain = (picture.astype(np.float64) / 255 - 0.5) / 0.25
            flipped = not np.allclose(image, plain, atol=1e-5)
            mirrored += flipped
            np.testing.assert_allclose(image, plain[:, ::-1] if flipped else plain, atol=1e-5)
        assert 3 < mirrored < COUNT - 3


class TestWindowsAlone:
    """`RandomCropFlip` without a `Normalize` after it: another kernel, but the same windows."""

    def pictures(self, dtype="uint8", layout="HWC"):
        pictures = (PICTURES % 2 if dtype == "bool" else PICTURES).astype(dtype)
        return pictures if layout == "HWC" else np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))

    @pytest.mark.parametrize("layout", ["HWC", "CHW"])
    @pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float16", "float32", "float64"])
    def test_are_those_of_a_normalize(self, dtype, layout):
        dataset = TensorDataset(self.pictures(dtype, layout), LABELS)
        wanted, labels = expected(steps=[RandomCropFlip("0", (6, 5)), Normalize("0", to=layout)])
        for places in ("cpu", simulated_places(1), simulated_places(3)):
            for cache in (None, "device"):
                step = RandomCropFlip("0", (6, 5), layout=None if layout == "HWC" else layout)
                found = by_label_row(load(dataset, places, steps=[step], cache=cache))
                assert found[0].dtype == dtype
                shown = wanted % 2 if dtype == "bool" else wanted.astype(np.uint8).astype(dtype)
                assert_same(found, [shown.astype(dtype), labels])

    def test_are_drawn_for_each_field_and_each_transform(self):
        """A second window within the first, before a `Normalize` with its own window."""
        windows = [RandomCropFlip("0", (8, 7)), RandomCropFlip("0", (6, 5))]
        steps = [*windows, Normalize("0", crop=(4, 4), flip=True)]
        wanted = expected(steps=steps)
        assert wanted[0].shape == (COUNT, 3, 4, 4)
        assert_same(by_label_row(load(places=simulated_places(2), steps=steps)), wanted)
        assert_same(by_label_row(load(SAMPLES, steps=steps, num_workers=2)), wanted)

    def test_in_front_of_what_does_not_crop(self):
        steps = [RandomCropFlip("0", (6, 5)), OneHot("1", 5), Normalize("0")]
        apart = expected(steps=steps)
        assert_same(apart, expected(steps=[steps[0], steps[2], steps[1]]))
        steps = [RandomCropFlip("0", (6, 5), flip=False), Cast("0", "float16", 0.5)]
        assert expected(steps=steps)[0].dtype == np.float16


class TestDraws:
    def windows(self, keys, seed=3, epoch=0, size=(6, 5), **options):
        """Return the draws of samples with the given indices, (top, left, flip), read from the pictures."""
        count = 40
        coded = np.zeros((count, 9, 8, 2), np.uint8)
        coded[..., 0], coded[..., 1] = np.arange(9)[:, None], np.arange(8)
        steps = [RandomCropFlip("0", size), Normalize("0", to="HWC")]
        options |= {"steps": steps, "seed": seed, "shuffle": False, "sampler": keys}
        loader = load(TensorDataset(coded, np.arange(count)), **options)
        loader.set_epoch(epoch)
        found = {}
        for images, labels in loader:
            for image, label in zip(images, labels, strict=True):
                flip = image[0, 0, 1] > image[0, -1, 1]
                found[int(label)] = int(image[0, 0, 0]), int(image[0, :, 1].min()), int(flip)
        return found

    @given(
        keys=st.permutations(range(40)),
        batch_size=st.integers(1, 17),
        workers=st.sampled_from([0, 0, 0, 2]),
        seed=st.sampled_from([0, 3, 2**64 - 1]),
        epoch=st.sampled_from([0, 1, 2**40]),
    )
    def test_follow_seed_epoch_and_index_alone(self, keys, batch_size, workers, seed, epoch):
        wanted = self.windows(range(40), seed, epoch)
        found = self.windows(keys, seed, epoch, batch_size=batch_size, num_workers=workers)
        assert found == wanted

    def test_differ_from_seed_to_seed_and_epoch_to_epoch(self):
        pairs = itertools.product(range(3), repeat=2)
        seen = [tuple(self.windows(range(40), seed, epoch).values()) for seed, epoch in pairs]
        assert len(set(seen)) == len(seen)

    def test_are_even(self):
        count = 20_000
        coded = np.zeros((count, 5, 4, 2), np.uint8)
        coded[..., 0], coded[..., 1] = np.arange(5)[:, None], np.arange(4)
        steps = [RandomCropFlip(None, (3, 2)), Normalize(None, to="HWC")]
        [[images]] = load(TensorDataset(coded), steps=steps, batch_size=count)
        tops, lefts = images[:, 0, 0, 0], images[:, 0, :, 1].min(1)
        flips = images[:, 0, 0, 1] > images[:, 0, 1, 1]
        counts = np.zeros((3, 3, 2))
        np.add.at(counts, (tops.astype(int), lefts.astype(int), flips.astype(int)), 1)
        even = count / counts.size
        assert ((counts - even) ** 2 / even).sum() < 45  # chi squared, 17 degrees: 1 in 5000 exceeds 43

    def test_of_two_transforms_have_nothing_to_do_with_each_other(self):
        coded = np.broadcast_to(np.arange(8, dtype=np.uint8)[:, None], (400, 4, 8, 1)).copy()
        steps = [RandomCropFlip(name, (4, 1), flip=False) for name in ("0", "1")]
        steps = [one for step in steps for one in (step, Normalize(step.field, to="HWC"))]
        [[left, right]] = load(TensorDataset(coded, coded), steps=steps, batch_size=400, shuffle=False)
        agree = (left[:, 0, 0, 0] == right[:, 0, 0, 0]).mean()
        assert 0.05 < agree < 0.22

    def test_of_keys_that_are_no_numbers_follow_the_key(self):
        names = [f"{number}.jpg" for number in range(COUNT)]
        options = {"steps": [RandomCropFlip(None, (3, 2))], "shuffle": False, "batch_size": COUNT}
        samples = dict.fromkeys(names, PICTURES[0])
        [images], [others] = (load(samples, sampler=order, **options) for order in (names, names[::-1]))
        np.testing.assert_array_equal(images, others[::-1])
        assert len({image.tobytes() for image in images}) > 6

    def test_of_an_iterable_data_set_are_the_same_again(self):
        stream = Items(lambda: zip(PICTURES, LABELS, strict=True))
        first = by_label_row(load(stream, shuffle=False))
        thread = {"num_workers": 1, "worker_type": "thread"}
        for options in ({}, {"places": simulated_places(1)}, thread, {"num_workers": 1}):
            assert_same(first, by_label_row(load(stream, shuffle=False, **options)))


@dataclass(frozen=True)
class Sort:
    """A user's transform, for the host only: sorts the numbers of each sample."""

    field: str | None = None
    draws: int = 0

    def bind(self, inputs):
        return Sorted(tuple(inputs))

    def draw(self, words, inputs):
        raise AssertionError("draws nothing")

    def check(self, inputs):
        if inputs[0].ndim != 2:
            raise SampleError("expected rows", index=1)


@dataclass(frozen=True)
class Sorted:
    outputs: tuple

    def on_host(self, inputs, outputs):
        outputs[0][...] = np.sort(inputs[0], axis=1)


class TestAnOwnTransform:
    ROWS = TensorDataset(np.random.default_rng(2).random((10, 7), np.float32))

    def test_follows_and_is_followed(self):
        steps = [Cast("0", "float16"), Sort("0"), Cast("0", "float64")]
        [[found]] = load(self.ROWS, steps=steps, batch_size=10)
        assert found.dtype == np.float64
        assert (np.diff(found, axis=1) >= 0).all()

    def test_refuses_a_sample(self):
        rows = TensorDataset(np.zeros((6, 2, 2)))
        with pytest.raises(SampleError, match="batch 0, sample 1, dataset index 4, field '0': expected rows"):
            list(load(rows, steps=[Sort()], sampler=[3, 4, 5], batch_size=3, shuffle=False))

    def test_refuses_a_sample_of_a_cache_before_it_goes_to_the_device(self):
        """Batches are gathered on the device, where the transforms' checks do not run."""

        @dataclass(frozen=True)
        class Positive(Sort):
            def check(self, inputs):
                if (wrong := np.flatnonzero(inputs[0].min(axis=1) < 0)).size:
                    raise SampleError("expected positive numbers", index=int(wrong[0]))

        rows = np.ones((90, 3))
        rows[77, 2] = -1
        for dataset in (TensorDataset(rows), [(row,) for row in rows]):
            loader = load(dataset, simulated_places(1), steps=[Positive()], cache="device", batch_size=9)
            with pytest.raises(SampleError) as caught:
                next(iter(loader))
            assert str(caught.value) == "dataset index 77, field '0': expected positive numbers"

    def test_that_raises_is_named(self):
        class Raising(Sort):
            def bind(self, inputs):
                return Broken(tuple(inputs))

            def check(self, inputs):
                pass

        for dataset in (self.ROWS, SAMPLES):
            with pytest.raises(SampleError, match=r"batch 0, field '0'.*: Raising raised ZeroDiv") as caught:
                list(load(dataset, steps=[Raising("0")]))
            assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_without_a_kernel_says_so_on_a_gpu(self):
        device = SimulatedDevice()
        device.run = lambda program, memory, stream: program.run_on_device(
            device.arrays(memory, program.whole), stream
        )
        with nothing_left_behind():
            loader = load(self.ROWS, CustomPlace(device), steps=[Sort()])
            for _ in range(2):
                with pytest.raises(LoaderError, match="Sort of field '0' has no on_device"):
                    list(loader)
            del loader


class Broken(Sorted):
    def on_host(self, inputs, outputs):
        raise ZeroDivisionError


def nested(index):
    return {"meta": {"image": PICTURES[index], "name": f"p{index}"}, "label": LABELS[index], "text": "t"}


WORDS = Made(lambda index: (np.arange(index % 4 + 1), PICTURES[index]), COUNT)
"""The first field varies in length; sample i has i % 4 + 1 words."""


class TestFields:
    def test_nested_ones_beside_objects(self, place):
        steps = [RandomCropFlip("meta.image", (6, 5)), Normalize("meta.image"), OneHot("label", 5)]
        wanted = expected(steps=[RandomCropFlip("0", (6, 5)), Normalize("0"), OneHot("1", 5)], shuffle=False)
        batches = list(load(Made(nested, COUNT), place, steps=steps, shuffle=False))
        assert_same([np.concatenate([np.asarray(one["meta"]["image"]) for one in batches])], wanted[:1])
        assert_same([np.concatenate([np.asarray(one["label"]) for one in batches])], wanted[1:])
        assert [name for one in batches for name in one["meta"]["name"]] == [f"p{i}" for i in range(COUNT)]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_ragged_one_is_padded(self, place, workers):
        """It precedes a field with random draws, which are one set per sample, not per word."""
        steps = [RandomCropFlip("1", (6, 5)), Normalize("1"), Pad("0", 5, fill=-1)]
        options = {"num_workers": workers, "worker_type": "thread"}
        batches = list(load(WORDS, place, steps=steps, ragged=["0"], shuffle=False, **options))
        words = np.concatenate([np.asarray(one) for one, _ in batches])
        wanted = [list(range(i % 4 + 1)) + [-1] * (4 - i % 4) for i in range(COUNT)]
        assert words.tolist() == wanted
        wanted = expected(steps=[RandomCropFlip("0", (6, 5)), Normalize("0")], shuffle=False)
        assert_same([np.concatenate([np.asarray(two) for _, two in batches])], wanted[:1])

    def test_a_ragged_one_may_stay(self, place):
        first, _ = next(iter(load(WORDS, place, steps=[Normalize("1")], ragged=["0"], shuffle=False)))
        assert type(first) is Ragged
        assert np.asarray(first.values).tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3]

    def test_a_chain_on_one(self):
        steps = [Cast("0", "float32", 2.0), Normalize("0", to="HWC"), Cast("0", "int16")]
        images, _ = expected(steps=steps, shuffle=False)
        assert images.dtype == np.int16
        np.testing.assert_array_equal(images, PICTURES.astype(np.int16) * 2)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
    @pytest.mark.parametrize(
        ("layout", "to"), [("HWC", "HWC"), ("HWC", "CHW"), ("CHW", "HWC"), ("CHW", "CHW")]
    )
    def test_layouts_and_dtypes(self, layout, to, dtype):
        pictures = PICTURES if layout == "HWC" else np.ascontiguousarray(PICTURES.transpose(0, 3, 1, 2))
        step = Normalize("0", layout=layout, to=to, dtype=dtype, crop=(6, 5), flip=True)
        options = {"steps": [step], "dataset": TensorDataset(pictures, LABELS), "shuffle": False}
        found, _ = by_label_row(load(**options))
        reference, _ = expected(steps=[Normalize("0", to="HWC", crop=(6, 5), flip=True)], shuffle=False)
        shown = reference if to == "HWC" else reference.transpose(0, 3, 1, 2)
        if dtype == "bfloat16":
            found = (found.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(found.astype(np.float32), shown)  # every dtype can hold 8 bits exactly
        assert_same(by_label_row(load(places=simulated_places(1), **options))[1:], [LABELS])


class TestBatchesOfOtherSizes:
    BATCHES = ([0], [1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 12], [13, 13], list(range(14, 23)))

    @pytest.mark.parametrize("cache", [None, "device"])
    def test_have_each_their_program(self, place, cache):
        options = {"shuffle": False, "batch_size": 1, "batch_sampler": list(self.BATCHES), "cache": cache}
        found = rows_of(load(SAMPLES, place, **options))
        reference = expected(shuffle=False)
        for batch, keys in zip(found, self.BATCHES, strict=True):
            assert_same(batch, [field[keys] for field in reference])

    @pytest.mark.parametrize("cache", [None, "device"])
    def test_memory_does_not_grow(self, cache):
        rows = TensorDataset(np.zeros((200, 3, 3, 1), np.uint8))
        batches = [list(range(count)) for count in range(1, 60)]  # sizes, more than are kept
        options = {"shuffle": False, "batch_size": 1, "batch_sampler": batches, "cache": cache}
        loader = load(rows, simulated_places(1), steps=[Normalize(None)], **options)

        def epochs(count):
            for _ in range(count):
                for _ in loader:
                    pass
            gc.collect()

        epochs(1)
        tracemalloc.start()
        try:
            epochs(1)
            before = tracemalloc.get_traced_memory()[0]
            epochs(2)
            assert tracemalloc.get_traced_memory()[0] - before < 100_000
        finally:
            tracemalloc.stop()
        programmer = loader._epochs._programmer
        assert len(programmer._made) <= 34
        assert len(loader._epochs._fetching._gatherer._layouts) <= 10


class TestRaces:
    def test_what_users_keep_stays(self):
        kept = [(images[1:], labels) for images, labels in load(places=simulated_places(1))]
        for (images, labels), wanted in zip(kept, rows_of(load()), strict=True):
            assert_same([np.asarray(images), np.asarray(labels)], [wanted[0][1:], wanted[1]])


TURNED = [RandomCropFlip("0", (4, 4), layout="CHW"), Normalize("0")]


class TestErrors:
    @pytest.mark.parametrize("cache", [None, "host", "device"])
    @pytest.mark.parametrize("dataset", [TensorDataset(PICTURES, LABELS), SAMPLES])
    @pytest.mark.parametrize(
        ("steps", "message"),
        [
            ([Normalize("image")], r"field 'image': no such array field.*\['0', '1'\]"),
            ([Cast("", "int8")], r"field '': no such array field"),
            # A position is not a name: without the reason, 1 would be missing from a list that shows it.
            ([OneHot(1, 5)], r"field 1: no such array field.* names are text, .*\['0', '1'\]"),
            ([Normalize("1")], r"field '1'.*: expected uint8 or float32 images in layout HWC, got int64"),
            ([OneHot("1", 3), Normalize("1")], r"field '1'.*: expected uint8 or float32 images"),
            ([RandomCropFlip("0", (10, 3)), Normalize("0")], r"at least 10 x 3, got 9 x 8 in layout HWC"),
            ([RandomCropFlip("0", (3, 10))], r"field '0'.*of at least 3 x 10, got 9 x 8"),
            ([RandomCropFlip("1", (3, 3))], r"field '1'.*: expected images in layout HWC, got int64"),
            ([Normalize("0"), OneHot("0", 4)], r"field '0'.*: expected integers as labels, got float32"),
            ([Pad("1", 4)], r"field '1'.*: expected a ragged field of level 1 to pad"),
            ([Normalize("0", mean=(1, 2))], r"field '0'.*: mean must be one number for each of 3 channels"),
            ([Normalize("0", std=1e-300)], r"field '0'.*: scale / std and mean / std must fit into float32"),
        ],
    )
    def test_name_batch_and_field(self, dataset, steps, message, cache):
        for places in ("cpu", simulated_places(1)):
            with pytest.raises(SampleError, match=message) as caught:
                list(load(dataset, places, steps=steps, cache=cache))
            assert caught.value.batch == 0

    def test_cross_worker_processes(self):
        with pytest.raises(SampleError, match=r"field 'image'.*no such array field"):
            list(load(SAMPLES, steps=[Normalize("image")], num_workers=1))

    def test_of_a_ragged_field(self):
        with pytest.raises(SampleError, match=r"dataset index 3, field '0'.*at most 3 steps, got 4"):
            list(load(WORDS, steps=[Pad("0", 3)], ragged=["0"], shuffle=False))
        with pytest.raises(SampleError, match="expected a dense field, got a ragged one; pad it first"):
            list(load(WORDS, steps=[Cast("0", "int32")], ragged=["0"]))
        for fill in (float("nan"), 0.5):
            with pytest.raises(SampleError, match=r"field '0'.*fill must fit into int64"):
                list(load(WORDS, steps=[Pad("0", 4, fill=fill)], ragged=["0"]))

    def test_of_numbers_no_kernel_takes(self):
        with pytest.raises(SampleError, match=r"field '0'.*must have dtype .* got complex128"):
            list(load(TensorDataset(np.zeros(4, complex)), steps=[Cast("0", "float32")]))

    @pytest.mark.parametrize(
        ("make", "error", "message"),
        [
            (lambda: load(steps=TURNED), ValueError, "layout CHW, but the Normalize after it has HWC"),
            (lambda: load(steps=[np.sqrt]), TypeError, "expected a transform, got ufunc"),
            (lambda: load(steps=["normalize"]), TypeError, "expected a transform, got str"),
            (lambda: load(steps=[Normalize]), TypeError, "got the class Normalize; pass an instance"),
        ],
    )
    def test_of_how_a_transform_is_made_and_passed(self, make, error, message):
        with pytest.raises(error, match=message):
            make()

    def test_of_what_excludes_it(self):
        problem = "need batches that the loader collates itself: pass no collate_fn"
        for options in ({"collate_fn": list}, {"batch_size": None, "shuffle": False}):
            with pytest.raises(ValueError, match=problem):
                load(**options)
        with pytest.raises(ValueError, match="all GPUs or all host memory"):
            load(places=[CPUPlace(), *simulated_places(1)])

    def test_a_data_set_without_arrays_has_nothing_to_transform(self):
        with pytest.raises(SampleError, match=r"no such array field to transform; .* the sample has \[\]"):
            list(load(["a", "b"], steps=[Cast(None, "int8")]))
