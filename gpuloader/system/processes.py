"""Child processes: one function starts them, a handle reports their death, and none outlives its parent.

Imported late, because it imports `multiprocessing`.
"""

from __future__ import annotations

import _thread
import gc
import math
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EAGAIN, ENOMEM
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NoReturn, TypeVar

from gpuloader.errors import LoaderError, describe_error
from gpuloader.system.finalizers import Living, closing_once, once
from gpuloader.system.platforms import after_fork, close_quietly, kill_process, open_process
from gpuloader.system.threads import at_exit, at_last, blocked_interrupts, end_if_exiting

# Starting.


def default_method() -> str:
    """Return how `multiprocessing` starts processes: as the program has set it, or by Python's default.

    >>> default_method() in multiprocessing.get_all_start_methods()
    True
    """
    # Not `get_start_method()`: after that call, the program could no longer set it.
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


_starting = threading.Lock()
_LONGEST_START = 5.0  # seconds


def starting() -> threading.Lock:
    """Return the lock to hold while starting a process, so that only one starts at a time.

    Raises
    ------
    LoaderError
        The working directory was deleted; no process can start in it.
    """
    try:
        Path.cwd()  # `multiprocessing` asks for it
    except OSError as error:
        raise LoaderError(
            f"no process can start, because this program's working directory was deleted ({error}); change "
            "to another one with os.chdir"
        ) from error
    # If another thread forked a child now, that child would inherit this child's end of the pipe and hide its
    # death.
    return _starting


def _wait_for_start() -> None:
    """Wait until no process is half started."""
    # A spawned process prints a traceback if its parent ends before it has sent what to run.
    if _starting.acquire(timeout=_LONGEST_START):
        _starting.release()


def _begin_as_child() -> None:
    global _starting, _children
    _starting = threading.Lock()  # the parent held the inherited one while it forked
    _children = Living()  # the inherited ones are siblings of this process, which must not end them
    # An open copy of a link would hide the parent's death from its workers, and keep their servers alive.
    while _links:
        close_quietly(_links.pop())


after_fork(_begin_as_child)
at_exit(_wait_for_start)


def start_child(method: str, name: str, target: Callable[..., object], *arguments: object) -> ChildHandle:
    """Start a daemon by 'fork' or 'spawn', and return a handle on it; the caller holds `starting`.

    SIGINT is blocked in the process until it calls `take_signals`, so a Ctrl-C in a terminal produces one
    traceback, that of the program, and none of its children's.

    Raises
    ------
    OSError
        The system cannot start another process.
    """
    end_if_exiting()
    if method == "fork":
        return fork_child(name, target, *arguments)
    process: Any = multiprocessing.get_context("spawn").Process(
        target=target, args=arguments, name=name, daemon=True
    )
    # Not by its `start`: multiprocessing refuses that in a daemon, and records the process. At exit, this
    # process and all forked from it would then kill it or wait for it. Ours end with their parent.
    launch = process._Popen
    if os.name == "posix":
        resource_tracker.ensure_running()  # starting it later unblocks SIGINT
        from multiprocessing.popen_spawn_posix import Popen

        class Launch(Popen):
            def _launch(self, process_obj: Any) -> None:
                # Since Python 3.14, this is raised for a process that died before it read what to run, which
                # would then never be reaped. Its handle reports the death and the exit code.
                with suppress(BrokenPipeError):
                    super()._launch(process_obj)  # type: ignore[misc]

        launch = Launch

    def spawn() -> OwnChild:
        popen = launch(process)
        return OwnChild(popen.pid, popen.sentinel, popen)

    return _begin(spawn)


def _begin(start: Callable[[], OwnChild]) -> OwnChild:
    """Start a process with SIGINT blocked; end it again if a Ctrl-C came meanwhile."""
    child: OwnChild | None = None
    try:
        with blocked_interrupts():
            child = start()
    except BaseException:
        if child is not None:
            child.end()
        raise
    return child


# Forking. If the system refuses to fork, multiprocessing leaves open the pipes that it has created for the
# new process. So we fork ourselves, and the child then does what a forked `multiprocessing.Process` does.


def fork_child(name: str, target: Callable[..., object], *arguments: object) -> OwnChild:
    """Fork a process that runs a function, as `start_child` does."""
    process: Any = multiprocessing.Process(target=target, args=arguments, name=name, daemon=True)
    flush_output()  # otherwise the child would print it again
    ours, theirs = process_link()

    def fork() -> OwnChild:
        # Not under `catch_warnings`: after that, Python repeats warnings that it has already shown.
        pid = os.fork()
        if not pid:
            _run(process, ours, theirs)
        return OwnChild(pid, ours.detach())

    try:
        return _begin(fork)
    finally:
        close_quietly(ours, theirs)


def _run(process: Any, ours: socket.socket, theirs: socket.socket) -> NoReturn:
    """Run a process object in this newly forked process, then exit."""
    code = 1
    try:
        # A collection would copy the page of every object that this process has inherited, and would run the
        # finalizers of the parent's garbage here.
        gc.freeze()
        close_quietly(ours)
        code = process._bootstrap(parent_sentinel=theirs.fileno())
    finally:
        os._exit(code)


def process_link() -> tuple[socket.socket, socket.socket]:
    """Return two ends of a link to a new process; each end shows when the other is closed."""
    # A socket pair without a name: nobody else on the machine can connect, and a crash leaves nothing.
    link = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in link:
        end.setblocking(True)  # whatever default timeout the program has set
    return link


# Kept here while open: otherwise the garbage collector may finalize a dropped pool's sockets and pipes before
# its `Finalizer`. An open socket would print a warning, and the descriptor, which `close_link` would close
# again, may belong to another file by then.
_links: set[socket.socket | Connection] = set()

End = TypeVar("End", socket.socket, Connection)


@contextmanager
def linking(link: tuple[End, End]) -> Iterator[tuple[End, End]]:
    """Yield our end and the other end of a link to a child that the block starts.

    Ours stays open until `close_link`, or until the block fails; a forked process closes its own copy.
    """
    ours, theirs = link
    _links.add(ours)
    try:
        yield link
    except BaseException:
        close_link(ours)
        raise
    finally:
        close_quietly(theirs)  # our copy would hide the child's death


def close_link(link: socket.socket | Connection) -> None:
    """Close our end of a link."""
    close_quietly(link)
    _links.discard(link)


@contextmanager
def without_main() -> Iterator[None]:
    """Stop processes that start meanwhile from importing the user's main module: the whole program."""
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    # `multiprocessing` uses these two to decide what a child imports.
    main.__spec__ = None
    if path is not None:
        del main.__file__
    try:
        yield
    finally:
        main.__spec__ = spec
        if path is not None:
            main.__file__ = path


def flush_output() -> None:
    """Flush stdout and stderr, so that the user's output is not lost; ignore streams that are closed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


# Handles. A child's own sentinel is a pipe, which other children forked meanwhile inherit and keep open. A
# process descriptor becomes ready when the child dies, whatever others have inherited.


# Seconds that a process has to end after SIGKILL. A process that hangs in the kernel, for example on a dead
# file server, ends when the server answers; it is reaped when this process has ended.
_LONGEST_DEATH = 10.0


class ChildHandle:
    """What a process keeps about one of its children; `sentinel` becomes ready when the child dies.

    The `closers` are called once, when the handle is closed.
    """

    _longest_look = math.inf  # seconds to wait for the sentinel before checking the process itself

    def __init__(self, pid: int, sentinel: int, *closers: Callable[[], object]) -> None:
        self.pid = pid
        self.sentinel = sentinel
        self._owner = os.getpid()
        self._code: int | None = None
        self._has_ended = False
        # Recorded and closed in one call of C code: between two calls, a Ctrl-C could make a later call close
        # the descriptors again, which may belong to others by then.
        self._closed: list[bool] = []
        self._close = once(partial(self._closed.append, True), *closers)
        _children.add(self)

    @property
    def released(self) -> bool:
        """Whether the handle is closed."""
        return bool(self._closed)

    def exit_code(self, seconds: float) -> int | None:
        """Return the exit code; None if the process does not end within `seconds`, or the code is unknown."""
        deadline = monotonic() + seconds
        while not self._is_gone() and (left := deadline - monotonic()) > 0:
            if wait_for(self.sentinel, min(left, self._longest_look)) and not self._is_gone():
                sleep(1e-3)  # it has only closed its end so far
        return self._code

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        if not (self.released or kill_process(self.sentinel)):
            self._kill_by_id()

    def end(self) -> None:
        """Kill the process and close the handle; in a process forked from the parent, only close it."""
        if not self.released:  # otherwise a Ctrl-C has cut an earlier call short
            if os.getpid() == self._owner:
                self.kill()
                self.exit_code(_LONGEST_DEATH)
            self._close()

    def _is_gone(self) -> bool:
        """Return whether the process has ended, and record its exit code."""
        raise NotImplementedError

    def _kill_by_id(self) -> None:
        raise NotImplementedError


_children: Living[ChildHandle] = Living()


def _end_children() -> None:
    # Those that the program has left open. A child that hangs in C code would not notice its parent's end.
    for child in _children:
        child.end()


at_last(_end_children)


class OwnChild(ChildHandle):
    """A process that this one has forked or, with the `popen` of multiprocessing, spawned.

    `link` becomes ready when the process closes its end or ends. It belongs to the `popen`, if there is one.
    """

    def __init__(self, pid: int, link: int, popen: Any = None) -> None:
        descriptor = open_process(pid)
        sentinel = link if descriptor is None else descriptor
        if popen is None:
            super().__init__(pid, sentinel, closing_once(*{sentinel, link}))
        else:
            super().__init__(pid, sentinel, closing_once(descriptor), popen.close)
        if descriptor is None:
            self._longest_look = PAUSE  # a pipe stays open in what the process has started
        self.link = link
        self._popen = popen

    def _is_gone(self) -> bool:
        if not self._has_ended:
            try:
                if os.name == "posix":
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                    self._code = os.waitstatus_to_exitcode(status) if pid else None
                else:
                    self._code = self._popen.poll()
            except ChildProcessError:  # the user's program has waited for all children
                self._has_ended = True
            else:
                self._has_ended = self._code is not None
        return self._has_ended

    def _kill_by_id(self) -> None:
        if self._is_gone():  # the id may belong to another process by now
            return
        if self._popen is None:
            os.kill(self.pid, signal.SIGKILL)
        else:
            self._popen.kill()


_PATIENCE = 1.0  # seconds during which the system may refuse to wait
PAUSE = 0.01  # seconds between two attempts


def wait_for(descriptor: int, seconds: float | None) -> bool:
    """Wait until a descriptor is ready, at most `seconds` long (None: no limit); return whether it is."""
    return bool(wait_for_any([descriptor], seconds))


def wait_for_any(ends: Sequence[int | Connection], seconds: float | None) -> list[Any]:
    """Return which descriptors and pipes are ready; wait as `wait_for` does until one is."""
    deadline = None if seconds is None else monotonic() + max(seconds, 0)
    while True:
        try:
            return wait(ends, None if deadline is None else max(deadline - monotonic(), 0))
        except OSError as error:  # too little memory at this moment
            if error.errno not in (EAGAIN, ENOMEM):
                raise
            if deadline is not None and monotonic() > deadline + _PATIENCE:
                return []
            sleep(PAUSE)


def describe_death(code: int | None) -> tuple[str, int | None]:
    """Return a description of how a process with this exit code ended, and the signal that killed it, if any.

    >>> describe_death(-9)
    ('was ended by signal 9 (SIGKILL)', 9)
    >>> describe_death(3)
    ('exited with code 3', None)
    """
    if code is None:
        return "closed its pipe", None
    if code >= 0:
        return f"exited with code {code}", None
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal
        name = ""
    return f"was ended by signal {-code}{name}", -code


# In the child.

# The most worker processes within worker processes.
MOST_NESTED = 4

_depth = 0


def next_depth() -> int:
    """Return how deeply a worker process of this process would be nested in other worker processes.

    Raises
    ------
    LoaderError
        Too deep: probably each worker's dataset makes a loader over the same dataset.
    """
    if _depth >= MOST_NESTED:
        raise LoaderError(
            f"worker processes are nested {MOST_NESTED} deep: the dataset of each one begins an epoch of a "
            "loader with workers; use num_workers=0 or worker_type='thread' in the inner loader"
        )
    return _depth + 1


def enter_depth(depth: int) -> None:
    """Record how deeply this worker process is nested."""
    global _depth
    _depth = depth


def die_with_parent() -> None:
    """Make this process exit as soon as the process that requested it dies, whatever it is doing."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    # The parent's own sentinel is a pipe that processes forked later inherit, so it may outlive the parent.
    descriptor = open_process(parent.pid)
    sentinel = int(parent.sentinel) if descriptor is None else descriptor

    def watch() -> None:
        wait_for(sentinel, None)
        os._exit(1)  # immediately: the other threads may hang in the user's code

    # Not a `threading.Thread`: that waits without limit for a thread that had too little memory to begin.
    try:
        _thread.start_new_thread(watch, ())
    except RuntimeError as error:
        raise LoaderError(f"could not watch for the end of the parent: {error}; free some memory") from error


_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def restrain() -> None:
    """Hide all GPUs from libraries that this process imports later, and limit each of them to one thread."""
    # Libraries read these variables when they are loaded. A forked worker could not use its parent's GPU
    # anyway.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name in _THREADS:
        os.environ.setdefault(name, "1")


def portable(error: BaseException) -> BaseException:
    """Return the exception itself, or a `LoaderError` with the same message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LoaderError(describe_error(error))
    return error
