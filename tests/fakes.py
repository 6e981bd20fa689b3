"""Fakes and waits shared by several tests."""

import gc
import os
import threading
import time
import tracemalloc
from contextlib import contextmanager, suppress

from gpuloader.staging import Arena
from gpuloader.system.finalizers import Living
from tests.processes import descendants, is_tracker
from tests.processes import is_running as is_running


def wait_until(condition, seconds=30.0):
    """Return once `condition()` holds; fail if it does not in time."""
    deadline, pause = time.monotonic() + seconds, 0.0005
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.02)  # a look at all processes takes longer than many waits


_arenas = Living()


def _remember(arena, *arguments, initialize=Arena.__init__, **options):
    _arenas.add(arena)
    initialize(arena, *arguments, **options)


Arena.__init__ = _remember  # searching all objects would take most of the suite's time


def loader_threads():
    """Return the threads of loaders and readers only, because other packages leave threads behind."""
    return [one for one in threading.enumerate() if one.name.startswith("gpuloader")]


def children():
    """Return the processes below this one, also those that have ended and were not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # without looking at all processes of the system, as there is no child
        return set()
    return {pid for pid in descendants(os.getpid()) if not is_tracker(pid)}


def descriptors():
    """Return the open descriptors of this process, each with what it refers to."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that listed them
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found


def segments():
    """Return the memory that this process may share with others: the inodes and names of mapped files."""
    with open("/proc/self/maps") as maps:
        lines = [line.split(maxsplit=5)[4:] for line in maps if "/memfd:" in line or "/dev/shm/" in line]
    return {(inode, name) for inode, name in lines if name.startswith(("/memfd:", "/dev/shm/"))}


def arenas():
    return {getattr(arena, "number", id(arena)) for arena in _arenas}


KINDS = threading.enumerate, children, descriptors, segments, arenas


def _wait_for_the_end(of, seconds):
    """Wait until nothing is there but what was there before; return what is."""
    left = []

    def are_gone():
        left[:] = [new for look, old in of if (new := set(look()) - old)]
        return not left

    gc.collect()
    with suppress(AssertionError):
        wait_until(are_gone, seconds)
    return left


@contextmanager
def nothing_left_behind(seconds=30.0):
    """Fail if the block leaves behind a thread, process, descriptor, shared segment or arena."""
    gc.collect()
    before = [(look, set(look())) for look in KINDS]
    yield
    # What threads and processes held is garbage only when they have ended.
    left = _wait_for_the_end(before[:2], seconds) + _wait_for_the_end(before[2:], seconds)
    assert left == []


def leave_early(loader, ending):
    """Leave a loader's epoch after its first batch, by `ending`.

    'break', 'exception': end the loop. 'dropped', 'cycle', 'closed': drop the epoch's iterator, drop it in a
    reference cycle, or close it.
    """
    if ending == "break":
        for _ in loader:
            break
    elif ending == "exception":
        with suppress(ZeroDivisionError):
            for _ in loader:
                raise ZeroDivisionError
    else:
        epoch = iter(loader)
        next(epoch)
        if ending == "closed":
            epoch.close()
        elif ending == "cycle":
            itself = [epoch]
            itself.append(itself)


def limit_memory(root, limit, used, cached=0):
    """Write the kernel's files for a process in a control group with these memory limits below `root`."""
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True, exist_ok=True)
    (group / "cgroup.controllers").write_text("cpu memory\n")
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")
    lines = f"anon {used}\nactive_file {cached - cached // 2}\ninactive_file {cached // 2}\n"
    (group / "memory.stat").write_text(lines)


@contextmanager
def no_other_collection():
    """Leave it to the block when garbage is collected; call no callbacks of other packages."""
    gc.collect()
    gc.disable()
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    try:
        yield
    finally:
        gc.callbacks[:] = callbacks
        gc.enable()


def run_threads(function, count=4):
    """Run the function in several threads at once, and raise what one of them raised."""
    wrong, begin = [], threading.Barrier(count)

    def run():
        begin.wait(60)
        try:
            function()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
        assert not one.is_alive()
    if wrong:
        raise wrong[0]


@contextmanager
def memory_below(nbytes):
    """Fail if the block allocates as much as that at any time."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < nbytes
