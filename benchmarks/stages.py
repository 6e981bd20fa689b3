"""Where the time of a small batch of samples goes, stage by stage, without a thread.

Figures are microseconds per batch of 32 rows of 784 float32, with and without a label. Each candidate does
what the one before does, and one thing more; the floor is NumPy's own assignment of rows, without checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.measure import Candidate, Result, interleave
from gpuloader import DataLoader
from gpuloader.batches.schema import Collation, infer_schema
from gpuloader.staging import Ring

SIZE, WIDTH, BATCHES = 32, 784, 400
FLOOR = "bare NumPy, rows assigned"

Sample = tuple[Any, ...]


def stages(repeats: int, *, label: bool = False) -> Result:
    """Time the stages of `set_sample_generator`; the goal is to be no slower than the bare loop."""
    samples = make_samples(label=label)
    fields = "an image and a label" if label else "an image"
    return Result(
        f"Stages of a batch of {SIZE} samples, {fields} each",
        "µs per batch",
        FLOOR,
        "the whole road at most 1.0 times the floor",
        interleave(
            {
                "reading: the generator alone": partial(_per_batch, lambda: _read(samples)),
                FLOOR: partial(_per_batch, lambda: assign_rows(samples)),
                "memoryview loop for one field": partial(_per_batch, lambda: assign_to_memory(samples)),
                "reading and writing into a slot": partial(_per_batch, lambda: write_rows(samples)),
                "the whole road: set_sample_generator": _whole(samples),
            },
            repeats,
        ),
    )


def make_samples(*, label: bool) -> list[Sample]:
    """Return enough samples for a few batches, which fit into the processor's cache."""
    images = np.random.default_rng(0).random((4 * SIZE, WIDTH), np.float32)
    return [(image, number % 10) if label else (image,) for number, image in enumerate(images)]


def _generate(samples: list[Sample]) -> Iterator[Sample]:
    yield from itertools.islice(itertools.cycle(samples), SIZE * BATCHES)


def _read(samples: list[Sample]) -> int:
    batches = 0
    items = _generate(samples)
    while list(itertools.islice(items, SIZE)):
        batches += 1
    return batches


def assign_rows(samples: list[Sample]) -> int:
    """Write each sample into its row of one array per field."""
    fields = [np.empty((SIZE, *np.shape(value)), np.asarray(value).dtype) for value in samples[0]]
    batches = 0
    items = _generate(samples)
    while chosen := list(itertools.islice(items, SIZE)):
        for row, sample in enumerate(chosen):
            for field, value in zip(fields, sample, strict=True):
                field[row] = value
        batches += 1
    return batches


def assign_to_memory(samples: list[Sample]) -> int:
    """Write the first field of each sample through a memoryview, which checks its type and length."""
    memory = np.empty(SIZE * WIDTH, np.float32).data
    places = [slice(start, start + WIDTH) for start in range(0, SIZE * WIDTH, WIDTH)]
    batches = 0
    items = _generate(samples)
    while chosen := list(itertools.islice(items, SIZE)):
        for place, sample in zip(places, chosen, strict=True):
            memory[place] = sample[0]
        batches += 1
    return batches


def write_rows(samples: list[Sample]) -> int:
    """Write samples as the loader does, with all checks, into a slot that nobody takes."""
    rows = infer_schema(samples[:1], Collation(flat=True)).rows(SIZE)
    layout = rows.layout
    views = Ring(1, 1).acquire(layout.nbytes).views(layout)
    batches = 0
    items = _generate(samples)
    while rows.write(views, itertools.islice(items, SIZE)):
        batches += 1
    return batches


def _whole(samples: list[Sample]) -> Candidate:
    loader = DataLoader.from_generator(capacity=4, return_list=True, use_double_buffer=False)
    loader.set_sample_generator(partial(_generate, samples), SIZE, places="cpu")
    return partial(_per_batch, lambda: sum(1 for _ in loader))


def _per_batch(run: Callable[[], int]) -> float:
    begun = perf_counter_ns()
    batches = run()
    return (perf_counter_ns() - begun) / batches / 1e3
