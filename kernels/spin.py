"""`spin`: keep a stream busy for a given time, as a model would in tests and benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuloader.kernels.compiler import load_kernel


# Not declared: there is neither an array to check nor a result. One thread is enough, so concurrent copies
# keep their full speed.
def spin(nanoseconds: int, stream: Any = None) -> None:
    """Launch a kernel that runs for `nanoseconds` on a stream; the clock may add up to a microsecond."""
    load_kernel("spin")((1,), (1,), (np.uint64(nanoseconds),), stream=stream)
