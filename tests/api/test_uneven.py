"""Last steps that do not divide among the ranks: when batches have masks, and which samples are repeated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloader import TensorDataset, cpu_places
from gpuloader.testing import simulated_places
from tests.loading import load
from tests.rank_loaders import Stream, loaders, make, order_of
from tests.sample_sets import PROCESSES, THREADS


def have_masks(loader):
    """Return whether the batches of an epoch have masks: all of them, or none."""
    [found] = {isinstance(batch, list) for batch in loader}
    return found


class TestMasks:
    @pytest.mark.parametrize("workers", [{}, THREADS, PROCESSES], ids=["inline", "threads", "processes"])
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
        ],
    )
    def test_come_only_where_a_sample_is_repeated(self, count, world_size, options, wanted, workers):
        for rank in range(world_size):
            assert have_masks(make(range(count), rank, world_size, **options, **workers)) == wanted

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
    @settings(max_examples=80, deadline=None)
    def test_fills_up_the_order_from_its_start(self, count, size, world_size, workers):
        """All ranks' batches, one after the other, are the order; so what repeats comes last."""
        found = loaders(count, world_size, batch_size=size, uneven="repeat", **workers)
        steps = zip(*([batch.tolist() for batch in loader] for loader in found), strict=True)
        order = order_of(count)
        total = -(-count // world_size) * world_size
        assert [one for step in steps for batch in step for one in batch] == (order * world_size)[:total]

    @pytest.mark.parametrize("cache", ["host", "device"])
    @pytest.mark.parametrize("count", [13, 12, 2])
    def test_of_a_cache(self, cache, count):
        images = [np.full(3, number) for number in range(count)]
        for rank in range(3):
            options = {"shuffle": True, "uneven": "repeat"}
            wanted = [batch.tolist() for batch in make(images, rank, 3, **options)]
            loader = make(images, rank, 3, cache=cache, places=simulated_places(1), **options)
            for _ in range(2):
                loader.set_epoch(0)
                assert [np.asarray(batch).tolist() for batch in loader] == wanted
