"""Datasets and samplers of PyTorch around a mix: its weights must not be lost silently."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data as torch_data  # noqa: E402

import gpuloader  # noqa: E402
from gpuloader import BucketSampler, MixDataset, SampleError, WeightedRandomSampler  # noqa: E402
from gpuloader.torch import BatchSampler, ConcatDataset, DataLoader, TensorDataset  # noqa: E402
from tests.alike import same  # noqa: E402


def mix():
    return MixDataset([range(20), range(1000, 1060)], [1, 1])


def samples(loader):
    return [number for batch in loader for number in batch.tolist()]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda mix: torch_data.Subset(mix, [0, 1]),
        lambda mix: torch_data.random_split(mix, [0.5, 0.5])[0],
        lambda mix: torch_data.ConcatDataset([mix, range(3)]),
        lambda mix: torch_data.Subset(torch_data.ConcatDataset([mix]), [0, 1]),
        lambda mix: torch_data.StackDataset(mix, range(80)),
        lambda mix: torch_data.StackDataset(x=mix, y=range(80)),
        lambda mix: ConcatDataset([torch_data.Subset(mix, [0])]),
    ],
)
def test_our_loader_finds_a_mix_inside_pytorchs_datasets(wrap):
    with pytest.raises(TypeError, match=r"a \w+ would read the MixDataset without its weights: split or"):
        DataLoader(wrap(mix()), 4)


@pytest.mark.parametrize(
    "make",
    [
        lambda mix: torch_data.RandomSampler(mix),
        lambda mix: torch_data.SequentialSampler(mix),
        lambda mix: torch_data.DistributedSampler(mix, 2, 0),
        lambda mix: torch_data.WeightedRandomSampler([1.0] * 80, 10),
    ],
)
def test_our_loader_refuses_pytorchs_samplers(make):
    sampler = make(mix())
    with pytest.raises(TypeError, match=f"the sampler, of type {type(sampler).__name__}, would read the Mix"):
        DataLoader(mix(), 4, sampler=sampler)
    grouped = torch_data.BatchSampler(sampler, 4, False)
    with pytest.raises(TypeError, match="the batch_sampler, of type BatchSampler, would read the MixDataset"):
        DataLoader(mix(), batch_sampler=grouped)


def test_its_own_sampler_in_pytorchs_batch_sampler():
    wanted = samples(DataLoader(mix(), 4))
    own = mix().default_sampler(shuffle=False)
    for kind in (BatchSampler, torch_data.BatchSampler):
        assert samples(DataLoader(mix(), batch_sampler=kind(own, 4, False))) == wanted


def test_pytorchs_loader_mixes_with_the_sampler_of_the_mix():
    dataset = mix()
    loader = torch_data.DataLoader(dataset, 4, sampler=dataset.default_sampler(shuffle=True))
    found = sorted(samples(loader))
    assert found[:20] == list(range(20))
    assert [one >= 1000 for one in found] == [False] * 20 + [True] * 20
    assert len(loader) == 10


def test_pytorchs_tensor_datasets_are_compared():
    parts = TensorDataset(torch.zeros(3, dtype=torch.bfloat16)), torch_data.TensorDataset(torch.zeros(3))
    message = r"dataset 0 \(TensorDataset\) has torch.bfloat16, but dataset 1 \(TensorDataset\) has float32"
    for kind in (ConcatDataset, torch_data.ConcatDataset):
        with pytest.raises(SampleError, match=message):
            gpuloader.DataLoader(kind(parts), batch_size=4)
        batches = [list(one(kind(parts), 4)) for one in (DataLoader, torch_data.DataLoader)]
        assert same(*batches)  # PyTorch's way: in the wider dtype


def test_late_errors_name_the_datasets_of_pytorchs_concat():
    dataset = torch_data.Subset(torch_data.ConcatDataset([[1, 2], [np.zeros(3)]]), [0, 2])
    with pytest.raises(TypeError) as caught:  # PyTorch's, with ours as a note
        list(DataLoader(dataset, 2))
    assert "the sample is from dataset 1 (list), the batch's first from" in caught.value.__notes__[-1]


def test_samplers_of_indices_are_no_batch_samplers_and_datasets_no_lists_of_them():
    with pytest.raises(TypeError, match="datasets must be a list of datasets, got the dataset TensorDataset"):
        ConcatDataset(torch_data.TensorDataset(torch.zeros(2)))
    sampler = torch_data.RandomSampler(range(4))
    with pytest.raises(TypeError, match="a RandomSampler yields single indices: pass it as sampler, with a"):
        DataLoader(range(4), batch_sampler=sampler)


@pytest.mark.parametrize("options", [{}, {"requires_grad": True}, {"dtype": torch.bfloat16}], ids=str)
def test_weights_and_lengths_may_be_tensors(options):
    numbers = torch.tensor([1.0, 3.0], **options)
    assert MixDataset(["a", "b"], numbers).weights.tolist() == [1, 3]
    assert WeightedRandomSampler(numbers.to(torch.int64), 1).weights.tolist() == [1, 3]
    assert WeightedRandomSampler(numbers, 1).weights.tolist() == [1, 3]
    assert BucketSampler(numbers, 2).lengths.tolist() == [1, 3]
