"""Ctrl-C, and other signals, while threads and processes start and while they are ended."""

import contextlib
import os
import signal
import sys
import threading

import numpy as np
import pytest

from gpuloader import DataLoader
from gpuloader.api import dataset_epochs, epochs
from gpuloader.epoch.epoch import open_epoch
from gpuloader.errors import Misuse
from gpuloader.reader import buffered, multiprocess_reader, xmap_readers
from gpuloader.sources.readers.parallel import _Permits, _ReaderProcess, _stop
from gpuloader.system.processes import starting
from gpuloader.system.threads import start_thread
from tests.fakes import nothing_left_behind, wait_until


def interrupted_at(function, action, tidy=lambda: None):
    """Return how many lines an action runs in a function; do it once for each, with a Ctrl-C there.

    Every one must be heard, within the action or soon after it.
    """
    code = getattr(function, "__wrapped__", function).__code__

    def attempt(stop):
        seen = 0

        def trace(frame, event, _):
            nonlocal seen
            if frame.f_code is not code:
                return None if event == "call" else trace
            if event == "line":
                seen += 1
                if seen == stop:
                    os.kill(os.getpid(), signal.SIGINT)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            action()
            sys.settrace(before)
            if 0 < stop <= seen:  # delivered again, after what was dropped has gone
                wait_until(lambda: False, 2)
        finally:
            sys.settrace(before)
        return seen

    lines = attempt(0)
    assert lines
    for line in range(1, lines + 1):
        with nothing_left_behind():
            with contextlib.suppress(KeyboardInterrupt):
                assert attempt(line) < line, "the Ctrl-C was lost"
            tidy()


PROCESSES = multiprocess_reader([lambda: range(100)] * 2)
THREADS = buffered(lambda: range(9), 2), xmap_readers(abs, lambda: range(9), 2, 2)


@pytest.mark.parametrize(
    ("function", "reader"),
    [
        *((one, PROCESSES) for one in (_ReaderProcess.start.__func__, _ReaderProcess.close, _stop)),
        *((one, reader) for one in (_Permits.close, threading.Thread.start) for reader in THREADS),
    ],
)
def test_ctrl_c_around_the_processes_and_threads_of_a_reader(function, reader):
    def drop():
        iterator = reader()
        next(iterator)
        del iterator

    interrupted_at(function, drop)


@pytest.mark.parametrize("function", [threading.Thread.start, threading.Condition.wait, start_thread])
def test_ctrl_c_while_a_thread_starts(function):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1)  # the new thread runs only once this one waits for it
    try:
        interrupted_at(function, lambda: start_thread("gpuloader-test", int).join())
    finally:
        sys.setswitchinterval(before)


def interrupt_an_epoch_of(loader, function):
    def begin():
        epoch = iter(loader)
        next(epoch)
        epoch.close()

    interrupted_at(function, begin, loader._epochs._idle.clear)


@pytest.mark.parametrize(
    "function", [dataset_epochs.DatasetEpochs.open, open_epoch], ids=["opening", "guarding"]
)
@pytest.mark.parametrize("kind", ["process", "thread"])
def test_ctrl_c_while_an_epoch_opens_leaves_no_worker(function, kind):
    method = "fork" if kind == "process" else None
    loader = DataLoader(np.zeros(40), places="cpu", num_workers=1, worker_type=kind, start_method=method)

    interrupt_an_epoch_of(loader, function)


@pytest.mark.parametrize("function", [epochs.ReadingEpochs.open_reading, open_epoch])
def test_ctrl_c_while_an_epoch_of_a_reader_opens_leaves_no_thread(function):
    loader = DataLoader.from_generator(capacity=2, use_double_buffer="thread", return_list=True)
    loader.set_batch_generator(lambda: iter([[np.zeros(2)]] * 9), places="cpu")

    interrupt_an_epoch_of(loader, function)


def test_a_signal_handler_that_wants_the_first_batch_while_it_is_fetched():
    loader = DataLoader(np.zeros(8), places="cpu", batch_size=4, num_workers=1)
    epoch = iter(loader)
    held, signals = starting(), [signal.SIGUSR1]

    def handle(*_):
        next(epoch)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        starts = loader._epochs.begin

        def begin(*arguments):
            with held:  # as while a worker starts
                if signals:
                    os.kill(os.getpid(), signals.pop())
            return starts(*arguments)

        epoch._begin = begin
        with pytest.raises(Misuse, match=r"^next\(\) was called while the first next\(\)"):
            next(epoch)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(list(epoch)) == 2
