"""Ranks that become known only after a loader was made, or change between its epochs."""

import pytest

from gpuloader import DataLoader, DistributedBatchSampler, get_worker_info
from tests.rank_loaders import Stream, epoch_of
from tests.sample_sets import INLINE, PROCESSES, THREADS, Made, name_workers, values

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_NTASKS")
by_workers = pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def load(dataset, **options):
    return DataLoader(dataset, **{"places": "cpu", "batch_size": 2, "shard": "auto", **options})


@by_workers
@pytest.mark.parametrize("kind", [range, Stream])
def test_a_loader_reads_the_part_of_the_rank_that_it_has_when_an_epoch_begins(kind, workers, become):
    loader = load(kind(8), persistent_workers=workers["num_workers"] > 0, uneven="drop", **workers)
    become(1, 2)
    parts = {range: [[2, 3], [6, 7]], Stream: [[1, 3], [5, 7]]}
    assert epoch_of(loader) == parts[kind]
    become(0, 1)
    assert epoch_of(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    become(3, 4)
    assert epoch_of(loader) == [[6, 7]] if kind is range else [[3, 7]]


def test_an_epoch_in_progress_keeps_its_rank(become):
    become(0, 2)
    loader = load(range(8))
    epoch = iter(loader)
    assert next(epoch).tolist() == [0, 1]
    become(1, 2)
    assert values(epoch) == [[4, 5]]
    assert epoch_of(loader) == [[2, 3], [6, 7]]
    assert len(loader) == 2
    become(0, 1)
    assert len(loader) == 4


def test_workers_that_persist_know_the_new_rank(become):
    loader = load(Made(lambda index: get_worker_info().rank, 8), persistent_workers=True, **PROCESSES)
    for rank in (1, 0):
        become(rank, 2)
        epoch = iter(loader)
        assert next(epoch).tolist() == [rank, rank]
        become(1 - rank, 2)  # before the epoch gives its workers back
        assert values(epoch) == [[rank, rank]]
    loader._epochs.close()


def test_a_state_needs_no_rank(become):
    loader = load(range(9), shuffle=True, seed=5)
    fresh = loader.state_dict()
    assert fresh == {"version": 2, "epoch": 0, "seed": 5, "position": 0}
    loader.load_state_dict({**fresh, "position": 4})
    become(1, 2)
    assert loader.state_dict()["position"] == 4
    part = epoch_of(loader)
    assert [len(batch) for batch in part] == [2, 0]
    become(0, 2)
    loader.load_state_dict({**fresh, "position": 4})
    alone = load(range(9), shard=(0, 1), shuffle=True, seed=5)
    alone.load_state_dict({**fresh, "position": 4})
    rest = [one for batch in epoch_of(alone) for one in batch]
    assert [one for batch in [*epoch_of(loader), *part] for one in batch] == [*rest[:2], rest[4], *rest[2:4]]


def test_a_state_between_two_worlds_counts_the_samples_of_both(become):
    loader = load(range(12))
    epoch = iter(loader)
    next(epoch)
    state = loader.state_dict()
    become(1, 2)
    assert loader.state_dict() == state
    loader.load_state_dict(state)
    epoch = iter(loader)
    assert next(epoch).tolist() == [4, 5]
    assert loader.state_dict()["position"] == 6


def test_samples_that_do_not_divide_are_an_error_as_soon_as_the_ranks_are_known(become):
    loader = load(range(9), uneven="error")
    assert len(loader) == 5
    state = loader.state_dict()
    become(0, 2)
    for act in (
        lambda: next(iter(loader)),
        lambda: next(iter(loader)),
        lambda: loader.load_state_dict(state),
        lambda: load(range(9), uneven="error"),
    ):
        with pytest.raises(ValueError, match="9 samples fill 2 steps of 2 ranks and leave 1"):
            act()
    become(0, 3)
    assert epoch_of(loader) == [[0, 1], [6]]


def test_an_environment_without_sense_is_an_error_of_the_epoch(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = load(range(8), uneven="error")
    for ask in (len, lambda loader: next(iter(loader))):
        with pytest.raises(ValueError, match="sets WORLD_SIZE='2' but not RANK"):
            ask(loader)
    loader.load_state_dict(loader.state_dict())
    monkeypatch.setenv("LOCAL_RANK", "1")  # as Lightning's launcher does
    assert epoch_of(loader) == [[2, 3], [6, 7]]


def test_a_sampler_that_divides_finds_its_rank_late_too(become):
    sampler = DistributedBatchSampler(range(8), 2)
    loader = load(range(8), shard=None, batch_size=1, batch_sampler=sampler)
    become(1, 2)
    assert (sampler.local_rank, sampler.nranks, len(loader)) == (1, 2, 2)
    assert epoch_of(loader) == [[2, 3], [6, 7]]
