"""The Trainer of Hugging Face's Transformers, on one process and on two: what it reads and resumes."""

import json
from pathlib import Path

import pytest

from tests.launching import run as run_program
from tests.loading import load

pytest.importorskip("transformers")

pytestmark = pytest.mark.timeout(600)  # more than a run may take

PROGRAM = Path(__file__).with_name("transformers_program.py")


def train(folder, runs, processes):
    """Train several times in one program, and return what each rank has seen, by run."""
    run_program(PROGRAM, folder, json.dumps(runs), processes=processes)
    return {
        name: [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(processes)]
        for name in runs
    }


EVALUATED = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def epochs_of(rank, processes):
    loader = load(range(22), batch_size=4, shuffle=True, seed=1, shard=(rank, processes), uneven="repeat")
    return [batch.tolist() for _ in range(2) for batch in loader]


RUNS = {"whole": ("own", None), "resumed": ("own", "checkpoints of whole/checkpoint-2")}


@pytest.mark.parametrize("processes", [1, 2])
def test_ranks_train_evaluate_and_resume_in_the_middle_of_an_epoch(tmp_path, processes):
    """On one process, prefetch reads its own loaders, too."""
    prefetched = {"prefetched": ("prefetch", None)} if processes == 1 else {}
    seen = train(tmp_path, RUNS | prefetched, processes)
    for rank in range(processes):
        whole, resumed = seen["whole"][rank], seen["resumed"][rank]
        wanted = epochs_of(rank, processes)
        assert whole["train"] == wanted
        assert resumed["train"] == wanted[2:]
        assert whole["steps"] == resumed["steps"] == len(wanted)
    parts = {1: [EVALUATED], 2: [[[0, 1, 2, 3], [8]], [[4, 5, 6, 7], [9]]]}
    assert [found["evaluate"] for found in seen["whole"]] == [batches * 2 for batches in parts[processes]]
    for found in seen.get("prefetched", ()):
        assert found["train"] == [[*range(start, min(start + 4, 22))] for start in range(0, 22, 4)] * 2
        assert found["evaluate"] == EVALUATED * 2
