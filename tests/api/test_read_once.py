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
from tests.sample_sets import INLINE, PROCESSES, name_workers, values

ONE_THREAD = {"num_workers": 1, "worker_type": "thread"}


def numbers(count=6):
    return (number for number in range(count))


def load(dataset, **options):
    return DataLoader(dataset, **{"places": "cpu", "batch_size": 4, **options})


def read(loader):
    return [one for batch in loader for one in batch.tolist()]


class Kept(IterableDataset):
    """Returns the same iterator in every epoch."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return self.items


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
    r"epoch 1 has no samples, because Kept.__iter__ returns the same \w+ every time, and an earlier "
    "epoch has read it: make a new iterator in every call, for example by writing __iter__ with yield"
)


class Inner(Sampler):
    """Yields what another iterable yields."""

    def __init__(self, items):
        super().__init__()
        self.items = items

    def __iter__(self):
        return iter(self.items)


class TestDatasets:
    @pytest.mark.parametrize(
        "options",
        [
            INLINE,
            {"use_buffer_reader": False},
            {"use_buffer_reader": "thread"},
            ONE_THREAD,
            {"batch_size": None},
        ],
    )
    def test_a_generator(self, options):
        loader = load(numbers(), **options)
        assert len(list(loader)) > 0
        message = (
            "epoch 1 has no samples, because the dataset is a generator, which can be read only once, and an "
            "earlier epoch has read it: pass a generator function to DataLoader.from_generator, or an object "
            "whose __iter__ makes a new iterator"
        )
        for epoch in ("epoch 1", "epoch 2"):
            with pytest.raises(ReaderError, match=message.replace("epoch 1", epoch)):
                list(loader)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: load(map(int, range(6))), "the dataset is a map, which can be read only once"),
            (lambda: load(iter([1, 2, 3])), "the dataset is a list_iterator, which can be read only once"),
            (lambda: load(Counted()), "the dataset is a Counted, which can be read only once"),
            (lambda: load(Kept(numbers())), SAME),
            (lambda: load(Kept(iter([1, 2])), **ONE_THREAD), SAME),
            (lambda: load(Kept(numbers()), shard=(0, 2), uneven="drop"), SAME),
            (lambda: load(Kept(iter([1])), num_workers=1, persistent_workers=True), SAME),
            (
                lambda: load(ChainDataset([Kept(numbers(3)), Rewound(2)])),
                "dataset 0 .Kept. returns a generator that has been read already",
            ),
            (
                lambda: load(ChainDataset([Kept(iter([1])), Kept(iter([2]))])),
                "Kept.__iter__ returns the same",
            ),
        ],
    )
    def test_what_ends_for_good(self, make, message):
        loader = make()
        assert read(loader)
        with pytest.raises(ReaderError, match=message):
            list(loader)
        loader.close()

    def test_after_a_break(self):
        loader = load(numbers(100))
        next(iter(loader))
        with pytest.raises(ReaderError, match="the dataset is a generator, which can be read only once"):
            list(loader)

    @pytest.mark.parametrize("options", [INLINE, {"use_buffer_reader": "thread"}, ONE_THREAD])
    def test_a_pass_that_ends_early_closes_what_the_dataset_holds(self, options):
        items = numbers(100)
        epoch = iter(load(Kept(items), **options))
        next(epoch)
        epoch.close()
        assert list(items) == []

    def test_a_generator_that_was_read_before(self):
        items = numbers()
        list(items)
        with pytest.raises(ReaderError, match="the dataset is a generator that has been read already"):
            load(items)


class TestWhatMayBeReadAgain:
    @pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
    def test_an_iterator_that_starts_over(self, workers):
        loader = load(Rewound(3), **workers)
        assert read(loader) == read(loader) != []

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

    def test_one_that_starts_over_resumes(self):
        loader = load(Rewound(6), batch_size=2)
        next(iter(loader))
        again = load(Rewound(6), batch_size=2)
        again.load_state_dict(loader.state_dict())
        assert read(again) == [2, 3, 4, 5]

    def test_ranks_share_one_that_starts_over(self):
        class Made(IterableDataset):
            def __iter__(self):
                return iter(Rewound(8))

        loader = load(Made(), batch_size=2, shard=(1, 2), uneven="drop")
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
        class Empty(IterableDataset):
            def __iter__(self):
                return iter(())

        for dataset, drop_last in ((Empty(), False), (set(), False), (Rewound(3), True)):
            loader = load(dataset, drop_last=drop_last)
            assert [list(loader) for _ in range(3)] == [[], [], []]
        assert list(load(iter([]))) == []  # a first epoch may be empty

    def test_an_epoch_that_resumes_at_its_end(self):
        loader = load(Rewound(4))
        epoch = iter(loader)
        next(epoch)
        state = loader.state_dict()
        again = load(Rewound(4))
        again.load_state_dict({**state, "epoch": 3})
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

    @pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
    def test_one_that_was_read_before(self, name):
        indices = numbers()
        list(indices)
        with pytest.raises(
            ReaderError, match=f"the {name} is a generator that has been read already: pass a l"
        ):
            load(range(6), **{"batch_size": 1, name: indices})

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
    def make(self, reader, setter="set_batch_generator"):
        loader = DataLoader.from_generator(capacity=2, return_list=True)
        return getattr(loader, setter)(reader, places="cpu")

    @pytest.mark.parametrize(
        "make", [lambda: ([np.zeros(2)] for _ in range(3)), lambda: iter([[np.zeros(2)]])]
    )
    def test_one_that_returns_the_same_iterator(self, make):
        items = make()
        loader = self.make(lambda: items)
        assert len(list(loader)) > 0
        message = r"reader returns (a generator that has been read already|the same list_iterator every time)"
        with pytest.raises(ReaderError, match=message):
            list(loader)

    def test_inside_a_decorator(self):
        items = ((number,) for number in range(4))
        loader = self.make(gpuloader.batch(lambda: items, 2), "set_sample_list_generator")
        assert len(list(loader)) == 2
        with pytest.raises(ReaderError, match="reader returns a generator that has been read already"):
            list(loader)

    def test_empty_epochs_of_what_starts_over(self):
        loader = self.make(lambda: iter([]))
        assert [list(loader) for _ in range(2)] == [[], []]

    def test_an_iterator_in_place_of_a_reader(self):
        for setter in ("set_sample_list_generator", "set_batch_generator"):
            with pytest.raises(ReaderError, match="got list_iterator; pass the generator function itself"):
                self.make(iter([1]), setter)
