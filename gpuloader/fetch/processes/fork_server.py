"""Both ends of the fork server, a process that imports what workers need and forks them.

The loader's end starts one server for all loaders of this process when a loader with workers is made. The
server imports NumPy and this package while the first batches are planned, and then the modules that the
dataset needs. So each of these is imported once per program, not once per worker and epoch. It has one
thread, no CUDA and no lock of the user's program, so forking it is safe and takes milliseconds. It ends when
the loader's process closes the control link or dies.

    loader's process                          fork server                         worker
    Request(modules)           ------------>  imports them
    Request(origins),
      link, status             ------------>  forks  ------------------------->   waits for its process object
    <------------  Forked(pid), process descriptor
    process object             ------------------ over `status` ------------->    run_worker(link)
    <-------- exit code ----- over `status` --  reaps  <-----------------------   ends
"""

# The server is our own, because that of `multiprocessing` preloads modules only before it starts. Everything
# that the worker needs of `multiprocessing` goes through the documented entry of spawned processes,
# `spawn.spawn_main`: the process object that the user's code may look at, the main module, the logging.

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import multiprocessing
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import reduction, resource_tracker, spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gpuloader.errors import LoaderError
from gpuloader.fetch.processes.worker import restrain, run_worker
from gpuloader.system.platforms import after_fork, open_process
from gpuloader.system.processes import (
    ForkedChild,
    describe_death,
    flush_output,
    pickle_process,
    process_link,
    run_pickled,
    wait_for,
    without_main,
)
from gpuloader.system.threads import blocked_interrupts, deferred_interrupt

_GRACE = 1.0  # seconds for a server that closed its link to end
_PRESENT = ("__main__", "__mp_main__", "builtins", "gpuloader", "numpy")  # the server has them, or cannot
# The modules whose objects multiprocessing's resource tracker removes when a program ends.
_TRACKED = {"multiprocessing.shared_memory", "multiprocessing.synchronize"}

# What the server writes to a worker's status link: the exit code, as `multiprocessing` counts it.
STATUS = struct.Struct("<i")


# What the two say to each other.


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process inherits from its parent, and a fork server's child would not."""

    path: list[str]
    folder: str
    environment: dict[str, str]

    @classmethod
    def here(cls) -> Surroundings:
        """Return those of this process now."""
        try:
            folder = str(Path.cwd())
        except OSError:  # it was deleted
            folder = ""
        return cls(list(map(str, sys.path)), folder, dict(os.environ))

    def adopt(self) -> None:
        """Take them over from the process that has sent them."""
        sys.path[:] = self.path
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        if self.environment != dict(os.environ):
            os.environ.clear()
            os.environ.update(self.environment)


@dataclass(frozen=True, slots=True)
class Request:
    """Import modules, and fork a worker unless `origins` is None.

    The worker's link, its status link and perhaps the loader's resource tracker come along as descriptors.
    """

    modules: tuple[str, ...]
    surroundings: Surroundings
    # The files of the modules that the worker will import, as the loader's process knows them.
    origins: dict[str, str] | None = None
    descriptors: int = 0  # how many follow


@dataclass(frozen=True, slots=True)
class Forked:
    """The answer to a request for a worker; its process descriptor comes along, if the system has those."""

    pid: int  # 0 if it was not forked
    problem: str = ""  # why the server cannot fork this worker, if another server could
    error: OSError | None = None  # why the system refused to fork
    descriptors: int = 0


class ServerGone(Exception):
    """The server has closed its end of the control link, or can no longer stand in for a new one."""


def send_request(control: Connection, value: Request | Forked, descriptors: Iterable[int] = ()) -> None:
    """Send a value and copies of the descriptors that it counts; raise `ServerGone` if nobody hears it."""
    try:
        control.send(value)
        for descriptor in descriptors:
            reduction.send_handle(control, descriptor, 0)
    except (ConnectionError, RuntimeError) as error:  # the latter without an acknowledgement, on macOS
        raise ServerGone from error


def receive_request(control: Connection) -> tuple[Any, list[int]]:
    """Wait for a value; return it and the descriptors that came with it.

    Raises
    ------
    ServerGone
        The other end is closed.
    OSError
        This process has too many open files for the descriptors.
    """
    descriptors: list[int] = []
    try:
        value = control.recv()
        while len(descriptors) < value.descriptors:
            descriptors.append(reduction.recv_handle(control))
    except BaseException as error:
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(error, RuntimeError):  # the kernel has dropped a descriptor
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
        if isinstance(error, EOFError | OSError):
            raise ServerGone from error
        raise
    return value, descriptors


# The loader's end.


class ServedChild(ForkedChild):
    """A process that the fork server forked: the server reaps it, and writes the exit code to its link."""

    def exit_code(self, seconds: float) -> int | None:
        """Return the exit code; None if the process does not end in time, or the server died before it."""
        if not self._has_ended and wait_for(self._link, seconds):
            data = os.read(self._link, STATUS.size)
            self._has_ended = True
            self._code = STATUS.unpack(data)[0] if len(data) == STATUS.size else None
        return self._code

    def _kill_by_id(self) -> None:
        # Only while it cannot belong to another process: the server reaps ours.
        if not wait_for(self.sentinel, 0):
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def _join(self) -> None:
        wait_for(self.sentinel, None)


class ForkServer:
    """One running server process; its methods may be called by one thread at a time."""

    def __init__(self) -> None:
        self._loaded: set[str] = set()
        self.control, theirs = multiprocessing.Pipe()
        owner = open_process(os.getpid())
        # With the options and the marker with which `multiprocessing` starts an interpreter.
        command = list(map(os.fsdecode, spawn.get_command_line()))
        command[command.index("-c") + 1] = (
            f"import sys; sys.path[:] = {list(map(str, sys.path))!r}; from {__name__} import serve; "
            f"serve({theirs.fileno()}, {-1 if owner is None else owner})"
        )
        environment = dict(os.environ)
        restrain(environment)  # before the server imports NumPy
        try:
            with blocked_interrupts():
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=[theirs.fileno()] + ([] if owner is None else [owner]),
                )
        except BaseException:
            self.control.close()
            raise
        finally:
            theirs.close()
            if owner is not None:
                os.close(owner)

    def request(
        self, modules: Iterable[str], origins: dict[str, str] | None = None, *descriptors: int
    ) -> None:
        """Make the server import modules that are new to it, and fork a worker if there are `origins`."""
        fresh = []
        for name in modules:
            if not (name.partition(".")[0] in _PRESENT or name in self._loaded or name in _unsafe):
                fresh.append(name)
        self._loaded.update(fresh)
        if fresh or origins is not None:
            # The program may have changed its path, folder or environment since the last request.
            request = Request(tuple(fresh), Surroundings.here(), origins, len(descriptors))
            send_request(self.control, request, descriptors)

    def fork(
        self, number: int, link: socket.socket, modules: Iterable[str], *, needs_main: bool
    ) -> ServedChild:
        """Fork worker `number`, which takes over `link`, and return a handle on it.

        Raises
        ------
        ServerGone
            The server died, a file has changed since it imported that, or a module started threads.
        OSError
            The system forks no more processes, or has no more descriptors.
        """
        origins = {}
        for name in modules:
            if origin := getattr(sys.modules.get(name), "__file__", None):
                origins[name] = origin
        with contextlib.nullcontext() if needs_main else without_main():
            started = pickle_process(f"gpuloader-worker-{number}", _run_forked, number)
        ours, theirs = process_link()
        descriptors = [link.fileno(), theirs.fileno()]
        opened: list[int] = []
        try:
            if _TRACKED & sys.modules.keys():
                # Else a worker that attaches to shared memory would start a tracker of its own, which removes
                # that memory when the worker ends.
                descriptors.append(resource_tracker.getfd() or 0)
            with deferred_interrupt():  # half an exchange would be worse than none
                self.request(modules, origins, *descriptors)
                answer, opened = receive_request(self.control)
                theirs.close()
                if answer.pid:
                    with contextlib.suppress(ConnectionError):  # it has died, as its sentinel will tell
                        ours.sendall(started)
            if answer.problem == "threads":
                _unsafe.update(self._loaded)
            if answer.problem:
                raise ServerGone(answer.problem)
            if answer.error is not None:
                raise answer.error
        except BaseException:
            ours.close()
            theirs.close()
            for descriptor in opened:
                os.close(descriptor)
            raise
        return ServedChild(answer.pid, ours.detach(), opened[0] if opened else None)

    def wait(self, seconds: float) -> int | None:
        """Return the server's exit code, or None if it does not end in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None


_server: ForkServer | None = None
_retired: list[ForkServer] = []  # until they have ended and can be waited for
_lock = threading.Lock()
_unsafe: set[str] = set()  # modules that start threads when they are imported


def prepare_server(modules: Iterable[str] = ()) -> None:
    """Start the fork server if it does not run, and make it import modules, without waiting for it.

    Errors are left to `fork_worker`.
    """
    global _server
    with contextlib.suppress(OSError, ServerGone), _lock:
        _server = _server or ForkServer()
        _server.request(modules)


def fork_worker(
    number: int, link: socket.socket, modules: Iterable[str], *, needs_main: bool = False
) -> ServedChild:
    """Fork worker `number` from the server; another server is started if it died or has become outdated.

    The worker takes over `link`, of which the caller closes its copy. `modules` are what it will import.

    Raises
    ------
    LoaderError
        The server died twice.
    OSError
        The system starts no more processes, or has no more descriptors.
    """
    global _server
    modules = sorted(modules)
    with _lock:
        # Three attempts: the server may be outdated, and the next one may load a module that starts threads.
        for last in (False, False, True):
            try:
                _server = _server or ForkServer()
                return _server.fork(number, link, modules, needs_main=needs_main)
            except ServerGone as error:
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


def _replace_server() -> ForkServer | None:
    """Make the next worker start another server; return the one that ran."""
    global _server
    server, _server = _server, None
    if server is not None:
        # It ends once its last worker has ended, whose exit code it still reports.
        server.control.close()
        _retired.append(server)
    for one in list(_retired):
        if one.wait(0) is not None:
            _retired.remove(one)
    return server


def stop_servers() -> None:
    """End the fork server and those that were replaced; the next worker starts another."""
    _replace_server()
    while _retired:
        process = _retired.pop().process
        process.kill()  # its workers live on
        process.wait()


def _forget_server() -> None:
    """Make this newly forked process start a fork server of its own when it needs one."""
    global _server, _lock
    _lock = threading.Lock()  # a thread that does not exist here may hold the old one
    for server in (_server, *_retired):
        if server is not None:
            server.control.close()  # our copy would keep the server alive
            server.process.returncode = 0  # no child of this process, so nothing to wait for
    _server = None
    _retired.clear()


after_fork(_forget_server)
atexit.register(stop_servers)


# The server's end.


def serve(control: int, owner: int) -> None:
    """Serve one loader's process until it closes the control link.

    `owner` is a descriptor that becomes ready when that process dies, or -1 if the system has none.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked while this process started
    _Server(Connection(control), owner).run()
    os._exit(0)


class _Server:
    def __init__(self, control: Connection, owner: int) -> None:
        self._control = control
        self._owner = owner
        self._children: dict[int, int] = {}  # pid to status link
        self._files: dict[str, tuple[int, int]] = {}  # sources of the user's modules, as they were imported
        self._threads = _count_threads()
        # A signal handler in Python runs only between two instructions, and not while `poll` waits, which
        # this descriptor wakes.
        self._wakeup, self._awakened = os.pipe()
        os.set_blocking(self._awakened, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._awakened, warn_on_full_buffer=False)
        gc.disable()  # a collection would touch the pages that the workers are to share

    def run(self) -> None:
        """Serve requests until the control link closes, and then reap the workers that are left."""
        poll = select.poll()
        for descriptor in (self._control.fileno(), self._wakeup, self._owner):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        is_open = True
        while is_open or self._children:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._owner in ready:  # even if a child of that process holds the control link open
                return
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                self._reap()
            if self._control.fileno() in ready:
                try:
                    request, descriptors = receive_request(self._control)
                    if request.modules:
                        self._load(request)
                    if request.origins is not None:
                        self._fork(request, request.origins, descriptors)
                except ServerGone:
                    is_open = False
                    poll.unregister(self._control)

    def _reap(self) -> None:
        for pid, status_link in list(self._children.items()):
            try:
                found, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # an imported module waits for all children
                found, status = pid, 0
            if found:
                del self._children[pid]
                with contextlib.suppress(OSError):  # the loader may have closed its end
                    os.write(status_link, STATUS.pack(os.waitstatus_to_exitcode(status)))
                os.close(status_link)

    def _load(self, request: Request) -> None:
        request.surroundings.adopt()
        restrain()
        for name in request.modules:
            with contextlib.suppress(BaseException):
                importlib.import_module(name)
        flush_output()  # or every worker would print it again
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if path and path not in self._files and not is_installed(path):
                self._files[path] = _stamp(path)
        gc.freeze()  # a collection in a worker would copy the pages of all these objects

    def _problem(self, origins: dict[str, str]) -> str:
        """Return why a fork of this server would not be as good as a new process, or nothing."""
        if _count_threads() > self._threads:
            return "threads"  # a fork copies no thread, and whatever lock it holds stays locked
        for name, origin in origins.items():
            module = sys.modules.get(name)
            if module is not None and getattr(module, "__file__", None) != origin:
                return "files"  # the program has a module of the same name from another folder
        # As after an edit in a notebook: no worker must run the old code.
        if any(_stamp(path) != known for path, known in self._files.items()):
            return "files"
        return ""

    def _fork(self, request: Request, origins: dict[str, str], descriptors: list[int]) -> None:
        link, status_link, *tracker = descriptors
        try:
            if problem := self._problem(origins):
                send_request(self._control, Forked(0, problem))
                return
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # about other threads
                    pid = os.fork()
            except OSError as error:
                send_request(self._control, Forked(0, "", error))
                return
            if not pid:
                self._be_worker(request, link, status_link, tracker)
            self._children[pid], status_link = status_link, -1
            opened = open_process(pid)
            try:
                passed = [] if opened is None else [opened]
                send_request(self._control, Forked(pid, descriptors=len(passed)), passed)
            finally:
                if opened is not None:
                    os.close(opened)
        finally:
            for descriptor in (link, status_link, *tracker):
                if descriptor >= 0:
                    os.close(descriptor)

    def _be_worker(self, request: Request, link: int, status_link: int, tracker: list[int]) -> None:
        """Run a worker in the newly forked process, and exit."""
        global _worker_link
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            # The worker must not hold the other workers' status links open.
            for descriptor in (self._wakeup, self._awakened, self._owner, *self._children.values()):
                if descriptor >= 0:
                    os.close(descriptor)
            gc.enable()
            request.surroundings.adopt()
            _worker_link = link
            run_pickled(status_link, tracker[0] if tracker else None)
        finally:
            os._exit(1)


_worker_link = -1


def _run_forked(number: int) -> None:
    """Run a worker over the link that came with its request; the target of its process object."""
    run_worker(socket.socket(fileno=_worker_link), number, None)


def _count_threads() -> int:
    """Return how many threads this process has, including those of libraries; 1 if that is unknown."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 1


_STANDARD = str(Path(os.__file__).parent)


def is_installed(path: str) -> bool:
    """Return whether a source file belongs to Python or to an installed package, and so stays as it is.

    >>> is_installed(os.__file__), is_installed("train.py")
    (True, False)
    """
    folders = Path(path).parts
    return "site-packages" in folders or "dist-packages" in folders or path.startswith(_STANDARD)


def _stamp(path: str) -> tuple[int, int]:
    """Return what changes with a file: its time of modification and its size; zeros if it is gone."""
    try:
        status = Path(path).stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
