"""Loaders of several ranks: equally many batches, every sample once, and epochs that go on at any size."""

import json
import os
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuloader
from gpuloader import (
    BatchSampler,
    DataLoader,
    DistributedBatchSampler,
    IterableDataset,
    RandomSampler,
    SampleError,
    Sampler,
    SequenceSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    cpu_places,
    data,
    get_worker_info,
    sample_rng,
)
from gpuloader.sources.worker_info import WorkerInfo
from gpuloader.transforms import RandomCropFlip
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, Made, name_workers

by_workers = pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)


class Stream(IterableDataset):
    """Whole numbers; counts how many were read."""

    def __init__(self, count):
        self.count = count
        self.read = 0

    def __iter__(self):
        for number in range(self.count):
            self.read += 1
            yield number


def make(dataset, rank, world_size, **options):
    return DataLoader(
        dataset, shard=(rank, world_size), **{"places": "cpu", "batch_size": 2, "seed": 5, **options}
    )


def loaders(count, world_size, *, kind=range, **options):
    if kind is range and "shuffle" not in options:
        options["shuffle"] = True
    return [make(kind(count), rank, world_size, **options) for rank in range(world_size)]


def numbers(batch, masked):
    """Return the samples of a batch that count."""
    if not masked:
        return batch.tolist()
    values, mask = batch
    assert mask.dtype == bool
    assert mask.shape == values.shape
    return values[mask].tolist()


def epoch_of(loader, masked=True):
    return [numbers(batch, masked) for batch in loader]


def order_of(count, epoch=0, **options):
    """Return the order of an epoch that nobody divides."""
    loader = DataLoader(range(count), places="cpu", batch_size=count, shuffle=True, seed=5, **options)
    loader.set_epoch(epoch)
    return [number for batch in loader for number in batch.tolist()]


sizes = {
    "count": st.integers(0, 120),
    "size": st.integers(1, 9),
    "world_size": st.integers(1, 16),
    "uneven": st.sampled_from(["pad", "drop"]),
    "drop_last": st.booleans(),
}


class TestBatchesOfAllRanks:
    @given(**sizes, kind=st.sampled_from([range, Stream]), threads=st.sampled_from([0, 0, 0, 2]))
    @settings(max_examples=120, deadline=None)
    def test_are_equally_many_of_equal_sizes(self, count, size, world_size, uneven, drop_last, kind, threads):
        options = {"uneven": uneven, "drop_last": drop_last, "batch_size": size}
        if threads:
            options |= {"num_workers": threads, "worker_type": "thread"}
        masked = uneven == "pad" and not drop_last
        found = [list(loader) for loader in loaders(count, world_size, kind=kind, **options)]
        assert len({len(batches) for batches in found}) == 1
        for step in zip(*found, strict=True):
            assert len({len(batch[0] if masked else batch) for batch in step}) == 1
        samples = [one for batches in found for batch in batches for one in numbers(batch, masked)]
        assert len(set(samples)) == len(samples)
        step = size * world_size
        lost = count % step if drop_last else count % step % world_size if uneven == "drop" else 0
        assert len(samples) == count - lost

    @given(**sizes)
    @settings(max_examples=100, deadline=None)
    def test_are_as_many_as_len_says(self, count, size, world_size, uneven, drop_last):
        for loader in loaders(count, world_size, uneven=uneven, drop_last=drop_last, batch_size=size):
            assert len(loader) == len(list(loader))

    @given(
        count=st.integers(1, 60),
        size=st.integers(1, 5),
        world_size=st.integers(1, 5),
        epoch=st.integers(0, 3),
    )
    @settings(max_examples=60, deadline=None)
    def test_are_the_order_of_seed_and_epoch_cut_into_parts(self, count, size, world_size, epoch):
        """Each step as one process with several places would have it, masks included."""
        places = cpu_places(world_size) if world_size > 1 else "cpu"
        whole = DataLoader(
            range(count),
            places=places,
            batch_size=size * world_size,
            shuffle=True,
            seed=5,
            split="shards",
            remainder="pad",
        )
        found = loaders(count, world_size, batch_size=size)
        for loader in (whole, *found):
            loader.set_epoch(epoch)
        for step, *batches in zip(whole, *found, strict=True):
            if world_size == 1:
                assert batches[0][0].tolist() == step.tolist()
                continue
            for (values, mask), (wanted, counted) in zip(batches, step, strict=True):
                assert (values.tolist(), mask.tolist()) == (wanted.tolist(), counted.tolist())

    @by_workers
    @pytest.mark.parametrize("kind", [range, Stream])
    def test_do_not_depend_on_workers(self, workers, kind):
        for wanted, loader in zip(
            loaders(25, 3, kind=kind), loaders(25, 3, kind=kind, **workers), strict=True
        ):
            assert epoch_of(loader) == epoch_of(wanted)
            assert epoch_of(loader) == epoch_of(wanted)

    def test_of_a_rank_that_has_none_of_its_own(self):
        for kind in (range, Stream):
            found = [list(loader) for loader in loaders(1, 3, kind=kind)]
            assert [mask.tolist() for [(_, mask)] in found] == [[True], [False], [False]]
            assert [values.tolist() for [(values, _)] in found] == [[0], [0], [0]]

    def test_have_masks_whenever_samples_may_be_repeated(self):
        """Whatever the data set, the world size and the position: who wrote a loop once has written it."""
        for world_size in (1, 2):
            for batch in make(range(8), 0, world_size):
                assert [len(part) for part in batch] == [2, 2]
            for options in ({"uneven": "drop"}, {"drop_last": True}):
                assert next(iter(make(range(8), 0, world_size, **options))).shape == (2,)

    def test_no_launcher_is_one_rank(self, monkeypatch):
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS"):
            monkeypatch.delenv(name, raising=False)
        loader = DataLoader(range(5), places="cpu", batch_size=2, shard="auto")
        assert epoch_of(loader) == [[0, 1], [2, 3], [4]]

    def test_ranks_are_found_where_torchrun_says(self, monkeypatch):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        loader = DataLoader(range(8), places="cpu", batch_size=2, shard="auto", uneven="drop")
        assert epoch_of(loader, masked=False) == [[2, 3], [6, 7]]


class TestWhatIsInThem:
    def test_shards_on_several_places_of_each_rank(self):
        for remainder in ("pad", "drop"):
            samples = []
            for loader in loaders(
                37, 2, batch_size=6, places=cpu_places(3), split="shards", remainder=remainder
            ):
                steps = list(loader)
                assert len(steps) == len(loader)
                for step in steps:
                    assert len({len(values) for values, _ in step}) == 1
                    samples += [one for batch in step for one in numbers(batch, True)]
            assert len(set(samples)) == len(samples)
            # 37 are 3 steps of 12, and 1: of each rank's batch of one nothing is left where 3 share it.
            assert sorted(samples) == list(range(37)) if remainder == "pad" else len(samples) == 36

    def test_shards_are_the_ranks_batch(self):
        for rank in range(2):
            options = {"batch_size": 5, "remainder": "pad"}
            whole = epoch_of(make(range(23), rank, 2, shuffle=True, **options))
            sharded = make(range(23), rank, 2, shuffle=True, split="shards", places=cpu_places(2), **options)
            assert [[one for part in step for one in numbers(part, True)] for step in sharded] == whole

    def test_an_uneven_end_without_masks_leaves_no_marks_behind(self):
        loader = make(
            range(23),
            0,
            2,
            batch_size=4,
            uneven="drop",
            split="shards",
            places=cpu_places(2),
            remainder="drop",
        )
        assert [[part.tolist() for part in step] for step in loader] == [
            [[0, 1], [2, 3]],
            [[8, 9], [10, 11]],
            [[16], [17]],
        ]

    @pytest.mark.parametrize("places", [2, 3])
    def test_batches_for_several_places_of_each_rank(self, places):
        found = [list(loader) for loader in loaders(29, 2, places=cpu_places(places))]
        assert len({len(steps) for steps in found}) == 1
        samples = [one for steps in found for step in steps for batch in step for one in numbers(batch, True)]
        assert sorted(samples) == list(range(29))

    def test_of_an_iterable_data_set_cut_into_shards(self):
        found = [
            [part.tolist() for step in loader for part in step]
            for loader in loaders(
                21, 2, kind=Stream, batch_size=4, places=cpu_places(2), split="shards", remainder="drop"
            )
        ]
        assert found == [
            [[0, 2], [4, 6], [8, 10], [12, 14]],
            [[1, 3], [5, 7], [9, 11], [13, 15]],
        ]

    @pytest.mark.parametrize("cache", ["host", "device"])
    def test_of_a_cache(self, cache):
        for rank in range(2):
            images = [np.full(3, number) for number in range(13)]
            wanted = [images.tolist() for images, _ in make(images, rank, 2, shuffle=True)]
            loader = make(images, rank, 2, shuffle=True, cache=cache)
            assert [images.tolist() for images, _ in loader] == wanted

    def test_of_arrays_of_feeds_and_of_text(self):
        arrays = TensorDataset(np.arange(5.0), np.arange(5))
        *_, (values, labels, mask) = make(arrays, 1, 2)
        assert (values.tolist(), labels.tolist(), mask.tolist()) == ([4.0], [4], [False])
        feeds = [data("value", [None], "float32"), data("label", [None], "int64")]
        *_, [step] = make(arrays, 0, 2, feed_list=feeds, return_list=False)
        assert {name: field.tolist() for name, field in step.items()} == {
            "value": [4.0],
            "label": [4],
            "mask": [True],
        }
        named = Made(lambda index: (index, f"{index}.wav"), 5)
        *_, (indices, names, mask) = make(named, 1, 2)
        assert (indices.tolist(), names, mask.tolist()) == ([4], ["4.wav"], [False])
        *_, (indices, names, mask) = make(named, 1, 2, **PROCESSES)
        assert (indices.tolist(), names, mask.tolist()) == ([4], ["4.wav"], [False])

    @pytest.mark.parametrize("kind", [range, Stream])
    def test_of_varying_length(self, kind):
        def lengthen(number):
            return np.arange(int(number))

        class Lengths(Stream):
            def __iter__(self):
                return map(lengthen, range(self.count))

        dataset = Made(lengthen, 5) if kind is range else Lengths(5)
        *_, (rows, mask) = make(dataset, 1, 2, pad={"0": -1})
        assert (rows.tolist(), mask.tolist()) == ([[0, 1, 2, 3]], [False])

    def test_single_samples(self):
        found = [list(loader) for loader in loaders(7, 2, batch_size=None, uneven="drop", shuffle=False)]
        assert [[int(one) for one in samples] for samples in found] == [[0, 2, 4], [1, 3, 5]]

    def test_what_a_sample_draws_does_not_depend_on_ranks(self):
        dataset = Made(lambda index: (index, sample_rng().random()), 20)
        drawn = []
        for world_size in (1, 3):
            batches = [batch for loader in loaders_of(dataset, world_size) for batch in loader]
            drawn.append(
                {
                    int(index): float(number)
                    for indices, noise, mask in batches
                    for index, number in zip(indices[mask], noise[mask], strict=True)
                }
            )
        assert drawn[0] == drawn[1]

    @pytest.mark.parametrize("kind", [range, Stream])
    def test_nor_does_what_a_transform_draws(self, kind):
        """Of items, too, which have no index: their position in the epoch stands for it."""
        picture = np.arange(64, dtype="uint8").reshape(8, 8, 1)

        class Pictures(Stream):
            def __iter__(self):
                return ((np.uint8(number) + picture, number) for number in range(self.count))

        dataset = (
            Made(lambda number: (np.uint8(number) + picture, number), 22) if kind is range else Pictures(22)
        )
        drawn = []
        for world_size in (1, 3):
            found = {}
            for loader in loaders_of(dataset, world_size, transforms=[RandomCropFlip("0", (4, 4))]):
                for pictures, labels, mask in loader:
                    for one, label, own in zip(pictures, labels, mask, strict=True):
                        if own:
                            found[int(label)] = one.tolist()
            assert sorted(found) == list(range(22))
            drawn.append(found)
        assert drawn[0] == drawn[1]
        assert len({str(np.subtract(one, label).tolist()) for label, one in drawn[0].items()}) > 8

    def test_an_error_of_the_data_set_comes_to_all_ranks_of_a_stream_alike(self):
        class Failing(Stream):
            def __iter__(self):
                yield from range(9)
                raise OSError("gone")

        for loader in loaders(0, 2, kind=Failing):
            epoch = iter(loader)
            assert [next(epoch)[0].tolist() for _ in range(2)] == [
                [4 * step + rank for rank in (loader_rank(loader), loader_rank(loader) + 2)]
                for step in range(2)
            ]
            with pytest.raises(SampleError, match="gone"):
                next(epoch)


def loaders_of(dataset, world_size, **options):
    return [make(dataset, rank, world_size, **options) for rank in range(world_size)]


def loader_rank(loader):
    return loader._batching.division.rank


class TestOrders:
    @pytest.mark.parametrize(
        "make_options",
        [
            lambda count: {"sampler": list(range(count))[::-1]},
            lambda count: {"sampler": np.arange(count)[::-1]},
            lambda count: {"sampler": SequenceSampler(range(count))},
            lambda count: {"sampler": RandomSampler(range(count))},
            lambda count: {"sampler": SubsetRandomSampler(range(count))},
            lambda count: {"sampler": WeightedRandomSampler(np.ones(count), count, replacement=False)},
            lambda count: {"batch_sampler": BatchSampler(range(count), shuffle=True, batch_size=2)},
            lambda count: {"batch_sampler": BatchSampler(sampler=list(range(count)), batch_size=2)},
        ],
    )
    def test_of_samplers_are_cut_into_parts(self, make_options):
        options = make_options(21)
        if "batch_sampler" in options:
            options["batch_size"] = 1
        wanted = [
            one for batch in DataLoader(range(21), places="cpu", seed=5, **options) for one in batch.tolist()
        ]
        steps = zip(*(epoch_of(loader) for loader in loaders(21, 3, shuffle=False, **options)), strict=True)
        assert [one for step in steps for batch in step for one in batch] == wanted

    def test_of_a_users_own_function_of_seed_and_epoch(self):
        class Sliced:
            def __len__(self):
                return 9

            def slice(self, start, stop):
                return range(8 - start, 8 - stop, -1)

        class Backwards(Sampler):
            def order(self, seed, epoch):
                return Sliced()

        assert [epoch_of(make(range(9), rank, 2, sampler=Backwards())) for rank in range(2)] == [
            [[8, 7], [4, 3], [0]],
            [[6, 5], [2, 1], []],
        ]

    @pytest.mark.parametrize(
        "options",
        [
            {"sampler": (number for number in range(4))},
            {"sampler": {3, 1}},
            {"sampler": RandomSampler(range(4), generator=np.random.default_rng(0))},
            {"batch_sampler": [[0, 1], [2]], "batch_size": 1},
            {"sampler": type("Own", (Sampler,), {"__iter__": lambda self: iter([1])})()},
        ],
    )
    def test_that_ranks_could_not_agree_on_are_refused(self, options):
        with pytest.raises(ValueError, match=r"shard needs an order .*give a list of indices as sampler"):
            make(range(4), 0, 2, **options)

    def test_that_are_divided_already_are_refused(self):
        sampler = DistributedBatchSampler(range(4), 2, num_replicas=2, rank=0)
        with pytest.raises(ValueError, match="DistributedBatchSampler divides the data set already"):
            make(range(4), 0, 2, batch_sampler=sampler, batch_size=1)

    @pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": RandomSampler(range(4))}])
    def test_that_are_drawn_need_a_seed(self, options):
        with pytest.raises(ValueError, match="give all of them the same seed"):
            make(range(4), 0, 2, seed=None, **options)

    @pytest.mark.parametrize("dataset", [range(4), Stream(4)])
    def test_that_are_not_drawn_need_none(self, dataset):
        """All ranks then draw by seed 0 what there is to be drawn."""
        states = [make(dataset, rank, 2, seed=None).state_dict() for rank in range(2)]
        assert states[0] == states[1] == {"version": 2, "epoch": 0, "seed": 0, "position": 0}


class TestRefusals:
    @pytest.mark.parametrize(
        ("dataset", "options", "message"),
        [
            (range(9), {"uneven": "repeat"}, "uneven must be one of 'pad', 'drop', 'error', got 'repeat'"),
            (range(9), {"uneven": "error"}, "9 samples are 2 steps of 2 ranks and a last one of 1"),
            (Stream(8), {"uneven": "error"}, "how many items an iterable data set has is not known before"),
            (iter(range(8)), {}, "a range_iterator can be read once: give an IterableDataset"),
            (range(9), {"batch_size": None}, "uneven='pad' adds a mask to each batch"),
            (range(9), {"in_order": False}, "shard needs in_order=True"),
        ],
    )
    def test_of_options(self, dataset, options, message):
        with pytest.raises(ValueError, match=message):
            make(dataset, 0, 2, **options)

    def test_an_even_data_set_is_no_error(self):
        assert epoch_of(make(range(10), 1, 2, uneven="error"), masked=False) == [[2, 3], [6, 7], [9]]
        assert len(make(range(9), 1, 2, uneven="error", drop_last=True)) == 2

    def test_an_uneven_rest_is_an_error_when_it_is_loaded(self):
        loader = make(range(12), 0, 2, uneven="error")
        next(iter(loader))
        with pytest.raises(ValueError, match="8 samples are 1 steps of 3 ranks and a last one of 2"):
            make(range(12), 0, 3, uneven="error").load_state_dict(loader.state_dict())


legs = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 6), st.sampled_from([0, 0, 2])),
    max_size=4,
)


class TestGoingOn:
    @given(
        count=st.integers(0, 90),
        legs=legs,
        last=st.tuples(st.integers(1, 6), st.integers(1, 5)),
        uneven=st.sampled_from(["pad", "drop"]),
        kind=st.sampled_from([range, Stream]),
    )
    @settings(max_examples=150, deadline=None)
    def test_at_any_world_size_and_batch_size_loses_and_repeats_nothing(
        self, count, legs, last, uneven, kind
    ):
        state, samples, masked = None, [], uneven == "pad"
        for world_size, size, most, threads in [*legs, (*last, 10**6, 0)]:
            options = {"num_workers": threads, "worker_type": "thread"} if threads else {}
            found = loaders(count, world_size, kind=kind, batch_size=size, uneven=uneven, **options)
            for loader in found:
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
                    assert loader.state_dict() == state
            epochs = [iter(loader) for loader in found]
            ended = False
            for _ in range(most):
                step = [next(epoch, None) for epoch in epochs]
                assert len({batch is None for batch in step}) == 1
                if step[0] is None:
                    ended = True
                    break
                samples += [one for batch in step for one in numbers(batch, masked)]
            states = [loader.state_dict() for loader in found]
            assert all(one == states[0] for one in states)
            state = states[0]
            assert set(state) == {"version", "epoch", "seed", "position"}
            if ended:
                break
        assert len(set(samples)) == len(samples)
        lost = count - len(samples)
        assert set(samples) <= set(range(count))
        assert lost == 0 if uneven == "pad" else lost < 6
        assert state == {"version": 2, "epoch": 1, "seed": 5, "position": 0}

    def test_reads_the_order_of_the_epoch_to_its_end(self):
        found = loaders(50, 3)
        epochs = [iter(loader) for loader in found]
        before = [one for _ in range(4) for epoch in epochs for one in numbers(next(epoch), True)]
        again = loaders(50, 2, batch_size=5)
        for loader in again:
            loader.load_state_dict(found[1].state_dict())
        steps = zip(*map(epoch_of, again), strict=True)
        after = [one for step in steps for batch in step for one in batch]
        assert before + after == order_of(50)
        following = zip(*map(epoch_of, again), strict=True)  # and then the next one from its start
        assert [one for step in following for batch in step for one in batch] == order_of(50, epoch=1)

    def test_with_drop_last_leaves_out_what_is_no_whole_step_of_the_last_world(self):
        found = loaders(50, 3, drop_last=True)
        epochs = [iter(loader) for loader in found]
        samples = [one for epoch in epochs for one in next(epoch).tolist()]
        for loader in loaders(50, 4, batch_size=3, drop_last=True):
            loader.load_state_dict(found[0].state_dict())
            samples += [one for batch in epoch_of(loader, masked=False) for one in batch]
        assert len(set(samples)) == len(samples) == 6 + 36

    def test_all_received_is_not_the_end_yet(self):
        found = loaders(5, 2)
        epochs = [iter(loader) for loader in found]
        for _ in range(2):
            for epoch in epochs:
                next(epoch)
        state = found[0].state_dict()
        assert state == {"version": 2, "epoch": 0, "seed": 5, "position": 5}
        alone = make(range(5), 0, 1, shuffle=True)
        alone.load_state_dict(state)
        assert epoch_of(alone) == []
        assert sorted(one for batch in epoch_of(alone) for one in batch) == list(range(5))

    def test_from_one_process_that_was_not_divided_and_back(self):
        alone = DataLoader(range(30), places="cpu", batch_size=4, shuffle=True, seed=5)
        epoch = iter(alone)
        samples = [one for _ in range(3) for one in next(epoch).tolist()]
        found = loaders(30, 2, batch_size=3)
        for loader in found:
            loader.load_state_dict(alone.state_dict())
        epochs = [iter(loader) for loader in found]
        samples += [one for epoch in epochs for one in numbers(next(epoch), True)]
        again = DataLoader(range(30), places="cpu", batch_size=5, shuffle=True, seed=1)
        again.load_state_dict(found[0].state_dict())
        samples += [one for batch in again for one in batch.tolist()]
        assert samples == order_of(30)

    @given(
        count=st.integers(0, 60), legs=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), max_size=4)
    )
    @settings(max_examples=80, deadline=None)
    def test_alone_at_another_batch_size(self, count, legs):
        state, samples = None, []
        for size, most in [*legs, (4, 10**6)]:
            sampler = None if size % 2 else [*range(count)]
            loader = DataLoader(range(count), places="cpu", batch_size=size, sampler=sampler, seed=1)
            if state is not None:
                loader.load_state_dict(state)
                assert loader.state_dict()["epoch"] == state["epoch"]
            for _, batch in zip(range(most), loader, strict=False):
                samples += batch.tolist()
            state = loader.state_dict()
            if state["epoch"]:
                break
        assert samples == list(range(count))

    def test_alone_with_batches_as_they_came(self):
        state = {"version": 1, "epoch": 0, "batches": 1, "seed": 5, "batch_size": 3}
        loader = DataLoader(range(20), places="cpu", batch_size=2, in_order=False, **ONE_THREAD)
        loader.load_state_dict(state)
        epoch = iter(loader)
        assert next(epoch).tolist() == [3, 4]
        assert loader.state_dict() == {"version": 2, "epoch": 0, "seed": 5, "position": 5}
        beyond = {**loader.state_dict(), "batch_size": 2, "beyond": [1]}
        again = DataLoader(range(20), places="cpu", batch_size=2)
        again.load_state_dict(beyond)
        assert again.state_dict() == beyond
        assert [batch.tolist() for batch in again][:3] == [[5, 6], [9, 10], [11, 12]]
        other = DataLoader(range(20), places="cpu", batch_size=4)
        with pytest.raises(ValueError, match="of 5 samples, and batches of 2 beyond them; this loader has 4"):
            other.load_state_dict(beyond)

    def test_what_is_not_counted_in_samples_is_refused(self):
        sharded = {"version": 1, "epoch": 0, "batches": 2, "seed": 5, "batch_size": 2, "shards": 2}
        items = {"version": 1, "epoch": 0, "batches": 2, "seed": 5, "batch_size": 2, "workers": [[2, None]]}
        for state in (sharded, items):
            for kind in (range, Stream):
                with pytest.raises(ValueError, match="cannot tell where in its epoch that is"):
                    make(kind(9), 0, 2).load_state_dict(state)
        position = {"version": 2, "epoch": 0, "seed": 5, "position": 4}
        for loader in (
            DataLoader(Stream(9), places="cpu"),
            DataLoader(range(9), places="cpu", batch_sampler=[[1], [2, 3]]),
        ):
            with pytest.raises(ValueError, match="the state is of 4 samples; this loader"):
                loader.load_state_dict(position)
        with pytest.raises(ValueError, match="10 samples into an epoch and this data set has 9"):
            make(range(9), 0, 2).load_state_dict({**position, "position": 10})
        for wrong in ({"position": -1}, {"position": None}, {"seed": None}, {"beyond": 3}):
            with pytest.raises(ValueError, match="the state is damaged"):
                make(range(9), 0, 2).load_state_dict({**position, **wrong})

    def test_what_a_distributed_batch_sampler_gives_depends_on_the_batch_size(self):
        def loader(size):
            sampler = DistributedBatchSampler(range(20), size, num_replicas=2, rank=1)
            return DataLoader(range(20), places="cpu", batch_sampler=sampler, seed=5)

        first = loader(2)
        assert next(iter(first)).tolist() == [2, 3]
        with pytest.raises(ValueError, match="of batches of 2 samples a place, 1 a step; this loader has 3"):
            loader(3).load_state_dict(first.state_dict())
        again = loader(2)
        again.load_state_dict(first.state_dict())
        assert next(iter(again)).tolist() == [6, 7]

    def test_in_processes(self):
        found = loaders(40, 2, batch_size=3, **PROCESSES)
        epochs = [iter(loader) for loader in found]
        samples = [one for _ in range(2) for epoch in epochs for one in numbers(next(epoch), True)]
        again = loaders(40, 3, **PROCESSES)
        for loader in again:
            loader.load_state_dict(found[0].state_dict())
        samples += [one for batches in map(epoch_of, again) for batch in batches for one in batch]
        assert sorted(samples) == list(range(40))
        for epoch in epochs:
            epoch.close()

    def test_of_a_stream_in_processes(self):
        found = loaders(40, 2, kind=Stream, batch_size=3, **PROCESSES)
        epochs = [iter(loader) for loader in found]
        samples = [one for _ in range(2) for epoch in epochs for one in numbers(next(epoch), True)]
        again = loaders(40, 3, kind=Stream, **{**PROCESSES, "num_workers": 1})
        for loader in again:
            loader.load_state_dict(found[0].state_dict())
        samples += [one for batches in map(epoch_of, again) for batch in batches for one in batch]
        assert sorted(samples) == list(range(40))
        for epoch in epochs:
            epoch.close()

    def test_the_state_of_any_run_is_small(self):
        loader = make(range(10**9), 4095, 4096, seed=2**64 - 1, batch_size=4, shuffle=True)
        loader.set_epoch(2**63)
        next(iter(loader))
        assert len(json.dumps(loader.state_dict())) < 128


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

    def test_are_read_no_further_than_to_the_end_of_the_step(self):
        for rank in range(3):
            stream = Stream(100)
            epoch = iter(make(stream, rank, 3))
            for step in range(1, 4):
                next(epoch)
                assert stream.read == 6 * step

    @by_workers
    def test_that_divide_themselves_are_asked_for_all_items(self, workers):
        class Divided(IterableDataset):
            def __iter__(self):
                info = get_worker_info()
                assert info is not None
                one, all_of_them = info.rank * info.num_workers + info.id, info.world_size * info.num_workers
                return iter(range(one, 23, all_of_them))

        found = [epoch_of(make(Divided(), rank, 2, **workers)) for rank in range(2)]
        assert sorted(one for batches in found for batch in batches for one in batch) == list(range(23))
        assert get_worker_info() is None

    @by_workers
    def test_that_draw_their_items_draw_the_same_everywhere(self, workers):
        class Drawn(IterableDataset):
            def __iter__(self):
                generator = sample_rng()
                order = generator.permutation(20).tolist()
                for number in order:
                    yield 1000 * get_worker_info().seed % 999983 * 20 + number

        found = [epoch_of(make(Drawn(), rank, 2, **workers)) for rank in range(2)]
        samples = [one for batches in found for batch in batches for one in batch]
        assert sorted(one % 20 for one in samples) == list(range(20))
        assert len({one // 20 for one in samples}) == 1

    @pytest.mark.parametrize("workers", [ONE_THREAD, PROCESSES], ids=name_workers)
    def test_without_shard_are_told_their_rank(self, workers, monkeypatch):
        class Told(IterableDataset):
            def __iter__(self):
                info = get_worker_info()
                yield np.array([info.rank, info.world_size, info.id, info.num_workers])

        monkeypatch.setenv("RANK", "2")
        monkeypatch.setenv("WORLD_SIZE", "5")
        told = [batch[0].tolist() for batch in DataLoader(Told(), places="cpu", **workers)]
        assert told == [[2, 5, worker, len(told)] for worker in range(len(told))]
        with monkeypatch.context() as broken:
            broken.delenv("RANK")
            with pytest.raises(SampleError, match="sets WORLD_SIZE='5' but not RANK"):
                list(DataLoader(Told(), places="cpu", **workers))

    @pytest.mark.parametrize("workers", [THREADS, PROCESSES], ids=name_workers)
    def test_of_data_sets_with_indices_workers_have_seeds_of_their_own(self, workers):
        dataset = Made(
            lambda index: np.array([(info := get_worker_info()).rank, info.world_size, info.seed]), 40
        )
        seen = [
            {tuple(row) for rows, _ in make(dataset, rank, 2, **workers) for row in rows.tolist()}
            for rank in range(2)
        ]
        assert [{row[:2] for row in rows} for rows in seen] == [{(0, 2)}, {(1, 2)}]
        assert not {row[2] for row in seen[0]} & {row[2] for row in seen[1]}

    def test_global_generators_of_processes_are_seeded_by_rank(self):
        dataset = Made(lambda index: np.random.randint(2**31), 8)
        drawn = [
            [one for values, _ in make(dataset, rank, 2, **PROCESSES) for one in values.tolist()]
            for rank in range(2)
        ]
        assert not set(drawn[0]) & set(drawn[1])

    def test_an_info_alone_asks_the_launcher(self, monkeypatch):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "3")
        info = WorkerInfo(0, 1, 2, None)
        assert (info.rank, info.world_size) == (1, 3)


class TestDefaultPlaces:
    @pytest.mark.parametrize(
        ("visible", "local", "index"), [(8, None, 0), (8, "5", 5), (1, "5", 0), (8, "0", 0), (2, "1", 1)]
    )
    def test_follow_the_local_rank(self, visible, local, index, monkeypatch):
        self.show(monkeypatch, visible, local)
        assert gpuloader.devices.default_place(gpuloader.sources.ranks.find_local_rank()).index == index

    def test_are_refused_where_there_are_fewer_than_processes(self, monkeypatch):
        self.show(monkeypatch, 4, "5")
        with pytest.raises(gpuloader.PlaceError, match="process 5 of this machine finds 4 GPUs"):
            make(range(4), 0, 2, places=None)

    def test_are_the_first_without_shard(self, monkeypatch):
        self.show(monkeypatch, 4, "5")
        assert gpuloader.devices.default_place().index == 0

    def show(self, monkeypatch, visible, local):
        cuda = types.ModuleType("gpuloader.devices.cuda")
        cuda.require_cuda = lambda index: visible
        monkeypatch.setitem(sys.modules, "gpuloader.devices.cuda", cuda)
        monkeypatch.setattr(gpuloader.devices, "open_device", lambda place: None)
        for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "PADDLE_RANK_IN_NODE"):
            monkeypatch.delenv(name, raising=False)
        if local is None:
            monkeypatch.delenv("LOCAL_RANK", raising=False)
        else:
            monkeypatch.setenv("LOCAL_RANK", local)
