"""Reader decorators: the cases of Paddle's decorator_test.py and test_multiprocess_reader_exception.py.

Only what has something to compare: `tests/sources/readers` has the rest.
"""

import random

import numpy as np
import pytest

from tests.paddle_suite.libraries import array


def ten():
    yield from range(10)


def read(reader):
    return list(reader())


@pytest.mark.parametrize("size", [2, 3, 10, 50])
def test_shuffle_draws_from_pythons_random(lib, size):
    """The same seed, the same order: that of shuffling each window with `random.shuffle`."""
    random.seed(7)
    items = read(lib.reader.shuffle(ten, size))
    random.seed(7)
    windows = [list(range(10))[start : start + size] for start in range(0, 10, size)]
    for window in windows:
        random.shuffle(window)
    assert items == sum(windows, [])  # noqa: RUF017


def test_cache_reads_once(lib):
    times = []

    def reader():
        times.append(1)
        yield from "abc"

    cached = lib.reader.cache(reader)
    assert len(times) == (0 if lib.differs("cache-reads-late") else 1)
    assert read(cached) == read(cached) == list("abc")
    assert len(times) == 1


def test_no_thread_to_map_with(lib, only_ours):
    """Paddle hangs, as under any error in a thread; ours are in `tests/sources/readers`."""
    assert lib.differs("no-threads")
    with pytest.raises(ValueError, match="process_num"):
        lib.reader.xmap_readers(abs, ten, 0, 2)


class TestProcesses:
    def test_arrays_and_none_are_items(self, lib):
        reader = lib.reader.multiprocess_reader([lambda: iter([None, np.arange(3)])])
        if lib.differs("none-is-an-item"):
            none, numbers = read(reader)
            assert (none, array(numbers).tolist()) == (None, [0, 1, 2])
        else:
            with pytest.raises(ValueError, match="multiprocess_reader failed"):
                read(reader)

    @pytest.mark.parametrize("use_pipe", [True, False])
    def test_a_reader_that_raises(self, lib, use_pipe):
        def failing():
            raise ZeroDivisionError("mine")
            yield

        reader = lib.reader.multiprocess_reader([failing, failing], use_pipe)
        own = lib.differs("errors-reach-the-consumer")
        with pytest.raises(ZeroDivisionError if own else ValueError, match="mine" if own else "failed to"):
            read(reader)
