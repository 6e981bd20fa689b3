"""TensorDataset, StackDataset and ConcatDataset."""

import itertools

import pytest
import torch

from tests.torch_suite.datasets import stream


class TestTensors:
    @pytest.mark.parametrize(
        "shapes",
        [
            [(15, 10, 2, 3, 4, 5), (15, 10)],
            [(15,), (15,)],
            [(5, 10)],
            [(5, 10, 2, 3, 4, 5), (5, 10), (5, 10, 2, 5), (5, 10, 3, 7)],
        ],
        ids=["two", "no dimensions", "one", "four"],
    )
    def test_a_sample_is_a_row_of_each(self, lib, shapes):
        tensors = [torch.randn(shape) for shape in shapes]
        dataset = lib.TensorDataset(*tensors)
        assert len(dataset) == shapes[0][0]
        for index in range(len(dataset)):
            sample = dataset[index]
            assert isinstance(sample, tuple)
            assert len(sample) == len(tensors)
            assert all(torch.equal(one, tensor[index]) for one, tensor in zip(sample, tensors, strict=True))

    def test_the_length_is_the_first_dimension(self, lib):
        assert len(lib.TensorDataset(torch.randn(15, 10), torch.randperm(15))) == 15

    def test_lengths_must_agree(self, lib):
        with pytest.raises((AssertionError, ValueError)):
            lib.TensorDataset(torch.zeros(3), torch.zeros(4))


class Rows(torch.utils.data.Dataset):
    """A dataset that can be read at once, and may return too few rows."""

    def __init__(self, missing=0):
        self.values, self.missing = torch.randn(4), missing

    def __getitem__(self, index):
        return self.values[index]

    def __getitems__(self, indices):
        return self.values[indices][: len(indices) - self.missing]

    def __len__(self):
        return 4


class TestStacks:
    def test_wrong_arguments_are_refused(self, lib):
        long, short = lib.TensorDataset(torch.randn(15, 10)), lib.TensorDataset(torch.randn(10, 15))
        with pytest.raises(ValueError, match="At least one"):
            lib.StackDataset()
        with pytest.raises(ValueError, match="Supported either"):
            lib.StackDataset(long, a=short)
        with pytest.raises(ValueError, match="Size mismatch"):
            lib.StackDataset(long, short)
        with pytest.raises(ValueError, match="Size mismatch"):
            lib.StackDataset(a=long, b=short)

    def test_the_length_is_its_datasets(self, lib):
        first, second = lib.TensorDataset(torch.randn(15, 10)), lib.TensorDataset(torch.randn(15))
        for stack in (
            lib.StackDataset(first),
            lib.StackDataset(first, second),
            lib.StackDataset(a=first),
            lib.StackDataset(a=first, b=second),
        ):
            assert len(stack) == 15

    def test_a_sample_is_a_tuple_or_a_dict(self, lib):
        first, second = lib.TensorDataset(torch.randn(15, 10)), lib.TensorDataset(torch.randn(15, 5, 4))
        pairs, named = lib.StackDataset(first, second), lib.StackDataset(a=first, b=second)
        for index in range(15):
            assert torch.equal(pairs[index][0][0], first[index][0])
            assert torch.equal(pairs[index][1][0], second[index][0])
            assert torch.equal(named[index]["a"][0], first[index][0])
            assert torch.equal(named[index]["b"][0], second[index][0])

    def test_samples_are_read_at_once(self, lib):
        rows, numbers = Rows(), [1, 2, 3, 4]
        pairs = lib.StackDataset(rows, numbers).__getitems__([0, 1, 2, 3])
        named = lib.StackDataset(rows=rows, numbers=numbers).__getitems__([0, 1, 2, 3])
        assert pairs == [(rows[index], numbers[index]) for index in range(4)]
        assert named == [{"rows": rows[index], "numbers": numbers[index]} for index in range(4)]

    def test_errors_while_reading_at_once(self, lib):
        with pytest.raises(IndexError):
            lib.StackDataset(Rows(), [1, 2, 3, 4]).__getitems__([0, 4])
        with pytest.raises(ValueError, match="Expected 4, got 3"):
            lib.StackDataset(Rows(missing=1), [1, 2, 3, 4]).__getitems__([0, 1, 2, 3])

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_loader_reads_it(self, lib, workers):
        rows = Rows()
        loader = lib.DataLoader(lib.StackDataset(rows=rows, n=[1, 2, 3, 4]), 2, num_workers=workers)
        batches = list(loader)
        assert [batch["n"].tolist() for batch in batches] == [[1, 2], [3, 4]]
        assert torch.equal(torch.cat([batch["rows"] for batch in batches]), rows.values)


class TestConcatenations:
    @pytest.mark.parametrize(
        "parts",
        [[[0], [1]], [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], [[0, 1, 2, 3, 4], [], [5, 6, 7, 8, 9]]],
        ids=["single samples", "several samples", "an empty part"],
    )
    def test_parts_follow_each_other(self, lib, parts):
        dataset = lib.ConcatDataset(parts)
        expected = [*itertools.chain.from_iterable(parts)]
        assert len(dataset) == len(expected)
        assert [dataset[index] for index in range(len(dataset))] == expected
        assert dataset[-1] == expected[-1]

    def test_an_index_out_of_range(self, lib):
        with pytest.raises(IndexError):
            lib.ConcatDataset([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])[11]

    def test_datasets_are_added(self, lib):
        parts = [lib.TensorDataset(torch.rand(7, 3, 4, 4), torch.rand(7)) for _ in range(3)]
        total = parts[0] + parts[1] + parts[2]
        assert len(total) == 21
        for index, part in enumerate(parts):
            assert torch.equal(total[7 * index][0], part[0][0])

    @pytest.mark.parametrize("order", ["map-style first", "alone", "iterable first"])
    def test_an_iterable_dataset_is_refused(self, lib, order):
        rows, lines = lib.TensorDataset(torch.rand(7)), stream(lib, 5)
        parts = {"map-style first": [rows, lines], "alone": [lines], "iterable first": [lines, rows]}[order]
        with pytest.raises((AssertionError, TypeError)):
            lib.ConcatDataset(parts)
