"""Epochs that are dropped rather than closed: nothing waits, nothing is lost, nothing stays."""

import _thread
import gc
import operator
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from gpuloader import DataLoader, IterableDataset
from gpuloader.epoch.epoch import Epoch, Iteration
from gpuloader.testing import simulated_places
from tests.fakes import loader_threads, no_other_collection, wait_until


class Stuck:
    """Samples, of which one takes until it is let go."""

    def __init__(self):
        self.reached, self.release = threading.Event(), threading.Event()

    def __len__(self):
        return 50

    def __getitem__(self, index):
        if index == 5:
            self.reached.set()
            self.release.wait(30)
        time.sleep(0.003)
        return np.int64(index)


def leave(loader, dataset, after=lambda: None):
    """Leave the loop while a sample is being read."""
    for _ in loader:
        dataset.reached.wait(30)
        after()
        break


WAYS = [{"use_buffer_reader": "thread"}, {"num_workers": 2, "worker_type": "thread"}]


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("options", WAYS)
def test_an_interrupt_is_not_lost_while_a_reader_is_stuck(options):
    dataset = Stuck()
    loader = DataLoader(dataset, places="cpu", batch_size=1, prefetch_factor=8, **options)
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        leave(loader, dataset, interrupt.start)
        time.sleep(30)
    dataset.release.set()
    wait_until(lambda: not loader_threads())


class Interrupting(IterableDataset):
    """Items whose iterator is interrupted while it is closed."""

    def __iter__(self):
        try:
            yield from range(9)
        finally:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_an_interrupt_is_not_lost_while_an_epoch_is_freed(in_a_cycle):
    epoch = iter(DataLoader(Interrupting(), places="cpu", use_buffer_reader=False))
    next(epoch)
    cycle = [epoch]
    if in_a_cycle:
        cycle.append(cycle)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        del epoch, cycle
        gc.collect()
        time.sleep(30)
    assert time.monotonic() - begun < 20  # it wakes the program


@pytest.mark.parametrize("options", [*WAYS, {"num_workers": 2, "worker_type": "process"}])
def test_the_next_epoch_waits_for_the_last_one_and_reuses_its_memory(options):
    loader = DataLoader(list(range(40)), places="cpu", batch_size=2, **options)
    addresses = set()
    for _ in range(6):
        for batch in loader:
            addresses.add(batch.__array_interface__["data"][0])
            break
        del batch
    assert len(addresses) <= 3  # the first slots of one reservation
    assert [batch.tolist() for batch in loader] == [[n, n + 1] for n in range(0, 40, 2)]


@pytest.mark.parametrize("options", WAYS)
def test_an_epoch_dropped_by_the_garbage_collector_is_closed_too(options):
    loader = DataLoader(list(range(40)), places="cpu", batch_size=2, **options)
    cycle = [iter(loader)]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    wait_until(lambda: not loader_threads())
    assert len(list(loader)) == 20


@pytest.mark.parametrize("read_ahead", [True, False, "thread"])
def test_an_interrupt_while_an_epoch_is_collected_is_delivered(read_ahead, monkeypatch):
    """Its memory is that of an earlier epoch, and so older than what closes the epoch."""
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    [place] = simulated_places(1)
    loader = DataLoader(list(range(40)), places=place, batch_size=2, use_buffer_reader=read_ahead)
    assert len(list(loader)) == 20
    cycle = [iter(loader)]
    next(cycle[0])
    cycle.append(cycle)
    with no_other_collection():
        del cycle
        with pytest.raises(KeyboardInterrupt):
            list(map(operator.call, [_thread.interrupt_main, gc.collect]))
            threading.Event().wait(30)
    wait_until(lambda: not loader_threads())
    assert not printed
    assert len(list(loader)) == 20


def test_an_epoch_that_has_ended_runs_no_python_code_when_it_is_freed():
    """Python would swallow a Ctrl-C that arrives there."""
    assert not any(hasattr(one, "__del__") for one in (Epoch, Iteration))
