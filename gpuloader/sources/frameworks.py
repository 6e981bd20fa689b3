"""Support for datasets written for PyTorch or Paddle, without importing either."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FunctionType
from typing import Any, cast

from gpuloader.order.worker_info import WORKER_MODULES, WorkerInfo, own_worker_info

_COLLATING = "torch.utils.data._utils.collate"

_lock = threading.Lock()
_answered = 0
_replaced: dict[FunctionType, CodeType] = {}


def tell_worker(info: WorkerInfo) -> None:
    """Make ``get_worker_info`` of PyTorch and Paddle, if imported, work in this worker process.

    Not for worker threads, because both frameworks keep this per process: see `answering_threads`.
    """
    # Otherwise a dataset that divides its files by it would yield all of them in every worker.
    for name in WORKER_MODULES:
        module: Any = sys.modules.get(name)
        # Neither attribute is public, so if a release has moved them, carry on without.
        with suppress(AttributeError, TypeError):
            module._worker_info = _translate(module, info)


def _translate(module: Any, info: WorkerInfo) -> Any:
    return module.WorkerInfo(id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=info.dataset)


@contextmanager
def answering_threads() -> Iterator[None]:
    """Make ``get_worker_info`` of PyTorch and Paddle, if imported, answer each worker thread for itself.

    Threads that are not workers get the process's answer as before.
    """
    # Both return a global variable of the process. A dataset may have imported the functions by name, so it
    # would not see a replacement. Therefore their code is replaced, until the last worker thread leaves.
    global _answered
    with _lock:
        _answered += 1
        for name in WORKER_MODULES:
            _replace(sys.modules.get(name))
    try:
        yield
    finally:
        with _lock:
            _answered -= 1
            while not _answered and _replaced:
                function, code = _replaced.popitem()
                function.__code__ = code


def _replace(module: Any) -> None:
    function = getattr(module, "get_worker_info", None)
    if not isinstance(function, FunctionType) or function in _replaced:
        return
    if function.__code__.co_names != ("_worker_info",) or not hasattr(module, "WorkerInfo"):
        return  # a release that stores the information differently
    function.__globals__["_find_worker_of_gpuloader"] = _make_finder(module)
    _replaced[function], function.__code__ = function.__code__, _ask.__code__


def _ask() -> Any:
    """Replaces the code of a framework's function, whose global variables include the one below."""
    return _find_worker_of_gpuloader()  # type: ignore[name-defined]  # noqa: F821


def _make_finder(module: Any) -> Callable[[], Any]:
    def find() -> Any:
        info = own_worker_info()
        # The framework's function called this one, and somebody who wants to know called that.
        asker = cast("Any", inspect.currentframe()).f_back.f_back
        # In a worker, PyTorch's collate function puts each batch into shared memory, to send it from a
        # process.
        if info is None or asker.f_globals.get("__name__") == _COLLATING:
            return module._worker_info
        return _translate(module, info)

    return find


def has_told_torch() -> bool:
    """Return whether PyTorch's ``get_worker_info`` describes a worker of ours in the calling thread."""
    ask = getattr(sys.modules.get(WORKER_MODULES[0]), "get_worker_info", None)
    return ask is not None and ask() is not None
