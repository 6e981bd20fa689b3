"""Epochs resumed with other ranks, batch sizes, places and workers: no sample is lost or repeated."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloader import (
    DataLoader,
    DistributedBatchSampler,
    cpu_places,
)
from tests.rank_loaders import Stream, epoch_of, loaders, make, numbers, order_of
from tests.sample_sets import ONE_THREAD, PROCESSES

legs = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 6), st.sampled_from([0, 0, 2])),
    max_size=4,
)


class TestResuming:
    @given(
        count=st.integers(0, 90),
        legs=legs,
        last=st.tuples(st.integers(1, 6), st.integers(1, 5)),
        uneven=st.sampled_from(["pad", "drop"]),
        kind=st.sampled_from([range, Stream]),
    )
    @settings(max_examples=80, deadline=None)
    def test_at_any_world_size_and_batch_size_loses_and_repeats_nothing(
        self, count, legs, last, uneven, kind
    ):
        state, samples = None, []
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
                samples += [one for batch in step for one in numbers(batch)]
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

    @given(
        count=st.integers(0, 90),
        legs=st.lists(
            st.tuples(
                st.integers(1, 4),
                st.integers(1, 5),
                st.integers(1, 3),
                st.sampled_from(["batches", "shards"]),
                st.integers(0, 3),
            ),
            max_size=4,
        ),
        epoch=st.integers(0, 3),
    )
    @settings(max_examples=50, deadline=None)
    def test_on_any_number_of_places_reads_one_order(self, count, legs, epoch):
        state, found = {"version": 2, "epoch": epoch, "seed": 5, "position": 0}, []
        for world_size, size, places, split, most in [*legs, (2, 3, 2, "batches", 10**6)]:
            ranks = loaders(
                count,
                world_size,
                batch_size=size,
                places=cpu_places(places),
                split=split,
                uneven="pad",
            )
            for loader in ranks:
                loader.load_state_dict(state)
            for _, steps in zip(range(most), zip(*ranks, strict=True), strict=False):
                if places == 1:
                    steps = [[batch] for batch in steps]
                parts = list(zip(*steps, strict=True)) if split == "batches" else [[*itertools.chain(*steps)]]
                found += [one for part in parts for batch in part for one in numbers(batch)]
            state = ranks[-1].state_dict()
            assert all(loader.state_dict() == state for loader in ranks)
            if state["epoch"] > epoch:
                break
        assert found == order_of(count, epoch)

    def test_reads_the_order_of_the_epoch_to_its_end(self):
        found = loaders(50, 3)
        epochs = [iter(loader) for loader in found]
        before = [one for _ in range(4) for epoch in epochs for one in numbers(next(epoch))]
        again = loaders(50, 2, batch_size=5)
        for loader in again:
            loader.load_state_dict(found[1].state_dict())
        steps = zip(*map(epoch_of, again), strict=True)
        after = [one for step in steps for batch in step for one in batch]
        assert before + after == order_of(50)
        following = zip(*map(epoch_of, again), strict=True)  # the next epoch, from its start
        assert [one for step in following for batch in step for one in batch] == order_of(50, epoch=1)

    def test_with_drop_last_leaves_out_what_is_no_whole_step_of_the_last_world(self):
        found = loaders(50, 3, drop_last=True)
        epochs = [iter(loader) for loader in found]
        samples = [one for epoch in epochs for one in next(epoch).tolist()]
        for loader in loaders(50, 4, batch_size=3, drop_last=True):
            loader.load_state_dict(found[0].state_dict())
            samples += [one for batch in epoch_of(loader) for one in batch]
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
        samples += [one for epoch in epochs for one in numbers(next(epoch))]
        again = DataLoader(range(30), places="cpu", batch_size=5, shuffle=True, seed=1)
        again.load_state_dict(found[0].state_dict())
        samples += [one for batch in again for one in batch.tolist()]
        assert samples == order_of(30)

    @given(
        count=st.integers(0, 60), legs=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), max_size=4)
    )
    @settings(max_examples=50, deadline=None)
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
        with pytest.raises(ValueError, match=r"5 samples, and batches of 2 beyond them; .* batches of 4"):
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
            with pytest.raises(ValueError, match="the state counts 4 samples; this loader"):
                loader.load_state_dict(position)
        with pytest.raises(ValueError, match="10 samples into an epoch and this dataset has 9"):
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
        with pytest.raises(ValueError, match=r"batches of 2 samples per place, 1 per step; .* batches of 3"):
            loader(3).load_state_dict(first.state_dict())
        again = loader(2)
        again.load_state_dict(first.state_dict())
        assert next(iter(again)).tolist() == [6, 7]

    @pytest.mark.parametrize("options", [{}, {"kind": Stream}], ids=["indices", "stream"])
    def test_in_processes(self, options):
        found = loaders(40, 2, batch_size=3, **PROCESSES, **options)
        epochs = [iter(loader) for loader in found]
        samples = [one for _ in range(2) for epoch in epochs for one in numbers(next(epoch))]
        again = loaders(40, 3, **{**PROCESSES, "num_workers": 1}, **options)
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
