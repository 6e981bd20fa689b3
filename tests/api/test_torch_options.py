"""PyTorch's ways to write a loader's options: by position, as a generator, as a context."""

import multiprocessing

import numpy as np
import pytest

from gpuloader import DataLoader, Dataset, IterableDataset
from tests.loading import load
from tests.sample_sets import Counting, values

NUMBERS = list(range(10))


def read(*arguments, **options):
    return values(DataLoader(NUMBERS, *arguments, **options))


class TestPositions:
    def test_a_number_after_the_dataset_is_the_batch_size(self):
        loader = DataLoader(NUMBERS, 4, places="cpu")
        assert loader.batch_size == 4
        assert values(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert DataLoader(NUMBERS, np.int64(4)).batch_size == 4

    def test_a_bool_after_that_is_shuffle(self):
        assert read(4, True, seed=1) == read(places="cpu", batch_size=4, shuffle=True, seed=1) != read(4)
        assert read(4, False) == read(4, None) == read(4)

    def test_options_by_name_follow(self):
        assert read(4, drop_last=True, shuffle=True, seed=1) == read(4, True, seed=1)[:2]

    @pytest.mark.parametrize(
        ("arguments", "options", "message"),
        [
            ((None, True), {}, "places must be places, got True; write shuffle=True, or .*gpuloader.torch"),
            (([], False), {}, "got False; write shuffle=False"),
            (
                (4, True, None),
                {},
                "pass all arguments after the dataset by name, or import .*gpuloader.torch",
            ),
            ((4, True, range(5)), {}, "the second argument is 4, which is PyTorch's batch_size, but later"),
            ((4, False, True, None, 2), {}, "later arguments do not follow PyTorch's order"),
            ((4,), {"batch_size": 2}, "pass all arguments after the dataset by name"),
            ((4, True), {"shuffle": True}, "shuffle was passed twice"),
        ],
    )
    def test_what_cannot_be_told_apart_is_refused(self, arguments, options, message):
        with pytest.raises(TypeError, match=message):
            DataLoader(NUMBERS, *arguments, **options)


def test_none_stands_for_the_default():
    assert read(places="cpu", batch_size=4, shuffle=None) == read(places="cpu", batch_size=4)
    loader = load(NUMBERS, num_workers=1, worker_type="thread", prefetch_factor=None)
    assert loader.prefetch_factor == 2
    assert len(list(load(Counting(3), shuffle=None))) == 3


def test_page_locking_is_accepted():
    loader = load(NUMBERS, pin_memory=True, pin_memory_device="cuda:0")
    assert (loader.pin_memory, loader.pin_memory_device) == (True, "cuda:0")
    assert len(list(loader)) == 10


class TestGenerator:
    @pytest.mark.parametrize("kind", [np.random.default_rng, np.random.RandomState])
    def test_the_seed_is_drawn_from_it_once(self, kind):
        def epochs(loader, count=3):
            return [values(loader) for _ in range(count)]

        options = {"places": "cpu", "batch_size": 4, "shuffle": True}
        generator = kind(5)
        loader = DataLoader(NUMBERS, generator=generator, **options)
        assert loader.generator is generator
        assert epochs(loader) == epochs(DataLoader(NUMBERS, generator=kind(5), **options))
        assert epochs(loader) != epochs(DataLoader(NUMBERS, generator=kind(6), **options))
        state = loader.state_dict()
        again = DataLoader(NUMBERS, **options)
        again.load_state_dict(state)
        assert epochs(again, 1) == epochs(loader, 1)

    def test_ranks_may_share_one(self):
        ranks = [
            load(
                NUMBERS, shuffle=True, shard=(rank, 2), generator=np.random.default_rng(5), batch_size=5,
                uneven="drop",
            )
            for rank in (0, 1)
        ]  # fmt: skip
        assert sorted(int(number) for loader in ranks for batch in loader for number in batch) == NUMBERS

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"generator": 5}, TypeError, "got 5; write seed="),
            ({"generator": [5]}, TypeError, r"generator must be a torch\.Generator, .*, got list"),
            ({"generator": np.random.default_rng(), "seed": 5}, ValueError, "pass one of them"),
        ],
    )
    def test_what_is_refused(self, options, error, message):
        with pytest.raises(error, match=message):
            load(NUMBERS, **options)


class TestContext:
    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_it_says_how_processes_start(self, method):
        for context in (method, multiprocessing.get_context(method)):
            loader = load(NUMBERS, num_workers=1, multiprocessing_context=context)
            assert loader.multiprocessing_context.get_start_method() == method

    def test_without_workers_it_is_as_good_as_absent(self):
        """Unlike in PyTorch, so that num_workers=0 needs no other change while debugging."""
        loader = load(NUMBERS, batch_size=10, multiprocessing_context="spawn")
        assert values(loader) == [NUMBERS]

    def test_without_one_there_is_none(self):
        assert load(NUMBERS).multiprocessing_context is None

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            (
                {"multiprocessing_context": "exec"},
                ValueError,
                "multiprocessing_context must be one of 'fork'",
            ),
            ({"multiprocessing_context": 3}, TypeError, "a context of multiprocessing, got int"),
            (
                {"multiprocessing_context": "spawn", "start_method": "fork"},
                ValueError,
                "start_method='fork' contradicts the multiprocessing_context for 'spawn'",
            ),
        ],
    )
    def test_what_is_refused(self, options, error, message):
        with pytest.raises(error, match=message):
            load(NUMBERS, num_workers=1, **options)

    def test_both_may_agree(self):
        options = {"multiprocessing_context": "spawn", "start_method": "spawn"}
        loader = load(NUMBERS, num_workers=1, **options)
        assert loader.multiprocessing_context.get_start_method() == "spawn"


class Lines(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))

    def __len__(self):
        return self.count


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
        loader = DataLoader(Lines(count), **{"places": "cpu", "batch_size": 3, **options})
        assert len(loader) == len(list(loader))

    def test_a_resumed_epoch_may_have_more_batches_than_that(self):
        """Two workers that both yield all items have twice as many; the length is the dataset's word."""
        options = {"places": "cpu", "batch_size": 2, "num_workers": 2, "worker_type": "thread"}
        loader = DataLoader(Lines(4), **options)
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        again = DataLoader(Lines(4), **options)
        again.load_state_dict(loader.state_dict())
        assert (len(again), len(list(again))) == (2, 1)

    def test_a_length_that_raises_is_no_length(self):
        """Paddle's does, and `list` asks for it."""

        class Refusing(Lines):
            def __len__(self):
                raise RuntimeError("not here")

        loader = load(Refusing(4), batch_size=2)
        assert values(list(loader)) == [[0, 1], [2, 3]]
        assert len(list(Refusing(2) + Refusing(2))) == 4
        with pytest.raises(TypeError, match=r"Refusing\.__len__ raised RuntimeError: not here") as caught:
            len(loader)
        assert isinstance(caught.value.__cause__, RuntimeError)

    def test_without_one_there_is_no_length(self):
        with pytest.raises(TypeError, match=r"Counting is an IterableDataset: .* unless it defines"):
            len(load(Counting(3)))
        with pytest.raises(
            TypeError, match="no length unless it defines __len__, and list_iterator does not"
        ):
            len(load(iter([1, 2])))


def test_loaders_and_datasets_can_be_annotated_with_their_samples():
    assert DataLoader[int].__origin__ is DataLoader
    assert values(DataLoader[int](NUMBERS, 10, places="cpu")) == [NUMBERS]

    class Numbers(Dataset[int]):
        pass

    class Own(DataLoader[int]):
        pass

    assert issubclass(Numbers, Dataset)
    assert len(Own(NUMBERS, places="cpu")) == 10
