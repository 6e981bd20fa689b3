"""Datasets and samplers beside PyTorch's."""

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("torch.utils.data")

import gpuloader as ours  # noqa: E402
from tests.alike import same  # noqa: E402
from tests.loading import load, resume  # noqa: E402
from tests.sample_sets import Counting, values  # noqa: E402

X, Y = torch.arange(12.0).reshape(4, 3), torch.arange(4)
MASK = [True, False, True, False]
INDICES = [
    2, -1, np.int64(1), torch.tensor(2), np.array(1), slice(1, 3), [2, 0], range(2), np.array([2, 0]),
    slice(None, None, 2), torch.tensor([2, 0]), torch.tensor(MASK), np.array(MASK), MASK, [], [-1, 3],
]  # fmt: skip
# What only the datasets of `gpuloader.torch` understand as PyTorch does.
TO_THE_LETTER = [
    None, True, ..., (1,), torch.tensor([[0, 1], [1, 2]]), torch.tensor([1, 0, 1, 0], dtype=torch.uint8),
]  # fmt: skip


class TestTensorDataset:
    @pytest.mark.filterwarnings("ignore:Using a non-tuple sequence", "ignore:indexing with dtype torch.uint8")
    @pytest.mark.parametrize("index", [*INDICES, *TO_THE_LETTER], ids=repr)
    def test_it_is_indexed_like_pytorchs(self, index):
        expected = theirs.TensorDataset(X, Y)[index]
        assert same(ours.torch.TensorDataset(X, Y)[index], expected)
        if not any(index is one for one in TO_THE_LETTER):
            assert same(ours.TensorDataset(X, Y)[index], expected)

    @pytest.mark.parametrize("index", [4, -5, [4], torch.tensor([0, -5]), (0, 1)], ids=repr)
    def test_what_is_not_there(self, index):
        for kind in (ours, theirs):
            with pytest.raises((IndexError, TypeError)):
                kind.TensorDataset(X, Y)[index]

    def test_tensors_stay_tensors_and_share_their_memory(self):
        values = torch.zeros(3, 2)
        dataset = ours.TensorDataset(values, np.zeros(3))
        assert dataset.tensors[0] is values
        assert isinstance(dataset.tensors[1], np.ndarray)
        values[1] = 5
        assert dataset[1][0].tolist() == [5, 5]
        assert dataset.arrays[0][1].tolist() == [5, 5]
        loader = load(dataset, batch_size=3)
        assert next(iter(loader))[0].tolist() == [[0, 0], [5, 5], [0, 0]]

    def test_it_is_gathered_as_arrays_and_read_by_workers(self):
        dataset = ours.TensorDataset(X, Y)
        for subset in (dataset, ours.Subset(dataset, torch.tensor([3, 1]))):
            rows = [int(label) for _, label in subset]
            loader = load(subset, batch_size=4)
            assert loader._epochs.configuration.reads == "arrays"
            assert next(iter(loader))[1].tolist() == rows
        feeds = [ours.data("x", [None, 3]), ours.data("y", [None, 1], "int64")]
        loader = load(dataset, feed_list=feeds, batch_size=4, num_workers=1)
        assert next(iter(loader))[0].tolist() == X.tolist()

    def test_a_copy_has_tensors_and_a_pickle_holds_their_memory_apart(self):
        """Workers then map that memory, and do not unpickle it."""
        dataset = ours.TensorDataset(torch.arange(10**5), np.arange(10**5))
        memory = []
        pickled = pickle.dumps(dataset, protocol=5, buffer_callback=memory.append)
        assert len(pickled) < 10**4
        for again in (pickle.loads(pickled, buffers=memory), copy.deepcopy(dataset), copy.copy(dataset)):
            assert [type(field) for field in again.tensors] == [torch.Tensor, np.ndarray]
            assert int(again[[5, 7]][0][1]) == 7
        assert copy.copy(dataset).tensors[0].data_ptr() == dataset.tensors[0].data_ptr()


OTHERS = {
    "TableDataset": lambda: ours.TableDataset({"x": X.numpy(), "y": [str(row) for row in range(4)]}),
    "TokenWindows": lambda: ours.TokenWindows(np.arange(12), 3),
    "PackedList": lambda: ours.PackedList("abcd"),
    "ConcatDataset": lambda: ours.ConcatDataset(
        [ours.TensorDataset(X[:1], Y[:1]), ours.TensorDataset(X[1:], Y[1:])]
    ),
}


class TestOtherDatasets:
    @pytest.mark.parametrize("name", [*OTHERS, "TensorDataset"])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_sampler_of_whole_batches(self, name, workers):
        """PyTorch's loader reads them the same way."""
        dataset = OTHERS[name]() if name in OTHERS else ours.torch.TensorDataset(X, Y)
        sampler = theirs.BatchSampler(theirs.SequentialSampler(dataset), 3, drop_last=False)
        options = {"sampler": sampler, "batch_size": None}
        found = list(ours.torch.DataLoader(dataset, num_workers=workers, **options))
        assert all(map(same, found, theirs.DataLoader(dataset, **options)))
        assert len(found) == 2


class TestSubset:
    @pytest.mark.parametrize(
        "indices", [[3, 1], range(1, 3), torch.tensor([3, 1]), np.array([3, 1])], ids=repr
    )
    @pytest.mark.parametrize("index", [0, -1, [0, 1], slice(0, 2)], ids=repr)
    def test_it_is_indexed_like_pytorchs(self, indices, index):
        if torch.is_tensor(indices) and isinstance(index, list):
            pytest.skip("PyTorch takes the list of tensors for an index of two dimensions")
        found = ours.Subset(ours.TensorDataset(X, Y), indices)[index]
        assert same(found, theirs.Subset(theirs.TensorDataset(X, Y), indices)[index])

    def test_it_is_indexed_by_tensors_and_keys_too(self):
        """PyTorch's refuses tensors unless its indices are a tensor."""
        found = ours.Subset(ours.TensorDataset(X, Y), [3, 1])[torch.tensor([1, 0])]
        assert found[1].tolist() == [1, 3]
        animals = ours.Subset({"cat": 1, "dog": 2}, ["dog", "cat"])
        assert [animals[0], animals[1]] == [2, 1]
        assert next(iter(ours.torch.DataLoader(animals, 2))).tolist() == [2, 1]

    def test_data_sets_of_pytorch_are_data_sets(self):
        dataset = theirs.TensorDataset(X, Y)
        assert [int(y) for _, y in ours.Subset(dataset, [2, 0])] == [2, 0]
        both = ours.ConcatDataset([dataset, ours.TensorDataset(X, Y)])
        assert both.cumulative_sizes == theirs.ConcatDataset([dataset, dataset]).cumulative_sizes
        assert [int(y) for _, y in both] == [0, 1, 2, 3] * 2
        assert len(ours.TensorDataset(X, Y) + dataset) == len(dataset + ours.TensorDataset(X, Y)) == 8


class Letters(theirs.IterableDataset):
    def __iter__(self):
        return iter("ab")

    def __len__(self):
        return 2


def test_iterable_data_sets_of_pytorch_can_be_chained():
    assert list(Counting(2) + Letters()) == [0, 1, "a", "b"]
    assert len(ours.ChainDataset([Letters(), Letters()])) == 4
    with pytest.raises(TypeError, match="dataset 0 must be map-style, got the IterableDataset Letters"):
        ours.ConcatDataset([Letters()])


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


SAMPLERS = {
    "random": lambda kind, generator: kind.RandomSampler(range(40), generator=generator),
    "more": lambda kind, generator: kind.RandomSampler(range(40), num_samples=100, generator=generator),
    "replaced": lambda kind, generator: kind.RandomSampler(range(40), True, 100, generator),
    "subset": lambda kind, generator: kind.SubsetRandomSampler(range(10, 50), generator),
    "weighted": lambda kind, generator: kind.WeightedRandomSampler([0.5] * 40, 30, generator=generator),
    "weighted once": lambda kind, generator: kind.WeightedRandomSampler([0.5] * 40, 30, False, generator),
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
class TestSamplersWithAGenerator:
    def test_in_a_loader_it_gives_the_seed_and_resumes(self, make):
        def loader(generator, **options):
            return load(range(50), batch_size=7, sampler=make(ours, generator), **options)

        def epochs(*seeds, **options):
            return [values(one) for one in [loader(seeded(*seeds), **options)] * 2]

        one = epochs(seed=1)
        assert one == epochs(seed=99)
        assert one != epochs(6, seed=1)
        assert one[0] != one[1]
        first, again = resume(lambda: loader(seeded()), 1)
        assert values(first) + values(again) == one[0]


class Yields(theirs.Sampler):
    def __init__(self, entries):
        self.entries = entries

    def __iter__(self):
        return iter(self.entries)


IN_ORDER = theirs.SequentialSampler(range(4))
OF_ROWS = [IN_ORDER, theirs.RandomSampler(range(4)), theirs.SubsetRandomSampler([0, 1, 2, 3])]
OF_ROWS += [torch.arange(4), Yields([0, 1, 2, 3]), Yields(torch.arange(4)), iter([3, 2, 1, 0])]
OF_BATCHES = [theirs.BatchSampler(IN_ORDER, 4, False), [[0, 1, 2, 3]], torch.tensor([[0, 1, 2, 3]])]
OF_BATCHES += [Yields([[0, 1, 2, 3]])]


class TestSamplersOfDicts:
    """A dict of columns is read by row, and one of samples by key, as the sampler asks."""

    @pytest.mark.parametrize(
        "options",
        [{"sampler": one, "batch_size": 4} for one in OF_ROWS]
        + [{"batch_sampler": one} for one in OF_BATCHES],
        ids=lambda options: " ".join(type(value).__name__ for value in options.values()),
    )
    def test_rows(self, options):
        [batch] = ours.torch.DataLoader({"x": np.arange(4), "y": ["a", "b", "c", "d"]}, **options)
        assert sorted(batch["x"].tolist()) == [0, 1, 2, 3]
        assert ["abcd"[row] for row in batch["x"].tolist()] == batch["y"]

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize(
        "sampler",
        [["cat", "dog"], Yields(["cat", "dog"]), theirs.SubsetRandomSampler(["cat", "dog"])],
        ids=lambda sampler: type(sampler).__name__,
    )
    def test_keys(self, sampler, workers):
        samples = {"cat": torch.zeros(2), "dog": torch.ones(2)}
        [batch] = ours.torch.DataLoader(samples, 2, sampler=sampler, num_workers=workers)
        assert sorted(batch.sum(1).tolist()) == [0, 2]

    def test_no_such_key(self):
        with pytest.raises(KeyError, match="'cow'"):
            list(ours.torch.DataLoader({"cat": 1}, sampler=Yields(["cow"])))
