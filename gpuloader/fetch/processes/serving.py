"""Server's side: the fork server, a process that imports what workers need and forks them.

It has one thread, no CUDA and no lock of the user's program, so forking it is safe and takes milliseconds.
It ends when the loader's process closes the control socket or dies.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import warnings
from multiprocessing import context, resource_tracker, spawn
from pathlib import Path
from typing import Any

from gpuloader.fetch.processes import worker
from gpuloader.fetch.processes.control import (
    Fork,
    Forked,
    Load,
    ServerGone,
    Surroundings,
    receive_frame,
    send_frame,
)
from gpuloader.fetch.processes.reporting import flush_output
from gpuloader.fetch.processes.surroundings import restrain
from gpuloader.system.platforms import open_process

_STANDARD = str(Path(os.__file__).parent)

STATUS = struct.Struct("<i")
"""What the server writes to a worker's status pipe: the exit code, as `multiprocessing` counts it."""


def serve(control: int, owner: int, owner_pid: int) -> None:
    """Serve one loader's process until it closes the control socket.

    Parameters
    ----------
    control : int
        The descriptor of the control socket.
    owner : int
        A descriptor that becomes ready when that process dies; -1 if its pid has to do.
    owner_pid : int
        That process's id.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    with socket.socket(fileno=control) as link:
        _Server(link, owner, owner_pid).run()
    os._exit(0)


class _Server:
    def __init__(self, control: socket.socket, owner: int, owner_pid: int) -> None:
        self._control = control
        self._owner = owner
        self._owner_pid = owner_pid
        self._children: dict[int, int] = {}  # pid to status pipe
        self._files: dict[str, tuple[int, int]] = {}  # sources of the user's modules, as they were imported
        self._threads = count_threads()
        self._wakeup, awakened = os.pipe()
        os.set_blocking(awakened, False)
        self._awakened = awakened
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(awakened, warn_on_full_buffer=False)
        gc.disable()

    def run(self) -> None:
        """Serve requests until the control socket closes, and then reap the workers that are left."""
        poll = select.poll()
        for descriptor in (self._control.fileno(), self._wakeup, self._owner):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        is_open = True
        while is_open or self._children:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._owner in ready:
                return
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                self._reap()
            if self._control.fileno() in ready:
                try:
                    self._answer(*receive_frame(self._control))
                except ServerGone:
                    is_open = False
                    poll.unregister(self._control)

    def _answer(self, request: Load | Fork, descriptors: list[int]) -> None:
        if isinstance(request, Load):
            self._load(request)
        else:
            self._fork(request, descriptors)

    def _reap(self) -> None:
        for pid, pipe in list(self._children.items()):
            try:
                found, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # an imported module waits for all children
                found, status = pid, 0
            if found:
                del self._children[pid]
                with contextlib.suppress(OSError):  # the loader may have closed its end
                    os.write(pipe, STATUS.pack(os.waitstatus_to_exitcode(status)))
                os.close(pipe)

    def _load(self, request: Load) -> None:
        adopt(request.surroundings)
        restrain()
        for name in request.modules:
            with contextlib.suppress(BaseException):
                importlib.import_module(name)
        flush_output()  # or every worker would print it again
        for path in users_files():
            if path not in self._files:
                self._files[path] = stamp(path)
        gc.freeze()  # a collection in a worker would copy the pages of all these objects

    def _problem(self, request: Fork) -> str:
        """Return why a fork of this server would not be what a new server's would be, or nothing."""
        if count_threads() > self._threads:
            return "threads"
        for name, origin in request.origins.items():
            module = sys.modules.get(name)
            if module is not None and getattr(module, "__file__", None) != origin:
                return "files"
        if any(stamp(path) != known for path, known in self._files.items()):
            return "files"
        return ""

    def _fork(self, request: Fork, descriptors: list[int]) -> None:
        link, pipe, *tracker = descriptors
        try:
            if problem := self._problem(request):
                send_frame(self._control, Forked(0, problem))
                return
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # about other threads
                    pid = os.fork()
            except OSError as error:
                send_frame(self._control, Forked(0, "", error))
                return
            if not pid:
                self._be_worker(request, link, tracker)
            self._children[pid] = pipe
            pipe = -1
            opened = open_process(pid)
            try:
                send_frame(self._control, Forked(pid), None if opened is None else [opened])
            finally:
                if opened is not None:
                    os.close(opened)
        finally:
            for descriptor in (link, pipe, *tracker):
                if descriptor >= 0:
                    os.close(descriptor)

    def _be_worker(self, request: Fork, link: int, tracker: list[int]) -> None:
        """Run a worker in the newly forked process, and exit."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            for descriptor in (self._wakeup, self._awakened, *self._children.values()):
                os.close(descriptor)
            gc.enable()
            adopt(request.surroundings)
            if tracker:
                known: Any = resource_tracker._resource_tracker
                known._fd = tracker[0]
            spawn.prepare(request.preparation)
            code = self._make_process(request.number, link)._bootstrap(parent_sentinel=self._owner)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _make_process(self, number: int, link: int) -> Any:
        """Return the process object that `multiprocessing` shows to the dataset's code."""
        made: Any = context.Process(
            target=worker.run,
            args=(socket.socket(fileno=link), number, None),
            name=f"gpuloader-worker-{number}",
            daemon=True,
        )
        made._parent_pid = self._owner_pid
        return made


def adopt(surroundings: Surroundings) -> None:
    """Take over another process's module path, current folder and environment variables."""
    sys.path[:] = surroundings.path
    with contextlib.suppress(OSError):
        os.chdir(surroundings.folder)
    if surroundings.environment != dict(os.environ):
        os.environ.clear()
        os.environ.update(surroundings.environment)


def count_threads() -> int:
    """Return how many threads this process has, including those of libraries; 1 if that is unknown."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 1


def users_files() -> list[str]:
    """Return the source files of all imported modules that are not installed packages."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [path for path in files if path and not is_installed(path)]


def is_installed(path: str) -> bool:
    """Return whether a source file belongs to Python or to an installed package, and so stays as it is.

    >>> is_installed(os.__file__), is_installed("train.py")
    (True, False)
    """
    folders = Path(path).parts
    return "site-packages" in folders or "dist-packages" in folders or path.startswith(_STANDARD)


def stamp(path: str) -> tuple[int, int]:
    """Return what changes with a file: its time of modification and its size; zeros if it is gone."""
    try:
        status = Path(path).stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
