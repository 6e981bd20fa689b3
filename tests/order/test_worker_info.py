"""Which rank and which worker runs the code: from a process group, a launcher, or the loader."""

import sys
import types

import pytest

from gpuloader import get_worker_info
from gpuloader.order.worker_info import (
    WorkerInfo,
    ask_ranks,
    count_rank_questions,
    exchange_worker,
    find_local_rank,
    find_rank,
    find_torch_rank,
)
from tests.api.streams import Items
from tests.loading import load
from tests.sample_sets import ONE_THREAD, PROCESSES, THREADS

PAIRS = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"),
]
LOCAL = [
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
    "PADDLE_RANK_IN_NODE",
]


def set_all(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in [*sum(PAIRS, ()), *LOCAL, "NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE"]:
        monkeypatch.delenv(name, raising=False)
    # Where a program imports Accelerate, variables alone make no rank; another test may have imported it.
    monkeypatch.delitem(sys.modules, "accelerate.state", raising=False)


@pytest.mark.parametrize("pair", PAIRS)
def test_every_launcher_is_understood_and_half_a_pair_is_an_error_that_names_both(pair, monkeypatch):
    for name, missing in (pair, pair[::-1]):
        monkeypatch.setenv(name, "1")
        with pytest.raises(ValueError, match=f"sets {name}='1' but not {missing}"):
            find_rank()
        assert find_torch_rank() == (0, 1)
        monkeypatch.delenv(name)
    set_all(monkeypatch, **dict(zip(pair, (2, 3), strict=True)))
    assert find_rank() == (2, 3)
    # PyTorch knows only torchrun's: a single process inherits the others' variables in a batch script.
    assert find_torch_rank() == ((2, 3) if pair == PAIRS[0] else (0, 1))


@pytest.mark.parametrize(("shared", "found"), [({}, (2, 3)), ({"num_processes": 3}, (0, 1))])
def test_a_program_that_imports_accelerate_may_yet_prepare_its_loaders(monkeypatch, shared, found):
    """Those that it does not prepare are whole, which needs no warning once Accelerate is in use."""
    partial_state = types.SimpleNamespace(_shared_state=shared)
    imported = types.SimpleNamespace(PartialState=partial_state)
    monkeypatch.setitem(sys.modules, "accelerate.state", imported)
    set_all(monkeypatch, RANK=2, WORLD_SIZE=3)
    assert find_torch_rank() == (0, 1)
    assert find_torch_rank(waits=False) == found


@pytest.mark.parametrize("first", range(len(PAIRS)))
def test_the_first_launcher_that_is_set_decides(first, monkeypatch):
    for number, (rank, size) in enumerate(PAIRS[first:]):
        set_all(monkeypatch, **{rank: number, size: number + 7})
    assert find_rank() == (0, 7)


OUTSIDE = [("2", "2"), ("5", "2"), ("-1", "2"), ("0", "0"), ("0", "-3")]
NO_NUMBERS = ["", "one", "1.5", "0x1"]


@pytest.mark.parametrize(
    ("rank", "size", "message"),
    [
        *[(rank, size, f"RANK={rank} and WORLD_SIZE={size}") for rank, size in OUTSIDE],
        *[(value, "2", f"RANK='{value}'") for value in NO_NUMBERS],
        *[("0", value, f"WORLD_SIZE='{value}'") for value in NO_NUMBERS],
    ],
)
def test_a_rank_outside_the_world_or_no_number_is_an_error_that_names_it(rank, size, message, monkeypatch):
    set_all(monkeypatch, RANK=rank, WORLD_SIZE=size)
    with pytest.raises(ValueError, match=message):
        find_rank()


def test_a_process_group_of_torch_decides(monkeypatch):
    """If it is initialized; torch is never imported to find out."""
    group = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 3, get_world_size=lambda: 8
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    set_all(monkeypatch, RANK=1, WORLD_SIZE=2)
    assert find_rank() == (3, 8)
    group.is_initialized = lambda: False
    assert find_rank() == (1, 2)
    del group.is_initialized  # as in a torch built without distributed support
    group.is_available = lambda: False
    assert find_rank() == (1, 2)


def test_what_mpirun_starts_in_an_allocation_is_not_what_slurm_started(monkeypatch):
    set_all(monkeypatch, SLURM_PROCID=0, SLURM_NTASKS=1, SLURM_LOCALID=0)
    mpirun = {"RANK": 5, "SIZE": 8, "LOCAL_RANK": 1}
    set_all(monkeypatch, **{f"OMPI_COMM_WORLD_{name}": value for name, value in mpirun.items()})
    assert find_rank() == (5, 8)
    assert find_local_rank() == 1


@pytest.mark.parametrize("name", LOCAL)
def test_the_local_rank_is_found(name, monkeypatch):
    assert find_local_rank() == 0
    monkeypatch.setenv(name, "3")
    assert find_local_rank() == 3
    for wrong, message in [("-1", f"sets {name}=-1; a local rank must be 0 or more"), ("x", f"{name}='x'")]:
        monkeypatch.setenv(name, wrong)
        with pytest.raises(ValueError, match=message):
            find_local_rank()


@pytest.mark.parametrize(
    ("node", "rank"),
    [
        ({}, 1),
        ({"NODE_RANK": 0}, 1),
        ({"GROUP_RANK": 0}, 1),
        ({"NODE_RANK": 2, "LOCAL_WORLD_SIZE": 2}, 5),
        ({"GROUP_RANK": 1, "LOCAL_WORLD_SIZE": 2}, 3),
        ({"NODE_RANK": 1, "GROUP_RANK": 2, "LOCAL_WORLD_SIZE": 2}, 3),
    ],
)
def test_lightnings_processes_are_numbered_per_node(node, rank, monkeypatch):
    """Its launcher sets WORLD_SIZE, LOCAL_RANK and NODE_RANK, but no RANK."""
    set_all(monkeypatch, WORLD_SIZE=6, LOCAL_RANK=1, **node)
    assert find_rank() == (rank, 6)


def test_processes_of_another_node_without_its_size_are_an_error(monkeypatch):
    set_all(monkeypatch, WORLD_SIZE=6, LOCAL_RANK=1, NODE_RANK=1)
    with pytest.raises(ValueError, match=r"NODE_RANK=1, .* set RANK or LOCAL_WORLD_SIZE"):
        find_rank()
    set_all(monkeypatch, LOCAL_WORLD_SIZE=6)
    with pytest.raises(ValueError, match=r"LOCAL_RANK=1 and WORLD_SIZE=6, which makes this rank 7"):
        find_rank()


def test_a_local_rank_without_a_world_is_no_launcher(monkeypatch):
    """Lightning leaves LOCAL_RANK behind when a trainer has finished."""
    assert find_rank() == (0, 1)
    set_all(monkeypatch, LOCAL_RANK=0, NODE_RANK=0)
    assert find_rank() == (0, 1)


# The information that workers get about themselves.


def tell():
    """Yield the information that each worker gets."""
    info = get_worker_info()
    yield {"id": info.id, "of": info.num_workers, "seed": info.seed, "own": info.dataset.make is tell}


def test_each_worker_is_told_who_it_is_alike_in_threads_and_processes():
    told = []
    for workers in (ONE_THREAD, THREADS, {**THREADS, "num_workers": 2}, PROCESSES):
        count, loader = workers["num_workers"], load(Items(tell), seed=3, **workers)
        epochs = [[{name: one.item() for name, one in batch.items()} for batch in loader] for _ in range(2)]
        for one in epochs:
            found = [(each["id"], each["of"], each["own"]) for each in one]
            assert found == [(number, count, True) for number in range(count)]
        assert len({each["seed"] for one in epochs for each in one}) == 2 * count
        told.append(epochs)
    assert told[-1] == told[-2]


def test_questions_for_the_rank_are_counted_and_others_are_not(monkeypatch):
    exchange_worker(WorkerInfo(1, 2, 3, None, (4, 5)))
    try:
        before = count_rank_questions()
        assert get_worker_info().id == 1
        assert count_rank_questions() == before
        assert (get_worker_info().rank, get_worker_info().world_size) == (4, 5)
        assert ask_ranks() == (4, 5)
        assert count_rank_questions() == before + 3
    finally:
        exchange_worker(None)
    assert get_worker_info() is None
    set_all(monkeypatch, RANK=1, WORLD_SIZE=3)
    assert ask_ranks() == (1, 3)  # outside a worker, the launcher is asked
    assert count_rank_questions() == before + 4
