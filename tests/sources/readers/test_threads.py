"""Readers with threads or processes under them lose, reorder, delay and leave behind nothing."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import LoaderError
from gpuloader.reader import batch, buffered, shuffle, xmap_readers
from gpuloader.testing import StepReader
from tests.fakes import leave_early, nothing_left_behind, wait_until
from tests.processes import run_in_fork
from tests.sources.readers.test_decorators import EVERY, IN_THREADS


def failing(count):
    def reader():
        yield from range(count)
        raise OSError("the disk is gone")

    return reader


@pytest.fixture(params=[*IN_THREADS, "processes"])
def decorate(request):
    with nothing_left_behind():
        yield EVERY[request.param]


@pytest.fixture(params=IN_THREADS)
def in_threads(request):
    with nothing_left_behind():
        yield IN_THREADS[request.param]


def endless():
    while True:
        yield 1


def test_leaving_early_ends_the_threads_and_closes_the_reader(in_threads):
    reader = StepReader(range(5))
    reader.allow(1)
    iterator = in_threads(reader)()
    assert next(iterator) == 0
    iterator.close()  # is not held up by a reader that is blocked
    reader.allow(5)
    assert reader.closed.wait(60)


def test_buffered_reads_ahead_as_far_as_told():
    reader = StepReader(range(50))
    reader.allow(51)
    iterator = buffered(reader, 4)()
    next(iterator)
    wait_until(lambda: reader.given >= 5)
    assert reader.given <= 1 + 4
    iterator.close()
    assert reader.closed.wait(60)


@given(values=st.lists(st.integers(), max_size=40), workers=st.integers(1, 4), size=st.integers(1, 5))
def test_mapping_in_order_equals_map(values, workers, size):
    mapped = xmap_readers(lambda n: n * 2, lambda: values, workers, size, order=True)
    assert list(mapped()) == [n * 2 for n in values]


@pytest.mark.parametrize("order", [True, False])
def test_the_mappers_exception_reaches_the_consumer(order):
    with nothing_left_behind(), pytest.raises(ZeroDivisionError):
        list(xmap_readers(lambda n: 10 // (3 - n), lambda: range(10), 2, 2, order)())


def test_in_order_the_results_before_an_exception_come_first():
    seen = []
    with pytest.raises(OSError, match="gone"):
        for n in xmap_readers(lambda n: n, failing(20), 3, 4, order=True)():
            seen.append(n)
    assert seen == list(range(20))


def test_a_slow_first_item_does_not_let_the_rest_pile_up():
    release, mapped, first = threading.Event(), [], []

    def mapper(n):
        if n == 0:
            release.wait(60)
        mapped.append(n)
        return n

    iterator = xmap_readers(mapper, lambda: range(1000), process_num=2, buffer_size=3, order=True)()
    consumer = threading.Thread(target=lambda: first.append(next(iterator)))
    consumer.start()
    wait_until(lambda: len(mapped) >= 6)
    assert len(mapped) <= 2 * 3 + 2
    release.set()
    consumer.join(60)
    assert [*first, *iterator] == list(range(1000))


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
def test_a_fork_in_the_middle_takes_nothing_of_its_parents_epoch(decorate):
    items = decorate(lambda: range(20))()
    first = next(items)

    def work():
        with pytest.raises(LoaderError, match="start a new epoch here"):
            list(items)
        items.close()

    run_in_fork(work)
    assert sorted([first, *items]) == list(range(20))


@pytest.mark.parametrize("ending", ["break", "exception", "dropped", "cycle", "closed"])
def test_an_iterator_that_is_left_leaves_nothing_behind(decorate, ending):
    leave_early(decorate(endless)(), ending)


def test_decorators_pass_errors_and_endings_through_one_another(decorate):
    with pytest.raises(OSError, match="the disk is gone"):
        list(batch(decorate(shuffle(buffered(failing(4), 1), 2)), 2)())
    iterator = batch(decorate(shuffle(buffered(endless, 1), 2)), 2)()
    assert next(iterator) == [1, 1]
    iterator.close()


def test_an_iterator_that_was_never_advanced_starts_nothing(decorate):
    threads = threading.active_count()
    iterator = decorate(endless)()
    assert threading.active_count() == threads
    iterator.close()


def test_a_mapper_that_blocks_holds_nobody_up():
    release = threading.Event()
    with nothing_left_behind():
        iterator = xmap_readers(lambda n: n and release.wait(60), lambda: range(9), 2, 2, order=True)()
        assert next(iterator) == 0
        iterator.close()
        release.set()
