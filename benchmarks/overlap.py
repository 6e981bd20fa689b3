"""Measure how much of the shorter of reading and computing an asynchronous loader hides."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from time import perf_counter, sleep
from typing import Any

import numpy as np

from benchmarks.measure import Result, interleave
from gpuloader import CPUPlace, DataLoader
from gpuloader.demo.training import train
from gpuloader.sources import mnist

STEPS = 100


def hidden_time(repeats: int) -> Result:
    """Time a reader that waits 2 ms per batch with a consumer that waits or computes for about 2 ms."""
    batch = [np.zeros((32, 784), np.float32)]

    def reader() -> Iterator[Any]:
        for _ in range(STEPS):
            sleep(0.002)
            yield batch

    candidates: dict[str, Callable[[], float]] = {}
    for kind, work in (("waits", wait(2.0)), ("computes", multiply(2.0))):
        for way in (False, True):
            name = f"consumer {kind}, {'asynchronous' if way else 'synchronous'}"
            candidates[name] = lambda way=way, work=work: _epoch(reader, work, way) / STEPS * 1e6
    return Result(
        "hidden time: 2 ms of reading, 2 ms of computing",
        "µs per step",
        "consumer waits, synchronous",
        "asynchronous at most 0.6 of synchronous",
        interleave(candidates, repeats),
    )


def main_job(repeats: int) -> Result:
    """Time two epochs of the demonstration's MNIST model on the packaged digits."""
    digits = mnist.sample().train

    def run(asynchronous: bool) -> float:
        done = train(digits, CPUPlace(), epochs=2, asynchronous=asynchronous)
        return done.seconds / len(done.losses) * 1e6

    candidates = {"synchronous": lambda: run(False), "asynchronous": lambda: run(True)}
    return Result(
        "MNIST, linear model, data in memory",
        "µs per step",
        "synchronous",
        "none: steps this short gain nothing from a thread",
        interleave(candidates, repeats),
    )


def _epoch(reader: Callable[[], Iterator[Any]], work: Callable[[], None], asynchronous: bool) -> float:
    loader = DataLoader.from_generator(capacity=8, use_double_buffer=asynchronous)
    loader.set_batch_generator(reader, places="cpu")
    start = perf_counter()
    for _ in loader:
        work()
    return perf_counter() - start


def wait(milliseconds: float) -> Callable[[], None]:
    """Return a function that sleeps, as if waiting for a disk or a device."""
    return lambda: sleep(milliseconds / 1000)


def multiply(milliseconds: float) -> Callable[[], None]:
    """Return a function that multiplies matrices for about `milliseconds`."""
    size = 192
    left = np.random.default_rng(0).random((size, size), np.float32)
    start = perf_counter()
    for _ in range(50):
        left @ left
    rounds = max(1, round(milliseconds / 1000 / ((perf_counter() - start) / 50)))

    def work() -> None:
        for _ in itertools.repeat(None, rounds):
            left @ left

    return work
