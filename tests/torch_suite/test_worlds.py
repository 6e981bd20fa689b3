"""What workers see of the program: with PyTorch on Linux, all that it has set before they start."""

import logging
import multiprocessing
import os
import sys
import time

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.skipif(
    multiprocessing.get_all_start_methods()[0] != "fork", reason="Python does not fork here"
)

SETTING = "as imported"
REGISTRY = {}


class Asked(torch.utils.data.Dataset):
    """A dataset whose samples are what a function returns in the worker."""

    factor = 1

    def __init__(self, ask):
        self.ask = ask

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.ask()


@pytest.fixture(params=[False, True], ids=["new workers", "persistent workers"])
def answers(lib, request):
    """Return a function that asks two workers in one epoch."""

    def answers(ask):
        loader = lib.DataLoader(
            Asked(ask), 2, num_workers=2, collate_fn=list, persistent_workers=request.param
        )
        first, second = loader
        assert first == second
        return first[0]

    return answers


def test_globals_of_a_module(answers, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SETTING", "changed")
    assert answers(lambda: SETTING) == "changed"


def test_attributes_of_a_class(answers, monkeypatch):
    monkeypatch.setattr(Asked, "factor", 7)
    assert answers(lambda: Asked.factor) == 7


def test_a_registry(answers, monkeypatch):
    monkeypatch.setitem(REGISTRY, "resize", len)
    assert answers(lambda: sorted(REGISTRY)) == ["resize"]


def test_a_function_that_was_replaced(answers, monkeypatch):
    monkeypatch.setattr(os.path, "basename", lambda path: "replaced")
    assert answers(lambda: os.path.basename("a/b")) == "replaced"


def test_the_default_dtype(answers):
    torch.set_default_dtype(torch.float64)
    try:
        assert answers(lambda: str(torch.zeros(1).dtype)) == "torch.float64"
    finally:
        torch.set_default_dtype(torch.float32)


def test_errors_of_numpy(answers):
    with np.errstate(divide="raise"):
        assert answers(lambda: np.geterr()["divide"]) == "raise"


def test_the_level_of_a_logger(answers, monkeypatch):
    logger = logging.getLogger(__name__)
    monkeypatch.setattr(logger, "level", logging.ERROR)
    assert answers(lambda: logging.getLogger(__name__).level) == logging.ERROR


def test_the_environment_folder_and_path(answers, monkeypatch, tmp_path):
    monkeypatch.setenv("COLOR", "green")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, "/nowhere"])
    told = answers(lambda: (os.environ["COLOR"], os.getcwd(), sys.path[-1], sys.argv))
    assert told == ("green", str(tmp_path), "/nowhere", sys.argv)


def test_the_umask(answers):
    def umask():
        mask = os.umask(0)
        os.umask(mask)
        return mask

    before = os.umask(0o027)
    try:
        assert answers(umask) == 0o027
    finally:
        os.umask(before)


def test_niceness_and_cores(answers):
    def priority():
        return os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)

    assert answers(priority) == priority()


def test_computing_takes_one_thread(answers):
    assert answers(torch.get_num_threads) == 1


class Counted(torch.utils.data.Dataset):
    """A dataset that counts its reads in shared memory, and reads the number of the epoch there."""

    def __init__(self, seen, epoch):
        self.seen, self.epoch = seen, epoch

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.seen[index] += 1
        return int(self.epoch[0])


def shared_tensors():
    return torch.zeros(8, dtype=torch.int64).share_memory_(), torch.zeros(1).share_memory_()


def shared_arrays():
    return (
        torch.frombuffer(multiprocessing.Array("q", 8).get_obj(), dtype=torch.int64),
        np.frombuffer(multiprocessing.Array("d", 1).get_obj()),
    )


@pytest.mark.parametrize("share", [shared_tensors, shared_arrays])
def test_shared_memory_is_written_and_read_by_both_sides(lib, share, persistent):
    seen, epoch = share()
    loader = lib.DataLoader(Counted(seen, epoch), 2, num_workers=2, **persistent)
    for number in range(3):
        epoch[0] = number
        assert [batch.tolist() for batch in loader] == [[number] * 2] * 4
    assert seen.tolist() == [3] * 8


class Locked(torch.utils.data.Dataset):
    """A dataset with a lock of multiprocessing, a queue and a value."""

    def __init__(self):
        self.count = multiprocessing.Value("i", 0)
        self.queue = multiprocessing.SimpleQueue()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        with self.count.get_lock():
            self.count.value += 1
        self.queue.put(index)
        return index


def test_values_and_queues(lib):
    dataset = Locked()
    assert len(list(lib.DataLoader(dataset, 2, num_workers=2))) == 4
    assert dataset.count.value == 8
    assert sorted(dataset.queue.get() for _ in range(8)) == list(range(8))


def test_a_dataset_that_cannot_be_pickled(lib):
    class Local(torch.utils.data.Dataset):
        def __init__(self):
            self.make = lambda index: index * 2

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return self.make(index)

    assert [batch.tolist() for batch in lib.DataLoader(Local(), 2, num_workers=2)] == [[0, 2], [4, 6]]


class Owned(torch.utils.data.Dataset):
    """Samples that take long, and tell which worker made them."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(0.2)
        return torch.utils.data.get_worker_info().id


def test_no_worker_has_two_batches_while_another_has_none(lib):
    loader = lib.DataLoader(Owned(), 1, num_workers=4, prefetch_factor=4)
    assert sorted(int(worker) for worker in loader) == [0, 0, 1, 1, 2, 2, 3, 3]
