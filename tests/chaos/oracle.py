"""What a plain loop would get, computed with lists and NumPy alone, and compared with what is delivered."""

from __future__ import annotations

from itertools import pairwise, zip_longest
from random import Random
from typing import Any

import numpy as np

from tests.chaos.case import ANY_ORDER, Case


class Wrong(Exception):
    """The loader delivered something else than the plain loop would."""


class Part(list[int]):
    """The samples of one batch, of which those behind the first `own` are repeated to fill it up."""

    own: int | None = None

    @classmethod
    def of(cls, numbers: list[int], size: int, instead: int) -> Part:
        """Return these samples, filled up to `size` with their last one, or with `instead`."""
        last = numbers[-1] if numbers else instead
        part = cls([*numbers, *[last] * (size - len(numbers))])
        part.own = len(numbers)
        return part


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


def chunks(numbers: list[Any], size: int, *, drop_last: bool) -> list[list[Any]]:
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
    if case.ranks > 1:
        return share_of(case, numbers)
    if case.source == "items" and case.workers:
        shares = [numbers[worker :: case.workers] for worker in range(case.workers)]
        chunked = [chunks(share, case.batch_size, drop_last=case.drop_last) for share in shares]
        return [batch for turn in zip_longest(*chunked) for batch in turn if batch]
    found = chunks(numbers, case.batch_size, drop_last=case.drop_last)
    if case.source == "pictures":
        return [[number for number in batch if not is_broken(case, number)] for batch in found]
    return found


def share_of(case: Case, numbers: list[int]) -> list[list[int]]:
    """Return the batches of the case's rank: of each step of all ranks its consecutive part."""
    step = case.batch_size * case.ranks
    pads = case.uneven == "pad" and not case.drop_last and case.count % case.ranks > 0
    found = []
    for start in range(0, len(numbers), step):
        part = numbers[start : start + step]
        if len(part) < step and case.drop_last:
            continue
        mine, size = cut(part, case.ranks, case.uneven)[case.rank]
        if size:
            found.append(Part.of(mine, size, part[-1]) if pads else mine)
    return found


def cut(numbers: list[int], count: int, uneven: str) -> list[tuple[list[int], int]]:
    """Return the equal parts of a batch: the samples of each, and how many it is filled up to."""
    if uneven == "pad":
        return [(part.tolist(), -(-len(numbers) // count)) for part in np.array_split(numbers, count)]
    size = len(numbers) // count
    return [(numbers[part * size : (part + 1) * size], size) for part in range(count)]


def is_broken(case: Case, number: int) -> bool:
    """Return whether a picture cannot be decoded; no batch has only such ones."""
    begins_batch = case.batch_size > 1 and number % case.batch_size == 0
    return begins_batch and number % 3 == 0 and number + 1 < case.count


def steps_of(case: Case, epoch: int) -> list[list[list[int]]]:
    """Return the batches of each step of an epoch, one for each place."""
    batches = batches_of(case, epoch)
    if case.remainder:
        pads = case.remainder == "pad"
        return [
            [Part.of(own, size, batch[-1]) if pads else own for own, size in parts]
            for batch in batches
            if (parts := cut(batch, case.places, case.remainder))[0][1]
        ]
    return chunks(batches, case.places, drop_last=case.drop_last)


def values(number: int, width: int) -> np.ndarray:
    """Return the array of sample `number`; every element shows which sample it is from."""
    return (number * 1000 + np.arange(width) % 1000).astype(np.float32)


SIZE = (2, 3)


def color_of(number: int) -> tuple[int, int, int]:
    return number % 256, number // 256, 7


def label_of(case: Case, number: int) -> int:
    """Return the label of the picture of a sample: whether it is in the second half."""
    return int(number >= max(case.count // 2, 1))


MOST = 5
"""Values of a padded tail."""


def tail(number: int) -> np.ndarray:
    return np.arange(number % MOST, dtype=np.int64) + number


def sample_of(case: Case, number: int) -> Any:
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
