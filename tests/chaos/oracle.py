"""What a plain loop would get, computed with lists and NumPy alone, and compared with what is delivered."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np

from tests.chaos.case import ANY_ORDER, Case


class Wrong(Exception):
    """The loader delivered something else than the plain loop would."""


def values(number: int, width: int) -> np.ndarray:
    """Return the array of sample `number`; every element shows which sample it is from."""
    return (number * 1000 + np.arange(width) % 1000).astype(np.float32)


def tail(number: int) -> np.ndarray:
    """Return the sample's field of varying length."""
    return np.arange(number % 5, dtype=np.int64) + number


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
    match case.form:
        case "array":
            return x
        case "tuple":
            return [x, ids]
        case "dict":
            return {"x": x, "id": ids, "name": [f"sample {number}" for number in numbers]}
        case "ragged":
            return {"x": x, "tail": [tail(number).tolist() for number in numbers]}
    return {"x": x, "id": ids}


def shuffled(case: Case, epoch: int) -> list[int]:
    """Return the shuffled order of an epoch, as a loader without workers has it.

    The order is the package's own, so it is checked to be one, and to be the same for every loader.
    """
    from gpuloader.order.order import Shuffled

    order = Shuffled(case.count, case.seed, epoch)
    numbers = [int(number) for number in np.asarray(order.slice(0, case.count))]
    if sorted(numbers) != list(range(case.count)):
        raise Wrong(f"the shuffled order of epoch {epoch} is no permutation: {numbers}")
    return numbers


def drawn_order(case: Case) -> list[int]:
    """Return the order of the case's own sampler: some samples, some of them twice."""
    rng = Random(f"sampler {case.seed}")
    return [rng.randrange(case.count) for _ in range(case.count)]


def drawn_batches(case: Case) -> list[list[int]]:
    """Return the batches of the case's own batch sampler, which differ in size."""
    rng = Random(f"batches {case.seed}")
    sizes = [rng.randrange(1, 6) for _ in range(max(case.count // 3, 1))]
    return [[rng.randrange(case.count) for _ in range(size)] for size in sizes]


def chunks(numbers: list[int], size: int, *, drop_last: bool) -> list[list[int]]:
    found = [numbers[start : start + size] for start in range(0, len(numbers), min(size, len(numbers) or 1))]
    if drop_last and found and len(found[-1]) < size:
        found.pop()
    return found


def batches_of(case: Case, epoch: int) -> list[list[int]]:
    """Return the samples of each batch of an epoch, in their order."""
    numbers = list(range(case.count))
    if case.order == "batches":
        return drawn_batches(case)
    if case.order == "sampler":
        numbers = drawn_order(case)
    if case.order == "shuffle":
        numbers = shuffled(case, epoch)
    if case.source == "items" and case.workers:
        shares = [
            chunks(numbers[worker :: case.workers], case.batch_size, drop_last=case.drop_last)
            for worker in range(case.workers)
        ]
        rounds = range(max(map(len, shares)))
        return [share[turn] for turn in rounds for share in shares if turn < len(share)]
    return chunks(numbers, case.batch_size, drop_last=case.drop_last)


def steps_of(case: Case, epoch: int) -> list[list[list[int]]]:
    """Return the batches of each step of an epoch, one for each place."""
    batches = batches_of(case, epoch)
    steps = [batches[start : start + case.places] for start in range(0, len(batches), case.places)]
    if case.drop_last and steps and len(steps[-1]) < case.places:
        steps.pop()
    return steps


def read_ids(case: Case, batch: Any) -> list[int]:
    """Return which samples a batch holds, by its arrays' first column."""
    first = batch["x"] if isinstance(batch, dict) else batch if case.form == "array" else batch[0]
    return [int(value) // 1000 for value in np.asarray(first)[:, 0]]


def check_batch(case: Case, batch: Any, numbers: list[int]) -> None:
    """Raise `Wrong` unless a batch holds exactly these samples."""
    wanted = stack(case, numbers)
    if case.form == "tuple" and isinstance(batch, tuple):
        batch = list(batch)
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


def _check_tail(case: Case, got: Any, expected: list[list[int]]) -> None:
    if case.pad:
        widest = max(map(len, expected))
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
    """Compares an epoch's steps with the oracle's as they arrive.

    Parameters
    ----------
    case : Case
        The case.
    epoch : int
        The epoch's number.
    done : int
        How many steps an earlier part of the epoch has delivered.
    seen : list of list of int or None
        The batches that the earlier part has delivered, if their order is unknown.
    """

    def __init__(self, case: Case, epoch: int, done: int = 0, seen: list[list[int]] | None = None) -> None:
        self.case = case
        self.epoch = epoch
        self.taken = done
        self.seen: list[list[int]] = list(seen or [])
        self._steps = steps_of(case, epoch)

    def take(self, step: Any) -> list[tuple[Any, list[int]]]:
        """Check one step; return its batches with the numbers of their samples."""
        case = self.case
        parts = [step] if case.places == 1 else list(step)
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
