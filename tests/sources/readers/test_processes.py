"""`multiprocess_reader`: items, errors, and processes that end and report how they ended."""

import faulthandler
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
from tests.fakes import is_running, nothing_left_behind, wait_until


@pytest.fixture(autouse=True)
def nothing_left():
    with nothing_left_behind():
        yield


@pytest.mark.parametrize("use_pipe", [True, False])
def test_all_items_of_all_readers_arrive(use_pipe):
    reader = multiprocess_reader([lambda: range(5), lambda: range(10, 13)], use_pipe, queue_size=2)
    for _ in range(2):
        seen = list(reader())
        assert sorted(seen) == [0, 1, 2, 3, 4, 10, 11, 12]
        assert [n for n in seen if n < 10] == list(range(5))  # each reader's own order is kept


def test_the_readers_take_turns_in_a_fixed_order():
    def slow():
        for number in (1, 2, 3):
            time.sleep(0.02)
            yield number

    reader = multiprocess_reader([slow, lambda: [4], lambda: [7, 8]])
    assert [list(reader()) for _ in range(2)] == [[1, 4, 7, 2, 8, 3]] * 2


def test_a_reader_in_a_process_may_start_processes():
    def reader_of(*items):
        return lambda: items

    inner = multiprocess_reader([reader_of(1, 2, 3), reader_of(4)])
    assert list(multiprocess_reader([inner, reader_of(7, 8)])()) == [1, 7, 4, 8, 2, 3]


def test_processes_of_a_process_end_with_it():
    def endless():
        while True:
            yield os.getpid()

    iterator = multiprocess_reader([multiprocess_reader([endless, endless])])()
    pids = {next(iterator), next(iterator)}
    assert len(pids) == 2
    iterator.close()
    wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_any_item_that_pickles_passes():
    array = np.arange(100_000)
    none, got, text = list(multiprocess_reader([lambda: [None, array, "text"]])())
    assert none is None
    assert text == "text"
    np.testing.assert_array_equal(got, array)


class OwnError(Exception):
    pass


class Unportable(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def raising(error):
    def reader():
        yield 1
        raise error

    return reader


def test_the_readers_exception_reaches_the_consumer_with_its_traceback():
    iterator = multiprocess_reader([raising(OwnError("gone"))])()
    assert next(iterator) == 1
    with pytest.raises(OwnError, match="gone") as caught:
        next(iterator)
    assert "in reader" in caught.value.__notes__[0]


def test_an_exception_that_does_not_pickle_arrives_as_text():
    with pytest.raises(LoaderError, match="Unportable: no way"):
        list(multiprocess_reader([raising(Unportable("no", "way"))])())


def test_an_item_that_does_not_pickle_is_an_error():
    with pytest.raises(LoaderError, match="item 0 of a reader in a process cannot be pickled"):
        list(multiprocess_reader([lambda: [lambda: 1]])())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_process_is_named_with_its_signal(number):
    def reader():
        faulthandler.disable()  # otherwise pytest's would report the child's crash as its own
        yield os.getpid()
        os.kill(os.getpid(), number)
        time.sleep(60)

    iterator = multiprocess_reader([reader])()
    pid = next(iterator)
    with pytest.raises(WorkerError, match=f"signal {number.value}") as caught:
        next(iterator)
    assert (caught.value.pid, caught.value.signal) == (pid, number)


def test_a_process_that_exits_on_its_own():
    def reader():
        yield 1
        os._exit(3)

    with pytest.raises(WorkerError, match="exited with code 3"):
        list(multiprocess_reader([reader])())


def test_leaving_early_ends_the_processes():
    def endless():
        while True:
            yield os.getpid()

    def blocked():
        time.sleep(1000)
        yield 1

    iterator = multiprocess_reader([endless, blocked], queue_size=3)()
    pid = next(iterator)
    iterator.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks processes up in /proc")
def test_processes_die_with_a_killed_parent():
    code = """
        import os, time
        from gpuloader.reader import multiprocess_reader

        def reader():
            yield os.getpid()
            time.sleep(1000)

        iterators = [multiprocess_reader([reader, reader])() for _ in range(2)]
        print(*[next(one) for one in iterators for _ in range(2)], flush=True)
        time.sleep(1000)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(set(pids)) == 4
        parent.kill()
    wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_arguments_are_checked_when_decorating():
    with pytest.raises(ReaderError, match="at least one reader"):
        multiprocess_reader([])
    with pytest.raises(ReaderError, match="function without arguments"):
        multiprocess_reader([range(3)])
    with pytest.raises(ValueError, match="queue_size"):
        multiprocess_reader([list], queue_size=0)


def test_a_forked_child_that_exits_does_not_end_the_processes_of_its_parent():
    """The child exits like a program, running all exit handlers."""
    program = """
    import os, sys
    from gpuloader.reader import multiprocess_reader

    items = multiprocess_reader([lambda: iter(range(500))], queue_size=4)()
    got = [next(items)]
    child = os.fork()
    if child == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert [*got, *items] == list(range(500))
    print("done")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


def test_a_lack_of_descriptors_is_a_typed_error(monkeypatch):
    def pipe(duplex):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(multiprocessing.get_context("fork"), "Pipe", pipe)
    with pytest.raises(LoaderError, match=r"could not be started.*Too many open files"):
        list(multiprocess_reader([lambda: range(3)])())


def test_a_process_that_cannot_watch_its_parent_says_so(monkeypatch, capfd):
    def watch():
        raise LoaderError("the thread could not be started")

    monkeypatch.setattr("gpuloader.system.processes.die_with_parent", watch)
    with pytest.raises(LoaderError, match="the thread could not be started"):
        list(multiprocess_reader([lambda: range(3)])())
    assert capfd.readouterr() == ("", "")


def test_a_fork_in_the_middle_does_not_take_its_parents_items():
    items = multiprocess_reader([lambda: iter(range(6))])()
    assert next(items) == 0
    pid = os.fork()
    if not pid:
        try:
            next(items)
        except LoaderError as error:
            os._exit(0 if "start a new epoch here" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(items) == [1, 2, 3, 4, 5]
