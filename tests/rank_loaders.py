"""Loaders for all ranks of a run in one process, and the contents of their batches."""

import json

from gpuloader import DataLoader, IterableDataset


class Stream(IterableDataset):
    """Integers below `count`; counts how many were read."""

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
        options["shuffle"] = count > 0  # an empty dataset cannot be shuffled
    return [make(kind(count), rank, world_size, **options) for rank in range(world_size)]


def numbers(batch):
    """Return the samples of a batch that count: all, or those that its mask marks."""
    if not isinstance(batch, list):
        return batch.tolist()
    values, mask = batch
    assert mask.dtype == bool
    assert mask.shape == values.shape[:1]
    return values[mask].tolist()


def values_of(batch):
    """Return the samples of a batch, those that do not count included."""
    return (batch[0] if isinstance(batch, list) else batch).tolist()


def epoch_of(loader):
    return [numbers(batch) for batch in loader]


def order_of(count, epoch=0, **options):
    """Return the order of an epoch that is not divided among ranks."""
    if not count:
        return []
    loader = DataLoader(range(count), places="cpu", batch_size=count, shuffle=True, seed=5, **options)
    loader.set_epoch(epoch)
    return [number for batch in loader for number in batch.tolist()]


def loaders_of(dataset, world_size, **options):
    """Return one loader per rank, all for the same dataset object."""
    return [make(dataset, rank, world_size, **options) for rank in range(world_size)]


def read_in_legs(legs):
    """Return the samples of an epoch and the state behind it; a leg is the loaders of all ranks, and steps.

    The state of the ranks, which must be one, passes through JSON from leg to leg.
    """
    state, samples = None, []
    for ranks, most in legs:
        for loader in ranks if state is not None else ():
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert loader.state_dict() == state
        epochs = [iter(loader) for loader in ranks]
        for _ in range(most):
            step = [next(epoch, None) for epoch in epochs]
            assert len({batch is None for batch in step}) == 1
            if step[0] is None:
                break
            samples += [one for batch in step for one in numbers(batch)]
        state = ranks[0].state_dict()
        assert all(loader.state_dict() == state for loader in ranks)
        if state["epoch"]:
            break
    return samples, state
