"""Worker's side: setting up a worker's signals, GPUs, threads and random numbers."""

from __future__ import annotations

import os
import random
import signal
import sys

import numpy as np

from gpuloader.base.platforms import usable_cores

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def take_signals() -> None:
    """Ignore SIGINT, which a terminal sends to the loader too, so that it ends its workers; reset SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # `starting` blocks it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # A forked worker inherits the user's handler, which might not end it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def forswear_cuda() -> None:
    """Hide all GPUs from the dataset's libraries."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch, so that draws do not depend on the worker."""
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)


def limit_threads(workers: int) -> None:
    """Limit the threads of the dataset's libraries, so that the workers share the cores."""
    share = str(max(usable_cores() // workers, 1))
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
