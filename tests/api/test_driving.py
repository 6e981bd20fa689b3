"""Looping over a reader's loader, calling it, and driving it by hand with start, next and reset."""

import gc

import numpy as np
import pytest

from gpuloader import DataLoader, EOFException, LoaderError, cpu_places, data
from gpuloader.testing import StepReader
from tests.fakes import loader_threads, nothing_left_behind, wait_until

FEED = data("x", [None, 1])


def batches(count, first=0):
    return lambda: ([np.full((2, 1), first + n, np.float32)] for n in range(count))


def make(count=3, places="cpu", **options):
    loader = DataLoader.from_generator([FEED], capacity=2, iterable=False, **options)
    return loader.set_batch_generator(batches(count), places=places)


def take_all(loader):
    """Return the first number of every remaining batch of an epoch that was started."""
    seen = []
    while True:
        try:
            [batch] = loader.next()
        except EOFException:
            return seen
        seen.append(int(batch["x"][0, 0]))


def numbers(steps):
    return [int(batch[0, 0]) for (batch,) in steps]


class TestStartReset:
    @pytest.mark.parametrize("double_buffer", [True, False])
    def test_two_epochs(self, double_buffer):
        loader = make(use_double_buffer=double_buffer)
        for _ in range(2):
            loader.start()
            assert take_all(loader) == [0, 1, 2]
            loader.reset()

    def test_reset_in_the_middle(self):
        with nothing_left_behind():
            loader = make()
            loader.start()
            next(loader)
            loader.reset()
            loader.start()
            assert next(loader)[0]["x"][0, 0] == 0
            loader.reset()
            del loader

    def test_the_end_is_met_again_until_reset(self):
        loader = make(count=0)
        loader.start()
        for _ in range(2):
            with pytest.raises(EOFException):
                next(loader)
        loader.reset()
        loader.reset()

    def test_misuse_is_an_error(self):
        loader = make()
        with pytest.raises(LoaderError, match="call start"):
            next(loader)
        with pytest.raises(LoaderError, match="iterable=False"):
            iter(loader)
        with pytest.raises(LoaderError, match="no source"):
            DataLoader.from_generator([FEED], capacity=2, iterable=False).start()
        loader.reset()
        loader.start()
        with pytest.raises(LoaderError, match="twice"):
            loader.start()
        loader.reset()

    def test_misuse_is_also_what_paddle_raises(self):
        iterable = DataLoader.from_generator(capacity=1).set_batch_generator(batches(1), places="cpu")
        for call in (iterable.start, iterable.reset, make().__iter__):
            with pytest.raises(AssertionError, match="iterable=False"):
                call()
        with pytest.raises(AssertionError, match="no source"):
            iter(DataLoader.from_generator(capacity=1))

    def test_start_after_the_end_without_reset_warns_and_the_epoch_stays_over(self):
        loader = make()
        loader.start()
        assert take_all(loader) == [0, 1, 2]
        with pytest.warns(UserWarning, match=r"call reset\(\), then start\(\)") as warned:
            loader.start()
        assert warned[0].filename == __file__
        assert take_all(loader) == []
        loader.reset()
        loader.start()
        assert take_all(loader) == [0, 1, 2]
        loader.reset()

    def test_a_new_source_while_an_epoch_runs_is_read_from_the_next_start_on(self):
        loader = make(count=4)
        loader.start()
        next(loader)
        with pytest.warns(UserWarning, match="while an epoch runs") as warned:
            loader.set_batch_generator(batches(2, first=10), places="cpu")
        assert warned[0].filename == __file__
        assert take_all(loader) == [1, 2, 3]
        loader.reset()
        loader.start()
        assert take_all(loader) == [10, 11]
        loader.reset()

    def test_of_several_places_the_first_gets_every_batch(self):
        with pytest.warns(UserWarning, match="none to the other 2 places") as warned:
            loader = make(count=5, places=cpu_places(3))
        assert warned[0].filename == __file__
        loader.start()
        assert take_all(loader) == [0, 1, 2, 3, 4]
        loader.reset()


class TestLoops:
    def test_a_loader_with_feeds_says_whether_it_may_be_looped_over(self):
        assert not make().iterable
        assert DataLoader.from_generator([FEED], capacity=1).iterable
        assert DataLoader.from_generator(capacity=1, iterable=False).iterable  # as in Paddle's dynamic mode

    def test_without_feeds_even_one_that_is_not_iterable_can_be_looped_over(self):
        loader = DataLoader.from_generator(capacity=2, iterable=False)
        loader.set_batch_generator(batches(3), places="cpu")
        for _ in range(2):
            with pytest.warns(UserWarning, match="iterable=True") as warned:
                assert numbers(loader()) == [0, 1, 2]
            assert warned[0].filename == __file__
        loader.start()
        assert numbers([next(loader)]) == [0]
        loader.reset()

    def test_a_call_returns_the_loader_and_every_loop_over_it_is_an_epoch(self):
        loader = DataLoader.from_generator(capacity=2).set_batch_generator(batches(2), places="cpu")
        called = loader()
        assert called is loader
        assert [numbers(called) for _ in range(2)] == [[0, 1], [0, 1]]


class TestNext:
    @pytest.fixture
    def loader(self):
        with nothing_left_behind():
            loader = DataLoader.from_generator(capacity=2).set_batch_generator(batches(3), places="cpu")
            yield loader
            loader._epochs._idle.clear()  # slots outlive an epoch on purpose
            del loader
            gc.collect()

    def test_of_a_call_is_the_first_batch_of_a_new_epoch(self, loader):
        assert numbers([next(loader()), next(loader())]) == [0, 0]
        assert numbers([next(loader), next(loader)]) == [1, 2]
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(loader)
        assert numbers([next(loader())]) == [0]
        loader()

    def test_after_iter_takes_from_the_same_epoch(self, loader):
        epoch = iter(loader)
        assert numbers([next(loader), next(epoch), next(loader)]) == [0, 1, 2]
        for either in (loader, epoch):
            with pytest.raises(StopIteration):
                next(either)

    def test_in_a_loop_skips_a_batch(self, loader):
        seen = []
        for (batch,) in loader:
            seen.append(int(batch[0, 0]))
            if len(seen) == 1:
                next(loader)
        assert seen == [0, 2]

    def test_a_loop_ends_the_epoch_that_next_began(self):
        reader = StepReader([[np.zeros(1)] for _ in range(9)])
        reader.allow(9)
        loader = DataLoader.from_generator(capacity=2).set_batch_generator(reader, places="cpu")
        next(loader)
        assert loader_threads()
        loader()
        wait_until(lambda: not loader_threads())

    def test_leaving_a_loop_still_ends_its_epoch(self, loader):
        for _ in loader:
            break
        wait_until(lambda: not loader_threads())
        assert numbers([next(loader)]) == [0]
        loader()
