"""Data-parallel training on MNIST with torch.distributed, with an explicit all-reduce of the gradients.

Each process is a rank. The loader delivers the rank's part of every global batch (`shard='auto'` detects the
rank), on the rank's own GPU if there is one. The ranks sum their gradients and all take the same step.

    torchrun --standalone --nproc-per-node 2 examples/torchrun_mnist.py     two processes on one machine
    python examples/torchrun_mnist.py                                       one process, the same batches

Both end with the same weights except for rounding: one adds 64 numbers, the other two sums of 32.

A run can stop and resume with another number of processes. The global batch size stays the same, and so does
the training:

    torchrun --standalone --nproc-per-node 2 examples/torchrun_mnist.py --stop-after 30 --checkpoint half.pt
    python examples/torchrun_mnist.py --resume half.pt

The example needs torch (a CPU build is enough) and, for batches on a GPU, gpuloader's extra for your CUDA.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from gpuloader import DataLoader, TensorDataset
from gpuloader.sources import mnist

SEED = 1
RATE = 0.5


def make_model() -> nn.Module:
    """Return a small network with the same weights on every rank."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def make_loader(batch_size: int, shard: str | tuple[int, int] = "auto") -> DataLoader:
    """Return one rank's loader: `batch_size` digits per step, with masks if any rank must repeat one."""
    digits = mnist.load().train
    dataset = TensorDataset(digits.images, digits.labels)
    return DataLoader(
        dataset, batch_size=batch_size, shuffle=True, seed=SEED, shard=shard, uneven="pad", output="torch"
    )


def sum_gradients(model: nn.Module, images: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the gradients of the summed loss as one vector, followed by the number of samples that count.

    Batches have a mask only if the samples do not divide evenly among the ranks.
    """
    model.zero_grad()
    losses = nn.functional.cross_entropy(model(images), labels.flatten(), reduction="none")
    mask = torch.ones_like(losses) if mask is None else mask
    (losses * mask).sum().backward()
    gradients = [weights.grad.flatten() for weights in model.parameters() if weights.grad is not None]
    return torch.cat([*gradients, mask.sum().reshape(1).to(images.dtype)])


@torch.no_grad()
def take_step(model: nn.Module, summed: Tensor) -> None:
    """Update the weights with the mean gradient of all samples that count."""
    mean = summed[:-1] / summed[-1]
    for weights in model.parameters():
        step, mean = mean[: weights.numel()], mean[weights.numel() :]
        weights -= RATE * step.reshape(weights.shape)


def train(model: nn.Module, batches: Iterator[list[Tensor]]) -> None:
    """Take a step per batch; all ranks have the same number of batches, so no all-reduce waits forever."""
    for batch in batches:
        summed = sum_gradients(model, *batch)
        if distributed.is_initialized():
            distributed.all_reduce(summed)
        take_step(model, summed)


@torch.no_grad()
def accuracy(model: nn.Module, device: torch.device) -> float:
    """Return the fraction of test digits that the model recognizes."""
    digits = mnist.load().test
    found = model(torch.as_tensor(digits.images, device=device)).argmax(1).cpu()
    return float((found == torch.as_tensor(digits.labels).flatten()).float().mean())


def main() -> None:
    """Train, print the accuracy, and save a checkpoint on request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="digits per step, over all ranks (default: 64)")
    parser.add_argument("--stop-after", type=int, help="stop after this many steps of the first epoch")
    parser.add_argument("--checkpoint", type=Path, help="file for the weights and the loader's state")
    parser.add_argument("--resume", type=Path, help="checkpoint to resume from, of any number of processes")
    options = parser.parse_args()

    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if options.batch % world_size:
        parser.error(f"--batch {options.batch} cannot be shared evenly by {world_size} processes")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if world_size > 1:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        model = make_model().to(device)
        loader = make_loader(options.batch // world_size)
        first = 0
        if options.resume is not None:
            checkpoint = torch.load(options.resume, weights_only=True, map_location=device)
            model.load_state_dict(checkpoint["model"])
            loader.load_state_dict(checkpoint["loader"])
            first = checkpoint["loader"]["epoch"]
        for _ in range(first, 1 if options.stop_after else options.epochs):
            train(model, islice(iter(loader), options.stop_after))
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"{accuracy(model, device):.1%} of the test digits, on {world_size} processes")
            if options.checkpoint is not None:
                # All ranks have the same state, so rank 0's is enough.
                torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, options.checkpoint)
    finally:
        if world_size > 1:
            distributed.destroy_process_group()


if __name__ == "__main__":
    main()
