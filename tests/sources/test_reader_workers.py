"""Readers with threads or processes under them, where something goes wrong beside the reader itself."""

import gc
import os
import signal
import threading
import time

import pytest

from gpuloader import WorkerError
from gpuloader.sources.reader import batch, buffered, multiprocess_reader, shuffle, xmap_readers
from tests.fakes import nothing_left_behind

DECORATORS = {
    "buffered": lambda reader: buffered(reader, 2),
    "mapped": lambda reader: xmap_readers(lambda item: item, reader, 2, 2),
    "mapped in order": lambda reader: xmap_readers(lambda item: item, reader, 2, 2, order=True),
    "processes": lambda reader: multiprocess_reader([reader, reader], queue_size=2),
}


@pytest.fixture(params=DECORATORS)
def decorate(request):
    with nothing_left_behind():
        yield DECORATORS[request.param]


def endless():
    while True:
        yield 1


def test_a_dropped_iterator_leaves_nothing_behind(decorate):
    assert next(iter(decorate(endless)())) == 1


def test_an_iterator_in_a_cycle_leaves_nothing_behind(decorate):
    class Holder:
        pass

    holder = Holder()
    holder.itself = holder
    holder.iterator = decorate(endless)()
    next(holder.iterator)
    del holder
    gc.collect()


def test_an_exception_at_the_consumer_leaves_nothing_behind(decorate):
    with pytest.raises(ZeroDivisionError):
        for item in decorate(endless)():
            item / 0


def test_an_iterator_that_was_never_asked_starts_nothing(decorate):
    threads = threading.active_count()
    iterator = decorate(endless)()
    assert threading.active_count() == threads
    iterator.close()


def test_decorators_pass_errors_and_endings_through_one_another(decorate):
    def failing():
        yield from range(4)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(batch(decorate(shuffle(buffered(failing, 1), 2)), 2)())
    iterator = batch(decorate(shuffle(buffered(endless, 1), 2)), 2)()
    assert next(iterator) == [1, 1]
    iterator.close()


def test_a_mapper_that_blocks_holds_nobody_up():
    release = threading.Event()

    def mapper(n):
        if n:
            release.wait(10)
        return n

    with nothing_left_behind():
        iterator = xmap_readers(mapper, lambda: range(9), 2, 2, order=True)()
        assert next(iterator) == 0
        iterator.close()
        release.set()


def test_items_that_were_sent_before_a_death_arrive_before_it():
    def reader():
        yield from range(5)
        os.kill(os.getpid(), signal.SIGKILL)

    seen = []
    with nothing_left_behind(), pytest.raises(WorkerError):
        for item in multiprocess_reader([reader])():
            seen.append(item)
    assert seen == list(range(5))


def test_the_death_of_one_process_ends_the_others():
    def dying():
        yield os.getpid()
        os.kill(os.getpid(), signal.SIGKILL)

    def blocked():
        time.sleep(1000)
        yield 1

    with nothing_left_behind(), pytest.raises(WorkerError) as caught:
        list(multiprocess_reader([blocked, dying, blocked])())
    assert caught.value.signal == signal.SIGKILL
