"""Random numbers for a sample: a function of seed, epoch and index, whichever worker fetches it."""

import itertools

import numpy as np
import pytest

from gpuloader import (
    DataLoader,
    Dataset,
    LoaderError,
    SampleError,
    Subset,
    sample_rng,
    sample_rngs,
)
from gpuloader.order.randomness import Draw, current_draw, exchange_draw, mixed_seed
from tests.api.streams import Items
from tests.loading import load
from tests.sample_sets import (
    INLINE,
    ONE_THREAD,
    PROCESSES,
    THREADS,
    WORKERS,
    Made,
    MadeAtOnce,
    name_workers,
    values,
)


def draw(index):
    return sample_rng().random(2)


def numbers(make=draw, count=10, epochs=1, **options):
    """Return the numbers each sample drew, in the order of the epoch."""
    loader = DataLoader(Made(make, count), **{"places": "cpu", "batch_size": 3, "seed": 7, **options})
    drawn = []
    for _ in range(epochs):
        drawn.append([sample for batch in values(loader) for sample in batch])
    return drawn[0] if epochs == 1 else drawn


def drawn_by(seed, epoch, index):
    outer = exchange_draw(Draw(seed, epoch))
    current_draw().index = index
    try:
        return sample_rng().random()
    finally:
        exchange_draw(outer)


def as_made(seed, epoch, index, purpose=0):
    """Return the generator of a sample, made anew."""
    key, counter = np.array([seed, 1], np.uint64), np.array([0, purpose, index, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def test_the_same_with_any_workers():
    alone = numbers(epochs=2)
    for options in [ONE_THREAD, THREADS, PROCESSES, {"batch_size": 1}, {"batch_size": 10}]:
        assert numbers(epochs=2, **{**INLINE, **options}) == alone
    assert values(load(Made(draw, 10), batch_size=None, seed=7)) == alone[0]
    assert sorted(numbers(shuffle=True, **THREADS)) == sorted(alone[0])


def test_another_for_each_sample_epoch_and_seed():
    epochs = numbers(epochs=3) + numbers(epochs=2, seed=8)
    drawn = [tuple(sample) for epoch in epochs for sample in epoch]
    assert len(set(drawn)) == len(drawn) == 50


def test_the_numbers_themselves_do_not_change():
    """Across releases, so that repeating an experiment reproduces them."""
    assert drawn_by(7, 0, 3) == as_made(7, 0, 3).random()
    highest = 2**64 - 1
    assert drawn_by(highest, highest, highest) == as_made(highest, highest, highest).random()
    assert drawn_by(0, 0, -1) == as_made(0, 0, highest).random()
    draw = Draw(7, 2)
    for purpose in (0, 1, 0):  # for transforms of images and for the dataset, which have numbers of their own
        assert draw.make_generator(3, purpose).random() == as_made(7, 2, 3, purpose).random()


def test_indices_of_any_kind():
    assert drawn_by(1, 0, np.int64(5)) == drawn_by(1, 0, 5) == drawn_by(1, 0, np.uint8(5))
    assert drawn_by(1, 0, "a.jpg") != drawn_by(1, 0, "b.jpg")
    assert drawn_by(1, 0, ("a", 1)) != drawn_by(1, 0, ("a", 2))

    def numbers_by_name(**options):
        by_name = Made(lambda name: sample_rng().random())
        return values(load(by_name, batch_sampler=[["a.jpg", "b.jpg"], ["c.jpg"]], seed=2, **options))

    alone = numbers_by_name()
    assert numbers_by_name(**THREADS) == numbers_by_name(**PROCESSES) == alone
    assert len({one for batch in alone for one in batch}) == 3


def test_one_generator_a_sample():
    def draw_twice(index):
        assert sample_rng() is sample_rng()
        return np.array([sample_rng().random(), sample_rng().random()])

    assert numbers(draw_twice) == numbers()


@pytest.mark.parametrize("workers", WORKERS, ids=name_workers)
def test_no_sample_no_numbers(workers):
    with pytest.raises(LoaderError, match="no sample is being fetched in this thread"):
        sample_rng()
    with pytest.raises(LoaderError, match=r"this thread; call sample_rngs\(\) in the dataset's __getitems__"):
        sample_rngs([1])
    for _ in load(Made(draw), **workers):
        with pytest.raises(LoaderError, match="no sample is being fetched in this thread"):
            sample_rng()


@pytest.mark.parametrize("workers", WORKERS, ids=name_workers)
def test_several_samples_at_once_have_no_numbers_in_common(workers):
    """Neither in `__getitems__` nor in `collate_fn`: the numbers would depend on which worker runs them."""
    collating = {"collate_fn": lambda samples: sample_rng().random()}
    for dataset, options in ((MadeAtOnce(draw), {}), (Made(draw), collating)):
        with pytest.raises(SampleError, match="no single sample is being fetched"):
            list(load(dataset, batch_size=2, **options, **workers))


def test_a_sample_starts_at_its_first_number_whatever_was_drawn_before():
    def draw_unevenly(index):
        rng = sample_rng()
        # Half of a 64-bit word, a word of a block of four, and a normal variable that needs several.
        return np.array([rng.integers(2**32, dtype=np.uint32), *rng.random(index % 4), rng.normal()])[[0, -1]]

    def expected(index):
        rng = as_made(7, 0, index)
        first = rng.integers(2**32, dtype=np.uint32)
        rng.random(index % 4)
        return [first, rng.normal()]

    assert numbers(draw_unevenly) == [expected(index) for index in range(10)]


def test_a_generator_that_is_kept_goes_on_where_it_was():
    kept = []

    def keep(index):
        rng = sample_rng()
        kept.append(([rng, rng.bit_generator], [rng], [rng.bit_generator])[index % 3] + [rng.random()])
        return index

    numbers(keep)
    for index, (generator, *_, first) in enumerate(kept):
        wanted = as_made(7, 0, index)
        assert first == wanted.random()
        generator = np.random.Generator(generator) if index % 3 == 2 else generator
        assert generator.random() == wanted.random()


class AtOnce(Dataset):
    def __len__(self):
        return 10

    def __getitems__(self, indices):
        kept = list(sample_rngs(indices))  # all of them, before the first one draws
        return [rng.random(2) for rng in kept]


@pytest.mark.parametrize("workers", [*WORKERS, PROCESSES], ids=name_workers)
def test_a_batch_of_samples_draws_the_numbers_of_its_samples(workers):
    def at_once(dataset):
        batches = values(load(dataset, batch_size=3, seed=7, **workers))
        return [sample for batch in batches for sample in batch]

    assert at_once(AtOnce()) == numbers()
    # A dataset composed of it asks for its indices, not for those of the loader.
    assert at_once(Subset(AtOnce(), [4, 2])) == [numbers()[4], numbers()[2]]


def test_loaders_in_one_thread_do_not_disturb_each_other():
    def loader(seed):
        return load(Made(draw), batch_size=2, seed=seed)

    alone = values(loader(1)), values(loader(2))
    side_by_side = zip(loader(1), loader(2), strict=True)
    assert [(one.tolist(), two.tolist()) for one, two in side_by_side] == list(zip(*alone, strict=True))
    interrupted = []
    for batch in loader(1):  # as by an evaluation in the middle of training
        interrupted.append(batch.tolist())
        assert values(loader(2)) == alone[1]
    assert interrupted == alone[0]


def test_a_loader_within_a_data_set():
    inner = load(Made(draw), batch_size=2, seed=3)

    def nested(index):
        before = sample_rng().random()
        batches = values(inner)
        inner.set_epoch(0)
        return np.array([before, sample_rng().random(), batches[1][1][0]])

    def plain(index):
        return np.array([sample_rng().random(), sample_rng().random(), wanted])

    wanted = values(load(Made(draw), batch_size=2, seed=3))[1][1][0]
    assert numbers(nested) == numbers(plain)


def test_items_draw_by_their_worker():
    def items(epochs=1, **options):
        drawing = Items(lambda: (sample_rng().random() for _ in range(4)))
        loader = load(drawing, batch_size=2, seed=5, **options)
        return [[one for batch in values(loader) for one in batch] for _ in range(epochs)]

    alone = items(2)
    assert items(2, **ONE_THREAD) == alone
    assert len({one for epoch in alone for one in epoch}) == 8
    two = items(num_workers=2, worker_type="thread")
    assert two == items(**PROCESSES)
    assert len(set(two[0])) == 8


def test_seeds_for_what_takes_a_small_one():
    seeds = {mixed_seed(*parts) for parts in itertools.product(range(10), repeat=3)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**32 for seed in seeds)
