"""Arrays of the library that batches came in: which one that is, and how it is delivered."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from gpuloader.checks import check_word
from gpuloader.devices.base import Device, DeviceCalls, Event, Stream
from gpuloader.devices.cuda_failures import tell_capture
from gpuloader.errors import LoaderError, PlaceError
from gpuloader.foreign import (
    ForeignStream,
    as_stream,
    describe_dtype,
    find_raw_stream,
    tensor_over,
    torch_name,
)

# Delivers batches as tensors of torch, JAX or Paddle, without a copy.
#
# On a CPU place, the tensors lie in the slot itself, and the user owns its memory as long as any of them
# lives. On a GPU, they lie in the device slot. The framework's stream waits for the copy into the slot, and
# the next copy into the slot waits for the work on that stream.
#
# JAX on a GPU is the exception. It frees an array while kernels that read it may still be queued on streams
# that it does not expose. So each batch is copied once more, on the device, and its slot is kept until that
# copy has run.

OUTPUTS = ("numpy", "cupy", "torch", "jax", "paddle")
_PACKAGES = {"paddle": "paddlepaddle"}
_CUDA = 2  # DLPack's number for the memory of a GPU


class Output(Protocol):
    """Converts the batches of one device for the user."""

    def stream(self) -> Stream:
        """Return the stream on which the calling thread will use the next batch; None if not known yet."""

    def convert(self, arrays: list[Any], ready: Event | None) -> list[Any]:
        """Return the device's arrays as the user's; `ready` is the event after their copy."""


class NativeOutput:
    """Delivers the device's own arrays: NumPy's on the host, CuPy's on a GPU.

    Attributes
    ----------
    stream : callable
        Returns the device's consumer stream, or the user's stream if one was passed.
    """

    def __init__(self, device: Device, stream: Callable[[], Stream] | None = None) -> None:
        self.stream = stream or device.consumer_stream

    def convert(self, arrays: list[Any], ready: Event | None) -> list[Any]:  # noqa: ARG002
        """Return the arrays unchanged; raise `LoaderError` for bits of a dtype that only torch has."""
        for array in arrays:
            if array.dtype.names is not None and torch_name(array.dtype) is not None:
                raise LoaderError(
                    f"a batch of {describe_dtype(array.dtype)} cannot be delivered as an array of "
                    f"{type(array).__module__}, which has no such dtype: pass output='torch', or convert the "
                    "samples, e.g. with tensor.float()"
                )
        return arrays


class ForeignOutput:
    """Delivers tensors of torch, Paddle, or JAX on the host, which keep their memory as long as they need it.

    Parameters
    ----------
    wrap : callable
        Returns a tensor over an array's memory.
    stream : callable
        As the attribute.

    Attributes
    ----------
    stream : callable
        Returns the stream that the framework currently computes on in the calling thread.
    """

    def __init__(self, wrap: Callable[[Any], Any], stream: Callable[[], Stream]) -> None:
        self._wrap = wrap
        self.stream = stream

    def convert(self, arrays: list[Any], ready: Event | None) -> list[Any]:  # noqa: ARG002
        """Return one tensor per array; raise `LoaderError` if the framework does not accept an array."""
        return [_wrapped(self._wrap, array) for array in arrays]


class CopiedOutput:
    """Delivers copies, for a framework whose streams are not accessible: JAX on a GPU.

    The host waits for the copy to the device, which was started a step earlier. The framework then copies
    each array once more, asynchronously; the slot is kept until that copy has run.

    Parameters
    ----------
    device : Device
        The device that the arrays are on.
    wrap : callable
        Returns one of the framework's arrays over the memory of one of ours.
    copy : callable
        Copies a framework's array asynchronously; the copy has a method ``is_ready``.
    """

    def __init__(self, device: Device, wrap: Callable[[Any], Any], copy: Callable[[Any], Any]) -> None:
        self._device = device
        self._wrap = wrap
        self._copy = copy
        self._in_flight: deque[tuple[Any, Any, Any]] = deque()

    def stream(self) -> Stream:
        """Return the device's own consumer stream; the framework runs nothing on it."""
        return self._device.consumer_stream()

    def convert(self, arrays: list[Any], ready: Event | None) -> list[Any]:
        """Return copies of the arrays, and keep the arrays until the copies have run."""
        while self._in_flight and self._in_flight[0][-1].is_ready():
            self._in_flight.popleft()
        if ready is not None:
            self._device.synchronize(ready)
        copies = []
        for array in arrays:
            source = _wrapped(self._wrap, array)
            copies.append(self._copy(source))
            self._in_flight.append((array, source, copies[-1]))  # keep `array` too: wrapping may convert it
        return copies


def find_capture(device: DeviceCalls, stream: Stream) -> LoaderError | None:
    """Return the error for a batch that is requested while the calling thread captures a graph, or None.

    It asks for the states of streams alone, because many other calls, by any thread, would invalidate the
    capture. Those are `stream`, on which the batch will be used, and CuPy's and PyTorch's current ones.
    """
    if device.direct or not device.is_capturing(stream):
        return None
    return tell_capture(device.name, "its stream is being captured")


def check_output(name: object) -> str | None:
    """Return the name of a known output, or None.

    Raises
    ------
    ValueError
        The name is not one of `OUTPUTS`.

    >>> check_output("torch"), check_output(None)
    ('torch', None)
    """
    check_word("output", name, OUTPUTS, optional=True)
    return None if name is None else str(name)


def open_output(name: str | None, device: Device, stream: object = None) -> Output:
    """Return the output that converts the batches of a device.

    Parameters
    ----------
    name : str or None
        One of `OUTPUTS`; None delivers the device's own arrays.
    device : Device
        The device that batches are on.
    stream : object
        The stream on which the user computes: an object with ``__cuda_stream__``, such as a stream of CuPy,
        torch or cuda.core, or a callable that returns one. None means the framework's current stream.

    Raises
    ------
    ImportError
        The framework is not installed.
    PlaceError
        The output does not support the device, such as NumPy arrays on a GPU or CuPy arrays on the host.
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
    wrap = _wrapper(name, device)
    if device.direct:
        return ForeignOutput(wrap, device.consumer_stream)
    if name == "jax":
        return CopiedOutput(device, wrap, lambda array: module.numpy.array(array, copy=True))
    assert index is not None
    return ForeignOutput(wrap, own or _current_stream(name, module, index))


def _current_stream(name: str, module: Any, index: int) -> Callable[[], Stream]:
    """Return a function that returns the framework's current stream on a device, in the calling thread."""
    latest: ForeignStream | None = None
    ask = find_raw_stream(module) if name == "torch" else None

    def current() -> Stream:
        nonlocal latest
        found = latest
        if ask is None or found is None:  # the first call initializes PyTorch
            streams = module.cuda if name == "torch" else module.device.cuda
            stream = streams.current_stream(index)
            found = latest = ForeignStream(stream.cuda_stream, stream)
        elif (ptr := ask(index)) != found.ptr:
            found = latest = ForeignStream(ptr)
        return found

    return current


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"output={name!r} needs {name}, which is not importable ({error}); install it, usually with "
            f"pip install {_PACKAGES.get(name, name)}, or omit output",
            name=name,
        ) from error


def _wrapped(wrap: Callable[[Any], Any], array: Any) -> Any:
    try:
        return wrap(array)
    except Exception as error:
        raise LoaderError(
            f"the framework does not accept an array of dtype {array.dtype} and shape {array.shape}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _wrapper(name: str, device: Device) -> Callable[[Any], Any]:
    """Return a function that makes a tensor over an array's memory; the tensor keeps the array alive."""
    if name == "torch" and device.direct:
        return tensor_over
    if name == "jax":
        imported: Callable[[Any], Any] = importlib.import_module("jax.dlpack").from_dlpack
        index = getattr(device, "index", None)
        return imported if device.direct else lambda array: imported(_Export(array, index))
    from_dlpack: Callable[[Any], Any] = importlib.import_module(f"{name}.utils.dlpack").from_dlpack
    if device.direct:
        return from_dlpack
    if name == "torch":  # what its function ends in, for a capsule
        internals = getattr(importlib.import_module(name), "_C", None)
        from_dlpack = getattr(internals, "_from_dlpack", from_dlpack)
    # -1: CuPy must not order the array against its own current stream; the lane orders streams itself.
    unordered: Callable[[Any], Any] = lambda array: from_dlpack(array.__dlpack__(stream=-1))  # noqa: E731
    if name == "torch":
        return lambda array: tensor_over(array, unordered)
    return unordered


class _Export:
    """An array of CuPy that JAX may read at once, because the host has waited for its copy.

    JAX asks where an array is, and has it ordered on its own stream. CuPy answers the first with a query of
    the pointer and the second with an event. Neither is needed here.
    """

    __slots__ = ("_array", "_index")

    def __init__(self, array: Any, index: int | None) -> None:
        self._array = array
        self._index = index

    def __dlpack_device__(self) -> tuple[int, int | None]:
        return _CUDA, self._index

    def __dlpack__(self, *, stream: object = None) -> Any:
        return self._array.__dlpack__(stream=-1)


def _own_stream(stream: object) -> Callable[[], Stream]:
    if hasattr(stream, "__cuda_stream__") or hasattr(stream, "cuda_stream"):
        foreign = as_stream(stream)
        return lambda: foreign
    if callable(stream):
        return lambda: as_stream(stream())
    raise TypeError(
        f"stream must have __cuda_stream__, or be a function that returns such a stream, got "
        f"{type(stream).__name__}"
    )


class FollowingOutput:
    """Delivers arrays of the library whose arrays the batches were made of, which their first batch settles.

    Parameters
    ----------
    device : Device
        The device that batches are on.
    stream : object
        As for `open_output`.

    Examples
    --------
    >>> from gpuloader.devices.host import HostDevice
    >>> output = FollowingOutput(HostDevice())
    >>> output.settle(None)
    >>> output.convert([np.arange(2)], None)
    [array([0, 1])]
    """

    def __init__(self, device: Device, stream: object = None) -> None:
        self._device = device
        self._user_stream = stream
        self._output: Output | None = None

    def settle(self, name: str | None) -> None:
        """Deliver this library's arrays, or the device's own, from now on; any thread may call it.

        Raises
        ------
        ImportError
            The library is not installed in full.
        """
        if self._output is None:
            knows = self._device.direct or hasattr(self._device, "index")  # a simulated device has its own
            self._output = open_output(name if knows else None, self._device, self._user_stream)

    def stream(self) -> Stream:
        """Return the stream that the library computes on; None before the first batch."""
        return None if self._output is None else self._output.stream()

    def convert(self, arrays: list[Any], ready: Event | None) -> list[Any]:
        """Return the arrays as the library's."""
        return arrays if self._output is None else self._output.convert(arrays, ready)
