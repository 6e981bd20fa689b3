"""MNIST on several processes with torch.distributed: data parallel, the gradients added up in plain sight.

Each process is a rank. The loader gives it its part of every batch of all ranks (`shard='auto'` finds out
which), on its own GPU where there are GPUs; the ranks add up their gradients and all take the same step.

    torchrun --standalone --nproc-per-node 2 examples/torchrun_mnist.py     two processes, on one machine
    python examples/torchrun_mnist.py                                       one process, the same batches

Both end with the same weights, but for rounding: sums of 64 numbers are taken as two sums of 32.

A run can stop and go on with other processes. Batches of all ranks stay as large, so it is the same training:

    torchrun --standalone --nproc-per-node 2 examples/torchrun_mnist.py --stop-after 30 --checkpoint half.pt
    python examples/torchrun_mnist.py --resume half.pt

Needs torch (its CPU build will do) and, for batches on a GPU, gpuloader's extra of your CUDA.
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
    """Return a small network, with the same weights on every rank."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def make_loader(batch_size: int, shard: str | tuple[int, int] = "auto") -> DataLoader:
    """Return what one rank reads: `batch_size` digits a step, and a mask of those that are not repeated."""
    digits = mnist.load().train
    dataset = TensorDataset(digits.images, digits.labels)
    return DataLoader(
        dataset, batch_size=batch_size, shuffle=True, seed=SEED, shard=shard, uneven="pad", output="torch"
    )


def sum_gradients(model: nn.Module, images: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Return the gradients of the summed loss in a row, and behind them how many samples count."""
    model.zero_grad()
    losses = nn.functional.cross_entropy(model(images), labels.flatten(), reduction="none")
    (losses * mask).sum().backward()
    gradients = [weights.grad.flatten() for weights in model.parameters() if weights.grad is not None]
    return torch.cat([*gradients, mask.sum().reshape(1).to(images.dtype)])


@torch.no_grad()
def take_step(model: nn.Module, summed: Tensor) -> None:
    """Move the weights against the mean gradient of all samples that count."""
    mean = summed[:-1] / summed[-1]
    for weights in model.parameters():
        step, mean = mean[: weights.numel()], mean[weights.numel() :]
        weights -= RATE * step.reshape(weights.shape)


def train(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Take a step for every batch; all ranks have equally many, so none waits for another in vain."""
    for images, labels, mask in batches:
        summed = sum_gradients(model, images, labels, mask)
        if distributed.is_initialized():
            distributed.all_reduce(summed)
        take_step(model, summed)


@torch.no_grad()
def accuracy(model: nn.Module, device: torch.device) -> float:
    """Return the share of test digits that are recognised."""
    digits = mnist.load().test
    found = model(torch.as_tensor(digits.images, device=device)).argmax(1).cpu()
    return float((found == torch.as_tensor(digits.labels).flatten()).float().mean())


def main() -> None:
    """Train, say how well, and save what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="digits a step, of all ranks (default: 64)")
    parser.add_argument("--stop-after", type=int, help="steps after which the first epoch is left")
    parser.add_argument("--checkpoint", type=Path, help="where rank 0 saves weights and the loader's state")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from, of any number of processes")
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
                # Any rank's state will do: they are all the same.
                torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, options.checkpoint)
    finally:
        if world_size > 1:
            distributed.destroy_process_group()


if __name__ == "__main__":
    main()
