"""Support for datasets written for PyTorch or Paddle, without importing either."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from gpuloader.order.worker_info import WorkerInfo

_DATA_MODULES = ("torch.utils.data", "paddle.io")
_WORKER_MODULES = ("torch.utils.data._utils.worker", "paddle.io.dataloader.worker")


def is_iterable_only(dataset: object) -> bool:
    """Return whether this is PyTorch's or Paddle's iterable dataset, whose ``__getitem__`` only raises.

    >>> is_iterable_only([1, 2])
    False
    """
    kinds: list[Any] = [getattr(sys.modules.get(name), "IterableDataset", None) for name in _DATA_MODULES]
    return any(isinstance(dataset, kind) for kind in kinds if isinstance(kind, type))


def is_torch_tensor(value: object) -> bool:
    """Return whether this is a tensor of PyTorch.

    >>> is_torch_tensor([1, 2])
    False
    """
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return isinstance(kind, type) and isinstance(value, kind)


def tell_worker(info: WorkerInfo) -> None:
    """Make ``get_worker_info`` of PyTorch and Paddle, if imported, work in this worker process.

    Otherwise a dataset that divides its files by it would yield all of them in every worker. Not for worker
    threads, because both frameworks keep this information per process.
    """
    for name in _WORKER_MODULES:
        module: Any = sys.modules.get(name)
        # Neither attribute is public, so a release that moved them is no reason to fail.
        with suppress(AttributeError, TypeError):
            module._worker_info = module.WorkerInfo(
                id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=info.dataset
            )


def has_told_torch() -> bool:
    """Return whether PyTorch's ``get_worker_info`` describes a worker here, as `tell_worker` makes it.

    >>> has_told_torch()
    False
    """
    return getattr(sys.modules.get(_WORKER_MODULES[0]), "_worker_info", None) is not None
