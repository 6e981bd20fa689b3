"""Recognizes devices of PyTorch and places of Paddle, and asks for PyTorch's state; imports neither."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Streams and arrays of other libraries, as CUDA libraries exchange them.

_HOST = (1, 3)  # DLPack's numbers for host memory, the second for page-locked


@dataclass(frozen=True, slots=True)
class ForeignStream:
    """A stream of another library.

    Attributes
    ----------
    ptr : int
        The stream's CUDA handle.
    owner : object
        The library's stream object; the handle is valid as long as it lives.
    """

    ptr: int
    owner: object = None


def as_stream(stream: object) -> ForeignStream:
    """Return a stream of another library; raise TypeError if it is none."""
    return ForeignStream(_handle(stream), stream)


def _handle(stream: Any) -> int:
    """Return the CUDA handle of a stream; ``__cuda_stream__`` returns ``(version, handle)``, version 0."""
    if isinstance(handle := getattr(stream, "cuda_stream", None), int):
        return handle  # PyTorch's and Paddle's name for it
    try:
        version, handle = stream.__cuda_stream__()
        ptr = int(handle)
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError(f"{type(stream).__name__} is not a CUDA stream: {error}") from error
    if version != 0:
        raise TypeError(
            f"{type(stream).__name__} implements version {version} of __cuda_stream__, expected version 0"
        )
    return ptr


def find_address(array: Any) -> int | None:
    """Return the address of an array's first element on a device; None if it is not an array there.

    >>> find_address("text") is None
    True
    """
    pointer = getattr(array, "data_ptr", None)  # of PyTorch and Paddle
    if callable(pointer):
        return int(pointer())
    pointer = getattr(getattr(array, "data", None), "ptr", None)  # of CuPy
    if pointer is not None:
        return int(pointer)
    interface = getattr(array, "__cuda_array_interface__", None)
    return None if interface is None else int(interface["data"][0])


def is_on_host(array: Any) -> bool:
    """Return whether an array of any library lies in host memory.

    >>> import numpy as np
    >>> is_on_host(np.zeros(3)), is_on_host("text")
    (True, False)
    """
    device = getattr(array, "__dlpack_device__", None)
    if hasattr(getattr(array, "data", None), "ptr"):
        return False  # an array of CuPy, which asks the driver for the kind of memory
    return device is not None and int(device()[0]) in _HOST


def name_place(place: object) -> object:
    """Return the string that names a device of PyTorch or a place of Paddle; anything else unchanged.

    >>> name_place("gpu:0"), name_place(3)
    ('gpu:0', 3)
    """
    library, kind = type(place).__module__.partition(".")[0], type(place).__name__
    if library == "torch" and kind == "device":
        device: Any = place
        return "cpu" if device.type == "cpu" else str(device)
    if library == "paddle":
        return _name_of_paddle(place, kind) or place
    return place


def _name_of_paddle(place: Any, kind: str) -> str | None:
    if kind == "Place":  # what a tensor's `place` is, whatever the device
        tests = {"CPUPlace": place.is_cpu_place, "CUDAPlace": place.is_gpu_place}
        tests["CUDAPinnedPlace"] = place.is_cuda_pinned_place
        kind = next((name for name, holds in tests.items() if holds()), kind)
    if kind == "CUDAPlace":
        number = place.get_device_id() if hasattr(place, "get_device_id") else place.gpu_device_id()
        return f"gpu:{number}"
    return {"CPUPlace": "cpu", "CUDAPinnedPlace": "gpu_pinned"}.get(kind)


def current_cuda_device() -> int:
    """Return PyTorch's current CUDA device, which ``'cuda'`` means to its users; 0 if it uses none yet."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return int(cuda.current_device()) if cuda is not None and cuda.is_initialized() else 0


class TorchStreams:
    """PyTorch's current streams, of each GPU in the calling thread."""

    __slots__ = ("_ask", "_torch")

    def __init__(self) -> None:
        self._torch: Any = None
        self._ask: Any = None

    def current(self, index: int) -> int | None:
        """Return the handle of the current stream on a GPU; None if PyTorch uses none."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return None
        if torch is not self._torch:
            cuda: Any = getattr(torch, "cuda", None)
            if cuda is None or not cuda.is_initialized():
                return None
            self._torch, self._ask = torch, find_raw_stream(torch)
        handle: int = self._ask(index)
        return handle


def find_raw_stream(torch: Any) -> Callable[[int], int]:
    """Return PyTorch's function for the handle of the current stream on a GPU, given PyTorch's module."""
    raw: Any = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)  # makes no object
    return raw or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))
