"""Train on MNIST with Ray Train: two workers, each reading its shard of Ray Data with `gpuloader.from_ray`.

The model is the demonstration's: one linear layer in NumPy. A step of stochastic gradient descent is linear
in the gradient. So if two workers start from the same parameters and average their results, they get the
same parameters as one step over both batches. At the end, the example checks this: one process trains on
the same global batches and must reach the same losses.

    pip install '.[ray]'
    python examples/ray_mnist.py
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import gpuloader
from gpuloader.demo.training import LinearModel
from gpuloader.sources import mnist

WORKERS = 2
BATCH_SIZE = 50
"""Digits per worker and step; the global batch holds this many from each worker."""


@ray.remote(num_cpus=0)
class Averaging:
    """An actor that averages the workers' results of each step and records the losses and digits."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._brought: list[tuple[Any, ...]] = []
        self._mean: asyncio.Future[tuple[Any, ...]] | None = None
        self._history: list[tuple[float, np.ndarray]] = []

    async def mean(self, weight: np.ndarray, bias: np.ndarray, loss: float, digits: np.ndarray) -> Any:
        """Wait for the step's other workers; return the mean weight, bias and loss."""
        self._mean = self._mean or asyncio.get_running_loop().create_future()
        mean = self._mean
        self._brought.append((weight, bias, loss, digits))
        if len(self._brought) == self._count:
            weights, biases, losses, chosen = zip(*self._brought, strict=True)
            self._history.append((float(np.mean(losses)), np.concatenate(chosen)))
            self._brought, self._mean = [], None
            mean.set_result((np.mean(weights, axis=0), np.mean(biases, axis=0), float(np.mean(losses))))
        return await mean

    async def history(self) -> list[tuple[float, np.ndarray]]:
        """Return the mean loss and the digits of every step."""
        return self._history


def train(config: dict[str, Any]) -> None:
    """Run one worker."""
    loader = gpuloader.from_ray(
        ray.train.get_dataset_shard("train"), batch_size=BATCH_SIZE, places="cpu", drop_last=True
    )
    model = LinearModel()
    loss = float("nan")
    for _ in range(config["epochs"]):
        for batch in loader:
            own = float(model.step(batch["image"], batch["label"].reshape(-1, 1)))
            averaged = config["averaging"].mean.remote(model.weight, model.bias, own, batch["digit"].copy())
            weight, bias, loss = ray.get(averaged)
            model.weight, model.bias = weight.copy(), bias.copy()  # Ray's arrays are read-only
    ray.train.report({"loss": loss})


def as_dataset(digits: mnist.DigitSet) -> ray.data.Dataset:
    """Return the digits as a Ray dataset of eight blocks, with images as fixed-size lists."""
    images = pa.FixedSizeListArray.from_arrays(pa.array(digits.images.ravel()), digits.images.shape[1])
    labels = digits.labels.astype(np.float32)
    table = pa.table({"image": images, "label": labels, "digit": np.arange(len(digits))})
    size = -(-len(digits) // 8)
    return ray.data.from_arrow([table[start : start + size] for start in range(0, len(digits), size)])


def train_alone(digits: mnist.DigitSet, batches: list[np.ndarray]) -> list[float]:
    """Train one process on the same global batches and return its losses."""
    model = LinearModel()
    labels = digits.labels.astype(np.float32).reshape(-1, 1)
    return [float(model.step(digits.images[chosen], labels[chosen])) for chosen in batches]


def main() -> None:
    """Train with Ray, train alone, and compare the losses."""
    parser = argparse.ArgumentParser(description="Train on MNIST with two workers of Ray Train.")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the 4,000 digits (default 2)")
    epochs = parser.parse_args().epochs
    digits = mnist.sample().train
    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
        try:
            averaging = Averaging.remote(WORKERS)
            trainer = DataParallelTrainer(
                train,
                train_loop_config={"epochs": epochs, "averaging": averaging},
                scaling_config=ray.train.ScalingConfig(num_workers=WORKERS),
                run_config=ray.train.RunConfig(storage_path=folder),
                datasets={"train": as_dataset(digits)},
            )
            trainer.fit()
            history = ray.get(averaging.history.remote())
        finally:
            ray.shutdown()
    losses, batches = zip(*history, strict=True)
    alone = train_alone(digits, list(batches))
    seen = len(np.unique(np.concatenate(batches)))
    print(f"{len(losses)} steps over {seen} digits: first loss {losses[0]:.3f}, last loss {losses[-1]:.3f}")
    difference = max(abs(one - two) / two for one, two in zip(losses, alone, strict=True))
    print(f"one process on the same batches: first loss {alone[0]:.3f}, last loss {alone[-1]:.3f}")
    if difference > 1e-3:
        raise SystemExit(f"the losses differ by {difference:.1e} (relative)")
    print("the losses are the same")


if __name__ == "__main__":
    main()
