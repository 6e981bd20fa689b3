"""Which samples make up which step of an epoch, computed with lists alone."""

from __future__ import annotations

from random import Random

import numpy as np

from tests.chaos.case import Case


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
    if case.ranks > 1:
        return share_of(case, numbers)
    if case.source == "items" and case.workers:
        shares = [
            chunks(numbers[worker :: case.workers], case.batch_size, drop_last=case.drop_last)
            for worker in range(case.workers)
        ]
        rounds = range(max(map(len, shares)))
        return [share[turn] for turn in rounds for share in shares if turn < len(share)]
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
        size = -(-len(numbers) // count)
        sizes = [len(numbers) // count + (part < len(numbers) % count) for part in range(count)]
    else:
        size = len(numbers) // count
        sizes = [size] * count
    starts = [sum(sizes[:part]) for part in range(count)]
    return [(numbers[start : start + own], size) for start, own in zip(starts, sizes, strict=True)]


def is_broken(case: Case, number: int) -> bool:
    """Return whether a picture cannot be decoded; no batch has only such ones."""
    return (
        case.batch_size > 1 and number % case.batch_size == 0 and number % 3 == 0 and number + 1 < case.count
    )


def steps_of(case: Case, epoch: int) -> list[list[list[int]]]:
    """Return the batches of each step of an epoch, one for each place."""
    batches = batches_of(case, epoch)
    if case.remainder:
        parts = [(batch, cut(batch, case.places, case.remainder)) for batch in batches]
        return [
            [Part.of(own, size, batch[-1]) if case.remainder == "pad" else own for own, size in found]
            for batch, found in parts
            if found[0][1]
        ]
    steps = [batches[start : start + case.places] for start in range(0, len(batches), case.places)]
    if case.drop_last and steps and len(steps[-1]) < case.places:
        steps.pop()
    return steps
