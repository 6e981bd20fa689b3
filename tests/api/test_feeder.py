"""`DataFeeder`, with the behavior of Paddle's."""

import numpy as np
import pytest

from gpuloader import CPUPlace, DataFeeder, FeedError, PlaceError, ReaderError, data
from gpuloader.devices import cuda, places
from gpuloader.testing import simulated_places
from tests.fakes import nothing_left_behind

IMAGE = data("image", [None, 1, 28, 28])
LABEL = data("label", [None, 1], "int64")


@pytest.fixture(params=["cpu", "simulated"])
def feeder(request):
    place = CPUPlace() if request.param == "cpu" else simulated_places(1)[0]
    return DataFeeder([IMAGE, LABEL], place)


def minibatches(count):
    return [[([n] * 784, [n]), ([n] * 784, [n])] for n in range(count)]


def test_samples_take_their_feeds_shape_and_dtype(feeder):
    batch = feeder.feed([([0] * 784, [9]), ([1] * 784, [1])])
    image, label = np.asarray(batch["image"]), np.asarray(batch["label"])
    assert (image.shape, image.dtype) == ((2, 1, 28, 28), np.float32)
    assert (label.shape, label.dtype, label.tolist()) == ((2, 1), np.int64, [[9], [1]])
    assert image[:, 0, 3, 4].tolist() == [0, 1]


def test_no_samples_give_arrays_of_length_zero(feeder):
    batch = feeder.feed([])
    assert np.asarray(batch["image"]).shape == (0, 1, 28, 28)
    assert np.asarray(batch["label"]).shape == (0, 1)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (([0] * 784,), r"sample 1: expected 2 fields \(image, label\), got 1"),
        (([0] * 700, [1]), r"sample 1, field 'image': expected shape \(1, 28, 28\), got \(700,\)"),
        (([[0, 1], [2]], [1]), "sample 1, field 'image': expected an array of numbers"),
        (([0] * 784, ["x"]), "sample 1, field 'label': expected numbers, got text"),
        ((None, [1]), "sample 1, field 'image': expected numbers, got None"),
        (7, "sample 1: expected a tuple"),
    ],
)
def test_what_does_not_fit(feeder, sample, message):
    with pytest.raises(FeedError, match=message) as caught:
        feeder.feed([([0] * 784, [1]), sample])
    assert isinstance(caught.value, ValueError)


def test_numeric_strings_convert(feeder):
    assert np.asarray(feeder.feed([(["0.5"] * 784, ["3"])])["label"]).tolist() == [[3]]


@pytest.mark.parametrize("place", [CPUPlace(), *simulated_places(1)])
def test_sequences_keep_their_lengths(place):
    feeder = DataFeeder([data("words", [None, 1], "int64", lod_level=1), LABEL], place)
    batch = feeder.feed([([1, 2, 3], 0), ([4], 1)])
    words = batch["words"]
    assert np.asarray(words.values).tolist() == [[1], [2], [3], [4]]
    assert np.asarray(words.row_splits[0]).tolist() == [0, 3, 4]
    if place == CPUPlace():
        assert words.recursive_sequence_lengths() == [[3, 1]]
        assert words.to_padded().tolist() == [[[1], [2], [3]], [[4], [0], [0]]]


@pytest.mark.parametrize("place", [CPUPlace(), *simulated_places(1)])
def test_sequences_of_sequences_keep_the_lengths_of_both_levels(place):
    feeder = DataFeeder([LABEL, data("text", [None, 1], "int64", lod_level=2)], place)
    batch = feeder.feed([(0, [[1, 2], [3]]), (1, []), (2, [[4]])])
    text = batch["text"]
    assert np.asarray(text.values).tolist() == [[1], [2], [3], [4]]
    assert [np.asarray(splits).tolist() for splits in text.row_splits] == [[0, 2, 2, 3], [0, 2, 3, 4]]
    assert np.asarray(batch["label"]).tolist() == [[0], [1], [2]]


def test_a_sequence_that_does_not_fit_names_sample_and_field():
    feeder = DataFeeder([LABEL, data("words", [None, 1], "int64", lod_level=1)], "cpu")
    with pytest.raises(FeedError, match="sample 1, field 'words': expected numbers, got text") as caught:
        feeder.feed([(0, [1]), (1, ["x"])])
    assert (caught.value.index, caught.value.field) == (1, "words")


def test_lists_arrays_and_numbers_mix_from_sample_to_sample(feeder):
    image = np.arange(784.0).reshape(28, 28)
    samples = [(image, 1), [image.ravel().tolist(), [2]], (image[None].astype("f4"), np.int8(3))]
    batch = feeder.feed(iter(samples))
    images = np.asarray(batch["image"])
    assert (images[0] == images[1]).all()
    assert (images[0] == images[2]).all()
    assert np.asarray(batch["label"]).tolist() == [[1], [2], [3]]


def test_a_feed_is_a_copy_of_what_was_fed(feeder):
    image = np.ones((1, 28, 28), np.float32)
    batch = feeder.feed([(image, 1)])
    image[:] = 0
    assert np.asarray(batch["image"]).all()


@pytest.mark.parametrize("number", [2**63, float(2**63), float("nan"), "9223372036854775808"])
def test_a_number_beyond_its_field_is_an_error_not_another_number(feeder, number):
    with pytest.raises(FeedError, match="sample 0, field 'label'"):
        feeder.feed([([0] * 784, [number])])


def test_an_exception_of_the_iterable_reaches_the_caller_as_it_is(feeder):
    def samples():
        yield [0] * 784, [1]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        feeder.feed(samples())


def test_a_place_that_is_missing_is_said_when_the_feeder_is_made(monkeypatch):
    monkeypatch.setattr(cuda, "cupy", None)
    places._opened.clear()
    for place in ("gpu:0", "gpu_pinned"):
        with pytest.raises(PlaceError, match="needs CuPy, which is not importable"):
            DataFeeder([LABEL], place)


def test_free_dimensions_must_agree_within_a_batch():
    feeder = DataFeeder([data("signal", [None, None])], "cpu")
    assert feeder.feed([([1, 2],), ([3, 4],)])["signal"].shape == (2, 2)
    with pytest.raises(
        FeedError, match=r"sample 1, field 'signal': expected shape \(2,\) as in the batch's first"
    ):
        feeder.feed([([1, 2],), ([3],)])


def test_what_is_fed_is_the_users():
    with nothing_left_behind():
        feeder = DataFeeder([IMAGE, LABEL], "cpu")
        batches = [feeder.feed(batch)["label"] for batch in minibatches(5)]
        assert [int(batch[0, 0]) for batch in batches] == list(range(5))
        del feeder, batches


class TestManyDevices:
    def test_one_minibatch_a_device(self, feeder):
        batches = list(feeder.feed_parallel(iter(minibatches(3)), num_places=3))
        assert [np.asarray(batch["label"])[0, 0] for batch in batches] == [0, 1, 2]

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_the_counts_must_agree(self, feeder, count):
        with pytest.raises(ValueError, match=f"one minibatch for each of 2 devices, got {count}"):
            list(feeder.feed_parallel(minibatches(count), num_places=2))

    def test_none_means_all_devices(self, monkeypatch):
        feeder = DataFeeder([IMAGE, LABEL], "cpu")
        assert len(list(feeder.feed_parallel(minibatches(1)))) == 1
        monkeypatch.setenv("CPU_NUM", "4")
        assert len(list(feeder.feed_parallel(minibatches(4)))) == 4

    def test_the_environments_count_must_agree_too(self, monkeypatch):
        monkeypatch.setenv("CPU_NUM", "2")
        feeder = DataFeeder([IMAGE, LABEL], "cpu")
        with pytest.raises(ValueError, match="for each of 2 devices, got 3"):
            list(feeder.feed_parallel(minibatches(3)))
        monkeypatch.setenv("CPU_NUM", "many")
        with pytest.raises(ValueError, match="CPU_NUM must be an integer of 1 or more, got 'many'"):
            list(feeder.feed_parallel(minibatches(3)))

    @pytest.mark.parametrize("count", [0, -1, 1.5])
    def test_a_count_is_a_count(self, feeder, count):
        with pytest.raises(ValueError, match="num_places"):
            list(feeder.feed_parallel(minibatches(1), num_places=count))


class TestDecoratingReaders:
    def test_a_reader_of_feeds(self, feeder):
        feeds = feeder.decorate_reader(lambda: minibatches(3), multi_devices=False)
        for _ in range(2):
            assert [np.asarray(feed["label"])[0, 0] for feed in feeds()] == [0, 1, 2]

    def test_groups_for_several_devices(self, feeder):
        feeds = feeder.decorate_reader(lambda: minibatches(5), multi_devices=True, num_places=2)
        groups = [[np.asarray(feed["label"])[0, 0] for feed in group] for group in feeds()]
        assert groups == [[0, 1], [2, 3]]

    def test_a_rest_is_an_error_after_the_full_groups_if_it_must_not_be_dropped(self, feeder):
        feeds = feeder.decorate_reader(lambda: minibatches(5), True, num_places=2, drop_last=False)
        iterator = feeds()
        assert len([next(iterator), next(iterator)]) == 2
        with pytest.raises(ValueError, match="holds 1 minibatches for 2 devices"):
            next(iterator)

    @pytest.mark.parametrize("drop_last", [True, False])
    def test_full_groups_leave_no_rest(self, feeder, drop_last):
        feeds = feeder.decorate_reader(lambda: minibatches(4), True, num_places=2, drop_last=drop_last)
        for _ in range(2):
            assert [len(group) for group in feeds()] == [2, 2]

    def test_the_count_of_devices_is_the_environments_by_default(self, monkeypatch):
        monkeypatch.setenv("CPU_NUM", "3")
        feeds = DataFeeder([IMAGE, LABEL], "cpu").decorate_reader(lambda: minibatches(7), multi_devices=True)
        assert [len(group) for group in feeds()] == [3, 3]

    def test_nothing_is_read_before_it_is_asked_for(self, feeder):
        read = []

        def reader():
            for batch in minibatches(3):
                read.append(1)
                yield batch

        feeds = feeder.decorate_reader(reader, multi_devices=False)()
        assert read == []
        next(feeds)
        assert read == [1]

    def test_the_readers_own_exception_reaches_the_consumer(self, feeder):
        def reader():
            yield minibatches(1)[0]
            raise KeyError("mine")

        for several in (False, True):
            feeds = feeder.decorate_reader(reader, several, num_places=1)()
            next(feeds)
            with pytest.raises(KeyError, match="mine"):
                next(feeds)

    def test_a_generator_object_is_no_reader(self, feeder):
        with pytest.raises(ReaderError, match="not a generator object"):
            feeder.decorate_reader((batch for batch in minibatches(1)), multi_devices=False)


class TestFeedLists:
    def test_names_that_were_declared(self):
        data("by name", [None, 1])
        assert DataFeeder(["by name"], "cpu").feed([(1,)])["by name"].tolist() == [[1.0]]

    def test_unknown_names_and_other_things(self):
        with pytest.raises(ValueError, match="no feed named 'nobody'"):
            DataFeeder(["nobody"], "cpu")
        with pytest.raises(TypeError, match="or their names, got int"):
            DataFeeder([3], "cpu")
        with pytest.raises(PlaceError, match="not a place"):
            DataFeeder([LABEL], "abacus")

        with pytest.raises(ValueError, match="empty"):
            DataFeeder([], "cpu")
        with pytest.raises(ValueError, match="more than once"):
            DataFeeder([LABEL, LABEL], "cpu")

    def test_a_program_is_taken_and_left_alone(self):
        assert DataFeeder([LABEL], CPUPlace(), program=object()).feed([(1,)])["label"].tolist() == [[1]]
