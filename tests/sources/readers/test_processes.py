"""`multiprocess_reader`: items, errors, and processes that end and report how they ended."""

import faulthandler
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from gpuloader import LoaderError, ReaderError, WorkerError
from gpuloader.reader import multiprocess_reader
from tests.fakes import is_running, nothing_left_behind, run_threads, wait_until


@pytest.fixture(autouse=True)
def nothing_left():
    with nothing_left_behind():
        yield


def test_a_process_without_memory_for_another_thread_keeps_nobody_waiting(monkeypatch):
    def begin(_):
        raise MemoryError

    monkeypatch.setattr("threading.Thread._bootstrap_inner", begin)
    assert list(multiprocess_reader([lambda: [1, 2]])()) == [1, 2]


@pytest.mark.parametrize("use_pipe", [True, False])
def test_the_readers_take_turns_in_a_fixed_order(use_pipe):
    def slow():
        for number in (1, 2, 3):
            time.sleep(0.02)
            yield number

    reader = multiprocess_reader([slow, lambda: [4], lambda: [7, 8]], use_pipe, queue_size=2)
    assert [list(reader()) for _ in range(2)] == [[1, 4, 7, 2, 8, 3]] * 2
    inner = multiprocess_reader([lambda: [1, 2, 3], lambda: [4]])
    assert list(multiprocess_reader([inner, lambda: [7, 8]])()) == [1, 7, 4, 8, 2, 3]


def test_processes_of_a_process_end_with_it():
    iterator = multiprocess_reader([multiprocess_reader([endless, endless])])()
    pids = {next(iterator), next(iterator)}
    assert len(pids) == 2
    iterator.close()
    wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_any_item_that_pickles_passes():
    array = np.arange(100_000)
    none, got, text = list(multiprocess_reader([lambda: [None, array, "text"]], queue_size=2**40)())
    assert (none, text) == (None, "text")
    np.testing.assert_array_equal(got, array)


class Unportable(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def raising(error):
    def reader():
        yield 1
        raise error

    return reader


def endless():
    while True:
        yield os.getpid()


def blocked():
    yield 0
    time.sleep(1000)


def test_the_readers_exception_reaches_the_consumer_with_its_traceback():
    seen = []
    with pytest.raises(ZeroDivisionError, match="gone") as caught:
        for item in multiprocess_reader([blocked, raising(ZeroDivisionError("gone"))])():
            seen.append(item)
    assert seen == [0, 1]  # and does not wait for the turn of another
    assert "in reader" in caught.value.__notes__[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_process_is_named_with_its_signal_behind_what_it_sent(number):
    def reader():
        faulthandler.disable()  # otherwise pytest's would report the child's crash as its own
        yield from [os.getpid()] * 5
        os.kill(os.getpid(), number)
        time.sleep(60)

    seen = []
    with pytest.raises(WorkerError, match=f"signal {number.value}") as caught:
        for pid in multiprocess_reader([reader])():
            seen.append(pid)
    assert seen == [caught.value.pid] * 5
    assert caught.value.signal == number


def test_a_process_is_at_most_queue_size_items_ahead(tmp_path):
    progress = tmp_path / "progress"

    def reader():
        for n in range(100):
            progress.write_text(str(n))
            yield n

    iterator = multiprocess_reader([reader], queue_size=4)()
    next(iterator)
    wait_until(lambda: progress.exists() and progress.read_text() == "4")
    time.sleep(0.05)
    assert progress.read_text() == "4"  # one taken, four ahead
    iterator.close()


@pytest.mark.parametrize(
    ("readers", "size", "kind", "problem"),
    [
        ([], 9, ReaderError, "at least one reader"),
        ([range(3)], 9, ReaderError, "function without arguments"),
        ([list], 0, ValueError, "queue_size"),
    ],
)
def test_arguments_are_checked_when_decorating(readers, size, kind, problem):
    with pytest.raises(kind, match=problem):
        multiprocess_reader(readers, queue_size=size)


def test_a_lack_of_descriptors_is_a_typed_error(monkeypatch):
    def pipe(duplex):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(multiprocessing.get_context("fork"), "Pipe", pipe)
    with pytest.raises(LoaderError, match=r"could not be started.*Too many open files"):
        list(multiprocess_reader([lambda: range(3)])())


class Unopenable:
    """Can be pickled, and raises an OSError when it is unpickled."""

    def __reduce__(self):
        return open, ("/no/such/file",)


def exiting():
    yield 1
    os._exit(3)


def closing():
    yield 1
    os.closerange(3, 200)
    time.sleep(1000)


@pytest.mark.parametrize(
    ("reader", "kind", "message"),
    [
        (raising(Unportable("no", "way")), LoaderError, "Unportable: no way"),
        (lambda: [lambda: 1], LoaderError, "item 0 of a reader in a process cannot be pickled"),
        (lambda: itertools.repeat(Unopenable()), LoaderError, "cannot be unpickled"),
        (exiting, WorkerError, "exited with code 3"),
        (closing, WorkerError, "before its reader ended"),
    ],
)
def test_what_does_not_come_through_the_pipe_is_an_error(reader, kind, message):
    with pytest.raises(kind, match=message):
        list(multiprocess_reader([reader], queue_size=2)())


def test_a_killed_process_is_noticed_though_a_child_of_its_own_lives_on():
    def reader():
        heir = os.fork()
        if heir == 0:
            time.sleep(1000)
        yield heir
        os.kill(os.getpid(), signal.SIGKILL)

    iterator = multiprocess_reader([reader])()
    heir = next(iterator)
    try:
        with pytest.raises(WorkerError, match="signal 9"):
            next(iterator)
    finally:
        os.kill(heir, signal.SIGKILL)


def test_readers_started_by_several_threads_at_once_all_arrive():
    reader, seen = multiprocess_reader([lambda: range(5)] * 2), []
    run_threads(lambda: seen.append(sorted(reader())))
    assert seen == [sorted([*range(5)] * 2)] * 4


def test_processes_die_with_a_killed_parent_though_a_later_fork_lives_on():
    code = """
        import multiprocessing, os, signal, time
        from gpuloader.reader import multiprocess_reader

        def reader():
            yield os.getpid()
            time.sleep(1000)

        iterators = [multiprocess_reader([reader, reader])() for _ in range(2)]
        pids = [next(one) for one in iterators for _ in range(2)]
        later = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
        later.start()
        print(later.pid, *pids, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as parent:
        later, *pids = [int(word) for word in parent.stdout.readline().split()]
    try:
        assert len(set(pids)) == 4
        wait_until(lambda: not any(is_running(pid) for pid in pids))
    finally:
        os.kill(later, signal.SIGKILL)
