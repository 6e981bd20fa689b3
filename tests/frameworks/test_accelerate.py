"""Accelerate, mostly on two processes: what each rank reads, gathers, accumulates and resumes."""

import itertools
import json
from pathlib import Path

import pytest

from tests.launching import run as run_program
from tests.loading import load

pytest.importorskip("accelerate")

pytestmark = pytest.mark.timeout(600)  # more than a run may take

PROGRAM = Path(__file__).with_name("accelerate_program.py")
SEEDED = {"seed": 1}


@pytest.fixture
def train(tmp_path):
    def train(loader=SEEDED, processes=2, **options):
        arguments = json.dumps({"loader": loader, **options}, default=str)
        run_program(PROGRAM, tmp_path / "seen", arguments, processes=processes)
        return [json.loads((tmp_path / f"seen.{rank}").read_text()) for rank in range(processes)]

    return train


def epoch_of(number, rank):
    """Return the batches of a rank in an epoch."""
    loader = load(range(22), batch_size=4, shuffle=True, seed=1, shard=(rank, 2), uneven="repeat")
    loader.set_epoch(number)
    return [[number, batch.tolist()] for batch in loader]


@pytest.mark.parametrize(
    "config", [{}, {"split_batches": True, "even_batches": False, "dispatch_batches": True}], ids=str
)
def test_prepare_leaves_the_loader_as_it_is(train, config):
    """It divides itself, and Accelerate's options for its own loaders change nothing."""
    for rank, found in enumerate(train(plain=True, config=config)):
        assert found["seen"] == epoch_of(0, rank) + epoch_of(1, rank)
        assert found["length"] == 3
        assert found["warnings"] == []


def test_a_loader_that_reads_everything_is_warned_of(train):
    for found in train({"shard": None}, plain=True, epochs=1):
        assert len(found["seen"]) == 6
        assert "shard='auto'" in found["warnings"][0]


AS_IT_IS = pytest.mark.parametrize("plain", [False, True], ids=["prepared", "as it is"])


@AS_IT_IS
def test_samples_that_are_repeated_are_not_gathered_twice(train, plain):
    both = train(count=21, plain=plain)
    assert both[0]["gathered"] == both[1]["gathered"]
    whole = load(range(21), batch_size=8, shuffle=True, seed=1)
    wanted = [[epoch, batch.tolist()] for epoch in range(2) for batch in whole]
    assert both[0]["gathered"] == wanted
    assert [len(numbers) for _, numbers in both[1]["seen"]] == [4, 4, 3] * 2


@AS_IT_IS
def test_accumulation_ends_with_the_epoch(train, plain):
    for found in train(accumulate=2, plain=plain):
        assert found["ends"] == [False, False, True] * 2
        assert found["synced"] == [False, True, True] * 2
        assert found["steps"] == 4


def test_a_plain_program_counts_every_sample_once(train):
    """45 samples on two ranks, shuffled without a seed, with gradients accumulated over three batches."""
    for found in train({}, plain=True, count=45, accumulate=3):
        for epoch in range(2):
            gathered = [numbers for number, numbers in found["gathered"] if number == epoch]
            assert sorted(itertools.chain.from_iterable(gathered)) == list(range(45))
            seen = [len(numbers) for number, numbers in found["seen"] if number == epoch]
            assert seen == [4, 4, 4, 4, 4, 3]
        assert found["synced"] == [False, False, True, False, False, True] * 2
        assert found["steps"] == 4


def test_the_warning_names_the_line_that_gives_pytorchs_losses(train):
    """45 samples in batches of 4 do not divide evenly; the model learns, so its losses tell the order."""
    learns = {"plain": True, "count": 45, "rate": 1e-4}
    own = train({}, **learns)
    assert "pass shard=None" in own[0]["warnings"][0]
    for config in ({}, {"split_batches": True}):
        theirs = train({}, **learns, config=config, torchs=True)
        ours = train({"shard": None}, **learns, config=config)
        assert [one["losses"] for one in ours] == [one["losses"] for one in theirs] != own[0]["losses"]


def test_uneven_inputs_are_joined(train):
    """Accelerate sets `even_batches` of the batch sampler; ranks have equally many batches anyway."""
    for found in train(plain=True, count=21, join=True):
        assert [len(numbers) for _, numbers in found["seen"]] == [4, 4, 3] * 2
        assert found["joined"] == 2
        assert found["steps"] == 6


@AS_IT_IS
def test_a_saved_state_resumes_after_the_batch_that_was_trained_on(train, tmp_path, plain):
    begun = train(save_after=2, folder=tmp_path / "state", plain=plain)
    resumed = train(folder=tmp_path / "state", plain=plain)
    for rank in range(2):
        first, second = epoch_of(0, rank), epoch_of(1, rank)
        assert begun[rank]["seen"] == first[:2]
        assert resumed[rank]["seen"] == first[2:] + second


@AS_IT_IS
def test_the_first_batches_can_be_skipped(train, plain):
    for rank, found in enumerate(train(skip=2, plain=plain)):
        assert found["seen"] == epoch_of(0, rank)[2:] + epoch_of(1, rank)


def test_prefetch_around_prepare(train):
    """The end of an epoch is not announced before its last batch is there, though it was read ahead."""
    [found] = train(prefetch=True, count=10, accumulate=2, processes=1)
    batches = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert found["seen"] == found["gathered"] == [[epoch, batch] for epoch in range(2) for batch in batches]
    assert found["ends"] == [False, False, True] * 2
    assert found["synced"] == [False, True, True] * 2
    assert found["steps"] == 4
