"""Drawn programs: a dataset, options and a loop, which give the same batches and random numbers on both."""

import random

import numpy as np
import pytest
import torch

from tests.alike import same
from tests.torch_suite.datasets import Items, Made
from tests.torch_suite.libraries import LIBRARIES

LEAVES = [
    lambda n: n,
    lambda n: n / 2 if n % 3 else n,
    lambda n: bool(n % 2),
    lambda n: f"text {n}",
    lambda n: bytes([n]),
    lambda n: np.int16(n),
    lambda n: np.full((2, 3), n, "float32"),
    lambda n: np.array(n, "uint8"),
    lambda n: torch.full((4,), n, dtype=torch.bfloat16),
    lambda n: torch.tensor(n),
    lambda n: torch.rand(2) + n,
    lambda n: np.complex64(n + 1j),
    lambda n: 2**63 + n,
    lambda n: torch.zeros(n % 2 + 1),  # cannot be stacked
]


def draw_sample(rng, depth=0):
    """Return a function that makes a sample of a number."""
    kind = rng.choice(["leaf"] * (1 + 2 * depth) + ["tuple", "list", "dict"])
    if kind == "leaf":
        return rng.choices(LEAVES, [9] * (len(LEAVES) - 2) + [1, 1])[0]
    parts = [draw_sample(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    if kind == "dict":
        return lambda n: {f"key {at}": part(n) for at, part in enumerate(parts)}
    made = tuple if kind == "tuple" else list
    return lambda n: made(part(n) for part in parts)


class AtOnce(Made):
    """Loads the samples of a batch with one call."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def draw_dataset(rng, sample, count):
    """Return a function that makes a map-style dataset of that many samples, given the library."""
    indices = [rng.randrange(count) for _ in range(count)]
    kinds = {
        "made": lambda lib: Made(sample, count),
        "at once": lambda lib: AtOnce(sample, count),
        "list": lambda lib: [sample(number) for number in range(count)],
        "tensors": lambda lib: lib.TensorDataset(torch.arange(count), torch.rand(count, 2)),
        "subset": lambda lib: lib.Subset(Made(sample, count), indices),
        "joined": lambda lib: lib.ConcatDataset([Made(sample, 1), AtOnce(sample, count)]),
        "half": lambda lib: lib.random_split(Made(sample, 2 * count), [count, count])[1],
        "side by side": lambda lib: lib.StackDataset(Made(sample, count), range(count)),
    }
    return kinds[rng.choice(["made", *kinds])]


def draw_options(rng, count, iterable):
    """Return a function that makes the options of a loader, given the library."""
    size, drop, shuffle = rng.choice([None, 1, 2, 3, count + 1]), rng.random() < 0.3, rng.random() < 0.4
    kept = rng.random() < 0.3
    workers = {"num_workers": 2, "persistent_workers": kept} if rng.random() < 0.3 else {}
    seed = rng.choice([None, None, 7])
    kind = "none" if iterable or shuffle else rng.choice(["none", "list", "random", "weighted", "batches"])
    collate = rng.choice([None, None, None, list, tuple])
    chosen = [rng.randrange(count) for _ in range(rng.randint(1, 9))]

    def make(lib):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        cut = {"batch_size": size, "drop_last": drop and size is not None}
        options = {**cut, "generator": generator, "collate_fn": collate}
        if kind == "batches":
            batches = lib.BatchSampler(lib.RandomSampler(range(count), generator=generator), 2, drop)
            return {**workers, "batch_sampler": batches, "collate_fn": collate}
        samplers = {
            "none": lambda: None,
            "list": lambda: chosen,
            "random": lambda: lib.RandomSampler(range(count), bool(chosen[0] % 2), 5, generator),
            "weighted": lambda: lib.WeightedRandomSampler(range(1, count + 1), 6, generator=generator),
        }
        order = {"shuffle": None if iterable else shuffle, "sampler": samplers[kind]()}
        return {**options, **workers, **order}

    return make


def run(lib, seed):
    """Return the batches of some epochs, and what the program draws between and behind them."""
    rng = random.Random(seed)
    count, iterable = rng.randint(1, 9), rng.random() < 0.2
    sample = draw_sample(rng)
    make = draw_dataset(rng, sample, count)
    options, left = draw_options(rng, count, iterable), rng.choice([None, None, 1])
    torch.manual_seed(seed)
    found = []
    try:
        dataset = Items(lambda: map(sample, range(count))) if iterable else make(lib)
        loader = lib.DataLoader(dataset, **options(lib))
        for _ in range(2):
            for step, batch in enumerate(loader):
                found += [batch, torch.rand(1)]
                if step == left:
                    break
            found.append(torch.rand(1))
    except (RuntimeError, TypeError, ValueError) as error:
        return [*found, isinstance(error, Exception)]
    return [*found, torch.get_rng_state()]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("seed", range(60))
def test_a_drawn_program(seed):
    ours, theirs = (run(*one.values, seed) for one in LIBRARIES)
    assert same(ours, theirs)
