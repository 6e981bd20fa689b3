"""The Trainer of Hugging Face's Transformers, on one process and on two: what it reads and resumes."""

import json
from pathlib import Path

import pytest

from tests.launching import run as run_program
from tests.loading import load

pytest.importorskip("transformers")

pytestmark = pytest.mark.timeout(600)  # more than a run may take

PROGRAM = Path(__file__).with_name("transformers_program.py")


@pytest.fixture
def train(tmp_path):
    def train(processes, name, kind, *arguments):
        options = tmp_path / name, tmp_path / "checkpoints", kind, *arguments
        run_program(PROGRAM, *options, processes=processes)
        return [json.loads((tmp_path / f"{name}.{rank}").read_text()) for rank in range(processes)]

    return train


EVALUATED = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def epochs_of(rank, processes):
    loader = load(range(22), batch_size=4, shuffle=True, seed=1, shard=(rank, processes), uneven="repeat")
    return [batch.tolist() for _ in range(2) for batch in loader]


@pytest.mark.parametrize("processes", [1, 2])
def test_ranks_train_evaluate_and_resume_in_the_middle_of_an_epoch(train, tmp_path, processes):
    whole = train(processes, "whole", "own")
    resumed = train(processes, "resumed", "own", tmp_path / "checkpoints" / "checkpoint-2")
    for rank in range(processes):
        wanted = epochs_of(rank, processes)
        assert whole[rank]["train"] == wanted
        assert resumed[rank]["train"] == wanted[2:]
        assert whole[rank]["steps"] == resumed[rank]["steps"] == len(wanted)
    parts = {1: [EVALUATED], 2: [[[0, 1, 2, 3], [8]], [[4, 5, 6, 7], [9]]]}
    assert [seen["evaluate"] for seen in whole] == [batches * 2 for batches in parts[processes]]


def test_prefetch_around_its_own_loaders(train):
    [found] = train(1, "prefetched", "prefetch")
    assert found["train"] == [[*range(start, min(start + 4, 22))] for start in range(0, 22, 4)] * 2
    assert found["evaluate"] == EVALUATED * 2
