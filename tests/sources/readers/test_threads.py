"""`buffered` and `xmap_readers`: their threads lose, reorder, delay and leave behind nothing."""

import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloader import LoaderError, ReaderError
from gpuloader.reader import buffered, xmap_readers
from gpuloader.testing import StepReader
from tests.fakes import nothing_left_behind, wait_until


def failing(count):
    def reader():
        yield from range(count)
        raise OSError("the disk is gone")

    return reader


DECORATORS = {
    "buffered": lambda reader: buffered(reader, 2),
    "mapped": lambda reader: xmap_readers(lambda item: item, reader, 2, 2),
    "mapped in order": lambda reader: xmap_readers(lambda item: item, reader, 2, 2, order=True),
}


@pytest.fixture(params=DECORATORS)
def decorate(request):
    with nothing_left_behind():
        yield DECORATORS[request.param]


def test_every_item_passes_and_epochs_start_afresh(decorate):
    reader = decorate(lambda: range(30))
    for _ in range(3):
        assert sorted(reader()) == list(range(30))


def test_any_item_passes(decorate):
    things = [None, np.arange(3), "text", (1, 2), ValueError("an item, not an error")]
    seen = list(decorate(lambda: things)())
    assert {id(item) for item in seen} == {id(item) for item in things}


def test_the_readers_exception_reaches_the_consumer(decorate):
    iterator = decorate(failing(5))()
    with pytest.raises(OSError, match="the disk is gone"):
        list(iterator)
    assert list(iterator) == []


def test_leaving_early_ends_the_threads_and_closes_the_reader(decorate):
    closed = threading.Event()

    def endless():
        try:
            while True:
                yield 1
        finally:
            closed.set()

    for item in decorate(endless)():
        assert item == 1
        break
    assert closed.wait(10)


def test_a_blocked_reader_holds_nobody_up(decorate):
    reader = StepReader(range(5))
    reader.allow(1)
    iterator = decorate(reader)()
    assert next(iterator) == 0
    iterator.close()
    reader.allow(5)
    assert reader.closed.wait(10)


def test_a_reader_that_gives_no_iterable(decorate):
    with pytest.raises(ReaderError, match="must return an iterable"):
        list(decorate(lambda: None)())


def test_two_epochs_at_once(decorate):
    reader = decorate(lambda: range(10))
    pairs = list(zip(reader(), reader(), strict=True))
    assert sorted(a for a, _ in pairs) == sorted(b for _, b in pairs) == list(range(10))


def test_buffered_reads_ahead_as_far_as_told():
    reader = StepReader(range(50))
    reader.allow(51)
    iterator = buffered(reader, 4)()
    next(iterator)
    wait_until(lambda: reader.given >= 5)
    assert reader.given <= 1 + 4
    iterator.close()
    assert reader.closed.wait(10)


@given(values=st.lists(st.integers(), max_size=40), workers=st.integers(1, 4), size=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_mapping_in_order_equals_map(values, workers, size):
    mapped = xmap_readers(lambda n: n * 2, lambda: values, workers, size, order=True)
    assert list(mapped()) == [n * 2 for n in values]


@pytest.mark.parametrize("order", [True, False])
def test_the_mappers_exception_reaches_the_consumer(order):
    def mapper(n):
        return 10 // (3 - n)

    with nothing_left_behind(), pytest.raises(ZeroDivisionError):
        list(xmap_readers(mapper, lambda: range(10), 2, 2, order)())


def test_in_order_the_results_before_an_exception_come_first():
    seen = []
    with pytest.raises(OSError, match="gone"):
        for n in xmap_readers(lambda n: n, failing(20), 3, 4, order=True)():
            seen.append(n)
    assert seen == list(range(20))


def test_a_slow_first_item_does_not_let_the_rest_pile_up():
    release, mapped = threading.Event(), []

    def mapper(n):
        if n == 0:
            release.wait(10)
        mapped.append(n)
        return n

    iterator = xmap_readers(mapper, lambda: range(1000), process_num=2, buffer_size=3, order=True)()
    first = []
    consumer = threading.Thread(target=lambda: first.append(next(iterator)))
    consumer.start()
    wait_until(lambda: len(mapped) >= 6)
    assert len(mapped) <= 2 * 3 + 2
    release.set()
    consumer.join(10)
    assert first == [0]
    assert list(iterator) == list(range(1, 1000))


@pytest.mark.parametrize(("workers", "size"), [(0, 1), (-1, 1), (1, 2.5), (True, 1), (1, None)])
def test_counts_are_checked_when_decorating(workers, size):
    with pytest.raises(ValueError, match="must be an integer"):
        xmap_readers(str, list, workers, size)
    with pytest.raises(ValueError, match="size must be an integer, got '1'"):
        buffered(list, "1")


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_of_0_sets_no_limit(size):
    with nothing_left_behind():
        reader = StepReader(range(300))
        reader.allow(301)
        iterator = buffered(reader, size)()
        assert next(iterator) == 0
        wait_until(lambda: reader.given == 300)
        assert list(iterator) == list(range(1, 300))
        assert list(xmap_readers(abs, lambda: range(300), 2, size, order=True)()) == list(range(300))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    "wrap", [lambda reader: buffered(reader, 2), lambda reader: xmap_readers(abs, reader, 2, 2, order=True)]
)
def test_a_fork_in_the_middle_does_not_wait_for_threads_that_it_lacks(wrap):
    items = wrap(lambda: range(20))()
    assert next(items) == 0
    pid = os.fork()
    if not pid:
        try:
            list(items)
        except LoaderError as error:
            os._exit(0 if "start a new epoch here" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(items) == list(range(1, 20))
