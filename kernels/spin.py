"""`spin`: keep a stream, or the host, busy for a given time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from gpuloader.kernels.compiling import load_kernel


def spin(nanoseconds: int, stream: Any = None) -> None:
    """Launch a kernel that runs for `nanoseconds` on a CUDA stream.

    Parameters
    ----------
    nanoseconds : int
        The run time, 0 or more; the resolution of the device's clock may add up to a microsecond.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is CuPy's current stream.
    """
    load_kernel("spin")((1,), (1,), (np.uint64(nanoseconds),), stream=stream)


def spin_on_host(nanoseconds: int, stream: Any = None) -> None:  # noqa: ARG001
    """Keep the calling thread busy for `nanoseconds`: the twin of `spin`.

    >>> spin_on_host(1000)
    """
    end = time.perf_counter_ns() + nanoseconds
    while time.perf_counter_ns() < end:
        pass
