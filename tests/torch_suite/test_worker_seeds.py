"""What workers know: their number, their seed, and what worker_init_fn gives them."""

import functools
import random

import numpy as np
import pytest
import torch
from torch.utils import data

import gpuloader.torch
from tests.torch_suite.datasets import Asking, Seeds


def seed_with_a_constant(worker):
    torch.manual_seed(12345)


def test_a_seed_set_in_worker_init_fn(lib, persistent):
    loader = lib.DataLoader(
        Seeds(4), batch_size=2, num_workers=2, worker_init_fn=seed_with_a_constant, **persistent
    )
    seeds = {int(seed) for batch in loader for seed in batch}
    assert seeds == {12345}


def load_seeds(lib, **options):
    return [int(seed) for batch in lib.DataLoader(Seeds(6), num_workers=2, **options) for seed in batch]


def test_workers_have_seeds_of_their_own(lib, persistent):
    assert len(set(load_seeds(lib, **persistent))) > 1


def test_a_generator_determines_the_workers_seeds(lib):
    first, second, third = (
        load_seeds(lib, generator=torch.Generator().manual_seed(seed)) for seed in (42, 42, 43)
    )
    assert first == second
    assert not set(first) & set(third)


def leave_a_note(ask, worker):
    info = ask()
    assert (info.id, info.num_workers) == (worker, 2)
    assert isinstance(info.dataset, Asking)
    assert not hasattr(info.dataset, "found")
    assert isinstance(info.seed, int)
    for name in ("id=", "num_workers=", "seed=", "dataset="):
        assert name in repr(info)
    for name in ("id", "another"):
        try:
            setattr(info, name, 3999)
        except (RuntimeError, AttributeError, TypeError):
            continue
        raise AssertionError(f"{name} can be assigned")
    info.dataset.found = [worker, info.num_workers]


@pytest.mark.parametrize("ask", [data.get_worker_info, gpuloader.torch.get_worker_info])
def test_worker_init_fn_changes_the_workers_dataset(lib, ask):
    if lib.name == "torch" and ask is not lib.get_worker_info:
        pytest.skip("PyTorch's workers do not answer ours")
    assert ask() is None
    dataset = Asking(6)
    init = functools.partial(leave_a_note, ask)
    found = torch.cat(list(lib.DataLoader(dataset, batch_size=2, num_workers=2, worker_init_fn=init)))
    assert {worker for worker, _ in found.tolist()} <= {0, 1}
    assert found[:, 1].tolist() == [2] * 6
    assert ask() is None
    assert not hasattr(dataset, "found")


def test_the_worker_infos_seed_is_the_global_one(lib):
    loader = lib.DataLoader(SeedsTwice(4), num_workers=2)
    same = [bool(one) for batch in loader for one in batch]
    assert all(same)


class SeedsTwice(Seeds):
    def __getitem__(self, index):
        return torch.initial_seed() == lib_seed()


def lib_seed():
    return data.get_worker_info().seed


class Drawing(Seeds):
    """What each of the three global generators draws for a sample."""

    def __getitem__(self, index):
        return random.random(), np.random.random(), torch.rand(2)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # of PyTorch's
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_a_dataset_draws_in_workers(workers, persistent):
    def epochs(kind):
        torch.manual_seed(3)
        loader = kind(Drawing(13), 2, shuffle=True, num_workers=workers, **persistent)
        return [[field.tolist() for field in batch] for _ in range(2) for batch in loader]

    assert epochs(gpuloader.torch.DataLoader) == epochs(data.DataLoader)


def test_the_items_that_iterable_datasets_draw(persistent):
    def epochs(kind):
        torch.manual_seed(3)
        loader = kind(DrawnItems(), 2, num_workers=2, **persistent)
        return [batch.tolist() for _ in range(2) for batch in loader]

    assert epochs(gpuloader.torch.DataLoader) == epochs(data.DataLoader)


class DrawnItems(data.IterableDataset):
    def __iter__(self):
        return (random.random() + float(torch.rand(1)) for _ in range(5))


def test_a_seed_draws_by_the_batch_whatever_the_number_of_workers():
    def epoch(workers):
        loader = gpuloader.torch.DataLoader(Drawing(13), 2, num_workers=workers, seed=5)
        return [[field.tolist() for field in batch] for batch in loader]

    assert epoch(1) == epoch(3)


def test_epochs_that_follow_a_state_with_a_seed_draw_anew():
    loader = gpuloader.torch.DataLoader(Drawing(6), 2, shuffle=True, num_workers=1, seed=5)
    expected = [[field.tolist() for field in batch] for _ in range(2) for batch in loader]
    again = gpuloader.torch.DataLoader(Drawing(6), 2, shuffle=True, num_workers=1)
    again.load_state_dict(gpuloader.torch.DataLoader(Drawing(6), 2, shuffle=True, seed=5).state_dict())
    assert [[field.tolist() for field in batch] for _ in range(2) for batch in again] == expected
