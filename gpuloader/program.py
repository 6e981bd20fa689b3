"""Programs: what is done to the fields of a batch where it lands, after its bytes are there.

A program is worked out once for a layout. What it computes gets room behind the fields it computes from, in
the same slot, so nothing is allocated when it runs. On a device it runs on the copy stream, right behind the
copy; on a CPU place its twins run where the batch is fetched, over the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpuloader.errors import SampleError
from gpuloader.permutation import derive_key, hash_positions
from gpuloader.sources.randomness import as_number, current_draw
from gpuloader.spec import Array, Indices
from gpuloader.staging.layout import FieldLayout, Layout, align, arrange

_DRAWS = 16  # hashed along, so that draws have nothing to do with orders

Spec = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of an array."""


class Computation(Protocol):
    """What a step does; the arrays are there, computing allocates nothing."""

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Compute NumPy arrays from NumPy arrays."""

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        """Put the same computation of CuPy arrays on a stream."""


class Operation(Computation, Protocol):
    """One computation of a transform, bound to the shapes it is for."""

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """What it computes."""


@dataclass(frozen=True, slots=True)
class GatherRows:
    """Takes rows, by their numbers, of an array that lies where batches land.

    Attributes
    ----------
    shape : tuple of int
        Of a row.
    dtype : numpy.dtype
        Of its elements.
    source : array or None
        All rows; None where the program is only asked for its layout.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: Any = None

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Take the rows with NumPy."""
        self.source.take(inputs[0], 0, outputs[0], "clip")

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        """Take the rows with a kernel."""
        from gpuloader.kernels.gather import gather

        gather(self.source, inputs[0], out=outputs[0], stream=stream)


class Transform(Protocol):
    """What the user asks to be done to a field."""

    @property
    def field(self) -> str | None:
        """Name of the field; None: the first that is an array."""

    @property
    def draws(self) -> int:
        """Numbers it draws for each sample, 0 for none."""

    def bind(self, inputs: Sequence[Spec]) -> Operation:
        """Return the computation for a batch; it is given a field's arrays, and the draws behind them.

        Raises
        ------
        SampleError
            The field is not what the transform takes.
        """

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return the draws of each sample, int32 (samples, draws), from uint64 (samples, draws) at random."""

    def check(self, inputs: Sequence[Array]) -> None:
        """Look at a field's staged arrays; raise `SampleError` where nothing can be computed from them."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation and the arrays it works on, by their numbers."""

    operation: Computation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What is done to batches of one layout.

    Attributes
    ----------
    copied : Layout
        What lies in the slot before: the staged fields, and what was drawn for them.
    room : Layout
        The same, and what is computed.
    drawn : tuple of (int, Transform, tuple of Spec)
        Arrays to be filled with draws, by whom, and for which arrays.
    checked : tuple of (Transform, tuple of int)
        Who wants to look at which staged arrays, before anything is computed.
    steps : tuple of Step
        In their order.
    delivered : Layout
        What the user gets.
    levels : tuple of int
        Of the delivered fields; see `StagedBatch`.
    """

    copied: Layout
    room: Layout
    drawn: tuple[tuple[int, Transform, tuple[Spec, ...]], ...]
    checked: tuple[tuple[Transform, tuple[int, ...]], ...]
    steps: tuple[Step, ...]
    delivered: Layout
    levels: tuple[int, ...]

    def check(self, arrays: list[Array]) -> None:
        """Have the transforms look at the staged arrays; raise `SampleError` naming the field."""
        for transform, numbers in self.checked:
            try:
                transform.check([arrays[one] for one in numbers])
            except SampleError as error:
                error.field = error.field or transform.field
                raise

    def run_on_host(self, arrays: list[Array]) -> None:
        """Compute over NumPy arrays, one for each field of `room`."""
        for step in self.steps:
            inputs, outputs = [arrays[one] for one in step.inputs], [arrays[one] for one in step.outputs]
            step.operation.on_host(inputs, outputs)

    def run_on_device(self, arrays: list[Any], stream: Any) -> None:
        """Put the computation over device arrays on a stream."""
        for step in self.steps:
            inputs, outputs = [arrays[one] for one in step.inputs], [arrays[one] for one in step.outputs]
            step.operation.on_device(inputs, outputs, stream)


class Programmer:
    """Works out programs; one a process, for one loader.

    Parameters
    ----------
    transforms : sequence of Transform
        In their order.
    sources : sequence of GatherRows or None
        Where the fields come from if only the numbers of their rows are staged: from arrays that already lie
        where batches land.
    """

    def __init__(self, transforms: Sequence[Transform], sources: Sequence[GatherRows] | None = None) -> None:
        self.transforms = tuple(transforms)
        self.sources = None if sources is None else tuple(sources)
        self._made: dict[Any, Program] = {}
        self._last: tuple[Layout | None, Program | None] = None, None

    def __reduce__(self) -> tuple[Any, ...]:
        return Programmer, (self.transforms, self.sources)

    def program(self, names: Sequence[str], levels: Sequence[int], staged: Layout, *, drawn: bool) -> Program:
        """Return the program for a staged layout.

        Parameters
        ----------
        names : sequence of str
            Of the array fields.
        levels : sequence of int
            One an array field.
        staged : Layout
            Where their arrays lie.
        drawn : bool
            Whether `staged` already ends with the draws.

        Raises
        ------
        SampleError
            A transform names a field that is not there, or one it cannot take.
        """
        last, program = self._last
        if last is staged and program is not None:  # to compare layouts takes longer than all else here
            return program
        key = staged, drawn
        program = self._made.get(key)
        if program is None:
            if len(self._made) > 32:  # batches of ever new sizes
                self._made.clear()
            program = self._made[key] = _Writer(self, names, levels, staged, drawn).write()
        self._last = staged, program
        return program

    def fill_draws(self, program: Program, arrays: list[Array], keys: Indices) -> None:
        """Write what the transforms draw for the samples with the given keys, their data set indices.

        A function of the loader's seed, the epoch and the key alone.
        """
        if not program.drawn:
            return
        now = current_draw()
        if isinstance(keys, np.ndarray):
            samples = keys.astype(np.uint64)
        else:
            samples = np.array([as_number(key) for key in keys], np.uint64)
        for number, (position, transform, specs) in enumerate(program.drawn):
            words = np.empty((len(keys), transform.draws), np.uint64)
            for column in range(transform.draws):
                key = derive_key(now.seed or 0, now.epoch, _DRAWS, number, column)
                words[:, column] = hash_positions(samples, key)
            arrays[position][...] = transform.draw(words, specs)


class _Writer:
    """Writes one program."""

    def __init__(
        self,
        programmer: Programmer,
        names: Sequence[str],
        levels: Sequence[int],
        staged: Layout,
        drawn: bool,
    ) -> None:
        self._transforms = transforms = programmer.transforms
        self._sources = programmer.sources
        self._names = list(names)
        self._fields: list[FieldLayout] = list(staged.fields)
        self._end = staged.nbytes
        self._drawing = [one for one in transforms if one.draws]
        if drawn:
            self._draws = list(range(len(self._fields) - len(self._drawing), len(self._fields)))
        else:
            samples = staged.fields[0].shape[0]
            self._draws = [self._add(((samples, one.draws), np.dtype(np.int32))) for one in self._drawing]
        self._copied = Layout(tuple(self._fields), self._end)
        first = 0
        self._present: dict[str, tuple[int, ...]] = {}
        self._steps: list[Step] = []
        if self._sources is not None:
            self._gather(self._sources)
            return
        for name, level in zip(names, levels, strict=True):
            self._present[name] = tuple(range(first, first + 1 + level))
            first += 1 + level

    def _gather(self, sources: Sequence[GatherRows]) -> None:
        count = self._fields[0].shape[0]
        for name, source in zip(self._names, sources, strict=True):
            output = self._add(((count, *source.shape), source.dtype))
            self._present[name] = (output,)
            self._steps.append(Step(source, (0,), (output,)))

    def _add(self, spec: Spec) -> int:
        shape, dtype = spec
        start = align(self._end)
        self._fields.append(FieldLayout(start, shape, dtype))
        self._end = start + arrange((spec,)).nbytes
        return len(self._fields) - 1

    def write(self) -> Program:
        steps = self._steps
        checked: list[tuple[Transform, tuple[int, ...]]] = []
        drawn: list[tuple[int, Transform, tuple[Spec, ...]]] = []
        staged = len(self._copied.fields)
        draws = iter(self._draws)
        for transform in self._transforms:
            name = self._names[0] if transform.field is None else transform.field
            if name not in self._present:
                raise SampleError(f"no field {name!r} to transform; the sample has {self._names}")
            inputs = self._present[name]
            if all(one < staged for one in inputs):
                checked.append((transform, inputs))
            specs = [(self._fields[one].shape, self._fields[one].dtype) for one in inputs]
            if transform.draws:
                position = next(draws)
                inputs = (*inputs, position)
                drawn.append((position, transform, tuple(specs)))
            try:
                operation = transform.bind(specs)
            except SampleError as error:
                error.field = name
                raise
            outputs = tuple(self._add(spec) for spec in operation.outputs)
            steps.append(Step(operation, inputs, outputs))
            self._present[name] = outputs
        delivered = [one for name in self._names for one in self._present[name]]
        return Program(
            self._copied,
            Layout(tuple(self._fields), self._end),
            tuple(drawn),
            tuple(checked),
            tuple(steps),
            Layout(tuple(self._fields[one] for one in delivered), self._end),
            tuple(len(self._present[name]) - 1 for name in self._names),
        )
