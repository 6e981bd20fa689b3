"""The memory of the slots: one nameless mapping, reserved before the first write, page-locked once."""

from __future__ import annotations

import contextlib
import mmap
import os
import warnings
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.errors import StagingMemoryError
from gpuloader.base.platforms import (
    available_memory,
    can_share_memory,
    has_memory_files,
    map_private,
    map_shared,
    open_memory_file,
    prefault,
    reserve,
    seal,
)


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
    written a sixth faster into those. What stands in for a memory file says `gpuloader.base.platforms`.

    Parameters
    ----------
    nbytes : int
        Size of the mapping, 1 or more. Exact: nothing is rounded up but to the last page.
    locker : PageLocker or None
        Page-locks the mapping for a device. Where it refuses, one warning is given and the arena stays
        pageable: copies then cost more and overlap less.
    shared : bool
        Lie in a memory file without a device too, for worker processes that map `descriptor`. It stays None
        where processes cannot share memory.

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
        try:
            self._mapping = self._map(nbytes, locker is not None, shared)
        except (OSError, ValueError) as error:
            raise StagingMemoryError(_shortage(nbytes, str(error))) from error
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8, nbytes)
        self.address: int = self.bytes.ctypes.data
        self._locker = locker
        if locker is not None:
            self._page_lock(locker)

    def _map(self, nbytes: int, locked: bool, shared: bool) -> mmap.mmap:
        if not can_share_memory() or not (shared or locked):
            return map_private(nbytes)
        if not shared and not has_memory_files():
            return map_shared(nbytes)
        self.descriptor = open_memory_file("gpuloader-arena")
        reserve(self.descriptor, nbytes)
        seal(self.descriptor, writable=True)
        mapping = mmap.mmap(self.descriptor, nbytes)
        prefault(mapping)
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


def _shortage(nbytes: int, reason: str) -> str:
    return (
        f"{nbytes:,} bytes of host memory for the loader's slots could not be reserved: {reason}; "
        "lower the capacity or the batch size, or raise the memory limit of this machine or container"
    )
