"""Loader's side: the fork server, shared by all loaders of this process.

The server is started when a loader with worker processes is made. It imports NumPy and this package while the
first batches are planned, and then the modules that the dataset needs. So each of these is imported once per
program, not once per worker and epoch. `serving` is the other side.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker, spawn
from pathlib import Path

from gpuloader.errors import LoaderError
from gpuloader.fetch.processes.child import ServedChild
from gpuloader.fetch.processes.control import (
    Fork,
    Forked,
    Load,
    ServerGone,
    Surroundings,
    receive_frame,
    send_frame,
)
from gpuloader.fetch.processes.surroundings import restrain
from gpuloader.system.interrupts import blocked_interrupts, deferred_interrupt
from gpuloader.system.platforms import after_fork, open_process
from gpuloader.system.processes import describe_death

_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve({control}, {owner}, {pid})"
_SERVING = "gpuloader.fetch.processes.serving"
_GRACE = 1.0  # seconds for a server that closed its socket to end
_PRESENT = ("__main__", "__mp_main__", "builtins", "gpuloader", "numpy")  # the server has them, or cannot


class _Retired(Exception):
    """The server can no longer stand in for a new one; the message says why."""


class ForkServer:
    """One running server process; its methods may be called by one thread at a time."""

    def __init__(self) -> None:
        self._loaded: set[str] = set()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        owner = open_process(os.getpid())
        passed = [theirs.fileno()] + ([] if owner is None else [owner])
        program = _PROGRAM.format(
            path=list(map(str, sys.path)),
            module=_SERVING,
            control=theirs.fileno(),
            owner=-1 if owner is None else owner,
            pid=os.getpid(),
        )
        environment = dict(os.environ)
        restrain(environment)
        options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        executable = os.fsdecode(spawn.get_executable())
        try:
            with blocked_interrupts():
                self._process = subprocess.Popen(
                    [executable, *options, "-c", program],
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=passed,
                )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
            if owner is not None:
                os.close(owner)

    def load(self, modules: Iterable[str]) -> None:
        """Make the server import modules that it has not imported yet, without waiting for it."""
        fresh = [
            name
            for name in modules
            if name.partition(".")[0] not in _PRESENT and name not in self._loaded | _unsafe
        ]
        if fresh:
            self._loaded.update(fresh)
            send_frame(self._control, Load(tuple(fresh), surroundings()))

    def fork(
        self, number: int, link: socket.socket, modules: Iterable[str], *, needs_main: bool
    ) -> ServedChild:
        """Fork worker `number`, which takes over `link`, and return a handle on it.

        Raises
        ------
        ServerGone
            The server died.
        _Retired
            A file has changed since the server imported it, or a module started threads.
        OSError
            The system forks no more processes, or has no more descriptors.
        """
        self.load(modules)
        origins = {name: origin for name in modules if (origin := find_origin(name))}
        tracker = getattr(resource_tracker._resource_tracker, "_fd", None)
        with contextlib.nullcontext() if needs_main else without_main():
            preparation = spawn.get_preparation_data(f"gpuloader-worker-{number}")
        preparation["authkey"] = bytes(preparation["authkey"])  # which its own type refuses to pickle
        request = Fork(number, origins, surroundings(), preparation, tracker is not None)
        status, theirs = os.pipe()
        try:
            with deferred_interrupt():
                descriptors = [link.fileno(), theirs] + ([] if tracker is None else [tracker])
                send_frame(self._control, request, descriptors)
                answer, opened = receive_frame(self._control)
            os.close(theirs)
            theirs = -1
            assert isinstance(answer, Forked)
            if answer.problem == "threads":
                _unsafe.update(self._loaded)
            if answer.problem:
                raise _Retired(answer.problem)
            if answer.error is not None:
                raise answer.error
        except BaseException:
            os.close(status)
            if theirs >= 0:
                os.close(theirs)
            raise
        return ServedChild(answer.pid, status, opened[0] if opened else None)

    def retire(self) -> None:
        """Let the server end once its last worker has ended, whose exit code it still reports."""
        self._control.close()

    def kill(self) -> None:
        """End the server at once; its workers live on."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def wait(self, seconds: float) -> int | None:
        """Return the server's exit code, or None if it does not end in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def forget(self) -> None:
        """Close this forked process's copies of what belongs to its parent."""
        self._control.close()
        self._process.returncode = 0  # no child of this process, so nothing to wait for


_server: ForkServer | None = None
_retired: list[ForkServer] = []  # until they have ended and can be waited for
_lock = threading.Lock()
_unsafe: set[str] = set()  # modules that start threads when they are imported


def prepare_server(modules: Iterable[str] = ()) -> None:
    """Start the fork server if it does not run, and make it import modules, without waiting for it.

    Errors are left to `fork_worker`.
    """
    with contextlib.suppress(OSError, ServerGone), _lock:
        _running().load(modules)


def fork_worker(
    number: int, link: socket.socket, modules: Iterable[str], *, needs_main: bool = False
) -> ServedChild:
    """Fork worker `number` from the server, which is started anew if it died or has become outdated.

    Parameters
    ----------
    number : int
        The worker's number.
    link : socket
        The worker's end of its link; the caller closes its copy.
    modules : iterable of str
        What the worker will import.
    needs_main : bool
        Whether the worker has to import the user's main module.

    Raises
    ------
    LoaderError
        The server died twice.
    OSError
        The system starts no more processes, or has no more descriptors.
    """
    modules = sorted(modules)
    with _lock:
        for last in (False, False, True):
            try:
                return _running().fork(number, link, modules, needs_main=needs_main)
            except (ServerGone, _Retired) as error:
                server = _replace_server()
                if last:
                    cause, _ = describe_death(None if server is None else server.wait(_GRACE))
                    raise LoaderError(
                        f"the fork server {cause} while it started worker {number}; pass start_method='fork' "
                        "or 'spawn', or worker_type='thread'"
                    ) from error
            except BaseException:
                _replace_server()  # perhaps it was in the middle of a message
                raise
    raise AssertionError


def _running() -> ForkServer:
    global _server
    if _server is None:
        _server = ForkServer()
        _server.load(_wished_modules())
    return _server


def _replace_server() -> ForkServer | None:
    """Make the next worker start another server; return the one that ran."""
    global _server
    server, _server = _server, None
    if server is not None:
        server.retire()
        _retired.append(server)
    for one in list(_retired):
        if one.wait(0) is not None:
            _retired.remove(one)
    return server


def stop_servers() -> None:
    """End the fork server and those that were replaced; the next worker starts another."""
    _replace_server()
    while _retired:
        _retired.pop().kill()


def _forget_server() -> None:
    """Make this newly forked process start a fork server of its own when it needs one."""
    global _server, _lock
    _lock = threading.Lock()  # a thread that does not exist here may hold the old one
    for server in (_server, *_retired):
        if server is not None:
            server.forget()
    _server = None
    _retired.clear()


after_fork(_forget_server)
atexit.register(stop_servers)


def _wished_modules() -> list[str]:
    """Return the modules that the program asked `multiprocessing` to preload in its fork server."""
    return list(getattr(forkserver._forkserver, "_preload_modules", []))


def surroundings() -> Surroundings:
    """Return where this process finds modules, its folder and its environment."""
    try:
        folder = str(Path.cwd())
    except OSError:  # it was deleted
        folder = ""
    return Surroundings(list(map(str, sys.path)), folder, dict(os.environ))


def find_origin(name: str) -> str | None:
    """Return the source file of an imported module; None if it has none."""
    origin: str | None = getattr(sys.modules.get(name), "__file__", None)
    return origin


@contextmanager
def without_main() -> Iterator[None]:
    """Stop processes that start meanwhile from importing the user's main module: the whole program."""
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    # `multiprocessing` decides by these two what a child imports.
    main.__spec__ = None
    if path is not None:
        del main.__file__
    try:
        yield
    finally:
        main.__spec__ = spec
        if path is not None:
            main.__file__ = path
