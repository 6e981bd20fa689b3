"""Tensors of a subclass, where a loader copies their numbers: a warning names the field and the class."""

import pickle

import pytest
import torch

import gpuloader
import gpuloader.torch
from gpuloader.testing import simulated_places
from gpuloader.transforms import Cast
from tests.torch_suite.datasets import Made
from tests.torch_suite.test_values import Boxes, boxes


def sample(index):
    return {"picture": torch.zeros(2), "boxes": boxes()}


def merge(samples):
    return {"boxes": samples[0]["boxes"], "count": len(samples)}


DATA = Made(sample, 4)
THERE = {"places": simulated_places(1), "output": None}
WARNING = r"field '{}': .*Boxes becomes a plain tensor"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"batch_size": 2, **THERE}, "boxes"),
        ({"batch_size": None, **THERE}, "boxes"),
        ({"batch_size": 2, "collate_fn": merge, **THERE}, "boxes"),
        ({"batch_size": 2, "collate_fn": lambda samples: samples[0]["boxes"], **THERE}, "0"),
        ({"batch_size": 2, "transforms": [Cast("picture", "float32", 2)]}, "boxes"),
        ({"batch_size": 2, "cache": "host"}, "boxes"),
    ],
    ids=["rows", "single", "collate_fn", "one tensor", "transforms", "cache"],
)
def test_a_warning_names_field_and_class(options, field):
    with pytest.warns(UserWarning, match=WARNING.format(field)):
        batches = list(gpuloader.torch.DataLoader(DATA, **options))
    for batch in batches:
        assert not isinstance(batch["boxes"] if isinstance(batch, dict) else batch, Boxes)


def test_batches_of_another_loader():
    batches = [{"boxes": boxes()}] * 2
    with pytest.warns(UserWarning, match=WARNING.format("boxes")):
        list(gpuloader.prefetch(batches, simulated_places(1)[0], output="cupy"))


@pytest.mark.filterwarnings("error")
def test_no_warning_where_classes_stay_or_are_plain():
    for options in ({"batch_size": 2}, {"batch_size": None}, {"collate_fn": merge}):
        for batch in gpuloader.torch.DataLoader(DATA, **options):
            assert type(batch["boxes"]) is Boxes
    tensors = [torch.zeros(2), torch.nn.Parameter(torch.zeros(2)).detach()]
    assert len(list(gpuloader.torch.DataLoader(tensors, 2, **THERE))) == 1


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["TensorDataset", "Subset"])
def test_rows_of_a_tensor_of_a_subclass(lib, kind, workers):
    dataset = lib.TensorDataset(boxes(), torch.arange(2))
    if kind == "Subset":
        dataset = lib.Subset(dataset, [1, 0])
    dataset = pickle.loads(pickle.dumps(dataset))  # as where workers are spawned
    for rows, numbers in lib.DataLoader(dataset, 2, num_workers=workers):
        assert type(rows) is Boxes
        assert type(numbers) is torch.Tensor
    assert type(next(iter(lib.DataLoader(boxes(), 2)))) is Boxes
