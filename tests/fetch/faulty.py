"""Datasets in which something goes wrong, and what tells that nothing is left of them.

Imported by every worker of the fork server, so nothing but NumPy and the package is needed here.
"""

import gc
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from functools import cache, partial

import numpy as np

from gpuloader import DataLoader, Dataset, IterableDataset, get_worker_info
from tests.fakes import nothing_left_behind, wait_until


class OwnError(Exception):
    """An exception of the user's."""


class Unpicklable(Exception):
    """One that `pickle` cannot make again, and that holds what it cannot take."""

    def __init__(self, code, reason):
        super().__init__(f"code {code}: {reason}")
        self.code = code
        self.lock = partial(print, (n for n in ()))


class Faulty(Dataset):
    """Samples that are their index three times over; at some of them something is done first."""

    def __init__(self, count=24, actions=None, always=None):
        self.count = count
        self.actions = actions or {}
        self.always = always

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.always is not None:
            self.always()
        if index in self.actions:
            self.actions[index]()
        return np.full(3, index)


class FaultyStream(IterableDataset):
    """The same as an iterable dataset: each worker has every n-th index."""

    def __init__(self, count=24, actions=None, always=None):
        self.samples = Faulty(count, actions, always)

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, len(self.samples), step):
            yield self.samples[index]


class Growing(Faulty):
    """Samples of ever more numbers, for batches that need ever larger slots."""

    def __getitem__(self, index):
        return {"x": np.repeat(super().__getitem__(index)[:1], 1 + 40 * index)}


def fail(error):
    raise error


def fail_with_code(code):
    raise Unpicklable(code, "no way")


def fail_from():
    raise OwnError("outer") from KeyError("inner")


def kill(number=signal.SIGKILL):
    os.kill(os.getpid(), number)
    time.sleep(60)


def fall():
    """Read where there is no memory."""
    import ctypes
    import faulthandler

    faulthandler.disable()  # or it would report the child's fault as if it were the tests'
    ctypes.string_at(0)


def at_first(path, action):
    """Do something, but only the first time."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    action()


exit_at_once = partial(os._exit, 3)
exit_politely = partial(sys.exit, 5)


def say_where(path, seconds):
    """Write down the process, then sleep."""
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(seconds)


def loader(dataset, **options):
    return DataLoader(dataset, **{"places": "cpu", "num_workers": 2, "batch_size": 4, "seed": 7, **options})


def indices(batches):
    """Return the indices of batches of `Faulty` samples, a list a batch."""
    return [batch[:, 0].tolist() for batch in batches]


def plain(count=24, size=4):
    """Return what `indices` of an uninterrupted epoch is."""
    return [list(range(start, min(start + size, count))) for start in range(0, count, size)]


def run_program(code, *arguments):
    """Run a program to its end and return what it said."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def offspring(pid=None):
    """Return the processes below this or the given one: its own and those of its fork server."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parents[int(entry)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, below = set(), {pid or os.getpid()}
    while below:
        below = {child for child, parent in parents.items() if parent in below}
        found |= below
    return found


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def end(pid):
    """Kill a process and wait until it is dead, all of its threads too."""
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        assert select.select([descriptor], [], [], 10)[0]
    finally:
        os.close(descriptor)


def count_mappings():
    with open("/proc/self/maps") as maps:
        return sum("gpuloader-" in line for line in maps)


@cache
def warm_up():
    """Start the fork server and the resource tracker, which stay and keep descriptors.

    The server has what the test modules import, so that not every worker need load it.
    """
    ours = "gpuloader.fetch.processes.worker"
    multiprocessing.set_forkserver_preload([ours, "tests.fetch.faulty", "pytest"])
    assert indices(loader(Faulty(4), start_method="forkserver")) == plain(4)


@contextmanager
def all_gone():
    """Fail if the block leaves a process, thread, descriptor or mapping behind."""
    warm_up()
    gc.freeze()  # what was there before need not be looked at again, which would take most of the time
    try:
        before, mappings = offspring(), count_mappings()
        with nothing_left_behind():
            yield
        wait_until(lambda: not [pid for pid in offspring() - before if is_running(pid)])
        wait_until(lambda: count_mappings() <= mappings)
    finally:
        gc.unfreeze()
