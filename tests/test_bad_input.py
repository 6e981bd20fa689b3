"""Every kind of bad input raises one typed error that says where, immediately, and leaves nothing behind."""

import _thread
import os
import queue
import re
import threading
import traceback

import numpy as np
import pytest

from gpuloader import (
    CPUPlace,
    DataLoader,
    Dataset,
    ImageFolder,
    LoaderError,
    ReaderError,
    SampleError,
    StagingMemoryError,
    data,
)
from gpuloader.errors import BadTypeOrValue, describe_error
from gpuloader.testing import StepReader, simulated_places
from gpuloader.transforms import Normalize, Resize
from tests.fakes import loader_threads, nothing_left_behind, wait_until
from tests.loading import read_batches
from tests.sample_sets import Made

FEEDS = [data("image", [None, 784]), data("label", [None, 1], "int64")]
GOOD = (np.zeros(784, np.float32), 1)
GOOD_BATCH = [np.zeros((2, 784), np.float32), np.zeros((2, 1), np.int64)]


@pytest.fixture(params=[True, False], ids=["double buffer", "inline"])
def loader(request):
    with nothing_left_behind():
        loader = DataLoader.from_generator(FEEDS, capacity=3, use_double_buffer=request.param)
        yield loader
        loader._epochs._idle.clear()  # slots outlive an epoch on purpose; anything else left is a leak


def consume(loader):
    """Return the number of steps before the error, and the error; check that the epoch then stays ended."""
    epoch, steps = iter(loader), 0
    with pytest.raises(Exception) as caught:  # noqa: PT011
        while True:
            next(epoch)
            steps += 1
    with pytest.raises(StopIteration):
        next(epoch)
    return steps, caught.value


class Growing(Dataset):
    def __init__(self, count):
        self.values = list(range(count))

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index]


class Attached:
    """Behaves like a tensor that requires a gradient."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("use detach() first")


SAMPLES = {
    "an array that raises": ((Attached(), 1), "'image': expected an array .*, got Attached: use detach"),
    "none": (None, "expected a tuple with one value per field, got NoneType"),
    "dict": ({"image": 1}, "expected a tuple with one value per field, got dict"),
    "set": ({1, 2}, "expected a tuple with one value per field, got set"),
    "bytes": (b"ab", "expected a tuple with one value per field, got bytes"),
    "field missing": ((np.zeros(784),), r"expected 2 fields \(image, label\), got 1"),
    "a none field": ((None, 1), "field 'image': expected numbers, got None"),
    "objects": ((np.array([object()] * 784), 1), "field 'image': .*dtype object"),
    "text": ((["a"] * 784, 1), "field 'image': expected numbers, got text"),
    "ragged": (([[1, 2], [3]], 1), "field 'image': expected an array of numbers, got list"),
    "too wide": ((np.zeros(100), 1), r"field 'image': expected shape \(784,\), got \(100,\)"),
    "would broadcast": ((np.zeros(1, np.float32), 1), r"expected shape \(784,\), got \(1,\)"),
    "nan label": ((np.zeros(784), float("nan")), "'label': expected whole numbers of dtype int64, got nan"),
    "infinite label": ((np.zeros(784), [np.inf]), "'label': expected whole numbers of dtype int64, got inf"),
    "huge label": ((np.zeros(784), 2**70), "field 'label': "),
    "complex": ((np.zeros(784, complex), 1), "field 'image': expected real numbers"),
}


@pytest.mark.parametrize("in_lists", [False, True])
@pytest.mark.parametrize("case", SAMPLES)
def test_samples(loader, case, in_lists):
    bad, message = SAMPLES[case]
    rows = [GOOD] * 5 + [bad] + [GOOD] * 20
    if in_lists:
        loader.set_sample_list_generator(lambda: [rows[:2], rows[2:4], rows[4:6]], places="cpu")
    else:
        loader.set_sample_generator(lambda: rows, batch_size=2, places="cpu")
    steps, error = consume(loader)
    assert isinstance(error, SampleError)
    assert (steps, error.batch, error.index) == (2, 2, 1)
    assert str(error).startswith("batch 2, sample 1")
    assert re.search(message, str(error)), str(error)


BATCHES = {
    "none": (None, "expected a list or tuple of arrays, got NoneType"),
    "dict": ({"image": 1}, "got dict; yield its values"),
    "array": (np.zeros((2, 784)), "got ndarray"),
    "fields": ([np.zeros((2, 784))], "expected 2 fields"),
    "width": ([np.zeros((2, 100)), np.zeros((2, 1))], r"'image': expected shape \(-, 784\), got \(2, 100\)"),
    "number": ([3.0, np.zeros((2, 1))], "batch dimension"),
    "counts": ([np.zeros((2, 784)), np.zeros((3, 1))], "the same number of samples"),
    "objects": ([np.zeros((2, 784)), np.array([[None], [1]])], "field 'label': .*dtype object"),
    "ragged": ([[[1, 2], [3]], np.zeros((2, 1))], "field 'image': expected an array of numbers"),
    "text": ([np.zeros((2, 784)), [["a"], ["b"]]], "field 'label': expected numbers, got text"),
}


@pytest.mark.parametrize("case", BATCHES)
def test_batches(loader, case):
    bad, message = BATCHES[case]
    loader.set_batch_generator(lambda: [GOOD_BATCH, GOOD_BATCH, bad, GOOD_BATCH], places="cpu")
    steps, error = consume(loader)
    assert isinstance(error, SampleError)
    assert (steps, error.batch) == (2, 2)
    assert re.search(message, str(error)), str(error)


@pytest.mark.parametrize("second", [np.zeros((2, 4)), np.zeros((2, 3), np.int8), np.zeros((2, 3, 1))])
def test_without_feeds_every_batch_has_its_own_shape_and_dtype(second):
    loader = read_batches(lambda: [[np.zeros((2, 3))], [second]], capacity=1)
    shapes = [(batch.shape, batch.dtype) for (batch,) in loader]
    assert shapes == [((2, 3), np.float64), (second.shape, second.dtype)]


class OwnError(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


@pytest.mark.parametrize("places", [CPUPlace(), simulated_places(1), [CPUPlace(), CPUPlace()]])
def test_the_readers_own_exception_reaches_the_consumer(loader, places):
    def reader():
        yield GOOD_BATCH
        yield GOOD_BATCH
        raise OwnError("the disk", "is gone")

    loader.set_batch_generator(reader, places=places)
    steps, error = consume(loader)
    assert type(error) is OwnError
    assert steps == (1 if isinstance(places, list) and len(places) == 2 else 2)
    assert error.__notes__ == ["gpuloader: raised by the reader while it produced batch 2 of the epoch"]
    assert any(frame.name == "reader" for frame in traceback.extract_tb(error.__traceback__))


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("error", [queue.Empty, queue.Full, TimeoutError, SystemError, RecursionError])
def test_no_exception_of_the_reader_is_taken_for_one_of_ours(loader, error, count):
    def reader():
        yield from [GOOD_BATCH] * count
        raise error("mine")

    def fail():
        raise error("mine")

    steps, got = consume(loader.set_batch_generator(reader if count else fail, places=simulated_places(1)))
    assert (steps, type(got)) == (count, error)


def test_a_reader_that_gives_no_iterable(loader):
    steps, error = consume(loader.set_batch_generator(lambda: 5, places="cpu"))
    assert (steps, type(error)) == (0, ReaderError)
    assert "must return an iterable, got int" in str(error)


def test_an_epoch_after_an_error_is_whole(loader):
    broken = [True]

    def reader():
        for number in range(12):
            if broken[0] and number == 5:
                raise OwnError("once", "only")
            yield GOOD_BATCH

    loader.set_batch_generator(reader, places="cpu")
    for _ in range(4):
        assert consume(loader)[0] == 5
    broken[0] = False
    assert len(list(loader)) == 12


def test_more_memory_than_there_is(loader):
    huge = np.broadcast_to(np.float32(0), (1 << 22, 784))
    labels = np.broadcast_to(np.int64(0), (1 << 22, 1))
    steps, error = consume(loader.set_batch_generator(lambda: [[huge, labels]], places="cpu"))
    assert (steps, type(error)) == (0, StagingMemoryError)
    assert "lower the batch size, prefetch_factor or the capacity" in str(error)


@pytest.mark.parametrize("places", [CPUPlace(), simulated_places(1)])
def test_a_capacity_beyond_all_memory_is_one_error_at_once(places):
    loader = read_batches(lambda: [GOOD_BATCH], places, capacity=10**12)
    steps, error = consume(loader)
    assert (steps, type(error)) == (0, StagingMemoryError)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_an_epoch_taken_along_into_a_forked_process_is_an_error_there():
    reader = StepReader([[np.zeros(1)]] * 3)
    loader = read_batches(reader)
    epoch = iter(loader)
    if (child := os.fork()) == 0:
        try:
            next(epoch)
        except LoaderError as error:
            os._exit(0 if "forked process" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    reader.allow(4)
    assert len(list(epoch)) == 3


def test_a_reader_that_waits_for_ever_does_not_hold_the_consumer():
    waits, release = threading.Event(), threading.Event()

    def read():
        yield [np.zeros(1)]
        waits.set()
        release.wait(60)
        yield [np.zeros(1)]

    with nothing_left_behind():
        loader = read_batches(read)
        for _ in loader:
            waits.wait(60)
            break
        del loader, _
        assert len(loader_threads()) == 1  # it still waits in a daemon thread, and blocks nobody
        release.set()  # the thread ends as soon as the reader returns


def test_keyboard_interrupt_in_the_consumer():
    reader = StepReader([[np.zeros(1)]] * 3)
    reader.allow(1)
    loader = read_batches(reader)

    def loop():
        for _ in loader:
            _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        loop()
    reader.allow(1)  # the reader of the abandoned epoch returns, and its thread ends
    wait_until(lambda: not loader_threads())
    reader.allow(4)
    assert len(list(loader)) == 3


LISTS = [([[1, 2], [3]], {}), ([(1.0, 2.0), (3.0,)], {}), ([["a", "b"], ["c"]], {})]


@pytest.mark.parametrize(("samples", "options"), [*LISTS, ([[1, 2], [3]], {"pad": {"0": 0}})], ids=str)
def test_lists_of_different_lengths_say_how_to_make_them_one_field(samples, options):
    with pytest.raises(SampleError) as caught:
        list(DataLoader(samples, places="cpu", batch_size=2, **options))
    assert "return an array, and pass pad={'0': 0} or ragged=['0']" in str(caught.value)
    if isinstance(samples[0][0], int):
        arrays = [np.array(sample) for sample in samples]
        [padded] = DataLoader(arrays, places="cpu", batch_size=2, pad={"0": 0})
        assert padded.tolist() == [[1, 2], [3, 0]]


def load(dataset, **options):
    return list(DataLoader(dataset, places="cpu", batch_size=2, **options))


class TestAdvice:
    """What a newcomer meets first: each message says what to do, in words that users know."""

    def test_images_with_their_channels_first(self):
        samples = [(np.zeros((3, 8, 8), np.uint8), 1)] * 2
        with pytest.raises(SampleError, match=r"\(3, 8, 8\); move the channels last: array\.transpose"):
            load(samples, transforms=[Resize("0", 4)])
        with pytest.raises(
            SampleError, match=r"\(8, 8, 4\); leave out the alpha channel: array\[\.\.\., :3\]"
        ):
            load([np.zeros((8, 8, 4), np.uint8)], transforms=[Resize(None, 4)])
        with pytest.raises(SampleError, match=r"no image \(encoded or uint8 pixels\) to transform"):
            load([np.zeros((8, 8, 3), "float32")], transforms=[Resize(None, 4)])
        with pytest.raises(SampleError, match=r"each of 8 channels, .*does `layout` say"):
            load(samples, transforms=[Normalize("0", [0.5] * 3, [0.5] * 3)])

    def test_a_folder_that_does_not_exist(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="nope does not exist; expected a folder of folders"):
            ImageFolder(tmp_path / "nope")

    @pytest.mark.usefixtures("shared_server")
    @pytest.mark.parametrize("options", [{}, {"start_method": "forkserver"}], ids=str)
    def test_a_dataset_that_has_grown_says_that_workers_have_it_as_it_was(self, options):
        dataset = Growing(5)
        options = {"places": "cpu", "batch_size": 5, "num_workers": 1, **options}
        loader = DataLoader(dataset, persistent_workers=True, **options)
        assert len(list(loader)) == 1
        dataset.values += range(5, 10)
        problem = (
            "index 5 is out of range for 5 samples; if the dataset has grown, .*persistent_workers=False"
        )
        with pytest.raises(SampleError, match=problem):
            list(loader)
        loader = DataLoader(dataset, **options)  # what the message advises works
        assert len(list(loader)) == 2
        dataset.values += range(10, 15)
        assert [batch.tolist() for batch in loader][2] == [10, 11, 12, 13, 14]

    def test_an_index_error_of_the_dataset_itself_stays(self):
        with pytest.raises(SampleError, match="the dataset raised IndexError: list index out of range"):
            load(Made(lambda index: [][index]))

    def test_messages_name_builtin_exceptions_instead_of_ours(self):
        assert describe_error(BadTypeOrValue("no")) == "TypeError: no"
        assert describe_error(type("BadLuck", (Exception,), {})("no")) == "BadLuck: no"
