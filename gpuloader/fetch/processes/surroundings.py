"""What a worker process sees of the world: signals, memory, threads, GPUs, random numbers."""

from __future__ import annotations

import os
import random
import signal
import sys

import numpy as np

from gpuloader.base.platforms import usable_cores

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def take_signals() -> None:
    """Leave signals that reach every process of a terminal or job to the loader, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # the start blocks it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # A forked worker would have the user's own handler, which need not end it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def forswear_cuda() -> None:
    """Hide all GPUs from what the dataset uses."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def seed_globals(seed: int) -> None:
    """Seed what datasets draw from without asking: the same for a batch, whichever worker has it."""
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)


def limit_threads(workers: int) -> None:
    """Keep the libraries that the dataset uses from starting a thread a core in every worker."""
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
