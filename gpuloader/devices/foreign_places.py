"""Recognizes devices of PyTorch and places of Paddle, and asks for PyTorch's state; imports neither."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


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
