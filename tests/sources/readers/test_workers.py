"""Readers with threads or processes under them, when something other than the reader fails."""

import gc
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from gpuloader import LoaderError, WorkerError
from gpuloader.reader import batch, buffered, multiprocess_reader, shuffle, xmap_readers
from tests.fakes import is_running, nothing_left_behind, wait_until

DECORATORS = {
    "buffered": lambda reader: buffered(reader, 2),
    "mapped": lambda reader: xmap_readers(lambda item: item, reader, 2, 2),
    "mapped in order": lambda reader: xmap_readers(lambda item: item, reader, 2, 2, order=True),
    "processes": lambda reader: multiprocess_reader([reader, reader], queue_size=2),
}


@pytest.fixture(params=DECORATORS)
def decorate(request):
    with nothing_left_behind():
        yield DECORATORS[request.param]


def endless():
    while True:
        yield 1


def test_a_dropped_iterator_leaves_nothing_behind(decorate):
    assert next(iter(decorate(endless)())) == 1


def test_an_iterator_in_a_cycle_leaves_nothing_behind(decorate):
    class Holder:
        pass

    holder = Holder()
    holder.itself = holder
    holder.iterator = decorate(endless)()
    next(holder.iterator)
    del holder
    gc.collect()


def test_an_exception_at_the_consumer_leaves_nothing_behind(decorate):
    with pytest.raises(ZeroDivisionError):
        for item in decorate(endless)():
            item / 0


def test_an_iterator_that_was_never_advanced_starts_nothing(decorate):
    threads = threading.active_count()
    iterator = decorate(endless)()
    assert threading.active_count() == threads
    iterator.close()


def test_decorators_pass_errors_and_endings_through_one_another(decorate):
    def failing():
        yield from range(4)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(batch(decorate(shuffle(buffered(failing, 1), 2)), 2)())
    iterator = batch(decorate(shuffle(buffered(endless, 1), 2)), 2)()
    assert next(iterator) == [1, 1]
    iterator.close()


def test_a_mapper_that_blocks_holds_nobody_up():
    release = threading.Event()

    def mapper(n):
        if n:
            release.wait(10)
        return n

    with nothing_left_behind():
        iterator = xmap_readers(mapper, lambda: range(9), 2, 2, order=True)()
        assert next(iterator) == 0
        iterator.close()
        release.set()


def test_items_that_were_sent_before_a_death_arrive_before_it():
    def reader():
        yield from range(5)
        os.kill(os.getpid(), signal.SIGKILL)

    seen = []
    with nothing_left_behind(), pytest.raises(WorkerError):
        for item in multiprocess_reader([reader])():
            seen.append(item)
    assert seen == list(range(5))


def test_the_death_of_one_process_ends_the_others():
    def dying():
        yield os.getpid()
        os.kill(os.getpid(), signal.SIGKILL)

    def blocked():
        time.sleep(1000)
        yield 1

    with nothing_left_behind(), pytest.raises(WorkerError) as caught:
        list(multiprocess_reader([blocked, dying, blocked])())
    assert caught.value.signal == signal.SIGKILL


def test_the_exception_of_one_reader_does_not_wait_for_the_turn_of_another():
    def failing():
        yield 1
        raise OwnError("gone")

    def blocked():
        yield 0
        time.sleep(1000)

    seen = []
    with nothing_left_behind(), pytest.raises(OwnError, match="gone"):
        for item in multiprocess_reader([blocked, failing])():
            seen.append(item)
    assert seen == [0, 1]


class OwnError(Exception):
    pass


class Unopenable:
    """Can be pickled, and raises an OSError when it is unpickled."""

    def __reduce__(self):
        return open, ("/no/such/file",)


def test_an_item_that_does_not_unpickle_is_an_error():
    def reader():
        yield Unopenable()
        yield from endless()

    with nothing_left_behind(), pytest.raises(LoaderError, match="cannot be unpickled"):
        list(multiprocess_reader([reader], queue_size=2)())


def test_a_process_that_closed_its_pipe_is_an_error():
    def reader():
        yield 1
        os.closerange(3, 200)
        time.sleep(1000)

    with nothing_left_behind(), pytest.raises(WorkerError, match="before its reader ended"):
        list(multiprocess_reader([reader])())


needs_pidfd = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="without it, a process that inherited the pipe hides the death"
)


@needs_pidfd
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


def test_a_fork_that_closes_its_copy_ends_no_process_of_its_parent():
    with nothing_left_behind():
        iterator = multiprocess_reader([endless], queue_size=2)()
        next(iterator)
        child = os.fork()
        if child == 0:
            try:
                iterator.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert [next(iterator) for _ in range(9)] == [1] * 9
        iterator.close()


def test_readers_started_by_several_threads_at_once_all_arrive():
    reader = multiprocess_reader([lambda: range(5)] * 2)
    seen = []
    with nothing_left_behind():
        threads = [threading.Thread(target=lambda: seen.append(sorted(reader()))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert seen == [sorted([*range(5)] * 2)] * 4


@needs_pidfd
def test_processes_die_with_a_killed_parent_though_a_later_fork_lives_on():
    code = """
        import multiprocessing, os, signal, time
        from gpuloader.reader import multiprocess_reader

        def reader():
            yield os.getpid()
            time.sleep(1000)

        iterator = multiprocess_reader([reader])()
        pid = next(iterator)
        later = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
        later.start()
        print(pid, later.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as parent:
        pid, later = [int(word) for word in parent.stdout.readline().split()]
    try:
        wait_until(lambda: not is_running(pid))
    finally:
        os.kill(later, signal.SIGKILL)


def test_a_queue_size_beyond_what_a_semaphore_counts():
    assert list(multiprocess_reader([lambda: [1]], queue_size=2**40)()) == [1]


def test_a_reader_that_raises_stop_iteration_does_not_end_in_silence(decorate):
    def reader():
        next(iter([]))

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(decorate(reader)())


def test_a_file_rewound_for_every_epoch_stays_open():
    file = io.StringIO("a\nb\n")

    def reader():
        file.seek(0)
        return file

    for decorated in (buffered(reader, 1), xmap_readers(str.strip, reader, 1, 1)):
        assert [len(list(decorated())) for _ in range(2)] == [2, 2]


def test_a_thread_that_cannot_be_started_leaves_none_of_the_others(monkeypatch):
    start, started = threading.Thread.start, []

    def start_two(thread):
        started.append(thread)
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        start(thread)

    with nothing_left_behind():
        monkeypatch.setattr(threading.Thread, "start", start_two)
        with pytest.raises(RuntimeError, match="can't start"):
            list(xmap_readers(str, endless, 3, 2)())
        monkeypatch.undo()
