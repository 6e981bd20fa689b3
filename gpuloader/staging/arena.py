"""Where the fields of a batch lie in a slot, and the memory of all slots.

A `Layout` is pure arithmetic, so memory needs are known before anything runs. An `Arena` is one unnamed
mapping, reserved before the first write and pinned once.
"""

from __future__ import annotations

import itertools
import math
import mmap
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import StagingMemoryError
from gpuloader.system.cores import Cores, call_near
from gpuloader.system.finalizers import Finalizer, Living, calling, closing_once, once
from gpuloader.system.platforms import (
    can_share_memory,
    check_memory,
    has_memory_files,
    map_memory,
    open_memory_file,
    prefault,
    reserve,
    seal,
)

ALIGNMENT = 256
"""Alignment of every field in bytes: enough for any vector load, and the same as CUDA's own allocator."""


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """One field's part of a slot."""

    offset: int  # bytes from the start of the slot, a multiple of `ALIGNMENT`
    shape: tuple[int, ...]  # of the whole batch
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """The arrangement of one batch's fields in a slot."""

    fields: tuple[FieldLayout, ...]  # in the order of the feed list
    nbytes: int  # from the start of the first field to the end of the last, all moved by one copy
    # For fields that are delivered with their dimensions in another order than in memory: the field's number
    # and that order, as for `numpy.transpose`.
    turned: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def turn(self, arrays: list[Any]) -> list[Any]:
        """Return the fields' arrays with their dimensions in the order of delivery, not that of memory.

        >>> field = FieldLayout(0, (2, 4, 4, 3), np.dtype("float32"))
        >>> [image] = Layout((field,), 384, ((0, (0, 3, 1, 2)),)).turn([np.zeros(field.shape)])
        >>> image.shape
        (2, 3, 4, 4)
        """
        for number, axes in self.turned:
            arrays[number] = arrays[number].transpose(axes)
        return arrays

    def shorten(self, count: int) -> Layout:
        """Return the layout of a batch of only `count` samples in a slot laid out for more."""
        if not self.fields:
            return self
        fields = tuple(FieldLayout(one.offset, (count, *one.shape[1:]), one.dtype) for one in self.fields)
        # Offsets stay, because the existing rows have been written already; only the end comes earlier.
        last = fields[-1]
        return Layout(fields, last.offset + math.prod(last.shape) * last.dtype.itemsize)


def arrange(fields: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]) -> Layout:
    """Return the layout of the given ``(shape, dtype)`` pairs, one after another, each aligned.

    >>> layout = arrange((((32, 784), np.dtype("float32")), ((32, 1), np.dtype("int64"))))
    >>> [field.offset for field in layout.fields], layout.nbytes
    ([0, 100352], 100608)
    """
    placed = []
    end = 0
    for shape, dtype in fields:
        offset = align(end)
        placed.append(FieldLayout(offset, shape, dtype))
        end = offset + math.prod(shape) * dtype.itemsize
    return Layout(tuple(placed), end)


def arrange_last(
    fields: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...], last: Collection[int]
) -> tuple[Layout, Layout]:
    """Return a layout in which the fields with these numbers lie last, and the layout of the other fields.

    >>> byte = np.dtype("uint8")
    >>> whole, others = arrange_last((((300,), byte), ((5,), byte)), last=[0])
    >>> [field.offset for field in whole.fields], whole.nbytes, others.nbytes
    ([256, 0], 556, 5)
    """
    others = [number for number in range(len(fields)) if number not in last]
    order = [*others, *sorted(last)]
    placed = arrange(tuple(fields[number] for number in order))
    found = dict(zip(order, placed.fields, strict=True))
    whole = Layout(tuple(found[number] for number in range(len(fields))), placed.nbytes)
    return whole, arrange(tuple(fields[number] for number in others))


def align(nbytes: int) -> int:
    """Round `nbytes` up to the next multiple of `ALIGNMENT`.

    >>> align(0), align(1), align(256)
    (0, 256, 256)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


_numbers = itertools.count()


_CERTAIN = 4 << 20
"""Fewer bytes than this are reserved without checking that they are available: the check takes longer."""


class PageLocker(Protocol):
    """A device that can pin the host memory it copies from."""

    def page_lock(self, address: int, nbytes: int) -> None:
        """Pin `nbytes` of mapped memory at `address`; raise `OSError` if the driver refuses."""

    def page_unlocker(self, address: int, memory: object) -> Callable[[], object]:
        """Return a function that undoes `page_lock`, immediately or later; a second call does nothing.

        It is called after the last copy. The mapping exists as long as `memory` is kept.
        """


_refused: Living[PageLocker] = Living()  # those whose refusal was reported


class Arena:
    """One host memory mapping for many slots; it lives as long as anything refers to the arena.

    A batch that the user keeps holds it through its lease. `near` are the processor cores near which the
    memory is to lie; empty: wherever the system puts it. With `shared`, worker processes map `descriptor`,
    which stays None if processes cannot share memory. Raises `StagingMemoryError` if there is too little for
    these bytes, or for the `whole` of which they are the first.

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
        whole: int = 0,
    ) -> None:
        self.nbytes = nbytes  # exact: CuPy's pool of pinned memory rounds up to powers of two
        self.number = next(_numbers)  # identifies it in messages to workers
        self._ended: list[bool] = []
        self._end = once(partial(self._ended.append, True))
        self.page_locked = False
        self.descriptor: int | None = None
        needed = max(nbytes, whole)
        if needed > _CERTAIN:
            check_available(needed)
        try:
            # This thread touches the pages first, on the cores near the GPU, so the kernel places them there.
            # That needs no system call for memory policies; containers forbid those.
            self._mapping = call_near(near, partial(self._map, nbytes, locker is not None, shared))
        except (OSError, ValueError) as error:
            raise StagingMemoryError(_shortage(nbytes, str(error))) from error
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8, nbytes)
        self.address: int = self.bytes.ctypes.data
        if locker is not None:
            self._page_lock(locker)

    def _map(self, nbytes: int, locked: bool, shared: bool) -> mmap.mmap:
        # Memory for the CPU alone is private and anonymous, because Linux uses huge pages only there. Writing
        # 10 MB batches then takes a sixth less time, and no file descriptor stays open.
        if not can_share_memory() or not (shared or locked):
            return map_memory(nbytes, stays=False)
        # Memory that a device copies from must be shared with forked children: a private page would move when
        # it is written after a fork, away from the address that the device reads.
        if not shared and not has_memory_files():
            return map_memory(nbytes, stays=True)
        # A memory file has no name, so a crash leaves nothing behind.
        self.descriptor = open_memory_file("gpuloader-arena")
        self._end = once(self._end, closing_once(self.descriptor))
        reserve(self.descriptor, nbytes)  # before the first write: a shortage is then an error, not SIGBUS
        seal(self.descriptor, writable=True)  # a worker that shrinks the file would crash every other process
        mapping = mmap.mmap(self.descriptor, nbytes)
        prefault(mapping)  # staging never waits for new pages
        return mapping

    def _page_lock(self, locker: PageLocker) -> None:
        try:
            locker.page_lock(self.address, self.nbytes)
        except OSError as error:
            # Pageable memory works, too, but copies are slower and overlap less. A refusal for one slot holds
            # for all later slots, so one warning is enough.
            if locker in list(_refused):
                return
            _refused.add(locker)
            warnings.warn(
                f"{self.nbytes:,} bytes of staging memory could not be pinned ({error}); copying to "
                "the device from pageable memory instead, which is slower and overlaps less",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self.page_locked = True
            # It keeps the mapping, because unpinning precedes unmapping.
            self._unlock = Finalizer(locker.page_unlocker(self.address, self._mapping))

    @property
    def closed(self) -> bool:
        """Whether the arena was finalized; in a garbage cycle, that may happen before its users are."""
        return bool(self._ended)

    __del__ = calling("_end")


def _shortage(nbytes: int, reason: str) -> str:
    return (
        f"{nbytes:,} bytes of host memory for the loader's slots could not be reserved: {reason}; "
        "lower the batch size, prefetch_factor or the capacity, or raise the memory limit of this machine or "
        "container"
    )


check_available = partial(check_memory, shortage=_shortage)
"""Raises `StagingMemoryError` if the system reports less memory than a number of bytes."""
