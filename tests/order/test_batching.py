"""A loader tells samplers of the user's own which epoch begins."""

import pytest

from gpuloader import BatchSampler, DistributedBatchSampler
from tests.loading import load

NUMBERS = list(range(10))


class Turned:
    """Yields the numbers below 4, beginning at the epoch; records the epochs it was told."""

    epoch = 0

    def __init__(self):
        self.told = []

    def set_epoch(self, epoch):
        self.told.append(epoch)
        self.epoch = epoch

    def __iter__(self):
        return iter([(self.epoch + number) % 4 for number in range(4)])

    def __len__(self):
        return 4


def epochs(loader, count):
    return [[int(number) for batch in loader for number in batch] for _ in range(count)]


THREE = [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1]]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda sampler: {"sampler": sampler, "batch_size": 2},
        lambda sampler: {"batch_sampler": BatchSampler(sampler=sampler, batch_size=2)},
        lambda sampler: {"sampler": BatchSampler(sampler=sampler, batch_size=1), "batch_size": 1},
    ],
    ids=["sampler", "inside a batch sampler", "inside a batch sampler as sampler"],
)
def test_a_sampler_is_told_each_epoch(wrap):
    class Lists(list):
        def __getitem__(self, index):
            return super().__getitem__(index[0] if isinstance(index, list) else index)

    sampler = Turned()
    assert epochs(load(Lists(NUMBERS), **wrap(sampler)), 3) == THREE
    assert sampler.told == [0, 1, 2]


def test_a_batch_sampler_is_told_too():
    class TurnedBatches(Turned):
        def __iter__(self):
            return iter([list(super().__iter__())])

    assert epochs(load(NUMBERS, batch_sampler=TurnedBatches()), 3) == THREE


def test_the_number_is_the_loaders():
    loader = load(NUMBERS, sampler=Turned())
    loader.set_epoch(2)
    assert epochs(loader, 1) == THREE[2:]
    next(iter(loader))
    again = load(NUMBERS, sampler=Turned())
    again.load_state_dict(loader.state_dict())
    assert epochs(again, 1) == [[0, 1, 2]]  # epoch 3, without its first sample
    assert again.sampler.told == [3]


@pytest.mark.parametrize("first", [0, 2])
def test_who_sets_it_keeps_setting_it(first):
    """As programs written for PyTorch do, also when they resume in a later epoch."""
    sampler = Turned()
    loader = load(NUMBERS, sampler=sampler)
    for epoch in range(first, first + 3):
        sampler.set_epoch(epoch)
        assert epochs(loader, 1) == [[(epoch + number) % 4 for number in range(4)]]
    assert sampler.told[-3:] == [*range(first, first + 3)]
    assert len(sampler.told) == 3 + (first == 0)  # which the loader sets, too


def test_a_sampler_that_counts_by_itself_is_left_alone():
    class Counts(Turned):
        def __iter__(self):
            yield from super().__iter__()
            self.epoch += 1

    sampler = Counts()
    assert epochs(load(NUMBERS, sampler=sampler), 3) == THREE
    assert sampler.told == [0]


def test_a_sampler_without_an_epoch_to_read_is_always_told():
    class Hidden:
        def set_epoch(self, epoch):
            self._first = epoch

        def __iter__(self):
            return iter([self._first])

    assert epochs(load(NUMBERS, sampler=Hidden()), 3) == [[0], [1], [2]]


def test_a_sampler_with_an_order_for_each_epoch_is_not_told():
    """It would take that for the user's call, after which the loader's epoch no longer counts."""
    sampler = DistributedBatchSampler(NUMBERS, 5, 1, 0, shuffle=True)
    loader = load(NUMBERS, batch_sampler=sampler)
    first = epochs(loader, 3)
    loader.set_epoch(1)
    assert epochs(loader, 1) == first[1:2]
    assert sampler.epoch == 0


def test_an_error_of_set_epoch_is_the_users_own():
    class Refusing(Turned):
        def set_epoch(self, epoch):
            raise RuntimeError("no epochs here")

    with pytest.raises(RuntimeError, match="no epochs here"):
        next(iter(load(NUMBERS, sampler=Refusing())))
