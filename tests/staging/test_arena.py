"""The arena: reserved before the first write, page-locked once, freed when nothing refers to it."""

import fcntl
import gc
import math
import mmap
import os
from collections import deque
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpuloader import StagingMemoryError
from gpuloader.staging import ALIGNMENT, Arena, Slot, arrange, lease_views
from gpuloader.system import platforms
from gpuloader.system.cores import read_control_group
from gpuloader.system.finalizers import once
from tests.fakes import limit_memory
from tests.processes import run_in_fork


class Locker:
    """A fake device that page-locks memory."""

    def __init__(self, refuses=False):
        self.refuses = refuses
        self.calls = []

    def page_lock(self, address, nbytes):
        if self.refuses:
            raise OSError("no more pages may be locked")
        self.calls.append(("lock", address, nbytes))

    def page_unlocker(self, address, memory):
        return once(partial(self.unlock, address, memory))

    def unlock(self, address, memory):
        with open("/proc/self/maps") as maps:
            mapped = any(
                int(start, 16) <= address < int(end, 16)
                for start, end in (line.split()[0].split("-") for line in maps)
            )
        self.calls.append(("unlock", address, mapped))


@pytest.fixture
def without_memory_files(monkeypatch):
    for name in ("memfd_create", "posix_fallocate"):
        monkeypatch.delattr(os, name)


@pytest.mark.parametrize("locker", [None, Locker()], ids=["anonymous", "file"])
def test_every_byte_can_be_written_and_read(locker):
    arena = Arena(100_001, locker)
    assert arena.nbytes == arena.bytes.size == 100_001
    assert arena.address % os.sysconf("SC_PAGESIZE") == 0
    arena.bytes[:] = 7
    assert arena.bytes.sum() == 700_007


def test_page_locking_happens_once_and_is_undone_while_mapped_after_the_last_leased_view():
    locker, freed = Locker(), deque()
    arena = Arena(8192, locker)
    assert (arena.page_locked, arena.closed) == (True, False)
    locked, slot = ("lock", arena.address, 8192), Slot(arena.bytes[4096:], arena)
    [view] = lease_views(slot, arrange((((16,), np.dtype("int64")),)), freed)
    part = view[3:5]
    del arena, slot, view
    gc.collect()
    part[:] = 9
    assert locker.calls == [locked]
    del part
    freed.clear()
    gc.collect()
    assert locker.calls == [locked, ("unlock", locked[1], True)]


def test_the_memory_file_is_as_large_as_asked_sealed_and_closed_with_the_arena():
    arena = Arena(5000, Locker())
    descriptor = arena.descriptor
    assert os.fstat(descriptor).st_size == 5000
    assert not os.get_inheritable(descriptor)
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, 1033, 0x0008)  # F_ADD_SEALS, F_SEAL_WRITE
    del arena
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_refused_page_locking_is_one_warning_and_pageable_memory():
    locker = Locker(refuses=True)
    with pytest.warns(RuntimeWarning, match="no more pages may be locked") as warned:
        arena = Arena(4096, locker)
    assert len(warned) == 1
    assert not arena.page_locked
    arena.bytes[:] = 1
    del arena
    assert locker.calls == []


@pytest.mark.parametrize("locker", [None, Locker()], ids=["anonymous", "file"])
def test_more_memory_than_there_is_is_refused_before_anything_is_written(locker, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StagingMemoryError, match=r"only [0-9,]+ bytes are available; lower the batch size"):
        Arena(1 << 50, locker)
    monkeypatch.setattr(platforms, "available_memory", lambda: None)
    with pytest.raises(StagingMemoryError, match="could not be reserved"):
        Arena(1 << 60)  # more than there are addresses: the kernel itself refuses

    def refuse(descriptor, offset, nbytes):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(StagingMemoryError, match=r"4,096 bytes .* No space left on device"):
        Arena(4096, Locker())
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_memory_files_other_processes_map_a_file_that_has_no_name(without_memory_files):
    arena = Arena(5000, shared=True)
    assert os.fstat(arena.descriptor).st_size == 5000
    assert os.fstat(arena.descriptor).st_nlink == 0
    arena.bytes[:] = 7
    with mmap.mmap(arena.descriptor, 5000) as other:
        assert other[:] == b"\7" * 5000


def test_an_arena_keeps_within_its_control_group(tmp_path, monkeypatch):
    limit_memory(tmp_path, 64 << 20, 32 << 20)
    group = read_control_group(tmp_path)
    monkeypatch.setattr(platforms, "read_control_group", lambda _: group)
    assert Arena(32 << 20).nbytes == 32 << 20
    with pytest.raises(StagingMemoryError, match=r"33,554,433 bytes .* only 33,554,432 bytes are available"):
        Arena((32 << 20) + 1)


@pytest.mark.parametrize("has_files", [True, False], ids=["memory file", "anonymous mapping"])
def test_a_forked_child_does_not_disturb_memory_a_device_copies_from(request, has_files):
    if not has_files:
        request.getfixturevalue("without_memory_files")
    arena = Arena(4096, Locker())
    assert (arena.descriptor is not None, arena.page_locked) == (has_files, True)
    run_in_fork(partial(arena.bytes.fill, 3))
    assert arena.bytes[0] == 3  # both processes share the page, so it did not move


# Layouts: no field overlaps another, whatever their shapes and dtypes.

fields = st.lists(
    st.tuples(
        st.lists(st.integers(0, 40), max_size=4).map(tuple),
        st.one_of(arrays.floating_dtypes(endianness="="), arrays.integer_dtypes(endianness="=")),
    ),
    max_size=6,
).map(tuple)


@given(fields=fields)
def test_fields_follow_one_another_aligned_and_end_where_the_layout_says(fields):
    layout = arrange(fields)
    end = 0
    for placed, (shape, dtype) in zip(layout.fields, fields, strict=True):
        assert (placed.shape, placed.dtype) == (shape, dtype)
        assert placed.offset % ALIGNMENT == 0
        assert 0 <= placed.offset - end < ALIGNMENT
        end = placed.offset + math.prod(shape) * dtype.itemsize
    assert layout.nbytes == end


def test_a_layout_is_a_value():
    fields = (((2, 3), np.dtype("float32")), ((2,), np.dtype("int64")))
    assert len({arrange(fields), arrange(fields), arrange(fields[:1])}) == 2
