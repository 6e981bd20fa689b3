"""The errors that the consumer sees when a worker thread or process fails."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuloader.base.errors import LoaderError, QueueClosed, SampleError, WorkerTimeout, describe_error
from gpuloader.fields.spec import Indices


def as_failure(error: BaseException, batch: int, worker: int) -> Exception:
    """Return the exception to raise in the consumer for one raised in a worker.

    SystemExit, StopIteration and the like are wrapped in a SampleError, because they would end the consumer's
    program, generator or epoch.
    """
    if isinstance(error, Exception) and not isinstance(error, QueueClosed):
        return error
    failure = SampleError(f"the dataset raised {describe_error(error)}", batch=batch, worker=worker)
    failure.__cause__ = error
    return failure


def interrupted() -> LoaderError:
    """Return the error for an epoch that a Ctrl-C broke off in the middle of a batch."""
    return LoaderError(
        "the epoch was interrupted in the middle of a batch and cannot continue; start a new epoch, "
        "or resume this one in a new loader from state_dict()"
    )


def timed_out(who: str, pid: int, seconds: float, batch: int | None, indices: Indices) -> WorkerTimeout:
    """Return the error for a worker that did not deliver a batch in time."""
    what = "answer" if batch is None else f"deliver batch {batch}"
    problem = f"{who} did not {what} within the timeout of {seconds} s"
    return WorkerTimeout(problem, pid=pid, indices=plain_indices(indices))


def plain_indices(indices: Indices) -> list[Any]:
    """Return indices as a list, with NumPy integers as Python ints."""
    return indices.tolist() if isinstance(indices, np.ndarray) else list(indices)


def set_up_failed(number: int, error: BaseException) -> LoaderError:
    """Return the error for a worker whose dataset could not be unpickled, or whose init function raised."""
    failure = LoaderError(f"worker {number} could not start: {describe_error(error)}")
    failure.__cause__ = error
    return failure
