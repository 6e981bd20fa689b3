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
from types import SimpleNamespace

import numpy as np
import pytest

import gpuloader
from gpuloader import DataLoader, PackedList
from gpuloader.fetch.processes.shipping import pack
from gpuloader.staging import Arena
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


SILENT = {
    "an arena": lambda: Arena(4096, shared=True),
    "a packed list": lambda: PackedList(["a", "b"]),
    "a parcel": lambda: pack(np.arange(4)),
    "a thing": lambda: (thing := Thing(), living := Living(), living.add(thing)),
    "a key": lambda: (thing := Thing(), keys := LivingKeys(), keys.set(thing, 1)),
    "a value": lambda: (thing := Thing(), values := LivingValues(), values.set(1, thing)),
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
    unlocked = []
    unlock = partial(unlocked.append, True)
    locker = SimpleNamespace(page_lock=lambda *_: None, page_unlocker=lambda *_: lambda: unlock())
    return Arena(4096, locker), lambda: unlocked


def make_watched():
    ended = []
    thing = Thing()
    when_dropped(thing, lambda: ended.append(True))
    return thing, lambda: ended


def make_worker_pool():
    options = {"num_workers": 1, "start_method": "fork", "persistent_workers": True}
    loader = DataLoader(list(range(8)), places="cpu", batch_size=2, **options)
    assert len(list(loader)) == 4
    pid = loader._epochs._fetching._pools[0].workers[0].child.pid
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
        threading.Event().wait(60)
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

    def test_calls_the_function_again_after_an_interrupt_has_cut_it_short_and_leaves_no_thread(self):
        called, threads = [], threading.enumerate()

        def function():
            called.append(threading.current_thread())
            if len(called) == 1:
                raise KeyboardInterrupt

        finalizer = Finalizer(function)
        with pytest.raises(KeyboardInterrupt):
            del finalizer
            threading.Event().wait(60)
        wait_until(lambda: len(called) == 2 and threading.enumerate() == threads)
        assert called[0] is threading.main_thread() is not called[1]


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


FINALIZERS = ("__del__", "finalize", "WeakSet", "WeakKeyDictionary", "WeakValueDictionary")


def test_the_package_has_no_other_finalizers():
    """A weak collection of the standard library removes what is gone in a Python function."""
    found = []
    for path in Path(gpuloader.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if not any(name in text for name in FINALIZERS):
            continue  # parsing all files takes a second
        for node in ast.walk(ast.parse(text)):
            name = getattr(node, "name", getattr(node, "attr", ""))
            if name in FINALIZERS:
                found.append(f"{path.name}: {name}")
    assert found == ["remote_files.py: finalize"]  # which looks for those of fsspec


# A weak set that runs no Python code when one of its objects goes.


def test_the_things_that_live_are_there():
    things, kept = Living(), [Thing() for _ in range(3)]
    for one in 2 * kept:
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
    assert len([kept.clear() for _ in things]) == 3
    assert not list(things)
