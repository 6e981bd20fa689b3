"""The consumer that all loaders share: it sums every batch on the device and waits once, at the end."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

DEVICE = "cuda"


class TorchConsumer:
    """A consumer that sums with torch, on torch's current stream."""

    output = "torch"

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def start(self) -> Any:
        """Return a sum of zero on the device."""
        return self._torch.zeros((), dtype=self._torch.float64, device=DEVICE)

    def add(self, total: Any, batch: Any) -> None:
        """Add a batch to the sum."""
        total.add_(batch.sum(dtype=self._torch.float64))

    def finish(self, total: Any) -> float:
        """Wait for the device and return the sum."""
        return float(total.item())


class CupyConsumer:
    """A consumer that sums with CuPy, for machines without torch."""

    output = "cupy"

    def start(self) -> Any:
        """Return a sum of zero on the device."""
        import cupy

        return cupy.zeros((), cupy.float64)

    def add(self, total: Any, batch: Any) -> None:
        """Add a batch to the sum."""
        total += batch.sum(dtype=total.dtype)

    def finish(self, total: Any) -> float:
        """Wait for the device and return the sum."""
        return float(total)


Consumer = TorchConsumer | CupyConsumer


def choose_consumer() -> Consumer:
    """Return the torch consumer if torch is installed, so that all loaders feed the same consumer."""
    return TorchConsumer() if importlib.util.find_spec("torch") else CupyConsumer()


def epoch_of(
    consumer: Consumer, batches: Callable[[], Iterable[Any]], expected: float, values: float
) -> Callable[[], float]:
    """Return a function that times an epoch, in milliseconds.

    `batches` returns the epoch's batches, on the device. Their sum must equal `expected` within 1e-4 for
    each of the `values` in them.
    """

    def run() -> float:
        begun = perf_counter()
        total = consumer.start()
        for batch in batches():
            consumer.add(total, batch)
            del batch
        found = consumer.finish(total)
        milliseconds = (perf_counter() - begun) * 1e3
        if not abs(found - expected) <= 1e-4 * values:
            raise RuntimeError(f"the batches sum to {found:,.1f}, expected {expected:,.1f}")
        return milliseconds

    return run
