"""Datasets made of others: StackDataset, ConcatDataset, random_split and Subset."""

import pytest
import torch

import gpuloader.torch
from tests.torch_suite.datasets import Made, Stream, seeded


class Rows(torch.utils.data.Dataset):
    """A dataset that can be read at once."""

    values = torch.arange(4.0)

    def __getitems__(self, indices):
        return self.values[indices]

    def __len__(self):
        return 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_a_stack(lib, workers):
    loader = lib.DataLoader(lib.StackDataset(rows=Rows(), n=[1, 2, 3, 4]), 2, num_workers=workers)
    batches = list(loader)
    assert [batch["n"].tolist() for batch in batches] == [[1, 2], [3, 4]]
    assert torch.equal(torch.cat([batch["rows"] for batch in batches]), Rows.values)


def test_an_iterable_dataset_cannot_be_concatenated(lib):
    rows, lines = lib.TensorDataset(torch.rand(7)), Stream(5)
    for parts in ([rows, lines], [lines], [lines, rows]):
        with pytest.raises((AssertionError, TypeError)):
            lib.ConcatDataset(parts)


def test_a_subset_reads_several(lib):
    assert lib.Subset(Made(lambda index: index**2), [4, 1, 3]).__getitems__([0, 2]) == [16, 9]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_reads_several_may_return_a_whole_batch_for_collate_fn(lib, workers):
    for options, expected in (({}, [[0, 1], [2, 3]]), ({"sampler": [3, 0, 2]}, [[3, 0], [2]])):
        loader = lib.DataLoader(Rows(), 2, num_workers=workers, collate_fn=lambda rows: rows * 1, **options)
        batches = list(loader)
        assert [type(batch) for batch in batches] == [torch.Tensor] * 2
        assert [batch.tolist() for batch in batches] == expected


class Odd(Rows):
    """A dataset that leaves out the samples at even indices."""

    def __getitems__(self, indices):
        return [(float(index), str(index)) for index in indices if index % 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_reads_several_may_leave_some_out(lib, workers):
    batches = list(lib.DataLoader(Odd(), batch_sampler=[[0, 1, 2], [3, 1], [2, 3]], num_workers=workers))
    assert [(numbers.tolist(), texts) for numbers, texts in batches] == [
        ([1], ("1",)),
        ([3, 1], ("3", "1")),
        ([3], ("3",)),
    ]


class Columns(Rows):
    """A dataset that returns its columns for several indices, which only a collate_fn can take."""

    def __getitems__(self, indices):
        return {"a": self.values[indices], "b": self.values[indices]}


@pytest.mark.parametrize("size", [2, 4])
def test_columns_are_no_samples(lib, size):
    with lib.raises((KeyError, TypeError)):
        list(lib.DataLoader(Columns(), size))


class Endless:
    """A dataset without a length."""

    def __getitem__(self, index):
        return index * 10


@pytest.mark.parametrize("workers", [0, 1])
def test_a_subset_looks_at_its_dataset_when_it_is_read(lib, workers):
    grown = [1, 2]
    part = lib.Subset(grown, [0, 3])
    assert part[0] == 1
    with lib.raises(IndexError):
        list(lib.DataLoader(part, 2, num_workers=workers))
    grown += [3, 4]
    loaders = [lib.DataLoader(one, 2, num_workers=workers) for one in (part, lib.Subset(Endless(), [5, 7]))]
    assert [batch.tolist() for loader in loaders for batch in loader] == [[1, 4], [50, 70]]


def test_an_error_in_a_subset_names_the_sample(lib):
    with pytest.raises(KeyError) as caught:
        list(gpuloader.torch.DataLoader(lib.Subset(Made({}.__getitem__), [3, 1])))
    assert any("dataset index 0" in note for note in caught.value.__notes__)


def test_when_a_chain_checks_its_datasets(lib):
    assert list(lib.ChainDataset([])) == []
    assert len(lib.ChainDataset([])) == 0
    items = iter(lib.ChainDataset([Stream(2), Rows()]))
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(AssertionError):
        next(items)


@pytest.mark.parametrize("lengths", [[1, 2], [0.1], [1.1], [3, 2]])
def test_lengths_add_up_to_the_dataset(lib, lengths):
    with pytest.raises(ValueError):  # noqa: PT011
        lib.random_split([1, 2, 3, 4], lengths)


@pytest.mark.parametrize("lengths", [[5], [1.0]])
def test_the_dataset_is_asked_for_plain_integers(lib, lengths):
    [part] = lib.random_split(Made(lambda index: type(index) is int, 5), lengths)
    assert [bool(batch) for batch in lib.DataLoader(part)] == [True] * 5


SPLITS = [(100, [60, 40]), (100, [0.5, 0.5]), (100, [0.33, 0.33, 0.34])]
SPLITS += [(6, [2, 4]), (3, [0.5, 0.5]), (106, [0.1, 0.2, 0.3, 0.4])]  # what rounding leaves goes round


@pytest.mark.parametrize(("count", "lengths"), SPLITS)
def test_the_same_generator_makes_the_parts_of_pytorch(count, lengths):
    first, second = (
        split(range(count), lengths, generator=seeded())
        for split in (gpuloader.torch.random_split, torch.utils.data.random_split)
    )
    assert [list(part) for part in first] == [list(part) for part in second]


def test_the_global_generator_is_used_only_without_one(lib):
    state = torch.get_rng_state()
    expected = torch.rand(10)
    torch.set_rng_state(state)
    lib.random_split(range(10), [5, 5], generator=seeded())
    assert torch.equal(torch.rand(10), expected)
    torch.set_rng_state(state)
    lib.random_split(range(10), [5, 5])
    assert not torch.equal(torch.rand(10), expected)


@pytest.mark.parametrize("where", [slice(None), slice(1, 2), slice(0, 2), slice(0, -1, 2)], ids=str)
def test_a_part_is_sliced_by_its_indices(lib, where):
    dataset = lib.TensorDataset(torch.tensor([1, 2, 3, 4, 5]))
    part, _ = lib.random_split(dataset, [4, 1])
    assert torch.equal(part[where][0], dataset[part.indices[where]][0])
    inner, _ = lib.random_split(part, [3, 1])
    chosen = [part.indices[index] for index in inner.indices]
    assert torch.equal(inner[where][0], dataset[chosen[where]][0])
