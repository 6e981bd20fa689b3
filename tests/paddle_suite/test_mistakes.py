"""Samplers and datasets that cannot be made or read: both libraries raise errors of the same builtin type."""

import numpy as np
import pytest

from tests.paddle_suite.datasets import pictures, stream

TEN = range(10)
HALF = np.repeat([0.5, 0], 5)  # weights of which five are above 0
REFUSED = {
    "Sampler": [(lambda io: iter(io.Sampler(TEN)), NotImplementedError)],
    "RandomSampler": [
        (lambda io: io.RandomSampler(TEN, True, 0), ValueError),
        (lambda io: io.RandomSampler(TEN, num_samples=2.0), ValueError),
        (lambda io: io.RandomSampler(TEN, 1), TypeError),
    ],
    "WeightedRandomSampler": [
        (lambda io: list(io.WeightedRandomSampler(np.zeros(10), 10, True)), AssertionError),
        (lambda io: list(io.WeightedRandomSampler(HALF, 10, False)), AssertionError),
        (lambda io: list(io.WeightedRandomSampler(-np.ones(10), 10, True)), AssertionError),
        (lambda io: io.WeightedRandomSampler(HALF, 2.3, True), ValueError),
        (lambda io: io.WeightedRandomSampler(HALF, -1, True), ValueError),
        (lambda io: io.WeightedRandomSampler(HALF, 5, 5), ValueError),
    ],
    "BatchSampler": [
        (lambda io: io.BatchSampler(), AssertionError),
        (lambda io: io.BatchSampler(TEN, io.SequenceSampler(TEN)), AssertionError),
        (lambda io: io.BatchSampler(sampler=TEN, shuffle=True), AssertionError),
        (lambda io: io.BatchSampler(sampler=3), AssertionError),
        (lambda io: io.BatchSampler(TEN, batch_size=0), AssertionError),
        (lambda io: io.BatchSampler(TEN, batch_size=2.0), AssertionError),
        (lambda io: io.BatchSampler(TEN, shuffle=1), AssertionError),
        (lambda io: io.BatchSampler(TEN, drop_last=1), AssertionError),
        (lambda io: io.BatchSampler(io.IterableDataset()), AssertionError),
    ],
    "DistributedBatchSampler": [
        (lambda io: io.DistributedBatchSampler(TEN, 0), AssertionError),
        (lambda io: io.DistributedBatchSampler(TEN, 2, 0, 0), AssertionError),
        (lambda io: io.DistributedBatchSampler(TEN, 2, 2, -1), AssertionError),
        (lambda io: io.DistributedBatchSampler(TEN, 2, 2, 0, shuffle=1), AssertionError),
        (lambda io: io.DistributedBatchSampler(TEN, 2, 2, 0, drop_last=1), AssertionError),
    ],
    "Dataset": [
        (lambda io: io.Dataset()[0], NotImplementedError),
        (lambda io: len(io.Dataset()), NotImplementedError),
        (lambda io: iter(io.IterableDataset()), NotImplementedError),
        (lambda io: io.IterableDataset()[0], RuntimeError),
        (lambda io: len(io.IterableDataset()), RuntimeError),
    ],
    "ConcatDataset": [
        (lambda io: io.ConcatDataset([]), AssertionError),
        (lambda io: io.ConcatDataset([[0, 1], [2]])[4], IndexError),
        (lambda io: io.ConcatDataset([[0, 1], [2]])[-4], ValueError),
    ],
    "random_split": [
        (lambda io, lengths=lengths: io.random_split(range(5), lengths), ValueError)
        for lengths in ([3, 8], [8], [], [-0.2, 1.2], [0.5, 0.4])
    ],
    "ComposeDataset": [(lambda io: io.ComposeDataset([]), AssertionError)],
    "ChainDataset": [(lambda io: io.ChainDataset([]), AssertionError)],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_made_or_read(lib, name):
    for number, (make, error) in enumerate(REFUSED[name]):
        try:
            make(lib.io)
        except error:
            continue
        pytest.fail(f"case {number} of {name} raised no {error.__name__}")


def test_datasets_that_do_not_go_together(lib):
    rows, more, items = pictures(lib, 3), pictures(lib, 4), stream(lib, 3)
    tensors = [lib.tensor(np.ones(2)), lib.tensor(np.ones(3))]
    for name, *several in (
        ("ComposeDataset", [items], [rows, more]),
        ("ChainDataset", [rows]),
        ("ConcatDataset", [items], [rows, items], [items, rows]),
        ("TensorDataset", tensors),
    ):
        for parts in several:
            with pytest.raises(AssertionError):
                getattr(lib.io, name)(parts)
