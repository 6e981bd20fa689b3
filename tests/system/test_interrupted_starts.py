"""Ctrl-C, and other signals, while threads and processes start and while they are ended."""

import contextlib
import itertools
import os
import signal
import sys
import threading
from functools import partial

import numpy as np
import pytest

from gpuloader import DataLoader
from gpuloader.api import dataset_epochs, epochs
from gpuloader.epoch.epoch import Epoch, Iteration, open_epoch
from gpuloader.errors import Misuse
from gpuloader.fetch.worker_threads import ThreadWorkers
from gpuloader.reader import buffered, multiprocess_reader, xmap_readers
from gpuloader.sources.readers.parallel import _Permits, _ReaderProcess, _stop
from gpuloader.system.processes import _begin, fork_child, starting
from gpuloader.system.threads import _restore, deferred_interrupt, start_thread
from tests.fakes import nothing_left_behind, wait_until
from tests.sample_sets import Made


class TimeLimit(Exception):
    """What a handler of SIGALRM raises."""


def interrupted_at(function, action, tidy=lambda: None, number=signal.SIGINT):
    """Return how many lines an action runs in a function; do it once for each, with a Ctrl-C there.

    Or with signal `number`, whose handler raises `TimeLimit`.

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
                    os.kill(os.getpid(), number)
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
            with contextlib.suppress(KeyboardInterrupt, TimeLimit):
                assert attempt(line) < line, "the signal was lost"
            tidy()


ONE_PROCESS, PROCESSES = (multiprocess_reader([lambda: range(100)] * count) for count in (1, 2))
THREADS = buffered(lambda: range(9), 2), xmap_readers(abs, lambda: range(9), 2, 2)


@pytest.mark.parametrize(
    ("function", "reader"),
    [
        (_ReaderProcess.start.__func__, PROCESSES),
        (_ReaderProcess.close, ONE_PROCESS),
        (_stop, PROCESSES),
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


MOMENTS = dataset_epochs.DatasetEpochs.open, open_epoch, Iteration.close, Epoch.close


@pytest.mark.parametrize(
    ("kind", "function"),
    [*itertools.product(["process", "thread"], MOMENTS), ("thread", ThreadWorkers._end)],
)
def test_ctrl_c_while_an_epoch_opens_or_closes_leaves_no_worker(function, kind):
    method = "fork" if kind == "process" else None
    loader = DataLoader(np.zeros(40), places="cpu", num_workers=1, worker_type=kind, start_method=method)

    interrupt_an_epoch_of(loader, function)


@pytest.fixture
def alarm():
    """Return SIGALRM, whose handler raises."""

    def limit(*_):
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, limit)
    yield signal.SIGALRM
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("function", [fork_child, _begin])
def test_a_time_limit_while_workers_start_leaves_no_process(function, alarm):
    dataset = Made(partial(np.full, 3), 8)
    loader = DataLoader(dataset, places="cpu", batch_size=4, num_workers=2, start_method="fork")

    interrupted_at(function, partial(list, loader), number=alarm)


def test_a_time_limit_while_a_thread_starts(alarm, capfd):
    interrupted_at(threading.Thread.start, lambda: start_thread("gpuloader-test", int).join(), number=alarm)
    assert capfd.readouterr() == ("", "")


def test_a_worker_has_the_signal_handlers_of_its_program(tmp_path):
    def signalled(index):
        os.kill(os.getpid(), signal.SIGUSR1)
        return index

    before = signal.signal(signal.SIGUSR1, lambda *_: (tmp_path / str(os.getpid())).touch())
    try:
        list(DataLoader(Made(signalled), places="cpu", batch_size=4, num_workers=2, start_method="fork"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert 1 <= len(list(tmp_path.iterdir())) <= 2


@pytest.mark.parametrize("function", [deferred_interrupt, _restore])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_the_handlers_come_back_whenever_a_signal_arrives(function, number, alarm):
    numbers = [signal.SIGINT, alarm]
    before = [signal.getsignal(one) for one in numbers]

    def start():
        with deferred_interrupt():
            pass

    def check():
        assert [signal.getsignal(one) for one in numbers] == before

    interrupted_at(function, start, check, number=number)


def test_a_second_signal_is_handled_immediately_and_the_handlers_come_back():
    came, numbers = [], (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)

    def handle(number, _):
        came.append(number)
        raise TimeLimit

    before = [signal.signal(number, handle) for number in numbers]
    try:
        with pytest.raises(TimeLimit), deferred_interrupt():
            os.kill(os.getpid(), numbers[0])
            assert came == []
            with pytest.raises(TimeLimit):
                os.kill(os.getpid(), numbers[1])
            assert came == [numbers[1]]
        assert came == [numbers[1], numbers[0]]
        assert [signal.getsignal(number) for number in numbers] == [handle] * 3
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


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
