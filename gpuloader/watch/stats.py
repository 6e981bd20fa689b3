"""Where the time goes: a few counters that are always on, and cost well under a microsecond a batch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from time import perf_counter_ns
from typing import Any
from weakref import ref

from gpuloader.staging.ring import Ring
from gpuloader.watch.tracing import is_tracing, mark

_NANOSECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """A snapshot of what a loader has done since it was made; all times in seconds.

    ``startup + wait + transfer + compute`` is the time its loops have taken, the consumer's whole day; the
    other times run beside it, in workers, in the reader's thread and on copy streams. Where the consumer
    itself fetches, `fetch` and `stage` are part of `wait`. The difference of two snapshots is what happened
    between them.

    Attributes
    ----------
    steps : int
        Steps delivered.
    batches : int
        Batches staged, those that are still ahead of the consumer among them.
    nbytes : int
        Their bytes.
    fetch : float
        Spent in the user's reader or dataset, summed over all workers. Where samples are written into the
        slot as they come (`set_sample_generator`, datasets) the writing counts here too.
    stage : float
        Spent writing batches into slots.
    stall : float
        The fetcher waited for a free slot or for room in the queue: the consumer is the slower side.
    copy : float
        The copy streams' time on copies and transforms, estimated from one in eight (all, in a trace).
    startup : float
        The consumer waited for the first step of an epoch: workers start, memory is reserved.
    wait : float
        The consumer waited for later batches: the input is the slower side.
    transfer : float
        The consumer's time on issuing copies and handing batches over. The copies themselves run beside it.
    compute : float
        The consumer's own time between one step and asking for the next.
    slots : int
        Host slots of the latest epoch; 0 before its first batch.
    slots_in_use : int
        Those of them that are being filled, waiting, under copy or held by the user, right now.

    Examples
    --------
    >>> from gpuloader import DataLoader
    >>> loader = DataLoader(range(100), places="cpu", batch_size=10)
    >>> for batch in loader: pass
    >>> stats = loader.stats()
    >>> stats.steps, stats.nbytes, stats.steps_per_second > 0, (stats - stats).steps
    (10, 800, True, 0)
    """

    steps: int
    batches: int
    nbytes: int
    fetch: float
    stage: float
    stall: float
    copy: float
    startup: float
    wait: float
    transfer: float
    compute: float
    slots: int
    slots_in_use: int

    @property
    def seconds(self) -> float:
        """How long the loops over the loader have taken."""
        return self.startup + self.wait + self.transfer + self.compute

    @property
    def steps_per_second(self) -> float:
        """Steps a second while looping; 0 before the first."""
        return self.steps / self.seconds if self.steps else 0.0

    def __sub__(self, earlier: LoaderStats) -> LoaderStats:
        """Return what happened since an earlier snapshot; the slots are those of now."""
        if not isinstance(earlier, LoaderStats):
            return NotImplemented
        flows = [field.name for field in fields(self) if not field.name.startswith("slots")]
        changes: dict[str, Any] = {name: getattr(self, name) - getattr(earlier, name) for name in flows}
        return replace(self, **changes)


class Meter:
    """The counters behind `LoaderStats`, in nanoseconds; one writer a counter, so no lock."""

    __slots__ = (
        "_ring", "batches", "compute", "copy", "fetch", "nbytes", "stage", "stall", "startup", "steps",
        "transfer", "wait",
    )  # fmt: skip

    def __init__(self) -> None:
        self.steps = self.batches = self.nbytes = 0
        self.fetch = self.stage = self.stall = self.copy = 0
        self.startup = self.wait = self.transfer = self.compute = 0
        self._ring: ref[Ring] | None = None

    def watch(self, ring: Ring) -> None:
        """Count the slots of this ring, that of the latest epoch."""
        self._ring = ref(ring)

    def staged(self, begun: int, fetched: int, ready: int, nbytes: int) -> None:
        """Count one batch: `begun` reading, `fetched`, slot `ready` to be written, and written now."""
        now = perf_counter_ns()
        self.batches += 1
        self.nbytes += nbytes
        self.fetch += fetched - begun
        self.stall += ready - fetched
        self.stage += now - ready
        if is_tracing():
            mark("fetch", begun, fetched)
            mark("stage", ready, now)

    def fetched(self, busy: int, nbytes: int) -> None:
        """Count one batch, fetched and written into its slot; whoever did it was `busy` with it so long."""
        self.batches += 1
        self.nbytes += nbytes
        self.fetch += busy

    def delivered(self, asked: int, waited: int, handed: int, *, first: bool) -> None:
        """Count one step: `asked` for, `waited` for so long, `handed` over; perhaps an epoch's first."""
        self.steps += 1
        if first:
            self.startup += waited
        else:
            self.wait += waited
        self.transfer += handed - asked - waited

    def snapshot(self) -> LoaderStats:
        """Return the counters, times as seconds."""
        ring = None if self._ring is None else self._ring()
        slots = ring.count if ring is not None and ring.allocated else 0
        return LoaderStats(
            steps=self.steps,
            batches=self.batches,
            nbytes=self.nbytes,
            fetch=self.fetch * _NANOSECONDS,
            stage=self.stage * _NANOSECONDS,
            stall=self.stall * _NANOSECONDS,
            copy=self.copy * _NANOSECONDS,
            startup=self.startup * _NANOSECONDS,
            wait=self.wait * _NANOSECONDS,
            transfer=self.transfer * _NANOSECONDS,
            compute=self.compute * _NANOSECONDS,
            slots=slots,
            slots_in_use=slots - ring.free if ring is not None and slots else 0,
        )
