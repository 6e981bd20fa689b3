"""No Ctrl-C is lost that arrives while an object is freed."""

import _thread
import ast
import gc
import operator
import os
import sys
import sysconfig
import threading
from collections import deque
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gpuloader
from gpuloader import DataLoader, PackedList
from gpuloader.fetch.processes.shipping import pack
from gpuloader.staging.arena import Arena
from gpuloader.system.finalizers import (
    Finalizer,
    Living,
    LivingKeys,
    LivingValues,
    calling,
    closing_once,
    once,
    when_dropped,
)
from tests.fakes import no_other_collection, run_threads, wait_until


class Thing:
    pass


class Locker:
    """A fake device that page-locks memory, with Python code."""

    def __init__(self):
        self.locked = set()

    def page_lock(self, address, nbytes):
        self.locked.add(address)

    def page_unlocker(self, address, memory):
        return lambda: self.locked.discard(address)


def make_living():
    things = Living()
    things.add(thing := Thing())
    return thing


def make_keyed():
    things = LivingKeys()
    things.set(thing := Thing(), 1)
    return things, thing


def make_valued():
    things = LivingValues()
    things.set(1, thing := Thing())
    return things, thing


SILENT = {
    "an arena": lambda: Arena(4096, shared=True),
    "a packed list": lambda: PackedList(["a", "b"]),
    "a parcel": lambda: pack(np.arange(4)),
    "a thing": make_living,
    "a key": make_keyed,
    "a value": make_valued,
}
"""What ends without Python code."""


@pytest.fixture
def printed(monkeypatch):
    """What Python would print about exceptions that it cannot raise."""
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    return printed


@pytest.mark.parametrize("make", SILENT.values(), ids=SILENT)
def test_an_interrupt_stays_pending_while_an_object_is_freed(make, printed):
    kept = deque([make()])
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt):
        list(map(operator.call, [_thread.interrupt_main, kept.clear]))
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    with no_other_collection():
        cycle = [make()]
        cycle.append(cycle)
        del cycle
        with pytest.raises(KeyboardInterrupt):
            list(map(operator.call, [_thread.interrupt_main, gc.collect]))
    assert not printed


def make_locked():
    locker = Locker()
    arena = Arena(4096, locker)
    assert locker.locked
    return arena, lambda: not locker.locked


def make_watched():
    ended = []
    thing = Thing()
    when_dropped(thing, lambda: ended.append(True))
    return thing, lambda: ended


def make_worker_pool():
    loader = DataLoader(
        list(range(8)),
        places="cpu",
        batch_size=2,
        num_workers=1,
        start_method="fork",
        persistent_workers=True,
    )
    assert len(list(loader)) == 4
    [pool] = loader._epochs._fetching._pools
    [worker] = pool.workers
    pid = worker.child.pid
    return loader, lambda: not os.path.exists(f"/proc/{pid}")


DELIVERING = {
    "page-locked memory": make_locked,
    "an object of another package": make_watched,
    "a pool of workers": make_worker_pool,
}
"""What needs Python code at its end."""


@pytest.mark.parametrize("make", DELIVERING.values(), ids=DELIVERING)
def test_an_interrupt_is_delivered_again_where_an_end_needs_python_code(make, printed):
    made, has_ended = make()
    kept = deque([made])
    del made
    with pytest.raises(KeyboardInterrupt):
        list(map(operator.call, [_thread.interrupt_main, kept.clear]))
        threading.Event().wait(30)
    wait_until(has_ended)
    assert not printed


class TestAFinalizer:
    @pytest.mark.parametrize(("end", "times"), [(None, 1), ("__call__", 1), ("end", 0)])
    def test_calls_its_function_once_unless_it_was_ended(self, end, times):
        called = []
        finalizer = Finalizer()
        assert not finalizer.alive
        finalizer.watch(lambda: called.append(1))
        assert finalizer.alive
        for _ in range(2 if end else 0):
            getattr(finalizer, end)()
            assert not finalizer.alive
        del finalizer
        assert called == [1] * times

    def test_is_silent_about_errors_only_when_it_is_dropped(self, printed):
        finalizer = Finalizer(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            finalizer()
        assert finalizer.alive
        del finalizer
        assert not printed

    def test_that_was_collected_is_no_longer_alive(self):
        """In a garbage cycle, objects that refer to it may still ask."""
        called, asked = [], []
        cycle = [Finalizer(lambda: called.append(1))]
        cycle.append(Finalizer(lambda finalizer=cycle[0]: asked.append(finalizer.alive)))
        cycle.append(cycle)
        del cycle
        gc.collect()
        assert called == [1]
        # A free-threaded interpreter may collect the second one first.
        assert asked == [False] or (asked == [True] and sysconfig.get_config_var("Py_GIL_DISABLED"))

    def test_calls_the_function_again_after_an_interrupt_has_cut_it_short(self):
        called = []

        def function():
            called.append(1)
            if len(called) == 1:
                raise KeyboardInterrupt

        finalizer = Finalizer(function)
        with pytest.raises(KeyboardInterrupt):
            del finalizer
            threading.Event().wait(30)
        wait_until(lambda: called == [1, 1])

    def test_leaves_no_thread_after_an_interrupt(self):
        asked = threading.Event()

        def function():
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            asked.set()

        threads = threading.enumerate()
        finalizer = Finalizer(function)
        with pytest.raises(KeyboardInterrupt):
            del finalizer
            threading.Event().wait(30)
        assert asked.wait(30)
        wait_until(lambda: threading.enumerate() == threads)


def test_once_means_once_from_any_thread():
    called = []
    run_threads(once(partial(called.append, 1), partial(called.append, 2)), 8)
    assert called == [1, 2]


def test_a_descriptor_is_closed_once_and_errors_are_ignored():
    ours, theirs = os.pipe()
    close = closing_once(ours, None, -1)
    close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ours)
    again = os.dup(theirs)  # takes the same number
    close()
    os.fstat(again)
    os.close(again)
    os.close(theirs)
    closing_once(ours)()


def test_an_object_that_was_never_complete_ends_silently(printed):
    class Part:
        __del__ = calling("_release")

    Part()
    assert not printed


def test_the_package_has_no_other_finalizers():
    """A weak collection of the standard library removes what is gone in a Python function."""
    found = []
    for path in Path(gpuloader.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "name", getattr(node, "attr", ""))
            if name in ("__del__", "finalize", "WeakSet", "WeakKeyDictionary", "WeakValueDictionary"):
                found.append(f"{path.name}: {name}")
    assert not found


# A weak set that runs no Python code when one of its objects goes.


def test_the_things_that_live_are_there():
    things, kept = Living(), [Thing() for _ in range(3)]
    for one in kept:
        things.add(one)
        things.add(one)
    things.discard(kept[1])
    things.discard(Thing())
    assert set(things) == {kept[0], kept[2]}
    del kept[0], one
    assert list(things) == [kept[1]]


def test_things_may_go_while_others_are_looked_at():
    things, kept = Living(), [Thing() for _ in range(3)]
    for one in kept:
        things.add(one)
    del one
    seen = 0
    for _ in things:
        kept.clear()
        seen += 1
    assert seen == 3
    del _
    assert not list(things)
