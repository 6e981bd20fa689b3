"""Fetching in the consumer's own thread: nothing is read ahead, and no thread exists."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from time import perf_counter_ns

from gpuloader.base.errors import LoaderError, QueueClosed
from gpuloader.collate.assembly import Reserve
from gpuloader.collate.stream import StagedBatch
from gpuloader.fields.spec import Indices
from gpuloader.order.randomness import Draw, exchange_draw
from gpuloader.staging.ring import Ring, Slot
from gpuloader.watch.stats import Meter
from gpuloader.watch.tracing import mark


class InlineFetch:
    """Reads the next batch when it is asked for.

    Has the two ends of a `ThreadFetch`, so the pipeline does not know the difference.
    """

    def __init__(self, batches: Iterator[StagedBatch]) -> None:
        self._batches = batches
        self._interrupted = False

    def get(self) -> StagedBatch:
        """Read and stage the next batch; raise `QueueClosed` at the end, or what the reader raised."""
        try:
            return next(self._batches)
        except StopIteration:
            if self._interrupted:
                raise LoaderError(
                    "the epoch was interrupted in the middle of a batch and cannot go on; begin a new one, "
                    "or resume it in a new loader from state_dict()"
                ) from None
            raise QueueClosed("the reader has no further batch") from None
        except Exception:
            raise
        except BaseException:
            self._interrupted = True
            raise

    def get_nowait(self) -> None:
        """Return None: nothing is ever read ahead."""

    def close(self) -> bool:
        """Close the reader; return True: nothing runs on."""
        if isinstance(self._batches, Generator):
            self._batches.close()
        return True


class _Spot:
    """Where the batch at hand is written: a slot of the ring, taken when its size is known."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._slot: Slot | None = None

    def reserve(self, nbytes: int) -> Slot:
        self._slot = slot = self._ring.acquire(nbytes)
        return slot

    def give_back(self) -> None:
        """Return the slot to the ring; called where no batch came of it."""
        slot, self._slot = self._slot, None
        if slot is not None:
            self._ring.release(slot)

    def hand_on(self) -> None:
        """Forget the slot: it goes on with its batch."""
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
) -> Iterator[StagedBatch]:
    """Yield every batch of a plan, fetched and staged in whatever thread iterates, until there is none.

    Parameters
    ----------
    numbered : iterable
        Number and indices of each batch.
    assemble : callable
        Takes them and what gives a slot; stages the batch, or returns None at the end.
    ring : Ring
        Where slots come from.
    meter : Meter
        Counts where the time goes.
    seed, epoch : int
        Of the loader.
    close : callable or None
        Called when nothing more is fetched.

    Raises
    ------
    SampleError
        The dataset raised, or a sample does not fit.
    """
    draw = Draw(seed, epoch)
    spot = _Spot(ring)
    reserve = spot.reserve
    try:
        for number, indices in numbered:
            begun = perf_counter_ns()
            outer = exchange_draw(draw)  # for this batch alone: other loaders are looped over in between
            try:
                staged = assemble(number, indices, reserve)
            finally:
                exchange_draw(outer)
            if staged is None:
                return
            spot.hand_on()
            ended = perf_counter_ns()
            meter.fetched(ended - begun, staged.layout.nbytes)
            mark("fetch", begun, ended)
            yield staged
    finally:
        spot.give_back()
        if close is not None:
            close()
