"""PyTorch's ways to write a loader's options: by position, as a generator, as a context."""

import multiprocessing

import numpy as np
import pytest

from gpuloader import DataLoader, Dataset
from tests.api.streams import Items
from tests.loading import load, resume
from tests.sample_sets import Counting, values

NUMBERS = list(range(10))


def read(*arguments, **options):
    return values(DataLoader(NUMBERS, *arguments, **options))


def test_options_by_position():
    loader = DataLoader(NUMBERS, 4, places="cpu")
    assert loader.batch_size == 4
    assert values(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert DataLoader(NUMBERS, np.int64(4)).batch_size == 4
    shuffled = read(4, True, seed=1)
    assert shuffled == read(places="cpu", batch_size=4, shuffle=True, seed=1) != read(4)
    assert read(4, drop_last=True, shuffle=True, seed=1) == shuffled[:2]
    assert read(4, False) == read(4, None) == read(4) == read(places="cpu", batch_size=4, shuffle=None)
    loader = load(NUMBERS, num_workers=1, worker_type="thread", prefetch_factor=None)
    assert loader.prefetch_factor == 2
    assert len(list(load(Counting(3), shuffle=None))) == 3
    loader = load(NUMBERS, pin_memory=True, pin_memory_device="cuda:0")
    assert (loader.pin_memory, loader.pin_memory_device) == (True, "cuda:0")
    assert len(list(loader)) == 10


BY_NAME = "pass all arguments after the dataset by name, or import .*gpuloader.torch"
LATER = "the second argument is 4, which is PyTorch's batch_size, but later arguments do not follow"
PLACES = "places must be places, got True; write shuffle=True, or .*gpuloader.torch"
RNG, SPAWN = np.random.default_rng(5), {"multiprocessing_context": "spawn", "start_method": "fork"}
AGAINST = "start_method='fork' contradicts the multiprocessing_context for 'spawn'"


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((None, True), {}, TypeError, PLACES),
        (([], False), {}, TypeError, "got False; write shuffle=False"),
        ((4, True, None), {}, TypeError, BY_NAME),
        ((4, True, range(5)), {}, TypeError, LATER),
        ((4, False, True, None, 2), {}, TypeError, LATER),
        ((4,), {"batch_size": 2}, TypeError, BY_NAME),
        ((4, True), {"shuffle": True}, TypeError, "shuffle was passed twice"),
        ((), {"generator": 5}, TypeError, "got 5; write seed="),
        ((), {"generator": [5]}, TypeError, r"generator must be a torch\.Generator, .*, got list"),
        ((), {"generator": RNG, "seed": 5}, ValueError, "pass one of them"),
        ((), {"multiprocessing_context": "exec"}, ValueError, "ing_context must be one of 'fork'"),
        ((), {"multiprocessing_context": 3}, TypeError, "a context of multiprocessing, got int"),
        ((), SPAWN, ValueError, AGAINST),
    ],
)
def test_what_is_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        DataLoader(NUMBERS, *arguments, **options)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_context_says_how_processes_start(method):
    for context in (method, multiprocessing.get_context(method)):
        for options in ({}, {"start_method": method}):
            loader = load(NUMBERS, num_workers=1, multiprocessing_context=context, **options)
            assert loader.multiprocessing_context.get_start_method() == method
    assert load(NUMBERS).multiprocessing_context is None
    # Unlike in PyTorch, so that num_workers=0 needs no other change while debugging.
    assert values(load(NUMBERS, batch_size=10, multiprocessing_context=method)) == [NUMBERS]


class TestGenerator:
    @pytest.mark.parametrize("kind", [np.random.default_rng, np.random.RandomState])
    def test_the_seed_is_drawn_from_it_once(self, kind):
        def make(seed):
            return load(NUMBERS, batch_size=4, shuffle=True, generator=kind(seed))

        def epochs(loader, count=3):
            return [values(loader) for _ in range(count)]

        loader = make(5)
        assert isinstance(loader.generator, type(kind(5)))
        assert epochs(loader) == epochs(make(5))
        assert epochs(loader) != epochs(make(6))
        again = load(NUMBERS, batch_size=4, shuffle=True)
        again.load_state_dict(loader.state_dict())
        assert epochs(again, 1) == epochs(loader, 1)

    def test_ranks_may_share_one(self):
        options = {"shuffle": True, "batch_size": 5, "uneven": "drop"}
        ranks = [
            load(NUMBERS, shard=(rank, 2), generator=np.random.default_rng(5), **options) for rank in (0, 1)
        ]
        assert sorted(int(number) for loader in ranks for batch in loader for number in batch) == NUMBERS


class Lines(Items):
    def __len__(self):
        return len(self.make())


class TestLengthOfAnIterableDataset:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"drop_last": True},
            {"batch_size": None},
            {"places": ["cpu"] * 2},
            {"places": ["cpu"] * 2, "batch_size": 4, "split": "shards", "uneven": "drop"},
            *[{"shard": (rank, 2), "uneven": uneven} for rank in (0, 1) for uneven in ("pad", "drop")],
        ],
    )
    @pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 10])
    def test_it_is_the_number_of_steps(self, options, count):
        loader = DataLoader(Lines(lambda: range(count)), **{"places": "cpu", "batch_size": 3, **options})
        assert len(loader) == len(list(loader))

    def test_a_resumed_epoch_may_have_more_batches_than_that(self):
        """Two workers that both yield all items have twice as many; the length is the dataset's word."""
        options = {"batch_size": 2, "num_workers": 2, "worker_type": "thread"}
        _, again = resume(lambda: load(Lines(lambda: range(4)), **options), 3)
        assert (len(again), len(list(again))) == (2, 1)

    def test_a_length_that_raises_is_no_length(self):
        """Paddle's does, and `list` asks for it."""

        class Refusing(Lines):
            def __len__(self):
                raise RuntimeError("not here")

        dataset = Refusing(lambda: range(4))
        loader = load(dataset, batch_size=2)
        assert values(list(loader)) == [[0, 1], [2, 3]]
        assert len(list(dataset + dataset)) == 8
        with pytest.raises(TypeError, match=r"Refusing\.__len__ raised RuntimeError: not here") as caught:
            len(loader)
        assert isinstance(caught.value.__cause__, RuntimeError)
        for dataset, message in [
            (Counting(3), "Counting is an IterableDataset: .* unless it defines"),
            (iter([1, 2]), "no length unless it defines __len__, and list_iterator does not"),
        ]:
            with pytest.raises(TypeError, match=message):
                len(load(dataset))


def test_loaders_and_datasets_can_be_annotated_with_their_samples():
    assert DataLoader[int].__origin__ is DataLoader
    assert values(DataLoader[int](NUMBERS, 10, places="cpu")) == [NUMBERS]

    class Numbers(Dataset[int]):
        pass

    class Own(DataLoader[int]):
        pass

    assert issubclass(Numbers, Dataset)
    assert len(Own(NUMBERS, places="cpu")) == 10
