"""Streams and arrays of other libraries, as CUDA libraries exchange them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
