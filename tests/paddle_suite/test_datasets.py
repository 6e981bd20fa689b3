"""Datasets: the cases of Paddle's test_multiprocess_dataloader_dataset.py and test_dataloader_dataset.py."""

import numpy as np
import pytest

from tests.paddle_suite.datasets import WIDTH, pictures, sample, stream
from tests.paddle_suite.libraries import array, rows

by_workers = pytest.mark.parametrize("workers", [0, 2])


def check_sample(given, index):
    image, label = sample(index)
    assert (array(given[0]) == image).all()
    assert (array(given[1]) == label).all()


class TestBaseClasses:
    def test_a_dataset_without_methods(self, lib):
        with pytest.raises(NotImplementedError):
            lib.io.Dataset()[0]
        with pytest.raises(NotImplementedError):
            len(lib.io.Dataset())

    def test_an_iterable_dataset_without_methods(self, lib):
        with pytest.raises(NotImplementedError):
            iter(lib.io.IterableDataset())

    def test_an_iterable_dataset_has_no_samples_and_no_length(self, lib):
        dataset = stream(lib, 3)
        with pytest.raises(RuntimeError):
            dataset[0]
        with pytest.raises(RuntimeError):
            len(dataset)

    def test_listing_an_iterable_dataset(self, lib):
        if lib.differs("iterables-can-be-listed"):
            assert len(list(stream(lib, 3))) == 3
        else:
            with pytest.raises(RuntimeError):
                list(stream(lib, 3))


class TestTensors:
    @pytest.fixture
    def arrays(self):
        rng = np.random.default_rng(1)
        return [rng.random((16, 3, 4), "float32"), rng.integers(0, 9, (16, 1))]

    @pytest.mark.parametrize("by_name", [True, False])
    def test_a_list_of_them(self, lib, arrays, by_name):
        tensors = [lib.tensor(one) for one in arrays]
        dataset = lib.io.TensorDataset(tensors=tensors) if by_name else lib.io.TensorDataset(tensors)
        assert len(dataset) == 16
        assert len(dataset.tensors) == 2
        loader = lib.io.DataLoader(dataset, places=lib.cpu, batch_size=1, drop_last=True)
        for number, (image, label) in enumerate(loader()):
            assert (array(image) == arrays[0][number : number + 1]).all()
            assert rows(label) == [arrays[1][number].tolist()]
        assert number == 15

    def test_lengths_that_differ(self, lib):
        with pytest.raises(AssertionError):
            lib.io.TensorDataset([lib.tensor(np.ones(2)), lib.tensor(np.ones(3))])

    def test_an_index_beyond_the_end(self, lib, arrays):
        with pytest.raises(IndexError):
            lib.io.TensorDataset([lib.tensor(one) for one in arrays])[16]


class TestCompose:
    def test_fields_of_all_datasets(self, lib):
        composed = lib.io.ComposeDataset([pictures(lib, 10), pictures(lib, 10)])
        assert (len(composed), len(composed.datasets)) == (10, 2)
        for index in range(10):
            first, second = composed[index][:2], composed[index][2:]
            check_sample(first, index)
            check_sample(second, index)

    @pytest.mark.parametrize("kind", ["none", "iterable", "lengths"])
    def test_what_cannot_be_composed(self, lib, kind):
        given = {
            "none": [],
            "iterable": [stream(lib, 3)],
            "lengths": [pictures(lib, 3), pictures(lib, 4)],
        }
        with pytest.raises(AssertionError):
            lib.io.ComposeDataset(given[kind])


class TestChain:
    def test_one_after_another(self, lib):
        chained = list(iter(lib.io.ChainDataset([stream(lib, 10), stream(lib, 10)])))
        assert len(chained) == 20
        for number, one in enumerate(chained):
            check_sample(one, number % 10)

    def test_what_cannot_be_chained(self, lib):
        for given in ([], [pictures(lib, 3)]):
            with pytest.raises(AssertionError):
                lib.io.ChainDataset(given)


class TestConcat:
    @pytest.mark.parametrize(
        ("parts", "positions"),
        [
            ([[0], [1]], {0: 0, 1: 1}),
            ([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], {0: 0, 5: 5, 9: 9, -1: 9, -10: 0}),
            ([[0, 1, 2, 3, 4], [], [5, 6, 7, 8, 9]], {0: 0, 5: 5, -6: 4}),
        ],
    )
    def test_positions(self, lib, parts, positions):
        joined = lib.io.ConcatDataset(parts)
        assert len(joined) == sum(map(len, parts))
        assert {position: joined[position] for position in positions} == positions
        assert joined.cumulative_sizes == lib.io.ConcatDataset.cumsum(parts)

    def test_beyond_the_end(self, lib):
        with pytest.raises(IndexError):
            lib.io.ConcatDataset([[0, 1], [2]])[4]

    def test_before_the_start(self, lib):
        with pytest.raises(ValueError, match=r"no sample -4|absolute value"):
            lib.io.ConcatDataset([[0, 1], [2]])[-4]

    def test_what_cannot_be_joined(self, lib):
        for given in (
            [],
            [stream(lib, 3)],
            [pictures(lib, 3), stream(lib, 3)],
            [stream(lib, 3), pictures(lib, 3)],
        ):
            with pytest.raises(AssertionError):
                lib.io.ConcatDataset(given)

    def test_sums_of_lengths(self, lib):
        assert lib.io.ConcatDataset.cumsum([[1, 2], [3]]) == [2, 3]


class TestParts:
    def test_subsets_of_a_loader(self, lib):
        whole = lib.io.TensorDataset([lib.tensor(np.arange(10.0).reshape(5, 2)), lib.tensor(np.arange(5))])
        seen = []
        for indices in ([0, 2, 4], [1, 3]):
            part = lib.io.Subset(whole, indices)
            assert len(part) == len(indices)
            for points, label in lib.io.DataLoader(part, places=lib.cpu, batch_size=1, drop_last=True)():
                [number] = rows(label)
                assert rows(points) == [[2.0 * number, 2.0 * number + 1]]
                seen.append(number)
        assert seen == [0, 2, 4, 1, 3]

    @pytest.mark.parametrize(
        ("lengths", "sizes"), [([1, 4], [1, 4]), ([2, 2, 1], [2, 2, 1]), ([0.3, 0.0, 0.7], [2, 0, 3])]
    )
    @pytest.mark.filterwarnings("ignore:Length of split")
    def test_random_splits(self, lib, lengths, sizes):
        if lib.name == "paddle" and lib.version < (3,) and 0.7 in lengths:
            pytest.skip("Paddle 2 takes no fractions")
        parts = lib.io.random_split(range(5), lengths)
        assert [len(part) for part in parts] == sizes
        assert sorted(part[index] for part in parts for index in range(len(part))) == list(range(5))

    @pytest.mark.parametrize("lengths", [[3, 8], [8], [], [-0.2, 1.2], [0.5, 0.4]])
    def test_lengths_that_do_not_add_up(self, lib, lengths):
        with pytest.raises(ValueError, match=r"(?i)sum|fraction|0 or more"):
            lib.io.random_split(range(5), lengths)


class TestSamplesOfAnyShape:
    @by_workers
    def test_nested_fields(self, lib, workers):
        def nested(index):
            rng = np.random.default_rng(index)
            return (
                3.1,
                "abc",
                lib.tensor(rng.random(WIDTH, "float32")) if workers == 0 else rng.random(WIDTH, "float32"),
                [1, rng.random(2, "float32")],
                {"a": 2.0, "b": rng.random(2, "float32")},
            )

        with lib.dynamic():
            dataset = pictures(lib, 16, nested)
            loader = lib.io.DataLoader(
                dataset, places=lib.cpu, num_workers=workers, batch_size=2, drop_last=True
            )
            count = 0
            for number, text, picture, pair, named in loader():
                assert (rows(number), list(text)) == ([pytest.approx(3.1)] * 2, ["abc"] * 2)
                assert array(picture).shape == (2, WIDTH)
                assert isinstance(pair, list)
                assert (rows(pair[0]), array(pair[1]).shape) == ([1, 1], (2, 2))
                assert isinstance(named, dict)
                assert (rows(named["a"]), array(named["b"]).shape) == ([2.0, 2.0], (2, 2))
                count += 1
            assert count == 8

    @by_workers
    @pytest.mark.parametrize("kind", [pictures, stream])
    def test_a_single_field(self, lib, workers, kind):
        with lib.dynamic():
            dataset = kind(lib, 16, lambda index: np.full((2, 3), index, "float32"))
            loader = lib.io.DataLoader(
                dataset, places=lib.cpu, num_workers=workers, batch_size=2, drop_last=True
            )
            shapes = [array(batch).shape for batch in loader()]
        assert shapes == [(2, 2, 3)] * (8 if kind is pictures or not workers else 16)

    def test_tensors_and_arrays_mixed(self, lib):
        with lib.dynamic():
            dataset = pictures(lib, 16, lambda index: (lib.tensor(sample(index)[0]), sample(index)[1]))
            loader = lib.io.DataLoader(dataset, places=lib.cpu, batch_size=1, drop_last=True)
            for index, (image, label) in enumerate(loader()):
                check_sample((array(image)[0], array(label)[0]), index)
