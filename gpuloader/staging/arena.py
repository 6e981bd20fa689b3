"""The memory of all slots: one unnamed mapping, reserved before the first write and page-locked once."""

from __future__ import annotations

import itertools
import mmap
import warnings
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import StagingMemoryError
from gpuloader.system.cores import Cores, call_near
from gpuloader.system.finalizers import Finalizer, calling, closing_once, once
from gpuloader.system.platforms import (
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

_numbers = itertools.count()


class PageLocker(Protocol):
    """A device that can page-lock the host memory it copies from."""

    def page_lock(self, address: int, nbytes: int) -> None:
        """Page-lock `nbytes` of mapped memory at `address`; raise `OSError` if the driver refuses."""

    def page_unlocker(self, address: int, memory: object) -> Callable[[], object]:
        """Return a function that undoes `page_lock`, at once or later, and does nothing the second time.

        It is called after the last copy. The mapping exists as long as `memory` is kept.
        """


class Arena:
    """One host memory mapping for many slots; it lives as long as anything refers to the arena.

    A batch that the user keeps holds it through its lease. `near` are the processor cores near which the
    memory is to lie; empty: wherever the system puts it. With `shared`, worker processes map `descriptor`,
    which stays None if processes cannot share memory. Raises `StagingMemoryError` if there is too little.

    >>> arena = Arena(1 << 20)
    >>> arena.bytes.shape, arena.page_locked
    ((1048576,), False)
    """

    def __init__(
        self,
        nbytes: int,
        locker: PageLocker | None = None,
        *,
        shared: bool = False,
        near: Cores = frozenset(),
    ) -> None:
        self.nbytes = nbytes  # exact: CuPy's pool of pinned memory rounds up to powers of two
        self.number = next(_numbers)  # which identifies it in messages to workers
        self._ended: list[bool] = []
        self._end = once(partial(self._ended.append, True))
        self.page_locked = False
        self.descriptor: int | None = None
        check_available(nbytes)
        try:
            # A short-lived thread on the cores near the GPU touches the pages first, so the kernel places
            # them there. That needs no system call for memory policies, which containers forbid.
            self._mapping = call_near(near, partial(self._map, nbytes, locker is not None, shared))
        except (OSError, ValueError) as error:
            raise StagingMemoryError(_shortage(nbytes, str(error))) from error
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8, nbytes)
        self.address: int = self.bytes.ctypes.data
        if locker is not None:
            # Page-locking stays in the caller's thread, because none of our threads calls CUDA.
            self._page_lock(locker)

    def _map(self, nbytes: int, locked: bool, shared: bool) -> mmap.mmap:
        # Memory for the CPU alone is private and anonymous, because Linux uses huge pages only there: writing
        # 10 MB batches then takes a sixth less time. And no file descriptor is kept.
        if not can_share_memory() or not (shared or locked):
            return map_private(nbytes)
        # What a device copies from must be shared with forked children: a private page would move when it is
        # written after a fork, away from the address that the device reads.
        if not shared and not has_memory_files():
            return map_shared(nbytes)
        # A memory file has no name, so a crash leaves nothing behind.
        self.descriptor = open_memory_file("gpuloader-arena")
        self._end = once(self._end, closing_once(self.descriptor))
        reserve(self.descriptor, nbytes)  # before the first write: too little memory is an error, not SIGBUS
        seal(self.descriptor, writable=True)  # a worker that shrinks the file would crash every other process
        mapping = mmap.mmap(self.descriptor, nbytes)
        prefault(mapping)  # staging never waits for new pages
        return mapping

    def _page_lock(self, locker: PageLocker) -> None:
        try:
            locker.page_lock(self.address, self.nbytes)
        except OSError as error:
            # Pageable memory works, too: copies are slower and overlap less.
            warnings.warn(
                f"{self.nbytes:,} bytes of staging memory could not be page-locked ({error}); copying to "
                "the device from pageable memory instead, which is slower and overlaps less",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self.page_locked = True
            # It keeps the mapping: unlocking comes before unmapping.
            self._unlock = Finalizer(locker.page_unlocker(self.address, self._mapping))

    @property
    def closed(self) -> bool:
        """Whether the arena was finalized. In a garbage cycle, this may happen before its users are."""
        return bool(self._ended)

    __del__ = calling("_end")


def check_available(nbytes: int) -> None:
    """Raise `StagingMemoryError` if there is less memory than that, as far as the system tells.

    >>> check_available(1)
    """
    available = available_memory()
    if available is not None and nbytes > available:
        raise StagingMemoryError(_shortage(nbytes, f"only {available:,} bytes are available"))


def _shortage(nbytes: int, reason: str) -> str:
    return (
        f"{nbytes:,} bytes of host memory for the loader's slots could not be reserved: {reason}; "
        "lower the batch size, prefetch_factor or the capacity, or raise the memory limit of this machine or "
        "container"
    )
