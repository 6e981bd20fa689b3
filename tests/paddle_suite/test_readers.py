"""Reader decorators: the cases of Paddle's decorator_test.py and test_multiprocess_reader_exception.py."""

import functools
import random

import numpy as np
import pytest

from tests.paddle_suite.libraries import array

SIZES = (1, 2, 4, 8, 16)


def ten():
    yield from range(10)


def of(*items):
    return lambda: iter(items)


def read(reader):
    return list(reader())


class TestMap:
    def test_one_reader(self, lib):
        codes = {"h": 0, "i": 1}
        assert read(lib.reader.map_readers(codes.get, of("h", "i"))) == [0, 1]

    def test_several_readers_stop_at_the_shortest(self, lib):
        added = lib.reader.map_readers(lambda *numbers: sum(numbers), ten, of(1, 2, 3), ten)
        assert read(added) == [1, 4, 7]

    def test_every_read_starts_afresh(self, lib):
        mapped = lib.reader.map_readers(str, ten)
        assert read(mapped) == read(mapped) == [str(number) for number in range(10)]


@pytest.mark.parametrize("size", range(20))
def test_buffered_keeps_items_and_order(lib, size):
    """A size of 0 sets no limit."""
    assert read(lib.reader.buffered(ten, size)) == list(range(10))


def test_buffered_reads_ahead(lib):
    """Without clocks: the reader has yielded its last item although the consumer took one."""
    taken = []

    def reader():
        for number in range(10):
            taken.append(number)
            yield number

    items = lib.reader.buffered(reader, 10)()
    assert next(items) == 0
    rest = list(items)
    assert rest == list(range(1, 10))
    assert taken == list(range(10))


class TestCompose:
    def test_aligned(self, lib):
        assert read(lib.reader.compose(ten, ten)) == [(number, number) for number in range(10)]

    def test_tuples_are_flattened(self, lib):
        composed = lib.reader.compose(of((1, 2), (3, 4)), of(5, 6), of([7], [8]))
        assert read(composed) == [(1, 2, 5, [7]), (3, 4, 6, [8])]

    def test_unaligned_raises_behind_the_aligned_items(self, lib):
        seen = []
        twenty = lib.reader.chain(ten, ten)
        with pytest.raises(lib.reader.ComposeNotAligned):
            for row in lib.reader.compose(twenty, ten)():
                seen.append(row)
        assert seen == [(number, number) for number in range(10)]
        assert issubclass(lib.reader.ComposeNotAligned, ValueError)

    def test_unaligned_and_unchecked_stops_at_the_shortest(self, lib):
        twenty = lib.reader.chain(ten, ten)
        assert len(read(lib.reader.compose(twenty, ten, check_alignment=False))) == 10

    def test_none_is_an_item(self, lib):
        composed = lib.reader.compose(of(1, None), of(3, 4))
        if lib.differs("none-is-an-item"):
            assert read(composed) == [(1, 3), (None, 4)]
        else:
            with pytest.raises(lib.reader.ComposeNotAligned):
                read(composed)


def test_chain(lib):
    assert read(lib.reader.chain(ten, ten)) == [*range(10), *range(10)]
    assert read(lib.reader.chain()) == []


@pytest.mark.parametrize(("size", "unchanged"), [(0, True), (1, True), (10, False), (100, False), (-1, True)])
def test_shuffle(lib, size, unchanged):
    items = read(lib.reader.shuffle(ten, size))
    assert sorted(items) == list(range(10))
    assert not unchanged or items == list(range(10))


@pytest.mark.parametrize("size", [2, 3, 10, 50])
def test_shuffle_draws_from_pythons_random(lib, size):
    """The same seed, the same order: that of shuffling each window with `random.shuffle`."""
    random.seed(7)
    items = read(lib.reader.shuffle(ten, size))
    random.seed(7)
    expected = []
    for start in range(0, 10, size):
        window = list(range(10))[start : start + size]
        random.shuffle(window)
        expected += window
    assert items == expected


@pytest.mark.parametrize(("n", "count"), [(0, 0), (3, 3), (10, 10), (99, 10), (-1, 10)])
def test_firstn(lib, n, count):
    assert read(lib.reader.firstn(ten, n)) == list(range(count))


def test_cache_reads_once(lib):
    times = []

    def reader():
        times.append(1)
        yield from "abc"

    cached = lib.reader.cache(reader)
    assert len(times) == (0 if lib.differs("cache-reads-late") else 1)
    assert read(cached) == read(cached) == list("abc")
    assert len(times) == 1


class TestBatch:
    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize("size", [1, 3, 5, 10, 11, 2.0])
    def test_sizes(self, lib, size, drop_last):
        whole = [list(range(start, min(start + int(size), 10))) for start in range(0, 10, int(size))]
        expected = [group for group in whole if len(group) == size or not drop_last]
        assert read(lib.batch(ten, size, drop_last)) == expected

    @pytest.mark.parametrize("size", [0, -1, 0.5])
    def test_a_size_below_1_is_an_error(self, lib, size):
        with pytest.raises(ValueError, match="batch_size"):
            lib.batch(ten, size)

    def test_a_fraction_is_no_size(self, lib):
        if lib.differs("sizes-are-whole"):
            with pytest.raises(ValueError, match="batch_size"):
                lib.batch(ten, 2.7)
        else:
            assert read(lib.batch(ten, 2.7))[0] == [0, 1]


@pytest.mark.parametrize("order", [True, False])
@pytest.mark.parametrize("threads", SIZES)
@pytest.mark.parametrize("size", SIZES)
def test_xmap(lib, order, threads, size):
    mapped = lib.reader.xmap_readers(lambda number: number + 1, ten, threads, size, order)
    for _ in range(3):
        items = read(mapped)
        assert (items if order else sorted(items)) == list(range(1, 11))


@pytest.mark.parametrize("order", [True, False])
def test_xmap_without_a_limit(lib, order):
    items = read(lib.reader.xmap_readers(lambda number: number + 1, ten, 2, 0, order))
    assert sorted(items) == list(range(1, 11))


def test_no_thread_to_map_with(lib, only_ours):
    """Paddle hangs, as under any error in a thread; ours are in `tests/sources/readers`."""
    assert lib.differs("no-threads")
    with pytest.raises(ValueError, match="process_num"):
        lib.reader.xmap_readers(abs, ten, 0, 2)


SAMPLES = [[[number], [number + 1, number + 2], number + 3] for number in range(100)]


class TestProcesses:
    def readers(self):
        return [functools.partial(iter, SAMPLES[first::3]) for first in range(3)]

    @pytest.mark.parametrize("use_pipe", [True, False])
    def test_all_samples_of_all_readers(self, lib, use_pipe):
        reader = lib.reader.multiprocess_reader(self.readers(), use_pipe, 100)
        assert sorted(read(reader)) == SAMPLES

    def test_readers_take_turns(self, lib):
        reader = lib.reader.multiprocess_reader([of(1, 2, 3), of(4), of(7, 8)])
        assert read(reader) == read(reader) == [1, 4, 7, 2, 8, 3]

    def test_readers_nest(self, lib):
        inner = lib.reader.multiprocess_reader([of(1, 2, 3), of(4)])
        assert read(lib.reader.multiprocess_reader([inner, of(7, 8)])) == [1, 7, 4, 8, 2, 3]

    def test_arrays_and_none_are_items(self, lib):
        reader = lib.reader.multiprocess_reader([of(None, np.arange(3))])
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

    def test_no_reader_is_an_error(self, lib):
        own = lib.differs("typed-errors")
        with pytest.raises(TypeError if own else AssertionError):
            lib.reader.multiprocess_reader([])

    @pytest.mark.parametrize("use_pipe", [True, False])
    def test_under_a_loader(self, lib, use_pipe):
        """40 samples of each of two readers, in batches of 4."""

        def samples():
            for _ in range(40):
                yield (np.random.uniform(-1, 1, 10).tolist(),)

        reader = lib.reader.multiprocess_reader([samples, samples], use_pipe=use_pipe)
        with lib.static():
            image = lib.data("image", [None, 10], "float32")
            loader = lib.fluid.io.DataLoader.from_generator([image], capacity=2)
            loader.set_sample_generator(reader, batch_size=4, places=lib.fluid.cpu_places(1))
            for _ in range(3):
                assert [array(step[0]["image"]).shape for step in loader()] == [(4, 10)] * 20
