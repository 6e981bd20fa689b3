"""`DataFeeder` as Paddle's users know it."""

import numpy as np
import pytest

from gpuloader import CPUPlace, DataFeeder, FeedError, PlaceError, ReaderError, data
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


def test_any_iterable_of_samples_will_do(feeder):
    assert np.asarray(feeder.feed(iter(minibatches(1)[0]))["label"]).tolist() == [[0], [0]]


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
        batches = list(feeder.feed_parallel(minibatches(3), num_places=3))
        assert [np.asarray(batch["label"])[0, 0] for batch in batches] == [0, 1, 2]

    def test_the_counts_must_agree(self, feeder):
        with pytest.raises(ValueError, match="one minibatch for each of 2 devices, got 3"):
            list(feeder.feed_parallel(minibatches(3), num_places=2))

    def test_none_means_all_devices(self, monkeypatch):
        feeder = DataFeeder([IMAGE, LABEL], "cpu")
        assert len(list(feeder.feed_parallel(minibatches(1)))) == 1
        monkeypatch.setenv("CPU_NUM", "4")
        assert len(list(feeder.feed_parallel(minibatches(4)))) == 4

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
        with pytest.raises(TypeError, match="feed specs or names"):
            DataFeeder([3], "cpu")
        with pytest.raises(PlaceError, match="not a place"):
            DataFeeder([LABEL], "abacus")
