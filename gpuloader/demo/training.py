"""Train the linear model once, reading synchronously or asynchronously, and record the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.api.loader import DataLoader
from gpuloader.demo.linear import LinearModel
from gpuloader.devices.places import Place
from gpuloader.sources import mnist
from gpuloader.sources.mnist.digits import DigitSet
from gpuloader.watch.stats import LoaderStats
from gpuloader.watch.tracing import Span, span, trace

BATCH_SIZE = 100
CAPACITY = 32
READING = 7
"""Seed of the digits' order, so that all runs read in the same order."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One training run.

    Attributes
    ----------
    losses : numpy.ndarray
        The losses, one float32 per step.
    seconds : float
        Time from requesting the first batch, which has been prepared, to knowing the last loss on the host,
        without `after_step`.
    compute : float
        Seconds of that spent in training steps; on a GPU, in launching them.
    stats : LoaderStats
        Where the loader's time went.
    spans : list of Span
        The recorded spans of all threads.
    model : LinearModel
        The trained model.
    note : str
        What the loader says of how it has read, from `explain`; empty for a synchronous run.
    """

    losses: NDArray[np.float32]
    seconds: float
    compute: float
    stats: LoaderStats
    spans: list[Span]
    model: LinearModel
    note: str = ""


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
    """Train a new model; equal arguments produce equal losses, however the data is read.

    Parameters
    ----------
    digits : DigitSet
        The training set.
    place : Place
        Where batches land and the model computes.
    epochs : int
        Passes over the set.
    asynchronous : bool
        If True, the default: a thread reads ahead where that pays. If False, reading, copying and computing
        take turns.
    read_wait, compute_wait : float
        Seconds to add to each read, to simulate a slow disk, and to each step, to simulate a larger model.
    after_step : callable or None
        A function called with the number of finished steps and the last loss, which the device may still be
        computing.

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
    loader.warm_up()  # so that the first run does not pay for memory and modules that the second one finds
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
        # Reading a loss makes the host wait for the device, so read them after the loop.
        known = np.array([float(loss) for loss in losses], np.float32)
        seconds = time.perf_counter() - start - told
    compute = sum(one.end - one.start for one in spans if one.name == "compute") * 1e-9
    note = loader.explain().notes[-1] if asynchronous else ""
    return Run(known, seconds, compute, loader.stats(), spans, model, note)


def _slowed(reader: Callable[[], Iterator[Any]], wait: float) -> Callable[[], Iterator[Any]]:
    if not wait:
        return reader

    def read() -> Iterator[Any]:
        for batch in reader():
            time.sleep(wait)
            yield batch

    return read
