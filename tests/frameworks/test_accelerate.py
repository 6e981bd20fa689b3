"""Accelerate, and the Trainer of Transformers over it, on two processes: what each rank reads and resumes."""

import copy
import itertools
import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.launching import run, seen_by_ranks
from tests.loading import load
from tests.sample_sets import values

pytest.importorskip("accelerate")
pytest.importorskip("transformers")  # without its Trainer, whose import takes eight seconds

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration
from torch.utils import data as theirs

import gpuloader.accelerate
from gpuloader import torch as ours
from gpuloader.transforms import Cast

pytestmark = pytest.mark.timeout(600)  # more than a run may take

PROGRAM = Path(__file__).with_name("accelerate_program.py")


SEEDED = {"loader": {"seed": 1}}
LEARNS = {"plain": True, "count": 45, "rate": 1e-4}
CONFIGS = {
    "by default": {},
    "split": {"split_batches": True},
    "all": {"split_batches": True, "even_batches": False, "dispatch_batches": True},
}
RUNS = {
    **{
        f"left {config}": {**SEEDED, "plain": True, "config": CONFIGS[config]}
        for config in ("by default", "all")
    },
    "undivided": {"loader": {"shard": None}, "plain": True, "epochs": 1},
    "unseeded": {"loader": {}, "plain": True, "count": 45, "accumulate": 3},
    "learns": {**LEARNS, "loader": {"cache": "host"}},
    "generators": {**LEARNS, "loader": {"cache": "host", "generator": True}},
    "direct": {**SEEDED, "direct": True, "count": 24},
    **{
        f"learns {whose} {config}": {**LEARNS, "config": CONFIGS[config], **more}
        for config in ("by default", "split")
        for whose, more in (
            ("theirs", {"torchs": True}),
            ("ours", {"loader": {}}),
            ("undivided", {"loader": {"shard": None}}),
        )
    },
    "prefetched": {**SEEDED, "prefetch": True, "accumulate": 2},
    "joined": {**SEEDED, "plain": True, "count": 21, "join": True},
    **{
        f"{name} {plain}": {**SEEDED, **options, "plain": plain}
        for plain in (False, True)
        for name, options in {
            "repeated": {"count": 21},
            "accumulated": {"accumulate": 2},
            "begun": {"save_after": 2, "state": f"state {plain}"},
            "resumed": {"state": f"state {plain}"},
            "resumed and skipped": {"state": f"state {plain}", "skip": 2, "accumulate": 3},
            "skipped": {"skip": 2},
        }.items()
    },
}
TRAININGS = {  # with the Trainer: whose loader it is, and a checkpoint to resume from
    "trained": ("own", None),
    "training resumed": ("own", "checkpoints of trained/checkpoint-2"),
    "trained on theirs": ("theirs", None),
    "trained on prefetched": ("prefetch", None),
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What two ranks have seen in each of the runs, all of which one program makes."""
    folder = tmp_path_factory.mktemp("accelerate")
    run(PROGRAM, folder, json.dumps([RUNS, TRAININGS]), processes=2)
    return seen_by_ranks([*RUNS, *TRAININGS], folder)


def epoch_of(number, rank):
    """Return the batches of a rank in an epoch."""
    loader = load(range(22), batch_size=4, shuffle=True, seed=1, shard=(rank, 2), uneven="repeat")
    loader.set_epoch(number)
    return [[number, batch.tolist()] for batch in loader]


@pytest.mark.parametrize("config", ["by default", "all"])
def test_prepare_leaves_the_loader_as_it_is(seen, config):
    """It divides itself, and Accelerate's options for its own loaders change nothing."""
    for rank, found in enumerate(seen[f"left {config}"]):
        assert found["seen"] == epoch_of(0, rank) + epoch_of(1, rank)
        assert found["length"] == 3
        assert found["total"] == 8
        assert found["warnings"] == []


def test_a_loader_is_whole_until_it_is_prepared(seen):
    for found in (*seen["left by default"], *seen["learns ours by default"]):
        assert found["lengths"] == [-(-found["count"] // 4)] * 2


def test_the_function_behind_prepare_divides_once(seen):
    for epoch in range(2):
        parts = [numbers for found in seen["direct"] for number, numbers in found["seen"] if number == epoch]
        assert sorted(itertools.chain(*parts)) == list(range(24))


def test_generators_that_ranks_seed_differently_are_made_alike(seen):
    for epoch in range(2):
        gathered = [numbers for number, numbers in seen["generators"][0]["gathered"] if number == epoch]
        assert sorted(itertools.chain(*gathered)) == list(range(45))


def test_a_loader_that_reads_everything_is_warned_of(seen):
    for found in seen["undivided"]:
        assert len(found["seen"]) == 6
        assert "shard='auto'" in found["warnings"][0]


AS_IT_IS = pytest.mark.parametrize("plain", [False, True], ids=["prepared", "as it is"])


@AS_IT_IS
def test_samples_that_are_repeated_are_not_gathered_twice(seen, plain):
    both = seen[f"repeated {plain}"]
    assert both[0]["gathered"] == both[1]["gathered"]
    whole = load(range(21), batch_size=8, shuffle=True, seed=1)
    wanted = [[epoch, batch.tolist()] for epoch in range(2) for batch in whole]
    assert both[0]["gathered"] == wanted
    assert [len(numbers) for _, numbers in both[1]["seen"]] == [4, 4, 3] * 2


@AS_IT_IS
def test_accumulation_ends_with_the_epoch(seen, plain):
    for found in seen[f"accumulated {plain}"]:
        assert found["ends"] == [False, False, True] * 2
        assert found["synced"] == [False, True, True] * 2
        assert found["steps"] == 4


def test_a_plain_program_counts_every_sample_once(seen):
    """45 samples on two ranks, shuffled without a seed, with gradients accumulated over three batches."""
    for found in seen["unseeded"]:
        for epoch in range(2):
            gathered = [numbers for number, numbers in found["gathered"] if number == epoch]
            assert sorted(itertools.chain.from_iterable(gathered)) == list(range(45))
            sizes = [len(numbers) for number, numbers in found["seen"] if number == epoch]
            assert sizes == [4, 4, 4, 4, 4, 4]
        assert found["synced"] == [False, False, True, False, False, True] * 2
        assert found["steps"] == 4


@pytest.mark.parametrize("config", ["by default", "split"])
def test_losses_are_those_of_pytorchs_loader(seen, config):
    """45 samples in batches of 4 do not divide evenly; the model learns, so its losses tell the order."""
    theirs, ours, undivided = (seen[f"learns {whose} {config}"] for whose in ("theirs", "ours", "undivided"))
    losses = [one["losses"] for one in theirs]
    assert [one["losses"] for one in ours] == [one["losses"] for one in undivided] == losses
    assert ["Accelerate reads with a PyTorch loader" in one["warnings"][0] for one in ours] == [True] * 2
    assert not any(one["warnings"] for one in undivided)


def test_a_dataset_hears_of_the_epoch(seen):
    ours, theirs = (seen[f"learns {whose} by default"] for whose in ("ours", "theirs"))
    assert [one["epochs"] for one in ours] == [one["epochs"] for one in theirs] == [[0, 0, 1, 1]] * 2


def test_a_loader_that_pytorchs_cannot_replace_keeps_its_order_with_a_warning(seen):
    own = seen["learns"]
    assert "could not do the same with cache" in own[0]["warnings"][0]
    assert own[0]["losses"] != seen["learns theirs by default"][0]["losses"]


def test_uneven_inputs_are_joined(seen):
    """Accelerate sets `even_batches` of the batch sampler; ranks have equally many batches anyway."""
    for found in seen["joined"]:
        assert [len(numbers) for _, numbers in found["seen"]] == [4, 4, 3] * 2
        assert found["joined"] == 2
        assert found["steps"] == 6


@AS_IT_IS
def test_a_saved_state_resumes_after_the_batch_that_was_trained_on(seen, plain):
    begun, resumed = seen[f"begun {plain}"], seen[f"resumed {plain}"]
    for rank in range(2):
        first, second = epoch_of(0, rank), epoch_of(1, rank)
        assert begun[rank]["seen"] == first[:2]
        assert resumed[rank]["seen"] == first[2:] + second
        skipped = seen[f"resumed and skipped {plain}"][rank]
        assert skipped["seen"] == first[2:] + second
        assert skipped["ends"] == skipped["synced"] == [True, False, False, True]


@AS_IT_IS
def test_the_first_batches_can_be_skipped(seen, plain):
    for rank, found in enumerate(seen[f"skipped {plain}"]):
        assert found["seen"] == epoch_of(0, rank)[2:] + epoch_of(1, rank)


def test_prefetch_around_prepare(seen):
    """The end of an epoch is not announced before its last batch is there, though it was read ahead."""
    parts = [[*range(start, start + 4)] for start in range(0, 20, 4)] + [[20, 21, 0, 1]]
    steps = [[*range(start, min(start + 8, 22))] for start in range(0, 22, 8)]
    for rank, found in enumerate(seen["prefetched"]):
        assert found["seen"] == [[epoch, batch] for epoch in range(2) for batch in parts[rank::2]]
        assert found["gathered"] == [[epoch, batch] for epoch in range(2) for batch in steps]
        assert found["ends"] == [False, False, True] * 2
        assert found["synced"] == [False, True, True] * 2
        assert found["steps"] == 4


@pytest.mark.parametrize("rank", range(2))
def test_ranks_of_the_trainer_train_evaluate_and_resume_in_the_middle_of_an_epoch(seen, rank):
    whole, resumed = seen["trained"][rank], seen["training resumed"][rank]
    wanted = [batch for epoch in range(2) for _, batch in epoch_of(epoch, rank)]
    assert whole["train"] == wanted
    assert resumed["train"] == wanted[2:]
    assert whole["steps"] == resumed["steps"] == len(wanted)
    assert whole["evaluate"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2  # without a seed, as with PyTorch's


@pytest.mark.parametrize("rank", range(2))
def test_prefetch_reads_what_the_trainers_own_loaders_give(seen, rank):
    found = seen["trained on prefetched"][rank]
    assert found == seen["trained on theirs"][rank]
    assert found["train"][0] == [*range(4 * rank, 4 * rank + 4)]
    assert len(found["evaluate"]) == 4


def test_one_process_has_the_order_of_the_trainer(monkeypatch):
    """The Trainer lets Accelerate shuffle by a seed, with an option that no loader is told of."""
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})
    found, heard = [], []
    for lib, options in ((theirs, {}), (ours, {"shard": None}), (ours, {"seed": 1}), (ours, {})):
        loader = lib.DataLoader(range(8), 4, shuffle=True, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            prepared = Accelerator(cpu=True, dataloader_config=config).prepare(loader)
        heard.append([one for one in caught if "pass shard=None" in str(one.message)])
        found.append([batch.tolist() for batch in prepared])
    assert found[0] == found[1] == found[3] != found[2]
    assert list(map(len, heard)) == [0, 0, 0, 1]


@pytest.mark.parametrize("lib", [theirs, ours])
@pytest.mark.filterwarnings("ignore:Accelerate reads with a PyTorch loader:UserWarning")
def test_a_program_that_skips_what_it_has_trained_on_gets_the_rest(monkeypatch, tmp_path, lib):
    """The state that Accelerate saves has no position, because the program skips batches itself."""
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = accelerator.prepare(lib.DataLoader(range(6), 2))
    next(iter(loader))
    accelerator.save_state(tmp_path)
    accelerator.load_state(tmp_path)
    found = []
    for batch in accelerator.skip_first_batches(loader, 1):
        found.append((batch.tolist(), accelerator.gradient_state.end_of_dataloader))
    assert found == [([2, 3], False), ([4, 5], True)]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


OWN = {
    "MixDataset": lambda: {"dataset": gpuloader.MixDataset([range(3), range(5)], [3, 5])},
    "RandomSampler": lambda: {"dataset": range(8), "sampler": gpuloader.RandomSampler(range(8))},
    "BatchSampler": lambda: {
        "dataset": range(8),
        "batch_sampler": gpuloader.BatchSampler(range(8), shuffle=True, batch_size=2),
    },
    "dict": lambda: {"dataset": {"x": np.arange(8)}},
    "pad": lambda: {"dataset": [np.arange(2), np.arange(3)], "pad": {"0": 0}, "batch_size": 2},
    "output": lambda: {"dataset": range(8), "output": "numpy"},
}


@pytest.mark.parametrize("name", OWN)
def test_what_pytorchs_loader_cannot_do_stays_ours(monkeypatch, name):
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})
    loader = ours.DataLoader(**OWN[name]())
    with pytest.warns(UserWarning, match=f"could not do the same with {name}"):
        assert Accelerator(cpu=True).prepare(loader) is loader
    assert len(list(loader)) == len(loader)


def test_accelerate_skips_with_a_loader_that_knows_the_end_or_not_at_all(monkeypatch):
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(ours.DataLoader(range(6), 2, seed=1, transforms=[Cast(dtype="float64")]))
    assert isinstance(pickle.loads(pickle.dumps(loader)), ours.DataLoader)
    with pytest.raises(TypeError, match="ignores its options transforms"):
        accelerator.skip_first_batches(loader, 1)
    found = [
        (batch.tolist(), accelerator.gradient_state.end_of_dataloader)
        for batch in gpuloader.accelerate.skip_first_batches(loader, 1)
    ]
    assert found == [([2.0, 3.0], False), ([4.0, 5.0], True)]


@pytest.fixture
def accelerator(monkeypatch):
    """Return an Accelerator of a single process."""
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})
    return Accelerator(cpu=True)


def seeded(count=12, size=4, kind=ours.DataLoader, **options):
    return kind(range(count), size, shuffle=True, seed=1, **options)


def test_to_look_at_the_batch_sampler_begins_no_epoch(accelerator):
    loader = accelerator.prepare(seeded())
    alone = seeded()
    listed = list(alone.batch_sampler)
    assert list(loader.batch_sampler) == listed == values(alone)
    epoch = iter(loader)
    first = next(epoch).tolist()
    following = list(loader.batch_sampler)
    assert [first, *values(epoch)] == listed
    assert values(loader) == following == values(alone)


def test_the_epoch_that_accelerate_skips_in_is_followed_by_the_next_one(accelerator):
    loader, alone = accelerator.prepare(seeded()), seeded()
    assert values(accelerator.skip_first_batches(loader, 1)) == values(alone)[1:]
    assert [values(loader) for _ in range(2)] == [values(alone) for _ in range(2)]
    assert list(loader.batch_sampler) == values(loader) == values(alone)


class Stream(theirs.IterableDataset):
    def __iter__(self):
        return iter(range(6))


def test_batches_of_a_stream_can_be_skipped(accelerator):
    loader = accelerator.prepare(ours.DataLoader(Stream(), 2, seed=1))
    assert values(gpuloader.accelerate.skip_first_batches(loader, 1)) == [[2, 3], [4, 5]]
    assert values(accelerator.skip_first_batches(loader, 2)) == [[4, 5]]
    assert values(loader) == [[0, 1], [2, 3], [4, 5]]


def test_the_iteration_can_be_set_and_read(accelerator):
    """By Accelerate's name for the number of the epoch, which its own loaders have."""
    loader, alone = seeded(), seeded()
    assert not hasattr(loader, "iteration")
    accelerator.prepare(loader)
    assert loader.iteration == 0
    loader.iteration = 3
    alone.set_epoch(3)
    assert values(loader) == values(alone)
    assert loader.iteration == 4
    assert list(loader.batch_sampler) == values(loader) == values(alone)
    assert values(loader) == values(alone)


class Counting(ours.DataLoader):
    """Counts its loops, and has a device of its own, by names that Accelerate uses, too."""

    iteration = 0

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.device = "mine"

    def __iter__(self):
        self.iteration += 1
        return super().__iter__()


def test_a_subclass_keeps_what_it_names_as_accelerate_does(accelerator):
    loader, alone = accelerator.prepare(seeded(kind=Counting)), seeded()
    for loops in range(1, 4):
        assert values(loader) == values(alone)
        assert (loader.iteration, loader.device) == (loops, "mine")


@pytest.mark.parametrize(
    "make", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_a_copy_of_a_prepared_loader_can_be_prepared_itself(accelerator, make):
    loader = accelerator.prepare(seeded())
    again = make(loader)
    assert again.__class__ is ours.DataLoader
    names = ("device", "iteration", "rng_types", "total_batch_size", "use_stateful_dataloader")
    assert [name for name in names if hasattr(again, name)] == []
    assert all(hasattr(loader, name) for name in names)
    ends = [accelerator.gradient_state.end_of_dataloader for _ in accelerator.prepare(again)]
    assert ends == [False, False, True]


def test_what_is_looped_over_is_the_active_dataloader(accelerator):
    loader = accelerator.prepare(seeded())
    for _ in loader:
        active = accelerator.gradient_state.active_dataloader
        assert active.dataset is loader.dataset
        assert (active.total_dataset_length, active.total_batch_size) == (12, 4)
    assert accelerator.gradient_state.active_dataloader is None


def test_a_dataset_is_opened_once(monkeypatch):
    """On several processes, the loader decides again when it learns its rank."""
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})
    table = {"x": np.arange(8)}
    loader = ours.DataLoader(table, 2, seed=1)
    source = loader._epochs.plan.source
    Accelerator(cpu=True)
    loader._take_rank(1, 2)
    assert len(loader) == 2
    assert loader._epochs.plan.source is source


def test_options_that_the_loader_of_accelerate_ignores_are_named(monkeypatch):
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})
    loader = ours.DataLoader(range(4), 4, shard=None, transforms=[Cast(dtype="float64")], output="numpy")
    with pytest.warns(UserWarning, match="ignores its options transforms, output"):
        Accelerator(cpu=True).prepare(loader)
