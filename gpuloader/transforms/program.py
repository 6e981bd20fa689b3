"""Programs: the transforms of a loader, planned for batches of one layout.

A program is planned once per layout. Its results get room in the same slot, after the fields they are
computed from, so running it allocates nothing. On a device, it runs on the copy stream, directly after the
copy. On a CPU place, the kernels' twins run where the batch is fetched, over the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from gpuloader.base.errors import LoaderError, SampleError, describe_error
from gpuloader.fields.spec import Array, Indices
from gpuloader.fields.tensors import bits_dtype
from gpuloader.order.randomness import current_draw
from gpuloader.order.stretch import Stretch
from gpuloader.staging.layout import FieldLayout, Layout, align, arrange
from gpuloader.transforms.decoding import Decoding
from gpuloader.transforms.draws import DrawnAhead, Purpose, draw_ahead
from gpuloader.transforms.operations import (
    Computation,
    GatherRows,
    GatherSpan,
    KernelCall,
    Operation,
    Spec,
)


class Transform(Protocol):
    """A transform of one field, as the user specifies it.

    It may name further fields in an attribute ``others``. Their arrays then follow those of the first as
    inputs, and the operation computes one array for each field. An operation with a true attribute
    ``in_place`` changes its inputs, which are its outputs then. A method ``find``, which takes the names and
    the levels of all fields, may return the name of the field if `field` is None.
    """

    @property
    def field(self) -> str | None:
        """Name of the field; None means the first array field."""

    @property
    def draws(self) -> int:
        """Number of random draws per sample; 0 for none."""

    def bind(self, inputs: Sequence[Spec]) -> Operation | Decoding:
        """Return the computation for a batch; its inputs are the field's arrays, then the draws if any.

        Raises
        ------
        SampleError
            The transform does not accept the field.
        """

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return each sample's draws, int32 (samples, draws), given random uint64 of the same shape."""

    def check(self, inputs: Sequence[Array]) -> None:
        """Raise `SampleError` if the transform cannot be computed from these values of a field's arrays."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation, the numbers of its input and output arrays, and the field and transform it is for."""

    operation: Computation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    field: str
    title: str


@contextmanager
def _named(title: str, field: str) -> Iterator[None]:
    """Turn what a transform raises into a `SampleError` that names the transform and the field."""
    try:
        yield
    except SampleError as error:
        error.field = error.field or field
        raise
    except LoaderError:
        raise
    except Exception as error:
        raise SampleError(f"{title} raised {describe_error(error)}", field=field) from error


@dataclass(frozen=True, slots=True)
class Program:
    """The computations for batches of one layout.

    Attributes
    ----------
    copied : Layout
        The slot's contents before the program runs: the staged fields and the draws.
    room : Layout
        The same, followed by the results.
    drawn : tuple of (int, Transform, str, tuple of Spec)
        The arrays of draws: the array's number, the transform that fills it, its field, and that field's
        specs.
    checked : tuple of (Transform, str, tuple of int)
        The checks of staged values: the transform that checks, its field, and the numbers of its arrays.
    steps : tuple of Step
        The steps in order.
    delivered : Layout
        The arrays that the user receives.
    levels : tuple of int
        The levels of the delivered fields; see `StagedBatch`.
    decodings : tuple of Decoding
        What the device decodes before the steps.
    """

    copied: Layout
    room: Layout
    drawn: tuple[tuple[int, Transform, str, tuple[Spec, ...]], ...]
    checked: tuple[tuple[Transform, str, tuple[int, ...]], ...]
    steps: tuple[Step, ...]
    delivered: Layout
    levels: tuple[int, ...]
    decodings: tuple[Decoding, ...] = ()

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """The parts of the slot that are copied to a device, from and to which byte: all but the codes."""
        codes = [self.copied.fields[one.codes] for one in self.decodings]
        edges = [0, *(edge for one in codes for edge in (one.offset, align(one.offset + one.shape[0])))]
        ends = [*edges[1:], self.copied.nbytes]
        return [(start, end) for start, end in zip(edges[::2], ends[::2], strict=True) if start < end]

    def check(self, arrays: list[Array]) -> None:
        """Run the transforms' checks on the staged arrays; a `SampleError` names the field."""
        for transform, field, numbers in self.checked:
            with _named(type(transform).__name__, field):
                transform.check([arrays[one] for one in numbers])

    def reads(self) -> Iterator[Any]:
        """Yield the arrays outside the slot that the program reads."""
        for step in self.steps:
            yield from getattr(step.operation, "reads", ())

    def run_on_host(self, arrays: list[Array]) -> None:
        """Run on NumPy arrays, one per field of `room`; raise `SampleError` if a step fails."""
        for step in self.steps:
            inputs, outputs = [arrays[one] for one in step.inputs], [arrays[one] for one in step.outputs]
            with _named(step.title, step.field):
                step.operation.on_host(inputs, outputs)

    def run_on_device(self, arrays: list[Any], stream: Any) -> None:
        """Launch on a stream over device arrays; raise `LoaderError` if a step can only run on the host."""
        for step in self.steps:
            if not hasattr(step.operation, "on_device"):
                raise LoaderError(
                    f"{step.title} of field {step.field!r} has no on_device: it can only run on a CPU place"
                )
            inputs, outputs = [arrays[one] for one in step.inputs], [arrays[one] for one in step.outputs]
            step.operation.on_device(inputs, outputs, stream)


class Programmer:
    """Plans a loader's programs; each process has its own.

    Parameters
    ----------
    transforms : sequence of Transform
        The transforms in order.
    sources : sequence of GatherRows or None
        The arrays on the device to gather the fields from, if only row numbers are staged.
    order : array or None
        The rows in the epoch's order, int64, on the device, if only a span of it is staged per batch; see
        `span_specs`. None means that spans are of the rows in sequence.
    native : bool
        Whether results in bfloat16 are delivered in PyTorch's dtype, and not as bits in uint16. It may change
        before the first program.
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        sources: Sequence[GatherRows] | None = None,
        order: Any = None,
        *,
        native: bool = False,
    ) -> None:
        self.native = native
        self.transforms = tuple(transforms)
        self.sources = None if sources is None else tuple(sources)
        self.order = order
        self._made: dict[Any, Program] = {}
        self._last: tuple[Layout | None, Program | None] = None, None
        self._drawn: DrawnAhead | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Programmer, native=self.native), (self.transforms, self.sources, self.order)

    def program(self, names: Sequence[str], levels: Sequence[int], staged: Layout, *, drawn: bool) -> Program:
        """Return the program for a staged layout.

        Parameters
        ----------
        names : sequence of str
            The names of the array fields.
        levels : sequence of int
            The level of each array field.
        staged : Layout
            The layout of their arrays.
        drawn : bool
            Whether `staged` already ends with the draws.

        Raises
        ------
        SampleError
            A transform names a field that does not exist, or does not accept its field.
        """
        last, program = self._last
        if last is staged and program is not None:  # comparing layouts would take longer than all else here
            return program
        key = staged, drawn, tuple(names), tuple(levels)
        program = self._made.get(key)
        if program is None:
            if len(self._made) > 32:  # every batch may have another size or shape
                self._made.clear()
            program = self._made[key] = _Planner(self, names, levels, staged, drawn).plan()
        self._last = staged, program
        return program

    def fill_draws(self, program: Program, arrays: list[Array], keys: Indices | Stretch) -> None:
        """Write the transforms' draws for the samples with the given keys, which are their dataset indices.

        The draws depend on nothing but the loader's seed, the epoch and the key.
        """
        if not program.drawn:
            return
        now = current_draw()
        purpose = Purpose(now.seed or 0, now.epoch, tuple(one.draws for _, one, _, _ in program.drawn))
        drawn = self._draw(purpose, keys) if isinstance(keys, Stretch) else purpose.draw(keys)
        for (position, transform, field, specs), words in zip(program.drawn, drawn, strict=True):
            try:
                target = arrays[position]
                target[...] = transform.draw(words[: len(target)], specs)
            except Exception:
                with _named(type(transform).__name__, field):
                    raise

    def _draw(self, purpose: Purpose, stretch: Stretch) -> list[Array]:
        ahead = self._drawn
        if ahead is None or not ahead.has(purpose, stretch):  # another thread may do the same
            ahead = self._drawn = draw_ahead(purpose, stretch, ahead)
        return ahead.take(stretch)


class _Planner:
    """Plans one program."""

    def __init__(
        self,
        programmer: Programmer,
        names: Sequence[str],
        levels: Sequence[int],
        staged: Layout,
        drawn: bool,
    ) -> None:
        self._native = programmer.native
        self._made: dict[int, KernelCall] = {}
        self._transforms = transforms = programmer.transforms
        self._sources = programmer.sources
        self._names = list(names)
        self._levels = tuple(levels)
        self._fields: list[FieldLayout] = list(staged.fields)
        self._present: dict[str, tuple[int, ...]] = {}
        first = 0
        for name, level in zip(names, levels, strict=True):
            self._present[name] = tuple(range(first, first + 1 + level))
            first += 1 + level
        self._end = staged.nbytes
        self._drawing = [one for one in transforms if one.draws]
        if drawn:
            self._draws = list(range(len(self._fields) - len(self._drawing), len(self._fields)))
        else:
            draws = [((self._count_samples(one), one.draws), np.dtype(np.int32)) for one in self._drawing]
            self._draws = list(map(self._add, draws))
        self._copied = Layout(tuple(self._fields), self._end)
        self._steps: list[Step] = []
        if self._sources is not None:
            self._gather(self._sources, programmer.order)

    def _gather(self, sources: Sequence[GatherRows], order: Any) -> None:
        count, *rest = self._fields[0].shape
        for name, source in zip(self._names, sources, strict=True):
            output = self._add(((count, *source.shape), source.dtype))
            self._present[name] = (output,)
            if rest:  # a span; see `span_specs`
                step = Step(GatherSpan(source.source, order), (1,), (output,), name, "gather")
            else:
                step = Step(source, (0,), (output,), name, "gather")
            self._steps.append(step)

    def _count_samples(self, transform: Transform) -> int:
        """Return the number of samples of a transform's field; a ragged one's first array has the steps."""
        if self._sources is not None:
            return self._fields[0].shape[0]
        first, *splits = self._present[self._find(transform.field)]
        if splits:
            return self._fields[splits[0]].shape[0] - 1
        shape = self._fields[first].shape
        return shape[0] if shape else 0

    def _add(self, spec: Spec) -> int:
        shape, dtype = spec
        start = align(self._end)
        self._fields.append(FieldLayout(start, shape, dtype))
        self._end = start + arrange((spec,)).nbytes
        return len(self._fields) - 1

    def plan(self) -> Program:
        checked: list[tuple[Transform, str, tuple[int, ...]]] = []
        drawn: list[tuple[int, Transform, str, tuple[Spec, ...]]] = []
        decodings: list[Decoding] = []
        staged = len(self._copied.fields)
        draws = iter(self._draws)
        for transform in self._transforms:
            title = type(transform).__name__
            find = getattr(transform, "find", None)
            field = transform.field if find is None else find(self._names, self._levels)
            names = [self._find(one) for one in (field, *getattr(transform, "others", ()))]
            name, inputs = names[0], tuple(one for name in names for one in self._present[name])
            if all(one < staged for one in inputs):
                checked.append((transform, name, inputs))
            specs = tuple((self._fields[one].shape, self._fields[one].dtype) for one in inputs)
            with _named(title, name):
                operation = transform.bind(specs)
                in_place = getattr(operation, "in_place", False)
                outputs = inputs if in_place else tuple(self._add(spec) for spec in operation.outputs)
            if transform.draws:
                position = next(draws)
                inputs = (*inputs, position)
                drawn.append((position, transform, name, specs))
            if isinstance(operation, Decoding):
                decodings.append(replace(operation, codes=inputs[0], pixels=outputs[0], field=name))
                self._present[name] = (*outputs, *inputs[1:-1])
                continue
            if any(self._fields[one].dtype.hasobject for one in outputs):
                # A slot would hold their addresses, which outlive the objects and mean nothing elsewhere.
                raise SampleError(f"{title} has an output of dtype object; a batch holds numbers", field=name)
            self._steps.append(Step(operation, inputs, outputs, name, title))
            if len(names) == 1:
                self._present[name] = outputs
            else:
                self._present.update((name, (one,)) for name, one in zip(names, outputs, strict=True))
            if isinstance(operation, KernelCall):
                self._made[outputs[0]] = self._keep_axes(operation, inputs[0])
        delivered = [one for name in self._names for one in self._present[name]]
        return Program(
            self._copied,
            Layout(tuple(self._fields), self._end),
            tuple(drawn),
            tuple(checked),
            tuple(self._steps),
            Layout(tuple(map(self._deliver, delivered)), self._end, tuple(self._list_turned(delivered))),
            tuple(len(self._present[name]) - 1 for name in self._names),
            tuple(decodings),
        )

    def _keep_axes(self, operation: KernelCall, source: int) -> KernelCall:
        """Return an operation whose result is turned like its input, if that is and has the same shape."""
        before = self._made.get(source)
        if before is None or operation.axes is not None or before.outputs[0][0] != operation.outputs[0][0]:
            return operation
        return replace(operation, axes=before.axes)

    def _deliver(self, number: int) -> FieldLayout:
        """Return an array as it is delivered."""
        field, operation = self._fields[number], self._made.get(number)
        if not self._native or operation is None or operation.bits is None:
            return field
        return replace(field, dtype=bits_dtype(operation.bits, field.dtype.itemsize))

    def _list_turned(self, delivered: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        for position, number in enumerate(delivered):
            operation = self._made.get(number)
            if operation is not None and operation.axes is not None:
                yield position, operation.axes

    def _find(self, field: str | None) -> str:
        """Return the name of a transform's field."""
        name = self._names[0] if field is None and self._names else field
        if name is None or name not in self._present:
            problem = f"no such array field to transform; the sample has {self._names}"
            raise SampleError(problem, field=name)
        return name
