"""`gpuloader.accelerate` without Accelerate: what it registers, refuses and skips."""

import numpy as np
import pytest

from gpuloader import DataLoader
from gpuloader.accelerate import PreparedLoader, prepare, skip_first_batches
from gpuloader.api import prepared_loader
from tests.rank_loaders import Stream
from tests.sample_sets import Counting, values


class Accelerator:
    """Stands for Accelerate's."""

    def __init__(self, processes):
        self.num_processes = processes
        self.registered = []

    def register_for_checkpointing(self, *registered):
        self.registered += registered


def load(dataset=range(10), **options):
    return DataLoader(dataset, **{"places": "cpu", "batch_size": 2, **options})


@pytest.mark.parametrize(
    ("processes", "shard"), [(1, None), (1, "auto"), (2, "auto"), (2, (1, 2)), (2, (0, 1))]
)
def test_a_loader_is_registered(processes, shard):
    accelerator = Accelerator(processes)
    loader = load(shard=shard)
    prepared = prepare(accelerator, loader)
    assert accelerator.registered == [prepared]
    assert prepared.loader is loader
    assert len(prepared) == len(loader)
    assert prepared.state_dict() == loader.state_dict()


def test_one_that_every_process_would_read_whole_is_refused():
    with pytest.raises(ValueError, match="each of the 2 processes would read everything: pass shard='auto'"):
        prepare(Accelerator(2), load())


def test_one_whose_batches_share_their_memory_is_refused():
    """It looks one batch ahead, and so would overwrite the batch that the user has."""
    with pytest.raises(ValueError, match="a loader with static=True cannot be prepared"):
        prepare(Accelerator(1), load(static=True))


def test_anything_else_is_refused():
    with pytest.raises(TypeError, match=r"expected a gpuloader.DataLoader, got list; .*accelerator.prepare"):
        prepare(Accelerator(1), [1, 2])


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [[4, 5], [6, 7], [8, 9]]),
        ({"shard": (0, 1)}, [[4, 5], [6, 7], [8, 9]]),
        ({"shard": (1, 2), "uneven": "drop"}, [[9]]),
        ({"batch_size": 1, "batch_sampler": [[0], [1], [2], [3], [4]], "shard": (0, 2)}, [[4]]),
    ],
)
def test_batches_that_are_skipped_are_not_read(options, wanted):
    class Reads(list):
        def __getitem__(self, index):
            reads.append(index)
            return np.int64(index)

    reads = []
    prepared = PreparedLoader(load(Reads(range(10)), **options))
    assert skip_first_batches(prepared, 2) is prepared
    found = [batch[0] if isinstance(batch, list) else batch for batch in prepared.loader]
    assert values(found) == wanted
    assert sorted(reads) == sorted(one for batch in wanted for one in batch)


def test_those_of_an_iterable_that_is_divided_are_read_and_dropped():
    prepared = PreparedLoader(load(Stream(10), shard=(1, 2), uneven="drop"))
    assert values(skip_first_batches(prepared, 2).loader) == [[9]]


def test_a_number_of_batches_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="num_batches must be an integer from 0"):
        skip_first_batches(PreparedLoader(load()), -1)
    with pytest.raises(ValueError, match="12 batches into an epoch and this dataset has 5"):
        skip_first_batches(PreparedLoader(load()), 12)


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_accelerates_own_way_to_skip_is_refused(name):
    with pytest.raises(AttributeError, match=r"use gpuloader\.accelerate\.skip_first_batches"):
        getattr(PreparedLoader(load()), name)
    with pytest.raises(AttributeError, match=r"its loader may have: .loader.other"):
        getattr(PreparedLoader(load()), "other")  # noqa: B009


class Known:
    """Stands for what Accelerate knows of a loader."""

    end_of_dataloader, remainder, begun = False, -1, 0

    def begin(self):
        self.begun += 1

    def end(self):
        self.begun -= 1


@pytest.fixture
def known(monkeypatch):
    known = Known()
    monkeypatch.setattr(prepared_loader, "_make_known", lambda: known)
    return known


def test_the_end_is_known_with_the_last_batch(known):
    ends = [(batch.tolist(), known.end_of_dataloader) for batch in PreparedLoader(load(range(6)))]
    assert ends == [([0, 1], False), ([2, 3], False), ([4, 5], True)]
    assert (known.begun, known.remainder) == (0, 0)
    assert list(PreparedLoader(load([]))) == []


def test_a_state_does_not_count_the_batch_that_was_looked_at(known):
    prepared = PreparedLoader(load(shard="auto"))
    positions = [prepared.state_dict()["position"] for _ in prepared]
    assert positions == [2, 4, 6, 8, 10]
    assert prepared.state_dict()["epoch"] == 1
    for _ in prepared:
        break
    assert known.begun == 0
    state = prepared.state_dict()
    assert (state["epoch"], state["position"]) == (1, 2)
    prepared.load_state_dict(state)
    assert len(list(prepared)) == 4


@pytest.mark.parametrize(("uneven", "real"), [("repeat", 1), ("pad", 0), ("drop", 0)])
def test_samples_of_the_last_step_are_counted_where_they_repeat(known, uneven, real):
    assert list(PreparedLoader(load(range(5), shard=(0, 2), uneven=uneven)))
    assert known.remainder == real


def test_items_that_are_skipped_are_read_once(known):
    prepared = skip_first_batches(PreparedLoader(load(Counting(10))), 2)
    assert values(prepared) == [[4, 5], [6, 7], [8, 9]]
    assert len(list(prepared)) == 5


def test_the_epoch_can_be_set():
    prepared = PreparedLoader(load(Counting(3)))
    prepared.set_epoch(3)
    assert prepared.state_dict()["epoch"] == 3
