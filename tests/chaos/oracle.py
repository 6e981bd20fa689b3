"""What a plain loop would get, computed with lists and NumPy alone, and compared with what is delivered."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tests.chaos.case import ANY_ORDER, Case
from tests.chaos.steps import Part, Wrong, steps_of


def values(number: int, width: int) -> np.ndarray:
    """Return the array of sample `number`; every element shows which sample it is from."""
    return (number * 1000 + np.arange(width) % 1000).astype(np.float32)


SIZE = (2, 3)


def color_of(number: int) -> tuple[int, int, int]:
    """Return the color of the picture of a sample."""
    return number % 256, number // 256, 7


def label_of(case: Case, number: int) -> int:
    """Return the label of the picture of a sample: whether it is in the second half."""
    return int(number >= max(case.count // 2, 1))


MOST = 5
"""Values of a padded tail."""


def tail(number: int) -> np.ndarray:
    """Return the sample's field of varying length."""
    return np.arange(number % MOST, dtype=np.int64) + number


def sample_of(case: Case, number: int) -> Any:
    """Return sample `number` in the form of the case."""
    x = values(number, case.width)
    match case.form:
        case "array":
            return x
        case "tuple":
            return x, np.int64(number)
        case "dict":
            return {"x": x, "id": number, "name": f"sample {number}"}
        case "ragged":
            return {"x": x, "tail": tail(number)}
    return {"x": x, "id": np.int64(number)}  # columns


def stack(case: Case, numbers: list[int]) -> Any:
    """Return the batch of these samples."""
    x = np.stack([values(number, case.width) for number in numbers])
    ids = np.array(numbers, np.int64)
    if case.program == "cast":
        x = x.astype(np.int32)
    match case.form:
        case "array":
            return x
        case "picture":
            images = np.empty((len(numbers), *SIZE, 3), np.uint8)
            images[:] = [[[color_of(number)]] for number in numbers]
            return [images, np.array([label_of(case, number) for number in numbers], np.int64)]
        case "tuple":
            return [x, ids]
        case "dict":
            return {"x": x, "id": ids, "name": [f"sample {number}" for number in numbers]}
        case "ragged":
            return {"x": x, "tail": [tail(number).tolist() for number in numbers]}
    return {"x": x, "id": ids}


def read_ids(case: Case, batch: Any) -> list[int]:
    """Return which samples a batch holds, by its arrays' first column."""
    first = batch["x"] if isinstance(batch, dict) else batch if case.form == "array" else batch[0]
    if case.form == "picture":
        return [int(value) for value in np.asarray(first)[:, 0, 0, 0]]
    return [int(value) // 1000 for value in np.asarray(first)[:, 0]]


def check_batch(case: Case, batch: Any, numbers: list[int]) -> None:
    """Raise `Wrong` unless a batch holds exactly these samples."""
    wanted = stack(case, numbers)
    if isinstance(batch, tuple):
        batch = list(batch)
    if isinstance(numbers, Part):
        batch = _take_mask(case, batch, numbers)
    if type(wanted) is dict and (not isinstance(batch, dict) or set(batch) != set(wanted)):
        raise Wrong(f"expected the fields {sorted(wanted)}, got {batch!r:.200}")
    if isinstance(wanted, list) and (not isinstance(batch, list) or len(batch) != len(wanted)):
        raise Wrong(f"expected {len(wanted)} fields, got {batch!r:.200}")
    keys = wanted.keys() if isinstance(wanted, dict) else range(len(wanted))
    pairs = [(batch[key], wanted[key], key) for key in keys] if isinstance(wanted, dict | list) else []
    for got, expected, name in pairs or [(batch, wanted, "")]:
        if isinstance(expected, np.ndarray):
            seen = np.asarray(got)
            if seen.dtype != expected.dtype or seen.shape != expected.shape or not (seen == expected).all():
                raise Wrong(f"field {name!r} of batch {numbers}: got {seen!r:.300}")
        elif name == "tail":
            _check_tail(case, got, expected)
        elif list(got) != expected:
            raise Wrong(f"field {name!r} of batch {numbers}: got {got!r:.300}")


def _take_mask(case: Case, batch: Any, part: Part) -> Any:
    """Return a batch without its mask, which must tell the samples that count from those that fill it up."""
    mask = batch.get("mask") if isinstance(batch, dict) else batch[-1]
    if np.asarray(mask).tolist() != [number < (part.own or 0) for number in range(len(part))]:
        raise Wrong(f"mask of batch {part}, of which {part.own} count: {mask!r:.300}")
    if isinstance(batch, dict):
        return {name: value for name, value in batch.items() if name != "mask"}
    return batch[0] if case.form == "array" else batch[:-1]


def _check_tail(case: Case, got: Any, expected: list[list[int]]) -> None:
    if case.pad or case.program == "pad":
        widest = MOST if case.program == "pad" else max(map(len, expected))
        seen = np.asarray(got).tolist()
        if seen != [row + [-1] * (widest - len(row)) for row in expected]:
            raise Wrong(f"padded field of rows {expected}: got {seen}")
        return
    all_values, ends = np.asarray(got.values).tolist(), np.asarray(got.row_splits[0]).tolist()
    if [all_values[begin:end] for begin, end in pairwise(ends)] != expected:
        raise Wrong(f"ragged field of rows {expected}: got {all_values} split at {ends}")


def is_ordered(case: Case) -> bool:
    """Return whether the oracle knows the order of the batches."""
    return case.in_order and not (case.source == "mix" or (case.source in ANY_ORDER and case.workers > 0))


class Follower:
    """Compares an epoch's steps with the oracle's as they arrive, from one loader after another."""

    def __init__(self, case: Case, epoch: int) -> None:
        self.case = case
        self.epoch = epoch
        self.taken = 0
        self.seen: list[list[int]] = []
        self._steps = steps_of(case, epoch)

    def take(self, step: Any) -> list[tuple[Any, list[int]]]:
        """Check one step; return its batches with the numbers of their samples."""
        case = self.case
        # With declared fields, a step is a list of one batch for each place, also for a single one.
        parts = [step] if case.places == 1 and not case.declared else list(step)
        if is_ordered(case):
            if self.taken >= len(self._steps):
                raise Wrong(f"epoch {self.epoch} goes on after its {self.taken} steps")
            expected = self._steps[self.taken]
        else:
            expected = [read_ids(case, part) for part in parts]
        if len(parts) != len(expected):
            raise Wrong(f"step {self.taken} has {len(parts)} batches, expected {len(expected)}")
        for part, numbers in zip(parts, expected, strict=True):
            check_batch(case, part, numbers)
        self.seen += expected
        self.taken += 1
        return list(zip(parts, expected, strict=True))

    def finish(self) -> None:
        """Check that the epoch is complete."""
        case = self.case
        if is_ordered(case):
            if self.taken != len(self._steps):
                raise Wrong(f"epoch {self.epoch} ended after {self.taken} of {len(self._steps)} steps")
            return
        wanted = [batch for step in self._steps for batch in step]
        if case.source in ANY_ORDER:
            seen, all_of = (sorted(n for batch in found for n in batch) for found in (self.seen, wanted))
            if seen != all_of:
                raise Wrong(f"epoch {self.epoch} had the samples {seen}, expected {all_of}")
        elif case.drop_last and case.places > 1:
            if len(self.seen) != len(wanted):  # any batch may be in the step that is dropped
                raise Wrong(f"epoch {self.epoch} had {len(self.seen)} batches, expected {len(wanted)}")
        elif sorted(self.seen) != sorted(wanted):
            raise Wrong(f"epoch {self.epoch} had the batches {sorted(self.seen)}, expected {sorted(wanted)}")
