"""Child processes: one function starts them, a handle tells of their death, and none outlives its parent.

Imported late, because it imports `multiprocessing`.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import select
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import context, reduction, resource_tracker, spawn
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from time import monotonic, sleep
from typing import Any, NoReturn, cast

from gpuloader.errors import LoaderError, describe_error
from gpuloader.system.finalizers import Living, closing_once, once
from gpuloader.system.platforms import after_fork, kill_process, open_process
from gpuloader.system.threads import at_last, blocked_interrupts, do_unless_exiting, start_thread

# Starting.

_starting = threading.Lock()


def starting() -> threading.Lock:
    """Return the lock to hold while starting a process, so that only one starts at a time."""
    # If another thread forked a child at the same time, that child would inherit this child's end of the pipe
    # and hide its death. Also, `start_child` changes the `warnings` filters, which all threads share.
    return _starting


def _begin_as_child() -> None:
    global _starting, _children
    _starting = threading.Lock()  # the parent held the inherited one while it forked
    _children = Living()  # they are siblings of this process, which must not end them


after_fork(_begin_as_child)


class OwnedSpawn(context.SpawnProcess):
    """A process that multiprocessing leaves alone in forks of its parent.

    A process that the user's program forks has a copy of the list of children, and would at its exit kill the
    daemons and wait for all, although they are its siblings.
    """

    # Public, because a spawned process unpickles its own object.

    def __init__(self, **options: Any) -> None:
        self._owner = os.getpid()
        super().__init__(**options)

    @property
    def daemon(self) -> bool:
        """Whether multiprocessing ends the process with its parent."""
        # In the process itself, its code may ask what it is.
        return (os.getpid() == self._owner or os.getpid() == self.pid) and super().daemon

    @daemon.setter
    def daemon(self, value: bool) -> None:
        BaseProcess.daemon.fset(self, value)  # type: ignore[attr-defined]

    def join(self, timeout: float | None = None) -> None:
        """Wait for the process, unless it belongs to the parent of this one."""
        if os.getpid() == self._owner:
            super().join(timeout)


def start_child(method: str, name: str, target: Callable[..., object], *arguments: object) -> ChildHandle:
    """Start a daemon by 'fork' or 'spawn', and return a handle on it; the caller holds `starting`.

    SIGINT is blocked in the process until it calls `take_signals`, so that a Ctrl-C in a terminal is one
    traceback of the program, and none of its children.

    Raises
    ------
    OSError
        The system starts no more processes.
    """
    if method == "fork":
        return fork_child(name, target, *arguments)
    if os.name == "posix":
        resource_tracker.ensure_running()  # starting it later unblocks SIGINT
    process = OwnedSpawn(target=target, args=arguments, name=name, daemon=True)
    # multiprocessing refuses to start processes of a daemon, which would not end them. Ours end with their
    # parent: a reader process whose reader is another `multiprocess_reader`, for example. What the parent's
    # own parent knows about it does not change.
    parent = multiprocessing.current_process()
    if parent.daemon:
        parent.daemon = False
    with blocked_interrupts():
        process.start()
    return SpawnedChild(process)


# Forking. If the system refuses to fork, multiprocessing leaves open the pipes that it has made for the new
# process. So we fork, here and in the fork server, and the child then takes the documented entry of spawned
# processes, `spawn.spawn_main`. That sets up what the user's code may ask `multiprocessing` for.

_task: tuple[Callable[..., object], tuple[object, ...]]  # what a process that is being forked will run


def fork_child(name: str, target: Callable[..., object], *arguments: object) -> ForkedChild:
    """Fork a process that runs a function, as `start_child` does."""
    global _task
    with without_main():  # which the child has already
        started = pickle_process(name, _run_task)
    # A tracker of the child's own would remove shared memory that it only attaches to.
    tracker = resource_tracker.getfd() if "multiprocessing.shared_memory" in sys.modules else None
    flush_output()  # or the child would print it again
    child: ForkedChild | None = None
    ours, theirs = process_link()
    try:
        with blocked_interrupts(), warnings.catch_warnings():
            # Python warns about forking a multi-threaded process, because the child may need a lock that
            # another thread holds. The children here run only their own target and take no lock of the
            # parent's.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if not pid:
                ours.close()
                _task = target, arguments
                sys.argv = [sys.argv[0], "--multiprocessing-fork"]  # which `spawn_main` looks for
                run_pickled(theirs.detach(), tracker)
            with contextlib.suppress(ConnectionError):  # it has died, as its sentinel will tell
                ours.sendall(started)
            child = ForkedChild(pid, ours.detach(), open_process(pid))
    except BaseException:
        ours.close()
        if child is not None:  # a Ctrl-C that came meanwhile
            child.kill()
            child.release(is_ours=True)
        raise
    finally:
        theirs.close()
    return child


def _run_task() -> None:
    target, arguments = _task
    target(*arguments)


def process_link() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of the link over which a new process gets its process object."""
    # A socket pair without a name: nobody else on the machine can connect, and a crash leaves nothing.
    link = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in link:
        end.setblocking(True)  # whatever default timeout the program has set
    return link


def pickle_process(name: str, target: Callable[..., object], *arguments: object) -> bytes:
    """Return what `run_pickled` reads: the preparation of the interpreter, and the process object."""
    process = multiprocessing.Process(target=target, args=arguments, name=name, daemon=True)
    written = io.BytesIO()
    context.set_spawning_popen(cast("Any", process))  # else the authentication key refuses to be pickled
    try:
        reduction.dump(spawn.get_preparation_data(name), written)
        reduction.dump(process, written)
    finally:
        context.set_spawning_popen(None)
    return written.getvalue()


def run_pickled(link: int, tracker: int | None) -> NoReturn:
    """Run the process object that comes over a link in this newly forked process, and exit."""
    code = 1
    try:
        spawn.spawn_main(link, tracker_fd=tracker)
    except EOFError:  # the parent has died before it sent the process object
        pass
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


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


def flush_output() -> None:
    """Flush stdout and stderr, so that the user's output is not lost; ignore streams that are closed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


# Handles. A child's own sentinel is a pipe, which other children that are forked meanwhile inherit and so
# keep open. A process descriptor becomes ready when the child dies, whoever has inherited what.


class ChildHandle:
    """What a process holds of one of its children; `sentinel` becomes ready when the child dies."""

    def __init__(self, pid: int, sentinel: int, *descriptors: int) -> None:
        self.pid = pid
        self.sentinel = sentinel
        # Noted and closed in one call of C code: between two, a Ctrl-C would make a later call close the
        # descriptors again, which may belong to others by then.
        self._closed: list[bool] = []
        self._close = once(partial(self._closed.append, True), closing_once(*descriptors))
        _children.add(self)

    @property
    def released(self) -> bool:
        """Whether the handle is closed."""
        return bool(self._closed)

    def exit_code(self, seconds: float) -> int | None:
        """Return the exit code; None if the process does not end within `seconds`, or nobody knows it."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        if not (self.released or kill_process(self.sentinel)):
            self._kill_by_id()

    def _kill_by_id(self) -> None:
        raise NotImplementedError

    def release(self, *, is_ours: bool) -> None:
        """Close the handle, after waiting for the process if it `is_ours` and not that of a forked parent."""
        if is_ours:
            self._join()
        self._close()

    def _join(self) -> None:
        raise NotImplementedError


_children: Living[ChildHandle] = Living()


def _end_children() -> None:
    # Those that the program has left open. One that hangs in C code would not notice the end of its parent.
    for child in _children:
        if not child.released:
            child.kill()
            child.release(is_ours=True)


at_last(_end_children)


class ForkedChild(ChildHandle):
    """A process that `fork_child` has forked; `link` is our end, which closes when the process has ended.

    `descriptor` is the process descriptor, if the system has those.
    """

    def __init__(self, pid: int, link: int, descriptor: int | None) -> None:
        sentinel = link if descriptor is None else descriptor
        super().__init__(pid, sentinel, *{sentinel, link})
        self._link = link
        self._code: int | None = None
        self._has_ended = False

    def exit_code(self, seconds: float) -> int | None:
        """Return the exit code; None if the process does not end in time, or another thread has reaped it."""
        deadline = monotonic() + seconds
        if not self._has_ended:
            wait_for(self.sentinel, seconds)
        # The process may only have closed its link, so this must not wait without a limit.
        while not self._reap(os.WNOHANG) and monotonic() < deadline:
            sleep(1e-3)
        return self._code

    def _reap(self, options: int) -> bool:
        """Ask the system for the exit code; return whether the process has ended."""
        if not self._has_ended:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # the user's program waits for all children
                self._has_ended = True
            else:
                if pid:
                    self._code, self._has_ended = os.waitstatus_to_exitcode(status), True
        return self._has_ended

    def _kill_by_id(self) -> None:
        if not self._reap(os.WNOHANG):  # until then, the id cannot belong to another process
            os.kill(self.pid, signal.SIGKILL)

    def _join(self) -> None:
        self._reap(0)


class SpawnedChild(ChildHandle):
    """A process that multiprocessing has started."""

    def __init__(self, process: Any) -> None:
        self._process = process
        descriptor = open_process(process.pid)
        if descriptor is None:
            super().__init__(process.pid, process.sentinel)
        else:
            super().__init__(process.pid, descriptor, descriptor)

    def exit_code(self, seconds: float) -> int | None:
        """Return the exit code; None if the process does not end in time."""
        # Not `join`: it waits for a pipe, and then without a limit for the process, which may only have
        # closed that pipe.
        deadline = monotonic() + seconds
        wait([self.sentinel], seconds)
        code: int | None = self._process.exitcode
        while code is None and monotonic() < deadline:
            sleep(1e-3)  # the pipe closes a moment before the process has ended
            code = self._process.exitcode
        return code

    def _kill_by_id(self) -> None:
        if self._process.is_alive():
            self._process.kill()

    def _join(self) -> None:
        self._process.join()
        # A thread that is starting another process may have reaped this one and not yet recorded that. At
        # exit, multiprocessing joins all processes that it knows, and fails if one is closed then.
        with contextlib.suppress(ValueError):
            do_unless_exiting(self._process.close)


def wait_for(descriptor: int, seconds: float | None) -> bool:
    """Wait until a descriptor is ready, at most `seconds` long (None: no limit); return whether it is."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    deadline = None if seconds is None else monotonic() + max(seconds, 0)
    while True:  # a wait of less than a millisecond is rounded down to none
        left = None if deadline is None else max(deadline - monotonic(), 0) * 1000
        if poll.poll(left):
            return True
        if deadline is not None and monotonic() >= deadline:
            return False


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
    """Return how deep a worker process of this process would be within other worker processes.

    Raises
    ------
    LoaderError
        Too deep: probably each worker's dataset makes a loader of the same dataset.
    """
    if _depth >= MOST_NESTED:
        raise LoaderError(
            f"worker processes are nested {MOST_NESTED} deep: the dataset of each one begins an epoch of a "
            "loader with workers; use num_workers=0 or worker_type='thread' in the inner loader"
        )
    return _depth + 1


def enter_depth(depth: int) -> None:
    """Note how deep this worker process is."""
    global _depth
    _depth = depth


def die_with_parent() -> None:
    """Make this process exit as soon as the process that requested it dies, whatever it is doing."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    # The parent's own sentinel is a pipe that later forked processes inherit, so it may outlive the parent.
    descriptor = open_process(parent.pid)
    sentinel = int(parent.sentinel) if descriptor is None else descriptor

    def watch() -> None:
        wait([sentinel])
        os._exit(1)  # at once: the other threads may hang in the user's code

    start_thread("gpuloader-watch-parent", watch)


def portable(error: BaseException) -> BaseException:
    """Return the exception itself, or a `LoaderError` with the same message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LoaderError(describe_error(error))
    return error
