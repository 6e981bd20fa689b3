"""Iterable datasets: alone, chained, and divided among workers."""

import warnings

import pytest
import torch

from tests.fakes import is_running, wait_until
from tests.sample_sets import values
from tests.torch_suite.datasets import Numbers, Processes, Shares, WorkerNumbers, stream


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("style", ["map-style", "iterable"])
def test_a_loader_becomes_a_list_or_tuple(lib, workers, kind, style, persistent):
    def load(size):
        dataset = Numbers(20) if style == "map-style" else stream(lib, 20)
        options = {"num_workers": 1, **persistent} if workers else {}
        return kind(lib.DataLoader(dataset, batch_size=size, **options))

    assert load(None) == kind(range(20))
    assert all(type(item) is int for item in load(None))
    batches = load(2)
    assert type(batches) is kind
    assert values(batches) == [[first, first + 1] for first in range(0, 20, 2)]


SIZES = [0, 4, 20]


@pytest.mark.parametrize("prefetch", [2, 4])
def test_workers_with_unequal_shares(lib, prefetch, persistent):
    options = {"num_workers": 3, "prefetch_factor": prefetch, **persistent}
    loader = lib.DataLoader(Shares(SIZES), batch_size=None, **options)
    for _ in range(2):
        items = list(loader)
        assert all(type(item) is int for item in items)
        assert sorted(items) == sorted([*range(4), *range(20)])
    assert len(loader) == 24
    batches = {tuple(batch.tolist()) for batch in lib.DataLoader(Shares(SIZES), 7, **options)}
    whole = {tuple(range(7)), tuple(range(7, 14))}
    assert batches == {tuple(range(4)), tuple(range(14, 20))} | whole
    batches = {tuple(batch.tolist()) for batch in lib.DataLoader(Shares(SIZES), 7, drop_last=True, **options)}
    assert batches == whole


def test_workers_take_turns_in_every_epoch(lib, persistent):
    loader = lib.DataLoader(WorkerNumbers(20), batch_size=10, num_workers=2, **persistent)
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
    loader = lib.DataLoader(stream(lib, 20), num_workers=3)
    assert len(loader) == 20
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(loader)) == 60
    warned = [str(one.message) for one in caught if "length" in str(one.message).lower()]
    if lib.differs("no-warning-of-more-items"):
        assert not warned
    else:
        assert warned


class Identified(torch.utils.data.IterableDataset):
    """The process that yields each item, without end."""

    def __iter__(self):
        while True:
            yield Processes(1)[0]


def test_an_endless_stream_can_be_left(lib, persistent):
    loader = lib.DataLoader(Identified(), batch_size=4, num_workers=2, **persistent)
    workers = set()
    for number, batch in enumerate(loader):
        workers |= set(batch.tolist())
        if number == 5:
            break
    del loader
    wait_until(lambda: not any(map(is_running, workers)), 30)
