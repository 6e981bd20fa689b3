import pytest

from gpuloader.sources.ranks import find_rank

PAIRS = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"),
]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for pair in PAIRS:
        for name in pair:
            monkeypatch.delenv(name, raising=False)


def test_without_a_launcher_there_is_one_rank():
    assert find_rank() == (0, 1)


@pytest.mark.parametrize("pair", PAIRS)
def test_every_launcher_is_understood(pair, monkeypatch):
    monkeypatch.setenv(pair[0], "2")
    monkeypatch.setenv(pair[1], "3")
    assert find_rank() == (2, 3)


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
