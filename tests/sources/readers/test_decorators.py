"""Reader decorators: what holds for every one of them, and those without threads or processes under them."""

import io
import random
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import ComposeNotAligned, ReaderError
from gpuloader.reader import (
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)
from tests.fakes import leave_early, nothing_left_behind

items = st.lists(st.one_of(st.integers(), st.none(), st.tuples(st.integers(), st.text("ab", max_size=3))))


DECORATORS = {
    "batch": lambda reader: batch(reader, 2),
    "shuffle": lambda reader: shuffle(reader, 2),
    "cache": cache,
    "chain": lambda reader: chain(reader, reader),
    "compose": lambda reader: compose(reader, reader),
    "compose to the shortest": lambda reader: compose(reader, reader, check_alignment=False),
    "firstn": lambda reader: firstn(reader, 4),
    "map_readers": lambda reader: map_readers(lambda a, b: (a, b), reader, reader),
}
IN_THREADS = {
    "buffered": lambda reader: buffered(reader, 2),
    "mapped": lambda reader: xmap_readers(lambda item: item, reader, 2, 2),
    "mapped in order": lambda reader: xmap_readers(lambda item: item, reader, 2, 2, order=True),
}
HERE = {**DECORATORS, **IN_THREADS}
EVERY = {**HERE, "processes": lambda reader: multiprocess_reader([reader], queue_size=2)}


@pytest.fixture(params=EVERY)
def decorate(request):
    with nothing_left_behind():
        yield EVERY[request.param]


@pytest.fixture(params=HERE)
def decorate_here(request):
    """Decorators whose items and errors are the reader's own objects."""
    with nothing_left_behind():
        yield HERE[request.param]


def reader_of(values):
    return lambda: iter(values)


@given(values=items, size=st.integers(1, 9), drop_last=st.booleans())
def test_batches_flattened_are_the_items(values, size, drop_last):
    groups = list(batch(reader_of(values), size, drop_last)())
    flat = [item for group in groups for item in group]
    assert flat == (values[: len(values) // size * size] if drop_last else values)
    assert all(len(group) == size for group in groups[:-1])


@given(values=st.lists(st.integers()), size=st.integers(1, 9), seed=st.integers(0, 9))
def test_shuffle_permutes_within_windows_and_repeats_by_the_seed(values, size, seed):
    shuffled = shuffle(reader_of(values), size)
    random.seed(seed)
    first = list(shuffled())
    random.seed(seed)
    assert first == list(shuffled())
    for start in range(0, len(values), size):
        assert sorted(first[start : start + size]) == sorted(values[start : start + size])


def test_cache_reads_once_and_keeps_nothing_of_a_read_that_failed():
    starts = []

    def reader():
        starts.append(1)
        yield from "abc"
        if len(starts) == 1:
            raise OSError("once")

    cached = cache(reader)
    assert starts == []
    with pytest.raises(OSError, match="once"):
        list(cached())
    assert [list(cached()) for _ in range(3)] == [list("abc")] * 3
    assert len(starts) == 2


def failing():
    yield 1
    raise OSError("gone")


def test_chain_firstn_map_and_compose():
    assert list(chain(reader_of([1, 2]), reader_of([]), reader_of([3]))()) == [1, 2, 3]
    for values, count, first in (
        (range(10), 3, [0, 1, 2]),
        ([1], 3, [1]),
        ([1], 0, []),
        (range(5), -1, [0, 1, 2, 3, 4]),
        (range(3), np.int64(2), [0, 1]),
    ):
        assert list(firstn(reader_of(values), count)()) == first
    assert list(firstn(failing, 1)()) == [1]  # and reads no further
    assert list(batch(reader_of(range(3)), 2.0)()) == [[0, 1], [2]]
    assert list(map_readers(lambda a, b: a * b, reader_of([1, 2, 3]), reader_of([4, 5]))()) == [4, 10]
    composed = compose(reader_of([(1, 2), 3]), reader_of([[4], None]))
    assert list(composed()) == [(1, 2, [4]), (3, None)]


@given(lengths=st.lists(st.integers(0, 5), min_size=2, max_size=4))
def test_compose_yields_the_aligned_items_then_names_who_ended(lengths):
    readers, seen = [reader_of(range(length)) for length in lengths], []
    is_uneven = len(set(lengths)) > 1
    problem = pytest.raises(ComposeNotAligned, match=f"after {min(lengths)} items")
    with problem if is_uneven else nullcontext():
        for row in compose(*readers)():
            seen.append(row)
    assert seen == [(n,) * len(lengths) for n in range(min(lengths))]
    assert list(compose(*readers, check_alignment=False)()) == seen


@pytest.mark.parametrize(
    ("size", "decorators"),
    [*((size, [batch, shuffle, firstn]) for size in (1.5, None, True, "2")), (0, [batch]), (-1, [batch])],
)
def test_sizes_are_checked_when_decorating(decorators, size):
    for decorate in decorators:
        with pytest.raises(ValueError, match=r"must be an integer( of 1 or more)?, got"):
            decorate(reader_of([]), size)


@pytest.mark.parametrize("size", [1, 0, -1])
def test_windows_of_one_item_or_none_leave_the_order(size):
    assert list(shuffle(reader_of(range(50)), size)()) == list(range(50))


def test_a_generator_object_is_refused_at_once(decorate):
    for reader in ((n for n in range(3)), [1], 3):
        with pytest.raises(ReaderError, match="not a generator object"):
            decorate(reader)


def test_a_reader_that_gives_no_iterable_is_an_error_at_first_use(decorate):
    for reader, kind, problem in (
        (lambda: next(iter([])), RuntimeError, "StopIteration"),  # which must not end it in silence
        (lambda: 7, ReaderError, "must return an iterable, got int"),
    ):
        decorated = decorate(reader)
        with pytest.raises(kind, match=problem):
            list(decorated())


class Counted:
    """An endless reader that counts its open generators."""

    def __init__(self):
        self.open = 0
        self.kept = []

    def __call__(self):
        generator = self.generate()
        self.kept.append(generator)  # so that only an explicit close ends it, not its last reference
        return generator

    def generate(self):
        self.open += 1
        try:
            while True:
                yield 1
        finally:
            self.open -= 1


@pytest.mark.parametrize("ending", ["closed", "break"])
@pytest.mark.parametrize("name", [name for name in DECORATORS if name != "cache"])  # which reads to the end
def test_leaving_early_closes_the_generators_under_it(name, ending):
    reader = Counted()
    leave_early(DECORATORS[name](reader)(), ending)
    assert (bool(reader.kept), reader.open) == (True, 0)


@pytest.mark.parametrize("decorate", [compose, lambda *readers: map_readers(max, *readers)])
def test_an_exception_closes_the_other_generators(decorate):
    reader = Counted()
    with pytest.raises(OSError, match="gone"):
        list(decorate(reader, failing)())
    assert reader.open == 0


def test_a_file_rewound_for_every_epoch_stays_open(decorate):
    file = io.StringIO("a\nb\n")
    decorated = decorate(lambda: file.seek(0) or file)
    assert len([next(decorated()) for _ in range(2)]) == 2
    assert not file.closed


def test_several_epochs_at_once_do_not_disturb_each_other(decorate):
    decorated = decorate(lambda: range(4))
    together = list(zip(decorated(), decorated(), strict=True))
    assert sorted(a for a, _ in together) == sorted(b for _, b in together) == sorted(decorated())


def test_items_of_any_kind_pass(decorate_here):
    things = [None, np.arange(3), "text", ValueError("an item, not an error")]

    def leaves(value):
        return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list | tuple) else [value]

    found = leaves(list(decorate_here(lambda: things)()))
    assert {id(leaf) for leaf in found} == {id(one) for one in things}


def test_a_stop_iteration_out_of_the_function_cuts_nothing_short_in_silence():
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(map_readers(lambda numbers: next(iter(numbers)), reader_of([[1], [], [3]]))())


def test_the_exception_is_the_users_own_object_behind_the_items_before_it(decorate_here):
    own = OSError("gone")

    def reader():
        yield 1
        raise own

    with pytest.raises(OSError, match="gone") as caught:
        list(decorate_here(reader)())  # firstn requests the second item, so it raises too
    assert caught.value is own
    items = batch(chain(reader), 1)()
    assert next(items) == [1]
    with pytest.raises(OSError, match="gone"):
        next(items)
