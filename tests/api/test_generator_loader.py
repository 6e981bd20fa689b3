"""`DataLoader.from_generator`, with the behavior of Paddle's."""

import random

import numpy as np
import pytest

import gpuloader
from gpuloader import CPUPlace, DataLoader, LoaderError, PlaceError, Ragged, ReaderError, cpu_places, data
from gpuloader.testing import StepReader, simulated_places
from tests.fakes import loader_threads, nothing_left_behind, wait_until
from tests.loading import read_batches

IMAGE = data("image", [None, 784])
LABEL = data("label", [None, 1], "int64")


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

    def test_return_list_gives_lists_in_feed_order(self):
        loader = DataLoader.from_generator([IMAGE, LABEL], capacity=4, return_list=True)
        [[[image, label]]] = list(loader.set_batch_generator(batches(1), places="cpu"))
        assert image.shape == (4, 784)
        assert label.tolist() == [[0]] * 4

    def test_samples_are_converted_and_reshaped(self, double_buffer):
        loader = DataLoader.from_generator([IMAGE, LABEL], capacity=4, use_double_buffer=double_buffer)
        reader = lambda: iter([([[1] * 28] * 28, 5), (np.zeros(784), [6]), (["2"] * 784, np.int8(7))])  # noqa: E731
        [[batch]] = list(loader.set_sample_generator(reader, batch_size=3, places="cpu"))
        assert batch["image"].dtype == np.float32
        assert batch["image"][:, 0].tolist() == [1, 0, 2]
        assert batch["label"].dtype == np.int64
        assert batch["label"].tolist() == [[5], [6], [7]]

    @pytest.mark.parametrize(("drop_last", "sizes"), [(True, [4, 4]), (False, [4, 4, 2])])
    def test_drop_last_of_samples(self, drop_last, sizes, double_buffer):
        loader = DataLoader.from_generator([IMAGE, LABEL], capacity=4, use_double_buffer=double_buffer)
        loader.set_sample_generator(samples(10), batch_size=4, drop_last=drop_last, places="cpu")
        for _ in range(2):
            steps = list(loader)
            assert [len(step[0]["label"]) for step in steps] == sizes
            assert np.concatenate([s[0]["label"] for s in steps]).ravel().tolist() == list(range(sum(sizes)))

    def test_sample_lists_as_batch_and_shuffle_give_them(self, double_buffer):
        random.seed(1)
        loader = DataLoader.from_generator([IMAGE, LABEL], capacity=4, use_double_buffer=double_buffer)
        reader = gpuloader.batch(gpuloader.reader.shuffle(samples(10), 10), 4)
        steps = list(loader.set_sample_list_generator(reader, places="cpu"))
        labels = np.concatenate([step[0]["label"] for step in steps]).ravel()
        assert sorted(labels) == list(range(10))
        assert [len(step[0]["label"]) for step in steps] == [4, 4, 2]
        assert (np.concatenate([step[0]["image"] for step in steps])[:, 5] == labels).all()

    def test_batches_keep_their_dtype(self):
        loader = DataLoader.from_generator([IMAGE, LABEL], capacity=4)
        reader = lambda: [[np.zeros((2, 784), np.uint8), np.zeros((2, 1), np.int16)]]  # noqa: E731
        [[batch]] = list(loader.set_batch_generator(reader, places="cpu"))
        assert (batch["image"].dtype, batch["label"].dtype) == (np.uint8, np.int16)

    @pytest.mark.parametrize("method", ["samples", "lists"])
    def test_ragged_fields(self, method):
        feeds = [data("words", [None, 1], "int64", lod_level=1), LABEL]
        loader = DataLoader.from_generator(feeds, capacity=2)
        rows = [([1, 2, 3], 0), ([4], 1), ([], 2)]
        if method == "samples":
            loader.set_sample_generator(lambda: rows, 3, places="cpu")
        else:
            loader.set_sample_list_generator(lambda: [rows], places="cpu")
        [[batch]] = list(loader)
        words = batch["words"]
        assert isinstance(words, Ragged)
        assert words.values.tolist() == [[1], [2], [3], [4]]
        assert words.recursive_sequence_lengths() == [[3, 1, 0]]
        assert batch["label"].ravel().tolist() == [0, 1, 2]

    def test_ragged_values_pass_through_a_batch_generator(self):
        feeds = [data("words", [None, 1], "int64", lod_level=2)]
        words = Ragged.from_samples([[[1, 2], [3]], [[4]]], "int64", (1,), lod_level=2)
        loader = DataLoader.from_generator(feeds, capacity=2)
        [[batch]] = list(loader.set_batch_generator(lambda: [[words]], places="cpu"))
        assert batch["words"].recursive_sequence_lengths() == [[2, 1], [2, 1, 1]]

    def test_a_reader_that_reuses_its_buffer_is_safe(self, double_buffer):
        def reader():
            buffer = np.empty((2, 3))
            for n in range(20):
                buffer[...] = n
                yield [buffer]

        loader = DataLoader.from_generator(capacity=3, return_list=True, use_double_buffer=double_buffer)
        kept = [array for (array,) in loader.set_batch_generator(reader, places="cpu")]
        assert [array[0, 0] for array in kept] == list(range(20))

    def test_a_sample_reader_that_reuses_its_buffer_is_safe(self):
        def reader():
            buffer = np.empty(4)
            for n in range(6):
                buffer[...] = n
                yield (buffer,)

        loader = DataLoader.from_generator(capacity=3, return_list=True)
        [(array,)] = list(loader.set_sample_generator(reader, 6, places="cpu"))
        assert array[:, 1].tolist() == list(range(6))

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


class TestPlaces:
    def test_consecutive_batches_go_to_consecutive_places(self):
        loader = DataLoader.from_generator([IMAGE, LABEL], capacity=4)
        loader.set_batch_generator(batches(20), places=cpu_places(8))
        steps = list(loader)
        assert [[entry["label"][0, 0] for entry in step] for step in steps] == [
            list(range(8)),
            list(range(8, 16)),
        ]

    def test_a_short_last_step_is_kept_on_request(self, double_buffer):
        loader = DataLoader.from_generator(
            [IMAGE, LABEL], capacity=4, drop_last=False, use_double_buffer=double_buffer
        )
        loader.set_batch_generator(batches(20), places=cpu_places(8))
        assert [len(step) for step in loader] == [8, 8, 4]

    def test_without_feeds_several_places_give_a_list_each(self):
        loader = DataLoader.from_generator(capacity=2).set_batch_generator(batches(2), places=cpu_places(2))
        [[first, second]] = list(loader)
        assert (first[0][0, 0], second[0][0, 0]) == (0, 1)

    def test_an_iterable_loader_with_feeds_wants_places(self):
        loader = DataLoader.from_generator([IMAGE, LABEL], capacity=4)
        with pytest.raises(ValueError, match="needs places"):
            loader.set_batch_generator(batches(1))

    @pytest.mark.parametrize("places", ["tpu", 7, [CPUPlace(), "gpu:x"], []])
    def test_unknown_places(self, places):
        loader = DataLoader.from_generator([IMAGE, LABEL], capacity=4)
        with pytest.raises(PlaceError):
            loader.set_batch_generator(batches(1), places=places)

    def test_cpu_and_simulated_places_mix(self):
        loader = DataLoader.from_generator(capacity=2)
        loader.set_batch_generator(batches(9), places=[CPUPlace(), *simulated_places(2)])
        steps = [[np.asarray(entry[0])[0, 0] for entry in step] for step in loader]
        assert steps == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


class TestEpochs:
    def test_break_then_a_new_loop_starts_afresh(self, double_buffer):
        loader = read_batches(batches(9), use_double_buffer=double_buffer)
        for _ in range(3):
            for images, _ in loader:
                assert images[0, 0] == 0
                break
        assert [images[0, 0] for images, _ in loader] == list(range(9))

    def test_an_endless_reader_and_break(self, double_buffer):
        def reader():
            n = 0
            while True:
                yield [np.full((1, 1), n)]
                n += 1

        with nothing_left_behind():
            loader = DataLoader.from_generator(capacity=2, use_double_buffer=double_buffer)
            for (number,) in loader.set_batch_generator(reader, places="cpu"):
                if number[0, 0] == 50:
                    break
            del loader, number

    def test_an_empty_epoch_has_no_step(self, double_buffer):
        loader = DataLoader.from_generator(capacity=2, use_double_buffer=double_buffer)
        assert list(loader.set_batch_generator(list, places="cpu")) == []

    def test_next_after_the_end_stops_again(self):
        epoch = iter(DataLoader.from_generator(capacity=2).set_batch_generator(batches(1), places="cpu"))
        next(epoch)
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(epoch)

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

    def test_the_reader_works_while_the_consumer_computes(self):
        """Tested with latches, not clocks: batch 1 is produced while the consumer holds batch 0."""
        reader = StepReader([[np.array([n])] for n in range(3)])
        loader = DataLoader.from_generator(capacity=2).set_batch_generator(reader, places="cpu")
        epoch = iter(loader)
        reader.allow(1)
        (first,) = next(epoch)
        reader.allow(2)
        wait_until(lambda: loader.stats().batches == 3)  # staged before anyone requests them
        assert first[0] == 0
        reader.allow(1)
        assert [number[0] for (number,) in epoch] == [1, 2]

    def test_a_reader_in_a_process(self):
        loader = read_batches(batches(5), use_multiprocess=True)
        assert [images[0, 0] for images, _ in loader] == list(range(5))


class TestArguments:
    @pytest.mark.parametrize("capacity", [None, 0, -1, 2.5, True, "4"])
    def test_capacity(self, capacity):
        with pytest.raises(ValueError, match="capacity must be"):
            DataLoader.from_generator(capacity=capacity)

    @pytest.mark.parametrize("batch_size", [None, 0, -3, 1.0])
    def test_batch_size(self, batch_size):
        with pytest.raises(ValueError, match="batch_size must be"):
            DataLoader.from_generator(capacity=1).set_sample_generator(samples(1), batch_size, places="cpu")

    def test_feed_list(self):
        with pytest.raises(TypeError, match="or their names, got int"):
            DataLoader.from_generator([3], capacity=1)
        with pytest.raises(ValueError, match="no feed named"):
            DataLoader.from_generator(["never declared"], capacity=1)
        with pytest.raises(ValueError, match="more than once"):
            DataLoader.from_generator([IMAGE, IMAGE], capacity=1)
        with pytest.raises(ValueError, match="empty"):
            DataLoader.from_generator([], capacity=1)

    @pytest.mark.parametrize("reader", [[1, 2], (n for n in range(3)), None])
    def test_a_reader_must_be_a_function(self, reader):
        with pytest.raises(ReaderError, match="function without arguments"):
            DataLoader.from_generator(capacity=1).set_batch_generator(reader, places="cpu")

    def test_a_reader_takes_no_arguments(self):
        with pytest.raises(ReaderError, match="no arguments"):
            DataLoader.from_generator(capacity=1).set_batch_generator(lambda path: [], places="cpu")

    def test_no_source(self):
        with pytest.raises(LoaderError, match="no source"):
            iter(DataLoader.from_generator(capacity=1))


class TestDescription:
    def test_before_and_after_a_source_is_set(self):
        feeds = [data("image", [None, 2]), data("label", [None], "int64")]
        loader = DataLoader.from_generator(feed_list=feeds, capacity=4)
        assert repr(loader) == (
            "<GeneratorLoader: no source yet with the fields image, label; up to 4 batches ahead>"
        )
        loader.set_sample_generator(list, batch_size=32, places="cpu")
        assert repr(loader) == (
            "<GeneratorLoader: a reader of samples, in batches of 32 with the fields image, label; up to 4 "
            "batches ahead; on cpu>"
        )

    def test_without_fields(self):
        loader = read_batches(list, use_double_buffer=False)
        assert repr(loader) == "<GeneratorLoader: a reader of batches; nothing read ahead; on cpu>"
        loader.set_sample_list_generator(list, places="cpu")
        assert repr(loader).startswith("<GeneratorLoader: a reader of lists of samples; ")
