"""Worker's side: setting up a worker's GPUs, threads and random numbers."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import MutableMapping

import numpy as np

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def restrain(environment: MutableMapping[str, str] = os.environ) -> None:
    """Hide all GPUs from libraries that are imported later, and limit them to one thread each.

    >>> environment = {"OMP_NUM_THREADS": "3"}
    >>> restrain(environment)
    >>> environment["CUDA_VISIBLE_DEVICES"], environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"]
    ('', '3', '1')
    """
    environment["CUDA_VISIBLE_DEVICES"] = ""
    for name in _THREADS:
        environment.setdefault(name, "1")


def limit_threads() -> None:
    """Limit the libraries that are imported already to one thread each, as PyTorch's own workers do.

    More would need the pools of threads that a fork does not copy: a worker that was forked after its parent
    had computed in parallel would wait for them forever. And the workers share the cores anyway.
    """
    for name, limit in (("torch", "set_num_threads"), ("cv2", "setNumThreads")):
        module = sys.modules.get(name)
        if module is not None:
            getattr(module, limit)(1)
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return
    threadpool_limits(1)


def load_generators() -> None:
    """Import NumPy's global generator, so that an error of that belongs to the start and not to a sample."""
    import numpy.random  # noqa: F401 - NumPy itself imports it when it is first used


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch, so that draws do not depend on the worker."""
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)
