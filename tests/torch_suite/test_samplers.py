"""Samplers in loaders. By themselves they are PyTorch's own, as `tests/torch/test_names.py` shows."""

import pytest
import torch

from tests.torch_suite.datasets import PICTURES, pictures

BATCHES = [(0, 1), (2, 3, 4), (5, 6), (7, 8, 9), (10, 11), (12, 13, 14), (15, 16), (17, 18, 19)]


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
def test_any_iterable_will_do(lib, kind, workers):
    batches = [(first, first + 1) for first in range(2, 12, 2)] if kind == "sampler" else BATCHES
    options = {"sampler": range(2, 12), "batch_size": 2} if kind == "sampler" else {"batch_sampler": batches}
    loader = lib.DataLoader(pictures(lib), num_workers=workers, **options)
    assert len(loader) == len(batches)
    for batch, (images, _) in zip(batches, loader, strict=True):
        assert torch.equal(images, PICTURES[list(batch)])
