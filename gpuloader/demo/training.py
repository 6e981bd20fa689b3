"""Train the linear model, reading synchronously or asynchronously, and record where the time went."""

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

# The most digits for runs with waits, which need not be long: most of their time is known in advance.
SLOWED_DIGITS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One training run: its losses as float32, and where its time went.

    `seconds` run from requesting the first batch, which has been prepared, to knowing the last loss on the
    host. `compute` of them were spent in steps; on a GPU, in launching them. `note` is what the loader says
    of how it has read; empty for a synchronous run.
    """

    losses: NDArray[np.float32]
    seconds: float
    compute: float
    stats: LoaderStats
    spans: list[Span]
    model: LinearModel
    note: str


def train(digits: DigitSet, place: Place, *, epochs: int, asynchronous: bool, wait: float = 0.0) -> Run:
    """Train a new model; equal arguments produce equal losses, however the data is read.

    `wait` seconds are added to each read, to simulate a slow disk, and to each step, for a larger model.

    >>> from gpuloader import CPUPlace
    >>> digits = mnist.sample().valid
    >>> one, two = (train(digits, CPUPlace(), epochs=1, asynchronous=way) for way in (False, True))
    >>> len(one.losses), bool((one.losses == two.losses).all())
    (5, True)
    """
    # The same seed for all runs, so that they read in the same order.
    read = _slow_down(mnist.reader(digits, batch_size=100, seed=7), wait)
    # Everything but the double buffer is the same in both ways, so that the ratio shows that alone.
    loader = DataLoader.from_generator(capacity=32, return_list=True, use_double_buffer=asynchronous)
    loader.set_batch_generator(read, places=place)
    model = LinearModel()
    losses: list[Any] = []
    loader.warm_up()  # so that the first run does not pay for memory and modules that the second one finds
    with trace() as spans:
        start = time.perf_counter()
        for _ in range(epochs):
            for images, labels in loader:
                with span("compute"):
                    losses.append(model.step(images, labels))
                    if wait:
                        time.sleep(wait)
        # Reading a loss makes the host wait for the device, so read them after the loop.
        known = np.array([float(loss) for loss in losses], np.float32)
        seconds = time.perf_counter() - start
    compute = sum(one.end - one.start for one in spans if one.name == "compute") * 1e-9
    note = loader.explain().notes[-1] if asynchronous else ""
    return Run(known, seconds, compute, loader.stats(), spans, model, note)


def _slow_down(reader: Callable[[], Iterator[Any]], wait: float) -> Callable[[], Iterator[Any]]:
    if not wait:
        return reader

    def read() -> Iterator[Any]:
        for batch in reader():
            time.sleep(wait)
            yield batch

    return read


def train_in_turn(
    digits: DigitSet,
    place: Place,
    *,
    way: str | None,
    epochs: int,
    wait: float,
    tell: Callable[[str], object] = lambda _: None,
) -> dict[str, dict[str, Run]]:
    """Train in the given way, or for None in both, as it is and then with waits; return runs by these names.

    `tell` hears what runs next.
    """
    ways = ("synchronous", "asynchronous") if way is None else (way,)
    few = max(1, min(epochs, SLOWED_DIGITS // len(digits)))
    if way is None:
        # Without waits, MNIST is read too fast to show what reading ahead hides; so there is a second pair.
        plan = {"as it is": (epochs, 0.0)} | ({"with waits": (few, wait)} if wait else {})
    else:
        plan = {"with waits" if wait else "as it is": (epochs, wait)}
    tell("warming up")
    train(digits, place, epochs=1, asynchronous=True)  # fills caches and starts the GPU libraries
    runs: dict[str, dict[str, Run]] = {}
    for title, (count, seconds) in plan.items():
        for one in ways:
            tell(f"{title}, {one}")
            asynchronous = one == "asynchronous"
            made = train(digits, place, epochs=count, asynchronous=asynchronous, wait=seconds)
            runs.setdefault(title, {})[one] = made
    return runs


def are_equal(one: Run, other: Run) -> bool:
    """Return whether two runs have the same losses and parameters, bit for bit."""
    pairs = ((one.model.weight, other.model.weight), (one.model.bias, other.model.bias))
    return np.array_equal(one.losses, other.losses) and all(bool((a == b).all()) for a, b in pairs)
