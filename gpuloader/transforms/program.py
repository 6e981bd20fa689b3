"""Programs: the transforms of a loader, planned for batches of one layout.

From small to large: an `Operation` is one computation, a `Transform` is what the user specifies, a
`BatchProgram` is all operations for one layout, and a `Programmer` draws random numbers for a loader's
transforms and plans its programs.

A program is planned once per layout. Its results lie in the same slot, behind the fields they are computed
from. So running it allocates nothing, and the memory for a batch is known before it is fetched. On a device,
it runs behind the copy, on another stream. On a CPU place, the kernels' twins run where the batch is fetched,
over the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from gpuloader.errors import LoaderError, SampleError, describe_error
from gpuloader.fields.spec import Array, Indices, Spec
from gpuloader.foreign import bits_dtype
from gpuloader.kernels.launching import Kernel
from gpuloader.order.order import Order, Stretch
from gpuloader.order.randomness import Words, as_number, current_draw, derive_key, hash_for_keys
from gpuloader.staging import FieldLayout, Layout, align

# ---------------------------------------------------------------------------------------------------------
# Operations: the single computations of a program, each for the host and for a device


class Operation(Protocol):
    """One computation of a transform, bound to the shapes of its inputs; it allocates nothing."""

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """Shapes and dtypes of the arrays it computes."""

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Compute from NumPy arrays into existing NumPy arrays."""

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        """Launch the same computation over CuPy arrays on a stream."""


RowSource = tuple[tuple[int, ...], np.dtype[Any], Any]
"""Shape and dtype of the rows that a program gathers, and the device array that has all of them.

Instead of the array, None if the program is only used for its layout.
"""


class KernelCall(NamedTuple):
    """A kernel of the package, with all arguments bound except for the arrays."""

    inputs: tuple[str, ...]  # the parameters that take the input arrays
    outputs: tuple[Spec, ...]  # the spec of the one array it computes
    kernel: Kernel[...]
    options: dict[str, Any]  # the other arguments
    bits: str | None = None  # the PyTorch dtype whose bits the result holds; None if it holds numbers
    axes: tuple[int, ...] | None = None  # the order in which the result's dimensions are delivered
    in_place: bool = False  # whether the first input is also the result
    moves: bool = False  # whether the result has the first input's values and is delivered in the same way
    frames: bool = False  # whether samples are clips or views, whose frames the kernel treats as images

    @classmethod
    def settle(
        cls,
        inputs: Mapping[str, Spec],
        kernel: Kernel[...],
        *,
        samples: int | None = None,
        axes: tuple[int, ...] | None = None,
        moves: bool = False,
        frames: bool = False,
        **options: Any,
    ) -> KernelCall:
        """Return the call for `count` samples, by default the first input's; `inputs` are by parameter.

        With `frames`, samples of the first input may have dimensions before those of an image.

        Raises `SampleError` if the kernel does not accept such arrays, or the options do not fit them.
        """
        # The twin is tried without samples. Its result has the shape and dtype of a sample's, and the trial
        # finds everything that the kernel would refuse, before the first batch. So nothing is checked twice.
        empty: dict[str, Array] = {}
        before: tuple[int, ...] = ()
        for name, (shape, kind) in inputs.items():
            samples = shape[0] if samples is None else samples
            if frames and not empty:
                before, shape = shape[1:-3], (0, *shape[-3:])
            # Without rows there is one split.
            empty[name] = np.zeros((int(name == "row_splits"), *shape[1:]), kind)
        try:
            made = kernel.on_host(**empty, **options)
        except (TypeError, ValueError) as error:
            raise SampleError(str(error)) from error
        dtype = options.get("dtype")
        bits = dtype if isinstance(dtype, str) and dtype == "bfloat16" else None
        in_place = id(made) in map(id, empty.values())
        output = (samples or 0, *before, *made.shape[1:]), made.dtype
        if axes is not None:  # those of an image, after the extra dimensions of a clip
            axes = (*range(1 + len(before)), *(axis + len(before) for axis in axes[1:]))
        return cls(tuple(empty), (output,), kernel, options, bits, axes, in_place, moves, bool(before))

    def name(self, inputs: list[Any], outputs: list[Any]) -> dict[str, Any]:
        """Return all arguments by parameter."""
        if self.frames:
            images, *rest = inputs
            inputs = [images.reshape(-1, *images.shape[-3:]), *rest]
            outputs = [one.reshape(-1, *one.shape[-3:]) for one in outputs]
        named = dict(zip(self.inputs, inputs, strict=True)) | self.options
        return named if self.in_place else named | {"out": outputs[0]}

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Run the kernel's twin."""
        self.kernel.on_host(**self.name(inputs, outputs))

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        """Launch the kernel on a stream."""
        self.kernel(**self.name(inputs, outputs), stream=stream)


class Chain(NamedTuple):
    """Several kernel calls, one after the other.

    Arrays are numbered consecutively: the inputs of the chain, its outputs, and its scratch.
    """

    calls: tuple[tuple[KernelCall, tuple[int, ...], int], ...]  # each with its inputs' and output's numbers
    outputs: tuple[Spec, ...]
    scratch: tuple[Spec, ...] = ()  # additional arrays that only the calls write and read
    in_place: bool = False  # whether the outputs are the inputs


UNCHANGED = Chain((), (), in_place=True)
"""What is done to images that workers have already made."""


class Plain:
    """Base class of transforms that draw no random numbers and accept any values."""

    draws = 0
    """Number of random draws per sample: none."""

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:  # noqa: ARG002
        """Return an array without draws."""
        return np.empty((len(words), 0), np.int32)

    def check(self, inputs: Sequence[Array]) -> None:
        """Accept any values."""


class KeepsLayout(Plain):
    """Base class of transforms that keep the layout of images, or make one that is stated."""


# ---------------------------------------------------------------------------------------------------------
# Images that a device decodes between the copy of a batch and its program


class Decoding(NamedTuple):
    """What a device decodes for a program, before the program runs."""

    outputs: tuple[Spec, ...]  # the spec of the pixels: one row per pixel, one image after another
    skips: bool = False  # whether samples whose images cannot be decoded are left out
    codes: int = 0  # the number of the array of codes
    pixels: int = 0  # the number of the array of pixels
    field: str = ""


# ---------------------------------------------------------------------------------------------------------
# Transforms and programs


class Transform(Protocol):
    """A transform of one field, as the user specifies it.

    It may name further fields in an attribute ``others``. Their arrays then follow those of the first field
    as inputs, and the operation computes one array for each field. An operation with a true attribute
    ``in_place`` changes its inputs, which are then its outputs. The specs in an attribute ``scratch`` are
    those of additional arrays that it gets behind its outputs. A method ``find`` takes the names and levels
    of all fields, and may return the name of the field if `field` is None. A method ``adapt`` takes the
    `KernelCall` that made the field, and may return another transform to use instead. An attribute
    ``checked`` may name the fields whose values `check` takes; without it, `check` takes those of all fields.
    """

    @property
    def field(self) -> str | None:
        """Name of the field; None means the first array field."""

    @property
    def draws(self) -> int:
        """Number of random draws per sample; 0 for none."""

    def bind(self, inputs: Sequence[Spec]) -> Operation | Chain | Decoding:
        """Return the computation for a batch; its inputs are the field's arrays, then the draws if any.

        Raises `SampleError` if the transform does not accept the field.
        """

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return each sample's draws, int32 (samples, draws), given random uint64 of the same shape."""

    def check(self, inputs: Sequence[Array]) -> None:
        """Raise `SampleError` if the transform cannot be computed from these values of a field's arrays."""


class Step(NamedTuple):
    """One operation, the numbers of its input and output arrays, and the field and transform it is for."""

    operation: Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    field: str
    title: str

    def take(self, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the inputs and the outputs of all arrays of a program."""
        return [*map(arrays.__getitem__, self.inputs)], [*map(arrays.__getitem__, self.outputs)]


def raise_named(error: Exception, title: str, field: str) -> NoReturn:
    """Raise what a transform raised as a `SampleError` that names the transform and the field."""
    if isinstance(error, SampleError):
        error.field = error.field or field
    if isinstance(error, LoaderError):
        raise error
    raise SampleError(f"{title} raised {describe_error(error)}", field=field) from error


class BatchProgram(NamedTuple):
    """The computations for batches of one layout.

    Its arrays are numbered consecutively, in the order of `whole`.
    """

    copied: Layout  # the slot's contents before the program runs: the staged fields and the draws
    whole: Layout  # the same, followed by the results
    # The arrays of draws: the array's number, the transform that fills it, its field, and that field's specs.
    drawn: tuple[tuple[int, Transform, str, tuple[Spec, ...]], ...]
    # The checks of staged values: the transform that checks, its field, and the numbers of its arrays.
    checked: tuple[tuple[Transform, str, tuple[int, ...]], ...]
    steps: tuple[Step, ...]
    delivered: Layout  # the arrays that the user receives
    levels: tuple[int, ...]  # of the delivered fields; see `StagedBatch`
    decodings: tuple[Decoding, ...] = ()  # what the device decodes before the steps

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """The byte ranges of the slot that are copied to a device: everything but the codes."""
        # nvImageCodec reads encoded files from host memory, so the codes stay in the host slot.
        codes = [self.copied.fields[one.codes] for one in self.decodings]
        edges = [0, *(edge for one in codes for edge in (one.offset, align(one.offset + one.shape[0])))]
        ends = [*edges[1:], self.copied.nbytes]
        return [(start, end) for start, end in zip(edges[::2], ends[::2], strict=True) if start < end]

    def check(self, arrays: list[Array]) -> None:
        """Run the transforms' checks on the staged arrays; a `SampleError` names the field."""
        for transform, name, numbers in self.checked:
            try:
                transform.check([*map(arrays.__getitem__, numbers)])
            except Exception as error:
                raise_named(error, type(transform).__name__, name)

    def run_on_host(self, arrays: list[Array]) -> None:
        """Run on NumPy arrays, one per field of `whole`; raise `SampleError` if a step fails."""
        for step in self.steps:
            try:
                step.operation.on_host(*step.take(arrays))
            except Exception as error:
                raise_named(error, step.title, step.field)

    def run_on_device(self, arrays: list[Any], stream: Any) -> None:
        """Launch on a stream over device arrays; raise `LoaderError` if a step can only run on the host."""
        for step in self.steps:
            if not hasattr(step.operation, "on_device"):
                raise LoaderError(
                    f"{step.title} of field {step.field!r} has no on_device: it can only run on a CPU place"
                )
            step.operation.on_device(*step.take(arrays), stream)


# ---------------------------------------------------------------------------------------------------------
# Random words for transforms: a function of the loader's seed, the epoch, and each sample's key

_DRAWS = 16  # part of the hash key, so that draws are independent of orders
_DRAWN = np.dtype(np.int32)
_AHEAD = 4096  # samples whose words are computed at a time


Purpose = tuple[int, int, tuple[int, ...]]
"""What random words are for: seed and epoch, and the words per sample of each transform that draws."""


def draw_words(purpose: Purpose, keys: Indices) -> list[Array]:
    """Return each transform's words for the samples with these keys, uint64 (samples, width).

    >>> [words.shape for words in draw_words((0, 0, (3, 1)), range(4))]
    [(4, 3), (4, 1)]
    """
    numbers = keys if isinstance(keys, np.ndarray) else [as_number(key) for key in keys]
    samples: Words = np.array(numbers, np.uint64)
    words = hash_for_keys(samples, _derive_keys(purpose))
    _, _, widths = purpose
    ends = np.cumsum(widths).tolist()
    return [words[:, end - width : end] for end, width in zip(ends, widths, strict=True)]


@lru_cache(maxsize=16)
def _derive_keys(purpose: Purpose) -> Sequence[int]:
    seed, epoch, widths = purpose
    return [
        derive_key(seed, epoch, _DRAWS, number, column)
        for number, width in enumerate(widths)
        for column in range(width)
    ]


class DrawnAhead(NamedTuple):
    """Words for consecutive positions of an order, from `first` to the one before `stop`."""

    purpose: Purpose
    order: Order
    first: int
    stop: int
    words: list[Array]  # each transform's words, one row per position

    def has(self, purpose: Purpose, stretch: Stretch) -> bool:
        """Return whether the words of a batch are among these."""
        is_inside = self.first <= stretch.first and stretch.last < self.stop
        return is_inside and self.order is stretch.order and self.purpose == purpose

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
    return DrawnAhead(purpose, order, first, stop, draw_words(purpose, found))


# ---------------------------------------------------------------------------------------------------------
# Planning


@dataclass(eq=False, repr=False)
class Programmer:
    """Plans a loader's programs; each process has its own.

    If only row numbers are staged, `sources` are the device arrays to gather the fields from. If only a span
    of the epoch's order is staged per batch (see `RowStager`), `order` holds the rows in that order, int64,
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
        self, names: Sequence[str], levels: Sequence[int], staged: Layout, *, drawn: bool = False
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
            planner = _Planner(self, names, list(staged.fields), staged.nbytes)
            program = self._made[key] = planner.plan(levels, drawn=drawn)
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
        purpose = now.seed or 0, now.epoch, tuple(one.draws for _, one, _, _ in program.drawn)
        if isinstance(keys, Stretch):
            ahead = self._drawn
            if ahead is None or not ahead.has(purpose, keys):  # another thread may do the same
                ahead = self._drawn = draw_ahead(purpose, keys, ahead)
            drawn = ahead.take(keys)
        else:
            drawn = draw_words(purpose, keys)
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
        drawing = [*filter(attrgetter("draws"), self.programmer.transforms)]
        for one in () if drawn else drawing:
            self._add(((self._count_samples(one), one.draws), _DRAWN))
        draws = iter(range(len(self.fields) - len(drawing), len(self.fields)))
        copied = Layout(tuple(self.fields), self.end)
        if self.programmer.sources is not None:
            self._gather(self.programmer.sources)
        for transform in self.programmer.transforms:
            self._apply(transform, draws, len(copied.fields), levels)
        delivered: list[FieldLayout] = []
        turned: list[tuple[int, tuple[int, ...]]] = []
        left: list[int] = []
        for name in self.names:
            left.append(len(self.present[name]) - 1)
            for number in self.present[name]:
                array, maker = self.fields[number], self.made.get(number)
                if maker is not None and maker.axes is not None:
                    turned.append((len(delivered), maker.axes))
                if self.programmer.native and maker is not None and maker.bits is not None:
                    array = array._replace(dtype=bits_dtype(maker.bits, array.dtype.itemsize))
                delivered.append(array)
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
        from gpuloader.kernels.gather import gather  # late: only caches on a device need it

        count, *rest = self.fields[0].shape
        for name, (shape, dtype, source) in zip(self.names, sources, strict=True):
            spec = (count, *shape), dtype
            self.present[name] = (self._add(spec),)
            # Row numbers have one dimension; a span has two, see `RowStager`.
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
            self.decodings.append(operation._replace(codes=inputs[0], pixels=outputs[0], field=name))
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
                problem = f"no such array field to transform; names are text, and the sample has {self.names}"
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
            call = call._replace(axes=call.axes or before.axes)
        if before is not None and call.moves:
            call = call._replace(bits=before.bits)
        self.made[outputs[0]] = call
