"""Delivers batches as arrays of the device, or as tensors of torch, JAX or Paddle, without a copy.

On a CPU place, tensors lie in the slot itself, and the user owns its memory as long as any of them is alive.
On a GPU, they lie in the device slot. The framework's stream waits for the copy into the slot, and the next
copy into the slot waits for the work on that stream. JAX on a GPU is the exception: see `CopiedOutput`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from gpuloader import foreign
from gpuloader.devices.base import Device, Event, Stream
from gpuloader.errors import LoaderError, PlaceError

OUTPUTS = ("numpy", "cupy", "torch", "jax", "paddle")


class Output(Protocol):
    """Converts the batches of one device for the user; the thread that asks for batches calls it."""

    def stream(self) -> Stream:
        """Return the stream on which the calling thread will use the next batch; None if not known yet."""

    def convert(self, arrays: list[Any], ready: Event | None) -> list[Any]:
        """Return the device's arrays as the user's; `ready` is the event after their copy."""


class SharedOutput(NamedTuple):
    """Delivers arrays over the memory of the device's own arrays, which they keep alive."""

    # Returns the stream on which the calling thread will use the next batch.
    stream: Callable[[], Stream]
    # Makes the user's array from the device's own: a torch or Paddle tensor, or a JAX array on the host.
    wrap: Callable[[Any], Any] | None = None

    def convert(self, arrays: list[Any], ready: Event | None) -> list[Any]:  # noqa: ARG002
        """Return one array for each; raise `LoaderError` if the library lacks the dtype."""
        if self.wrap is not None:
            return _wrap(self.wrap, arrays)
        for array in arrays:
            if array.dtype.names is not None and foreign.torch_name(array.dtype) is not None:
                raise LoaderError(
                    f"a batch of {foreign.describe_dtype(array.dtype)} cannot be delivered as an array of "
                    f"{type(array).__module__}, which has no such dtype: pass output='torch', or convert the "
                    "samples, e.g. with tensor.float()"
                )
        return arrays


class CopiedOutput:
    """Delivers copies, for a framework whose streams are not accessible: JAX on a GPU.

    The host waits for the copy to the device, which was started a step earlier. The framework then copies
    each array once more, asynchronously; the slot is kept until that copy has run.
    """

    # JAX frees an array while kernels that read it may still be queued, and its streams cannot be waited for.
    # So the deleter of an imported array says nothing about the slot. A copy has `is_ready`, which does. A
    # single JAX stream runs all copies on a device, so a later copy answers for the earlier ones.

    def __init__(self, device: Device, wrap: Callable[[Any], Any], copy: Callable[[Any], Any]) -> None:
        self._device = device
        self._wrap = wrap
        self._copy = copy
        self._in_flight: list[tuple[list[Any], list[Any], Any]] = []
        self._is_donated = False  # whether a user's step has consumed a batch, with `donate_argnums`

    def stream(self) -> Stream:
        """Return the device's own consumer stream; the framework runs nothing on it."""
        return self._device.consumer_stream()

    def convert(self, arrays: list[Any], ready: Event | None) -> list[Any]:
        """Return copies of the arrays, and keep the arrays until the copies have run."""
        self._drain()
        if ready is not None:
            self._device.synchronize(ready)
        sources = _wrap(self._wrap, arrays)
        copies = [self._copy(source) for source in sources]
        if sources:
            # JAX deletes a donated array immediately, and then raises instead of saying whether it is ready.
            last = self._copy(min(sources, key=lambda one: one.nbytes)) if self._is_donated else copies[-1]
            self._in_flight.append((arrays, sources, last))  # keep `arrays` too: wrapping may convert them
        return copies

    def _drain(self) -> None:
        done = 0
        for number, (*_, copy) in enumerate(self._in_flight, 1):
            if copy.is_deleted():
                self._is_donated = True
            elif copy.is_ready():
                done = number
            else:
                break
        del self._in_flight[:done]


def open_output(name: str | None, device: Device, stream: object = None, *, static: bool = False) -> Output:
    """Return the output that converts the batches of a device; None delivers the device's own arrays.

    `stream` is the one on which the user computes: an object with ``__cuda_stream__``, such as a stream of
    CuPy, torch or cuda.core, or a callable that returns one. None means the framework's current stream.

    Raises
    ------
    ImportError
        The framework is not installed.
    PlaceError
        The output does not support the device, such as NumPy arrays on a GPU or CuPy arrays on the host.
    """
    own = None if stream is None else _own_stream(stream)
    if name is None or name == ("numpy" if device.direct else "cupy"):
        return SharedOutput(own or device.consumer_stream)
    if name in ("numpy", "cupy"):
        wanted = "a CPU place" if name == "numpy" else "a GPU"
        raise PlaceError(f"output={name!r} is for batches on {wanted}; these land on {device.name}")
    index: int | None = getattr(device, "index", None)
    if index is None and not device.direct:  # a simulated device: no framework can read its memory
        raise PlaceError(f"output={name!r} is for batches on a CPU place or GPU; these land on {device.name}")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"output={name!r} needs {name}, which is not importable ({error}); install it, usually with "
            f"pip install {'paddlepaddle' if name == 'paddle' else name}, or omit output",
            name=name,
        ) from error
    # Paddle's build for CPUs has the function that returns the current stream, but crashes in it.
    if name == "paddle" and not device.direct and not module.is_compiled_with_cuda():
        raise PlaceError(
            "output='paddle' is for batches on a CPU place, as this Paddle is built without CUDA; these land "
            f"on {device.name}; install Paddle for GPUs (paddlepaddle-gpu)"
        )
    wrap = _find_wrap(name, device)
    if name == "torch" and device.direct and device.locker is not None and not static:
        wrap = _copy_to_torch
    if device.direct:
        return SharedOutput(device.consumer_stream, wrap)
    if name == "jax":
        return CopiedOutput(device, wrap, lambda array: module.numpy.array(array, copy=True))
    assert index is not None
    return SharedOutput(own or _current_stream(name, module, index), wrap)


def check_stream(_: str, stream: object) -> object:
    """Return a stream, a function or None; raise `TypeError` for what cannot be a loader's stream."""
    if stream is not None:
        _own_stream(stream)
    return stream


def _own_stream(stream: object) -> Callable[[], Stream]:
    if hasattr(stream, "__cuda_stream__") or hasattr(stream, "cuda_stream"):
        own = foreign.as_stream(stream)
        return lambda: own
    if callable(stream):
        return lambda: foreign.as_stream(stream())
    raise TypeError(
        f"stream must have __cuda_stream__, or be a function that returns such a stream, got "
        f"{type(stream).__name__}"
    )


def _current_stream(name: str, module: Any, index: int) -> Callable[[], Stream]:
    """Return a function that returns the framework's current stream on a device, in the calling thread."""
    latest: foreign.ForeignStream | None = None
    raw = None
    if name == "torch":
        find, raw = module.cuda.current_stream, foreign.find_raw_stream(module)
    else:
        # Paddle's public function ends in this one, but first spends 29 µs on a deprecation warning.
        core: Any = getattr(getattr(module, "base", None), "core", None)
        find = getattr(core, "_get_current_stream", None) or module.device.cuda.current_stream

    def current() -> Stream:
        nonlocal latest
        found, stream = latest, None  # another thread may set the latest one meanwhile
        if raw is not None and found is not None:
            ptr = raw(index)
        else:  # the first call initializes PyTorch
            stream = find(index)
            ptr = stream.cuda_stream
        # While the handle is the same, so is the object: a device slot then sees by identity that it needs no
        # further event.
        if found is None or ptr != found.ptr:
            found = latest = foreign.ForeignStream(ptr, stream)
        return found

    return current


def _wrap(wrap: Callable[[Any], Any], arrays: list[Any]) -> list[Any]:
    wrapped = []
    try:
        for array in arrays:
            wrapped.append(wrap(array))
    except Exception as error:
        raise LoaderError(
            f"the framework does not accept an array of dtype {array.dtype} and shape {array.shape}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return wrapped


def _find_wrap(name: str, device: Device) -> Callable[[Any], Any]:
    """Return a function that makes a tensor over an array's memory; the tensor keeps the array alive."""
    # Through DLPack, whose capsule holds the array until the tensor's memory is freed. With
    # `__cuda_array_interface__`, JAX would not keep the array.
    if name == "torch" and device.direct:
        return foreign.tensor_over
    if name == "jax":
        imported: Callable[[Any], Any] = importlib.import_module("jax.dlpack").from_dlpack
        index = getattr(device, "index", None)
        if not device.direct:
            return lambda array: imported(_Export(array, index))
        jax = importlib.import_module("jax")

        def put(array: Any) -> Any:
            # NumPy exports no dtype of other packages, such as JAX's own bfloat16.
            if array.dtype.isbuiltin == 2:
                one = jax.device_put(array.copy(), jax.local_devices(backend="cpu")[0])
            else:
                one = imported(array)
            # JAX binds such an array to its device, and a compiled function refuses it together with arrays
            # that are divided among several. `device_put` without a device binds nothing, but frees the slot
            # late. JAX's checks concern the order of several devices, and take 5 µs.
            try:
                return type(one)(one.aval, one.sharding, [one], committed=False, _skip_checks=True)
            except TypeError:  # in a release of JAX that makes them in another way
                return one

        return put
    from_dlpack: Callable[[Any], Any] = importlib.import_module(f"{name}.utils.dlpack").from_dlpack
    if device.direct:
        return from_dlpack
    # -1 means no ordering. With the framework's stream, CuPy would order it behind CuPy's current stream,
    # which has nothing to do with the copy. The lane orders the two streams that matter.
    unordered: Callable[[Any], Any] = lambda array: from_dlpack(array.__dlpack__(stream=-1))  # noqa: E731
    if name == "torch":
        internals = getattr(importlib.import_module(name), "_C", None)
        from_dlpack = getattr(internals, "_from_dlpack", from_dlpack)  # what its function ends in
        return lambda array: foreign.tensor_over(array, unordered)
    return unordered


def _copy_to_torch(array: Any) -> Any:
    # A program drops a batch after `to("cuda", non_blocking=True)`, and the GPU may read it much later.
    # PyTorch knows of that for memory of its own allocator, but for no other: a slot would be filled again
    # too early.
    tensor = foreign.tensor_over(array)
    return importlib.import_module("torch").empty_like(tensor, pin_memory=True).copy_(tensor)


class _Export(NamedTuple):
    """A CuPy array that JAX may read immediately, because the host has waited for its copy."""

    # JAX asks where an array is, and has it ordered on its own stream. For every array, CuPy answers the
    # first with a query of the pointer and the second with an event. Neither is needed here.

    array: Any
    gpu: int | None

    def __dlpack_device__(self) -> tuple[int, int | None]:
        return 2, self.gpu  # 2 is DLPack's number for the memory of a GPU

    def __dlpack__(self, *, stream: object = None) -> Any:
        return self.array.__dlpack__(stream=-1)


class FollowingOutput:
    """Delivers arrays of the same library as the input batches, as the first batch shows.

    >>> from gpuloader.devices.host import HostDevice
    >>> import numpy as np
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

        Raises `ImportError` if the library is not installed in full.
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
