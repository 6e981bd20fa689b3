"""Makes one GPU current for some calls, and touches no other GPU; does not import CuPy itself."""

from __future__ import annotations

import threading
from typing import Any


class Context:
    """The primary context of one GPU, which can be made current in any thread.

    From CUDA 12 on, `cudaSetDevice` creates the context of its device. So setting the previous device again,
    as CuPy's `Device` does, may cost some 500 MiB on a GPU that nobody asked for: the first GPU is the device
    of a fresh thread. This class makes the context current through the driver instead, and removes it again.
    Asking for the current device creates no context.

    Parameters
    ----------
    cupy : module
        CuPy.
    index : int
        The GPU's index.
    """

    __slots__ = ("_driver", "_handle", "_index", "_runtime")

    def __init__(self, cupy: Any, index: int) -> None:
        self._runtime = cupy.cuda.runtime
        self._driver = cupy.cuda.driver
        self._index = index
        self._handle = 0

    def enter(self) -> int:
        """Make the GPU, which is not current, the thread's current one; return the context before, or 0."""
        before: int = self._driver.ctxGetCurrent()
        self._driver.ctxSetCurrent(self._handle or self._find())
        return before

    def leave(self, before: int) -> None:
        """Make the context current that `enter` returned; 0 is none, and the thread's device is as before."""
        self._driver.ctxSetCurrent(before)

    def _find(self) -> int:
        """Return the primary context, which the runtime may create now.

        A thread of its own sets the device, because the device of the calling thread must stay, and ends.
        """
        failures: list[Exception] = []

        def find() -> None:
            try:
                self._runtime.setDevice(self._index)
                self._handle = self._driver.ctxGetCurrent()
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=find, name=f"gpuloader: context of gpu:{self._index}")
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        return self._handle
