"""Datasets shared by several tests, and a plain collation to compare with."""

import collections

import numpy as np

from gpuloader import Dataset, IterableDataset, get_worker_info

INLINE = {"num_workers": 0}
ONE_THREAD = {"num_workers": 1, "worker_type": "thread"}
THREADS = {"num_workers": 3, "worker_type": "thread"}
PROCESSES = {"num_workers": 2, "start_method": "fork"}
"""Costs about 40 ms per epoch, so only a few tests use it."""

WORKERS = [INLINE, ONE_THREAD, THREADS]


def name_workers(options):
    """Return the name of a choice of workers for test ids."""
    return f"{options['num_workers']} {options.get('worker_type', 'inline')}"


class Made(Dataset):
    """A dataset whose samples a function makes from their indices."""

    def __init__(self, make, count=7):
        self.make = make
        self.count = count

    def __getitem__(self, index):
        return self.make(index)

    def __len__(self):
        return self.count


class MadeAtOnce(Made):
    """The same, for a whole batch at once; counts the calls."""

    calls = 0

    def __getitem__(self, index):
        raise AssertionError("__getitems__ should be called instead")

    def __getitems__(self, indices):
        self.calls += 1
        assert type(indices) is list
        return [self.make(index) for index in indices]


class Counting(IterableDataset):
    """Integers below `count`, divided among workers."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(start, self.count, step)


class Stateful(Counting):
    """The same, with a state: the next number. Records what it has yielded."""

    def __init__(self, count):
        super().__init__(count)
        self.state = {"next": None}
        self.given = []

    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        begin = start if self.state["next"] is None else self.state["next"]
        for number in range(begin, self.count, step):
            self.state["next"] = number + step
            self.given.append(number)
            yield number
        self.state["next"] = None

    def state_dict(self):
        return self.state  # the object itself, which keeps changing

    def load_state_dict(self, state):
        self.state = dict(state)


Pair = collections.namedtuple("Pair", "left right")


def stack(samples):
    """Return the batch of some samples, collated in plain Python."""
    first = samples[0]
    if isinstance(first, dict):
        batch = {key: _stack([sample[key] for sample in samples]) for key in first}
        return collections.OrderedDict(batch) if isinstance(first, collections.OrderedDict) else batch
    if isinstance(first, tuple | list) and not hasattr(first, "_fields"):
        return [_stack(list(column)) for column in zip(*samples, strict=True)]
    return _stack(samples)


def _stack(samples):
    first = samples[0]
    if isinstance(first, Pair):
        return Pair(*(_stack(list(column)) for column in zip(*samples, strict=True)))
    if isinstance(first, dict | list | tuple):
        return stack(samples)
    if isinstance(first, int | float | complex | np.generic | np.ndarray) or hasattr(first, "__array__"):
        arrays = [np.asarray(sample) for sample in samples]
        if arrays[0].dtype.kind not in "OUSmM":
            return np.stack(arrays).astype(arrays[0].dtype.newbyteorder("="))
    return samples


def assert_same(got, wanted):
    """Assert that two batches are equal: containers, dtypes, shapes and values."""
    assert type(got) is type(wanted), (got, wanted)
    if isinstance(wanted, dict):
        assert list(got) == list(wanted)
        for key in wanted:
            assert_same(got[key], wanted[key])
    elif isinstance(wanted, list | tuple):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, np.ndarray):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(got, wanted)
    else:
        assert got == wanted


def values(loader):
    return [batch.tolist() for batch in loader]
