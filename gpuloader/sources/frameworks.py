"""What datasets written for torch or Paddle expect of a loader."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from gpuloader.order.worker_info import WorkerInfo

_DATA_MODULES = ("torch.utils.data", "paddle.io")
_WORKER_MODULES = ("torch.utils.data._utils.worker", "paddle.io.dataloader.worker")


def is_iterable_only(dataset: object) -> bool:
    """Return whether this is torch's or Paddle's iterable dataset, whose ``__getitem__`` only raises.

    >>> is_iterable_only([1, 2])
    False
    """
    kinds: list[Any] = [getattr(sys.modules.get(name), "IterableDataset", None) for name in _DATA_MODULES]
    return any(isinstance(dataset, kind) for kind in kinds if isinstance(kind, type))


def tell_worker(info: WorkerInfo) -> None:
    """Have the ``get_worker_info`` of torch and Paddle, where imported, answer in this worker process.

    A dataset that divides its files by it would otherwise give all of them in every worker. Not for threads:
    what they keep holds for the whole process.
    """
    for name in _WORKER_MODULES:
        module: Any = sys.modules.get(name)
        # Neither is a public way in: what has moved there is no reason to fail.
        with suppress(AttributeError, TypeError):
            module._worker_info = module.WorkerInfo(
                id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=info.dataset
            )
