"""Lightning with two processes, which it starts itself: what each rank reads, and how a run resumes."""

import json
from pathlib import Path

import pytest

from gpuloader import DataLoader
from tests import launching

pytest.importorskip("lightning")

pytestmark = pytest.mark.timeout(600)  # several programs that import torch, one after another

PROGRAM = Path(__file__).with_name("lightning_program.py")
SHARDED = {"shard": "auto", "uneven": "repeat"}
"""What `gpuloader.torch` does by default; the program takes its loader unless `shard` is passed."""


@pytest.fixture
def fit(tmp_path):
    def fit(*arguments, loader=None, trainer=None, ranks=2):
        output = tmp_path / "seen"
        options = ["--loader", json.dumps(loader or {}), "--trainer", json.dumps(trainer or {})]
        launching.run(PROGRAM, output, *options, *arguments)
        return [json.loads(Path(f"{output}.{rank}").read_text()) for rank in range(ranks)]

    return fit


def epoch_of(number, rank, **options):
    """Return the batches of a rank in an epoch."""
    options = {"batch_size": 4, "shuffle": True, "seed": 1, **SHARDED, "shard": (rank, 2), **options}
    loader = DataLoader(range(22), places="cpu", **options)
    loader.set_epoch(number)
    return [batch.tolist() for batch in loader]


def steps_of(seen, epoch):
    return [numbers for number, numbers, *_ in seen if number == epoch]


@pytest.mark.parametrize("use_distributed_sampler", [True, False])
def test_each_rank_trains_and_validates_on_its_part(fit, use_distributed_sampler):
    found = fit("--validate", trainer={"use_distributed_sampler": use_distributed_sampler})
    for rank, seen in enumerate(found):
        assert seen["train"] == [[epoch, batch] for epoch in range(2) for batch in epoch_of(epoch, rank)]
        in_order = epoch_of(0, rank, shuffle=False)
        # Lightning runs two batches to check the loop before it trains.
        assert steps_of(seen["validate"], 0) == in_order[:2] + in_order
        assert steps_of(seen["validate"], 1) == in_order
        assert seen["length"] == 3
        assert seen["warnings"] == []


def test_worker_processes_read_for_their_rank(fit):
    found = fit("--predict", loader={"num_workers": 1, "persistent_workers": True})
    for rank, seen in enumerate(found):
        assert steps_of(seen["train"], 1) == epoch_of(1, rank)
        assert [numbers for _, numbers in seen["predict"]] == epoch_of(0, rank, shuffle=False)


def test_without_shard_both_ranks_read_everything_and_are_warned(fit):
    found = fit(loader={"shard": None}, trainer={"max_epochs": 1})
    for seen in found:
        assert sorted(one for batch in steps_of(seen["train"], 0) for one in batch) == list(range(22))
        [warning] = seen["warnings"]
        assert "shard='auto'" in warning


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What two ranks see in three epochs, and the folder of a checkpoint after each of the 9 steps."""
    folder = tmp_path_factory.mktemp("lightning")
    options = ["--trainer", json.dumps({"max_epochs": 3})]
    launching.run(PROGRAM, folder / "seen", *options, "--checkpoints", folder)
    return [json.loads((folder / f"seen.{rank}").read_text())["train"] for rank in range(2)], folder


@pytest.mark.parametrize("step", [2, 3, 5], ids=["middle", "end of an epoch", "middle of the second epoch"])
def test_a_checkpoint_resumes_where_it_was_written(fit, whole, step):
    steps, folder = whole
    found = fit("--resume", folder / f"step={step}.ckpt", trainer={"max_epochs": 3})
    assert [seen["train"] for seen in found] == [of_rank[step:] for of_rank in steps]


def test_an_epoch_may_be_cut_short_and_resumed(fit, tmp_path):
    limits = {"max_epochs": 2, "limit_train_batches": 2, "limit_val_batches": 1}
    cut = fit("--validate", "--checkpoints", tmp_path, trainer=limits)
    for rank, seen in enumerate(cut):
        assert seen["train"] == [[epoch, batch] for epoch in range(2) for batch in epoch_of(epoch, rank)[:2]]
        assert steps_of(seen["validate"], 1) == epoch_of(0, rank, shuffle=False)[:1]
    resumed = fit("--validate", "--resume", tmp_path / "step=2.ckpt", trainer=limits)
    assert [seen["train"] for seen in resumed] == [seen["train"][2:] for seen in cut]


@pytest.mark.parametrize("dataset", ["sized", "items"])
def test_iterable_datasets_are_divided(fit, dataset):
    found = fit("--dataset", dataset, loader=SHARDED, trainer={"max_epochs": 1})
    assert [steps_of(seen["train"], 0) for seen in found] == [
        [[*range(rank, 8, 2)], [*range(8 + rank, 16, 2)], [*range(16 + rank, 22, 2)]] for rank in range(2)
    ]


def test_masks_reach_the_step(fit):
    found = fit(loader={"shard": "auto", "batch_size": 5}, trainer={"max_epochs": 1, "devices": 3}, ranks=3)
    assert [seen["train"][-1][2] for seen in found] == [
        [True] * 3,
        [True] * 2 + [False],
        [True] * 2 + [False],
    ]
