"""Datasets: the cases of Paddle's test_multiprocess_dataloader_dataset.py and test_dataloader_dataset.py."""

import numpy as np
import pytest

from tests.paddle_suite.datasets import WIDTH, batch_of, pictures, stream
from tests.paddle_suite.libraries import array, rows

by_workers = pytest.mark.parametrize("workers", [0, 2])


@pytest.mark.parametrize("by_name", [True, False])
def test_a_list_of_tensors(lib, by_name):
    rng = np.random.default_rng(1)
    arrays = [rng.random((16, 3, 4), "float32"), rng.integers(0, 9, (16, 1))]
    tensors = [lib.tensor(one) for one in arrays]
    dataset = lib.io.TensorDataset(tensors=tensors) if by_name else lib.io.TensorDataset(tensors)
    assert (len(dataset), len(dataset.tensors)) == (16, 2)
    loader = lib.io.DataLoader(dataset, places=lib.cpu, batch_size=1, drop_last=True)
    for number, (image, label) in enumerate(loader()):
        assert (array(image) == arrays[0][number : number + 1]).all()
        assert rows(label) == [arrays[1][number].tolist()]
    assert number == 15


def test_datasets_one_after_another(lib):
    parts = [[0, 1, 2, 3, 4], [], [5, 6, 7, 8, 9]]
    joined = lib.io.ConcatDataset(parts)
    assert [joined[index] for index in (*range(10), -1, -6, -10)] == [*range(10), 9, 4, 0]
    assert joined.cumulative_sizes == lib.io.ConcatDataset.cumsum(parts) == [5, 5, 10]


class TestSamplesOfAnyShape:
    def load(self, lib, dataset, **options):
        return lib.io.DataLoader(dataset, places=lib.cpu, batch_size=2, drop_last=True, **options)()

    @by_workers
    def test_nested_fields(self, lib, workers):
        """Tensors beside arrays, where no worker has to make them."""

        def nested(index):
            rng = np.random.default_rng(index)
            picture = rng.random(WIDTH, "float32")
            return (
                3.1,
                "abc",
                picture if workers else lib.tensor(picture),
                [1, rng.random(2, "float32")],
                {"a": 2.0, "b": rng.random(2, "float32")},
            )

        with lib.dynamic():
            batches = list(self.load(lib, pictures(lib, 16, nested), num_workers=workers))
        assert len(batches) == 8
        for step, (number, text, picture, pair, named) in enumerate(batches):
            assert (rows(number), list(text)) == ([pytest.approx(3.1)] * 2, ["abc"] * 2)
            assert (array(picture) == batch_of(step, 2)[0]).all()
            assert (type(pair), type(named)) == (list, dict)
            assert (rows(pair[0]), array(pair[1]).shape) == ([1, 1], (2, 2))
            assert (rows(named["a"]), array(named["b"]).shape) == ([2.0, 2.0], (2, 2))

    @by_workers
    @pytest.mark.parametrize("kind", [pictures, stream])
    def test_a_single_field(self, lib, workers, kind):
        with lib.dynamic():
            dataset = kind(lib, 16, lambda index: np.full((2, 3), index, "float32"))
            shapes = [array(batch).shape for batch in self.load(lib, dataset, num_workers=workers)]
        assert shapes == [(2, 2, 3)] * (8 if kind is pictures or not workers else 16)
