"""The classes of gpuloader.torch: code that asks for PyTorch's classes recognizes them."""

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("torch.utils.data")

import gpuloader  # noqa: E402
import gpuloader.torch as drop_in  # noqa: E402
from gpuloader.sources.array_rows import find_arrays  # noqa: E402
from gpuloader.sources.describing import describe  # noqa: E402

PARTS = [1, 2, 3], [2, 0]
DATASETS = {
    "TensorDataset": lambda: drop_in.TensorDataset(torch.arange(6)),
    "ConcatDataset": lambda: drop_in.ConcatDataset([[1, 2], [3]]),
    "Subset": lambda: drop_in.Subset(*PARTS),
    "ChainDataset": lambda: drop_in.ChainDataset([Shares()]),
    "+": lambda: drop_in.TensorDataset(torch.arange(6)) + drop_in.Subset(*PARTS),
    "+ of iterable ones": lambda: drop_in.ChainDataset([Shares()]) + Shares(),
    "random_split": lambda: drop_in.random_split([1, 2, 3], [2, 1], seed=0)[0],
    "Squares": lambda: Squares(),
    "Shares": lambda: Shares(),
}


class Squares(drop_in.Dataset[int]):
    def __getitem__(self, index):
        return index**2

    def __len__(self):
        return 4


class Shares(drop_in.IterableDataset[int]):
    """Divides six numbers among the workers."""

    def __iter__(self):
        info = drop_in.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 6, step))


@pytest.mark.parametrize("name", DATASETS)
class TestDatasets:
    def test_pytorchs_classes_are_theirs(self, name):
        dataset = DATASETS[name]()
        assert isinstance(dataset, getattr(theirs, type(dataset).__name__, theirs.Dataset))
        assert isinstance(dataset, drop_in.Dataset)
        iterable = hasattr(type(dataset), "__iter__")
        assert isinstance(dataset, theirs.IterableDataset) is iterable

    @pytest.mark.parametrize("workers", [0, 2])
    def test_both_loaders_read_them(self, name, workers):
        found = [
            sorted(torch.cat([torch.as_tensor(batch).reshape(-1) for batch in flat(loader)]).tolist())
            for kind in (drop_in.DataLoader, theirs.DataLoader)
            for loader in [kind(DATASETS[name](), 2, num_workers=workers)]
        ]
        assert found[0] == found[1]
        assert len(found[0]) > 1

    def test_copies_and_pickles(self, name):
        dataset = DATASETS[name]()
        measure = list if hasattr(type(dataset), "__iter__") else len
        for again in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
            assert type(again) is type(dataset)
            assert measure(again) == measure(dataset)


def flat(loader):
    for batch in loader:
        yield from batch if isinstance(batch, list) else [batch]


def test_objects_of_pytorchs_classes_are_instances_of_ours():
    mine = theirs.TensorDataset(torch.arange(6))
    both = Squares() + Squares()
    made = [theirs.DataLoader(mine), mine, theirs.Subset(mine, [1]), both, theirs.ChainDataset([])]
    for one in made:
        for name in ("DataLoader", "TensorDataset", "Subset", "ConcatDataset", "ChainDataset"):
            ours, its = getattr(drop_in, name), getattr(theirs, name)
            assert isinstance(one, ours) is isinstance(one, its), name
            assert issubclass(type(one), ours) is issubclass(type(one), its), name
            assert not isinstance(one, getattr(gpuloader, name)), name
    nested, depth = theirs.Subset(drop_in.Subset(theirs.Subset(mine, [1, 2]), [0, 1]), [0]), 0
    while isinstance(nested, drop_in.Subset):
        nested, depth = nested.dataset, depth + 1
    assert (nested, depth) == (mine, 3)


def test_objects_of_pytorchs_classes_are_not_of_the_users_subclasses():
    class Subset(drop_in.Subset):
        pass

    assert not isinstance(theirs.Subset([1], [0]), Subset)
    assert isinstance(Subset([1], [0]), Subset)
    assert issubclass(Subset, drop_in.Subset)
    assert not isinstance(theirs.TensorDataset(torch.arange(6)), drop_in.Subset)


def test_a_copy_of_the_batch_sampler():
    again = copy.deepcopy(drop_in.DataLoader(range(5), 2).batch_sampler)
    assert type(again) is drop_in.BatchSampler
    assert list(again) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_workers_read_classes_of_the_user(start_method, shared_server):
    for dataset, expected in ((Squares(), [0, 1, 4, 9]), (Shares(), [0, 1, 2, 3, 4, 5])):
        loader = drop_in.DataLoader(dataset, 2, num_workers=1, start_method=start_method)
        assert sorted(torch.cat(list(loader)).tolist()) == expected


def test_our_loaders_recognize_what_they_can_read_at_once():
    part = drop_in.Subset(drop_in.TensorDataset(np.arange(6)), [4, 2])
    assert find_arrays(part).rows.tolist() == [4, 2]
    both = drop_in.ConcatDataset([drop_in.TensorDataset(np.arange(2)), gpuloader.TableDataset({"x": [1]})])
    assert hasattr(both, "__getitems__")


def test_datasets_of_hugging_face_are_found_inside():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"x": [1, 2, 3]})
    for outer in (drop_in.Subset(table, [2, 0]), drop_in.ConcatDataset([table, table])):
        adapted = describe(outer).dataset
        assert adapted is not outer
        inner = adapted.dataset if isinstance(outer, drop_in.Subset) else adapted.datasets[1]
        assert type(inner).__qualname__ == "HuggingFaceRows"

        class Own(type(outer)):
            def __getitem__(self, index):
                return 5

        own = copy.copy(outer)
        own.__class__ = Own
        assert describe(own).dataset is own


class Asks(theirs.IterableDataset):
    def __iter__(self):
        info = gpuloader.get_worker_info()
        yield info.id, info.num_workers, info.rank, info.world_size


def test_worker_info_in_workers_of_pytorchs_loader():
    """It has rank and world size there, too."""
    assert gpuloader.get_worker_info() is None
    for info in theirs.DataLoader(Asks(), batch_size=None, num_workers=2):
        assert info[1:] == [2, 0, 1]
