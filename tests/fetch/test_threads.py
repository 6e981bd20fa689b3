"""Many threads at once, on every build of Python: worker threads, and threads that loop."""

import threading
import time
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from gpuloader import DataLoader, SampleError
from gpuloader.collate.assembly import Assembler
from gpuloader.collate.form import Collation
from gpuloader.fetch.jobs import Job
from gpuloader.fetch.threads.workers import _Parts
from gpuloader.staging.ring import Slot


class Meeting:
    """Two samples, each of which computes until the other one is being computed as well."""

    def __init__(self):
        self.begun = set()

    def __len__(self):
        return 2

    def __getitem__(self, index):
        self.begun.add(index)
        deadline = time.monotonic() + 10
        while len(self.begun) < 2:  # without a wait, during which Python would let other threads run
            if time.monotonic() > deadline:
                raise AssertionError("the other part was not begun")
        return np.full(3, index)


@pytest.mark.parametrize("collate", [None, np.stack], ids=["into the slot", "kept for a collate_fn"])
def test_the_parts_of_a_batch_are_computed_at_once(collate):
    loader = DataLoader(
        Meeting(), places="cpu", batch_size=2, num_workers=2, worker_type="thread", collate_fn=collate
    )
    [batch] = loader
    assert batch.tolist() == [[0] * 3, [1] * 3]


class Bad:
    """Samples of which all but the first do not fit."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.full(3 + index, index)


def begin_bad():
    """Return a batch of `Bad` that is to be fetched in parts."""
    slot = Slot(np.zeros(256, np.uint8), None)
    return Assembler(Bad(), Collation()).begin(0, range(3), lambda nbytes: slot)


@pytest.mark.parametrize("parts", [(2, 1, 0), (1, 2, 0)])
def test_the_error_is_of_the_first_bad_sample_whichever_was_fetched_first(parts):
    assembly = begin_bad()
    for part in parts:
        assembly.fetch(part, part + 1)
    with pytest.raises(SampleError) as caught:
        assembly.finish()
    assert caught.value.dataset_index == 1


def test_the_error_is_of_the_first_bad_sample_whichever_failed_first():
    job, threads = Job(0, range(3)), SimpleNamespace(closed=threading.Event(), bell=SimpleQueue())
    parts = _Parts(job, begin_bad(), 3, threads)
    for start in (0, 2, 1):
        parts.run(start, start + 1, 0)
    assert job.error.dataset_index == 1
