"""Operations: what one step of a program computes, on the host or on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.fields.spec import Array

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


@dataclass(frozen=True, slots=True)
class GatherSpan:
    """Takes the rows at consecutive positions of an order that lies where batches land.

    Attributes
    ----------
    source : array
        All rows.
    order : array or None
        The rows in their order, int64; None: they are taken in sequence.
    """

    source: Any
    order: Any = None

    @property
    def reads(self) -> tuple[Any, ...]:
        """What it reads beside its inputs."""
        return (self.source,) if self.order is None else (self.source, self.order)

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Take the rows with the twin."""
        from gpuloader.kernels.gather import gather_on_host

        gather_on_host(self.source, self.order, span=inputs[0], out=outputs[0])

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        """Take the rows with a kernel."""
        from gpuloader.kernels.gather import gather

        gather(self.source, self.order, span=inputs[0], out=outputs[0], stream=stream)


@dataclass(frozen=True, slots=True)
class Permute:
    """Writes the beginning of a seeded permutation, that of `Shuffled` orders.

    Attributes
    ----------
    count, seed, epoch : int
        As those of the order.
    """

    count: int
    seed: int
    epoch: int

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:  # noqa: ARG002
        """Write it with the twin."""
        from gpuloader.kernels.shuffle import shuffle_on_host

        shuffle_on_host(self.count, self.seed, self.epoch, 0, len(outputs[0]), out=outputs[0])

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:  # noqa: ARG002
        """Write it with kernels."""
        from gpuloader.kernels.shuffle import shuffle

        shuffle(self.count, self.seed, self.epoch, 0, len(outputs[0]), out=outputs[0], stream=stream)


def span_specs(count: int) -> tuple[Spec, ...]:
    """Return what is staged of a batch at consecutive positions of an order: 16 bytes, however large it is.

    An array without bytes, which says how many samples there are, and the first and the last position.

    >>> [shape for shape, _ in span_specs(100)]
    [(100, 0), (2,)]
    """
    return ((count, 0), np.dtype(np.uint8)), ((2,), np.dtype(np.int64))


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel and its twin, with everything but the arrays settled.

    Attributes
    ----------
    outputs : tuple of Spec
        The one array it computes.
    kernel, twin : callable
        Take the inputs, and ``out``.
    """

    outputs: tuple[Spec, ...]
    kernel: Callable[..., Any]
    twin: Callable[..., Any]

    @classmethod
    def settle(
        cls, empty: Sequence[Array], output: Spec, kernel: Callable[..., Any], twin: Callable[..., Any]
    ) -> KernelCall:
        """Return the call, its twin tried on no samples: what it refuses is known before any batch is.

        Parameters
        ----------
        empty : sequence of numpy.ndarray
            The inputs, of no samples.
        output : Spec
            What it computes.
        kernel, twin : callable
            As the attributes.

        Raises
        ------
        SampleError
            The kernel does not take such arrays, or what it is told beside them does not suit them.
        """
        shape, dtype = output
        try:
            twin(*empty, out=np.zeros((0, *shape[1:]), dtype))
        except (TypeError, ValueError) as error:
            raise SampleError(str(error)) from error
        return cls((output,), kernel, twin)

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Run the twin."""
        self.twin(*inputs, out=outputs[0])

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        """Launch the kernel on a stream."""
        self.kernel(*inputs, out=outputs[0], stream=stream)


def no_rows(spec: Spec, rows: int = 0) -> Array:
    """Return an array like those of a spec, with no rows or so few.

    >>> no_rows(((32, 3), np.dtype("int16"))).shape
    (0, 3)
    """
    shape, dtype = spec
    return np.zeros((rows, *shape[1:]), dtype)


class Plain:
    """What a transform does that draws nothing and takes any content."""

    @property
    def draws(self) -> int:
        """Numbers drawn for each sample: none."""
        return 0

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:  # noqa: ARG002
        """Return no draws."""
        return np.empty((len(words), 0), np.int32)

    def check(self, inputs: Sequence[Array]) -> None:
        """Accept any content."""
