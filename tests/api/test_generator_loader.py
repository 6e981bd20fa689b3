"""`DataLoader.from_generator`, with the behavior of Paddle's."""

import itertools

import numpy as np
import pytest

from gpuloader import CPUPlace, DataLoader, LoaderError, PlaceError, Ragged, ReaderError, data
from gpuloader.testing import StepReader, simulated_places
from tests.fakes import loader_threads, nothing_left_behind, wait_until
from tests.loading import read_batches

IMAGE = data("image", [None, 784])
LABEL = data("label", [None, 1], "int64")
WORDS = data("words", [None, 1], "int64", lod_level=1)


def samples(count):
    return lambda: ((np.full(784, n, np.float64), n) for n in range(count))


def batches(count, size=4):
    return lambda: ([np.full((size, 784), n, np.float32), np.full((size, 1), n)] for n in range(count))


@pytest.fixture(params=[True, False], ids=["double buffer", "inline"])
def double_buffer(request):
    return request.param


class TestResults:
    def test_a_step_is_a_list_of_dicts_one_a_place(self, double_buffer):
        loader = DataLoader.from_generator([IMAGE, LABEL], capacity=4, use_double_buffer=double_buffer)
        loader.set_batch_generator(batches(3), places=CPUPlace())
        steps = list(loader)
        assert [list(entry) for step in steps for entry in step] == [["image", "label"]] * 3
        assert [step[0]["image"][0, 0] for step in steps] == [0, 1, 2]
        loader = DataLoader.from_generator([IMAGE, LABEL], capacity=4, return_list=True)
        reader = lambda: [[np.zeros((2, 784), np.uint8), np.ones((2, 1), np.int16)]]  # noqa: E731
        [[[image, label]]] = loader.set_batch_generator(reader, places="cpu")
        assert (image.shape, image.dtype, label.dtype) == ((2, 784), np.uint8, np.int16)  # as they came
        assert label.tolist() == [[1]] * 2

    @pytest.mark.parametrize(
        ("setter", "read"),
        [
            ("set_sample_generator", lambda rows: lambda: rows),
            ("set_sample_list_generator", lambda rows: lambda: [rows]),
        ],
    )
    def test_ragged_fields(self, setter, read):
        loader = DataLoader.from_generator([WORDS, LABEL], capacity=2)
        options = {"batch_size": 3} if setter == "set_sample_generator" else {}
        reader = read([([1, 2, 3], 0), ([4], 1), ([], 2)])
        [[batch]] = getattr(loader, setter)(reader, places="cpu", **options)
        words = batch["words"]
        assert isinstance(words, Ragged)
        assert words.values.tolist() == [[1], [2], [3], [4]]
        assert words.recursive_sequence_lengths() == [[3, 1, 0]]
        assert batch["label"].ravel().tolist() == [0, 1, 2]
        loader = DataLoader.from_generator([data("lines", [None, 1], "int64", lod_level=2)], capacity=2)
        lines = Ragged.from_samples([[[1, 2], [3]], [[4]]], "int64", (1,), lod_level=2)
        [[batch]] = loader.set_batch_generator(lambda: [[lines]], places="cpu")
        assert batch["lines"].recursive_sequence_lengths() == [[2, 1], [2, 1, 1]]

    def test_a_reader_that_reuses_its_buffer_is_safe(self, double_buffer):
        def reader():
            buffer = np.empty(4)
            for n in range(18):
                buffer[...] = n
                yield (buffer,)

        loader = DataLoader.from_generator(capacity=3, return_list=True, use_double_buffer=double_buffer)
        kept = [array for (array,) in loader.set_sample_generator(reader, 6, places="cpu")]
        assert [n for array in kept for n in array[:, 1].tolist()] == list(range(18))

    def test_big_endian_and_strided_arrays_arrive_native(self):
        reader = lambda: [[np.arange(6, dtype=">i4").reshape(3, 2), np.arange(12.0).reshape(3, 4)[:, ::2]]]  # noqa: E731
        loader = DataLoader.from_generator(capacity=1).set_batch_generator(reader, places="cpu")
        [(whole, strided)] = list(loader)
        assert whole.dtype.isnative
        assert whole.tolist() == [[0, 1], [2, 3], [4, 5]]
        assert strided.tolist() == [[0, 2], [4, 6], [8, 10]]

    def test_the_user_gets_the_slot_itself(self):
        loader = read_batches(batches(6), capacity=1, use_double_buffer=False)
        addresses = {images.ctypes.data for images, _ in loader}
        assert len(addresses) == 2  # the current batch and the next: no memory beyond the slots
        assert all(address % 256 == 0 for address in addresses)


class TestEpochs:
    @pytest.mark.parametrize("in_process", [False, True])
    def test_break_then_a_new_loop_starts_afresh(self, double_buffer, in_process):
        loader = read_batches(batches(9), use_double_buffer=double_buffer, use_multiprocess=in_process)
        for _ in range(3):
            for images, _ in loader:
                assert images[0, 0] == 0
                break
        assert [images[0, 0] for images, _ in loader] == list(range(9))

    def test_endless_and_empty_readers(self, double_buffer):
        with nothing_left_behind():
            loader = read_batches(lambda: ([[n]] for n in itertools.count()), use_double_buffer=double_buffer)
            for (number,) in loader:
                if number[0] == 50:
                    break
            del loader, number
        epoch = iter(read_batches(list, use_double_buffer=double_buffer))
        assert [list(epoch) for _ in range(3)] == [[], [], []]

    def test_a_new_source_while_an_epoch_runs(self):
        loader = DataLoader.from_generator(capacity=2).set_batch_generator(batches(3), places="cpu")
        old = iter(loader)
        next(old)
        loader.set_batch_generator(batches(5), places=simulated_places(1))
        assert len(list(old)) == 2
        assert [type(images).__name__ for images, _ in loader] == ["SimulatedArray"] * 5

    def test_reading_ahead_is_bounded(self):
        reader = StepReader([[np.zeros(1)] for _ in range(30)])
        reader.allow(31)
        loader = DataLoader.from_generator(capacity=4).set_batch_generator(reader, places="cpu")
        epoch = iter(loader)
        wait_until(lambda: reader.given >= 4)
        next(epoch)
        wait_until(lambda: reader.given >= 5)
        assert reader.given <= 1 + 4 + 3
        epoch.close()
        assert reader.closed.is_set()

    def test_inline_reads_nothing_ahead(self):
        reader = StepReader([[np.zeros(1)] for _ in range(5)])
        reader.allow(6)
        loader = DataLoader.from_generator(capacity=4, use_double_buffer=False)
        epoch = iter(loader.set_batch_generator(reader, places="cpu"))
        assert (reader.given, loader_threads()) == (0, [])
        next(epoch)
        assert reader.given == 1


def test_its_description():
    feeds = [data("image", [None, 2]), data("label", [None], "int64")]
    loader = DataLoader.from_generator(feed_list=feeds, capacity=4)
    ahead = "with the fields image, label; up to 4 batches ahead"
    assert repr(loader) == f"<GeneratorLoader: no source yet {ahead}>"
    loader.set_sample_generator(list, batch_size=32, places="cpu")
    assert repr(loader) == f"<GeneratorLoader: a reader of samples, in batches of 32 {ahead}; on cpu>"
    loader = read_batches(list, use_double_buffer=False)
    assert repr(loader) == "<GeneratorLoader: a reader of batches; nothing read ahead; on cpu>"
    loader.set_sample_list_generator(list, places="cpu")
    assert repr(loader).startswith("<GeneratorLoader: a reader of lists of samples; ")


def make(feed_list=None, capacity=1, reader=list, **options):
    loader = DataLoader.from_generator(feed_list, capacity)
    return loader.set_sample_generator(reader, **{"batch_size": 1, "places": "cpu", **options})


WRONG = [
    *[({"capacity": wrong}, ValueError, "capacity must be") for wrong in (None, 0, -1, 2.5, True, "4")],
    *[({"batch_size": wrong}, ValueError, "batch_size must be") for wrong in (None, 0, -3, 1.0)],
    ({"feed_list": [3]}, TypeError, "or their names, got int"),
    ({"feed_list": ["never declared"]}, ValueError, "no feed named"),
    ({"feed_list": [IMAGE, IMAGE]}, ValueError, "more than once"),
    ({"feed_list": []}, ValueError, "empty"),
    ({"feed_list": [IMAGE], "places": None}, ValueError, "needs places"),
    *[({"places": wrong}, PlaceError, "place") for wrong in ("tpu", 7, [CPUPlace(), "gpu:x"], [])],
    *[({"reader": wrong}, ReaderError, "function without") for wrong in ([1], (n for n in range(3)), None)],
    ({"reader": lambda path: []}, ReaderError, "no arguments"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG)
def test_what_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)


def test_what_the_loader_itself_refuses():
    with pytest.raises(LoaderError, match="no source"):
        iter(DataLoader.from_generator(capacity=1))
    with pytest.raises(TypeError, match=r"^stream must have __cuda_stream__, .*, got str"):
        DataLoader.from_generator(capacity=1, stream="0")
