"""Many threads at once, on every build of Python: worker threads, and threads that loop."""

import threading
import time
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from gpuloader import DataLoader, LoaderError, SampleError, TensorDataset, get_worker_info
from gpuloader.batches.assembly import Assembler
from gpuloader.batches.schema import Collation
from gpuloader.fetch import worker_threads as threads
from gpuloader.fetch.jobs import Job, Window
from gpuloader.fetch.worker_threads import DividedJob
from gpuloader.sources.describing import describe
from gpuloader.staging import Slot
from gpuloader.testing import simulated_places
from tests.api.streams import Items
from tests.fakes import loader_threads, run_threads, wait_until
from tests.sample_sets import Made

COUNT = 30
Samples = partial(Made, partial(np.full, 3), COUNT)
STREAM = Items(lambda: map(partial(np.full, 3), range(COUNT)))


@pytest.mark.parametrize("collate", [None, np.stack], ids=["into the slot", "kept for a collate_fn"])
def test_the_parts_of_a_batch_are_computed_at_once(collate):
    """Two samples, each of which computes until the other one is being computed as well."""
    begun = set()

    def meet(index):
        begun.add(index)
        deadline = time.monotonic() + 10
        while len(begun) < 2:  # without a wait, during which Python would let other threads run
            assert time.monotonic() < deadline, "the other part was not begun"
        return np.full(3, index)

    options = {"num_workers": 2, "worker_type": "thread", "collate_fn": collate}
    [batch] = DataLoader(Made(meet, 2), places="cpu", batch_size=2, **options)
    assert batch.tolist() == [[0] * 3, [1] * 3]


def begin_bad():
    """Return a batch to fetch in parts, in which all samples but the first do not fit."""
    slot = Slot(np.zeros(256, np.uint8), None)
    bad = Made(lambda index: np.full(3 + index, index), 3)
    return Assembler(describe(bad), Collation()).begin(0, range(3), lambda nbytes: slot)


@pytest.mark.parametrize("parts", [(2, 1, 0), (1, 2, 0)])
def test_the_error_is_of_the_first_bad_sample_whichever_was_fetched_first(parts):
    batch = begin_bad()
    for part in parts:
        batch.fetch(part, part + 1)
    with pytest.raises(SampleError) as caught:
        batch.finish()
    assert caught.value.index == 1


def test_the_error_is_of_the_first_bad_sample_whichever_failed_first():
    job, threads = Job(0, range(3)), SimpleNamespace(closed=False, bell=SimpleQueue())
    parts = DividedJob(job, begin_bad(), 3, threads, SimpleQueue())
    for start in (0, 2, 1):
        parts.run(start, start + 1, 0)
    assert job.error.dataset_index == 1


@pytest.mark.parametrize("size", [1, 5, 12])
def test_threads_gather_the_rows_of_large_arrays(size):
    """Also more of them than a batch has rows, or megabytes, and where processes would have to be told."""
    rows = TensorDataset(np.arange(12 << 18, dtype=np.float32).reshape(12, -1))
    options = {"places": "cpu", "batch_size": size, "shuffle": True, "seed": 3}
    plain = DataLoader(rows, **options)
    for count, kind in ((1, "thread"), (3, "process"), (8, "thread")):
        threads = DataLoader(rows, num_workers=count, worker_type=kind, **options)
        epoch = iter(threads)
        found = [next(epoch)]
        assert len(loader_threads()) == count
        found += epoch
        for [one], [other] in zip(found, plain, strict=True):
            np.testing.assert_array_equal(one, other)
        plain.set_epoch(0)


def test_a_thread_skips_what_an_epoch_that_is_left_had_given_it(monkeypatch):
    """It is waited for, so that its slots come back and the next epoch can use them."""
    reached, release, read = threading.Event(), threading.Event(), []

    def hold(index):
        if index:
            reached.set()
            release.wait(60)
            time.sleep(0.05)
        read.append(index)
        return index

    def monotonic():
        """Let the sample go once the threads have been told that the epoch is over."""
        release.set()
        return time.monotonic()

    options = {"places": "cpu", "batch_size": 1, "prefetch_factor": 8}
    loader = DataLoader(Made(hold, COUNT), num_workers=1, worker_type="thread", **options)
    epoch = iter(loader)
    next(epoch)
    reached.wait(60)
    monkeypatch.setattr(threads, "monotonic", monotonic)
    epoch.close()
    assert not loader_threads()
    assert read == [0, 1]
    [buffers] = loader._epochs._idle
    buffers.ring.drain()
    assert buffers.ring.free == buffers.ring.count


def test_batches_that_nobody_waited_for_leave_no_wake_up_behind():
    """In a slow loop they would pile up, and a later wait would begin with a look for each of them."""
    epoch = iter(DataLoader(Samples(), places="cpu", batch_size=1, num_workers=1, worker_type="thread"))
    next(epoch)
    fetch = epoch._epoch.fetch
    for _ in range(COUNT - 1):
        wait_until(lambda: fetch.window.jobs[0].done)
        next(epoch)
    assert fetch.bell.qsize() <= fetch.window.ahead


@pytest.mark.parametrize(
    ("home", "name"), [(Window, "deliver"), (Assembler, "begin"), (DividedJob, "hand_out"), (None, "sampler")]
)
def test_an_interrupt_while_batches_are_handed_out_is_no_end_of_the_data(monkeypatch, home, name):
    """One of them may be lost, with nobody at work on it, or the sampler's generator be closed."""
    calls = []

    def interrupt():
        calls.append(name)
        if len(calls) == 5:
            raise KeyboardInterrupt

    class Order:
        def __iter__(self):
            for index in range(COUNT):
                if home is None:
                    interrupt()
                yield index

    if home is not None:
        real = getattr(home, name)
        monkeypatch.setattr(home, name, lambda *arguments: interrupt() or real(*arguments))
    loader = DataLoader(Samples(), places="cpu", sampler=Order(), num_workers=1, worker_type="thread")
    epoch = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        list(epoch)
    with pytest.raises(LoaderError, match="interrupted in the middle of a batch"):
        next(epoch)
    assert len(list(loader)) == COUNT


def more_in_later_workers():
    number = get_worker_info().id
    return [number] * (2 * number + 2)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_workers_take_turns_at_an_iterable_dataset_until_each_has_ended(kind):
    options = {"places": "cpu", "batch_size": 2, "num_workers": 3, "worker_type": kind}
    loader = DataLoader(Items(more_in_later_workers), **options)
    epoch = iter(loader)
    found = [next(epoch).tolist() for _ in range(2)]
    state = loader.state_dict()
    found += [batch.tolist() for batch in epoch]
    assert found == [[number] * 2 for number in (0, 1, 2, 1, 2, 2)]
    again = DataLoader(Items(more_in_later_workers), **options)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == found[2:]


WAYS = {
    "in the loop's thread": {"use_buffer_reader": False},
    "ahead": {},
    "in a thread": {"use_buffer_reader": "thread"},
    "workers": {"num_workers": 2, "worker_type": "thread"},
    "workers and a collate_fn": {"num_workers": 2, "worker_type": "thread", "collate_fn": np.stack},
    "workers out of order": {"num_workers": 2, "worker_type": "thread", "in_order": False},
}


def numbers_of(batch):
    return np.asarray(batch)[:, 0].tolist()


@pytest.mark.parametrize("dataset", [Samples(), STREAM], ids=["samples", "stream"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["cpu", "simulated"])
def test_threads_that_share_an_epoch_get_each_batch_once(way, dataset, place):
    if "in_order" in WAYS[way] and dataset is STREAM:
        pytest.skip("the batches of a stream come in order")
    places = "cpu" if place == "cpu" else simulated_places(1)
    loader = DataLoader(dataset, places=places, batch_size=2, **WAYS[way])
    for _ in range(5):
        epoch, found = iter(loader), []
        run_threads(lambda epoch=epoch, found=found: found.extend(map(numbers_of, epoch)))
        if "workers" in way and dataset is STREAM:
            assert sorted(number for batch in found for number in batch) == sorted(2 * list(range(COUNT)))
        else:
            assert sorted(found) == [[n, n + 1] for n in range(0, COUNT, 2)]
    wait_until(lambda: not loader_threads())


@pytest.mark.parametrize("way", WAYS)
def test_threads_that_loop_over_one_loader_get_epochs_of_their_own(way):
    loader = DataLoader(Samples(), places="cpu", batch_size=2, shuffle=True, seed=1, **WAYS[way])
    epochs = []

    def loop():
        for _ in range(5):
            epochs.append([numbers_of(batch) for batch in loader])

    run_threads(loop)
    alone = DataLoader(Samples(), places="cpu", batch_size=2, shuffle=True, seed=1)
    expected = [[numbers_of(batch) for batch in alone] for _ in epochs]
    if "in_order" in WAYS[way]:
        epochs, expected = (list(map(sorted, one)) for one in (epochs, expected))
    assert sorted(epochs) == sorted(expected)
    wait_until(lambda: not loader_threads())
