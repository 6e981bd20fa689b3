"""Loader's side: the exception to raise when a worker process reports one, or dies."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from gpuloader.errors import LoaderError, WorkerError
from gpuloader.fetch.inline import plain_indices
from gpuloader.fetch.jobs import Job
from gpuloader.fetch.processes.reporting import find_users_own
from gpuloader.system.processes import describe_death

if TYPE_CHECKING:
    from gpuloader.fetch.processes.process import WorkerProcess

_NAMED = 8  # the most samples that a message lists


def unpack_failure(payload: bytes) -> BaseException:
    """Return the exception in a message, with the worker's traceback as a note on the user's exception."""
    frozen, frozen_cause, trace = pickle.loads(payload)
    error = _thaw(frozen)
    if frozen_cause is not None:
        error.__cause__ = _thaw(frozen_cause)
    if trace:
        find_users_own(error).add_note(f"gpuloader: raised in a worker process\n{trace}")
    return error


def _thaw(frozen: tuple[str, bytes]) -> BaseException:
    text, data = frozen
    if data:
        try:
            error = pickle.loads(data)
        except Exception:
            error = None
        if isinstance(error, BaseException):
            return error
    return LoaderError(text)


def died(worker: WorkerProcess, code: int | None, held: list[Job]) -> WorkerError:
    """Return the error for a worker that died with an exit code while it held these jobs."""
    cause, signal = describe_death(code)
    doing = "was idle"
    if held:
        many = "es" if len(held) > 1 else ""
        doing = f"was fetching batch{many} " + ", ".join(str(job.number) for job in held)
    if held and held[0].deaths > 1:
        doing += f", the {_ordinal(held[0].deaths)} worker to die at batch {held[0].number}"
    elif worker.deaths > 1:
        doing += f", the {_ordinal(worker.deaths)} in a row to die before it delivered anything"
    hint = "; the system may have run out of memory" if signal == 9 else ""
    indices = [index for job in held for index in plain_indices(job.indices)]
    if indices:
        more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
        doing += f" (samples {', '.join(map(repr, indices[:_NAMED]))}{more})"
    return WorkerError(
        f"worker {worker.number} (process {worker.pid}) {cause} while it {doing}{hint}",
        pid=worker.pid,
        signal=signal,
        indices=indices,
    )


def _ordinal(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
