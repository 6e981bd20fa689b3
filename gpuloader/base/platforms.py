"""What differs between operating systems, all of it, and what stands in where a system lacks something.

| what                           | Linux                   | macOS and other POSIX       | Windows           |
|--------------------------------|-------------------------|-----------------------------|-------------------|
| memory that processes share    | sealed memory file      | file that has lost its name | none: use threads |
| memory reserved in full        | ``posix_fallocate``     | zeros written               | by the mapping    |
| pages faulted in               | ``MADV_POPULATE_WRITE`` | one write a page            | none              |
| huge pages, memory malloc keeps| yes                     | none                        | none              |
| memory there is                | ``/proc``, ``/sys``     | not known: none refused     | not known         |
| messages with descriptors      | ``SOCK_SEQPACKET``      | ``SOCK_STREAM``             | none: use threads |
| a process's death              | its descriptor (pidfd)  | a pipe that it inherited    | its handle        |
| forking without being asked    | yes                     | not on macOS                | none              |

What is there is looked up when it is asked for, so that a test can take it away. Everything here may be
called from any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import mmap
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.control_group import read_control_group, read_text
from gpuloader.base.errors import LoaderError

_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module has no name for it
_F_ADD_SEALS = 1033
_SEAL_AGAINST_RESIZE = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_SEAL_AGAINST_WRITING = 0x0008
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_PIECE = 1 << 20  # bytes of zeros written at a time


def check_processes() -> None:
    """Raise `LoaderError` on a system where worker processes cannot share the loader's memory.

    >>> check_processes()
    """
    if not can_share_memory():
        raise LoaderError(
            f"worker processes need memory files and sockets that carry them, which {sys.platform} has not; "
            "use worker_type='thread' or num_workers=0"
        )


def can_share_memory() -> bool:
    """Return whether processes can share memory by its descriptor."""
    return os.name == "posix"


def may_fork_unasked() -> bool:
    """Return whether a process may be forked where its user did not ask for it.

    On macOS a forked process may not use what the system's own libraries do, linear algebra among it.
    """
    return sys.platform not in ("darwin", "win32") and hasattr(os, "fork")


def after_fork(function: Callable[[], object]) -> None:
    """Have `function` called in every process that is forked from this one, if there can be any."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def has_memory_files() -> bool:
    """Return whether the system has files that lie in memory alone and can be sealed."""
    return hasattr(os, "memfd_create")


def open_memory_file(name: str) -> int:
    """Return the descriptor of a new, empty file in memory: nameless, so a crash leaves nothing behind.

    Without memory files it is a file that has lost its name, in ``/dev/shm`` where that is, else in
    the folder for temporary files: the system then may write to a disk what nobody waits for.

    Raises
    ------
    OSError
        There are no descriptors left, or no room in that folder.
    """
    if has_memory_files():
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    shared = "/dev/shm"
    folder = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryFile(prefix=name, dir=folder, buffering=0) as file:
        return os.dup(file.fileno())


def reserve(descriptor: int, nbytes: int) -> None:
    """Let a memory file grow to so many bytes, which are there from now on, or raise `OSError`."""
    start = os.fstat(descriptor).st_size
    os.ftruncate(descriptor, nbytes)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, nbytes)
        return
    zeros = memoryview(bytes(min(nbytes, _PIECE)))
    while start < nbytes:
        start += os.pwrite(descriptor, zeros[: nbytes - start], start)


def seal(descriptor: int, *, writable: bool) -> None:
    """Have a memory file keep its size, and its contents too if it is not to be `writable` any more.

    Does nothing where files cannot be sealed: then it is only that nobody else has the descriptor.
    """
    if has_memory_files():
        import fcntl

        fcntl.fcntl(
            descriptor, _F_ADD_SEALS, _SEAL_AGAINST_RESIZE | (0 if writable else _SEAL_AGAINST_WRITING)
        )


def map_private(nbytes: int) -> mmap.mmap:
    """Map fresh memory of this process alone, in huge pages where there are any, and fault it in.

    Raises `OSError` or `ValueError` where it cannot be had.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, nbytes)
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    prefault(mapping)
    return mapping


def map_shared(nbytes: int) -> mmap.mmap:
    """Map fresh memory that stays where it is when this process forks, and fault it in; raises as above."""
    mapping = mmap.mmap(-1, nbytes)
    prefault(mapping)
    return mapping


def prefault(mapping: mmap.mmap) -> None:
    """Fault all pages of a mapping that nobody wrote to yet; raise `OSError` where there are too few."""
    if sys.platform == "linux":
        try:
            mapping.madvise(_MADV_POPULATE_WRITE)
            return
        except OSError as error:
            if error.errno != errno.EINVAL:  # else an older kernel
                raise
    pages: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)
    pages[:: mmap.PAGESIZE] = 0


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes this process may still take, by the kernel's estimate and its control groups' limits.

    None where neither is known (no ``proc`` and ``sys`` below `root`).

    >>> available_memory() is None or available_memory() > 0
    True
    """
    group = read_control_group(root)
    left = None if group.memory_limit is None else max(group.memory_limit - group.memory_used, 0)
    known = [size for size in (_system_available(root / "proc/meminfo"), left) if size is not None]
    return min(known, default=None)


def _system_available(table: Path) -> int | None:
    lines = (read_text(table) or "").splitlines()
    kib = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return kib[0] * 1024 if kib else None


def keep_freed_memory() -> None:
    """Have the C library reuse the memory of a sample for the next one, instead of returning it each time.

    A young process hands every array of more than 128 KiB back to the system, and pays for fresh pages with
    the next: some 150 page faults a picture. Does nothing without GNU's C library.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def message_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that carry descriptors, and keep messages apart where the system can.

    Where it cannot they are of the type ``SOCK_STREAM``, and who reads has to know how long a message is.
    """
    if hasattr(socket, "SOCK_SEQPACKET"):
        try:
            return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            if error.errno not in (errno.EPROTONOSUPPORT, errno.EPROTOTYPE, errno.ESOCKTNOSUPPORT):
                raise
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def open_process(pid: int) -> int | None:
    """Return a descriptor that is ready once the process is dead, the caller's to close; None without any."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):  # an old or sandboxed kernel
            return os.pidfd_open(pid)
    return None


def kill_process(descriptor: int) -> bool:
    """End the process of a descriptor that `open_process` gave; return False where that is not allowed.

    By number it could be another one by now: a fork server gives the numbers of its children back.
    """
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except (OSError, AttributeError):  # a sandboxed kernel
        return False
    return True


def allowed_cores() -> int:
    """Return how many processor cores this process may run on.

    >>> 1 <= allowed_cores() <= (os.cpu_count() or 1)
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores(root: Path = Path("/")) -> int:
    """Return as how many cores this process can compute: those allowed, if its control group lets it.

    >>> 1 <= usable_cores() <= allowed_cores()
    True
    """
    quota = read_control_group(root).processors
    return allowed_cores() if quota is None else max(min(allowed_cores(), math.ceil(quota)), 1)
