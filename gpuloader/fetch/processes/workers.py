"""Loader's side: a pool of worker processes, each as the loader sees it, and one epoch fetched with them.

From top to bottom: how workers start, one worker, the pool, one epoch, and the error when a worker dies.
"""

from __future__ import annotations

import errno
import os
import pickle
import select
import socket
import sys
import weakref
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloader.batches.items import ItemState
from gpuloader.batches.staged import StagedBatch
from gpuloader.errors import LoaderError, StagingMemoryError, WorkerError, in_a_fork, warn
from gpuloader.fetch.contract import EpochRequest, WorkerOptions, WorkerSetup, failed_alone, timed_out
from gpuloader.fetch.jobs import Job, Window
from gpuloader.fetch.processes.messages import NO_BATCH, Kind, Message, dumps, receive, send, unpack_failure
from gpuloader.fetch.processes.shipping import Parcel, Unshippable, names_module, pack
from gpuloader.fetch.processes.worker import run_worker
from gpuloader.fields.spec import Indices, plain_indices
from gpuloader.foreign import jax_has_computed
from gpuloader.sources.packed import pack_list
from gpuloader.staging import Arena, Slot
from gpuloader.system import processes
from gpuloader.system.finalizers import Finalizer
from gpuloader.system.platforms import message_pair
from gpuloader.system.threads import LONGEST_WAIT, deferred_interrupt, exit_first
from gpuloader.watch.meter import WORKER, mark

if TYPE_CHECKING:
    from gpuloader.fetch.processes.fork_server import ForkServer

# Seconds that a worker has to end by itself once its link is closed; then it is killed.
GRACE = 1.0

# Seconds that persistent workers have to draw what PyTorch's would have drawn in an abandoned epoch.
REST = 5.0

# Workers to start before the first batch is requested; the others start while the loop waits or runs.
FIRST = 2

# With ``on_worker_death='respawn'``, this many workers may die at the same batch before it is an error.
MOST_DEATHS = 3

_NAMED = 8  # the most samples that a message about a dead worker lists


# A list of at least this many bytes of pickle is packed. A forked worker copies 80 to 90 % of a list by
# counting references to its items, and any other worker unpickles it (``benchmarks/start_method.py``).
_PACKED_NBYTES = 32 << 20


_said: set[str] = set()


def choose_start(setup: WorkerSetup, method: str | None) -> tuple[str, WorkerSetup, Parcel | None, str]:
    """Choose how workers start: by `method`, or if that is None like `multiprocessing`, if that is safe.

    Returns 'fork', 'forkserver' or 'spawn'; the setup, whose dataset may have been packed; the pickled setup,
    None for forked workers, which inherit it; and a sentence for `explain`.

    Raises
    ------
    LoaderError
        The dataset cannot be pickled, and the method needs that.
    StagingMemoryError
        There is too little memory for a copy of the dataset's arrays, which the method needs.
    """
    packed = pack_list(setup.spec.source.dataset, _PACKED_NBYTES)
    if packed is not None:
        source = replace(setup.spec.source, dataset=packed)
        setup = replace(setup, spec=setup.spec._replace(source=source))
    chosen = method or processes.default_method()
    why = "start_method chose that" if method else "multiprocessing does so here"
    why = f"Workers start by {chosen!r}: {why}."
    if chosen != "fork":
        return chosen, setup, _pack(setup), why
    if jax_has_computed():
        hazard = "JAX has computed in this process"
    elif method is None and "polars" in sys.modules and names_module(setup, "polars"):
        hazard = "the dataset refers to Polars"
    else:
        return chosen, setup, None, why
    parcel = None
    if method is None:
        with suppress(LoaderError, StagingMemoryError):
            parcel = _pack(setup)
        if parcel is not None and parcel.needs_main:
            # Importing the main module in the server could run the whole program again.
            parcel.close()
            parcel = None
    if parcel is None:
        why = (
            f"Workers are forked although {hazard}, so they may hang: pass start_method='forkserver', which "
            "needs a dataset that can be pickled, or worker_type='thread'."
        )
    else:
        chosen = "forkserver"
        why = f"Workers start by 'forkserver', because {hazard}, so that forked ones may hang."
    if why not in _said:
        _said.add(why)
        warn(why, RuntimeWarning)
    return chosen, setup, parcel, why


def _pack(setup: WorkerSetup) -> Parcel:
    try:
        return pack(setup)
    except Unshippable as reason:
        what = str(reason).removeprefix("WorkerSetup.").removeprefix("spec.").removeprefix("source.")
        raise LoaderError(
            f"the dataset cannot be sent to worker processes: {what}; make "
            "it picklable, or pass start_method='fork' or worker_type='thread'"
        ) from reason


# One worker process as the loader sees it, from its start to its end.


class WorkerProcess:
    """A handle on one worker process; creating it starts the process."""

    def __init__(self, number: int, pool: Pool) -> None:
        self.number = number
        self.jobs: deque[Job] = deque()  # sent and not answered, oldest first
        # Layout, levels and tree of its last batch; the worker sends them only when they change.
        self.facts: tuple[Any, ...] = ()
        # Messages for which the link has no room yet, each with an object to keep alive while it waits.
        self.unsent: deque[tuple[Message, object]] = deque()
        self.awaits_room = False  # the loader polls the link for room
        self.deaths = 0  # workers with this number that died in a row without answering anything
        self._arenas: dict[int, weakref.ref[Arena]] = {}
        self._finalizer = Finalizer()  # at exit, a thread may be about to start the process
        parcel = pool.parcel
        try:
            with processes.starting(), processes.linking(message_pair()) as (self.link, theirs):
                self.child = _start_worker(pool, number, theirs)
        except OSError as error:
            raise LoaderError(f"worker {number} could not be started: {error}") from error
        self._finalizer.watch(partial(_end, self.link, self.child))
        if parcel is not None:
            for one in parcel.lists:
                self.send(Message(Kind.LIST, descriptor=one.descriptor))
            self.send(Message(Kind.SETUP, descriptor=parcel.descriptor))
        assert pool.board is not None
        self.send(Message(Kind.SERIAL, b=pool.board.nbytes, descriptor=pool.board.descriptor))

    def send(self, message: Message, keep: object = None) -> None:
        """Send a message without waiting; one to a dead worker is lost, and its sentinel reports the death.

        If the link is full, the message is sent after the worker has answered others: if both sides waited
        for space, neither would read. `keep` is kept alive until then.

        Raises
        ------
        LoaderError
            Too few descriptors or too little memory to send it.
        """
        if not self.unsent:  # otherwise it would overtake them
            try:
                send(self.link, message, socket.MSG_DONTWAIT)
                return
            except BlockingIOError:
                pass
            except ConnectionError:
                return
            except OSError as error:
                raise LoaderError(f"could not send a message to worker {self.number}: {error}") from error
        self.unsent.append((message, keep))

    def flush(self) -> None:
        """Send as many waiting messages as the link has space for; raises the errors of `send`."""
        waiting, self.unsent = self.unsent, deque()
        while waiting and not self.unsent:
            self.send(*waiting.popleft())
        self.unsent += waiting

    def show(self, slot: Slot) -> tuple[int, int, int]:
        """Return a slot's arena number, offset and size, after sending the worker the arena if it is new."""
        arena = slot.memory
        assert isinstance(arena, Arena)
        number = arena.number
        if number not in self._arenas:
            for gone, shown in list(self._arenas.items()):
                if shown() is None:
                    del self._arenas[gone]
                    self.send(Message(Kind.FORGET, a=gone))
            self._arenas[number] = weakref.ref(arena)
            self.send(Message(Kind.ARENA, a=number, b=arena.nbytes, descriptor=arena.descriptor), arena)
        return number, slot.address - arena.address, slot.bytes.size

    def end(self) -> None:
        """Kill the process, and free everything that this object refers to; may be called again."""
        self._finalizer()

    @property
    def is_closed(self) -> bool:
        """Whether `end` has run."""
        return not self._finalizer.alive


def _start_worker(pool: Pool, number: int, link: socket.socket) -> processes.ChildHandle:
    """Start worker `number`, which takes over its end of the link; the caller holds `starting()`."""
    parcel = pool.parcel
    if pool.server is not None and parcel is not None:
        return pool.server.fork(number, link, parcel)
    setup = pool.setup if parcel is None else None  # a forked worker inherits it
    with nullcontext() if parcel is None or parcel.needs_main else processes.without_main():
        return processes.start_child(
            pool.method, f"gpuloader-worker-{number}", run_worker, link, number, setup
        )


def _end(link: socket.socket, child: processes.ChildHandle) -> None:
    """Kill and reap a worker and close its descriptors; a forked child only closes its copies of them."""
    processes.close_link(link)
    child.end()


def close_all(workers: list[WorkerProcess], grace: float) -> None:
    """Stop workers; those still at a task after `grace` seconds are killed."""
    for one in workers:
        with suppress(OSError):
            one.link.shutdown(socket.SHUT_RDWR)  # the worker ends after its current task
    deadline = monotonic() + grace
    for one in workers:
        if not one.is_closed:
            processes.wait_for(one.child.sentinel, deadline - monotonic())
        one.end()


class Pool:
    """Worker processes for one epoch or for many; `server` is the fork server of an earlier pool."""

    def __init__(
        self, setup: WorkerSetup, method: str | None, count: int, server: ForkServer | None = None
    ) -> None:
        self.process = os.getpid()
        self.serial = 0
        self.workers: list[WorkerProcess] = []
        self.method, self.setup, self.parcel, self.why = choose_start(setup, method)
        self.server = None
        if self.method == "forkserver":
            from gpuloader.fetch.processes.fork_server import ForkServer

            self.server = server or ForkServer()
        # Not the pool itself: it could not be dropped then.
        self._parts = self.workers, self.parcel, self.process
        self._finalizer = Finalizer(partial(_close_pool, *self._parts))
        self.board: Arena | None = None
        try:
            # Shared with the workers: the serial of the current epoch, whose tasks they do not skip.
            self.board = Arena(8, shared=True)
            self.current = self.board.bytes.view(np.int64)
            self.resize(count)
            exit_first()  # before what `multiprocessing` has registered, which ends things a dataset may use
        except BaseException:
            self.close()
            raise

    def resize(self, count: int) -> None:
        """Stop surplus workers, or start the first ones; call it between epochs, when all are idle."""
        surplus = self.workers[count:]
        del self.workers[count:]
        close_all(surplus, GRACE)
        while len(self.workers) < min(count, FIRST):
            self.start_next()

    def start_next(self) -> WorkerProcess:
        """Start and return another worker; raise `LoaderError` if the system cannot start a process."""
        worker = WorkerProcess(len(self.workers), self)
        self.workers.append(worker)
        return worker

    def dumps(self, value: Any) -> bytes:
        """Pickle a value for the workers; only forked ones have our main module."""
        return dumps(value, by_value=self.method != "fork")

    def pack_indices(self, indices: Indices) -> tuple[bool, bytes]:
        """Return indices as bytes, and whether these are int64 numbers; otherwise they are a pickle."""
        if isinstance(indices, np.ndarray):
            return True, indices.astype(np.int64, copy=False).tobytes()
        # Only plain integers become numbers: a dataset may use strings, tuples or booleans.
        if type(indices) is range or set(map(type, indices)) <= {int}:
            with suppress(OverflowError):
                return True, array("q", indices).tobytes()
        return False, self.dumps(list(indices))

    def close(self, grace: float = GRACE) -> None:
        """Stop all workers, killing them after `grace` seconds; may be called again."""
        self.board = None  # this closes its descriptor
        _close_pool(*self._parts, grace)
        self._finalizer.end()


def _close_pool(
    workers: list[WorkerProcess], parcel: Parcel | None, owner: int, grace: float = GRACE
) -> None:
    """Stop a pool's workers, and close what it shares with them."""
    ended = workers.copy()
    workers.clear()
    try:
        if owner == os.getpid():
            close_all(ended, grace)
    finally:  # a Ctrl-C may cut the wait for the workers short
        if parcel is not None:
            parcel.close()


# One epoch.


@dataclass(eq=False)
class ProcessWorkers:
    """Fetches one epoch with a pool of worker processes; only the consumer calls the methods.

    A task goes to the worker with the fewest tasks; for an iterable dataset, and in PyTorch's order, to each
    in turn. With many workers, the first batch does not wait until all have started: another one starts with
    each batch, and while the consumer waits.

    `give_back` takes the pool when the epoch ends; its workers have ended unless they persist.
    """

    pool: Pool
    window: Window
    epoch: EpochRequest
    options: WorkerOptions
    give_back: Callable[[Pool], object]

    def __post_init__(self) -> None:
        pool, epoch, options = self.pool, self.epoch, self.options
        self._by_index = epoch.reached is None
        self._has_looked = self._broken = self._closing = False
        self._reached: dict[int, ItemState] = dict(epoch.reached or epoch.own or {})
        self._active = options.count
        self._sent = 0
        # Workers skip tasks of other epochs, so the rest of an abandoned epoch costs no time.
        pool.serial += 1
        pool.current[0] = pool.serial
        self._poll = select.poll()
        self._by_descriptor: dict[int, WorkerProcess] = {}
        for worker in pool.workers:
            self._begin(worker)

    def _begin(self, worker: WorkerProcess) -> None:
        """Listen to a worker and tell it about the epoch."""
        for descriptor in (worker.link.fileno(), worker.child.sentinel):
            self._by_descriptor[descriptor] = worker
            self._poll.register(descriptor, select.POLLIN)
        worker.awaits_room = False
        epoch, pool = self.epoch, self.pool
        message = Message(Kind.EPOCH, epoch.follows_torch, b=epoch.seed, c=epoch.epoch, d=pool.serial)
        message.payload = pool.dumps((self._reached.get(worker.number), epoch.own is not None))
        worker.facts = ()  # in an abandoned epoch it may have missed some
        worker.send(message)

    def _start_next(self) -> bool:
        """Start a missing worker; return False if none is missing, or no task is left for it."""
        pool = self.pool
        if len(pool.workers) >= self._active or (self.window.exhausted and self._by_index):
            return False
        with deferred_interrupt():  # between the start and the first message, nobody knows the worker
            self._begin(pool.start_next())
        return True

    def resize(self, workers: int, ahead: int) -> None:
        """Use `workers` workers from now on, and keep up to `ahead` batches in progress.

        Surplus workers finish their tasks and then idle until the epoch ends.
        """
        self._active = workers
        while self._start_next():
            pass
        self.window.ahead = ahead

    def get(self) -> StagedBatch:
        """Wait for the next batch and return it.

        Raises
        ------
        QueueClosed
            The epoch is over.
        SampleError
            The dataset raised, or a sample does not fit its field.
        WorkerError
            A worker died; a `WorkerTimeout` if none answered in time.
        LoaderError
            A worker could not start, a batch could not be pickled, or this is a forked process.
        """
        deadline = monotonic() + self.options.timeout if self.options.timeout else None
        while (staged := self._take()) is None:
            if self._start_next():
                continue
            left = None if deadline is None else min(max(deadline - monotonic(), 0), LONGEST_WAIT) * 1000
            if not self._hear(left) and deadline is not None and monotonic() >= deadline:
                raise self._time_out()
        self._start_next()
        return staged

    def get_nowait(self) -> StagedBatch | None:
        """Return the next batch, or None if `get` would wait; raises like `get`."""
        staged = self._take()
        if staged is None:
            self._hear(0)
            staged = self._take()
        return staged

    def _take(self) -> StagedBatch | None:
        if os.getpid() != self.pool.process:
            raise in_a_fork("the loader's worker processes")
        if self._broken:
            raise LoaderError(
                "the epoch was interrupted in the middle of a message to or from a worker; start a new one"
            )
        if not self._has_looked:
            self._has_looked = True
            self._hear(0)  # notices workers that died since the last epoch
        try:
            # As PyTorch does, replace a batch before it is delivered, not with the next request: the worker
            # begins while the user computes, and if that fails, nothing is lost.
            ready = self.window.is_ready
            while ready and self.epoch.follows_torch and self._start_next():
                pass  # each asks the user's sampler for indices, which may depend on when it is asked
            self._hand_out(spare=int(ready))
            return self.window.deliver()
        except KeyboardInterrupt:  # perhaps in the middle of a message
            self._broken = True
            raise

    def _hand_out(self, spare: int = 0) -> None:
        while (worker := self._next_worker()) is not None:
            job = self.window.next_job(spare)
            if job is None:
                return
            job.worker = worker.number
            worker.jobs.append(job)
            self._sent += 1
            self._send_task(worker, job)

    def _next_worker(self) -> WorkerProcess | None:
        workers = self.pool.workers
        if self.window.turns is not None:
            turn = self.window.whose_turn()  # -1 once none has items left; the window then has no job
            return workers[turn] if turn < len(workers) else None
        worker = workers[0]
        for other in workers[1 : self._active]:
            if len(other.jobs) < len(worker.jobs):
                worker = other
        # No worker gets a second batch while another, perhaps yet to start, has none.
        return None if worker.jobs and len(workers) < self._active else worker

    def _send_task(self, worker: WorkerProcess, job: Job) -> None:
        arena, offset, size = (0, 0, 0) if job.slot is None else worker.show(job.slot)
        are_numbers, payload = self.pool.pack_indices(job.indices)
        worker.send(Message(Kind.TASK, are_numbers, arena, job.number, d=offset, e=size, payload=payload))

    def _hear(self, milliseconds: float | None) -> bool:
        """Handle the answers and deaths that arrive in time (None: no limit); return False if none do."""
        for worker in self.pool.workers:
            # A worker that has requested a slot says nothing until it has one, and the answer may be among
            # the waiting messages. So space in its link has to wake this process as well.
            if bool(worker.unsent) != worker.awaits_room and worker.link.fileno() in self._by_descriptor:
                worker.awaits_room = not worker.awaits_room
                events = select.POLLIN | select.POLLOUT if worker.awaits_room else select.POLLIN
                self._poll.modify(worker.link.fileno(), events)
        # A process descriptor reports a death even if a child of the worker holds its link open.
        try:
            ready = self._poll.poll(milliseconds)
        except OSError as error:
            if error.errno == errno.EAGAIN:  # POSIX: another attempt may succeed
                sleep(processes.PAUSE)
                return False
            raise LoaderError(f"could not wait for the workers: {error}; free some memory") from error
        try:
            for descriptor, events in ready:
                worker = self._by_descriptor[descriptor]
                if events == select.POLLOUT:
                    worker.flush()
                elif descriptor == worker.child.sentinel or not self._receive(worker):
                    self._bury(worker)
                    break  # the other ready descriptors may have been closed and reused
        except KeyboardInterrupt:  # perhaps in the middle of a message
            self._broken = True
            raise
        return bool(ready)

    def _receive(self, worker: WorkerProcess) -> bool:
        """Receive and handle one message of a worker; return False if the worker closed the link."""
        try:
            message = receive(worker.link, socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise
        except OSError as error:
            self._broken = True  # perhaps a message was lost
            raise LoaderError(f"could not receive a message of worker {worker.number}: {error}") from error
        if message is None:
            return False
        if worker.unsent:
            worker.flush()
        if message.b == NO_BATCH:
            self._broken = True
            raise failed_alone(worker.number, unpack_failure(message.payload), first=bool(message.a))
        worker.deaths = 0
        job = worker.jobs[0]
        if message.kind == Kind.NEED:
            self._grant(worker, job, message)
            return True
        worker.jobs.popleft()
        if not job.done:
            try:
                self._finish(worker, job, message)
            except Exception as error:
                problem = f"batch {job.number} contains a non-array value that cannot be unpickled: {error!r}"
                job.finish(None, LoaderError(problem).with_traceback(error.__traceback__))
        return True

    def _finish(self, worker: WorkerProcess, job: Job, message: Message) -> None:
        if message.kind == Kind.ERROR:
            job.finish(None, unpack_failure(message.payload))
        elif message.kind == Kind.END:
            job.finish(None)
        else:
            begun, end = message.c, message.d
            job.busy = end - begun
            mark("fetch", begun, end, f"{WORKER}-{worker.number}")
            objects, state, skipped = (), None, ()
            if message.payload:
                facts, objects, state, skipped = pickle.loads(message.payload)
                worker.facts = facts or worker.facts
            if isinstance(state, ItemState):
                self._reached[worker.number] = state
            assert job.slot is not None
            layout, levels, tree = worker.facts
            staged = StagedBatch(job.slot, layout, levels, job.number, tree, objects, state)
            staged.skipped = skipped
            job.finish(staged)

    def _grant(self, worker: WorkerProcess, job: Job, message: Message) -> None:
        """Answer a worker's request for a slot: send it one, or refuse and end the job with the error."""
        try:
            if self._closing:
                raise LoaderError("the epoch is over")
            slot = self.window.reserve(job, message.c)
        except Exception as error:
            job.finish(None, error)
            worker.send(Message(Kind.SLOT))
            return
        arena, offset, size = worker.show(slot)
        worker.send(Message(Kind.SLOT, arena=arena, d=offset, e=size))

    def _bury(self, worker: WorkerProcess) -> None:
        """Handle the last messages of a dead worker, then replace it.

        Raises
        ------
        WorkerError
            Workers are not to be replaced, or too many died at the same batch.
        """
        with suppress(BlockingIOError):
            while self._receive(worker):  # what it said before it died counts
                pass
        # A job can be done twice: its slot is written from the start, and delivered only once answered.
        held = list(worker.jobs)
        if held:
            held[0].deaths += 1
        worker.deaths += 1
        deaths = max(worker.deaths, held[0].deaths if held else 0)
        if not self.options.respawn or self._closing or deaths > MOST_DEATHS:
            self._broken = True
            raise died(worker, worker.child.exit_code(GRACE), held)
        with deferred_interrupt():
            for descriptor in (worker.link.fileno(), worker.child.sentinel):
                del self._by_descriptor[descriptor]
                self._poll.unregister(descriptor)
            worker.end()
            fresh = self.pool.workers[worker.number] = WorkerProcess(worker.number, self.pool)
            fresh.deaths = worker.deaths
            self._begin(fresh)
            fresh.jobs = worker.jobs
            for job in held:
                self._send_task(fresh, job)

    def _time_out(self) -> LoaderError:
        job = next((job for job in self.window.jobs if not job.done), None)
        worker = self.pool.workers[job.worker if job is not None else 0]
        self._broken = True  # nobody knows what the worker was doing, so the epoch cannot continue
        worker.child.kill()  # a hanging worker does not end by itself
        who = f"worker {worker.number} (process {worker.child.pid})"
        number, indices = (None, ()) if job is None else (job.number, job.indices)
        return timed_out(who, worker.child.pid, self.options.timeout, number, indices)

    def close(self) -> bool:
        """Cancel all tasks, stop the workers unless they persist, and take all slots back.

        Return whether the slots may be used again. They may not if they belong to the process that forked
        this one, or if the garbage collector has already ended the workers.
        """
        pool = self.pool
        if os.getpid() != pool.process:
            return False
        deadline = monotonic() + GRACE
        intact = bool(pool.workers) and not any(worker.is_closed for worker in pool.workers)
        may_stay = intact and self.options.persistent and not self._broken
        stays = False
        try:
            if may_stay and self.window.turns is not None and self.epoch.follows_torch:
                self._draw_rest(monotonic() + REST)
            self._closing, deadline = True, monotonic() + GRACE
            stays = may_stay and not self._broken and self._call_off(deadline)
        finally:
            self._closing = True
            if not stays:
                pool.close(max(deadline - monotonic(), 0))
            self.window.drop(unfinished=True)
            self.give_back(pool)
        return intact

    def _draw_rest(self, deadline: float) -> None:
        """Fetch what PyTorch's workers would have been asked for by now, without delivering it."""
        # PyTorch's workers fetch it before the next epoch begins, and its random numbers follow from there.
        window, options = self.window, self.options
        asked = window.delivered + options.count * options.prefetch_factor
        with suppress(LoaderError, OSError):
            while not self._broken and monotonic() < deadline:
                window.drop(unfinished=False)
                window.ahead = len(window.jobs) + max(asked - self._sent, 0)
                self._hand_out()
                if not any(worker.jobs for worker in self.pool.workers):
                    return
                self._hear(max(deadline - monotonic(), 0) * 1000)

    def _call_off(self, deadline: float) -> bool:
        """Make the workers finish or skip their tasks; return False if that takes longer than `deadline`."""
        self.pool.current[0] = -1  # workers check this before each task, and skip it
        try:
            while any(worker.jobs for worker in self.pool.workers):
                if monotonic() > deadline:
                    return False
                self._hear(max(deadline - monotonic(), 0) * 1000)
        except (LoaderError, OSError):
            return False
        return True


def died(worker: WorkerProcess, code: int | None, held: list[Job]) -> WorkerError:
    """Return the error for a worker that died with an exit code while it held these jobs."""
    cause, signal = processes.describe_death(code)
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
    pid = worker.child.pid
    problem = f"worker {worker.number} (process {pid}) {cause} while it {doing}{hint}"
    return WorkerError(problem, pid=pid, signal=signal, indices=indices)


def _ordinal(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
