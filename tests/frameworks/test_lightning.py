"""Lightning with two processes, which it starts itself: what each rank reads, and how a run resumes."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.launching import written
from tests.loading import load
from tests.sample_sets import values

if find_spec("lightning") is None:  # an import here would take nine seconds
    pytest.skip("needs lightning", allow_module_level=True)

from torch.utils.data import DistributedSampler

pytestmark = pytest.mark.timeout(600)  # more than a run may take

PROGRAM = Path(__file__).with_name("lightning_program.py")
SHARDED = {"shard": "auto", "uneven": "repeat"}
"""What `gpuloader.torch` does by default; the program takes its loader unless `shard` is passed."""
LIMITS = {"limit_train_batches": 2, "limit_val_batches": 1}
STEPS = {"the middle": 2, "the end of an epoch": 3, "the middle of the second epoch": 5}
RUNS = {
    **{
        f"sampler {use}": {"validate": True, "trainer": {"use_distributed_sampler": use}}
        for use in (True, False)
    },
    "workers": {"predict": True, "loader": {"num_workers": 1, "persistent_workers": True}},
    "undivided": {"loader": {"shard": None}, "trainer": {"max_epochs": 1}},
    "whole": {"checkpoints": True, "trainer": {"max_epochs": 3}},
    **{f"from {s}": {"resume": f"whole/step={s}.ckpt", "trainer": {"max_epochs": 3}} for s in STEPS.values()},
    "cut": {"validate": True, "checkpoints": True, "trainer": LIMITS},
    "from the cut": {"validate": True, "resume": "cut/step=2.ckpt", "trainer": LIMITS},
    **{
        kind: {"dataset": kind, "loader": SHARDED, "trainer": {"max_epochs": 1}}
        for kind in ("sized", "items")
    },
    "prefetched": {"prefetch": True, "validate": True, "checkpoints": True},
    "prefetched, resumed": {"prefetch": True, "validate": True, "resume": "prefetched/step=2.ckpt"},
    "masks": {"count": 21, "loader": {"shard": "auto"}, "trainer": {"max_epochs": 1}},
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two ranks have seen in each of the runs, all of which one program makes."""
    return written(PROGRAM, RUNS, tmp_path_factory.mktemp("lightning"), processes=1)


def epoch_of(number, rank, shuffle=True):
    """Return the batches of a rank in an epoch with the sampler that Lightning gives PyTorch's loaders."""
    sampler = DistributedSampler(range(22), 2, rank, shuffle)
    sampler.set_epoch(number)
    indices = list(sampler)
    return [indices[start : start + 4] for start in range(0, len(indices), 4)]


def own_epoch_of(number, rank, **options):
    """Return the batches of a rank in an epoch that the loader divides itself."""
    options = {"batch_size": 4, "shuffle": True, "seed": 1, **SHARDED, "shard": (rank, 2), **options}
    loader = load(range(22), **options)
    loader.set_epoch(number)
    return values(loader)


def steps_of(seen, epoch):
    return [numbers for number, numbers, *_ in seen if number == epoch]


def test_a_loader_that_lightning_makes_again_finds_its_number_of_workers_too(found):
    assert all(seen["workers are found again"] for seen in found["whole"])


def test_a_loader_made_in_a_hook_with_arguments_by_position_is_made_again(found):
    assert all(seen["loaders of hooks are made again"] for seen in found["whole"])


@pytest.mark.parametrize(("use_distributed_sampler", "epoch_of"), [(True, epoch_of), (False, own_epoch_of)])
def test_each_rank_trains_and_validates_on_its_part(found, use_distributed_sampler, epoch_of):
    for rank, seen in enumerate(found[f"sampler {use_distributed_sampler}"]):
        assert seen["train"] == [[epoch, batch] for epoch in range(2) for batch in epoch_of(epoch, rank)]
        in_order = epoch_of(0, rank, shuffle=False)
        # Lightning runs two batches to check the loop before it trains.
        assert steps_of(seen["validate"], 0) == in_order[:2] + in_order
        assert steps_of(seen["validate"], 1) == in_order
        assert seen["length"] == 3
        assert len(seen["warnings"]) == (not use_distributed_sampler)
        assert all("pass shard=None" in warning for warning in seen["warnings"])


def test_worker_processes_read_for_their_rank(found):
    for rank, seen in enumerate(found["workers"]):
        assert steps_of(seen["train"], 1) == epoch_of(1, rank)
        assert [numbers for _, numbers in seen["predict"]] == epoch_of(0, rank, shuffle=False)


def test_without_shard_both_ranks_read_everything_and_are_warned(found):
    for seen in found["undivided"]:
        assert sorted(one for batch in steps_of(seen["train"], 0) for one in batch) == list(range(22))
        [warning] = seen["warnings"]
        assert "shard='auto'" in warning


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_checkpoint_resumes_where_it_was_written(found, step):
    assert [seen["train"] for seen in found[f"from {step}"]] == [
        seen["train"][step:] for seen in found["whole"]
    ]


def test_an_epoch_may_be_cut_short_and_resumed(found):
    for rank, seen in enumerate(found["cut"]):
        assert seen["train"] == [[epoch, batch] for epoch in range(2) for batch in epoch_of(epoch, rank)[:2]]
        assert steps_of(seen["validate"], 1) == epoch_of(0, rank, shuffle=False)[:1]
    assert [seen["train"] for seen in found["from the cut"]] == [seen["train"][2:] for seen in found["cut"]]


@pytest.mark.parametrize("dataset", ["sized", "items"])
def test_iterable_datasets_are_divided(found, dataset):
    assert [steps_of(seen["train"], 0) for seen in found[dataset]] == [
        [[*range(rank, 8, 2)], [*range(8 + rank, 16, 2)], [*range(16 + rank, 22, 2)]] for rank in range(2)
    ]


def test_prefetch_around_pytorchs_loader(found):
    """Lightning divides nothing there. What was read ahead of the batch that was trained on is read again."""
    batches = [[*range(start, min(start + 4, 22))] for start in range(0, 22, 4)]
    for whole, resumed in zip(found["prefetched"], found["prefetched, resumed"], strict=True):
        assert whole["train"] == [[epoch, batch] for epoch in range(2) for batch in batches]
        assert steps_of(whole["validate"], 0) == batches[:2] + batches
        assert steps_of(whole["validate"], 1) == batches
        assert whole["length"] == 6
        assert resumed["train"] == whole["train"][2:]


def test_masks_reach_the_step(found):
    """Of 21 samples, the second rank has one less."""
    assert [seen["train"][-1][2] for seen in found["masks"]] == [[True] * 3, [True, True, False]]
