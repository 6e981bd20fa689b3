"""What reading ahead hides: the default beside both ways that a user can force, and beside other libraries.

Reading and steps take known times: they wait, compute without the interpreter's lock, or run Python code.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter, sleep
from typing import Any

import numpy as np

from benchmarks.measure import Candidate, Result, Spread, interleave
from gpuloader import DataLoader, Dataset
from gpuloader.demo.training import LinearModel
from gpuloader.sources import mnist

Work = Callable[[float], object]
"""Works for about the given number of seconds."""

DEFAULT, SYNCHRONOUS, THREAD = "default", "synchronous", "thread"
WAYS: dict[str, bool | str] = {DEFAULT: True, SYNCHRONOUS: False, THREAD: "thread"}
"""The values of `use_buffer_reader` and of `use_double_buffer`, by the name of the column."""

TIMES = (0.05e-3, 0.2e-3, 1e-3, 8e-3)
"""Seconds of reading and of stepping."""

_TURN = 0.25  # seconds per turn, at least
_SIZE = 4
_STEPS = 10


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of loop.

    Attributes
    ----------
    name : str
        What it reads and computes.
    goal : float
        The most that the default may take, as a multiple of the reference.
    run : callable
        Given a way of reading, returns a function that runs one turn and returns microseconds per step.
    reference : tuple of str
        The ways whose faster one is the reference.
    """

    name: str
    goal: float
    run: Callable[[str], Candidate]
    reference: tuple[str, ...] = (SYNCHRONOUS, THREAD)


@dataclass(frozen=True, slots=True)
class Overlapped:
    """The figures of one workload.

    Attributes
    ----------
    name : str
        The workload's name.
    goal : float
        The most that `ratio` may be.
    rows : dict of str to Spread
        Microseconds per step, by way.
    reference : tuple of str
        The ways whose faster one is the reference.
    """

    name: str
    goal: float
    rows: dict[str, Spread]
    reference: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """The default's median as a multiple of the reference's."""
        return self.rows[DEFAULT].median / min(self.rows[way].median for way in self.reference)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {**asdict(self), "reference": list(self.reference), "ratio": self.ratio}

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> Overlapped:
        """Rebuild the figures from the data that `to_json` returned.

        >>> figures = Overlapped("w", 1.05, {"default": Spread(2.0, 1.0, 3.0)}, ("default",))
        >>> Overlapped.from_json(figures.to_json()) == figures
        True
        """
        rows = {way: Spread(**row) for way, row in written["rows"].items()}
        return cls(written["name"], written["goal"], rows, tuple(written["reference"]))


class Timed(Dataset[Any]):
    """Samples of 784 numbers, whose batches take a known time to read.

    Parameters
    ----------
    length : int
        Number of batches.
    read : callable
        Called once for each batch.
    """

    def __init__(self, length: int, read: Callable[[], object]) -> None:
        self._length = length * _SIZE
        self._read = read
        self._sample = np.zeros(784, np.float32)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples of one batch."""
        self._read()
        return [self._sample] * len(indices)


def measure_overlap(repeats: int, workloads: Iterable[Workload] | None = None) -> Iterator[Overlapped]:
    """Measure the workloads one after the other; the ways of each take turns.

    Parameters
    ----------
    repeats : int
        Measured turns of each way, after a warm-up turn.
    workloads : iterable of Workload or None
        What to measure; None measures all.
    """
    for workload in make_workloads() if workloads is None else workloads:
        rows = interleave({way: workload.run(way) for way in WAYS}, repeats)
        yield Overlapped(workload.name, workload.goal, rows, workload.reference)


def make_workloads() -> list[Workload]:
    """Return all workloads; the calibration takes a few milliseconds."""
    kinds: dict[str, Work] = {"waiting": wait, "computing without the lock": make_hashing()}
    found = [
        Workload("MNIST from memory, linear model, later epochs", 1.05, partial(_digits, first=False)),
        Workload("MNIST from memory, linear model, first epoch", 1.15, partial(_digits, first=True)),
    ]
    for (kind, work), reading, stepping in itertools.product(kinds.items(), TIMES, TIMES):
        name = f"{kind}, reading {reading * 1e3:g} ms, step {stepping * 1e3:g} ms"
        found.append(Workload(name, 1.05, partial(_pairs, work, reading, [stepping])))
    counting = make_counting()
    for seconds in TIMES[1:]:
        name = f"Python code, reading {seconds * 1e3:g} ms, step {seconds * 1e3:g} ms"
        found.append(Workload(name, 1.10, partial(_pairs, counting, seconds, [seconds])))
    eight = TIMES[-1]
    name = f"waiting, reading {eight * 1e3:g} ms, step {eight * 1e3:g} ms, beside synchronous reading"
    found.append(Workload(name, 0.60, partial(_pairs, wait, eight, [eight]), (SYNCHRONOUS,)))
    changing = [TIMES[0], eight, TIMES[0]]
    lengths = ", then ".join(f"{seconds * 1e3:g} ms" for seconds in changing)
    name = f"waiting, reading {TIMES[2] * 1e3:g} ms, step {lengths}"
    found.append(Workload(name, 1.10, partial(_pairs, wait, TIMES[2], changing)))
    return found


def _pairs(work: Work, reading: float, stepping: Sequence[float], way: str) -> Candidate:
    """Return a turn over a dataset; the step's time changes within the epoch if several are given."""
    each = max(round(_TURN / (reading + sum(stepping) / len(stepping)) / len(stepping)), 8)
    steps = [seconds for seconds in stepping for _ in range(each)]
    dataset = Timed(len(steps), partial(work, reading))
    loader = DataLoader(dataset, places="cpu", batch_size=_SIZE, use_buffer_reader=WAYS[way])

    def turn() -> float:
        begun = perf_counter()
        for seconds, batch in zip(steps, loader, strict=False):
            work(seconds)
            del batch
        return (perf_counter() - begun) / len(steps) * 1e6

    return turn


def _digits(way: str, *, first: bool) -> Candidate:
    digits = mnist.sample().train

    def make() -> Any:
        loader = DataLoader.from_generator(capacity=32, return_list=True, use_double_buffer=WAYS[way])
        return loader.set_batch_generator(mnist.reader(digits, 100, seed=0), places="cpu")

    kept = make()

    def turn() -> float:
        model, steps, seconds = LinearModel(), 0, 0.0
        while seconds < _TURN:
            loader = make() if first else kept
            begun = perf_counter()
            for images, labels in loader:
                model.step(images, labels)
                steps += 1
            seconds += perf_counter() - begun
        return seconds / steps * 1e6

    return turn


def wait(seconds: float) -> None:
    """Sleep, as code does that waits for a disk, a network or a device."""
    if seconds:
        sleep(seconds)


def make_hashing() -> Work:
    """Return a function that computes on one core without the interpreter's lock, as NumPy does."""
    block = bytes(1 << 20)
    rate = _rate(lambda count: hashlib.sha256(memoryview(block)[:count]), len(block))

    def compute(seconds: float) -> None:
        left = int(rate * seconds)
        while left > 0:
            hashlib.sha256(memoryview(block)[: min(left, len(block))])
            left -= len(block)

    return compute


def make_counting() -> Work:
    """Return a function that runs Python code, which holds the interpreter's lock."""
    rate = _rate(_count, 20_000)
    return lambda seconds: _count(int(rate * seconds))


def _count(rounds: int) -> None:
    for _ in itertools.repeat(None, rounds):
        pass


def _rate(work: Callable[[int], object], units: int) -> float:
    """Return the units per second of the fastest of several runs."""
    fastest = 1e9
    for _ in range(20):
        begun = perf_counter()
        work(units)
        fastest = min(fastest, perf_counter() - begun)
    return units / fastest


def no_workers(repeats: int) -> Result:
    """Time ten batches of 8 ms of reading with steps of 8 ms, with every installed peer's default."""
    dataset = Timed(_STEPS, partial(sleep, TIMES[-1] / _SIZE))
    ours = partial(DataLoader, _Singly(dataset), places="cpu", batch_size=_SIZE)
    candidates: dict[str, Callable[[], float]] = {
        "synchronous": partial(_time_epoch, ours(use_buffer_reader=False)),
        "gpuloader": partial(_time_epoch, ours()),
    }
    with contextlib.suppress(ImportError):
        import torch

        loader = torch.utils.data.DataLoader(_Singly(dataset), batch_size=_SIZE)
        candidates[f"torch {torch.__version__}"] = partial(_time_epoch, loader)
    with contextlib.suppress(ImportError):
        import paddle

        paddle.set_device("cpu")
        loader = paddle.io.DataLoader(_Singly(dataset), batch_size=_SIZE, return_list=True)
        candidates[f"paddle {paddle.__version__}"] = partial(_time_epoch, loader)
    return Result(
        f"no workers: {_STEPS} batches of 8 ms of reading, steps of 8 ms",
        "ms per epoch",
        "synchronous",
        "at most 0.60 of synchronous, ahead of Paddle's",
        interleave(candidates, repeats),
    )


class _Singly:
    """A dataset without ``__getitems__``, so that all loaders read sample by sample."""

    def __init__(self, dataset: Timed) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]


def _time_epoch(loader: Iterable[Any]) -> float:
    begun = perf_counter()
    for _ in loader:
        sleep(TIMES[-1])
    return (perf_counter() - begun) * 1e3
