"""What workers know: their number, their seed, and what worker_init_fn gives them."""

import functools
import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils import data

import gpuloader.torch
from tests.sample_sets import values
from tests.torch_suite.datasets import Items, Made, Numbers, seeded
from tests.torch_suite.libraries import assert_same_on_both


def seed_with_a_constant(worker):
    torch.manual_seed(12345)


def test_a_seed_set_in_worker_init_fn(lib, persistent):
    seeds = Made(lambda index: torch.initial_seed(), 4)
    loader = lib.DataLoader(
        seeds, batch_size=2, num_workers=2, worker_init_fn=seed_with_a_constant, **persistent
    )
    assert values(loader) == [[12345] * 2] * 2


class Asking(Numbers):
    """What `worker_init_fn` has left in the worker's copy of the dataset."""

    def __getitem__(self, index):
        return torch.tensor(self.found)


def leave_a_note(ask, worker):
    info = ask()
    assert (info.id, info.num_workers) == (worker, 2)
    assert isinstance(info.dataset, Asking)
    assert not hasattr(info.dataset, "found")
    assert info.seed == torch.initial_seed()
    for name in ("id=", "num_workers=", "seed=", "dataset="):
        assert name in repr(info)
    for name in ("id", "another"):
        with pytest.raises((RuntimeError, AttributeError, TypeError)):
            setattr(info, name, 3999)
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


def draw(index):
    """Return what each of the three global generators draws, and the seeds of the worker."""
    drawn = random.random(), np.random.random(), torch.rand(2)
    return *drawn, torch.initial_seed() % 2**63, data.get_worker_info().seed


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # of PyTorch's
@pytest.mark.parametrize(
    ("workers", "generator", "kept"),
    [(1, None, False), (3, seeded, False), (3, None, True), (1, seeded, True)],
)
def test_what_a_dataset_draws_in_workers(workers, generator, kept):
    def epochs(lib):
        options = {"num_workers": workers, "generator": generator and generator(), "persistent_workers": kept}
        loader = lib.DataLoader(Made(draw, 13), 2, shuffle=True, **options)
        return [[field.tolist() for field in batch] for _ in range(2) for batch in loader]

    assert_same_on_both(epochs)


def test_the_items_that_iterable_datasets_draw(persistent):
    def epochs(lib):
        drawn = Items(lambda: (random.random() + float(torch.rand(1)) for _ in range(5)))
        loader = lib.DataLoader(drawn, 2, num_workers=2, **persistent)
        return [values(loader) for _ in range(2)]

    assert_same_on_both(epochs)


EARLY = {"samples": (Made(draw, 41), {"shuffle": True}), "items": (Items(lambda: map(draw, range(21))), {})}


@pytest.mark.parametrize("name", EARLY)
def test_what_persistent_workers_draw_after_epochs_that_were_left(name):
    """PyTorch's workers fetch all that they were asked for before they begin the next epoch."""
    dataset, options = EARLY[name]

    def epochs(lib):
        options_of_workers = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}
        loader = lib.DataLoader(dataset, 2, **options, **options_of_workers)
        return [
            [[field.tolist() for field in batch] for batch in itertools.islice(loader, count)]
            for count in (1, 1, 3, 7, 9, 10, None)
        ]

    assert_same_on_both(epochs)


def load_drawn(count, workers, **options):
    return gpuloader.torch.DataLoader(Made(draw, count), 2, num_workers=workers, **options)


def drawn(loader, epochs=1):
    return [[field.tolist() for field in batch[:3]] for _ in range(epochs) for batch in loader]


def test_a_seed_draws_by_the_batch_whatever_the_number_of_workers():
    assert drawn(load_drawn(13, 1, seed=5)) == drawn(load_drawn(13, 3, seed=5))


def test_epochs_that_follow_a_state_with_a_seed_draw_anew():
    expected = drawn(load_drawn(6, 1, shuffle=True, seed=5), 2)
    again = load_drawn(6, 1, shuffle=True)
    again.load_state_dict(load_drawn(6, 1, shuffle=True, seed=5).state_dict())
    assert drawn(again, 2) == expected
