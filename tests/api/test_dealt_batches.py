"""Batch samplers of the user's that are the same on every rank: whole batches are dealt to the ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import BatchSampler, DataLoader, LoaderError, RandomSampler, cpu_places
from tests.loading import load
from tests.rank_loaders import numbers, read_in_legs, values_of
from tests.sample_sets import INLINE, PROCESSES, THREADS, name_workers

SEVEN = [[0, 1], [2], [3, 4, 5], [6, 7], [8, 9], [10], [11, 12]]


class Bucketed:
    """Yields batches of varying length without a length of its own."""

    def __init__(self, batches=SEVEN):
        self.batches = batches
        self.yielded = 0

    def __iter__(self):
        for batch in self.batches:
            self.yielded += 1
            yield batch


class Sized(Bucketed):
    def __len__(self):
        return len(self.batches)


def make(batches, rank, world_size, **options):
    return DataLoader(
        range(40), batch_sampler=batches, shard=(rank, world_size), **{"places": "cpu", "seed": 5, **options}
    )


def epochs_of(batches, world_size, **options):
    return [
        [values_of(batch) for batch in make(batches, rank, world_size, **options)]
        for rank in range(world_size)
    ]


class Own(BatchSampler):
    """A subclass with batches of its own."""

    def __iter__(self):
        return iter(SEVEN[:6])


@pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)
def test_batches_are_dealt_in_turn(workers):
    for batches in (SEVEN[:6], Own(range(12), batch_size=2)):
        assert epochs_of(batches, 3, **workers) == [[[0, 1], [6, 7]], [[2], [8, 9]], [[3, 4, 5], [10]]]
    sampler = Bucketed()  # is read by steps, here ahead of nothing
    next(iter(make(sampler, 1, 2, uneven="drop", use_buffer_reader=False)))
    assert sampler.yielded == 2


@pytest.mark.parametrize("kind", [Bucketed, Sized])
def test_a_last_step_without_a_batch_for_each_rank(kind):
    first = [[[0, 1], [6, 7], [11, 12]], [[2], [8, 9]], [[3, 4, 5], [10]]]
    assert epochs_of(kind(), 3, uneven="drop") == [batches[:2] for batches in first]
    assert epochs_of(kind(), 3, uneven="repeat") == [first[0], [*first[1], [0, 1]], [*first[2], [2]]]
    padded = [list(make(kind(), rank, 3)) for rank in range(3)]
    assert [[values_of(batch) for batch in batches] for batches in padded] == epochs_of(
        kind(), 3, uneven="repeat"
    )
    masks = [[mask.tolist() for _, mask in batches] for batches in padded]
    assert masks[0] == [[True, True], [True, True], [True, True]]
    assert masks[2] == [[True, True, True], [True], [False]]


def test_masks_come_only_where_a_batch_may_be_repeated():
    assert not isinstance(next(iter(make(Sized(SEVEN[:6]), 0, 3))), list)
    assert isinstance(next(iter(make(Bucketed(SEVEN[:6]), 0, 3))), list)
    assert not isinstance(next(iter(make(Bucketed(), 0, 1))), list)


def test_the_length_is_known_if_the_sampler_has_one():
    for uneven, count in [("pad", 3), ("repeat", 3), ("drop", 2)]:
        assert {len(make(SEVEN, rank, 3, uneven=uneven)) for rank in range(3)} == {count}
    with pytest.raises(TypeError, match="of type Bucketed, has no length"):
        len(make(Bucketed(), 0, 3))


class TestRefusals:
    def test_of_a_number_of_batches_that_does_not_divide(self):
        with pytest.raises(ValueError, match="7 batches fill 2 steps of 3 ranks and leave 1"):
            make(SEVEN, 0, 3, uneven="error")
        assert len(make(SEVEN, 0, 7, uneven="error")) == 1
        with pytest.raises(TypeError, match="of type Bucketed, has no length"):
            make(Bucketed(), 0, 3, uneven="error")

    def test_of_a_length_that_was_not_true(self):
        wrong = type("Wrong", (Bucketed,), {"__len__": lambda self: 6})()
        with pytest.raises(LoaderError, match="the batch sampler's last step has 1 batches for 3 ranks"):
            list(make(wrong, 0, 3, uneven="error"))

    def test_of_batches_that_are_drawn_on_each_rank_or_cut_into_shards(self):
        drawn = RandomSampler(range(13), generator=np.random.default_rng(0))
        own = type("Own", (Bucketed,), {"sampler": drawn})()
        for sampler in (BatchSampler(sampler=drawn, batch_size=2), own, iter(SEVEN)):
            with pytest.raises(ValueError, match="shard needs an order that is the same on every rank"):
                make(sampler, 0, 2)
        with pytest.raises(ValueError, match="split='shards' cannot cut the batches of a batch_sampler"):
            make(SEVEN, 0, 2, places=cpu_places(2), split="shards")


class TestStates:
    @given(
        count=st.integers(0, 30),
        legs=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=4),
        last=st.integers(1, 5),
        kind=st.sampled_from([Bucketed, Sized]),
    )
    def test_resume_with_any_number_of_ranks(self, count, legs, last, kind):
        def make_all(world_size):
            batches = [[number] for number in range(count)]
            return [make(kind(batches), rank, world_size) for rank in range(world_size)]

        found, state = read_in_legs((make_all(ranks), most) for ranks, most in [*legs, (last, 10**6)])
        assert found == list(range(count))
        assert state == {"version": 1, "epoch": 1, "batches": 0, "seed": 5}

    def test_are_those_of_a_loader_that_is_not_divided(self):
        two = make(SEVEN, 1, 2)
        next(iter(two))
        state = two.state_dict()
        assert state == {"version": 1, "epoch": 0, "batches": 2, "seed": 5}
        alone = load(range(13), batch_sampler=SEVEN)
        alone.load_state_dict(state)
        epoch = iter(alone)
        assert next(epoch).tolist() == [3, 4, 5]
        three = make(SEVEN, 2, 3)
        three.load_state_dict(alone.state_dict())
        assert [numbers(batch) for batch in three] == [[10], []]

    def test_after_which_the_batches_do_not_divide_are_refused(self):
        two = make(SEVEN[:6], 0, 2, uneven="error")
        next(iter(two))
        with pytest.raises(ValueError, match="4 batches fill 1 steps of 3 ranks and leave 1"):
            make(SEVEN[:6], 0, 3, uneven="error").load_state_dict(two.state_dict())

    def test_of_another_kind_are_refused(self):
        position = {"version": 2, "epoch": 0, "seed": 5, "position": 4}
        with pytest.raises(ValueError, match=r"4 samples; .* cannot tell where in its epoch that is"):
            make(SEVEN, 0, 2).load_state_dict(position)
        with pytest.raises(ValueError, match="8 batches into an epoch and this dataset has 7"):
            make(SEVEN, 0, 2).load_state_dict({"version": 1, "epoch": 0, "batches": 8, "seed": 5})
