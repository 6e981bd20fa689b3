"""`DataFeeder`, with the behavior of Paddle's."""

import numpy as np
import pytest

from gpuloader import DataFeeder, FeedError, PlaceError, ReaderError, data
from gpuloader.devices import cuda, places

IMAGE = data("image", [None, 1, 28, 28])
LABEL = data("label", [None, 1], "int64")


@pytest.fixture
def feeder(place):
    return DataFeeder([IMAGE, LABEL], place)


def minibatches(count):
    return [[([n] * 784, [n]), ([n] * 784, [n])] for n in range(count)]


def firsts(feeds):
    """Return the first label of each feed."""
    return [np.asarray(feed["label"])[0, 0] for feed in feeds]


def test_samples_take_their_feeds_shape_and_dtype(feeder):
    batch = feeder.feed([([0] * 784, [9]), (["1"] * 784, ["1"])])
    image, label = np.asarray(batch["image"]), np.asarray(batch["label"])
    assert (image.shape, image.dtype) == ((2, 1, 28, 28), np.float32)
    assert (label.shape, label.dtype, label.tolist()) == ((2, 1), np.int64, [[9], [1]])
    assert image[:, 0, 3, 4].tolist() == [0, 1]
    shapes = {name: np.asarray(field).shape for name, field in feeder.feed([]).items()}
    assert shapes == {"image": (0, 1, 28, 28), "label": (0, 1)}


LABELS = [2**63, float(2**63), float("nan"), "9223372036854775808"]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (([0] * 784,), r"sample 1: expected 2 fields \(image, label\), got 1"),
        (([0] * 700, [1]), r"sample 1, field 'image': expected shape \(1, 28, 28\), got \(700,\)"),
        (([[0, 1], [2]], [1]), "sample 1, field 'image': expected an array of numbers"),
        (([0] * 784, ["x"]), "sample 1, field 'label': expected numbers, got text"),
        ((None, [1]), "sample 1, field 'image': expected numbers, got None"),
        (7, "sample 1: expected a tuple"),
        *[(([0] * 784, [beyond]), "sample 1, field 'label'") for beyond in LABELS],
    ],
)
def test_what_does_not_fit(feeder, sample, message):
    with pytest.raises(FeedError, match=message) as caught:
        feeder.feed([([0] * 784, [1]), sample])
    assert isinstance(caught.value, ValueError)


def test_sequences_keep_their_lengths(place):
    words, text = (data(f"level {level}", [None, 1], "int64", lod_level=level) for level in (1, 2))
    feeder = DataFeeder([words, LABEL, text], place)
    batch = feeder.feed([([1, 2, 3], 0, [[1, 2], [3]]), ([4], 1, []), ([], 2, [[4]])])
    for name, splits in (("level 1", [[0, 3, 4, 4]]), ("level 2", [[0, 2, 2, 3], [0, 2, 3, 4]])):
        assert np.asarray(batch[name].values).tolist() == [[1], [2], [3], [4]]
        assert [np.asarray(one).tolist() for one in batch[name].row_splits] == splits
    assert np.asarray(batch["label"]).tolist() == [[0], [1], [2]]
    with pytest.raises(FeedError, match="sample 1, field 'level 1': expected numbers, got text") as caught:
        feeder.feed([([1], 0, []), (["x"], 1, [])])
    assert (caught.value.index, caught.value.field) == (1, "level 1")


def test_a_place_that_is_missing_is_said_when_the_feeder_is_made(monkeypatch):
    monkeypatch.setattr(cuda, "cupy", None)
    places._opened.clear()
    for place in ("gpu:0", "gpu_pinned"):
        with pytest.raises(PlaceError, match="needs CuPy, which is not importable"):
            DataFeeder([LABEL], place)


def test_free_dimensions_must_agree_within_a_batch():
    feeder = DataFeeder([data("signal", [None, None])], "cpu")
    assert feeder.feed([([1, 2],), ([3, 4],)])["signal"].shape == (2, 2)
    message = r"sample 1, field 'signal': expected shape \(2,\) as in the batch's first"
    with pytest.raises(FeedError, match=message):
        feeder.feed([([1, 2],), ([3],)])


def test_one_minibatch_a_device(feeder, monkeypatch):
    assert firsts(feeder.feed_parallel(iter(minibatches(3)), num_places=3)) == [0, 1, 2]
    feeder = DataFeeder([IMAGE, LABEL], "cpu")
    assert firsts(feeder.feed_parallel(minibatches(1))) == [0]  # None means all devices
    monkeypatch.setenv("CPU_NUM", "3")
    assert firsts(feeder.feed_parallel(minibatches(3))) == [0, 1, 2]
    feeds = feeder.decorate_reader(lambda: minibatches(7), multi_devices=True)
    assert [len(group) for group in feeds()] == [3, 3]


COUNT = "CPU_NUM must be an integer of 1 or more, got 'many'"


@pytest.mark.parametrize(
    ("count", "places", "variable", "message"),
    [
        *[(count, 2, "1", f"one minibatch for each of 2 devices, got {count}") for count in (0, 1, 3)],
        *[(1, places, "1", "num_places") for places in (0, -1, 1.5)],
        (3, None, "2", "for each of 2 devices, got 3"),
        (3, None, "many", COUNT),
    ],
)
def test_the_counts_must_agree(count, places, variable, message, monkeypatch):
    monkeypatch.setenv("CPU_NUM", variable)
    with pytest.raises(ValueError, match=message):
        list(DataFeeder([IMAGE, LABEL], "cpu").feed_parallel(minibatches(count), places))


class TestDecoratingReaders:
    def test_a_reader_of_feeds(self, feeder):
        read = []
        feeds = feeder.decorate_reader(lambda: map(note, minibatches(3)), multi_devices=False)
        note = lambda batch: read.append(1) or batch  # noqa: E731
        epoch = feeds()
        assert read == []  # nothing is read before it is asked for
        next(epoch)
        assert read == [1]
        for _ in range(2):
            assert firsts(feeds()) == [0, 1, 2]
        with pytest.raises(ReaderError, match="not a generator object"):
            feeder.decorate_reader((batch for batch in minibatches(1)), multi_devices=False)

    @pytest.mark.parametrize("drop_last", [True, False])
    def test_groups_for_several_devices(self, feeder, drop_last):
        def group(count):
            reader = lambda: minibatches(count)  # noqa: E731
            feeds = feeder.decorate_reader(reader, True, num_places=2, drop_last=drop_last)
            return map(firsts, feeds())

        assert list(group(4)) == [[0, 1], [2, 3]]
        groups = group(5)
        assert [next(groups), next(groups)] == [[0, 1], [2, 3]]
        if drop_last:
            assert list(groups) == []
        else:
            with pytest.raises(ValueError, match="holds 1 minibatches for 2 devices"):
                next(groups)

    def test_the_readers_own_exception_reaches_the_consumer(self, feeder):
        def reader():
            yield minibatches(1)[0]
            raise KeyError("mine")

        for several in (False, True):
            feeds = feeder.decorate_reader(reader, several, num_places=1)()
            next(feeds)
            with pytest.raises(KeyError, match="mine"):
                next(feeds)


def test_feed_lists():
    data("by name", [None, 1])
    assert DataFeeder(["by name"], "cpu").feed([(1,)])["by name"].tolist() == [[1.0]]
    # A program is asked for names only.
    assert DataFeeder([LABEL], "cpu", program=object()).feed([(1,)])["label"].tolist() == [[1]]


@pytest.mark.parametrize(
    ("feeds", "place", "error", "message"),
    [
        (["nobody"], "cpu", ValueError, "no feed named 'nobody'"),
        ([LABEL], "abacus", PlaceError, "not a place"),
    ],
)
def test_what_is_refused(feeds, place, error, message):
    with pytest.raises(error, match=message):
        DataFeeder(feeds, place)


def test_a_masked_number_is_refused_whatever_the_dtype():
    """NumPy takes None, which stands for an unknown type of numbers, for float64."""
    for dtype in ("float32", "float64", "int64"):
        with pytest.raises(FeedError, match="masked elements"):
            DataFeeder([data("x", [None], dtype)], "cpu").feed([(np.ma.masked_array(1, True),)])
