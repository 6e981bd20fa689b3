"""Errors that a test puts into the package, to show that the attack finds them."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

_kept: list[Any] = []


def _give_slots_back_early() -> None:
    """The slot of a batch is filled again while the user holds the batch."""
    from gpuloader import staging

    def begin(self: Any, owner: Any, freed: Any, interface: Any = None) -> None:
        freed.append(owner)
        self._release = lambda: None
        if interface is not None:
            self.__array_interface__ = interface

    staging.Lease.__init__ = begin  # type: ignore[method-assign]


def _lose_a_batch_at_resume() -> None:
    """A state counts one batch more than the user has received."""
    from gpuloader.api import state

    inner = state.Position.to_json

    def count_one_more(self: state.Position) -> dict[str, Any]:
        found = inner(self)
        return found | {"batches": found["batches"] + 1} if "batches" in found else found

    state.Position.to_json = count_one_more  # type: ignore[method-assign]


def _at_each_epoch(action: Callable[[], object]) -> None:
    from gpuloader.epoch import epoch

    begin = epoch.Epoch.__init__

    def begin_and_act(self: Any, *arguments: Any, **options: Any) -> None:
        action()
        begin(self, *arguments, **options)

    epoch.Epoch.__init__ = begin_and_act  # type: ignore[method-assign]


def _leak_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(3600,), daemon=True, name="leaked").start()


def _leak_a_process() -> None:
    _kept.append(subprocess.Popen(["sleep", "3600"], start_new_session=True))


def _at_each_step(action: Callable[[], object]) -> None:
    from gpuloader.epoch import epoch

    inner = epoch.Epoch.next_step

    def next_step(self: Any, asked: int) -> Any:
        action()
        return inner(self, asked)

    epoch.Epoch.next_step = next_step  # type: ignore[method-assign]


def _hang() -> None:
    """The third step of an epoch never comes."""
    counting = itertools.count(1)

    def next_step() -> None:
        if next(counting) == 3:
            os.write(1, b'{"deadline": 1}\n')  # the attack need not wait for longer
            threading.Event().wait()

    _at_each_step(next_step)


def _swallow_interrupts() -> None:
    """An interrupt, wherever it arrives, ends the epoch at its next step as if it were over."""
    from gpuloader.errors import QueueClosed

    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: heard.append(number))

    def next_step() -> None:
        if heard:
            raise QueueClosed

    _at_each_step(next_step)


def _let_new_processes_hear_interrupts() -> None:
    """A Ctrl-C that comes while a process starts is a traceback of that process."""
    from gpuloader.system import processes

    def hear() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    processes.blocked_interrupts = nullcontext  # type: ignore[assignment]
    os.register_at_fork(after_in_child=hear)


def _raise_bare_errors() -> None:
    """A dead worker is an error that no program expects."""
    from gpuloader.fetch.processes import workers

    workers.died = lambda *_: KeyError("worker")  # type: ignore[assignment]


def _grow() -> None:
    _kept.append(np.ones(16 << 20))


DEFECTS: dict[str, Callable[[], object]] = {
    "": lambda: None,
    "early slot": _give_slots_back_early,
    "lost batch": _lose_a_batch_at_resume,
    "thread": lambda: _at_each_epoch(_leak_a_thread),
    "process": lambda: _at_each_epoch(_leak_a_process),
    "descriptor": lambda: _at_each_epoch(lambda: os.dup(0)),
    "file": lambda: _at_each_epoch(lambda: os.close(tempfile.mkstemp()[0])),
    "memory": lambda: _at_each_epoch(_grow),
    "hang": _hang,
    "swallowed interrupt": _swallow_interrupts,
    "two tracebacks": _let_new_processes_hear_interrupts,
    "bare error": _raise_bare_errors,
}


def install(names: str) -> None:
    """Put a defect, or "one and another", into the package that this process has imported or will import."""
    for name in names.split(" and "):
        DEFECTS[name]()
