"""Iterators over a loader: an epoch begins when its first step is requested."""

import pytest

from gpuloader import DataLoader
from tests.fakes import loader_threads
from tests.sample_sets import ONE_THREAD, THREADS, values


def load(count=4, **options):
    return DataLoader(range(count), **{"places": "cpu", "batch_size": 2, "seed": 1, **options})


def test_an_unused_iterator_takes_no_epoch_and_starts_no_worker():
    loader = load(shuffle=True, **ONE_THREAD)
    unused = iter(loader)
    assert loader_threads() == []
    assert values(loader) == values(load(shuffle=True))
    assert loader.state_dict()["epoch"] == 1
    assert len(list(unused)) == 2


def test_epochs_side_by_side_differ():
    loader = load(40, shuffle=True)
    pairs = [(one.tolist(), other.tolist()) for one, other in zip(loader, loader, strict=True)]
    assert all(one != other for one, other in pairs)


def test_what_is_set_before_the_first_step_counts():
    loader = load(8, shuffle=True)
    epochs = [values(loader) for _ in range(4)]
    epoch = iter(loader)
    loader.set_epoch(2)
    assert values(epoch) == epochs[2]
    epoch = iter(loader)
    loader.load_state_dict({"version": 1, "epoch": 1, "batches": 1, "seed": 1, "batch_size": 2})
    assert values(epoch) == epochs[1][1:]


@pytest.mark.parametrize("begun", [False, True])
def test_a_closed_iterator_is_over(begun):
    loader = load(**THREADS)
    epoch = iter(loader)
    if begun:
        next(epoch)
    epoch.close()
    epoch.close()
    assert loader_threads() == []
    assert list(epoch) == []
    assert loader.state_dict()["epoch"] == 0


def test_an_iterator_that_could_not_begin_may_begin_later(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    loader = load(shard="auto")
    epoch = iter(loader)
    with pytest.raises(ValueError, match="but not RANK"):
        next(epoch)
    assert loader.state_dict()["epoch"] == 0
    monkeypatch.setenv("RANK", "0")
    assert values(epoch) == [[0, 1], [2, 3]]
