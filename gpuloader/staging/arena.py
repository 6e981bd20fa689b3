"""The memory of the slots: one nameless mapping, reserved before the first write, page-locked once."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import warnings
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import StagingMemoryError

_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module has no name for it
_F_ADD_SEALS = 1033
_SEAL_AGAINST_RESIZE = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW


class PageLocker(Protocol):
    """Who page-locks host memory; a device that copies from it."""

    def page_lock(self, address: int, nbytes: int) -> None:
        """Page-lock the mapped memory at `address`; raise `OSError` where the driver refuses."""

    def page_unlock(self, address: int) -> None:
        """Undo `page_lock`; called once, before the memory is unmapped and after its last copy."""


class Arena:
    """One host mapping for many slots.

    It is reserved in full before anything is written, so memory that is not there is a
    `StagingMemoryError` and never a bus error; faulted in once, so staging never pays for fresh pages;
    and nameless, so a crash leaves nothing behind. Its bytes live as long as anything refers to the
    arena: a batch the user kept holds it through its lease.

    Memory that a device copies from lies in a memory file, sealed against resizing and shared with forked
    children: a private page would move when it is written after a fork, away from where the device reads.
    Other memory is private and anonymous, since only there Linux gives huge pages, and large batches are
    written a sixth faster into those.

    Parameters
    ----------
    nbytes : int
        Size of the mapping, 1 or more. Exact: nothing is rounded up but to the last page.
    locker : PageLocker or None
        Page-locks the mapping for a device. Where it refuses, one warning is given and the arena stays
        pageable: copies then cost more and overlap less.
    shared : bool
        Lie in a memory file without a device too, for worker processes that map `descriptor`.

    Attributes
    ----------
    closed : bool
        Whether it was finalized: in a cycle of garbage that may come before those who still refer to it.

    Raises
    ------
    StagingMemoryError
        The memory is not there.

    Examples
    --------
    >>> arena = Arena(1 << 20)
    >>> arena.bytes.shape, arena.page_locked
    ((1048576,), False)
    """

    def __init__(self, nbytes: int, locker: PageLocker | None = None, *, shared: bool = False) -> None:
        self.nbytes = nbytes
        self.closed = False
        self.page_locked = False
        self.descriptor: int | None = None
        available = available_memory()
        if available is not None and nbytes > available:
            raise StagingMemoryError(_shortage(nbytes, f"only {available:,} bytes are available"))
        self._mapping = self._map_file(nbytes) if shared or locker is not None else _map_anonymous(nbytes)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8, nbytes)
        self.address: int = self.bytes.ctypes.data
        self._locker = locker
        if locker is not None:
            self._page_lock(locker)

    def _map_file(self, nbytes: int) -> mmap.mmap:
        if not hasattr(os, "memfd_create"):  # macOS and Windows
            return _map_anonymous(nbytes)
        try:
            self.descriptor = os.memfd_create("gpuloader-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.descriptor, nbytes)
            os.posix_fallocate(self.descriptor, 0, nbytes)
            _seal(self.descriptor)
            mapping = mmap.mmap(self.descriptor, nbytes)
            _prefault(mapping)
        except (OSError, ValueError) as error:
            raise StagingMemoryError(_shortage(nbytes, str(error))) from error
        return mapping

    def _page_lock(self, locker: PageLocker) -> None:
        try:
            locker.page_lock(self.address, self.nbytes)
        except OSError as error:
            warnings.warn(
                f"{self.nbytes:,} bytes of staging memory could not be page-locked ({error}); copies to "
                "the device go on from pageable memory, which is slower and overlaps less",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self.page_locked = True

    def __del__(self) -> None:
        self.closed = True
        # Runs before the mapping goes, and in full only if __init__ got that far.
        if getattr(self, "page_locked", False) and self._locker is not None:
            self._locker.page_unlock(self.address)
        descriptor = getattr(self, "descriptor", None)
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def available_memory() -> int | None:
    """Return the bytes this process may still take, by the kernel's estimate and its control group's limit.

    None where neither is known (no ``/proc/meminfo``).

    >>> available_memory() is None or available_memory() > 0
    True
    """
    known = [size for size in (_system_available(), _control_group_available()) if size is not None]
    return min(known, default=None)


def _system_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return kib[0] * 1024 if kib else None


def _control_group_available(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
        cache = [
            int(line.split()[1])
            for line in (root / "memory.stat").read_text().splitlines()
            if line.startswith(("inactive_file ", "active_file "))
        ]
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(int(limit) - used + sum(cache), 0)


def _seal(descriptor: int) -> None:
    import fcntl

    fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEAL_AGAINST_RESIZE)


def _map_anonymous(nbytes: int) -> mmap.mmap:
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
            return mmap.mmap(-1, nbytes)
        mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel built without them
                mapping.madvise(mmap.MADV_HUGEPAGE)
        _prefault(mapping)
    except (OSError, ValueError) as error:
        raise StagingMemoryError(_shortage(nbytes, str(error))) from error
    return mapping


def _prefault(mapping: mmap.mmap) -> None:
    try:
        mapping.madvise(_MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # An older kernel, or another system: touch every page instead.
        pages: NDArray[Any] = np.frombuffer(mapping, np.uint8)
        pages[:: mmap.PAGESIZE] = 0


def _shortage(nbytes: int, reason: str) -> str:
    return (
        f"{nbytes:,} bytes of host memory for the loader's slots could not be reserved: {reason}; "
        "lower the capacity or the batch size, or raise the memory limit of this machine or container"
    )
