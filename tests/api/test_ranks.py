"""Loaders of several ranks: equally many batches of equal sizes, what they hold, and every sample once."""

import os
import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuloader
from gpuloader import (
    DataLoader,
    DistributedBatchSampler,
    RandomSampler,
    SampleError,
    Sampler,
    TensorDataset,
    cpu_places,
    data,
    get_worker_info,
    sample_rng,
)
from gpuloader.devices.places import default_place
from gpuloader.order.worker_info import find_local_rank
from gpuloader.testing import simulated_places
from gpuloader.transforms import RandomCropFlip
from tests.api.streams import Items
from tests.loading import load
from tests.rank_loaders import Stream, epoch_of, loaders, loaders_of, make, numbers, order_of, values_of
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, Made, name_workers

by_workers = pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)


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

    @pytest.mark.parametrize("workers", [THREADS, PROCESSES], ids=name_workers)
    @pytest.mark.parametrize("kind", [range, Stream])
    def test_do_not_depend_on_workers(self, workers, kind):
        ranks = loaders(25, 3, kind=kind), loaders(25, 3, kind=kind, **workers)
        for wanted, loader in zip(*ranks, strict=True):
            for _ in range(2):
                assert epoch_of(loader) == epoch_of(wanted)


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

    @pytest.mark.parametrize("names", NAMES_OF_RANKS)
    def test_that_are_divided_already_resume_on_as_many_ranks(self, names):
        of_two, of_four = (Wrapped(**{names[0]: np.int64(count), names[1]: 0}) for count in (2, 4))
        loader = DataLoader(range(4), sampler=of_two, places="cpu")
        for _ in loader:
            state = loader.state_dict()
            break
        loader.load_state_dict(state)
        assert len(list(loader)) == 3
        assert loader.state_dict()["epoch"] == 1
        for options in ({"sampler": of_four}, {}, {"shard": (0, 2), "seed": 1}):
            other = DataLoader(range(4), places="cpu", **options)
            with pytest.raises(ValueError, match=r"among 2 ranks, .* samples would be repeated or lost"):
                other.load_state_dict(state)
            other.load_state_dict(loader.state_dict())  # at the start of an epoch, nothing is lost
        loader = DataLoader(range(4), batch_size=2, sampler=of_two, places="cpu")  # it counts in samples
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match="among 2 ranks"):
            other.load_state_dict(loader.state_dict())
        del state["ranks"]  # as earlier releases wrote it
        other.load_state_dict(state)

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


class TestContents:
    def test_of_arrays_of_feeds_and_of_text(self):
        arrays = TensorDataset(np.arange(5.0), np.arange(5))
        *_, batch = make(arrays, 1, 2)
        assert [field.tolist() for field in batch] == [[4.0], [4], [False]]
        feeds = [data("value", [None], "float32"), data("label", [None], "int64")]
        *_, [step] = make(arrays, 0, 2, feed_list=feeds, return_list=False)
        wanted = {"value": [4.0], "label": [4], "mask": [True]}
        assert {name: field.tolist() for name, field in step.items()} == wanted
        named = Made(lambda index: (index, f"{index}.wav"), 5)
        for workers in ({}, PROCESSES):
            *_, (indices, names, mask) = make(named, 1, 2, **workers)
            assert (indices.tolist(), names, mask.tolist()) == ([4], ["4.wav"], [False])

    @pytest.mark.parametrize("kind", [range, Stream])
    def test_of_varying_length(self, kind):
        dataset = Made(np.arange, 5) if kind is range else Items(lambda: map(np.arange, range(5)))
        *_, (rows, mask) = make(dataset, 1, 2, pad={"0": -1})
        assert (rows.tolist(), mask.tolist()) == ([[0, 1, 2, 3]], [False])

    @pytest.mark.parametrize(
        ("count", "uneven", "second"), [(7, "drop", [1, 3, 5]), (5, "repeat", [1, 3, 0])]
    )
    def test_single_samples(self, count, uneven, second):
        found = loaders(count, 2, batch_size=None, uneven=uneven, shuffle=False)
        assert [[int(one) for one in samples] for samples in found] == [[0, 2, 4], second]

    def test_what_a_sample_draws_does_not_depend_on_ranks(self):
        dataset = Made(lambda index: (index, sample_rng().random()), 20)
        drawn = []
        for world_size in (1, 3):
            batches = [batch for loader in loaders_of(dataset, world_size) for batch in loader]
            pairs = [pair for indices, noise, *_ in batches for pair in zip(indices, noise, strict=True)]
            drawn.append({int(index): float(number) for index, number in pairs})
        assert drawn[0] == drawn[1]

    @pytest.mark.parametrize("kind", [range, Stream])
    def test_nor_does_what_a_transform_draws(self, kind):
        """Items of an iterable dataset have no index; their position in the epoch replaces it."""
        image = np.arange(64, dtype="uint8").reshape(8, 8, 1)

        def make(number):
            return np.uint8(number) + image, number

        dataset = Made(make, 22) if kind is range else Items(lambda: map(make, range(22)))
        drawn = []
        for world_size in (1, 3):
            found = {}
            for loader in loaders_of(dataset, world_size, transforms=[RandomCropFlip("0", (4, 4))]):
                for images, labels, *_ in loader:
                    for one, label in zip(images, labels, strict=True):
                        assert found.setdefault(int(label), one.tolist()) == one.tolist()
            assert sorted(found) == list(range(22))
            drawn.append(found)
        assert drawn[0] == drawn[1]
        assert len({str(np.subtract(one, label).tolist()) for label, one in drawn[0].items()}) > 8

    def test_an_error_of_the_data_set_comes_to_all_ranks_of_a_stream_alike(self):
        def fail():
            yield from range(9)
            raise OSError("gone")

        for rank, loader in enumerate(loaders_of(Items(fail), 2)):
            epoch = iter(loader)
            assert [next(epoch)[0].tolist() for _ in range(2)] == [[rank, rank + 2], [rank + 4, rank + 6]]
            with pytest.raises(SampleError, match="gone"):
                next(epoch)

        with pytest.raises(SampleError, match=r"batch 0.* ZeroDivisionError"):
            list(make(Items(lambda: 1 // 0), 0, 2))


def have_masks(loader):
    """Return whether the batches of an epoch have masks: all of them, or none."""
    [found] = {isinstance(batch, list) for batch in loader}
    return found


class TestMasks:
    @pytest.mark.parametrize(
        ("count", "world_size", "options", "wanted"),
        [
            (8, 2, {}, False),
            (10, 2, {}, False),  # 10 samples are 2 steps of 4, and a sample for each rank
            (9, 2, {}, True),
            (9, 1, {}, False),
            (9, 2, {"drop_last": True}, False),
            (9, 2, {"uneven": "drop"}, False),
            (9, 2, {"uneven": "repeat"}, False),
            (1, 3, {}, True),
            *((9, 2, workers, True) for workers in (THREADS, PROCESSES)),
            *((10, 2, workers, False) for workers in (THREADS, PROCESSES)),
        ],
    )
    def test_come_only_where_a_sample_is_repeated(self, count, world_size, options, wanted):
        for rank in range(world_size):
            assert have_masks(make(range(count), rank, world_size, **options)) == wanted

    def test_come_with_iterables_of_several_ranks_whose_length_nobody_knows(self):
        assert not have_masks(make(Stream(9), 0, 1))
        assert have_masks(make(Stream(8), 0, 2))
        assert not have_masks(make(Stream(9), 0, 2, uneven="repeat"))

    def test_are_not_in_the_way_of_one_process(self, become):
        become(0, 1)
        dataset = TensorDataset(np.arange(5.0), np.arange(5))
        loader = load(dataset, batch_size=2, shard="auto")
        assert [labels.tolist() for values, labels in loader] == [[0, 1], [2, 3], [4]]

    def test_come_when_what_is_left_of_a_resumed_epoch_is_uneven(self):
        state = {"version": 2, "epoch": 0, "seed": 5, "position": 3}
        for rank in range(2):
            loader = make(range(12), rank, 2)
            assert not have_masks(loader)
            loader.load_state_dict(state)
            assert have_masks(loader)
            assert not have_masks(loader)

    def test_of_shards_on_several_places_come_when_they_or_the_ranks_need_them(self):
        options = {"batch_size": 4, "places": cpu_places(2), "split": "shards"}
        for count, uneven, wanted in [(16, "pad", True), (16, "drop", False), (15, None, True)]:
            loader = make(range(count), 0, 2, uneven=uneven, **options)
            assert {isinstance(part, list) for step in loader for part in step} == {wanted}
        assert not have_masks(make(range(16), 0, 2, split="shards", uneven="pad"))  # in one place


class TestRepeat:
    @given(
        count=st.integers(1, 80),
        size=st.integers(1, 6),
        world_size=st.integers(1, 8),
        workers=st.sampled_from([{}, {}, {"num_workers": 2, "worker_type": "thread"}]),
    )
    def test_fills_up_the_order_from_its_start(self, count, size, world_size, workers):
        """All ranks' batches, one after the other, are the order; so what repeats comes last."""
        found = loaders(count, world_size, batch_size=size, uneven="repeat", **workers)
        steps = zip(*([batch.tolist() for batch in loader] for loader in found), strict=True)
        order = order_of(count)
        total = -(-count // world_size) * world_size
        assert [one for step in steps for batch in step for one in batch] == (order * world_size)[:total]

    @pytest.mark.parametrize("cache", ["host", "device"])
    @pytest.mark.parametrize("uneven", ["repeat", "pad"])
    @pytest.mark.parametrize("count", [13, 12, 2])
    def test_of_a_cache(self, cache, count, uneven):
        """With masks too, where they pad."""
        images = [np.full(3, number) for number in range(count)]
        for rank in range(3):
            options = {"shuffle": True, "uneven": uneven}
            wanted = [values_of(batch) for batch in make(images, rank, 3, **options)]
            loader = make(images, rank, 3, cache=cache, places=simulated_places(1), **options)
            for _ in range(2):
                loader.set_epoch(0)
                found = [batch[0] if isinstance(batch, list) else batch for batch in loader]
                assert [np.asarray(batch).tolist() for batch in found] == wanted


class Dying(Stream):
    """A stream whose process dies at its tenth item, once."""

    def __init__(self, count, path):
        super().__init__(count)
        self.path = path

    def __iter__(self):
        for number in super().__iter__():
            if number == 9 and not self.path.exists():
                self.path.touch()
                os._exit(3)
            yield number


class TestStreams:
    def test_are_read_again_by_the_successor_of_a_worker_that_died(self, tmp_path):
        samples = []
        for rank in range(2):
            dataset = Dying(30, tmp_path / str(rank))
            loader = make(dataset, rank, 2, on_worker_death="respawn", **PROCESSES)
            samples += [one for batch in epoch_of(loader) for one in batch]
            assert dataset.path.exists()
        assert sorted(samples) == list(range(30))

    @by_workers
    def test_that_divide_themselves_are_asked_for_all_items(self, workers):
        def divide():
            info = get_worker_info()
            one, all_of_them = info.rank * info.num_workers + info.id, info.world_size * info.num_workers
            return range(one, 23, all_of_them)

        found = [epoch_of(make(Items(divide), rank, 2, **workers)) for rank in range(2)]
        assert sorted(one for batches in found for batch in batches for one in batch) == list(range(23))
        assert get_worker_info() is None

    @by_workers
    def test_that_draw_their_items_draw_the_same_everywhere(self, workers):
        def draw():
            for number in sample_rng().permutation(20).tolist():
                yield 1000 * get_worker_info().seed % 999983 * 20 + number

        ranks = [make(Items(draw), rank, 2, **workers) for rank in range(2)]
        samples = [one for loader in ranks for batch in epoch_of(loader) for one in batch]
        assert sorted(one % 20 for one in samples) == list(range(20))
        assert len({one // 20 for one in samples}) == 1

    @pytest.mark.parametrize("workers", [ONE_THREAD, PROCESSES], ids=name_workers)
    def test_without_shard_are_told_their_rank(self, workers, monkeypatch):
        def tell():
            info = get_worker_info()
            yield np.array([info.rank, info.world_size, info.id, info.num_workers])

        monkeypatch.setenv("RANK", "2")
        monkeypatch.setenv("WORLD_SIZE", "5")
        told = [batch[0].tolist() for batch in load(Items(tell), **workers)]
        assert told == [[2, 5, worker, len(told)] for worker in range(len(told))]
        with monkeypatch.context() as broken:
            broken.delenv("RANK")
            with pytest.raises(SampleError, match="sets WORLD_SIZE='5' but not RANK"):
                list(load(Items(tell), **workers))

    @pytest.mark.parametrize("workers", [THREADS, PROCESSES], ids=name_workers)
    def test_of_data_sets_with_indices_workers_have_seeds_of_their_own(self, workers):
        def look(index):
            info = get_worker_info()
            return np.array([info.rank, info.world_size, info.seed, np.random.randint(2**31)])

        seen = [{tuple(row) for rows in make(Made(look, 40), rank, 2, **workers) for row in rows.tolist()}
                for rank in range(2)]  # fmt: skip
        assert [{row[:2] for row in rows} for rows in seen] == [{(0, 2)}, {(1, 2)}]
        # Global generators of processes are seeded by rank, too.
        for at in (2, 3) if workers is PROCESSES else (2,):
            assert not {row[at] for row in seen[0]} & {row[at] for row in seen[1]}
