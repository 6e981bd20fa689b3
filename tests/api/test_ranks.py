"""Loaders of several ranks: the same number of batches, equal sizes, and every sample once."""

import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuloader
from gpuloader import DataLoader, DistributedBatchSampler, RandomSampler, Sampler, cpu_places
from gpuloader.devices.places import default_place
from gpuloader.order.worker_info import find_local_rank
from tests.loading import load
from tests.rank_loaders import Stream, epoch_of, loaders, make, numbers, values_of
from tests.sample_sets import INLINE, PROCESSES, THREADS, name_workers

by_workers = pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)

FEW = st.integers(1, 5)


class TestBatchesOfAllRanks:
    @given(
        count=st.integers(0, 120),
        size=st.integers(1, 9),
        world_size=st.integers(1, 16),
        uneven=st.sampled_from(["pad", "repeat", "drop"]),
        drop_last=st.booleans(),
        kind=st.sampled_from([range, Stream]),
        threads=st.sampled_from([0, 0, 0, 2]),
    )
    @settings(max_examples=120, deadline=None)
    def test_are_equally_many_of_equal_sizes(self, count, size, world_size, uneven, drop_last, kind, threads):
        options = {"uneven": uneven, "drop_last": drop_last, "batch_size": size}
        if threads:
            options |= {"num_workers": threads, "worker_type": "thread"}
        ranks = loaders(count, world_size, kind=kind, **options)
        found = [list(loader) for loader in ranks]
        if kind is range:
            assert [len(loader) for loader in ranks] == [len(batches) for batches in found]
        for step in zip(*found, strict=True):
            assert len({isinstance(batch, list) for batch in step}) == 1
            assert len({len(values_of(batch)) for batch in step}) == 1
        samples = [one for batches in found for batch in batches for one in numbers(batch)]
        step = size * world_size
        if uneven == "repeat" and kind is range and -(-(count % step) // world_size) == size:
            drop_last = False  # the last step is filled up before it could be dropped
        lost = count % step if drop_last else count % step % world_size if uneven == "drop" else 0
        more = -count % world_size if uneven == "repeat" and not drop_last else 0
        assert len(set(samples)) == count - lost
        assert len(samples) == count - lost + more

    @given(
        count=st.integers(1, 60),
        size=st.integers(1, 5),
        world_size=st.integers(1, 5),
        epoch=st.integers(0, 3),
    )
    @settings(max_examples=60, deadline=None)
    def test_are_the_order_of_seed_and_epoch_cut_into_parts(self, count, size, world_size, epoch):
        """Each step equals that of one process with several places, masks included."""
        options = {"split": "shards", "uneven": "pad", "shuffle": True, "seed": 5}
        places = cpu_places(world_size) if world_size > 1 else "cpu"
        whole = DataLoader(range(count), places=places, batch_size=size * world_size, **options)
        found = loaders(count, world_size, batch_size=size)
        for loader in (whole, *found):
            loader.set_epoch(epoch)
        for step, *batches in zip(whole, *found, strict=True):
            if world_size == 1:
                assert batches[0].tolist() == step.tolist()
                continue
            for batch, (wanted, counted) in zip(batches, step, strict=True):
                assert isinstance(batch, list) == (count % world_size > 0)
                assert values_of(batch) == wanted.tolist()
                assert numbers(batch) == wanted[counted].tolist()

    @by_workers
    @pytest.mark.parametrize("kind", [range, Stream])
    def test_do_not_depend_on_workers(self, workers, kind):
        ranks = loaders(25, 3, kind=kind), loaders(25, 3, kind=kind, **workers)
        for wanted, loader in zip(*ranks, strict=True):
            for _ in range(2):
                assert epoch_of(loader) == epoch_of(wanted)

    def test_ranks_are_found_where_torchrun_says(self, monkeypatch, become):
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS"):
            monkeypatch.delenv(name, raising=False)
        loader = load(range(8), batch_size=2, shard="auto", uneven="drop")
        assert epoch_of(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]
        become(1, 2)
        assert epoch_of(loader) == [[2, 3], [6, 7]]


class Wrapped:
    """A sampler of a user's, with the same indices on every rank; it may wrap another one."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def set_epoch(self, epoch):
        pass

    def __iter__(self):
        if hasattr(self, "sampler") or hasattr(self, "batch_sampler"):
            return iter([[0, 1], [2, 3]])
        return iter(range(4))


NAMES_OF_RANKS = [
    ("num_replicas", "rank"),
    ("nranks", "local_rank"),
    ("num_processes", "process_index"),
    ("world_size", "rank"),
    ("_world_size", "_rank"),
]


class TestOrders:
    @pytest.mark.parametrize(
        "options",
        [
            {"sampler": (number for number in range(4))},
            {"sampler": {3, 1}},
            {"sampler": RandomSampler(range(4), generator=np.random.default_rng(0))},
            {"batch_sampler": iter([[0, 1], [2]]), "batch_size": 1},
            {"sampler": type("Own", (Sampler,), {"__iter__": lambda self: iter([1])})()},
        ],
    )
    def test_that_ranks_could_not_agree_on_are_refused(self, options):
        with pytest.raises(ValueError, match=r"shard needs an order .* a list of indices as sampler"):
            make(range(4), 0, 2, **options)

    @pytest.mark.parametrize("names", NAMES_OF_RANKS)
    @pytest.mark.parametrize(
        "wrap",
        [
            lambda own: {"sampler": own},
            lambda own: {"batch_sampler": Wrapped(sampler=own), "batch_size": 1},
            lambda own: {"batch_sampler": Wrapped(batch_sampler=Wrapped(sampler=own)), "batch_size": 1},
        ],
    )
    def test_that_are_divided_already_are_refused(self, names, wrap):
        """Samplers of other libraries have attributes for the rank and the number of ranks."""
        options = wrap(Wrapped(**dict.fromkeys(names, 1)))
        with pytest.raises(ValueError, match="Wrapped already divides the dataset among ranks"):
            make(range(4), 0, 2, **options)
        options = wrap(Wrapped(**{names[1]: 1}))  # a rank alone may mean anything
        assert len(epoch_of(make(range(4), 0, 2, **options))) == 1
        sampler = DistributedBatchSampler(range(4), 2, num_replicas=2, rank=0)
        with pytest.raises(ValueError, match="DistributedBatchSampler already divides the dataset"):
            make(range(4), 0, 2, batch_sampler=sampler, batch_size=1)

    @pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": RandomSampler(range(4))}])
    def test_that_are_drawn_need_a_seed(self, options):
        with pytest.raises(ValueError, match="pass the same seed to all of them"):
            make(range(4), 0, 2, seed=None, **options)

    @pytest.mark.parametrize("dataset", [range(4), Stream(4)])
    def test_that_are_not_drawn_need_none(self, dataset):
        """All ranks then use seed 0 for anything random."""
        states = [make(dataset, rank, 2, seed=None).state_dict() for rank in range(2)]
        assert states[0] == states[1] == {"version": 2, "epoch": 0, "seed": 0, "position": 0}


class TestRefusals:
    @pytest.mark.parametrize(
        ("dataset", "options", "message"),
        [
            (range(9), {"uneven": "keep"}, "uneven must be one of 'pad', .*'error' or None, got 'keep'"),
            (range(9), {"uneven": "error"}, "9 samples fill 2 steps of 2 ranks and leave 1"),
            (Stream(8), {"uneven": "error"}, "the length of an iterable dataset is not known in advance"),
            (iter(range(8)), {}, "a range_iterator can be read only once: pass an IterableDataset"),
            (range(9), {"batch_size": None}, "uneven='pad' adds a mask to each batch"),
            (range(9), {"in_order": False}, "shard needs in_order=True"),
        ],
    )
    def test_of_options(self, dataset, options, message):
        with pytest.raises(ValueError, match=message):
            make(dataset, 0, 2, **options)

    def test_of_a_rest_that_does_not_divide_come_when_it_is_loaded(self):
        loader = make(range(12), 0, 2, uneven="error")
        next(iter(loader))
        with pytest.raises(ValueError, match="8 samples fill 1 steps of 3 ranks and leave 2"):
            make(range(12), 0, 3, uneven="error").load_state_dict(loader.state_dict())
        assert epoch_of(make(range(10), 1, 2, uneven="error")) == [[2, 3], [6, 7], [9]]
        assert len(make(range(9), 1, 2, uneven="error", drop_last=True)) == 2


class TestDefaultPlaces:
    @pytest.mark.parametrize(
        ("visible", "local", "index"), [(8, None, 0), (8, "5", 5), (1, "5", 0), (8, "0", 0), (2, "1", 1)]
    )
    def test_follow_the_local_rank(self, visible, local, index, monkeypatch):
        self.show(monkeypatch, visible, local)
        assert default_place(find_local_rank()).index == index
        assert default_place().index == 0  # without shard
        self.show(monkeypatch, 4, "5")
        with pytest.raises(gpuloader.PlaceError, match="local rank 5 has no GPU: this process sees 4"):
            make(range(4), 0, 2, places=None)

    def show(self, monkeypatch, visible, local):
        cuda = types.ModuleType("gpuloader.devices.cuda")
        cuda.require_cuda, cuda.warn_if_broken = lambda index: visible, lambda: None
        monkeypatch.setitem(sys.modules, "gpuloader.devices.cuda", cuda)
        for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "PADDLE_RANK_IN_NODE"):
            monkeypatch.delenv(name, raising=False)
        if local is None:
            monkeypatch.delenv("LOCAL_RANK", raising=False)
        else:
            monkeypatch.setenv("LOCAL_RANK", local)
