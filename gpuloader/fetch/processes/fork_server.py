"""Both ends of the fork server, a process that imports what one loader's workers need, and forks them.

    loader's process                            fork server                     worker
    number, modules, link, status  -------->    imports them, forks  ------->   run_worker(link)
    <-------- pid ------ over `control` ----
    <----- exit code --- over `status` -----    reaps  <---------------------   ends

The server has one thread, no CUDA and no locks of the user's program, so forking it is safe and takes
milliseconds. A loader keeps its server; an edited source file therefore reaches only the next loader. The
server ends with its loader, and kills a worker whose `status` closes.
"""

# We have our own server, because that of `multiprocessing` serves the whole program and would import a
# changed file in the middle of a training.

# The server imports NumPy only once it is restrained: see `serve`.

from __future__ import annotations

import errno
import importlib
import multiprocessing
import os
import pickle
import socket
import struct
import sys
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuloader.errors import LoaderError, warn
from gpuloader.system import processes
from gpuloader.system.cores import read_text
from gpuloader.system.finalizers import Finalizer, Living, closing_once
from gpuloader.system.platforms import close_quietly, open_process
from gpuloader.system.threads import deferred_interrupt, take_signals

if TYPE_CHECKING:
    from gpuloader.fetch.processes.shipping import Parcel

_GRACE = 1.0  # seconds for a server that closed its link, or a worker, to end

# What the server writes to `status` at the end: the exit code, in `multiprocessing`'s convention.
_CODE = struct.Struct("<i")


# The loader's end.


class ServedChild(processes.ChildHandle):
    """A process that the fork server has forked; its sentinel is our end of `status`."""

    def __init__(self, pid: int, status: int) -> None:
        super().__init__(pid, status, closing_once(status))

    def _is_gone(self) -> bool:
        if not self._has_ended and processes.wait_for(self.sentinel, 0):
            data = b""
            with suppress(OSError):
                data = os.read(self.sentinel, _CODE.size)
            self._has_ended = True
            # If the server was killed, nobody knows the code.
            self._code = _CODE.unpack(data)[0] if len(data) == _CODE.size else None
        return self._has_ended

    def _kill_by_id(self) -> None:
        # The server kills it, because the id may belong to another process once the server has reaped ours.
        with suppress(OSError):
            status = socket.socket(fileno=self.sentinel)
            try:
                status.shutdown(socket.SHUT_WR)
            finally:
                status.detach()


# The control link, the process, and its workers.
_Server = tuple[socket.socket, processes.ChildHandle, Living[ServedChild]]


class ForkServer:
    """Forks the workers of a loader, from a process that it starts for the first; callers hold `starting`."""

    def __init__(self) -> None:
        # The last one serves. A worker of another epoch may come from one before it.
        self._servers: list[_Server] = []
        self._inherited: tuple[object, ...] = ()
        self._imports = True
        self._finalizer = Finalizer(partial(_stop, self._servers))

    def fork(self, number: int, link: socket.socket, parcel: Parcel) -> ServedChild:
        """Fork worker `number`, which takes over `link`; the caller then closes its own copy.

        Raises
        ------
        LoaderError
            The server died twice.
        OSError
            The system cannot start another process, or has no descriptors left.
        """
        # Three attempts: the server may have been killed, and the next one may import a module with threads.
        for _ in range(3):
            # A server for a main module has run that module, as its workers would have to.
            inherited = (parcel.needs_main, *_inherited())
            if not self._servers or self._inherited != inherited:
                self._inherited = inherited
                with nullcontext() if parcel.needs_main else processes.without_main():
                    self._start()
            try:
                child = self._request(number, link, sorted(parcel.modules) if self._imports else [])
            except ConnectionError:  # the server has gone
                _, server, _ = self._servers[-1]
                cause, _ = processes.describe_death(server.exit_code(_GRACE))
                _stop(self._servers)
                continue
            except BaseException:
                _stop(self._servers)  # perhaps it was in the middle of a message
                raise
            if isinstance(child, OSError):  # keep the server: it has other workers
                raise child
            if isinstance(child, ServedChild):
                return child
            self._imports = False
            _stop(self._servers)
            warn(
                f"importing {child} starts threads, which a fork would not copy, so every worker imports "
                "what the dataset needs by itself; keep workers with persistent_workers=True, or pass "
                "start_method='fork'",
                RuntimeWarning,
            )
        raise LoaderError(
            f"the fork server {cause} while it started worker {number}; pass start_method='fork' or "
            "'spawn', or worker_type='thread'"
        )

    def _start(self) -> None:
        for one in self._servers.copy():
            if all(worker.released for worker in one[2]):
                _stop([one])
                self._servers.remove(one)
        with processes.linking(processes.process_link()) as (control, theirs):
            server = processes.start_child("spawn", "gpuloader-fork-server", serve, theirs)
        self._servers.append((control, server, Living()))

    def _request(self, number: int, link: socket.socket, modules: list[str]) -> ServedChild | str | OSError:
        """Return worker `number`, the name of a module that starts threads, or why the server refuses."""
        control, _, workers = self._servers[-1]
        ours, theirs = processes.process_link()
        try:
            with deferred_interrupt(), control.makefile("rb") as answers:  # an exchange is never cut in half
                socket.send_fds(control, [b"\0"], [link.fileno(), theirs.fileno()])
                control.sendall(pickle.dumps((number, modules)))
                # No time limit, because importing may take any time; it ends with the server.
                found: int | str | OSError = pickle.load(answers)
            if not isinstance(found, int):
                return found
            child = ServedChild(found, ours.detach())
            workers.add(child)
            return child
        except (EOFError, pickle.UnpicklingError):
            raise ConnectionResetError from None
        finally:
            close_quietly(ours, theirs)


def _stop(servers: list[_Server]) -> None:
    """End the servers and their workers; the next worker starts another."""
    while servers:
        control, server, _ = servers[-1]
        processes.close_link(control)
        server.end()
        servers.pop()


def _inherited() -> tuple[object, ...]:
    """Return what this process would hand down to a new one, and a running server does not have."""
    try:
        folder = str(Path.cwd())
    except OSError:  # it was deleted
        folder = ""
    status = read_text("/proc/self/status")
    names = ("Umask:", "Uid:", "Gid:", "Groups:", "Cap", "Cpus_allowed:")
    status = "\n".join(line for line in status.splitlines() if line.startswith(names))
    limits = read_text("/proc/self/limits")
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    return os.getpid(), tuple(map(str, sys.path)), folder, dict(os.environ), status, limits, niceness


# The server's end.


def serve(control: socket.socket) -> None:
    """Fork workers until the loader closes the control link or its process dies."""
    take_signals()
    processes.restrain()
    # As late as this, so that the libraries that NumPy loads start no threads.
    from gpuloader.fetch.processes.worker import run_worker

    parent = multiprocessing.parent_process()
    assert parent is not None
    owner = open_process(parent.pid or 0)
    watched: list[int] = [control.fileno(), int(parent.sentinel) if owner is None else owner]
    workers: dict[int, tuple[processes.OwnChild, socket.socket]] = {}  # by either of their descriptors

    def work(link: int, number: int, *inherited: int) -> None:
        close_quietly(control)
        closing_once(*inherited)()  # an open copy would hide a death from the loader
        run_worker(socket.socket(fileno=link), number, None)

    def fork() -> int | str | OSError:
        """Handle a request, and return the answer."""
        _, received, _, _ = socket.recv_fds(control, 1, 2)
        with control.makefile("rb") as requests:
            number, modules = pickle.load(requests)
        status: socket.socket | None = None
        try:
            if len(received) < 2:  # descriptors that the system could not open here are missing
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if culprit := _import(modules):
                return culprit
            status = socket.socket(fileno=received[1])
            received.pop()
            others = {status.fileno(), *workers, *[child.link for child, _ in workers.values()]}
            others |= set() if owner is None else {owner}
            child = processes.fork_child(f"gpuloader-worker-{number}", work, received[0], number, *others)
        except OSError as error:
            close_quietly(*filter(None, [status]))
            number = error.errno or errno.EIO
            return OSError(number, f"{os.strerror(number)} (in the fork server)")
        else:
            for descriptor in (child.sentinel, status.fileno()):
                workers[descriptor] = child, status
            return child.pid
        finally:
            closing_once(*received)()

    while True:
        # One at a time, because handling it may close others.
        descriptor = processes.wait_for_any([*watched, *workers], None)[0]
        if descriptor == control.fileno():
            try:
                control.sendall(pickle.dumps(fork()))
            except (EOFError, OSError, pickle.UnpicklingError):  # the loader is gone, or no memory is left
                os._exit(0)
        elif descriptor not in workers:
            os._exit(0)
        else:
            child, status = workers[descriptor]
            if descriptor != child.sentinel:
                del workers[descriptor]
                child.kill()
                continue
            code = child.exit_code(_GRACE)
            for one in (child.sentinel, status.fileno()):
                workers.pop(one, None)
            child.end()  # it may only have closed its link
            with suppress(OSError), status:
                if code is not None:  # unknown if the program ignores SIGCHLD, and so this server, too
                    status.sendall(_CODE.pack(code))


def _import(modules: list[str]) -> str:
    """Import modules; return the name of the first that starts threads, or nothing."""
    for name in modules:
        before = _count_threads()
        with suppress(BaseException):  # the worker that needs it will raise the error
            importlib.import_module(name)
        if _count_threads() > before:
            return name
    processes.flush_output()  # otherwise every worker would print it again
    return ""


def _count_threads() -> int:
    """Return how many threads this process has, including those of libraries; 1 if that is unknown."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 1
