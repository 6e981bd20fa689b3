"""The Trainer of Hugging Face's Transformers, on two processes: what it reads and resumes."""

import warnings
from pathlib import Path

import pytest

from tests.launching import written
from tests.loading import load

pytest.importorskip("transformers")
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils import data as theirs

from gpuloader import torch as ours

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


def test_one_process_hears_how_to_get_the_order_of_the_trainer():
    """The Trainer lets Accelerate shuffle by a seed, with an option that no loader is told of."""
    pytest.importorskip("transformers.trainer")
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
    found, heard = [], []
    for lib, options in ((theirs, {}), (ours, {"shard": None}), (ours, {"seed": 1}), (ours, {})):
        loader = lib.DataLoader(range(8), 4, shuffle=True, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            prepared = Accelerator(cpu=True, dataloader_config=config).prepare(loader)
        heard.append([one for one in caught if "pass shard=None" in str(one.message)])
        found.append([batch.tolist() for batch in prepared])
    assert found[1] == found[0]
    assert list(map(len, heard)) == [0, 0, 0, 1]
