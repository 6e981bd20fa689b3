"""Iterators that can be read only once: a second epoch over them is an error, not an empty epoch."""

import itertools

import numpy as np
import pytest

import gpuloader
from gpuloader import (
    BatchSampler,
    ChainDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    ReaderError,
    Sampler,
)
from gpuloader.order.order import InOrder
from tests.api.streams import Items
from tests.loading import resume
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, name_workers, values


def numbers(count=6):
    return (number for number in range(count))


def load(dataset, **options):
    return DataLoader(dataset, **{"places": "cpu", "batch_size": 4, **options})


def read(loader):
    return [one for batch in loader for one in batch.tolist()]


def kept(items):
    """Return a dataset that returns the same iterator in every epoch."""
    return Items(lambda: items)


class Rewound(IterableDataset):
    """Is its own iterator, and starts over."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        self.left = iter(range(self.count))
        return self

    def __next__(self):
        return next(self.left)


class Counted:
    """Is its own iterator, and does not start over."""

    left = 3

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


SAME = (
    r"epoch 1 has no samples, because Items.__iter__ returns the same \w+ every time, and an earlier "
    "epoch has read it: make a new iterator in every call, for example by writing __iter__ with yield"
)


class Inner(Sampler):
    """Yields what another iterable yields."""

    def __init__(self, items):
        super().__init__()
        self.items = items

    def __iter__(self):
        return iter(self.items)


SINGLE = {"batch_size": None}


class TestDatasets:
    @pytest.mark.parametrize(
        "options", [INLINE, *({"use_buffer_reader": one} for one in (False, "thread")), ONE_THREAD, SINGLE]
    )
    @pytest.mark.parametrize("most", [1, 9])
    def test_a_generator(self, options, most):
        """Whether an epoch has read it to its end or was left."""
        loader = load(numbers(), **options)
        assert list(itertools.islice(loader, most))
        message = (
            " has no samples, because the dataset is a generator, which can be read only once, and an "
            "earlier epoch has read it: pass a generator function to DataLoader.from_generator, or an object "
            "whose __iter__ makes a new iterator"
        )
        for epoch in ("epoch 1", "epoch 2"):
            with pytest.raises(ReaderError, match=epoch + message):
                list(loader)

    @pytest.mark.parametrize(
        ("what", "options"),
        [
            ("dataset", lambda items: {"dataset": items}),
            ("sampler", lambda items: {"sampler": items}),
            ("batch_sampler", lambda items: {"batch_sampler": items, "batch_size": 1}),
        ],
    )
    def test_a_generator_that_was_read_before(self, what, options):
        items = numbers()
        list(items)
        message = f"the {what} is a generator that has been read already: pass a"
        with pytest.raises(ReaderError, match=message):
            load(**{"dataset": range(6), **options(items)})

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: load(map(int, range(6))), "the dataset is a map, which can be read only once"),
            (lambda: load(iter([1, 2, 3])), "the dataset is a list_iterator, which can be read only once"),
            (lambda: load(Counted()), "the dataset is a Counted, which can be read only once"),
            (lambda: load(kept(numbers())), SAME),
            (lambda: load(kept(iter([1, 2])), **ONE_THREAD), SAME),
            (lambda: load(kept(numbers()), shard=(0, 2), uneven="drop"), SAME),
            (lambda: load(kept(iter([1])), num_workers=1, persistent_workers=True), SAME),
            (
                lambda: load(ChainDataset([kept(numbers(3)), Rewound(2)])),
                "dataset 0 .Items. returns a generator that has been read already",
            ),
            (
                lambda: load(ChainDataset([kept(iter([1])), kept(iter([2]))])),
                "Items.__iter__ returns the same",
            ),
        ],
    )
    def test_what_ends_for_good(self, make, message):
        loader = make()
        assert read(loader)
        with pytest.raises(ReaderError, match=message):
            list(loader)
        loader.close()

    @pytest.mark.parametrize("options", [INLINE, {"use_buffer_reader": "thread"}, ONE_THREAD])
    def test_a_pass_that_ends_early_closes_what_the_dataset_holds(self, options):
        items = numbers(100)
        epoch = iter(load(kept(items), **options))
        next(epoch)
        epoch.close()
        assert list(items) == []


class TestWhatMayBeReadAgain:
    @pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
    def test_an_iterator_that_starts_over(self, workers):
        loader = load(Rewound(3), **workers)
        assert read(loader) == read(loader) != []
        before, again = resume(lambda: load(Rewound(6), batch_size=2), 1)
        assert read(before) + read(again) == list(range(6))

    @pytest.mark.parametrize("grouped", [False, True])
    def test_a_sampler_that_is_its_own_iterator(self, grouped):
        class Own(Sampler, Rewound):
            def __init__(self, count):
                Rewound.__init__(self, count)

            __iter__ = Rewound.__iter__

        options = {"sampler": Own(6)}
        if grouped:
            options = {"batch_size": 1, "batch_sampler": BatchSampler(sampler=Own(6), batch_size=4)}
        loader = load(range(6), **options)
        for _ in range(2):
            assert values(itertools.islice(loader, 9)) == [[0, 1, 2, 3], [4, 5]]

    def test_ranks_share_one_that_starts_over(self):
        loader = load(Items(lambda: Rewound(8)), batch_size=2, shard=(1, 2), uneven="drop")
        assert values(itertools.islice(loader, 9)) == [[1, 3], [5, 7]]

    @pytest.mark.parametrize("drop_last", [True, False])
    def test_a_reader_of_one_that_starts_over(self, drop_last):
        class Samples(Rewound):
            def __next__(self):
                return (super().__next__(),)

        items = Samples(4)
        loader = DataLoader.from_generator(capacity=2, return_list=True)
        loader.set_sample_generator(lambda: items, batch_size=2, drop_last=drop_last, places="cpu")
        grouped = gpuloader.batch(lambda: items, 2)
        for _ in range(2):
            assert [batch.tolist() for (batch,) in itertools.islice(loader, 9)] == [[0, 1], [2, 3]]
            assert list(itertools.islice(grouped(), 9)) == [[(0,), (1,)], [(2,), (3,)]]

    def test_one_that_goes_on(self):
        """As with a queue: each epoch reads what has arrived."""
        queue = [1, 2, None, 3, None]
        loader = load(iter(lambda: queue.pop(0), "never"), batch_size=1)
        steps = itertools.islice(loader, 2)
        assert values(steps) == [[1], [2]]

    def test_empty_epochs_of_what_starts_over(self):
        reader = DataLoader.from_generator(capacity=2).set_batch_generator(lambda: iter([]), places="cpu")
        for loader in (load(Items(tuple)), load(set()), load(Rewound(3), drop_last=True), reader):
            assert [list(loader) for _ in range(3)] == [[], [], []]
        assert list(load(iter([]))) == []  # a first epoch may be empty

    def test_an_epoch_that_resumes_at_its_end(self):
        _, again = resume(lambda: load(Rewound(4)), 1)
        again.load_state_dict({**again.state_dict(), "epoch": 3})
        assert list(again) == []


class TestSamplers:
    @pytest.mark.parametrize(
        ("options", "what"),
        [
            ({"sampler": iter([3, 1, 2])}, "the sampler is a list_iterator, which can be read only once"),
            ({"sampler": numbers()}, "the sampler is a generator, which can be read only once"),
            (
                {"batch_sampler": iter([[3, 1], [2]]), "batch_size": 1},
                "the batch_sampler is a list_iterator, wh",
            ),
            (
                {"batch_sampler": BatchSampler(sampler=numbers(), batch_size=2), "batch_size": 1},
                "the sampler of the batch_sampler is a generator, which can be read only once",
            ),
            ({"sampler": Inner(numbers())}, "Inner.__iter__ returns the same generator every time"),
            (
                {"sampler": RandomSampler(range(6), generator=iter([1, 2, 3]))},
                "the generator of the sampler is a list_iterator, which can be read only once",
            ),
        ],
    )
    def test_a_second_epoch(self, options, what):
        loader = load(range(6), **options)
        assert read(loader)
        message = (
            f"epoch 1 has no samples, because {what}.*, and an earlier epoch has read it: (pass a list|make)"
        )
        with pytest.raises(ReaderError, match=message):
            list(loader)

    def test_one_that_only_computes_its_order_and_has_nothing_for_a_rank(self):
        class First(Sampler):
            def order(self, seed, epoch):
                return InOrder(1)

        for options in (
            {"sampler": [3], "shard": (1, 3)},
            {"sampler": First(), "shard": (1, 3)},
            {"sampler": []},
        ):
            loader = load(range(6), uneven="drop", **options)
            assert [list(loader) for _ in range(3)] == [[], [], []]


class TestReaders:
    @pytest.mark.parametrize(
        ("make", "grouped", "what"),
        [
            (lambda: ([np.zeros(2)] for _ in range(3)), False, "a generator that has been read already"),
            (lambda: iter([[np.zeros(2)]]), False, "the same list_iterator every time"),
            (lambda: ((number,) for number in range(4)), True, "a generator that has been read already"),
        ],
    )
    def test_one_that_returns_the_same_iterator(self, make, grouped, what):
        items = make()
        loader = DataLoader.from_generator(capacity=2, return_list=True)
        if grouped:
            loader.set_sample_list_generator(gpuloader.batch(lambda: items, 2), places="cpu")
        else:
            loader.set_batch_generator(lambda: items, places="cpu")
        assert len(list(loader)) > 0
        with pytest.raises(ReaderError, match=f"reader returns {what}"):
            list(loader)

    @pytest.mark.parametrize("setter", ["set_sample_list_generator", "set_batch_generator"])
    def test_an_iterator_in_place_of_a_reader(self, setter):
        with pytest.raises(ReaderError, match="got list_iterator; pass the generator function itself"):
            getattr(DataLoader.from_generator(capacity=2), setter)(iter([1]), places="cpu")
