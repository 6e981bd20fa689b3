"""The indices of every rank and place, batch by batch, as recorded in `tests/golden/orders.json.gz`.

The order of samples is a function of the options and the seed alone, and a state that was saved by an older
version must continue where it stopped. So no change of the code may change what is recorded here. After an
intended change, ``python -m tests.order.test_golden_orders`` writes the file again.
"""

import builtins
import gzip
import itertools
import json
import random
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import gpuloader
from gpuloader import CPUPlace, DataLoader, MixDataset, Subset
from tests.rank_loaders import Stream
from tests.sample_sets import Made

FILE = Path(__file__).parents[1] / "golden" / "orders.json.gz"
CASES = 300
LONG = (10**7, 2**33)
"""Lengths of which only the first steps are compared."""

SAMPLING = (
    *["sequential", "shuffle", "shuffle", "shuffle", "list", "random", "replacement", "weighted"],
    *["subset random", "batch sampler", "bucket", "distributed", "batch lists"],
)


def indices(count):
    """Return a dataset whose samples are their indices."""
    return Made(lambda index: index, count)


def make_dataset(case):
    kind, count = case["dataset"], case["length"]
    if kind == "subset":
        return Subset(indices(2 * count), list(range(2 * count - 1, 0, -2)))
    if kind == "mix":
        return MixDataset([indices(count), indices(2 * count)], [0.7, 0.3], at_end=case["at_end"])
    return {"range": range, "indices": indices, "stream": Stream}[kind](count)


def make_sampling(case, dataset):
    """Return the options that say which samples make up a batch."""
    kind, size = case["sampling"], case["batch_size"]
    batches = {"batch_size": size, "drop_last": case["drop_last"]}
    if kind in ("sequential", "shuffle"):
        return {**batches, "shuffle": kind == "shuffle"}
    if kind == "list":
        return {**batches, "sampler": [(7 * place) % case["length"] for place in range(case["length"])]}
    if kind == "random":
        return {**batches, "sampler": gpuloader.RandomSampler(dataset)}
    if kind == "replacement":
        return {**batches, "sampler": gpuloader.RandomSampler(dataset, replacement=True, num_samples=23)}
    if kind == "weighted":
        weights = [1 + index % 4 for index in range(case["length"])]
        return {**batches, "sampler": gpuloader.WeightedRandomSampler(weights, 20, case["replacement"])}
    if kind == "subset random":
        return {**batches, "sampler": gpuloader.SubsetRandomSampler(list(range(0, case["length"], 2)))}
    if kind == "batch sampler":
        return {"batch_sampler": gpuloader.BatchSampler(dataset, shuffle=True, **batches)}
    if kind == "bucket":
        lengths = [(13 * index) % 10 for index in range(case["length"])]
        return {"batch_sampler": gpuloader.BucketSampler(lengths, size, pool=2, drop_last=case["drop_last"])}
    if kind == "distributed":
        options = {"shuffle": True, "drop_last": case["drop_last"], "seed": case["seed"]}
        return {"batch_sampler": gpuloader.DistributedBatchSampler(dataset, size, 2, 1, **options)}
    assert kind == "batch lists"
    places = range(0, case["length"], size)
    return {"batch_sampler": [list(range(place, min(place + size, case["length"]))) for place in places]}


def make_loader(case, rank, world_size):
    dataset = make_dataset(case)
    words = {"uneven": case["uneven"]} if world_size else {}
    if case["split"] == "shards" and words.setdefault("uneven", case["remainder"]) != case["remainder"]:
        words["remainder"] = case["remainder"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of two words, which were two options once
        return DataLoader(
            dataset,
            places=[CPUPlace()] * case["places"],
            split=case["split"],
            seed=case["seed"],
            shard=(rank, world_size) if world_size else None,
            num_workers=case["workers"],
            worker_type="thread" if case["workers"] else None,
            **words,
            **make_sampling(case, dataset),
        )


def plain(batch):
    """Return the indices of a batch, and its mask if it has one."""
    if isinstance(batch, np.ndarray):
        return batch.tolist()
    if len(batch) == 2 and batch[1].dtype == bool:
        return [batch[0].tolist(), "".join(str(int(counts)) for counts in batch[1])]
    raise AssertionError(f"an unexpected batch: {batch}")


def read_steps(case, loader, count=None):
    """Return the rest of an epoch, or `count` steps of it."""
    epoch = iter(loader)
    steps = list(itertools.islice(epoch, count))
    epoch.close()
    return [[plain(one) for one in step] if case["places"] > 1 else plain(step) for step in steps]


def public_name(error):
    """Return the name by which users know the type of an error."""
    names = [one.__name__ for one in type(error).__mro__]
    return next(name for name in names if hasattr(builtins, name) or name in gpuloader.__all__)


def observe(case):
    """Return what a case does: for each rank its batches, and those after its state; or the error's name."""
    world_size = case["world_size"]
    try:
        ranks = [make_loader(case, rank, world_size) for rank in range(world_size or 1)]
        found = {"ranks": []}
        for loader in ranks:
            loader.set_epoch(case["epoch"])
            found["ranks"].append(read_steps(case, loader, 3 if case["length"] in LONG else None))
    except Exception as error:
        return {"refused": public_name(error)}
    if case["stop"]:
        loader = make_loader(case, 0, world_size)
        loader.set_epoch(case["epoch"])
        epoch = iter(loader)
        if len(list(itertools.islice(epoch, case["stop"]))) == case["stop"]:
            found["state"] = json.loads(json.dumps(loader.state_dict()))
        epoch.close()
        if "state" in found:
            found["resumed"] = observe_resumed(case, found["state"])
    return found


def observe_resumed(case, state):
    """Return how each rank of a run of `resumed_by` ranks goes on with a state, or the error's name."""
    try:
        found = []
        for rank in range(case["resumed_by"] or 1):
            loader = make_loader({**case, "seed": 1}, rank, case["resumed_by"])  # the state's seed counts
            loader.load_state_dict(state)
            found.append(read_steps(case, loader, 3 if case["length"] in LONG else None))
    except Exception as error:
        return {"refused": public_name(error)}
    return found


def draw_case(number):
    """Return the options of a case. Most leave most options alone, so that few cases are refused."""
    draw = random.Random(number)
    dataset = draw.choice(["range", "indices", "indices", "subset", "stream", "mix"])
    if dataset == "stream":
        sampling = "sequential"
    elif dataset == "mix":
        sampling = draw.choice(["sequential", "shuffle"])
    else:
        sampling = draw.choice(SAMPLING)
    places = draw.choice([1, 1, 1, 2, 3])
    world_size = draw.choice([0, 0, 1, 2, 3, 4])
    if sampling == "distributed" and draw.random() < 0.8:
        places, world_size = 1, 0  # it divides the samples itself
    length = draw.choice([1, 2, 5, 12, 17, 24, 31, 40])
    if sampling in ("sequential", "shuffle") and dataset in ("range", "indices") and draw.random() < 0.2:
        length = draw.choice(LONG)
    return {
        "dataset": dataset,
        "length": length,
        "at_end": draw.choice(["stop", "repeat"]),
        "sampling": sampling,
        "replacement": draw.choice([True, False]),
        "seed": draw.choice([0, 1, 5, 2**40 + 3, 2**64 - 1]),
        "epoch": draw.choice([0, 0, 1, 2, 70]),
        "batch_size": draw.choice([1, 2, 3, 4, 5, 8]),
        "drop_last": draw.random() < 0.3,
        "places": places,
        "split": draw.choice(["batches", "shards"]) if places > 1 else "batches",
        "remainder": draw.choice(["pad", "drop", "error"]) if places > 1 else "error",
        "world_size": world_size,
        "uneven": draw.choice(["pad", "pad", "drop", "repeat", "error"]) if world_size else "pad",
        "workers": draw.choice([0, 2, 3]) if dataset == "stream" else 0,
        "stop": draw.choice([0, 1, 2, 3]),
        "resumed_by": draw.choice([world_size, world_size, max(world_size - 1, 0), world_size + 1]),
    }


@cache
def recorded():
    return json.loads(gzip.decompress(FILE.read_bytes())) if FILE.exists() else []


@pytest.mark.parametrize("first", range(0, CASES, 50))
def test_the_orders_are_those_recorded(first):
    cases, differing = recorded()[first : first + 50], []
    for case in cases:
        wanted = case.pop("found")
        if observe(case) != wanted:  # what follows the recorded state is compared, too: the states are equal
            differing.append(case)
    assert len(cases) == min(50, CASES - first)
    assert differing == []


def test_most_cases_are_loaded_and_many_are_resumed():
    found = [case["found"] for case in json.loads(gzip.decompress(FILE.read_bytes()))]
    assert len(found) == CASES
    assert sum("ranks" in one for one in found) > 0.7 * CASES
    assert sum(isinstance(one.get("resumed"), list) for one in found) > 0.3 * CASES


def write():
    cases = [draw_case(number) for number in range(CASES)]
    text = json.dumps([{**case, "found": observe(case)} for case in cases], separators=(",", ":"))
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    write()
