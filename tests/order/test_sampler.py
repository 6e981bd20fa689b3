import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.order.order import InOrder, Shuffled
from gpuloader.order.samplers import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequenceSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from gpuloader.sources.dataset import IterableDataset

FIVE = range(5)

RANDOM = [
    pytest.param(lambda: RandomSampler(range(50)), id="random"),
    pytest.param(lambda: RandomSampler(range(50), num_samples=20), id="some"),
    pytest.param(lambda: RandomSampler(range(50), replacement=True), id="drawn"),
    pytest.param(lambda: WeightedRandomSampler(np.arange(50), 40), id="weighted"),
    pytest.param(lambda: WeightedRandomSampler(np.arange(50), 40, replacement=False), id="weighted once"),
    pytest.param(lambda: SubsetRandomSampler(range(100, 150)), id="subset"),
]


def ordered(sampler, seed=0, epoch=0):
    order = sampler.order(seed, epoch)
    return np.asarray(order.slice(0, len(order))).tolist()


class Letters(IterableDataset):
    def __iter__(self):
        return iter("abc")


def test_a_sampler_of_ones_own_says_its_indices():
    class Backwards(Sampler):
        def __iter__(self):
            return iter(range(len(self) - 1, -1, -1))

    sampler = Backwards(FIVE)
    assert list(sampler) == [4, 3, 2, 1, 0]
    assert len(sampler) == 5
    assert sampler.order(0, 0) is None


def test_a_sampler_that_never_called_its_base_works():
    class Alone(Sampler):
        def __init__(self):
            pass

        def __iter__(self):
            return iter([1, 2])

    assert list(Alone()) == [1, 2]
    with pytest.raises(TypeError, match="Alone has no data_source"):
        len(Alone())


def test_the_base_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="Sampler must define __iter__"):
        iter(Sampler(FIVE))


@given(count=st.integers(0, 300))
def test_a_sequence_sampler_counts(count):
    sampler = SequenceSampler(range(count))
    assert list(sampler) == ordered(sampler) == list(range(count))
    assert len(sampler) == count


def test_a_sequence_sampler_leaves_numpy_s_random_state_alone():
    np.random.seed(3)
    list(SequenceSampler(FIVE))
    drawn = np.random.random()
    np.random.seed(3)
    assert np.random.random() == drawn


@pytest.mark.parametrize("make", RANDOM)
class TestRandomSamplers:
    def test_the_length_is_what_it_gives(self, make):
        assert len(list(make())) == len(make()) == len(make().order(0, 0))

    def test_it_gives_python_integers(self, make):
        assert {type(index) for index in make()} == {int}

    def test_numpy_s_seed_repeats_it(self, make):
        np.random.seed(7)
        first, second = list(make()), list(make())
        np.random.seed(7)
        assert [list(make()), list(make())] == [first, second]
        assert first != second

    def test_its_order_depends_on_seed_and_epoch_alone(self, make):
        np.random.seed(0)
        first = ordered(make(), 1, 2)
        np.random.seed(1)
        assert ordered(make(), 1, 2) == first
        assert ordered(make(), 1, 3) != first
        assert ordered(make(), 2, 2) != first

    def test_a_subclass_with_its_own_iteration_has_no_order(self, make):
        class Own(type(make())):
            def __iter__(self):
                return iter([0])

        sampler = make()
        sampler.__class__ = Own
        assert sampler.order(0, 0) is None

    def test_a_subclass_without_one_has(self, make):
        class Named(type(make())):
            name = "mine"

        sampler = make()
        expected = ordered(sampler)
        sampler.__class__ = Named
        assert ordered(sampler) == expected

    def test_it_pickles(self, make):
        assert ordered(pickle.loads(pickle.dumps(make())), 4, 5) == ordered(make(), 4, 5)


def test_a_subclass_of_the_sequence_sampler_with_its_own_iteration_has_no_order():
    class Own(SequenceSampler):
        def __iter__(self):
            return iter([0])

    assert Own(FIVE).order(0, 0) is None
    assert SequenceSampler(FIVE).order(3, 4) == InOrder(5)


@given(count=st.integers(1, 300), seed=st.integers(0, 2**64 - 1), data=st.data())
def test_without_replacement_no_index_comes_twice(count, seed, data):
    wanted = data.draw(st.none() | st.integers(1, count)) if count else None
    sampler = RandomSampler(range(count), num_samples=wanted)
    for indices in (list(sampler), ordered(sampler, seed)):
        assert len(set(indices)) == len(indices) == len(sampler) == (count if wanted is None else wanted)
        assert set(indices) <= set(range(count))


@given(count=st.integers(1, 30), wanted=st.integers(1, 100))
def test_with_replacement_any_number_can_be_drawn(count, wanted):
    sampler = RandomSampler(range(count), replacement=True, num_samples=wanted)
    for indices in (list(sampler), ordered(sampler)):
        assert len(indices) == len(sampler) == wanted
        assert set(indices) <= set(range(count))


@given(count=st.integers(1, 40), wanted=st.integers(1, 200), seed=st.integers(0, 2**64 - 1))
def test_more_samples_than_there_are_take_one_permutation_after_another(count, wanted, seed):
    sampler = RandomSampler(range(count), num_samples=wanted)
    for indices in (list(sampler), ordered(sampler, seed)):
        assert len(indices) == len(sampler) == wanted
        for start in range(0, wanted, count):
            part = indices[start : start + count]
            assert len(set(part)) == len(part)
            assert set(part) <= set(range(count))


def test_permutations_that_follow_one_another_differ():
    indices = ordered(RandomSampler(range(100), num_samples=300), 1, 2)
    assert indices[:100] == Shuffled(100, 1, 2).slice(0, 100).tolist()
    assert len({tuple(indices[start : start + 100]) for start in (0, 100, 200)}) == 3
    order = RandomSampler(range(100), num_samples=300).order(1, 2)
    assert order.slice(95, 260).tolist() == indices[95:260]
    assert pickle.loads(pickle.dumps(order)).slice(0, 300).tolist() == indices


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
@pytest.mark.parametrize(("count", "draws"), [(5, 4), (5, 5), (5, 6), (5, 12), (1, 3)])
def test_a_numpy_generator_draws_one_permutation_after_another(make, count, draws):
    indices = list(RandomSampler(range(count), num_samples=draws, generator=make(5)))
    assert len(indices) == draws
    for start in range(0, draws - count + 1, count):
        assert sorted(indices[start : start + count]) == list(range(count))


SEEDED = {
    "weighted": lambda generator: WeightedRandomSampler(range(1, 41), 30, generator=generator),
    "subset": lambda generator: SubsetRandomSampler(range(40), generator),
}


@pytest.mark.parametrize("make", SEEDED.values(), ids=SEEDED)
@pytest.mark.parametrize("kind", [np.random.default_rng, np.random.RandomState])
def test_a_generator_gives_the_seed(make, kind):
    """It is drawn once, so an epoch's order is the same wherever a loader resumes, whatever its own seed."""
    first, same, other = (make(kind(seed)) for seed in (5, 5, 6))
    assert ordered(first, 1, 2) == ordered(first, 99, 2) == ordered(same, 1, 2)
    assert ordered(first, 1, 2) != ordered(first, 1, 3)
    assert ordered(first, 1, 2) != ordered(other, 1, 2)
    assert list(first) == list(same)
    assert list(first) != list(first)


def test_a_subset_may_be_empty():
    assert list(SubsetRandomSampler([])) == ordered(SubsetRandomSampler([])) == []
    assert len(SubsetRandomSampler([])) == 0


def test_samplers_can_be_annotated_with_their_indices():
    assert Sampler[int].__origin__ is Sampler
    assert issubclass(BatchSampler, Sampler)

    class Names(Sampler[str]):
        def __iter__(self):
            return iter(["a"])

    assert list(Names()) == ["a"]
    with pytest.raises(TypeError, match="Names has no data_source"):
        len(Names())


def test_a_data_set_that_grows_is_read_whole():
    samples = [1, 2, 3]
    sampler = RandomSampler(samples)
    samples.append(4)
    assert sorted(sampler) == sorted(ordered(sampler)) == [0, 1, 2, 3]
    assert len(sampler) == sampler.num_samples == 4


def test_an_iterator_is_read_on_until_it_ends():
    sampler = RandomSampler(FIVE, generator=iter([3, 1, 2, 0, 4, 4, 4]))
    assert list(sampler) == [3, 1, 2, 0, 4]
    assert list(sampler) == [4, 4]
    assert list(sampler) == []
    assert len(sampler) == 5
    assert sampler.order(0, 0) is None


def test_no_more_of_an_iterator_is_read_than_asked_for():
    def indices():
        yield from [0, 1, 2]
        raise AssertionError("read too far")

    assert list(RandomSampler(FIVE, num_samples=3, generator=indices())) == [0, 1, 2]
    assert list(RandomSampler(FIVE, True, 3, indices())) == [0, 1, 2]


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
@pytest.mark.parametrize("replacement", [False, True])
def test_a_numpy_generator_draws(make, replacement):
    def sampler():
        return RandomSampler(range(40), replacement, 30, generator=make(5))

    one = sampler()
    first, second = list(one), list(one)
    assert first == list(sampler())
    assert first != second
    assert len(first) == 30
    assert set(first) <= set(range(40))
    assert (len(set(first)) == 30) is not replacement
    assert one.order(0, 0) is None


def test_numpys_seed_stands_for_the_same_order_in_every_release():
    """NumPy keeps what a `RandomState` draws, so the order of a program that seeds it must stay, too."""
    np.random.seed(1)
    assert list(RandomSampler(range(10))) == [9, 1, 3, 2, 0, 5, 7, 4, 6, 8]
    sampler = SubsetRandomSampler(range(10), np.random.RandomState(1))
    assert ordered(sampler) == Shuffled(10, 7692698082559361259, 0).slice(0, 10).tolist()


def test_weights_may_be_any_list_of_numbers():
    for weights in ([0, 1, 0, 2], (0, 1, 0, 2), np.array([0, 1, 0, 2], np.float32)):
        sampler = WeightedRandomSampler(weights, 30)
        assert set(sampler) == set(ordered(sampler)) == {1, 3}
        assert len(sampler) == 30
    assert sorted(WeightedRandomSampler([0, 1, 0, 2], 2, replacement=False)) == [1, 3]
    with pytest.raises(ValueError, match="read-only"):
        sampler.weights[0] = 1  # after the order has been computed, this would have no effect


def test_a_subset_is_shuffled():
    assert sorted(SubsetRandomSampler([7, -1, 7, 3])) == [-1, 3, 7, 7]
    assert ordered(SubsetRandomSampler(range(5)), 8, 9) == Shuffled(5, 8, 9).slice(0, 5).tolist()


@pytest.mark.parametrize(
    ("make", "kind", "problem"),
    [
        (lambda: SequenceSampler(5), TypeError, "data_source must have a length, got int"),
        (lambda: RandomSampler(iter([1])), TypeError, "data_source must have a length, got list_iterator"),
        (lambda: RandomSampler(Letters()), TypeError, "Letters is an IterableDataset: .* no length"),
        (lambda: SequenceSampler(Letters()), TypeError, "Letters is an IterableDataset: .* no length"),
        (lambda: RandomSampler(FIVE, 1), TypeError, "replacement must be True or False, got 1"),
        (lambda: RandomSampler(FIVE, num_samples=0), ValueError, "num_samples must be .* 1 or more, got 0"),
        (lambda: RandomSampler(FIVE, True, 2.5), ValueError, "num_samples must be .* 1 or more, got 2.5"),
        (lambda: RandomSampler(FIVE, True, True), ValueError, "num_samples must be .* 1 or more, got True"),
        (lambda: RandomSampler([]), ValueError, "num_samples=0, but the data source is empty"),
        (lambda: RandomSampler([], False, 6), ValueError, "num_samples=6, but the data source is empty"),
        (lambda: RandomSampler([], True, 6), ValueError, "num_samples=6, but the data source is empty"),
        (lambda: RandomSampler(FIVE, generator=3), TypeError, "an iterator of indices, .*, got int"),
        (lambda: RandomSampler(FIVE, generator=[1]), TypeError, "an iterator of indices, .*, got list"),
        (lambda: WeightedRandomSampler([1], 0), ValueError, "num_samples must be .* 1 or more, got 0"),
        (lambda: WeightedRandomSampler([1], 1, "x"), TypeError, "replacement must be True or False, got 'x'"),
        (lambda: WeightedRandomSampler([1, -2], 1), ValueError, "0 or more, got -2.0 at index 1"),
        (lambda: WeightedRandomSampler([0, 0], 1), ValueError, "0 weights are above 0"),
        (lambda: WeightedRandomSampler([], 1), ValueError, "0 weights are above 0"),
        (lambda: WeightedRandomSampler([1, 0], 2, False), ValueError, "without replacement: 1 weights"),
        (lambda: WeightedRandomSampler(None, 2), ValueError, "weights must be "),
        (lambda: SubsetRandomSampler([1], 5), TypeError, "generator must be a torch.Generator, .*, got int"),
        (lambda: WeightedRandomSampler([1], 1, True, [5]), TypeError, "torch.Generator, .*, got list"),
        (lambda: SubsetRandomSampler(5), TypeError, "indices must be a list of integers, got int"),
        (lambda: SubsetRandomSampler(["a"]), TypeError, "got list of <U1"),
        (lambda: SubsetRandomSampler([True]), TypeError, "boolean mask"),
    ],
)
def test_a_bad_argument_is_an_error_that_names_it(make, kind, problem):
    with pytest.raises(kind, match=problem):
        make()
