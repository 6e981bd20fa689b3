"""Which loader the calling thread reads for, so that no loader is read by its own dataset, forever."""

from __future__ import annotations

import threading

from gpuloader.base.errors import LoaderError, Misuse

MOST_NESTED = 4
"""The most worker processes within worker processes."""


class _Reading(threading.local):
    owner: object = None


_reading = _Reading()
_depth = 0


def read_for(owner: object) -> object:
    """Note that the calling thread now reads for the loader with this token; return the token before.

    >>> before = read_for("token")
    >>> read_for(before)
    'token'
    """
    before, _reading.owner = _reading.owner, owner
    return before


def current_owner() -> object:
    """Return the token of the loader that the calling thread reads for, or None."""
    return _reading.owner


def check_not_reading(owner: object) -> None:
    """Raise `Misuse` if the calling thread reads for this loader, of which it wants to begin an epoch."""
    if _reading.owner is owner:
        raise Misuse(
            "the reader or dataset of a loader began an epoch of the same loader, which would read itself "
            "without end; make another loader for the data that it reads"
        )


def next_depth() -> int:
    """Return how deep a worker process of this process would be within other worker processes.

    Raises
    ------
    LoaderError
        Too deep: probably each worker's dataset makes a loader of the same dataset.
    """
    if _depth >= MOST_NESTED:
        raise LoaderError(
            f"worker processes are nested {MOST_NESTED} deep: the dataset of each one begins an epoch of a "
            "loader with workers; use num_workers=0 or worker_type='thread' in the inner loader"
        )
    return _depth + 1


def enter_depth(depth: int) -> None:
    """Note how deep this worker process is."""
    global _depth
    _depth = depth
