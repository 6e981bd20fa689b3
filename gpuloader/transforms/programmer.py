"""Programmers: they plan the programs of a loader's transforms, and draw random numbers for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array, Indices
from gpuloader.foreign import bits_dtype
from gpuloader.order.order import Order, Stretch
from gpuloader.order.permutation import Words, derive_key, hash_for_keys
from gpuloader.order.randomness import as_number, current_draw
from gpuloader.staging.arena import FieldLayout, Layout, align
from gpuloader.transforms.program import (
    BatchProgram,
    Chain,
    Decoding,
    KernelCall,
    Operation,
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
_AHEAD = 4096  # samples whose words are computed at a time


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
        numbers = keys if isinstance(keys, np.ndarray) else [as_number(key) for key in keys]
        samples: Words = np.array(numbers, np.uint64)
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
    """Return the words of a batch, and of later ones if it follows those that were drawn `before`."""
    # For a small batch, NumPy's calls take longer than the arithmetic. So if batches follow one another in an
    # order, the words of many are computed together. Only the second batch shows that they do.
    order, first, stop = stretch.order, stretch.first, stretch.last + 1
    if before is not None and before.order is order and before.stop == first:
        whole = max(_AHEAD // stretch.count, 1) * stretch.count
        stop = max(stop, min(first + whole, len(order)))
    found = Stretch(order, first, stop - 1, stop - first).indices()
    return DrawnAhead(purpose, order, first, stop, purpose.draw(found))


# ---------------------------------------------------------------------------------------------------------
# Planning


@dataclass(eq=False, repr=False)
class Programmer:
    """Plans a loader's programs; each process has its own.

    If only row numbers are staged, `sources` are the device arrays to gather the fields from. If only a span
    of the epoch's order is staged per batch (see `span_specs`), `order` holds the rows in that order, int64,
    on the device; None means the rows in sequence. With `native`, results in bfloat16 are delivered in
    PyTorch's dtype, not as bits in uint16; this may change before the first program. `planned` is called with
    every new program, by the thread that asks for it first.
    """

    transforms: Sequence[Transform]
    sources: Sequence[RowSource] | None = None
    order: Any = None
    native: bool = field(default=False, kw_only=True)
    planned: Callable[[BatchProgram], None] | None = field(default=None, init=False)
    _made: dict[Any, BatchProgram] = field(default_factory=dict, init=False)
    _last: tuple[Layout | None, BatchProgram | None] = field(default=(None, None), init=False)
    _drawn: DrawnAhead | None = field(default=None, init=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Programmer, native=self.native), (self.transforms, self.sources, self.order)

    def program(
        self, names: Sequence[str], levels: Sequence[int], staged: Layout, *, drawn: bool
    ) -> BatchProgram:
        """Return the program for a staged layout; `drawn` says that the layout already ends with the draws.

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
            program = self._made[key] = _Planner(self, names, list(staged.fields), staged.nbytes).plan(
                levels, drawn=drawn
            )
            # Copying the batch to a device requests it with its draws: the same program.
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
        for (position, transform, name, specs), words in zip(program.drawn, drawn, strict=True):
            try:
                target = arrays[position]
                target[...] = transform.draw(words[: len(target)], specs)
            except Exception as error:
                raise_named(error, type(transform).__name__, name)


@dataclass(eq=False, repr=False)
class _Planner:
    """Plans one program. Arrays are numbered: staged fields, draws, and then what is computed."""

    programmer: Programmer
    names: Sequence[str]
    fields: list[FieldLayout]
    end: int  # of the last array
    present: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the current arrays of each field
    made: dict[int, KernelCall] = field(default_factory=dict)  # what makes each array that a kernel makes
    # These are as in `BatchProgram`.
    steps: list[Step] = field(default_factory=list)
    drawn: list[tuple[int, Transform, str, tuple[Spec, ...]]] = field(default_factory=list)
    checked: list[tuple[Transform, str, tuple[int, ...]]] = field(default_factory=list)
    decodings: list[Decoding] = field(default_factory=list)

    def plan(self, levels: Sequence[int], *, drawn: bool) -> BatchProgram:
        """Return the program; `drawn` says whether the staged layout ends with the draws."""
        first = 0
        for name, level in zip(self.names, levels, strict=True):
            self.present[name] = tuple(range(first, first + 1 + level))
            first += 1 + level
        drawing = [one for one in self.programmer.transforms if one.draws]
        if drawn:
            draws = iter(range(len(self.fields) - len(drawing), len(self.fields)))
        else:
            draws = iter([self._add(((self._count_samples(one), one.draws), _DRAWN)) for one in drawing])
        copied = Layout(tuple(self.fields), self.end)
        if self.programmer.sources is not None:
            self._gather(self.programmer.sources)
        for transform in self.programmer.transforms:
            self._apply(transform, draws, len(copied.fields), levels)
        delivered: list[FieldLayout] = []
        turned: list[tuple[int, tuple[int, ...]]] = []
        for number in self._find(*self.names)[1]:
            array, maker = self.fields[number], self.made.get(number)
            if maker is not None and maker.axes is not None:
                turned.append((len(delivered), maker.axes))
            if self.programmer.native and maker is not None and maker.bits is not None:
                array = replace(array, dtype=bits_dtype(maker.bits, array.dtype.itemsize))
            delivered.append(array)
        left = [len(self.present[name]) - 1 for name in self.names]
        return BatchProgram(
            copied,
            Layout(tuple(self.fields), self.end),
            tuple(self.drawn),
            tuple(self.checked),
            tuple(self.steps),
            Layout(tuple(delivered), self.end, tuple(turned)),
            tuple(left),
            tuple(self.decodings),
        )

    def _gather(self, sources: Sequence[RowSource]) -> None:
        """Begin with the fields, gathered by what is staged: row numbers, or a span of positions."""
        from gpuloader.kernels.gather import gather  # imported late: only a cache on a device needs it

        count, *rest = self.fields[0].shape
        for name, (shape, dtype, source) in zip(self.names, sources, strict=True):
            spec = (count, *shape), dtype
            self.present[name] = (self._add(spec),)
            # Row numbers have one dimension; a span has two, see `span_specs`.
            given = {"source": source, "indices": self.programmer.order} if rest else {"source": source}
            call = KernelCall(("span" if rest else "indices",), (spec,), gather, given)
            self.steps.append(Step(call, (1 if rest else 0,), self.present[name], name, "gather"))

    def _apply(self, transform: Transform, draws: Iterator[int], staged: int, levels: Sequence[int]) -> None:
        """Add what a transform does; the first `staged` arrays are staged."""
        title = type(transform).__name__
        given, find = transform.field, getattr(transform, "find", None)
        if given is None and find is not None:
            given = find(self.names, levels)
        names, inputs = self._find(given, *getattr(transform, "others", ()))
        name, before, adapt = names[0], self.made.get(inputs[0]), getattr(transform, "adapt", None)
        if before is not None and adapt is not None:
            transform = adapt(before)
        # Plain.check accepts all values, so it is not called for every batch.
        if getattr(type(transform), "check", None) is not Plain.check:
            watched, values = self._find(*getattr(transform, "checked", names))
            # Only staged values can be checked: those that a program computes may be on a device.
            if max(values) < staged:
                self.checked.append((transform, watched[0], values))
        specs = [(self.fields[one].shape, self.fields[one].dtype) for one in inputs]
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
            self.drawn.append((position, transform, name, tuple(specs)))
        if isinstance(operation, Decoding):
            self.decodings.append(replace(operation, codes=inputs[0], pixels=outputs[0], field=name))
            self.present[name] = (*outputs, *inputs[1:-1])
            return
        for one in outputs:
            if self.fields[one].dtype.hasobject:
                # A slot would hold the objects' addresses, which outlive the objects and mean nothing
                # elsewhere.
                raise SampleError(f"{title} has an output of dtype object; a batch holds numbers", field=name)
        if len(names) == 1:
            self.present[name] = outputs
        else:
            self.present.update((name, (one,)) for name, one in zip(names, outputs, strict=True))
        if isinstance(operation, Chain):
            arrays = *inputs, *outputs, *scratch
            for call, numbers, number in operation.calls:
                self._add_step(call, tuple(map(arrays.__getitem__, numbers)), (arrays[number],), name, title)
        else:
            self._add_step(operation, inputs, (*outputs, *scratch), name, title)

    def _count_samples(self, transform: Transform) -> int:
        """Return the number of samples of a transform's field; a ragged field's first array has the steps."""
        if self.programmer.sources is not None:
            return self.fields[0].shape[0]
        _, (first, *splits) = self._find(transform.field)
        if splits:
            return self.fields[splits[0]].shape[0] - 1
        shape = self.fields[first].shape
        return shape[0] if shape else 0

    def _add(self, spec: Spec) -> int:
        """Lay an array out behind the others, and return its number."""
        shape, dtype = spec
        start = align(self.end)
        self.fields.append(FieldLayout(start, shape, dtype))
        self.end = start + math.prod(shape) * dtype.itemsize
        return len(self.fields) - 1

    def _find(self, *fields: str | None) -> tuple[list[str], tuple[int, ...]]:
        """Return the names of a transform's fields, and the numbers of their arrays."""
        names: list[str] = []
        numbers: tuple[int, ...] = ()
        for given in fields:
            name = self.names[0] if given is None and self.names else given
            if name is None or name not in self.present:
                problem = f"no such array field to transform; the sample has {self.names}"
                raise SampleError(problem, field=name)
            names.append(name)
            numbers += self.present[name]
        return names, numbers

    def _add_step(
        self, call: Operation, inputs: tuple[int, ...], outputs: tuple[int, ...], name: str, title: str
    ) -> None:
        """Add a step; if a kernel makes its output, record how that is delivered."""
        self.steps.append(Step(call, inputs, outputs, name, title))
        if not isinstance(call, KernelCall) or call.in_place:
            return
        # A result is turned like its input if it has the input's values or shape. So everything after a
        # Normalize to channels_last stays in that memory format.
        before = self.made.get(inputs[0])
        if before is not None and (call.moves or before.outputs[0][0] == call.outputs[0][0]):
            call = replace(call, axes=call.axes or before.axes)
        if before is not None and call.moves:
            call = replace(call, bits=before.bits)
        self.made[outputs[0]] = call
