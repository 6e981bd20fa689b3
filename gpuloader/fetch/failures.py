"""What the consumer is told of a worker that failed, be it a thread or a process."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuloader.base.errors import LoaderError, QueueClosed, SampleError, WorkerTimeout, describe_error
from gpuloader.fields.spec import Indices


def as_failure(error: BaseException, batch: int, worker: int) -> Exception:
    """Return what a worker raised as what the consumer of its batch may be told.

    What ends a program, a generator or an epoch would end the consumer's.
    """
    if isinstance(error, Exception) and not isinstance(error, QueueClosed):
        return error
    failure = SampleError(f"the dataset raised {describe_error(error)}", batch=batch, worker=worker)
    failure.__cause__ = error
    return failure


def timed_out(who: str, pid: int, seconds: float, batch: int | None, indices: Indices) -> WorkerTimeout:
    """Return the error for a worker that was waited for in vain."""
    what = "answer" if batch is None else f"bring batch {batch}"
    problem = f"{who} did not {what} within the timeout of {seconds} s"
    return WorkerTimeout(problem, pid=pid, indices=plain_indices(indices))


def plain_indices(indices: Indices) -> list[Any]:
    """Return indices as a list, integers as Python's own."""
    return indices.tolist() if isinstance(indices, np.ndarray) else list(indices)


def set_up_failed(number: int, error: BaseException) -> LoaderError:
    """Return the error for a worker whose dataset could not be unpickled, or whose init function raised."""
    failure = LoaderError(f"worker {number} could not begin: {describe_error(error)}")
    failure.__cause__ = error
    return failure
