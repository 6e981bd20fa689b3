"""Arrays of the library that batches came in: which one that is, and how it is delivered."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuloader.devices.base import Device, Event, Stream
from gpuloader.devices.interop import Output, open_output
from gpuloader.fields.tensors import is_tensor
from gpuloader.sources.recognizing import is_instance


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


def find_library(value: object) -> str | None:
    """Return the name of the output that delivers arrays of a value's class; None if there is none.

    >>> import numpy as np
    >>> find_library(np.zeros(2)), find_library("text")
    ('numpy', None)
    """
    if isinstance(value, np.ndarray):
        return "numpy"
    if is_tensor(value):
        return "torch"
    kinds = (("jax", "Array"), ("paddle", "Tensor"))
    return next((name for name, kind in kinds if is_instance(value, name, kind)), None)
