import sys
import types

import pytest

from gpuloader.order.worker_info import find_local_rank, find_rank, find_torch_rank

PAIRS = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"),
]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in [*sum(PAIRS, ()), *LOCAL, "NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE"]:
        monkeypatch.delenv(name, raising=False)


def test_without_a_launcher_there_is_one_rank():
    assert find_rank() == (0, 1)


@pytest.mark.parametrize("pair", PAIRS)
def test_every_launcher_is_understood(pair, monkeypatch):
    monkeypatch.setenv(pair[0], "2")
    monkeypatch.setenv(pair[1], "3")
    assert find_rank() == (2, 3)


@pytest.mark.parametrize("pair", PAIRS)
def test_only_torchruns_variables_are_pytorchs(pair, monkeypatch):
    """A single process inherits the others' variables in a batch script."""
    monkeypatch.setenv(pair[0], "2")
    assert find_torch_rank() == (0, 1)
    monkeypatch.setenv(pair[1], "3")
    assert find_torch_rank() == ((2, 3) if pair == PAIRS[0] else (0, 1))


@pytest.mark.parametrize("first", range(len(PAIRS)))
def test_the_first_launcher_that_is_set_decides(first, monkeypatch):
    for number, (rank, size) in enumerate(PAIRS[first:]):
        monkeypatch.setenv(rank, str(number))
        monkeypatch.setenv(size, str(number + 1))
    assert find_rank() == (0, 1)
    monkeypatch.setenv(PAIRS[first][1], "7")
    assert find_rank() == (0, 7)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("which", [0, 1])
def test_half_a_pair_is_an_error_that_names_both(pair, which, monkeypatch):
    monkeypatch.setenv(pair[which], "1")
    with pytest.raises(ValueError, match=f"sets {pair[which]}='1' but not {pair[1 - which]}"):
        find_rank()


@pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("5", "2"), ("-1", "2"), ("0", "0"), ("0", "-3")])
def test_a_rank_outside_the_world_is_an_error_that_names_it(rank, size, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(ValueError, match=f"RANK={rank} and WORLD_SIZE={size}"):
        find_rank()


@pytest.mark.parametrize("value", ["", "one", "1.5", "0x1"])
@pytest.mark.parametrize("name", ["SLURM_PROCID", "SLURM_NTASKS"])
def test_what_is_no_number_is_an_error_that_names_it(name, value, monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}='{value}'"):
        find_rank()


def test_a_process_group_of_torch_decides(monkeypatch):
    """If it is initialized; torch is never imported to find out."""
    group = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 3,
        get_world_size=lambda: 8,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert find_rank() == (3, 8)
    group.is_initialized = lambda: False
    assert find_rank() == (1, 2)
    del group.is_initialized  # as in a torch built without distributed support
    group.is_available = lambda: False
    assert find_rank() == (1, 2)


def test_what_mpirun_starts_in_an_allocation_is_not_what_slurm_started(monkeypatch):
    for name, value in {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}.items():
        monkeypatch.setenv(name, value)
    for name, value in {"RANK": "5", "SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert find_rank() == (5, 8)
    assert find_local_rank() == 1


LOCAL = [
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
    "PADDLE_RANK_IN_NODE",
]


@pytest.mark.parametrize("name", LOCAL)
def test_the_local_rank_is_found(name, monkeypatch):
    assert find_local_rank() == 0
    monkeypatch.setenv(name, "3")
    assert find_local_rank() == 3
    for wrong, message in [("-1", f"sets {name}=-1; a local rank must be 0 or more"), ("x", f"{name}='x'")]:
        monkeypatch.setenv(name, wrong)
        with pytest.raises(ValueError, match=message):
            find_local_rank()


def set_all(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


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
    set_all(monkeypatch, LOCAL_RANK=0, NODE_RANK=0)
    assert find_rank() == (0, 1)
