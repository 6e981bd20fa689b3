"""Stand-ins and waits that several tests share."""

import gc
import multiprocessing
import os
import threading
import time
import weakref
from contextlib import contextmanager

from gpuloader.staging.arena import Arena


def wait_until(condition, seconds=10.0):
    """Return once `condition()` holds; fail where it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.0005)


_arenas = weakref.WeakSet()


def _remember(arena, *arguments, initialize=Arena.__init__, **options):
    _arenas.add(arena)
    initialize(arena, *arguments, **options)


Arena.__init__ = _remember  # to look through all objects there are would take most of the suite's time


def loader_threads():
    """Return the threads that loaders and readers have started; other packages leave theirs behind."""
    return [one for one in threading.enumerate() if one.name.startswith("gpuloader")]


def count_arenas():
    """Return how many arenas are alive: objects, and mappings of those that have a file."""
    with open("/proc/self/maps") as maps:
        mapped = sum("gpuloader-arena" in line for line in maps)
    return mapped + len(_arenas)


@contextmanager
def nothing_left_behind():
    """Fail if the block leaves a thread, a process, a descriptor or a mapping behind."""
    gc.collect()
    threads = set(threading.enumerate())
    descriptors = len(os.listdir("/proc/self/fd"))
    arenas = count_arenas()
    yield
    gc.collect()
    wait_until(lambda: not [one for one in threading.enumerate() if one not in threads])
    wait_until(lambda: not multiprocessing.active_children())
    gc.collect()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
    wait_until(lambda: count_arenas() <= arenas)


def limit_memory(root, limit, used, cached=0):
    """Write below `root` what a kernel says of a process in a control group with so much memory."""
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True, exist_ok=True)
    (group / "cgroup.controllers").write_text("cpu memory\n")
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")
    lines = f"anon {used}\nactive_file {cached - cached // 2}\ninactive_file {cached // 2}\n"
    (group / "memory.stat").write_text(lines)
