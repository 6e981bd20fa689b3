"""`gpuloader.torch.DataLoader` on several ranks, beside PyTorch's loader with a `DistributedSampler`."""

import itertools
import sys
import warnings
from types import SimpleNamespace

import pytest

from gpuloader.accelerate import prepare
from gpuloader.api import dataset_epochs, torch_loader
from tests.api.streams import Items
from tests.sample_sets import Made, values

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader as Theirs  # noqa: E402

import gpuloader  # noqa: E402
from gpuloader.torch import DataLoader, DistributedSampler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*divides the samples among the ranks:UserWarning")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(dataset_epochs, "_has_warned", False)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def on_ranks(become):
    """Run a function on each rank."""

    def on_ranks(world_size, function):
        found = []
        for rank in range(world_size):
            become(rank, world_size)
            found.append(function())
        return found

    return on_ranks


def joined(batches):
    """Return the samples of all batches."""
    return list(itertools.chain(*batches))


def load(count, **options):
    return DataLoader(torch.arange(count), **{"batch_size": 4, **options})


@pytest.mark.parametrize("count", [1, 4, 8, 10, 21, 24])
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_step_has_the_samples_that_a_distributed_sampler_gives_it(
    on_ranks, count, world_size, drop_last, shuffle
):
    """No batch has a mask, however few samples there are."""
    options = {"shuffle": shuffle, "drop_last": drop_last}
    ours = on_ranks(world_size, lambda: epochs_of(load(count, **options)))
    for epoch, of_ranks in enumerate(zip(*ours, strict=True)):
        theirs = []
        for rank in range(world_size):
            sampler = DistributedSampler(range(count), world_size, rank, shuffle=shuffle)
            sampler.set_epoch(epoch)
            theirs.append(values(Theirs(torch.arange(count), 4, sampler=sampler, drop_last=drop_last)))
        assert together(of_ranks) == together(theirs)


def epochs_of(loader):
    return [values(loader) for _ in range(2)]


def together(ranks):
    """Return the samples of each step, over all ranks."""
    return [sorted(joined(step)) for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({}, True),
        ({"shard": None, "sampler": DistributedSampler(range(8), 2, 0)}, False),
        ({"sampler": DistributedSampler(range(8), 2, 0)}, False),
        ({"shard": (0, 2)}, False),
    ],
)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_division_that_nobody_asked_for_is_announced(become, options, warns, world_size):
    torch_loader._warn_of_division.cache_clear()
    become(0, world_size)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        list(load(8, **options))
        list(load(8, **options))
    assert ["pass shard=None" in str(one.message) for one in heard] == [True] * (warns and world_size > 1)


@pytest.mark.parametrize("options", [{}, {"sampler": torch.utils.data.RandomSampler(range(8))}])
@pytest.mark.parametrize(("shared", "warns"), [({}, True), ({"num_processes": 2}, False)])
def test_accelerate_that_is_imported_and_not_used_is_warned_of(become, monkeypatch, options, shared, warns):
    """Without it, torchrun's variables divide; with it, every rank reads everything."""
    become(1, 2)
    state = SimpleNamespace(PartialState=SimpleNamespace(_shared_state=shared))
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        loader = load(8, **options)
        assert len(loader) == 2
        assert not heard
        assert sorted(joined(values(loader))) == [*range(8)]
        list(load(8))
    assert ["rank 1 of 2, and the loader reads all" in str(one.message) for one in heard] == [True] * warns


def test_the_epoch_is_the_one_of_the_first_step(become):
    become(0, 2)
    loader = load(16, shuffle=True, num_workers=2)
    epoch = iter(loader)
    loader.set_epoch(3)
    late = load(16, shuffle=True)
    late.set_epoch(3)
    assert values(epoch) == values(late)


@pytest.mark.parametrize("change", [(0, 1, 1, 2), (0, 2, 1, 2), (1, 2, 0, 1)])
def test_the_rank_is_the_one_of_the_first_step(become, change):
    become(*change[:2])
    epoch = iter(load(16))
    become(*change[2:])
    assert values(epoch) == values(load(16))


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_shuffle_alike_without_a_seed_and_anew_in_every_epoch(on_ranks, workers):
    def epochs():
        torch.manual_seed(on_rank_seed.pop())
        return epochs_of(load(12, shuffle=True, num_workers=workers))

    on_rank_seed = [5, 6]  # as of programs that seed each rank differently
    first, second = on_ranks(2, epochs)
    for epoch in range(2):
        assert sorted(joined(first[epoch] + second[epoch])) == list(range(12))
    assert first[0] != first[1]


def test_a_seed_or_generator_determines_the_order(become):
    become(1, 2)
    for option, make in (("seed", int), ("generator", torch.Generator().manual_seed)):
        first, second = (values(load(12, shuffle=True, **{option: make(seed)})) for seed in (1, 2))
        assert first != second


def test_one_rank_reads_as_ever(become):
    torch.manual_seed(0)
    alone = values(load(10, shuffle=True))
    torch.manual_seed(0)
    become(0, 1)
    assert values(load(10, shuffle=True)) == alone
    assert values(load(10, shuffle=True, shard=None)) != alone  # the global generator has moved on


def test_a_seed_that_was_drawn_before_there_were_ranks_does_not_count(become):
    """Lightning's first process runs the whole script before it has a rank, and the others have theirs."""
    loader = load(12, shuffle=True)
    loader.state_dict()
    list(loader)
    become(0, 2)
    late = load(12, shuffle=True)
    late.set_epoch(1)
    assert values(loader) == values(late)


def test_a_resumed_seed_stays(become):
    become(0, 2)
    loader, again = load(16, shuffle=True, seed=9), load(16, shuffle=True)
    first, second = epochs_of(loader)
    loader.set_epoch(0)
    next(iter(loader))
    again.load_state_dict(loader.state_dict())
    assert epochs_of(again) == [first[1:], second]


@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
def test_a_distributed_sampler_divides_once(become, kind):
    become(1, 2)
    sampler = DistributedSampler(range(10), shuffle=True, num_replicas=2, rank=1)
    options = {"batch_size": 2, "sampler": sampler}
    if kind == "batch_sampler":
        options = {"batch_sampler": torch.utils.data.BatchSampler(sampler, 2, False)}
    loader = DataLoader(torch.arange(10), **options)
    theirs = Theirs(torch.arange(10), **options)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        assert values(loader) == values(theirs)


class Hidden:
    """A sampler that divides by a rank which it keeps to itself, as those of detectron2 do."""

    _rank, _world_size = 1, 2

    def __iter__(self):
        return iter(range(self._rank, 10, self._world_size))


def test_a_sampler_with_private_ranks_divides_once(become):
    become(1, 2)
    assert values(load(10, sampler=Hidden())) == [[1, 3, 5, 7], [9]]
    assert "rank 1 of 2" in repr(load(8))


class Turned:
    """A sampler whose order depends on the epoch alone."""

    epoch = 0

    def __len__(self):
        return 10

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([*range(self.epoch, 10), *range(self.epoch)])


class TestSamplersThatMayDiffer:
    @pytest.mark.parametrize(
        ("options", "count"),
        [
            ({"sampler": torch.utils.data.RandomSampler(range(8))}, 8),
            ({"sampler": torch.utils.data.WeightedRandomSampler([1.0] * 8, 8)}, 8),
            ({"sampler": Turned()}, 10),
            ({"batch_sampler": [[0, 1], [2, 3]]}, 4),
            ({"in_order": False, "num_workers": 1}, 10),
        ],
        ids=["random", "weighted", "of the user", "batches", "any order"],
    )
    def test_are_not_divided_and_warned_of(self, become, options, count):
        size = {} if "batch_sampler" in options else {"batch_size": 5}
        loader = DataLoader(torch.arange(10), **size, **options)
        become(0, 2)
        with pytest.warns(UserWarning, match="rank 0 of 2, and the loader reads all samples on every rank"):
            assert len(joined(values(loader))) == count

    @pytest.mark.parametrize("uneven", ["repeat", "drop"])
    def test_are_divided_epoch_by_epoch_if_the_rank_is_passed(self, uneven):
        options = {"batch_size": 2, "sampler": Turned(), "uneven": uneven}
        ranks = [load(10, shard=(rank, 2), **options) for rank in range(2)]
        assert [values(loader) for loader in ranks] == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]
        assert [values(loader) for loader in ranks] == [[[1, 2], [5, 6], [9]], [[3, 4], [7, 8], [0]]]
        assert [len(loader) for loader in ranks] == [3, 3]

    def test_a_sampler_that_cannot_tell_is_refused_if_the_rank_is_passed(self):
        with pytest.raises(ValueError, match="which WeightedRandomSampler does not guarantee"):
            load(8, sampler=torch.utils.data.WeightedRandomSampler([1.0] * 8, 8), shard=(0, 2))

    def test_a_sampler_of_gpuloader_is_divided(self, on_ranks):
        first, second = on_ranks(2, lambda: values(load(8, sampler=gpuloader.RandomSampler(range(8)))))
        assert sorted(joined(first + second)) == list(range(8))

    def test_accelerate_refuses_them(self):
        accelerator = SimpleNamespace(num_processes=2, register_for_checkpointing=lambda *_: None)
        with pytest.raises(ValueError, match="would read everything: Turned may differ between ranks"):
            prepare(accelerator, load(10, sampler=Turned()))


def test_a_list_of_indices_is_read_anew_in_every_epoch_on_one_rank_and_divided_on_two(on_ranks):
    indices = [3, 1, 2]
    loader = load(10, sampler=indices, batch_size=2)
    assert values(loader) == [[3, 1], [2]]
    indices.reverse()
    assert values(loader) == [[2, 1], [3]]
    divided = on_ranks(2, lambda: values(load(10, sampler=[5, 6, 7, 8], batch_size=2)))
    assert divided == [[[5, 6]], [[7, 8]]]


def divide():
    """Return the items of this worker of this rank."""
    info = gpuloader.get_worker_info()
    return range(info.rank * info.num_workers + info.id, 8, info.world_size * info.num_workers)


def test_iterable_datasets_divide_themselves_or_are_warned_of(on_ranks, become):
    found = on_ranks(2, lambda: joined(values(DataLoader(Items(divide), 2, num_workers=2))))
    assert [sorted(items) for items in found] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    whole = Items(lambda: range(8))
    assert values(DataLoader(whole, 2, shard=(1, 2))) == [[1, 3], [5, 7]]
    become(1, 2)
    with pytest.warns(UserWarning, match="make the iterable dataset divide its items") as heard:
        assert [batch.tolist() for batch in DataLoader(whole, 8)] == [[*range(8)]]
    assert heard[0].filename == __file__


def tell_seeds(index):
    """Return what `worker_init_fn` has found: the seed of the worker, and that of PyTorch's generator."""
    return torch.utils.data.get_worker_info().dataset.found


def note_seeds(number):
    info = torch.utils.data.get_worker_info()
    info.dataset.found = torch.tensor([info.seed, torch.initial_seed()])


def test_worker_init_fn_finds_generators_seeded_for_its_worker_and_rank(on_ranks):
    """In a forked worker they would otherwise be those of the program, everywhere the same."""

    def read():
        torch.manual_seed(5)
        options = {"worker_init_fn": note_seeds, "multiprocessing_context": "fork"}
        loader = DataLoader(Made(tell_seeds, 8), 1, num_workers=2, **options)
        return {tuple(batch[0].tolist()) for batch in loader}

    found = on_ranks(2, read)
    assert found == on_ranks(2, read)
    seeds = [own for of_rank in found for own, of_torch in of_rank if own == of_torch]
    assert len(set(seeds)) == len(seeds) == 4


def test_variables_that_a_single_process_may_inherit_do_not_count(monkeypatch):
    """A batch script of Slurm starts one process, whose variables describe all the tasks asked for."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert values(load(8)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert len(list(load(8, sampler=torch.utils.data.RandomSampler(range(8))))) == 2
    monkeypatch.setenv("WORLD_SIZE", "2")  # without RANK
    assert values(load(8)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
