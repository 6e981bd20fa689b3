"""Fetching in the consumer's thread: no other thread, and nothing read ahead."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from gpuloader.batches.assembly import Reserve
from gpuloader.batches.stream import StagedBatch
from gpuloader.errors import LoaderError, QueueClosed, SampleError, WorkerTimeout, describe_error
from gpuloader.fields.spec import Indices
from gpuloader.order.randomness import Draw, exchange_draw
from gpuloader.staging.ring import Ring, Slot
from gpuloader.system.rereading import read_for
from gpuloader.watch.stats import Meter
from gpuloader.watch.tracing import mark

# The protocol between the pipeline and whatever fills the slots.


class Fetch(Protocol):
    """The consumer's end of a fetcher."""

    def get(self) -> StagedBatch:
        """Wait for the next staged batch and return it; raise `QueueClosed` at the end of the epoch."""

    def get_nowait(self) -> StagedBatch | None:
        """Return the next staged batch, or None if `get` would wait."""

    def close(self) -> bool:
        """Stop fetching and return every slot; return False if a thread or process is still running."""


# The errors that the consumer sees when a worker thread or process fails.


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


class InlineFetch:
    """Reads each batch when the consumer asks for it; a `Fetch` without workers."""

    def __init__(self, batches: Iterator[StagedBatch]) -> None:
        self._batches = batches
        self._interrupted = False

    def get(self) -> StagedBatch:
        """Read and stage the next batch; raise `QueueClosed` at the end, or the reader's exception."""
        try:
            return next(self._batches)
        except StopIteration:
            if self._interrupted:
                raise interrupted() from None
            raise QueueClosed("the reader has no more batches") from None
        except Exception:
            raise
        except BaseException:
            self._interrupted = True
            raise

    def get_nowait(self) -> None:
        """Return None, because nothing is ever read ahead."""

    def close(self) -> bool:
        """Close the reader; return True, because nothing else runs."""
        if isinstance(self._batches, Generator):
            self._batches.close()
        return True


class _Spot:
    """The slot of the current batch, taken from the ring once the batch's size is known."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._slot: Slot | None = None

    def reserve(self, nbytes: int) -> Slot:
        self._slot = slot = self._ring.acquire(nbytes)
        return slot

    def give_back(self) -> None:
        """Return the slot to the ring, because no batch was staged in it."""
        slot, self._slot = self._slot, None
        if slot is not None:
            self._ring.release(slot)

    def hand_on(self) -> None:
        """Forget the slot, which now belongs to its batch."""
        self._slot = None


def stage_inline(
    numbered: Iterable[tuple[int, Indices]],
    assemble: Callable[[int, Indices, Reserve], StagedBatch | None],
    ring: Ring,
    meter: Meter,
    *,
    seed: int,
    epoch: int,
    close: Callable[[], None] | None = None,
    owner: object = None,
) -> Iterator[StagedBatch]:
    """Yield every batch of a plan, fetched and staged in the thread that iterates.

    Parameters
    ----------
    numbered : iterable of (int, sequence)
        Each batch's number and indices.
    assemble : callable
        Stages a batch, given its number, its indices and a function that reserves a slot; returns None at
        the end of the data.
    ring : Ring
        The source of slots.
    meter : Meter
        Counts where the time goes.
    seed, epoch : int
        The loader's seed and epoch.
    close : callable or None
        Called after the last batch, or when the iteration ends early.
    owner : object
        The token of the loader that reads.

    Raises
    ------
    SampleError
        The dataset raised, or a sample does not fit its field.
    """
    draw = Draw(seed, epoch)
    spot = _Spot(ring)
    reserve = spot.reserve
    try:
        for number, indices in numbered:
            begun = perf_counter_ns()
            # Per batch, because loops over other loaders may run in between.
            outer, before = exchange_draw(draw), read_for(owner)
            try:
                staged = assemble(number, indices, reserve)
            finally:
                exchange_draw(outer)
                read_for(before)
            if staged is None:
                return
            spot.hand_on()
            ended = perf_counter_ns()
            meter.fetched(ended - begun, staged.layout.nbytes, staged.skipped)
            mark("fetch", begun, ended)
            yield staged
    finally:
        spot.give_back()
        if close is not None:
            close()
