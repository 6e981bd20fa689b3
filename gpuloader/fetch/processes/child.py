"""Loader's side: handles on child processes, however they were started."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from functools import partial
from time import monotonic
from typing import Any, Protocol

from gpuloader.fetch.processes.serving import STATUS
from gpuloader.system.finalizers import closing_once, once
from gpuloader.system.platforms import kill_process
from gpuloader.system.processes import close_process, open_sentinel


class Child(Protocol):
    """A handle on one child process.

    Attributes
    ----------
    pid : int
        Its process id.
    sentinel : int
        A descriptor that becomes ready when the process dies.
    """

    pid: int
    sentinel: int

    @property
    def released(self) -> bool:
        """Whether the handle is closed."""

    def exit_code(self, wait: float) -> int | None:
        """Return the exit code, or None if the process does not end within `wait` seconds."""

    def kill(self) -> None:
        """Kill the process, unless it has ended."""

    def release(self, *, is_ours: bool) -> None:
        """Close the handle. Wait for the process first, unless it belongs to the process that forked this."""


class _Closing:
    """The descriptors of a handle, which are closed at most once."""

    def __init__(self, *descriptors: int) -> None:
        self._closed: list[bool] = []
        self._close = once(partial(self._closed.append, True), closing_once(*descriptors))

    @property
    def released(self) -> bool:
        """Whether the handle is closed."""
        return bool(self._closed)


class StartedChild(_Closing):
    """A process that `multiprocessing` started, by forking or spawning.

    Parameters
    ----------
    process : multiprocessing.Process
        A started process.
    """

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid: int = process.pid
        self.sentinel = open_sentinel(process)
        super().__init__(*({self.sentinel} - {process.sentinel}))

    def exit_code(self, wait: float) -> int | None:
        """Return the exit code, or None if the process does not end within `wait` seconds."""
        self._process.join(wait)
        code: int | None = self._process.exitcode
        return code

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        if self.sentinel != self._process.sentinel and kill_process(self.sentinel):
            return
        if self._process.is_alive():
            self._process.kill()

    def release(self, *, is_ours: bool) -> None:
        """Close the handle, after waiting for the process if it `is_ours`."""
        if is_ours:
            close_process(self._process)
        self._close()


class ServedChild(_Closing):
    """A process that the fork server forked.

    Parameters
    ----------
    pid : int
        Its process id.
    status : int
        The read end of the pipe that the server writes the exit code to. It is closed without one if the
        server died first.
    descriptor : int or None
        The process descriptor, if the system has those.
    """

    def __init__(self, pid: int, status: int, descriptor: int | None) -> None:
        self.pid = pid
        self.sentinel = status if descriptor is None else descriptor
        super().__init__(*{self.sentinel, status})
        self._status = status
        self._code: int | None = None
        self._has_ended = False

    def exit_code(self, wait: float) -> int | None:
        """Return the exit code; None if the process does not end in time, or the server died before it."""
        if not self._has_ended and wait_for(self._status, wait):
            data = os.read(self._status, STATUS.size)
            self._has_ended = True
            self._code = STATUS.unpack(data)[0] if len(data) == STATUS.size else None
        return self._code

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        if self.sentinel != self._status and kill_process(self.sentinel):
            return
        if not wait_for(self.sentinel, 0):
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def release(self, *, is_ours: bool) -> None:
        """Close the handle, after waiting for the process if it `is_ours`."""
        if is_ours:
            wait_for(self.sentinel, None)
        self._close()


def wait_for(descriptor: int, seconds: float | None) -> bool:
    """Wait until a descriptor is ready, at most `seconds` long (None: no limit); return whether it is."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    deadline = None if seconds is None else monotonic() + max(seconds, 0)
    while True:
        left = None if deadline is None else max(deadline - monotonic(), 0) * 1000
        if poll.poll(left):
            return True
        if deadline is not None and monotonic() >= deadline:
            return False
