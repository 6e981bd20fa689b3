"""Workers that do not answer in time, and memory that runs out: an error at once; the next epoch works."""

import threading
import time
from functools import partial

import numpy as np
import pytest

from gpuloader import LoaderError, StagingMemoryError, WorkerTimeout, staging
from gpuloader.fetch import worker_threads as threads
from gpuloader.system import platforms
from gpuloader.system.processes import default_method
from tests.fetch import faulty
from tests.fetch.faulty import Faulty, FaultyStream, Growing, indices, loader, plain
from tests.fetch.ways import WORKERS

INLINE = pytest.param({"num_workers": 0}, id="inline")
TIMEOUT = 2.0
"""Seconds in which workers start and deliver even on a busy machine."""

pytestmark = pytest.mark.usefixtures("shared_server", "nothing_left")

released = threading.Event()


@pytest.fixture(autouse=True)
def nothing_released(monkeypatch):
    """Let what still hangs in a thread go at the end, because a thread cannot be killed."""
    monkeypatch.setattr(threads.contract, "CLOSING_TIME", 0.1)  # no time is enough for it to end
    released.clear()
    yield
    released.set()


def hang_once(tmp_path, options):
    """Return a function that hangs the first time: for ever in a process, in a thread until `released`."""
    hang = released.wait if "worker_type" in options else partial(time.sleep, 1000)
    return faulty.once(tmp_path, hang)


@pytest.mark.parametrize("options", WORKERS)
@pytest.mark.parametrize(
    ("kind", "index", "message"),
    [
        pytest.param(Faulty, 9, r"worker [01] .*batch 2 within the timeout of 2.0 s", id="sample"),
        pytest.param(Faulty, 0, "batch 0", id="first-sample"),  # the other workers wait for the form
        pytest.param(FaultyStream, 9, r"worker 1 .*batch 3", id="iterable"),
    ],
)
def test_a_sample_that_hangs(options, kind, index, message, tmp_path):
    one = loader(kind(actions={index: hang_once(tmp_path, options)}), timeout=TIMEOUT, **options)
    with pytest.raises(WorkerTimeout, match=message) as caught:
        list(one)
    released.set()  # a thread hung until now
    assert isinstance(caught.value, TimeoutError)
    if kind is Faulty:
        first = index // 4 * 4
        assert index in caught.value.indices
        assert set(caught.value.indices) <= set(range(first, first + 4))
    assert indices(one) == indices(loader(kind(), **options))
    one.close()


def test_the_timeout_is_for_each_batch():
    """All of them together take twice as long."""
    one = loader(Faulty(240, always=partial(time.sleep, TIMEOUT / 60)), timeout=TIMEOUT)
    assert indices(one) == plain(240)


def test_a_full_link_does_not_hide_the_timeout(tmp_path):
    """The worker that hangs has more tasks queued than its link can hold."""
    dataset = Faulty(1000, {0: hang_once(tmp_path, {})})
    one = loader(dataset, timeout=TIMEOUT, batch_size=1, num_workers=1, prefetch_factor=1000)
    with pytest.raises(WorkerTimeout):
        list(one)
    assert indices(one) == plain(1000, 1)


@pytest.mark.parametrize("options", [*WORKERS, INLINE])
@pytest.mark.parametrize("received", [0, 1])
def test_slots_that_cannot_be_allocated_or_grow(options, received, monkeypatch):
    one = loader(Growing(), ragged=["x"], **options)
    epoch = iter(one)
    for _ in range(received):
        next(epoch)
    with monkeypatch.context() as patch:
        patch.setattr(platforms, "available_memory", lambda: 1000)
        patch.setattr(staging, "_CERTAIN", 0)  # bytes that any machine has, so nobody asks
        with pytest.raises(StagingMemoryError, match="only 1,000 bytes are available"):
            list(epoch)
    assert [batch["x"].values[-1] for batch in one] == [3, 7, 11, 15, 19, 23]
    one.close()


forks = pytest.mark.skipif(default_method() != "fork", reason="Python does not fork here")


class Attached(Faulty):
    """Samples of a dataset with something else."""

    def __init__(self, attached):
        super().__init__(8)
        self.attached = attached


@forks
def test_a_dataset_that_cannot_be_sent_is_forked(monkeypatch):
    for attached, kind, message in (
        (np.zeros(1 << 20), StagingMemoryError, "to share the dataset with its workers"),
        (threading.Lock(), LoaderError, r": dataset\.attached cannot be pickled.*start_method='fork'"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(platforms, "available_memory", lambda: 1 << 20)
            with pytest.raises(kind, match=message):
                list(loader(Attached(attached), start_method="forkserver"))
            assert indices(loader(Attached(attached))) == plain(8)
