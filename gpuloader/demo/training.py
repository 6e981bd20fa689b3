"""Train the linear model once, reading synchronously or asynchronously, and keep what there is to compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.demo.linear import LinearModel
from gpuloader.devices.places import Place
from gpuloader.loader.dataset_loader import DataLoader
from gpuloader.sources import mnist
from gpuloader.sources.mnist.digits import DigitSet
from gpuloader.watch.stats import LoaderStats
from gpuloader.watch.tracing import Span, span, trace

BATCH_SIZE = 100
CAPACITY = 8
READING = 7
"""Seed of the order of digits; both runs read in the same one."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One training run.

    Attributes
    ----------
    losses : numpy.ndarray
        One float32 a step.
    seconds : float
        From the first batch asked for to the last loss known on the host, without what `after_step` took.
    compute : float
        Seconds of it spent in training steps; on a GPU, in launching them.
    stats : LoaderStats
        Where the loader's time went.
    spans : list of Span
        Everything that happened, when, and in which thread.
    model : LinearModel
        As trained.
    """

    losses: NDArray[np.float32]
    seconds: float
    compute: float
    stats: LoaderStats
    spans: list[Span]
    model: LinearModel


def train(
    digits: DigitSet,
    place: Place,
    *,
    epochs: int,
    asynchronous: bool,
    read_wait: float = 0.0,
    compute_wait: float = 0.0,
    after_step: Callable[[int, Any], object] | None = None,
) -> Run:
    """Train from fresh parameters; equal arguments give equal losses, however the data is read.

    Parameters
    ----------
    digits : DigitSet
        The training set.
    place : Place
        Where batches land and the model computes.
    epochs : int
        Passes over the set.
    asynchronous : bool
        True: a thread reads ahead. False: reading, copying and computing take turns.
    read_wait, compute_wait : float
        Seconds to wait in each read, as for a slow disk, and in each step, as for a larger model.
    after_step : callable or None
        Called with the number of steps done and the loss of the last, which may still be on its way.

    Examples
    --------
    >>> from gpuloader import CPUPlace
    >>> digits = mnist.sample().valid
    >>> one, two = (train(digits, CPUPlace(), epochs=1, asynchronous=way) for way in (False, True))
    >>> len(one.losses), bool((one.losses == two.losses).all())
    (5, True)
    """
    loader = DataLoader.from_generator(
        capacity=CAPACITY, return_list=True, use_double_buffer=asynchronous
    ).set_batch_generator(_slowed(mnist.reader(digits, BATCH_SIZE, seed=READING), read_wait), places=place)
    model = LinearModel()
    losses: list[Any] = []
    told = 0.0
    with trace() as spans:
        start = time.perf_counter()
        for _ in range(epochs):
            for images, labels in loader:
                with span("compute"):
                    losses.append(model.step(images, labels))
                    if compute_wait:
                        time.sleep(compute_wait)
                if after_step is not None:
                    paused = time.perf_counter()
                    after_step(len(losses), losses[-1])
                    told += time.perf_counter() - paused
        # Only now: to ask for a loss makes the host wait for the device.
        known = np.array([float(loss) for loss in losses], np.float32)
        seconds = time.perf_counter() - start - told
    compute = sum(one.end - one.start for one in spans if one.name == "compute") * 1e-9
    return Run(known, seconds, compute, loader.stats(), spans, model)


def _slowed(reader: Callable[[], Iterator[Any]], wait: float) -> Callable[[], Iterator[Any]]:
    if not wait:
        return reader

    def read() -> Iterator[Any]:
        for batch in reader():
            time.sleep(wait)
            yield batch

    return read
