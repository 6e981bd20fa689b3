"""The Trainer of Hugging Face's Transformers, on two processes: what it reads and resumes."""

from pathlib import Path

import pytest

from tests.launching import written
from tests.loading import load

pytest.importorskip("transformers")

pytestmark = pytest.mark.timeout(600)  # more than a run may take

PROGRAM = Path(__file__).with_name("transformers_program.py")


EVALUATED = [[[0, 1, 2, 3], [8]], [[4, 5, 6, 7], [9]]]
RUNS = {
    "whole": ("own", None),
    "resumed": ("own", "checkpoints of whole/checkpoint-2"),
    "theirs": ("theirs", None),
    "prefetched": ("prefetch", None),
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What two ranks have seen in each of the runs, all of which one program makes."""
    return written(PROGRAM, RUNS, tmp_path_factory.mktemp("transformers"), processes=2)


def epochs_of(rank):
    loader = load(range(22), batch_size=4, shuffle=True, seed=1, shard=(rank, 2), uneven="repeat")
    return [batch.tolist() for _ in range(2) for batch in loader]


@pytest.mark.parametrize("rank", range(2))
def test_ranks_train_evaluate_and_resume_in_the_middle_of_an_epoch(seen, rank):
    whole, resumed = seen["whole"][rank], seen["resumed"][rank]
    wanted = epochs_of(rank)
    assert whole["train"] == wanted
    assert resumed["train"] == wanted[2:]
    assert whole["steps"] == resumed["steps"] == len(wanted)
    assert whole["evaluate"] == EVALUATED[rank] * 2


@pytest.mark.parametrize("rank", range(2))
def test_prefetch_reads_what_its_own_loaders_give(seen, rank):
    assert seen["prefetched"][rank] == seen["theirs"][rank]
    assert seen["prefetched"][rank]["train"][0] == [*range(4 * rank, 4 * rank + 4)]
    assert len(seen["prefetched"][rank]["evaluate"]) == 4
