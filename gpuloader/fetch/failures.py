"""Failures on their way to the user: what a worker raised, how one died, that one did not answer.

A worker process sends its exception pickled, as the user's own class where that can be; the loader raises it
with the worker's traceback in a note.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloader.errors import LoaderError, QueueClosed, SampleError, WorkerError, WorkerTimeout, describe_error
from gpuloader.fetch.jobs import Job
from gpuloader.fetch.wire import dumps
from gpuloader.sources.processes import describe_death
from gpuloader.spec import Indices

if TYPE_CHECKING:
    from gpuloader.fetch.processes import WorkerProcess


def as_failure(error: BaseException, batch: int, worker: int) -> Exception:
    """Return what a worker raised as what the consumer of its batch may be told.

    What ends a program, a generator or an epoch would end the consumer's.
    """
    if isinstance(error, Exception) and not isinstance(error, QueueClosed):
        return error
    failure = SampleError(f"the data set raised {describe_error(error)}", batch=batch, worker=worker)
    failure.__cause__ = error
    return failure


def pack_failure(error: BaseException) -> bytes:
    """Return an exception and its cause for a message, whatever they are."""
    cause, users = error.__cause__, _users_own(error)
    # Where the loader itself found fault, the message says it all.
    trace = "" if isinstance(users, LoaderError) else "".join(traceback.format_exception(users))
    return dumps((_freeze(error), None if cause is None else _freeze(cause), trace))


def unpack_failure(payload: bytes) -> BaseException:
    """Return the exception in a message; the user's own, itself or its cause, has the traceback in a note."""
    frozen, frozen_cause, trace = pickle.loads(payload)
    error = _thaw(frozen)
    if frozen_cause is not None:
        error.__cause__ = _thaw(frozen_cause)
    if trace:
        _users_own(error).add_note(f"gpuloader: raised in a worker process\n{trace}")
    return error


def _users_own(error: BaseException) -> BaseException:
    cause = error.__cause__
    return cause if cause is not None and isinstance(error, LoaderError) else error


def _freeze(error: BaseException) -> tuple[str, bytes]:
    for take in (dumps, _take_apart):
        try:
            data: bytes = take(error)
            if type(pickle.loads(data)) is type(error):
                return describe_error(error), data
        except Exception:
            continue
    return describe_error(error), b""


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


def _take_apart(error: BaseException) -> bytes:
    """Pickle an exception without what calls its class again, and without those of its parts that do not."""
    args = tuple(arg if _is_picklable(arg) else repr(arg) for arg in error.args)
    state = {name: value for name, value in vars(error).items() if _is_picklable(value)}
    return dumps(_Parts(type(error), args, state))


class _Parts:
    def __init__(self, kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> None:
        self._all = kind, args, state

    def __reduce__(self) -> tuple[Any, ...]:
        return _put_together, self._all


def _put_together(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error


def _is_picklable(value: object) -> bool:
    try:
        pickle.loads(dumps(value))
    except Exception:
        return False
    return True


def flush_output() -> None:
    """Write out what the user's code has printed, if there is anywhere to write to."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


_NAMED = 8  # samples that a message names


def died(worker: WorkerProcess, code: int | None, held: list[Job]) -> WorkerError:
    """Return the error for a worker that ended with an exit code, and for the jobs it held."""
    cause, signal = describe_death(code)
    doing = "was idle"
    if held:
        doing = "fetched batch " + ", ".join(str(job.number) for job in held)
    if held and held[0].deaths > 1:
        doing += f", the {_ordinal(held[0].deaths)} worker to die of batch {held[0].number}"
    elif worker.deaths > 1:
        doing += f", the {_ordinal(worker.deaths)} in a row to die before it brought anything"
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


def timed_out(who: str, pid: int, seconds: float, batch: int | None, indices: Indices) -> WorkerTimeout:
    """Return the error for a worker that was waited for in vain."""
    what = "answer" if batch is None else f"bring batch {batch}"
    problem = f"{who} did not {what} within the timeout of {seconds} s"
    return WorkerTimeout(problem, pid=pid, indices=plain_indices(indices))


def plain_indices(indices: Indices) -> list[Any]:
    """Return indices as a list, integers as Python's own."""
    return indices.tolist() if isinstance(indices, np.ndarray) else list(indices)


def set_up_failed(number: int, error: BaseException) -> LoaderError:
    """Return the error for a worker whose data set could not be unpickled, or whose init function raised."""
    failure = LoaderError(f"worker {number} could not begin: {describe_error(error)}")
    failure.__cause__ = error
    return failure
