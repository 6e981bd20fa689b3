"""Worker's side: the child process, which fetches samples and writes them into slots. It never uses CUDA."""

from __future__ import annotations

import mmap
import os
import pickle
import socket
from collections import deque
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.batches.items import ItemState
from gpuloader.batches.stream import StagedBatch
from gpuloader.errors import LoaderError
from gpuloader.fetch.inline import as_failure
from gpuloader.fetch.processes.reporting import flush_output, pack_failure
from gpuloader.fetch.processes.setup import Setup
from gpuloader.fetch.processes.shipping import unpack
from gpuloader.fetch.processes.surroundings import limit_threads, load_generators, restrain, seed_globals
from gpuloader.fetch.processes.wire import NO_BATCH, NO_ROW, Board, Kind, Message, dumps, receive, send
from gpuloader.fields.spec import Indices
from gpuloader.order.randomness import begin_draws, mixed_seed
from gpuloader.order.worker_info import WorkerInfo, enter_worker
from gpuloader.sources.frameworks import tell_worker
from gpuloader.staging.ring import Slot
from gpuloader.system.cores import bind
from gpuloader.system.interrupts import take_signals
from gpuloader.system.platforms import keep_freed_memory
from gpuloader.system.processes import die_with_parent
from gpuloader.system.rereading import enter_depth


class _Gone(Exception):
    """The loader has closed the link, so the worker must end."""


def run(link: socket.socket, number: int, setup: Setup | None) -> None:
    """Run worker `number` until the link closes; without a `setup`, receive it over the link."""
    take_signals()
    restrain()
    keep_freed_memory()
    try:
        _Worker(link, number).serve(setup)
    except _Gone:
        pass
    finally:
        link.close()


class _Worker:
    def __init__(self, link: socket.socket, number: int) -> None:
        self._link = link
        self._number = number
        self._inbox: deque[Message] = deque()
        self._arenas: dict[int, NDArray[np.uint8]] = {}
        self._slots: dict[tuple[int, int], Slot] = {}
        self._told: tuple[Any, ...] = ()

    def serve(self, setup: Setup | None) -> None:
        try:
            die_with_parent()
            self._setup = setup or self._receive_setup()
            bind(self._setup.cores)
            enter_depth(self._setup.depth)
            limit_threads()
            load_generators()
            self._assembler = self._setup.reading.make_assembler(self._number)
            first = True
            while True:
                message = self._next()
                if message.kind == Kind.EPOCH:
                    self._begin_epoch(message)
                    if first and self._setup.init is not None:
                        self._setup.init(self._number)
                    first = False
                elif message.kind == Kind.TASK:
                    self._fetch(message)
                else:
                    self._take(message)
        except (_Gone, SystemExit):
            raise
        except BaseException as error:
            # Not from a task: a thread could not be started, the dataset could not be unpickled, or
            # `worker_init_fn` raised.
            self._send_error(NO_BATCH, error)

    def _receive_setup(self) -> Setup:
        received: list[int] = []
        try:
            kind = Kind.LIST
            while kind == Kind.LIST:
                message = self._next()
                assert message.descriptor is not None
                kind = Kind(message.kind)
                received.append(message.descriptor)
            setup: Setup = unpack(received[-1], received[:-1])
        finally:
            for descriptor in received:
                os.close(descriptor)
        return setup

    def _next(self) -> Message:
        return self._inbox.popleft() if self._inbox else self._receive()

    def _tell(self, message: Message) -> None:
        try:
            send(self._link, message)
        except ConnectionError:  # must not look like one that the dataset raised
            raise _Gone from None

    def _receive(self) -> Message:
        message = receive(self._link)
        if message is None:
            raise _Gone
        return message

    def _begin_epoch(self, message: Message) -> None:
        seed, epoch, self._serial = message.b, message.c, message.d
        reached: ItemState | None = pickle.loads(message.payload)
        begin_draws(seed, epoch)
        self._seeds = seed, epoch
        setup, reading = self._setup, self._setup.reading
        own = mixed_seed(seed, epoch, self._number, *setup.standing.salt)
        info = WorkerInfo(self._number, setup.count, own, reading.dataset, setup.standing.ranks)
        enter_worker(info)
        if reading.iterable:
            self._stream = reading.open_stream(self._assembler, reached or ItemState(self._number, 0))
            if reading.division is not None:  # all ranks and workers read the same items
                own, info = mixed_seed(seed, epoch, 0), replace(info, id=0, num_workers=1)
            seed_globals(own)
        tell_worker(info)

    def _take(self, message: Message) -> None:
        """Handle a message that is not a task: memory to map or to forget."""
        if message.kind == Kind.FORGET:
            self._arenas.pop(message.a, None)
            self._slots = {key: slot for key, slot in self._slots.items() if key[0] != message.a}
            return
        assert message.descriptor is not None
        try:
            if message.kind == Kind.BOARD:
                self._board = Board(message.descriptor, message.a, message.b)
            else:
                mapping = mmap.mmap(message.descriptor, message.b)
                self._arenas[message.a] = np.frombuffer(mapping, np.uint8)
        finally:
            os.close(message.descriptor)

    def _fetch(self, task: Message) -> None:
        if self._board.serial[0] != self._serial:
            self._tell(Message(Kind.END, b=task.b))
            return
        begun = perf_counter_ns()
        try:
            staged = self._stage(task)
            payload = b"" if staged is None else self._describe(staged)
        except (_Gone, SystemExit):
            raise
        except BaseException as error:
            self._send_error(task.b, as_failure(error, task.b, self._number))
            return
        if staged is None:
            self._tell(Message(Kind.END, b=task.b))
            return
        self._tell(Message(Kind.DONE, b=task.b, c=begun, d=perf_counter_ns(), payload=payload))

    def _stage(self, task: Message) -> StagedBatch | None:
        assigned = self._slot(task) if task.e else None

        def reserve(nbytes: int) -> Slot:
            if assigned is not None and assigned.bytes.size >= nbytes:
                return assigned
            return self._ask_for_slot(task.b, nbytes)

        if self._setup.reading.iterable:
            return self._stream.stage(task.b, reserve)
        indices = self._indices(task)
        seed_globals(mixed_seed(*self._seeds, task.b, 0, *self._setup.standing.salt))
        return self._assembler.assemble(task.b, indices, reserve)

    def _indices(self, task: Message) -> Indices:
        if task.a == NO_ROW:
            indices: Indices = pickle.loads(task.payload)
            return indices
        listed: list[int] = self._board.rows[task.a, : task.c].tolist()
        return listed

    def _ask_for_slot(self, number: int, nbytes: int) -> Slot:
        self._tell(Message(Kind.NEED, b=number, c=nbytes))
        while (message := self._receive()).kind != Kind.SLOT:
            if message.kind in (Kind.TASK, Kind.EPOCH):
                self._inbox.append(message)
            else:
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
        look = staged.layout, staged.levels, staged.tree
        is_new = look != self._told
        if not is_new and not staged.objects and staged.state is None and not staged.skipped:
            return b""
        self._told = look
        try:
            return dumps((look if is_new else None, staged.objects, staged.state, staged.skipped))
        except Exception as error:
            self._told = ()
            raise LoaderError(
                f"batch {staged.number} contains a non-array value that cannot be pickled "
                f"({type(error).__name__}: {error}); use worker_type='thread', or drop it in a collate_fn"
            ) from error

    def _send_error(self, number: int, error: BaseException) -> None:
        flush_output()
        self._tell(Message(Kind.ERROR, b=number, payload=pack_failure(error)))
