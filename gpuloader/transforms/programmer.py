"""Programmers: they plan the programs of a loader's transforms, and draw the random numbers for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array, Indices
from gpuloader.foreign import bits_dtype
from gpuloader.kernels.gather import gather
from gpuloader.order.order import Order, Stretch
from gpuloader.order.permutation import Words, derive_key, hash_for_keys
from gpuloader.order.randomness import as_number, current_draw
from gpuloader.staging.arena import FieldLayout, Layout, align
from gpuloader.transforms.program import (
    BatchProgram,
    Chain,
    Decoding,
    KernelCall,
    Plain,
    RowSource,
    Spec,
    Step,
    Transform,
    raise_named,
)

# ---------------------------------------------------------------------------------------------------------
# Random words for transforms: a function of the loader's seed, the epoch, and each sample's key

_DRAWS = 16  # part of the hash key, so that draws are independent of orders
_DRAWN = np.dtype(np.int32)
_AHEAD = 4096  # samples whose words are computed at once


@dataclass(frozen=True, slots=True)
class Purpose:
    """What random words are for."""

    seed: int
    epoch: int
    widths: tuple[int, ...]  # the words per sample of each transform that draws

    def draw(self, keys: Indices) -> list[Array]:
        """Return each transform's words for the samples with these keys, uint64 (samples, width).

        >>> [words.shape for words in Purpose(0, 0, (3, 1)).draw(range(4))]
        [(4, 3), (4, 1)]
        """
        if isinstance(keys, np.ndarray):
            samples: Words = keys.astype(np.uint64)
        else:
            samples = np.array([as_number(key) for key in keys], np.uint64)
        words = hash_for_keys(samples, _derive_keys(self))
        ends = np.cumsum(self.widths).tolist()
        return [words[:, end - width : end] for end, width in zip(ends, self.widths, strict=True)]


@lru_cache(maxsize=16)
def _derive_keys(purpose: Purpose) -> Sequence[int]:
    seed, epoch, widths = purpose.seed, purpose.epoch, purpose.widths
    return [
        derive_key(seed, epoch, _DRAWS, number, column)
        for number, width in enumerate(widths)
        for column in range(width)
    ]


@dataclass(frozen=True, slots=True)
class DrawnAhead:
    """Words for consecutive positions of an order, from `first` to the one before `stop`."""

    purpose: Purpose
    order: Order
    first: int
    stop: int
    words: list[Array]  # each transform's words, one row per position

    def has(self, purpose: Purpose, stretch: Stretch) -> bool:
        """Return whether the words of a batch are among these."""
        return (
            self.order is stretch.order
            and self.first <= stretch.first
            and stretch.last < self.stop
            and self.purpose == purpose
        )

    def take(self, stretch: Stretch) -> list[Array]:
        """Return each transform's words for a batch, whose last sample may be repeated."""
        begin, end = stretch.first - self.first, stretch.last + 1 - self.first
        if end - begin == stretch.count:
            return [words[begin:end] for words in self.words]
        rows = np.minimum(np.arange(begin, begin + stretch.count), end - 1)
        return [words[rows] for words in self.words]


def draw_ahead(purpose: Purpose, stretch: Stretch, before: DrawnAhead | None) -> DrawnAhead:
    """Return the words of a batch; of later ones as well, if it follows those that were drawn `before`."""
    # For a small batch, NumPy's calls take longer than the arithmetic. So where batches follow one another in
    # an order, the words of many are computed at once. Only the second batch shows that they do.
    order, first, stop = stretch.order, stretch.first, stretch.last + 1
    if before is not None and before.order is order and before.stop == first:
        whole = max(_AHEAD // stretch.count, 1) * stretch.count
        stop = max(stop, min(first + whole, len(order)))
    found = Stretch(order, first, stop - 1, stop - first).indices()
    return DrawnAhead(purpose, order, first, stop, purpose.draw(found))


# ---------------------------------------------------------------------------------------------------------
# Planning


class Programmer:
    """Plans a loader's programs; each process has its own.

    If only row numbers are staged, `sources` are the arrays on the device to gather the fields from. If only
    a span of the epoch's order is staged per batch (see `span_specs`), `order` has the rows in that order,
    int64, on the device; None means the rows in sequence. With `native`, results in bfloat16 are delivered in
    PyTorch's dtype, and not as bits in uint16; it may change before the first program. `planned` is called
    with every new program, by the thread that asks for it first.
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        sources: Sequence[RowSource] | None = None,
        order: Any = None,
        *,
        native: bool = False,
    ) -> None:
        self.native = native
        self.transforms = tuple(transforms)
        self.sources = None if sources is None else tuple(sources)
        self.order = order
        self._made: dict[Any, BatchProgram] = {}
        self._last: tuple[Layout | None, BatchProgram | None] = None, None
        self._drawn: DrawnAhead | None = None
        self.planned: Callable[[BatchProgram], None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Programmer, native=self.native), (self.transforms, self.sources, self.order)

    def program(
        self, names: Sequence[str], levels: Sequence[int], staged: Layout, *, drawn: bool
    ) -> BatchProgram:
        """Return the program for a staged layout, which `drawn` says ends with the draws already.

        `names` and `levels` are those of the array fields. Raises `SampleError` if a transform names a field
        that does not exist, or does not accept its field.
        """
        last, program = self._last
        if last is staged and program is not None:  # comparing layouts would take longer than all else here
            return program
        key = staged, drawn, tuple(names), tuple(levels)
        program = self._made.get(key)
        if program is None:
            if len(self._made) > 32:  # every batch may have another size or shape
                self._made.clear()
            program = self._made[key] = _Planner(self, names, levels, staged).plan(drawn=drawn)
            # Who copies the batch to a device asks for it with its draws: the same program.
            self._made[program.copied, True, *key[2:]] = program
            if self.planned is not None:
                self.planned(program)
        self._last = staged, program
        return program

    def fill_draws(self, program: BatchProgram, arrays: list[Array], keys: Indices | Stretch) -> None:
        """Write the transforms' draws for the samples with the given keys, which are their dataset indices.

        The draws depend on nothing but the loader's seed, the epoch and the key.
        """
        now = current_draw()
        purpose = Purpose(now.seed or 0, now.epoch, tuple(one.draws for _, one, _, _ in program.drawn))
        if isinstance(keys, Stretch):
            ahead = self._drawn
            if ahead is None or not ahead.has(purpose, keys):  # another thread may do the same
                ahead = self._drawn = draw_ahead(purpose, keys, ahead)
            drawn = ahead.take(keys)
        else:
            drawn = purpose.draw(keys)
        for (position, transform, field, specs), words in zip(program.drawn, drawn, strict=True):
            try:
                target = arrays[position]
                target[...] = transform.draw(words[: len(target)], specs)
            except Exception as error:
                raise_named(error, type(transform).__name__, field)


class _Planner:
    """Plans one program. Arrays are numbered: staged fields, draws, and then what is computed."""

    def __init__(
        self, programmer: Programmer, names: Sequence[str], levels: Sequence[int], staged: Layout
    ) -> None:
        self._programmer = programmer
        self._names, self._levels = list(names), levels
        self._fields: list[FieldLayout] = list(staged.fields)
        self._end = staged.nbytes
        self._made: dict[int, KernelCall] = {}  # what makes each array that a kernel makes
        self._present: dict[str, tuple[int, ...]] = {}  # the arrays that are each field's now
        first = 0
        for name, level in zip(names, levels, strict=True):
            self._present[name] = tuple(range(first, first + 1 + level))
            first += 1 + level

    def plan(self, *, drawn: bool) -> BatchProgram:
        """Return the program; `drawn` says whether the staged layout ends with the draws."""
        transforms, sources = self._programmer.transforms, self._programmer.sources
        drawing = [one for one in transforms if one.draws]
        if drawn:
            draws = iter(range(len(self._fields) - len(drawing), len(self._fields)))
        else:
            draws = iter([self._add(((self._count_samples(one), one.draws), _DRAWN)) for one in drawing])
        copied = Layout(tuple(self._fields), self._end)
        steps: list[Step] = []
        checked: list[tuple[Transform, str, tuple[int, ...]]] = []
        filled: list[tuple[int, Transform, str, tuple[Spec, ...]]] = []
        decodings: list[Decoding] = []
        if sources is not None:
            count, *rest = self._fields[0].shape
            for name, (shape, dtype, source) in zip(self._names, sources, strict=True):
                spec = (count, *shape), dtype
                output = self._add(spec)
                self._present[name] = (output,)
                # Row numbers have one dimension; a span has two, see `span_specs`.
                if rest:
                    given = {"source": source, "indices": self._programmer.order}
                    call = KernelCall(("span",), (spec,), gather, given)
                else:
                    call = KernelCall(("indices",), (spec,), gather, {"source": source})
                steps.append(Step(call, (1 if rest else 0,), (output,), name, "gather"))
        for transform in transforms:
            title = type(transform).__name__
            field, find = transform.field, getattr(transform, "find", None)
            if field is None and find is not None:
                field = find(self._names, self._levels)
            names, inputs = self._find(field, *getattr(transform, "others", ()))
            name, before, adapt = names[0], self._made.get(inputs[0]), getattr(transform, "adapt", None)
            if before is not None and adapt is not None:
                transform = adapt(before)
            # Plain.check accepts all values, so it is not called for every batch.
            if getattr(type(transform), "check", None) is not Plain.check:
                watched, values = self._find(*getattr(transform, "checked", names))
                # Only staged values can be checked: those that a program computes may be on a device.
                if max(values) < len(copied.fields):
                    checked.append((transform, watched[0], values))
            specs = tuple((self._fields[one].shape, self._fields[one].dtype) for one in inputs)
            try:
                operation = transform.bind(specs)
                in_place = getattr(operation, "in_place", False)
                outputs = inputs if in_place else tuple(map(self._add, operation.outputs))
                scratch = tuple(map(self._add, getattr(operation, "scratch", ())))
            except Exception as error:
                raise_named(error, title, name)
            if transform.draws:
                position = next(draws)
                inputs = (*inputs, position)
                filled.append((position, transform, name, specs))
            if isinstance(operation, Decoding):
                decodings.append(replace(operation, codes=inputs[0], pixels=outputs[0], field=name))
                self._present[name] = (*outputs, *inputs[1:-1])
                continue
            if any(self._fields[one].dtype.hasobject for one in outputs):
                # A slot would hold their addresses, which outlive the objects and mean nothing elsewhere.
                raise SampleError(f"{title} has an output of dtype object; a batch holds numbers", field=name)
            if len(names) == 1:
                self._present[name] = outputs
            else:
                self._present.update((name, (one,)) for name, one in zip(names, outputs, strict=True))
            if isinstance(operation, Chain):
                arrays = *inputs, *outputs, *scratch
                for call, numbers, number in operation.calls:
                    taken = tuple(arrays[one] for one in numbers)
                    steps.append(Step(call, taken, (arrays[number],), name, title))
                    self._note(call, taken[0], arrays[number])
                continue
            steps.append(Step(operation, inputs, (*outputs, *scratch), name, title))
            if isinstance(operation, KernelCall):
                self._note(operation, inputs[0], outputs[0])
        delivered: list[FieldLayout] = []
        turned: list[tuple[int, tuple[int, ...]]] = []
        for number in self._find(*self._names)[1]:
            array, maker = self._fields[number], self._made.get(number)
            if maker is not None and maker.axes is not None:
                turned.append((len(delivered), maker.axes))
            if self._programmer.native and maker is not None and maker.bits is not None:
                array = replace(array, dtype=bits_dtype(maker.bits, array.dtype.itemsize))
            delivered.append(array)
        return BatchProgram(
            copied,
            Layout(tuple(self._fields), self._end),
            tuple(filled),
            tuple(checked),
            tuple(steps),
            Layout(tuple(delivered), self._end, tuple(turned)),
            tuple(len(self._present[name]) - 1 for name in self._names),
            tuple(decodings),
        )

    def _count_samples(self, transform: Transform) -> int:
        """Return the number of samples of a transform's field; a ragged one's first array has the steps."""
        if self._programmer.sources is not None:
            return self._fields[0].shape[0]
        _, (first, *splits) = self._find(transform.field)
        if splits:
            return self._fields[splits[0]].shape[0] - 1
        shape = self._fields[first].shape
        return shape[0] if shape else 0

    def _add(self, spec: Spec) -> int:
        """Lay an array out behind the others, and return its number."""
        shape, dtype = spec
        start = align(self._end)
        self._fields.append(FieldLayout(start, shape, dtype))
        self._end = start + math.prod(shape) * dtype.itemsize
        return len(self._fields) - 1

    def _find(self, *fields: str | None) -> tuple[list[str], tuple[int, ...]]:
        """Return the names of a transform's fields, and the numbers of their arrays."""
        names: list[str] = []
        numbers: tuple[int, ...] = ()
        for field in fields:
            name = self._names[0] if field is None and self._names else field
            if name is None or name not in self._present:
                problem = f"no such array field to transform; the sample has {self._names}"
                raise SampleError(problem, field=name)
            names.append(name)
            numbers += self._present[name]
        return names, numbers

    def _note(self, call: KernelCall, first: int, made: int) -> None:
        """Note how an array that a kernel makes is delivered; `first` is its first input."""
        if call.in_place:
            return
        # A result is turned like its input if it has the input's values or shape. So what follows a Normalize
        # to channels_last stays in that memory format.
        before = self._made.get(first)
        if before is not None and (call.moves or before.outputs[0][0] == call.outputs[0][0]):
            call = replace(call, axes=call.axes or before.axes)
        if before is not None and call.moves:
            call = replace(call, bits=before.bits)
        self._made[made] = call
