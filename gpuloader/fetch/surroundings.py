"""What a worker process sees of the world: signals, memory, threads, GPUs, random numbers."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
from contextlib import suppress

import numpy as np

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def take_signals() -> None:
    """Leave signals that reach every process of a terminal or job to the loader, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A forked worker would have the user's own handler, which need not end it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def forswear_cuda() -> None:
    """Hide all GPUs from what the data set uses."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def keep_freed_memory() -> None:
    """Have the C library reuse the memory of a sample for the next one, instead of returning it each time.

    A young process hands every array of more than 128 KiB back to the system, and pays for fresh pages with
    the next: some 150 page faults a picture.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # another C library than GNU's
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def seed_globals(seed: int) -> None:
    """Seed what data sets draw from without asking: the same for a batch, whichever worker has it."""
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)


def limit_threads(workers: int) -> None:
    """Keep the libraries that the data set uses from starting a thread a core in every worker."""
    share = str(max((os.cpu_count() or 1) // workers, 1))
    for name in _THREADS:
        os.environ.setdefault(name, share)
    for name, limit in (("torch", "set_num_threads"), ("cv2", "setNumThreads")):
        module = sys.modules.get(name)
        if module is not None:
            getattr(module, limit)(int(share))
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return
    threadpool_limits(int(share))
