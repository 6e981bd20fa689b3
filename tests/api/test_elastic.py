"""Epochs resumed with other ranks, batch sizes, places and workers: no sample is lost or repeated."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import cpu_places
from tests.loading import load
from tests.rank_loaders import Stream, loaders, make, numbers, order_of, read_in_legs
from tests.sample_sets import ONE_THREAD, values

world_sizes, batch_sizes = st.integers(1, 6), st.integers(1, 5)
threads, places = st.sampled_from([0, 0, 2]), st.integers(1, 3)
splits = st.sampled_from(["batches", "shards"])


class TestResuming:
    @given(
        count=st.integers(0, 90),
        legs=st.lists(st.tuples(world_sizes, batch_sizes, st.integers(0, 6), threads), max_size=4),
        last=st.tuples(world_sizes, batch_sizes),
        uneven=st.sampled_from(["pad", "drop"]),
        kind=st.sampled_from([range, Stream]),
    )
    def test_at_any_world_size_and_batch_size_loses_and_repeats_nothing(
        self, count, legs, last, uneven, kind
    ):
        def make(world_size, size, threads):
            options = {"num_workers": threads, "worker_type": "thread"} if threads else {}
            return loaders(count, world_size, kind=kind, batch_size=size, uneven=uneven, **options)

        legs = [*legs, (*last, 10**6, 0)]
        samples, state = read_in_legs((make(*sizes, threads), most) for *sizes, most, threads in legs)
        assert len(set(samples)) == len(samples)
        assert set(samples) <= set(range(count))
        lost = count - len(samples)
        assert lost == 0 if uneven == "pad" else lost < 6
        assert state == {"version": 2, "epoch": 1, "seed": 5, "position": 0}

    @given(
        count=st.integers(0, 90),
        legs=st.lists(
            st.tuples(st.integers(1, 4), batch_sizes, places, splits, st.integers(0, 3)), max_size=4
        ),
        epoch=st.integers(0, 3),
    )
    def test_on_any_number_of_places_reads_one_order(self, count, legs, epoch):
        state, found = {"version": 2, "epoch": epoch, "seed": 5, "position": 0}, []
        for world_size, size, places, split, most in [*legs, (2, 3, 2, "batches", 10**6)]:
            ranks = loaders(
                count, world_size, batch_size=size, places=cpu_places(places), split=split, uneven="pad"
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

    def test_alone_with_batches_as_they_came(self):
        state = {"version": 1, "epoch": 0, "batches": 1, "seed": 5, "batch_size": 3}
        loader = load(range(20), batch_size=2, in_order=False, **ONE_THREAD)
        loader.load_state_dict(state)
        epoch = iter(loader)
        assert next(epoch).tolist() == [3, 4]
        assert loader.state_dict() == {"version": 2, "epoch": 0, "seed": 5, "position": 5}
        beyond = {**loader.state_dict(), "batch_size": 2, "beyond": [1]}
        again = load(range(20), batch_size=2)
        again.load_state_dict(beyond)
        assert again.state_dict() == beyond
        assert values(again)[:3] == [[5, 6], [9, 10], [11, 12]]
        other = load(range(20), batch_size=4)
        with pytest.raises(ValueError, match=r"5 samples, and batches of 2 beyond them; .* batches of 4"):
            other.load_state_dict(beyond)

    def test_what_is_not_counted_in_samples_is_refused(self):
        sharded = {"version": 1, "epoch": 0, "batches": 2, "seed": 5, "batch_size": 2, "shards": 2}
        items = {"version": 1, "epoch": 0, "batches": 2, "seed": 5, "batch_size": 2, "workers": [[2, None]]}
        for state in (sharded, items):
            for kind in (range, Stream):
                with pytest.raises(ValueError, match="divided by shard=, and cannot tell where in"):
                    make(kind(9), 0, 2).load_state_dict(state)
        position = {"version": 2, "epoch": np.int64(0), "seed": 5, "position": np.uint8(4)}
        for loader in (load(Stream(9)), load(range(9), batch_sampler=[[1], [2, 3]])):
            with pytest.raises(ValueError, match="the state counts 4 samples; this loader"):
                loader.load_state_dict(position)
        with pytest.raises(ValueError, match="10 samples into an epoch and this dataset has 9"):
            make(range(9), 0, 2).load_state_dict({**position, "position": 10})
        for wrong in ({"position": -1}, {"position": None}, {"seed": -1}, {"beyond": 3}):
            with pytest.raises(ValueError, match="the state is damaged"):
                make(range(9), 0, 2).load_state_dict({**position, **wrong})

    def test_the_state_of_any_run_is_small(self):
        loader = make(range(10**9), 4095, 4096, seed=2**64 - 1, batch_size=4, shuffle=True)
        loader.set_epoch(2**63)
        next(iter(loader))
        assert len(json.dumps(loader.state_dict())) < 128
