"""Worker's side: reporting an exception to the loader, with its class and its traceback."""

from __future__ import annotations

import pickle
import sys
import traceback
from typing import Any

from gpuloader.errors import LoaderError, describe_error
from gpuloader.fetch.processes.wire import dumps


def pack_failure(error: BaseException) -> bytes:
    """Return an exception, its cause and its traceback as a payload; works for any exception."""
    cause, users = error.__cause__, find_users_own(error)
    # An error that the loader itself raised needs no traceback: its message is complete.
    trace = "" if isinstance(users, LoaderError) else "".join(traceback.format_exception(users))
    return dumps((_freeze(error), None if cause is None else _freeze(cause), trace))


def find_users_own(error: BaseException) -> BaseException:
    """Return the exception that the user's code raised: the cause of a LoaderError, or the error itself."""
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


def _take_apart(error: BaseException) -> bytes:
    """Pickle an exception without its `__init__`, and without those of its parts that cannot be pickled."""
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
    """Flush stdout and stderr, so that the user's output is not lost; ignore streams that are closed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue
