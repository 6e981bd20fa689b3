"""Programs: the transforms of a loader, planned for batches of one layout; `programmer.py` plans them.

A program is planned once per layout. Its results get room in the same slot, after the fields they are
computed from, so running it allocates nothing. On a device, it runs on the copy stream, directly after the
copy. On a CPU place, the kernels' twins run where the batch is fetched, over the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from gpuloader.base.errors import LoaderError, SampleError, describe_error
from gpuloader.fields.spec import Array
from gpuloader.staging.layout import Layout, align
from gpuloader.transforms.decoding import Decoding
from gpuloader.transforms.operations import Computation, Operation, Spec


class Transform(Protocol):
    """A transform of one field, as the user specifies it.

    It may name further fields in an attribute ``others``. Their arrays then follow those of the first as
    inputs, and the operation computes one array for each field. An operation with a true attribute
    ``in_place`` changes its inputs, which are its outputs then; the specs in an attribute ``scratch`` are
    those of further arrays that it gets behind its outputs. A method ``find``, which takes the names and the
    levels of all fields, may return the name of the field if `field` is None. A method ``adapt``, which takes
    the `KernelCall` whose result the field is, may return another transform to use instead. An attribute
    ``checked`` may name the fields whose values `check` takes; without it, `check` takes those of all.
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
def naming(title: str, field: str) -> Iterator[None]:
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
            with naming(type(transform).__name__, field):
                transform.check([arrays[one] for one in numbers])

    def reads(self) -> Iterator[Any]:
        """Yield the arrays outside the slot that the program reads."""
        for step in self.steps:
            yield from getattr(step.operation, "reads", ())

    def run_on_host(self, arrays: list[Array]) -> None:
        """Run on NumPy arrays, one per field of `room`; raise `SampleError` if a step fails."""
        for step in self.steps:
            inputs, outputs = [arrays[one] for one in step.inputs], [arrays[one] for one in step.outputs]
            with naming(step.title, step.field):
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
