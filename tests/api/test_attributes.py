"""A loader's attributes, its description, and copies of it."""

import copy
import pickle
import weakref
from operator import attrgetter

import numpy as np
import pytest

from gpuloader import (
    BatchSampler,
    CPUPlace,
    DataLoader,
    DistributedBatchSampler,
    RandomSampler,
    SequenceSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from tests.loading import load, resume
from tests.sample_sets import Counting, Made, values

NUMBERS = list(range(10))


def start(worker):
    """Do nothing when a worker starts."""


def double(samples):
    return np.array(samples) * 2


class TestAttributes:
    def test_what_was_passed(self):
        passed = {
            "batch_size": 4, "drop_last": True, "num_workers": 2, "collate_fn": double, "timeout": 5,
            "worker_init_fn": start, "persistent_workers": True, "prefetch_factor": 3, "in_order": False,
        }  # fmt: skip
        plain = {
            "dataset": NUMBERS, "batch_size": 1, "drop_last": False, "num_workers": 0, "timeout": 0,
            "in_order": True, "persistent_workers": False, "pin_memory": False, "pin_memory_device": "",
            "collate_fn": None, "worker_init_fn": None, "generator": None, "prefetch_factor": None,
            "multiprocessing_context": None,
        }  # fmt: skip
        for options, shown in ((passed, passed), ({}, plain)):
            loader = load(NUMBERS, **options)
            assert {name: getattr(loader, name) for name in shown} == shown
        loader.name = "mine"
        assert loader.name == "mine"

    def test_the_number_of_workers_is_a_number(self):
        sought = load(Made(lambda index: index), num_workers="auto", worker_type="thread")
        assert (sought.num_workers, sought.prefetch_factor) == (1, 2)
        assert load(TensorDataset(np.zeros(3)), num_workers=3).num_workers == 3  # which needs none

    def test_the_samplers_that_the_loader_made(self):
        loader = load(NUMBERS, batch_size=4, drop_last=True)
        assert type(loader.sampler) is SequenceSampler
        assert isinstance(loader.batch_sampler, BatchSampler)
        assert list(loader.batch_sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert loader.batch_sampler is loader.batch_sampler
        assert loader.batch_sampler.sampler is loader.sampler
        assert type(load(NUMBERS, shuffle=True).sampler) is RandomSampler

    def test_the_samplers_that_were_passed(self):
        sampler = WeightedRandomSampler([1] * 10, 5)
        loader = load(NUMBERS, batch_size=2, sampler=sampler)
        assert loader.sampler is sampler
        assert not hasattr(loader.sampler, "set_epoch")  # the epoch is that of the loader's own alone
        assert len(loader.batch_sampler) == len(loader) == 3
        batches = BatchSampler(sampler=sampler, batch_size=2, drop_last=True)
        loader = load(NUMBERS, batch_sampler=batches)
        assert loader.batch_sampler is batches
        assert loader.sampler is sampler
        assert (loader.batch_size, loader.drop_last) == (None, False)
        assert load(NUMBERS, batch_sampler=[[1, 2]]).sampler is None
        for shard in (None, (0, 2)):
            indices = [3, 1]
            assert load(NUMBERS, sampler=indices, shard=shard).sampler is indices

    def test_there_are_none_without_batches_or_indices(self):
        loader = load(NUMBERS, batch_size=None)
        assert (type(loader.sampler), loader.batch_sampler) == (SequenceSampler, None)
        loader = load(Counting(3), batch_size=2)
        assert (loader.sampler, loader.batch_sampler, loader.batch_size) == (None, None, 2)

    @pytest.mark.parametrize(
        "name",
        [
            "dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "num_workers", "collate_fn",
            "timeout", "generator", "prefetch_factor", "persistent_workers", "in_order",
            "multiprocessing_context", "pin_memory", "pin_memory_device",
        ],
    )  # fmt: skip
    def test_they_cannot_be_set(self, name):
        loader = load(NUMBERS)
        before = getattr(loader, name)
        with pytest.raises(ValueError, match=f"{name} cannot be changed once .* make another DataLoader"):
            setattr(loader, name, before)
        assert getattr(loader, name) is before


class TestTheSamplersEpoch:
    """Trainers set the epoch of a loader's sampler, because PyTorch's loaders have none themselves."""

    @pytest.mark.parametrize("options", [{}, {"shard": (0, 2)}], ids=str)
    @pytest.mark.parametrize("find", [attrgetter("sampler"), attrgetter("batch_sampler.sampler")])
    def test_is_that_of_the_loader(self, find, options):
        loader = load(range(8), batch_size=2, shuffle=True, seed=1, **options)
        epochs = [values(loader) for _ in range(3)]
        find(loader).set_epoch(1)
        assert loader.state_dict()["epoch"] == 1
        assert values(loader) == epochs[1]

    @pytest.mark.parametrize("options", [{}, {"shard": (1, 2), "uneven": "repeat"}], ids=str)
    def test_determines_what_the_batch_sampler_yields(self, options):
        """Accelerate and Hugging Face's Trainer skip batches with a loader of PyTorch's over it."""
        loader = load(range(9), batch_size=2, shuffle=True, seed=1, **options)
        for _ in range(2):
            upcoming = list(loader.batch_sampler)
            assert len(upcoming) == len(loader.batch_sampler)
            assert upcoming == values(loader)
        loader.batch_sampler.set_epoch(1)
        assert list(loader.batch_sampler) == upcoming
        begun = iter(loader)
        next(begun)
        loader.load_state_dict(loader.state_dict())
        assert list(loader.batch_sampler) == upcoming  # programs skip batches from its start

    def test_after_a_whole_epoch_begins_the_next(self):
        """A checkpoint that Lightning writes after an epoch's last step holds a state that is not ended."""
        _, loader = resume(lambda: load(range(4), batch_size=2), 2)
        state = loader.state_dict()
        assert (state["epoch"], state["batches"]) == (0, 2)
        loader.sampler.set_epoch(1)
        assert len(list(loader)) == 2

    def test_is_not_that_of_a_copy_and_keeps_no_loader_alive(self):
        loader = load(range(8))
        sampler, gone = loader.sampler, weakref.ref(loader)
        for copied in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
            copied.set_epoch(1)
            assert loader.state_dict()["epoch"] == 0
        del loader
        assert gone() is None
        sampler.set_epoch(1)


class TestWorkerInit:
    """Trainers set worker_init_fn of a loader they are given."""

    @pytest.mark.parametrize("worker_type", ["thread", "process"])
    def test_it_is_called_in_workers_that_start_later(self, worker_type, tmp_path):
        def note(worker):
            (tmp_path / f"worker {worker}").touch()

        loader = load(Made(lambda index: index), num_workers=1, worker_type=worker_type, start_method="fork")
        list(loader)
        loader.worker_init_fn = note
        assert loader.worker_init_fn is note
        assert not list(tmp_path.iterdir())
        list(loader)
        assert [path.name for path in tmp_path.iterdir()] == ["worker 0"]
        with pytest.raises(TypeError, match="worker_init_fn must be callable, got int"):
            loader.worker_init_fn = 3


class Unmeasured(Made):
    def __len__(self):
        raise OSError("no disk")


TWO = {"places": [CPUPlace()] * 2, "num_workers": 1, "worker_type": "thread"}
DESCRIBED = [
    (NUMBERS, {}, "list of 10 samples; batches of 1; in the dataset's order; no workers; on cpu"),
    (range(10**6), {"batch_size": 8, "shuffle": True, "num_workers": 2},
     "range of 1,000,000 samples; batches of 8; shuffled; 2 worker processes; on cpu"),
    (NUMBERS, {"shuffle": True, "seed": 3, **TWO},
     "list of 10 samples; batches of 1; shuffled with seed 3; 1 worker thread; on cpu, cpu"),
    (Counting(3), {"batch_size": None},
     "Counting; single samples; in the dataset's order; no workers; on cpu"),
    (NUMBERS, {"sampler": RandomSampler(NUMBERS), "num_workers": "auto"},
     "list of 10 samples; batches of 1; in the order of RandomSampler; 1 worker process, a number found "
     "automatically; on cpu"),
    (NUMBERS, {"batch_sampler": DistributedBatchSampler(NUMBERS, 2, 1, 0)},
     "list of 10 samples; batches of DistributedBatchSampler; in its order; no workers; on cpu"),
    (NUMBERS, {"batch_size": 2, "shard": (1, 4)},
     "list of 10 samples; batches of 2; in the dataset's order; rank 1 of 4; no workers; on cpu"),
    (Unmeasured(None), {"sampler": [1]},
     "Unmeasured; batches of 1; in the order of list; no workers; on cpu"),
    ({"x": [1, 2, 3], "name": ["a", "b", "c"]}, {"batch_size": 2},  # described by its rows
     "dict of 3 samples; batches of 2; in the dataset's order; no workers; on cpu"),
]  # fmt: skip


@pytest.mark.parametrize(("dataset", "options", "text"), DESCRIBED)
def test_its_description(dataset, options, text):
    assert repr(load(dataset, **options)) == f"<DataLoader: {text}>"


class Squares:
    """A dataset that pickles."""

    def __getitem__(self, index):
        return index**2

    def __len__(self):
        return 10


class OwnLoader(DataLoader):
    """A loader with parameters and attributes of its own."""

    def __init__(self, name):
        self.root = name.upper()
        super().__init__(Squares(), places="cpu", batch_size=4, shuffle=True, seed=1)
        self.name = name


COPIES = {
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
class TestCopies:
    def test_a_copy_has_the_same_options_and_begins_anew(self, make):
        loader = load(
            Squares(), batch_size=4, shuffle=True, drop_last=True, seed=5, num_workers=1,
            worker_type="thread", collate_fn=double, worker_init_fn=start,
        )  # fmt: skip
        first = values(loader)
        unfinished = iter(loader)
        next(unfinished)
        again = make(loader)
        assert type(again) is DataLoader
        assert (again.dataset is loader.dataset) is (make is copy.copy)
        for name in ("batch_size", "drop_last", "num_workers", "collate_fn", "worker_init_fn", "in_order"):
            assert getattr(again, name) == getattr(loader, name), name
        assert repr(again) == repr(loader)
        assert values(again) == first
        loader.set_epoch(1)
        assert values(again) == values(loader)

    def test_other_loaders(self, make):
        loader = DataLoader(NUMBERS, 4, True, generator=np.random.default_rng(5))
        again = make(loader)
        assert values(again) == values(loader)  # with the seed that was drawn from the generator
        assert isinstance(again.generator, np.random.Generator)
        loader = OwnLoader("mine")
        again = make(loader)
        assert type(again) is OwnLoader
        assert (again.name, again.root) == ("mine", "MINE")  # a subclass keeps what it added
        assert values(again) == values(loader)
        assert values(make(DataLoader(Counting(3), 2, places="cpu"))) == [[0, 1], [2]]
