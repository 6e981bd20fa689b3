"""Hand-over: batches as arrays of the framework that computes on them, without a copy.

On a CPU place the framework's tensors lie in the slot itself; their memory is the user's as long as any of
them lives. On a GPU they lie in the device slot, and what is waited for, before and after, is the stream on
which that framework computes: it waits for the copy, and the next copy waits for what it has been given.

JAX frees an array on a GPU while kernels that read it may still be queued, on streams it does not tell. There
alone a batch is copied once more, on the device, and its slot is kept until that copy has run.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gpuloader.base.checks import check_word
from gpuloader.base.errors import LoaderError, PlaceError
from gpuloader.devices.base import Device, Event, Stream

OUTPUTS = ("numpy", "cupy", "torch", "jax", "paddle")
_PACKAGES = {"paddle": "paddlepaddle"}


@dataclass(frozen=True, slots=True)
class ForeignStream:
    """A stream of another library.

    Attributes
    ----------
    ptr : int
        Its CUDA handle.
    owner : object
        Whose stream it is: the handle is good as long as that lives.
    """

    ptr: int
    owner: object = None


class Output(Protocol):
    """How the batches of one device reach their user."""

    def stream(self) -> Stream:
        """Return the stream on which the calling thread will use the next batch."""

    def convert(self, arrays: list[Any], ready: Event | None) -> list[Any]:
        """Return the device's arrays as the user's; `ready` is when their copy has run."""


class NativeOutput:
    """The device's own arrays: NumPy's on a host, CuPy's on a GPU."""

    def __init__(self, device: Device, stream: Callable[[], Stream] | None = None) -> None:
        self._stream = stream or device.consumer_stream

    def stream(self) -> Stream:
        """Return the device's consumer stream, or the user's own."""
        return self._stream()

    def convert(self, arrays: list[Any], ready: Event | None) -> list[Any]:  # noqa: ARG002
        """Return the arrays as they are."""
        return arrays


class ForeignOutput:
    """Tensors of a framework that drops them when nothing refers to them any more, torch or Paddle.

    Parameters
    ----------
    wrap : callable
        Makes one tensor of one array, over the same memory.
    stream : callable
        Gives the stream the framework computes on.
    """

    def __init__(self, wrap: Callable[[Any], Any], stream: Callable[[], Stream]) -> None:
        self._wrap = wrap
        self._stream = stream

    def stream(self) -> Stream:
        """Return the stream the framework computes on now, in the calling thread."""
        return self._stream()

    def convert(self, arrays: list[Any], ready: Event | None) -> list[Any]:  # noqa: ARG002
        """Return one tensor an array; raise `LoaderError` where the framework does not take it."""
        return [_wrapped(self._wrap, array) for array in arrays]


class CopiedOutput:
    """Arrays of a framework whose streams nobody knows: JAX on a GPU.

    The host waits for the copy to the device, which has run since the step before, and the framework copies
    each array once more, in its own time; the slot is kept until it has.

    Parameters
    ----------
    device : Device
        Where the arrays lie.
    wrap : callable
        Makes one array of the framework of one of ours, over the same memory.
    copy : callable
        Copies one, asynchronously; the copy has ``is_ready``.
    """

    def __init__(self, device: Device, wrap: Callable[[Any], Any], copy: Callable[[Any], Any]) -> None:
        self._device = device
        self._wrap = wrap
        self._copy = copy
        self._under_way: deque[tuple[Any, Any, Any]] = deque()

    def stream(self) -> Stream:
        """Return the device's own consumer stream; nothing of the framework runs there."""
        return self._device.consumer_stream()

    def convert(self, arrays: list[Any], ready: Event | None) -> list[Any]:
        """Return copies; what they are made from stays until they are made."""
        while self._under_way and self._under_way[0][-1].is_ready():
            self._under_way.popleft()
        if ready is not None:
            self._device.synchronize(ready)
        copies = []
        for array in arrays:
            source = _wrapped(self._wrap, array)
            copies.append(self._copy(source))
            self._under_way.append((array, source, copies[-1]))  # wrapping may convert, and let go of `array`
        return copies


def check_output(name: object) -> str | None:
    """Return the name of an output if it is one, or None.

    Raises
    ------
    ValueError
        It is not.

    >>> check_output("torch"), check_output(None)
    ('torch', None)
    """
    check_word("output", name, OUTPUTS, optional=True)
    return None if name is None else str(name)


def open_output(name: str | None, device: Device, stream: object = None) -> Output:
    """Return how the batches of a device reach their user.

    Parameters
    ----------
    name : str or None
        One of `OUTPUTS`; None for the device's own arrays.
    device : Device
        Where batches land.
    stream : object
        What the batches are used on, with ``__cuda_stream__`` (CuPy's, torch's, cuda.core's streams have
        it), or a callable that gives such a stream; None: the framework's current one.

    Raises
    ------
    ImportError
        The framework is not installed.
    PlaceError
        NumPy's arrays are wanted of a GPU, or CuPy's of a host.
    """
    own = None if stream is None else _own_stream(stream)
    if name is None or name == ("numpy" if device.direct else "cupy"):
        return NativeOutput(device, own)
    if name in ("numpy", "cupy"):
        wanted = "a CPU place" if name == "numpy" else "a GPU"
        raise PlaceError(f"output={name!r} is for batches on {wanted}; these land on {device.name}")
    index: int | None = getattr(device, "index", None)
    if index is None and not device.direct:
        raise PlaceError(
            f"output={name!r} is for batches on a CPU place or a GPU; these land on {device.name}"
        )
    module = _import(name)
    wrap = _wrapper(name, module, device)
    if device.direct:
        return ForeignOutput(wrap, device.consumer_stream)
    if name == "jax":
        return CopiedOutput(device, wrap, lambda array: module.numpy.array(array, copy=True))
    streams = module.cuda if name == "torch" else module.device.cuda

    def current() -> Stream:
        stream = streams.current_stream(index)
        return ForeignStream(stream.cuda_stream, stream)

    return ForeignOutput(wrap, own or current)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"output={name!r} needs {name}, which is not importable ({error}); install it, as a rule with "
            f"pip install {_PACKAGES.get(name, name)}, or leave output out",
            name=name,
        ) from error


def _wrapped(wrap: Callable[[Any], Any], array: Any) -> Any:
    try:
        return wrap(array)
    except Exception as error:
        raise LoaderError(
            f"an array of {array.dtype} and shape {array.shape} cannot be handed over: "
            f"{type(error).__name__}: {error}"
        ) from error


def _wrapper(name: str, module: Any, device: Device) -> Callable[[Any], Any]:
    """Return what makes a framework's tensor over an array's memory; the tensor keeps the array alive."""
    if name == "torch" and device.direct:
        return module.from_numpy  # type: ignore[no-any-return]
    if name == "jax":
        return importlib.import_module("jax.dlpack").from_dlpack  # type: ignore[no-any-return]
    from_dlpack: Callable[[Any], Any] = importlib.import_module(f"{name}.utils.dlpack").from_dlpack
    if device.direct:
        return from_dlpack
    # -1: no ordering by CuPy, which would order against its own current stream. The lane has seen to it.
    return lambda array: from_dlpack(array.__dlpack__(stream=-1))


def _own_stream(stream: object) -> Callable[[], Stream]:
    if hasattr(stream, "__cuda_stream__"):
        foreign = _foreign(stream)
        return lambda: foreign
    if callable(stream):
        return lambda: _foreign(stream())
    raise TypeError(
        f"stream must have __cuda_stream__, or be a function that gives such a stream, got "
        f"{type(stream).__name__}"
    )


def _foreign(stream: object) -> ForeignStream:
    return ForeignStream(_handle(stream), stream)


def _handle(stream: Any) -> int:
    """Return the CUDA handle of a stream; the protocol is ``(version, handle)``, version 0."""
    try:
        version, handle = stream.__cuda_stream__()
        ptr = int(handle)
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError(f"{type(stream).__name__} gives no CUDA stream: {error}") from error
    if version != 0:
        raise TypeError(f"{type(stream).__name__} speaks version {version} of __cuda_stream__, expected 0")
    return ptr
