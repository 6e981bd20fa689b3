"""The epochs of a loader: which is next, where the user is in it, and how one is opened."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gpuloader.api.state import Position
from gpuloader.batches.readers import ReadSoFar, Stager, stage_all
from gpuloader.batches.staged import StagedBatch
from gpuloader.devices.base import tell_capture
from gpuloader.epoch import epoch as running
from gpuloader.epoch.delivery import Delivery
from gpuloader.epoch.epoch import DeliveredStep, Epoch, Iteration
from gpuloader.errors import Misuse
from gpuloader.fetch.read_ahead import open_fetch
from gpuloader.order.batching import EpochSetter
from gpuloader.order.order import check_whole
from gpuloader.sources.readers.decorators import Reader
from gpuloader.system.finalizers import Finalizer
from gpuloader.system.platforms import usable_cores
from gpuloader.system.threads import deferred_interrupt, this_thread
from gpuloader.watch.meter import Configuration, Meter
from gpuloader.watch.read_ahead_policy import ReadAheadPolicy

if TYPE_CHECKING:
    from gpuloader.transforms.program import Programmer


class Epochs:
    """The epochs of one loader; a subclass per kind of loader defines how they `start` and `open`.

    Any thread may begin an epoch; if several do at the same time, they take turns.

    ::

        start(n) or resume(state) -> Position -> open -> Iteration, whose steps move the Position -> state()
    """

    def __init__(self, meter: Meter, programmer: Programmer | None = None) -> None:
        self._meter = meter
        self._programmer = programmer
        self._transforms = () if programmer is None else programmer.transforms
        # Threads that read the source carry this token, which keeps them from beginning an epoch of this
        # loader.
        self._token = object()
        self._latest: Position | None = None
        self._resumed: Position | None = None
        self._next = 0
        self._epoch_setter: EpochSetter | None = None  # of the user's sampler, if there is one
        # The epoch that `prepare` has opened, from which state, and in which process.
        self._prepared: tuple[Position, Iteration, Position | None, int] | None = None
        # Reentrant: opening an epoch runs the user's code, which may begin another one.
        self._beginning = threading.RLock()

    def deliver_to(self, delivery: Delivery) -> None:
        """Deliver the epochs that begin from now on to these places."""
        self.delivery = delivery
        self._prepared = None
        # A new deque: an epoch that is still running returns its buffers, made for the old places, to the old
        # one.
        self._idle: deque[running.EpochBuffers] = deque(maxlen=1)
        self._kernels: running.KernelsAhead | None = None
        compiling = [*filter(attrgetter("compiles"), delivery.devices)]
        if self._programmer is not None and compiling:
            self._kernels = running.KernelsAhead(compiling)
            self._programmer.planned = self._kernels.begin

    def start(self, epoch: int) -> Position:
        """Return the position at the start of an epoch."""
        return Position(None, epoch)

    def open(self, position: Position, guard: Finalizer) -> Iteration:
        """Open an epoch at a position; dropping the `guard`, older than everything that reads, ends it."""
        raise NotImplementedError

    def check_ready(self) -> None:
        """Raise an error if the calling thread reads the loader's own source, or captures a CUDA graph.

        This is checked without the lock: a thread that reads for an epoch being opened would wait for itself.
        """
        if this_thread.reads_for is self._token:
            raise Misuse(
                "the reader or dataset of a loader began an epoch of the same loader, which would read "
                "itself forever; make another loader for the data that it reads"
            )
        # An allocation or a query would end the capture, so this only asks for the states of streams.
        for device, output in zip(self.delivery.devices, self.delivery.outputs, strict=True):
            if not device.direct and device.is_capturing(output.stream()):
                raise tell_capture(device.name)

    def begin(self, ahead: Position | None = None) -> Iteration:
        """Open the next epoch, or the one to resume; if that fails, nothing has changed."""
        self.check_ready()
        with self._beginning:
            position, epoch = self._open_next(ahead)
            self._resumed, self._latest, self._next = None, position, position.epoch + 1
        return epoch

    def prepare(self) -> None:
        """Open the next epoch and take its first step to its places, for the next `begin`."""
        self.check_ready()
        with self._beginning:
            before = self._prepared
            position, epoch = self._open_next()
            if before is None or epoch is not before[1]:
                epoch.prepare()
            self._prepared = position, epoch, self._resumed, os.getpid()

    def _open_next(self, ahead: Position | None = None) -> tuple[Position, Iteration]:
        # Trainers such as Lightning set the next epoch on their own sampler after loading a state saved at
        # its end.
        if self._resumed is not None and self._epoch_setter is not None:
            moved = self._epoch_setter.find_moved()
            if moved > self._resumed.epoch:
                self.set_epoch(moved)
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[3] == os.getpid():  # a forked child must not read its parent's
            position, epoch, resumed, _ = prepared
            # A state loaded since then comes first.
            if resumed is self._resumed and (resumed is not None or position.epoch == self._next):
                return position, epoch
            epoch.close()
        position = self._resumed or self.start(self._next)
        if ahead is not None and (self._resumed is None or position.seed is None):
            position.seed, position.torch_order = ahead.seed, ahead.torch_order
        for static in self.delivery.statics:
            if static is not None:
                static.refuse_another()
        return position, self.open(position, Finalizer())

    @property
    def next_epoch(self) -> int:
        """The number of the epoch that begins next."""
        return self._next if self._resumed is None else self._resumed.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make that epoch the next one, from its start unless it is the one to resume."""
        number = check_whole("epoch", epoch, 2**64)
        # Trainers load a state and then set its epoch, which must not lose the position in it.
        if self._resumed is None or self._resumed.epoch != number:
            self._resumed = None
        self._latest, self._next = None, number

    def resume(self, position: Position) -> None:
        """Make the next epoch resume at this position."""
        self._resumed = position

    def state(self) -> dict[str, Any]:
        """Return the position to resume at, as plain data."""
        position = self._resumed or self._latest
        if position is None or position.ended:
            position = self.start(self._next)
        return position.to_json()


class ReadingEpochs(Epochs):
    """Epochs read by a single thread: those of a reader, or of another loader's batches."""

    reads: str  # the name of what is read, in explanations
    policy: ReadAheadPolicy | None  # whether reading ahead takes a thread; None if nothing is read ahead
    _places = 1

    def open_reading(
        self,
        position: Position,
        guard: Finalizer,
        source: tuple[Reader, Callable[[], Stager], int],
        capacity: int,
        policy: ReadAheadPolicy | None,
        build: Callable[[StagedBatch, list[Any]], Any],
        ended: Callable[[], None],
        *,
        single: bool = True,
    ) -> Iteration:
        """Open an epoch that one thread reads, up to `capacity` batches ahead if there is a `policy`.

        The `source` is a reader, what makes the function that stages its items, and the items per batch.
        `build` makes what the user gets of a batch and its arrays; a step is a list of these, or of a
        `single` place the batch itself.
        """
        reader, make_stager, items_a_batch = source
        # Read as one pair: while this epoch opens, another thread may set another source with other places.
        delivery, idle = self.delivery, self._idle
        self._places = len(delivery.devices)
        buffers = running.take_buffers(idle, delivery, capacity, self._meter, programmer=self._programmer)
        reached = ReadSoFar(position.batches, items_a_batch, position.own)
        batches = stage_all(reader, make_stager(), buffers.ring, self._meter, reached, self._token)
        # What the loop reads itself starts nothing that a signal could leave behind; deferring takes 10 µs.
        with deferred_interrupt() if policy and policy.threaded else nullcontext():  # until it is guarded
            epoch = Epoch(
                buffers,
                open_fetch(batches, buffers.ring, capacity, policy),
                partial(_build_step, build, position, single and len(delivery.devices) == 1),
                idle,
                drop_last=delivery.drop_last,
                meter=self._meter,
                ended=ended,
                kernels=self._kernels,
            )
            return running.open_epoch(epoch, guard)

    @property
    def configuration(self) -> Configuration:
        """The options that explain a loop's times."""
        threads = int(self.policy is not None and self.policy.threaded)
        return Configuration(self.reads, threads, "thread", usable_cores(), self._places, policy=self.policy)


def _build_step(
    build: Callable[[StagedBatch, list[Any]], Any], position: Position, single: bool, step: DeliveredStep
) -> Any:
    batches: list[Any] = []
    for staged, arrays in step:
        batches.append(build(staged, arrays))
        position.received(staged)
    return batches[0] if single else batches
