"""Looping over a reader's loader, calling it, and driving it by hand with start, next and reset."""

import gc

import numpy as np
import pytest

from gpuloader import DataLoader, EOFException, LoaderError, cpu_places, data
from gpuloader.testing import StepReader
from tests.fakes import loader_threads, nothing_left_behind, wait_until
from tests.loading import read_batches

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
    def test_epochs_end_by_themselves_or_by_reset(self, double_buffer):
        with nothing_left_behind():
            loader = make(use_double_buffer=double_buffer)
            for most in (9, 9, 1, 9):
                loader.start()
                if most == 1:
                    assert next(loader)[0]["x"][0, 0] == 0
                else:
                    assert take_all(loader) == [0, 1, 2]
                loader.reset()
            loader._epochs._idle.clear()  # slots outlive an epoch on purpose
            del loader

    def test_misuse_is_an_error(self):
        loader = make()
        iterable = read_batches(batches(1))
        sourceless = DataLoader.from_generator([FEED], capacity=2, iterable=False)
        loader.reset()
        for call, message in [
            (loader.next, "call start"),
            (loader.__iter__, "iterable=False"),
            (iterable.start, "iterable=False"),
            (iterable.reset, "iterable=False"),
            (sourceless.start, "no source"),
        ]:
            with pytest.raises(LoaderError, match=message) as caught:
                call()
            assert isinstance(caught.value, AssertionError)  # which Paddle raises
        loader.start()
        with pytest.raises(LoaderError, match="twice"):
            loader.start()
        loader.reset()

    @pytest.mark.parametrize("count", [0, 3])
    def test_start_after_the_end_without_reset_warns_and_the_epoch_stays_over(self, count):
        loader = make(count=count)
        loader.start()
        assert take_all(loader) == list(range(count))
        with pytest.warns(UserWarning, match=r"call reset\(\), then start\(\)") as warned:
            loader.start()
        assert warned[0].filename == __file__
        assert take_all(loader) == take_all(loader) == []
        loader.reset()
        loader.reset()
        loader.start()
        assert take_all(loader) == list(range(count))
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
    def test_without_feeds_even_one_that_is_not_iterable_can_be_looped_over(self):
        loader = DataLoader.from_generator(capacity=2, iterable=False)
        assert loader.iterable  # as in Paddle's dynamic mode
        assert not make().iterable
        assert DataLoader.from_generator([FEED], capacity=1).iterable
        loader.set_batch_generator(batches(3), places="cpu")
        called = loader()
        assert called is loader
        for _ in range(2):
            with pytest.warns(UserWarning, match="iterable=True") as warned:
                assert numbers(called) == [0, 1, 2]
            assert warned[0].filename == __file__
        loader.start()
        assert numbers([next(loader)]) == [0]
        loader.reset()


class TestNext:
    @pytest.fixture
    def loader(self):
        with nothing_left_behind():
            loader = read_batches(batches(3))
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
        for _ in loader:
            break
        wait_until(lambda: not loader_threads())  # leaving the loop has ended its epoch
        assert numbers([next(loader)]) == [0]
        loader()

    def test_a_loop_ends_the_epoch_that_next_began(self):
        reader = StepReader([[np.zeros(1)] for _ in range(9)])
        reader.allow(9)
        loader = read_batches(reader)
        next(loader)
        assert loader_threads()
        loader()
        wait_until(lambda: not loader_threads())
