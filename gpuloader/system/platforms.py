"""Everything that differs between operating systems, with fallbacks for missing features.

| feature                        | Linux                   | macOS and other POSIX     | Windows           |
|--------------------------------|-------------------------|---------------------------|-------------------|
| memory shared by processes     | sealed memory file      | unlinked file             | none: use threads |
| reserving memory in full       | ``posix_fallocate``     | writing zeros             | by the mapping    |
| faulting in pages              | ``MADV_POPULATE_WRITE`` | one write per page        | none              |
| huge pages, malloc tuning      | yes                     | no                        | no                |
| available memory               | ``/proc``, ``/sys``     | unknown: nothing refused  | unknown           |
| messages with descriptors      | ``SOCK_SEQPACKET``      | ``SOCK_STREAM``           | none: use threads |
| detecting a process's death    | its descriptor (pidfd)  | a pipe it inherited       | its handle        |

Features are looked up at each call, so that a test can remove them. All functions may be called from any
thread.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from gpuloader.errors import LoaderError, StagingMemoryError
from gpuloader.system.cores import own_cores, read_control_group, read_text

if TYPE_CHECKING:
    import socket
    from multiprocessing.connection import Connection
    from pathlib import Path


_MADV_POPULATE_WRITE = 23  # Linux 5.14; missing from the mmap module
_F_ADD_SEALS = 1033
_SEAL_AGAINST_RESIZE = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_SEAL_AGAINST_WRITING = 0x0010, 0x0008  # F_SEAL_FUTURE_WRITE of Linux 5.1, F_SEAL_WRITE
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_PIECE = 1 << 20  # bytes of zeros written at a time
_HUGE = 2 << 20  # bytes of a huge page
# Whether Linux makes pages huge where a program asks for that.
_HAS_HUGE = "[never]" not in (read_text("/sys/kernel/mm/transparent_hugepage/enabled") or "[never]")


def check_processes() -> None:
    """Raise `LoaderError` if worker processes cannot share the loader's memory on this system.

    >>> check_processes()
    """
    if not can_share_memory():
        raise LoaderError(
            "worker processes need memory files and sockets that pass their descriptors, which "
            f"{sys.platform} does not have; use worker_type='thread' or num_workers=0"
        )


def can_share_memory() -> bool:
    """Return whether processes can share memory by passing its descriptor."""
    return os.name == "posix"


def after_fork(function: Callable[[], object]) -> None:
    """Call `function` in every process forked from this one; do nothing on systems without fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def has_memory_files() -> bool:
    """Return whether the system has sealable files that exist only in memory."""
    return hasattr(os, "memfd_create")


def open_memory_file(name: str) -> int:
    """Return the descriptor of a new, empty file in memory. It has no name, so a crash leaves nothing behind.

    Raises
    ------
    OSError
        There are no descriptors left, or the folder that stands in for memory is full.
    """
    if has_memory_files():
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # The system may write files in the folder for temporary files to disk, in the background.
    shared = "/dev/shm"
    folder = shared if os.access(shared, os.W_OK) else None
    import tempfile  # late: with its five modules, every worker's server would start later

    with tempfile.TemporaryFile(prefix=name, dir=folder, buffering=0) as file:
        return os.dup(file.fileno())


def reserve(descriptor: int, nbytes: int) -> None:
    """Grow a memory file to `nbytes` and reserve all of it, or raise `OSError`."""
    start = os.fstat(descriptor).st_size
    os.ftruncate(descriptor, nbytes)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, nbytes)
        return
    zeros = memoryview(bytes(min(nbytes, _PIECE)))
    while start < nbytes:
        start += os.pwrite(descriptor, zeros[: nbytes - start], start)


def seal(descriptor: int, *, writable: bool) -> None:
    """Seal a memory file against resizing and, unless `writable`, further writes; as far as possible."""
    if has_memory_files():  # otherwise, the only protection is that nobody else has the descriptor
        import fcntl

        # F_SEAL_WRITE fails with EBUSY while the kernel holds a page, for example to move it. Seals only
        # prevent mistakes, so the file is good enough without.
        for against_writing in (0,) if writable else (*_SEAL_AGAINST_WRITING, 0):
            with suppress(OSError):
                fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEAL_AGAINST_RESIZE | against_writing)
                return


def map_memory(nbytes: int, *, stays: bool) -> mmap.mmap:
    """Map new memory and fault it in; raises `OSError`, `ValueError`.

    With `stays`, its pages do not move when this process forks. Otherwise they are huge if possible, and the
    mapping may then have more bytes than asked for, to hold only whole ones.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, nbytes)
    kind = mmap.MAP_SHARED if stays else mmap.MAP_PRIVATE
    huge = not stays and hasattr(mmap, "MADV_HUGEPAGE") and _HAS_HUGE
    # Since Linux 6.7, a mapping of whole huge pages begins at one; others begin anywhere. A huge page is
    # faulted in as fast as 30 pages of 4 KiB, but for less than a quarter of it, too much would lie idle.
    whole = -(-nbytes // _HUGE) * _HUGE if huge and nbytes >= _HUGE // 4 else nbytes
    mapping = mmap.mmap(-1, whole, flags=kind | mmap.MAP_ANONYMOUS)
    if whole > nbytes and ctypes.addressof(ctypes.c_char.from_buffer(mapping)) % _HUGE:
        mapping = mmap.mmap(-1, nbytes, flags=kind | mmap.MAP_ANONYMOUS)
    if huge:
        with suppress(OSError):  # a kernel built without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    prefault(mapping)
    return mapping


def prefault(mapping: mmap.mmap) -> None:
    """Fault in all pages of a mapping that nobody has written to yet; raise `OSError` if memory runs out."""
    if sys.platform == "linux":
        try:
            mapping.madvise(_MADV_POPULATE_WRITE)
            return
        except OSError as error:
            # EINVAL: an older kernel. The others: not at this moment.
            if error.errno not in (errno.EINVAL, errno.EAGAIN, errno.EBUSY, errno.EINTR):
                raise
    with memoryview(mapping) as pages:  # a fork server imports this before it may import NumPy
        pages[:: mmap.PAGESIZE] = bytes(-(-len(mapping) // mmap.PAGESIZE))


def available_memory(root: str | os.PathLike[str] = "") -> int | None:
    """Return how many bytes this process can still allocate, by the kernel's estimate and its control groups.

    Returns None if neither is known (no ``proc`` and ``sys`` below `root`).

    >>> available_memory() is None or available_memory() > 0
    True
    """
    group = read_control_group(root)
    lines = read_text(f"{root}/proc/meminfo").splitlines()
    known = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    if group.memory_limit is not None:
        known.append(max(group.memory_limit - group.memory_used, 0))
    return min(known, default=None)


def check_memory(nbytes: int, shortage: Callable[[int, str], str]) -> None:
    """Raise `StagingMemoryError` if the system reports fewer available bytes than `nbytes`.

    `shortage` returns the message for a number of bytes and a reason.
    """
    available = available_memory()
    if available is not None and nbytes > available:
        raise StagingMemoryError(shortage(nbytes, f"only {available:,} bytes are available"))


def keep_freed_memory() -> None:
    """Make the C library keep a sample's memory for the next sample instead of returning it to the system."""
    # By default, a new process returns every freed array of more than 128 KiB to the system, so the next
    # array faults in new pages: about 150 page faults per image.
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # a C library other than GNU's
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def message_pair() -> tuple[socket.socket, socket.socket]:
    """Return connected sockets that can pass descriptors and, if possible, preserve message boundaries."""
    import socket  # imported late: only workers need it

    if hasattr(socket, "SOCK_SEQPACKET"):
        try:
            return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            if error.errno not in (errno.EPROTONOSUPPORT, errno.EPROTOTYPE, errno.ESOCKTNOSUPPORT):
                raise
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def close_quietly(*ends: socket.socket | Connection) -> None:
    """Close sockets and pipes; their descriptors are released even if closing is interrupted or fails."""
    for one in ends:
        with suppress(OSError):
            one.close()


def open_process(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process dies, or None if unsupported; close it."""
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):  # an old or sandboxed kernel
            return os.pidfd_open(pid)
    return None


def kill_process(descriptor: int) -> bool:
    """Kill the process of a descriptor that `open_process` returned; return False if that is not allowed."""
    # Its id could mean another process by now: a fork server reaps its children.
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return True
    except (OSError, AttributeError):  # a sandboxed kernel
        return False


def kill_session(pid: int) -> None:
    """Kill a process that leads its own session, and what it started; without sessions, only the process."""
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGTERM)


def allowed_cores() -> int:
    """Return the number of processor cores this process may run on.

    >>> 1 <= allowed_cores() <= (os.cpu_count() or 1)
    True
    """
    return len(own_cores()) or os.cpu_count() or 1


def has_gil() -> bool:
    """Return whether threads take turns at running Python code; False on free-threaded Python.

    >>> has_gil() or sys.version_info >= (3, 13)
    True
    """
    # Documented, despite its name. A free-threaded Python enables the lock if an extension module needs it,
    # so the build option does not tell.
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def usable_cores(root: str | os.PathLike[str] = "") -> int:
    """Return how many cores' worth of CPU time this process gets: `allowed_cores`, limited by its CPU quota.

    >>> 1 <= usable_cores() <= allowed_cores()
    True
    """
    quota = read_control_group(root).processors
    return allowed_cores() if quota is None else max(min(allowed_cores(), math.ceil(quota)), 1)


# Files that appear under their names only when they are complete, and locks that end with their process.


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces the one at `path` at the end; after an exception, nothing is replaced.

    Only one process may do this at a time: the next program reuses the file of one that was killed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.txt")
    ...     with replacing(path) as file:
    ...         _ = file.write(b"whole")
    ...         print(path.exists())
    ...     print(path.read_bytes(), os.listdir(folder))
    False
    b'whole' ['a.txt']
    """
    written = path.with_name(f".{path.name}.part")
    try:
        with written.open("wb") as file:
            try:
                yield file
            except BaseException:
                with suppress(OSError):  # of a full disk again, in place of what ends the block
                    file.close()
                raise
            file.flush()
            os.fsync(file.fileno())  # otherwise a crash of the system could leave an incomplete file
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file, creating the file if needed; the system frees the lock when the process ends.

    Raises `BlockingIOError` if another process holds it and `wait` is False.
    """
    with path.open("ab") as file:
        try:
            import fcntl
        except ImportError:  # on Windows, nothing keeps others out
            yield
            return
        # Without limit: the system frees the lock when the process that holds it ends.
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield  # closing the file frees the lock
