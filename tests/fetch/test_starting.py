"""A thread or process that cannot be started is one error at once, and leaves nothing behind."""

import errno
import os
import threading
from functools import partial
from multiprocessing import resource_tracker
from types import SimpleNamespace

import numpy as np
import pytest

from gpuloader import DataLoader, IterableDataset, LoaderError
from gpuloader.reader import buffered, multiprocess_reader, xmap_readers
from tests.fakes import nothing_left_behind
from tests.sample_sets import Made


class Stream(IterableDataset):
    def __iter__(self):
        return iter([np.zeros(2)] * 8)


METHODS = pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])


def refuse_to_start(loader, message):
    """Check that a loader cannot begin, and leaves nothing behind; return the notes of its error."""
    with nothing_left_behind():
        with pytest.raises(LoaderError, match=message) as caught:
            list(loader)
        notes = getattr(caught.value, "__notes__", [])
        del caught  # its frames know what the epoch had started
        loader._epochs._idle.clear()
    return notes


@pytest.fixture
def few_threads(monkeypatch):
    """Let two more threads start, and none after them."""
    start, left = threading.Thread.start, [2]

    def start_some(thread):
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    return left


@pytest.mark.parametrize("dataset", [Made(np.arange, 8), Stream()], ids=["map-style", "iterable"])
def test_a_worker_thread_that_cannot_be_started(few_threads, dataset):
    loader = DataLoader(dataset, places="cpu", num_workers=4, worker_type="thread")
    refuse_to_start(loader, r"gpuloader-worker-2 could not be started \(can't start new thread\)")


def test_a_reading_thread_that_cannot_be_started(few_threads):
    few_threads[0] = 0
    loader = DataLoader.from_generator(capacity=2).set_batch_generator(lambda: iter([[1]]), places="cpu")
    refuse_to_start(loader, r"gpuloader-reader could not be started \(can't start new thread\)")


def test_a_thread_of_a_reader_that_cannot_be_started(few_threads):
    with nothing_left_behind():
        with pytest.raises(LoaderError, match=r"could not be started \(can't start new thread\)"):
            list(xmap_readers(abs, lambda: iter(range(9)), 4, 2)())
        with pytest.raises(LoaderError, match="could not be started"):
            list(buffered(lambda: iter(range(9)), 2)())


def fail(number, *_, **__):
    raise OSError(number, os.strerror(number))


@pytest.fixture
def few_forks(monkeypatch):
    """Let one more process be forked, and none after it."""
    resource_tracker.ensure_running()  # a fork may start it, and it stays
    fork, left = os.fork, [1]

    def fork_some():
        if not left[0]:
            fail(errno.EAGAIN)
        left[0] -= 1
        return fork()

    monkeypatch.setattr(os, "fork", fork_some)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_process_that_cannot_be_forked(few_forks, persistent):
    options = {"num_workers": 2, "start_method": "fork", "persistent_workers": persistent}
    loader = DataLoader(Made(np.arange, 8), places="cpu", **options)
    refuse_to_start(loader, r"worker 1 could not be started: .*temporarily unavailable")


def test_a_process_of_a_reader_that_cannot_be_forked(few_forks):
    message = r"could not be started \(.*temporarily unavailable"
    with nothing_left_behind(), pytest.raises(LoaderError, match=message):
        list(multiprocess_reader([lambda: iter(range(3))] * 2)())


def test_a_spawned_process_that_cannot_be_started(monkeypatch):
    loader = DataLoader(Made(np.arange, 8), places="cpu", num_workers=1, start_method="spawn")
    monkeypatch.setattr("multiprocessing.util.spawnv_passfds", partial(fail, errno.EAGAIN))
    refuse_to_start(loader, r"worker 0 could not be started: .*temporarily unavailable")


def test_shared_memory_that_is_full_is_not_the_readers_fault(monkeypatch):
    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", partial(fail, errno.ENOSPC))
    loader = DataLoader.from_generator(capacity=2, return_list=True, use_multiprocess=True)
    loader.set_batch_generator(lambda: iter([[np.zeros(2)]]), places="cpu")
    assert not refuse_to_start(loader, "No space left .* /dev/shm is full")


class Nested(Made):
    def __getitem__(self, index):
        return sum(batch.sum() for batch in DataLoader(Made(np.arange, 4), places="cpu", num_workers=1))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_loader_with_processes_within_a_worker(method):
    resource_tracker.ensure_running()  # stays, and keeps a descriptor open
    loader = DataLoader(Nested(np.arange, 2), places="cpu", num_workers=1, start_method=method)
    with nothing_left_behind():
        assert [batch.tolist() for batch in loader] == [[4], [4]]
        loader._epochs._idle.clear()
        del loader  # and its fork server


@METHODS
def test_too_few_descriptors_are_one_error_and_cost_none(method):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource_tracker.ensure_running()
    errors = []
    options = {"places": "cpu", "num_workers": 2, "start_method": method}
    list(DataLoader(Made(np.arange, 8), **options))  # imports late what the limit would refuse
    for left in range(0, 14, 2):
        loader = DataLoader(Made(np.arange, 8), **options)
        with nothing_left_behind():
            os.close(first := os.dup(0))
            resource.setrlimit(resource.RLIMIT_NOFILE, (first + left, limits[1]))
            try:
                list(loader)
            except LoaderError as error:
                errors.append(str(error))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            loader._epochs._idle.clear()
    assert errors
    assert all("Too many open files" in error for error in errors)


@METHODS
def test_a_deleted_working_directory_is_named(method, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    loader = DataLoader(Made(np.arange, 8), places="cpu", num_workers=1, start_method=method)
    for reader in (loader, multiprocess_reader([lambda: iter(range(3))])()):
        with pytest.raises(LoaderError, match=r"working directory was deleted .*; change to another"):
            list(reader)


def test_a_message_that_the_system_cannot_receive(monkeypatch):
    monkeypatch.setattr("gpuloader.fetch.processes.workers.receive", partial(fail, errno.ENOMEM))
    loader = DataLoader(Made(np.arange, 8), places="cpu", num_workers=1, start_method="fork")
    refuse_to_start(loader, "could not receive a message of worker 0: .*Cannot allocate memory")


def test_memory_that_a_worker_cannot_map_is_not_the_datasets_fault(monkeypatch):
    refusing = SimpleNamespace(mmap=partial(fail, errno.EMFILE))
    monkeypatch.setattr("gpuloader.fetch.processes.worker.mmap", refusing)
    loader = DataLoader(Made(np.arange, 8), places="cpu", num_workers=1, start_method="fork")
    refuse_to_start(loader, "worker 0 .*the loader's memory could not be mapped: .*Too many open files")
