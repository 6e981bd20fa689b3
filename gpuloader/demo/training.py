"""Train a linear model, reading synchronously or asynchronously in turn, and record where the time went."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.api.loader import DataLoader
from gpuloader.devices.places import Place
from gpuloader.fields.ragged import array_module
from gpuloader.sources import mnist
from gpuloader.sources.mnist.digits import PIXELS, DigitSet
from gpuloader.sources.readers.decorators import map_readers
from gpuloader.watch.meter import Span, span, trace
from gpuloader.watch.stats import LoaderStats

# The model: the simplest one that learns from a batch, so that the demonstration measures the loading.


class LinearModel:
    """Predict ``images @ weight + bias`` and learn by stochastic gradient descent.

    `weight` has shape (784, 1) and `bias` shape (1,), both float32; they move to the library and device of
    the first batch. `seed` draws the first weights with NumPy, so that they are equal on CPUs and GPUs.

    The loss is ``mean((predictions - labels) ** 2)`` with plain broadcasting, which sets a trap.
    Predictions have shape (n, 1). Labels of shape (n,) broadcast against them to n x n pairs. Nothing raises
    an error, and the loss falls at first. But it is smallest when every prediction is the batch's mean label,
    so it never falls below the variance of the labels, about 8.3 for MNIST. If the loss stays between 7 and
    10, this is the cause, and tuning the learning rate will not help.

    >>> model = LinearModel()
    >>> images, labels = np.full((2, 784), 0.5, np.float32), np.array([[3], [5]], np.float32)
    >>> losses = [float(model.step(images, labels)) for _ in range(10)]
    >>> losses[-1] < losses[0]
    True
    """

    def __init__(self, learning_rate: float = 0.001, seed: int = 0) -> None:
        if not learning_rate > 0:
            raise ValueError(f"learning_rate must be more than 0, got {learning_rate!r}")
        self.learning_rate = learning_rate
        # Glorot's uniform range keeps the first predictions small for any number of pixels.
        limit = (6 / (PIXELS + 1)) ** 0.5
        drawn = np.random.default_rng(seed).uniform(-limit, limit, (PIXELS, 1))
        self.weight: Any = drawn.astype(np.float32)
        self.bias: Any = np.zeros(1, np.float32)

    def step(self, images: Any, labels: Any) -> Any:
        """Learn from images (n, 784) and labels (n, 1); return the loss before this step, on their device.

        Raises `ValueError` if the batch is empty or the images do not have 784 pixels.
        """
        if images.ndim != 2 or images.shape[1] != PIXELS or not len(images):
            raise ValueError(
                f"images must have shape (n, {PIXELS}) with n at least 1, got {images.shape}; "
                f"reshape the batch to (-1, {PIXELS})"
            )
        library = array_module(images)
        if array_module(self.weight) is not library:
            self.weight, self.bias = library.asarray(self.weight), library.asarray(self.bias)
        errors = images @ self.weight + self.bias - labels
        # The caller decides when to read the loss: on a GPU, float(loss) waits for the device.
        loss = (errors * errors).mean()
        # If the labels were broadcast, each prediction has a whole row of errors.
        slopes = errors.sum(axis=1, keepdims=True) * (2 / errors.size)
        self.weight -= self.learning_rate * (images.T @ slopes)
        self.bias -= self.learning_rate * slopes.sum(axis=0)
        return loss

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save `weight`, `bias` and `learning_rate` for ``numpy.load``, to a file with any suffix."""
        # CuPy's arrays refuse an implicit conversion.
        weight, bias = (one.get() if hasattr(one, "get") else one for one in (self.weight, self.bias))
        # An open file, because savez appends .npz to a path that has another suffix.
        with Path(path).open("wb") as file:
            np.savez(file, allow_pickle=False, weight=weight, bias=bias, learning_rate=self.learning_rate)


# The runs.

# The most digits for runs with waits. These can be short, because most of their time is known in advance.
SLOWED_DIGITS = 20_000
TURNS = 9
"""Epochs to compare: without the extremes, their ratios cover the median 96 times in 100."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One training run: its losses as float32, and where its time went.

    `turns` are the seconds of each epoch, from requesting its first batch to knowing its last loss on the
    host. `compute` of them were spent in steps; on a GPU, in launching them. `note` is the loader's account
    of how it has read; empty for a synchronous run.
    """

    losses: NDArray[np.float32]
    turns: list[float]
    compute: float
    stats: LoaderStats
    spans: list[Span]
    model: LinearModel
    note: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The time with reading ahead, as a multiple of the time without: the median of turns, and its spread.

    >>> print(Comparison.of([0.9, 1.2, 1.0]), Comparison.of([0.5, 0.4, 0.6, 0.1, 9]), sep="; ")
    no difference (1.00, from 0.90 to 1.20 in 3 turns); 0.50 of the time (0.40 to 0.60 in 5 turns)
    """

    median: float
    least: float
    most: float
    turns: int

    @classmethod
    def of(cls, ratios: list[float]) -> Comparison:
        """Return the comparison of turns; of five or more, the extremes count as disturbed."""
        kept = sorted(ratios)[1:-1] if len(ratios) >= 5 else sorted(ratios)
        return cls(statistics.median(ratios), kept[0], kept[-1], len(ratios))

    def __str__(self) -> str:
        spread = f"{self.least:.2f} to {self.most:.2f} in {self.turns} turns"
        if self.least <= 1 <= self.most:
            return f"no difference ({self.median:.2f}, from {spread})"
        return f"{self.median:.2f} of the time ({spread})"


def train(digits: DigitSet, place: Place, *, asynchronous: bool, wait: float = 0.0) -> Iterator[Run]:
    """Train a new model an epoch at a time, so that runs can take turns; yield the run so far.

    Equal arguments produce equal losses, however the data is read.

    `wait` seconds are added to each read, to simulate a slow disk, and to each step, for a larger model.

    >>> from gpuloader import CPUPlace
    >>> digits = mnist.sample().valid
    >>> one, two = (next(train(digits, CPUPlace(), asynchronous=way)) for way in (False, True))
    >>> len(one.losses), bool((one.losses == two.losses).all())
    (5, True)
    """

    def delay(batch: Any) -> Any:
        time.sleep(wait)
        return batch

    # The same seed for all runs, so that they read in the same order.
    read: Callable[[], Iterable[Any]] = mnist.reader(digits, batch_size=100, seed=7)
    if wait:
        read = map_readers(delay, read)
    # Only the double buffer differs between the two ways, so the ratio shows its effect alone.
    loader = DataLoader.from_generator(capacity=32, return_list=True, use_double_buffer=asynchronous)
    loader.set_batch_generator(read, places=place)
    model = LinearModel()
    known: list[float] = []
    turns: list[float] = []
    recorded: list[Span] = []
    loader.warm_up()  # so that the first run does not pay for memory and modules that the second one finds
    while True:
        losses: list[Any] = []
        with trace() as spans:
            start = time.perf_counter()
            for images, labels in loader:
                with span("compute"):
                    losses.append(model.step(images, labels))
                    if wait:
                        time.sleep(wait)
            # Reading a loss makes the host wait for the device, so read them after the loop.
            known += map(float, losses)
            turns.append(time.perf_counter() - start)
        recorded += spans
        compute = sum(one.end - one.start for one in recorded if one.name == "compute") * 1e-9
        note = loader.explain().notes[-1] if asynchronous else ""
        yield Run(np.array(known, np.float32), turns, compute, loader.stats(), recorded, model, note)


def train_in_turn(
    digits: DigitSet, place: Place, way: str | None, epochs: int, wait: float, tell: Callable[[str], object]
) -> tuple[dict[str, dict[str, Run]], dict[str, Comparison]]:
    """Train in the given way, or for None in both, as it is and then with waits; return runs by these names.

    Both ways take turns, an epoch each, and start over until there are enough turns to compare. The last runs
    are returned. `tell` is called with what runs next.
    """
    ways = ("synchronous", "asynchronous") if way is None else (way,)
    few = max(1, min(epochs, SLOWED_DIGITS // len(digits)))
    plan = {"with waits" if wait else "as it is": (epochs, wait)}
    if way is None:
        # Without waits, MNIST is read too fast to show what reading ahead hides, hence a second pair.
        plan = {"as it is": (epochs, 0.0)} | ({"with waits": (few, wait)} if wait else {})
    tell("warming up")
    next(train(digits, place, asynchronous=True))  # fills caches and starts the GPU libraries
    groups: dict[str, dict[str, Run]] = {}
    comparisons: dict[str, Comparison] = {}
    for title, (count, seconds) in plan.items():
        turns = min(TURNS, max(3, 2 * SLOWED_DIGITS // len(digits))) if seconds else TURNS
        ratios: list[float] = []
        for _ in range(1 if way else -(-turns // count)):
            opened = [
                (one, train(digits, place, asynchronous=one == "asynchronous", wait=seconds)) for one in ways
            ]
            for _ in range(count):
                tell(f"{title}, turn {len(ratios) + 1}")
                groups[title] = runs = {one: next(run) for one, run in opened}
                ratios.append(runs[ways[-1]].turns[-1] / runs[ways[0]].turns[-1])
        if way is None:
            comparisons[title] = Comparison.of(ratios)
    return groups, comparisons


def are_equal(one: Run, other: Run) -> bool:
    """Return whether two runs have the same losses and parameters, bit for bit."""
    pairs = ((one.model.weight, other.model.weight), (one.model.bias, other.model.bias))
    return np.array_equal(one.losses, other.losses) and all(bool((a == b).all()) for a, b in pairs)
