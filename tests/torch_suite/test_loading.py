"""Every sample once, in order or shuffled, with and without workers."""

import os

import numpy as np
import pytest
import torch

from tests.sample_sets import values
from tests.torch_suite.datasets import Items, Made, Numbers, Remembering


@pytest.mark.parametrize("context", [None, "fork"])
def test_loaders_take_turns(lib, context, persistent):
    first = iter(lib.DataLoader(Numbers(10), num_workers=1, **persistent))
    second = iter(lib.DataLoader(Numbers(10), num_workers=2, multiprocessing_context=context, **persistent))
    turns = [first, first, second, second, first, second]
    assert [int(next(one)) for one in turns] == [0, 1, 0, 1, 2, 2]


@pytest.mark.parametrize(("workers", "stay"), [(0, False), (2, False), (2, True)])
def test_what_workers_see_of_a_dataset_that_changes(lib, workers, stay):
    """New workers see it as it is now, and persistent ones keep that of the first epoch."""
    dataset = Remembering(4)
    loader = lib.DataLoader(dataset, num_workers=workers, persistent_workers=stay)
    for setting in range(4):
        dataset.setting = setting
        assert {int(batch) for batch in loader} == {0 if stay else setting}


@pytest.mark.parametrize("library", [np, torch])
@pytest.mark.parametrize("context", [None, "fork"])
def test_a_worker_multiplies_matrices_after_its_parent_has(lib, library, context):
    """On the parent's threads; a fork does not copy them, and a worker must not wait for them."""
    matrix = library.ones((600, 600))
    threads = torch.get_num_threads()
    torch.set_num_threads(max(threads, 4))
    try:
        multiply = lambda index: float((matrix @ matrix)[0, 0])  # noqa: E731
        assert multiply(0) == 600
        loader = lib.DataLoader(Made(multiply, 2), 2, num_workers=2, multiprocessing_context=context)
        assert values(loader) == [[600.0, 600.0]]
    finally:
        torch.set_num_threads(threads)


def choose_last(worker):
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])


def find_processors():
    torch.randperm(1)
    return os.sched_getaffinity(0)


def test_a_worker_may_choose_its_processors(lib):
    last = max(os.sched_getaffinity(0))
    loader = lib.DataLoader(Items(find_processors), num_workers=2, worker_init_fn=choose_last)
    assert values(loader) == [[last], [last]]


def tell_worker(index):
    """Return the number of the worker, and the index."""
    return torch.utils.data.get_worker_info().id, index


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("size", [8, 32])
def test_workers_take_batches_in_turn(lib, workers, size):
    batches = list(lib.DataLoader(Made(tell_worker, 128), size, num_workers=workers, timeout=60))
    assert [batch.tolist() for _, batch in batches] == torch.arange(128).reshape(-1, size).tolist()
    turns = [set(numbers.tolist()) for numbers, _ in batches]
    assert turns == [{batch % workers} for batch in range(128 // size)]
