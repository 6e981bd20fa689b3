"""An epoch ends where its data ends, and not where a reader or a state only seems to say so."""

import numpy as np
import pytest

from gpuloader import DataLoader, Dataset, LoaderError, SampleError
from gpuloader.errors import Misuse, QueueClosed
from gpuloader.reader import buffered
from tests.api.streams import Items
from tests.fakes import loader_threads, nothing_left_behind
from tests.loading import load, read_batches
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, Made, name_workers

AHEAD = [True, False, "thread"]
by_workers = pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, PROCESSES], ids=name_workers)


def read(reader, ahead=True):
    return read_batches(reader, use_double_buffer=ahead)


def resume(loader, state):
    loader.load_state_dict(state)
    return list(loader)


class TestALoaderThatReadsItself:
    @pytest.mark.parametrize("wrap", [lambda reader: reader, lambda reader: buffered(reader, 2)])
    @pytest.mark.parametrize("ahead", AHEAD)
    def test_as_a_reader(self, ahead, wrap):
        def reader():
            yield from loader

        loader = read(wrap(reader), ahead)
        with nothing_left_behind():
            with pytest.raises(Misuse, match=r"an epoch of the same loader.*make another loader"):
                next(iter(loader))
            assert not loader_threads()

    @pytest.mark.parametrize("options", [INLINE, ONE_THREAD, {"use_buffer_reader": False}])
    def test_as_a_dataset(self, options):
        loader = load(Items(lambda: loader), **options)
        with nothing_left_behind(), pytest.raises(Misuse, match="an epoch of the same loader"):
            next(iter(loader))
        loader = load(Made(lambda _: next(iter(loader))), **options)
        with nothing_left_behind():
            with pytest.raises(SampleError, match="an epoch of the same loader") as caught:
                next(iter(loader))
            assert isinstance(caught.value.__cause__, Misuse)
            del caught

    def test_in_worker_processes(self):
        with pytest.raises(SampleError, match=r"worker processes are nested 4 deep.*use num_workers=0"):
            next(iter(load(Nesting(), num_workers=1, start_method="fork")))

    @pytest.mark.parametrize("ahead", AHEAD)
    def test_another_loader_or_two_epochs_are_fine(self, ahead):
        inner = read(lambda: iter([[np.zeros(1)], [np.ones(1)]]), ahead)
        for _ in range(2):
            outer = read(lambda: ([batch + 1] for [batch] in inner), ahead)
            assert [batch.tolist() for [batch] in outer] == [[1], [2]]
        pairs = [(float(one[0]), float(other[0])) for [one] in inner for [other] in inner]
        assert pairs == [(0, 0), (0, 1), (1, 0), (1, 1)]


class Nesting(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        (batch,) = load(Nesting(), num_workers=1, start_method="fork")
        return batch


def stop():
    raise QueueClosed("mine")


def one_and_stop():
    yield [np.zeros(1)]
    stop()


class TestQueueClosedOfTheUsersOwn:
    """The package raises it at the end of an epoch, so the user's must not be taken for that."""

    @pytest.mark.parametrize("wrap", [lambda reader: reader, lambda reader: buffered(reader, 2)])
    @pytest.mark.parametrize("ahead", AHEAD)
    def test_in_a_reader(self, ahead, wrap):
        epoch = iter(read(wrap(one_and_stop), ahead))
        next(epoch)
        with pytest.raises(LoaderError, match="the reader raised QueueClosed: mine"):
            next(epoch)

    @by_workers
    def test_in_a_dataset(self, workers):
        for dataset in (Items(one_and_stop), Made(lambda index: [np.zeros(1)] if not index else stop())):
            epoch = iter(load(dataset, **workers))
            next(epoch)
            with pytest.raises(SampleError, match="the dataset raised QueueClosed: mine"):
                list(epoch)  # each worker has a first item

    @by_workers
    @pytest.mark.parametrize(("name", "first"), [("sampler", 0), ("batch_sampler", [0])])
    def test_in_a_sampler(self, workers, name, first):
        def indices():
            yield first
            stop()

        epoch = iter(load(Made(np.arange), **{name: indices()}, **workers))
        next(epoch)
        with pytest.raises(LoaderError, match="the sampler or batch sampler raised QueueClosed: mine"):
            next(epoch)


class Stateful:
    """A reader with a state."""

    def __init__(self):
        self.read = 0

    def __call__(self):
        while self.read < 3:
            self.read += 1
            yield [np.full(1, self.read)]

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


class TestStates:
    @pytest.mark.parametrize("ahead", AHEAD)
    def test_a_state_beyond_the_end_of_a_reader(self, ahead):
        state = {"version": 1, "epoch": 0, "seed": None}
        reader = lambda: ([np.zeros(1)] for _ in range(3))  # noqa: E731
        assert len(resume(read(reader, ahead), {**state, "batches": 2})) == 1
        assert resume(read(reader, ahead), {**state, "batches": 3}) == []
        with pytest.raises(ValueError, match=r"the reader ended after 3 items, but the state was .* 4"):
            resume(read(reader, ahead), {**state, "batches": 4})

    def test_the_last_batch_of_samples_may_have_been_incomplete(self):
        def read_from(batches):
            loader, samples = DataLoader.from_generator(capacity=2), [(np.zeros(1),)] * 5
            loader.set_sample_generator(lambda: samples, batch_size=2, drop_last=False, places="cpu")
            return resume(loader, {"version": 1, "epoch": 0, "batches": batches})

        assert read_from(3) == []
        with pytest.raises(ValueError, match=r"the reader ended after 5 items, but the state was .* 8"):
            read_from(4)

    @by_workers
    def test_a_state_beyond_the_end_of_an_iterable_dataset(self, workers):
        count = max(workers["num_workers"], 1)

        def read_from(batches):
            state = {"version": 1, "epoch": 0, "batches": batches * count, "seed": 1, "batch_size": 2}
            state |= {"workers": [[batches, None]] * count, "turn": 0}
            return resume(load(Items(lambda: range(5)), batch_size=2, **workers), state)

        assert read_from(3) == []
        with pytest.raises(ValueError, match=r"the dataset ended after 5 items, but the state was .* 8"):
            read_from(4)

    @by_workers
    def test_a_state_beyond_the_end_of_a_sampler_without_a_length(self, workers):
        class Batches:
            def __iter__(self):
                return iter([[0], [1], [2], [3]])

        def read_from(batches):
            loader = load(Made(np.arange, 4), batch_sampler=Batches(), **workers)
            return resume(loader, {**loader.state_dict(), "batches": batches})

        assert read_from(4) == []
        with pytest.raises(ValueError, match="the batch sampler ended after"):
            read_from(8)

    def test_the_state_of_a_stateful_reader_does_not_load_into_a_plain_one(self):
        loader = read(Stateful())
        next(iter(loader))
        state = loader.state_dict()
        assert [int(batch[0]) for [batch] in resume(read(Stateful()), state)] == [2, 3]
        plain = read(lambda: iter([[np.zeros(1)]]))
        with pytest.raises(ValueError, match="this reader has no load_state_dict"):
            plain.load_state_dict(state)
        early = DataLoader.from_generator(capacity=2, return_list=True)
        early.load_state_dict(state)  # before it has a source
        early.set_batch_generator(lambda: iter([[np.zeros(1)]]), places="cpu")
        with pytest.raises(ValueError, match="this reader has no load_state_dict"):
            list(early)
