"""Operations: the single computations that a program consists of, each for the host and for a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.fields.spec import Array

Spec = tuple[tuple[int, ...], np.dtype[Any]]
"""An array's shape and dtype."""


class Computation(Protocol):
    """A step's computation from input arrays to output arrays that exist already; it allocates nothing."""

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Compute NumPy arrays from NumPy arrays."""

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        """Launch the same computation, of CuPy arrays, on a stream."""


class Operation(Computation, Protocol):
    """One computation of a transform, bound to the shapes of its inputs."""

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """Shapes and dtypes of the arrays it computes."""


@dataclass(frozen=True, slots=True)
class GatherRows:
    """Gathers rows by number from an array that is already on the device.

    Attributes
    ----------
    shape : tuple of int
        The shape of a row.
    dtype : numpy.dtype
        The dtype of its elements.
    source : array or None
        The array with all rows; None if the program is only used for its layout.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: Any = None

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Gather the rows with NumPy."""
        self.source.take(inputs[0], 0, outputs[0], "clip")

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        """Gather the rows with a kernel."""
        from gpuloader.kernels.gather import gather

        gather(self.source, inputs[0], out=outputs[0], stream=stream)


@dataclass(frozen=True, slots=True)
class GatherSpan:
    """Gathers the rows at consecutive positions of an order that is already on the device.

    Attributes
    ----------
    source : array
        The array with all rows.
    order : array or None
        The row numbers in their order, int64; None gathers the rows in sequence.
    """

    source: Any
    order: Any = None

    @property
    def reads(self) -> tuple[Any, ...]:
        """Arrays it reads in addition to its inputs."""
        return (self.source,) if self.order is None else (self.source, self.order)

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Gather the rows with the kernel's twin."""
        from gpuloader.kernels.gather import gather_on_host

        gather_on_host(self.source, self.order, span=inputs[0], out=outputs[0])

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        """Gather the rows with a kernel."""
        from gpuloader.kernels.gather import gather

        gather(self.source, self.order, span=inputs[0], out=outputs[0], stream=stream)


@dataclass(frozen=True, slots=True)
class Permute:
    """Writes the beginning of the seeded permutation of a `Shuffled` order.

    Attributes
    ----------
    count, seed, epoch : int
        The count, seed and epoch of the order.
    """

    count: int
    seed: int
    epoch: int

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:  # noqa: ARG002
        """Write the permutation with the kernel's twin."""
        from gpuloader.kernels.shuffle import shuffle_on_host

        shuffle_on_host(self.count, self.seed, self.epoch, 0, len(outputs[0]), out=outputs[0])

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:  # noqa: ARG002
        """Write the permutation with kernels."""
        from gpuloader.kernels.shuffle import shuffle

        shuffle(self.count, self.seed, self.epoch, 0, len(outputs[0]), out=outputs[0], stream=stream)


def span_specs(count: int) -> tuple[Spec, ...]:
    """Return the specs of a batch of `count` consecutive positions of an order: 16 bytes, whatever the count.

    The first array has no bytes; its shape carries the number of samples. The second holds the first and the
    last position.

    >>> [shape for shape, _ in span_specs(100)]
    [(100, 0), (2,)]
    """
    return ((count, 0), np.dtype(np.uint8)), ((2,), np.dtype(np.int64))


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel and its twin, with all arguments bound except for the arrays.

    Attributes
    ----------
    inputs : tuple of str
        The parameters that take the input arrays.
    outputs : tuple of Spec
        The spec of the one array it computes.
    kernel, twin : callable
        The launcher and the twin; both take the inputs by name, and ``out`` unless the first input is the
        result.
    bits : str or None
        The name of PyTorch's dtype whose bits the result holds; None if it holds numbers.
    axes : tuple of int or None
        The order in which the result's dimensions are delivered; None means their own.
    in_place : bool
        Whether the first input is the result.
    moves : bool
        Whether the result has the values of the first input, so that it is delivered as they would be.
    """

    inputs: tuple[str, ...]
    outputs: tuple[Spec, ...]
    kernel: Callable[..., Any]
    twin: Callable[..., Any]
    bits: str | None = None
    axes: tuple[int, ...] | None = None
    in_place: bool = False
    moves: bool = False

    @classmethod
    def settle(
        cls,
        empty: Mapping[str, Array],
        output: Spec,
        kernel: Callable[..., Any],
        twin: Callable[..., Any],
        axes: tuple[int, ...] | None = None,
        in_place: bool = False,
        moves: bool = False,
        **options: Any,
    ) -> KernelCall:
        """Return the call, after trying its twin on inputs without samples.

        The trial finds whatever the kernel would refuse before the first batch.

        Parameters
        ----------
        empty : mapping of str to numpy.ndarray
            Inputs without samples, by parameter.
        output : Spec
            The spec of the result.
        kernel, twin : callable
            The launcher and the twin.
        axes, in_place, moves : tuple of int or None, bool
            As for the attributes.
        **options : object
            The other arguments of both.

        Raises
        ------
        SampleError
            The kernel does not accept such arrays, or the options do not fit them.
        """
        dtype = options.get("dtype")
        bits = dtype if isinstance(dtype, str) and dtype == "bfloat16" else None
        made = partial(kernel, **options), partial(twin, **options)
        call = cls(tuple(empty), (output,), *made, bits, axes, in_place, moves)
        given = list(empty.values())
        try:
            call.on_host(given, given[:1] if in_place else [no_rows(output)])
        except (TypeError, ValueError) as error:
            raise SampleError(str(error)) from error
        return call

    def name(self, inputs: list[Any], outputs: list[Any]) -> dict[str, Any]:
        """Return the arrays by the parameters that take them."""
        named = dict(zip(self.inputs, inputs, strict=True))
        return named if self.in_place else named | {"out": outputs[0]}

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Run the twin."""
        self.twin(**self.name(inputs, outputs))

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        """Launch the kernel on a stream."""
        self.kernel(**self.name(inputs, outputs), stream=stream)


@dataclass(frozen=True, slots=True)
class Chain:
    """Several kernel calls, one after the other.

    Attributes
    ----------
    calls : tuple of (KernelCall, tuple of int, int)
        Each call, the numbers of its inputs, and the number of its output. Arrays are numbered through: the
        inputs of the chain, its outputs, and its scratch.
    outputs : tuple of Spec
        The specs of the arrays it computes.
    scratch : tuple of Spec
        The specs of further arrays that are written and read by the calls only.
    """

    calls: tuple[tuple[KernelCall, tuple[int, ...], int], ...]
    outputs: tuple[Spec, ...]
    scratch: tuple[Spec, ...] = ()

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Run the twins."""
        arrays = [*inputs, *outputs]
        for call, taken, made in self.calls:
            call.on_host([arrays[one] for one in taken], [arrays[made]])

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        """Launch the kernels on a stream."""
        arrays = [*inputs, *outputs]
        for call, taken, made in self.calls:
            call.on_device([arrays[one] for one in taken], [arrays[made]], stream)


def no_rows(spec: Spec, rows: int = 0) -> Array:
    """Return an array of a spec's dtype and row shape, with no rows, or as many as given.

    >>> no_rows(((32, 3), np.dtype("int16"))).shape
    (0, 3)
    """
    shape, dtype = spec
    return np.zeros((rows, *shape[1:]), dtype)


class Plain:
    """Base class of transforms that draw no random numbers and accept any values."""

    @property
    def draws(self) -> int:
        """Number of random draws per sample: none."""
        return 0

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:  # noqa: ARG002
        """Return an array without draws."""
        return np.empty((len(words), 0), np.int32)

    def check(self, inputs: Sequence[Array]) -> None:
        """Accept any values."""
