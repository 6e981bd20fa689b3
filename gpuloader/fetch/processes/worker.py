"""Worker's side: the child process that fetches samples and writes them into slots. It never uses CUDA."""

from __future__ import annotations

import mmap
import pickle
import random
import socket
import sys
from array import array
from collections import deque
from dataclasses import replace
from importlib import import_module
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.batches.items import ItemState
from gpuloader.batches.staged import StagedBatch
from gpuloader.errors import LoaderError, describe_error
from gpuloader.fetch.contract import WorkerSetup, as_failure
from gpuloader.fetch.processes.messages import NO_BATCH, Kind, Message, dumps, pack_failure, receive, send
from gpuloader.fetch.processes.shipping import unpack
from gpuloader.fields.spec import Indices
from gpuloader.order.randomness import Draw, exchange_draw, mixed_seed
from gpuloader.order.worker_info import WorkerInfo, exchange_worker
from gpuloader.sources.frameworks import tell_worker
from gpuloader.staging import Slot
from gpuloader.system import cores, finalizers, platforms, threads
from gpuloader.system.processes import die_with_parent, enter_depth, flush_output, restrain

_BRIEF = 1000  # characters to send of an error that the link could not pass whole


class _LoaderGone(Exception):
    """The loader has closed the link, so the worker must end."""


class _LinkFailed(Exception):
    """The system did not pass a message; that must not look like an error of the dataset."""


def run_worker(link: socket.socket, number: int, setup: WorkerSetup | None) -> None:
    """Run worker `number` until the link closes; without a `setup`, receive it over the link."""
    threads.take_signals()
    restrain()
    platforms.keep_freed_memory()
    try:
        _Worker(link, number).serve(setup)
    except (_LoaderGone, _LinkFailed):  # there is nobody left to tell
        pass
    finally:
        platforms.close_quietly(link)


class _Worker:
    def __init__(self, link: socket.socket, number: int) -> None:
        self._link = link
        self._number = number
        self._inbox: deque[Message] = deque()  # arrived while this worker waited for a slot
        self._arenas: dict[int, NDArray[np.uint8]] = {}
        self._slots: dict[tuple[int, int], Slot] = {}
        self._told: tuple[Any, ...] = ()  # layout, levels and tree of the last batch
        self._begin_with: ItemState | None = None  # the dataset's own state to load before the next batch

    def serve(self, setup: WorkerSetup | None) -> None:
        first = True
        try:
            die_with_parent()  # first: unpickling the dataset runs the user's code, which may hang
            self._setup = setup or self._receive_setup()
            cores.bind(self._setup.cores)
            enter_depth(self._setup.depth)
            limit_threads()
            if self._setup.fsspec:
                import_module("fsspec.config").conf.update(self._setup.fsspec)
            # NumPy imports its global generator on first use. Done here, an error in that import belongs to
            # the start and not to a sample.
            import numpy.random  # noqa: F401

            self._assembler = self._setup.spec.make_assembler(self._number)
            while True:
                message = self._inbox.popleft() if self._inbox else self._receive()
                if message.kind == Kind.TASK:
                    self._fetch(message)
                elif message.kind == Kind.EPOCH:
                    self._begin_epoch(message, first=first)
                    if first and self._setup.init is not None:
                        self._setup.init(self._number)
                    first = False
                else:
                    self._take(message)
        except (_LoaderGone, SystemExit):
            raise
        except BaseException as error:
            # Not from a task: a thread could not be started, the dataset could not be unpickled,
            # `worker_init_fn` raised, or a message was lost.
            if isinstance(error, _LinkFailed):
                error = LoaderError(str(error))
            try:
                self._send_error(NO_BATCH, error, first=first)
            except _LinkFailed:  # a short message needs no memory file
                self._send_error(NO_BATCH, LoaderError(describe_error(error)[:_BRIEF]), first=first)

    def _receive_setup(self) -> WorkerSetup:
        received: list[int] = []
        try:
            kind = Kind.LIST
            while kind == Kind.LIST:
                message = self._receive()
                assert message.descriptor is not None
                kind = Kind(message.kind)
                received.append(message.descriptor)
            setup: WorkerSetup = unpack(received[-1], received[:-1])
        finally:
            finalizers.closing_once(*received)()
        return setup

    def _receive(self) -> Message:
        try:
            message = receive(self._link)  # without limit: the link closes with the loader
        except OSError as error:
            raise _LinkFailed(f"a message could not be received: {error}") from error
        if message is None:
            raise _LoaderGone
        return message

    def _tell(self, message: Message) -> None:
        try:
            send(self._link, message)
        except ConnectionError:
            raise _LoaderGone from None
        except OSError as error:
            raise _LinkFailed(f"a message could not be sent: {error}") from error

    def _send_error(self, number: int, error: BaseException, *, first: bool = False) -> None:
        flush_output()  # the loader may kill this worker as soon as it has received the error
        self._tell(Message(Kind.ERROR, first, b=number, payload=pack_failure(error)))

    def _begin_epoch(self, message: Message, *, first: bool) -> None:
        seed, epoch, self._serial = message.b, message.c, message.d
        reached: ItemState | None
        reached, self._keeps_state = pickle.loads(message.payload)
        if reached is not None and not self._setup.spec.source.iterable:
            self._begin_with = reached
        exchange_draw(Draw(seed, epoch))
        self._seeds = seed, epoch
        setup, spec = self._setup, self._setup.spec
        self._follows_torch, self._told = bool(message.a), ()
        own = setup.worker_seed(seed, epoch, self._number, follows_torch=self._follows_torch)
        info = WorkerInfo(self._number, setup.count, own, spec.source.dataset, setup.ranks)
        exchange_worker(info)
        if spec.source.iterable:
            self._stream = spec.open_stream(self._assembler, reached or ItemState(self._number, 0))
            if spec.division is not None:  # all ranks and workers read the same items
                own, info = mixed_seed(seed, epoch, 0), replace(info, id=0, num_workers=1)
        if not self._follows_torch:  # also for `worker_init_fn`: a fork has the generators of the program
            seed_globals(own)
        elif first:
            # As PyTorch does when its worker starts. NumPy's generator is of the same kind as Python's, so
            # with the same seed it would draw the same numbers.
            sequence = np.random.SeedSequence([self._number, seed & 0xFFFFFFFF, seed >> 32, 0])
            seed_globals(seed + self._number, sequence.generate_state(4))
        tell_worker(info)

    def _take(self, message: Message) -> None:
        """Handle a message that is not a task: memory to map or to forget."""
        if message.kind == Kind.FORGET:
            self._arenas.pop(message.a, None)
            # The slots refer to the mapping, which is freed with the last of them.
            self._slots = {key: slot for key, slot in self._slots.items() if key[0] != message.a}
            return
        assert message.descriptor is not None
        try:
            memory = np.frombuffer(mmap.mmap(message.descriptor, message.b), np.uint8)
        except OSError as error:  # no memory, or no descriptor for the mapping
            raise _LinkFailed(f"the loader's memory could not be mapped: {error}") from error
        finally:
            finalizers.closing_once(message.descriptor)()
        if message.kind == Kind.SERIAL:
            self._current = memory.view(np.int64)
        else:
            self._arenas[message.a] = memory

    def _fetch(self, task: Message) -> None:
        staged: StagedBatch | None = None
        payload, begun = b"", perf_counter_ns()
        try:
            # A task of an epoch that the loader has left is skipped, but still answered.
            if self._current[0] == self._serial:
                staged = self._stage(task)
            if staged is not None:
                payload = self._describe(staged)
        except (_LoaderGone, _LinkFailed, SystemExit):
            raise
        except BaseException as error:
            self._send_error(task.b, as_failure(error, task.b, self._number))
            return
        if staged is None:
            self._tell(Message(Kind.END, b=task.b))
        else:
            self._tell(Message(Kind.DONE, b=task.b, c=begun, d=perf_counter_ns(), payload=payload))

    def _stage(self, task: Message) -> StagedBatch | None:
        assigned = self._slot(task) if task.e else None

        def reserve(nbytes: int) -> Slot:
            if assigned is not None and assigned.bytes.size >= nbytes:
                return assigned
            return self._ask_for_slot(task.b, nbytes)

        if self._setup.spec.source.iterable:
            return self._stream.stage(task.b, reserve)
        indices: Indices = array("q", task.payload).tolist() if task.a else pickle.loads(task.payload)
        # By batch, so that what the dataset draws does not depend on the number of workers.
        if not self._follows_torch:
            seed_globals(mixed_seed(*self._seeds, task.b, 0, *self._setup.salt))
        dataset = self._setup.spec.source.dataset
        if self._begin_with is not None:  # after `worker_init_fn`, which may seed what the state restores
            dataset.load_state_dict(self._begin_with.state)
            self._begin_with = None
        staged = self._assembler.assemble(task.b, indices, reserve)
        if self._keeps_state:
            staged.state = ItemState(self._number, 0, dataset.state_dict())
        return staged

    def _ask_for_slot(self, number: int, nbytes: int) -> Slot:
        self._tell(Message(Kind.NEED, b=number, c=nbytes))
        while (message := self._receive()).kind != Kind.SLOT:
            if message.kind in (Kind.TASK, Kind.EPOCH):
                self._inbox.append(message)
            else:  # the slot's arena arrives before it
                self._take(message)
        if not message.e:
            raise LoaderError("the loader has no slot for the batch")
        return self._slot(message)

    def _slot(self, message: Message) -> Slot:
        """Return the slot that a message describes; always the same object, because it caches its views."""
        key = message.arena, message.d
        slot = self._slots.get(key)
        if slot is None or slot.bytes.size != message.e:
            arena = self._arenas[message.arena]
            slot = self._slots[key] = Slot(arena[message.d : message.d + message.e], arena)
        return slot

    def _describe(self, staged: StagedBatch) -> bytes:
        """Pickle the facts about a batch that are new to the loader; return nothing if there are none."""
        facts = staged.layout, staged.levels, staged.tree
        is_new = facts != self._told
        if not is_new and not staged.objects and staged.state is None and not staged.skipped:
            return b""
        self._told = facts
        try:
            return dumps((facts if is_new else None, staged.objects, staged.state, staged.skipped))
        except Exception as error:
            self._told = ()  # the loader has not received them
            raise LoaderError(
                f"batch {staged.number} contains a non-array value that cannot be pickled "
                f"({type(error).__name__}: {error}); use worker_type='thread', or drop it in a collate_fn"
            ) from error


# The threads and random numbers of a worker.


def limit_threads() -> None:
    """Limit the libraries that are already imported to one thread each, as PyTorch's own workers do."""
    # More would need thread pools, which a fork does not copy: a worker forked after its parent had computed
    # in parallel would wait for OpenMP's pool forever. And workers share the cores anyway.
    for name, limit in (("torch", "set_num_threads"), ("cv2", "setNumThreads")):
        module = sys.modules.get(name)
        if module is not None:
            getattr(module, limit)(1)
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return
    threadpool_limits(1)


def seed_globals(seed: int, numpys: NDArray[Any] | None = None) -> None:
    """Seed the global generators of Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed if numpys is None else numpys)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)
