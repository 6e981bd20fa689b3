"""Datasets that fail in various ways, and checks that nothing is left behind.

Every worker of the fork server imports this module, so it needs only NumPy and the package.
"""

import ctypes
import faulthandler
import gc
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import resource_tracker

import numpy as np

from gpuloader import DataLoader, Dataset, IterableDataset, get_worker_info
from gpuloader.system import processes
from tests.fakes import nothing_left_behind
from tests.processes import descendants


class OwnError(Exception):
    """An exception class of the user."""


class Unpicklable(Exception):
    """An exception that `pickle` can neither pickle, because of an attribute, nor create again."""

    def __init__(self, code, reason):
        super().__init__(f"code {code}: {reason}")
        self.code = code
        self.lock = partial(print, (n for n in ()))


class Faulty(Dataset):
    """Samples that hold their index three times; `actions` run before some of them, `always` before each."""

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
    """The same samples as an iterable dataset, where each of n workers yields every n-th."""

    def __init__(self, count=24, actions=None, always=None):
        self.samples = Faulty(count, actions, always)

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, len(self.samples), step):
            yield self.samples[index]


class Growing(Faulty):
    """Samples that grow with their index, so that each batch needs a larger slot."""

    def __getitem__(self, index):
        return {"x": np.repeat(super().__getitem__(index)[:1], 1 + 40 * index)}


def fail(error):
    raise error


def fail_with_code(code):
    raise Unpicklable(code, "no way")


def kill(number=signal.SIGKILL):
    faulthandler.disable()  # otherwise it reports the child's crash as if it were the tests'
    os.kill(os.getpid(), number)
    time.sleep(60)


def fall():
    """Read unmapped memory, which raises SIGSEGV."""
    faulthandler.disable()
    ctypes.string_at(0)


def at_first(path, action):
    """Run an action, but only the first time in any process; `path` records that."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    action()


def once(folder, action):
    """Return a function that runs an action, but only the first time in any process."""
    return partial(at_first, str(folder / "once"), action)


exit_at_once = partial(os._exit, 3)
exit_politely = partial(sys.exit, 5)


def loader(dataset, **options):
    return DataLoader(dataset, **{"places": "cpu", "num_workers": 2, "batch_size": 4, "seed": 7, **options})


def indices(batches):
    """Return the indices of batches of `Faulty` samples, one list per batch."""
    return [batch[:, 0].tolist() for batch in batches]


def plain(count=24, size=4):
    """Return the `indices` of an epoch without errors."""
    return [list(range(start, min(start + size, count))) for start in range(0, count, size)]


def run_program(code, *arguments):
    """Run a Python program to its end; return its exit code and output."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def offspring(pid=None):
    """Return the descendants of a process; by default of this one, without the servers of loaders."""
    if pid is not None:
        return set(descendants(pid))
    servers = {child.pid for child in processes._children if getattr(child, "_popen", None)}
    return set(descendants(os.getpid())) - servers


def end(pid):
    """Kill a process and wait until it is dead, with all of its threads."""
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        assert select.select([descriptor], [], [], 10)[0]
    finally:
        os.close(descriptor)


@cache
def warm_up():
    """Start the resource tracker, which stays and keeps descriptors open, and import what workers need."""
    resource_tracker.ensure_running()  # for processes that are spawned
    assert indices(loader(Faulty(4), start_method="forkserver")) == plain(4)


@contextmanager
def all_gone():
    """Fail if the block leaves a process, thread, descriptor or shared segment behind."""
    warm_up()
    gc.freeze()  # exclude existing objects from collections, which would take most of the time
    try:
        with nothing_left_behind():
            yield
    finally:
        gc.unfreeze()
