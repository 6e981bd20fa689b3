"""Iterable datasets: alone, chained, and divided among workers."""

import contextlib
import itertools
import warnings

import pytest
from torch.utils import data

from tests.fakes import is_running, wait_until
from tests.sample_sets import values
from tests.torch_suite.datasets import Items, Stream, tell_process


class Shares(Stream):
    """As many numbers from each of three workers as its size says."""

    SIZES = 0, 4, 20

    def __iter__(self):
        return iter(range(self.SIZES[data.get_worker_info().id]))


def test_workers_with_unequal_shares(lib, persistent):
    ahead = 4 if persistent["persistent_workers"] else 2
    options = {"num_workers": 3, "prefetch_factor": ahead, **persistent}
    loader = lib.DataLoader(Shares(24), batch_size=None, **options)
    for _ in range(2):
        items = list(loader)
        assert all(type(item) is int for item in items)
        assert sorted(items) == sorted([*range(4), *range(20)])
    assert len(loader) == 24
    whole = [[*range(7)], [*range(7, 14)]]
    for drop_last, wanted in ((False, [[*range(4)], *whole, [*range(14, 20)]]), (True, whole)):
        assert sorted(values(lib.DataLoader(Shares(24), 7, drop_last=drop_last, **options))) == sorted(wanted)


def repeat_number():
    """Return the worker's own number, as often as its share says."""
    info = data.get_worker_info()
    return [info.id] * (20 // info.num_workers)


def test_workers_take_turns_in_every_epoch(lib, persistent):
    loader = lib.DataLoader(Items(repeat_number), batch_size=10, num_workers=2, **persistent)
    for _ in range(3):
        assert values(loader) == [[0] * 10, [1] * 10]


@pytest.mark.parametrize("option", ["sampler", "batch_sampler"])
def test_a_second_epoch_over_a_generator(lib, option):
    indices = (index if option == "sampler" else [index] for index in range(4))
    loader = lib.DataLoader(range(4), **{option: indices})
    assert values(loader) == [[0], [1], [2], [3]]
    if lib.differs("read-once"):
        with pytest.raises(TypeError, match=f"epoch 1 has no samples, because the {option} is a generator"):
            list(loader)
    else:
        assert list(loader) == []


@pytest.mark.filterwarnings("default")
def test_more_items_than_the_length(lib):
    """Three workers that each yield everything: three times as many batches as the length promises."""
    loader = lib.DataLoader(Stream(20), num_workers=3)
    assert len(loader) == 20
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(loader)) == 60
    warned = any("length" in str(one.message).lower() for one in caught)
    assert warned is not lib.differs("no-warning-of-more-items")


def test_data_pipes(lib):
    """Only PyTorch's loader tells each worker which items of a data pipe are its own."""
    pipe = data.datapipes.iter.IterableWrapper(range(6)).sharding_filter()
    assert values(lib.DataLoader(pipe, batch_size=3)) == [[0, 1, 2], [3, 4, 5]]
    refused = pytest.raises(TypeError, match="workers cannot divide a data pipe: pass num_workers=0")
    with refused if lib.differs("no-data-pipes-in-workers") else contextlib.nullcontext():
        assert values(lib.DataLoader(pipe, batch_size=3, num_workers=2)) == [[0, 2, 4], [1, 3, 5]]


def test_an_endless_stream_can_be_left(lib, persistent):
    endless = Items(lambda: map(tell_process, itertools.count()))
    loader = lib.DataLoader(endless, batch_size=4, num_workers=2, **persistent)
    workers = {int(process) for batch in itertools.islice(loader, 6) for process in batch}
    del loader
    wait_until(lambda: not any(map(is_running, workers)))
