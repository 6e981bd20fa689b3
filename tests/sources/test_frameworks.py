"""Datasets written for PyTorch or Paddle: iterable ones are recognized and get their worker's info."""

import itertools
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gpuloader import DataLoader, Dataset
from gpuloader.order.worker_info import WorkerInfo
from gpuloader.sources.describing import describe
from gpuloader.sources.frameworks import tell_worker

MODULES = {"torch": "torch.utils.data", "paddle": "paddle.io"}


@pytest.fixture(params=MODULES)
def framework(request):
    return pytest.importorskip(MODULES[request.param])


THREADS = {"num_workers": 2, "worker_type": "thread"}


def make_lines(framework):
    class Lines(framework.IterableDataset):
        def __iter__(self):
            info = framework.get_worker_info()
            first, step = (0, 1) if info is None else (info.id, info.num_workers)
            return itertools.islice(range(12), first, None, step)

    return Lines()


class Asking(Dataset):
    """Samples that say which worker made them, as the framework tells it."""

    def __init__(self, ask):
        self.ask = ask  # a function that was imported by name
        self.both = threading.Barrier(2, timeout=60)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        info = self.ask()
        if index in (1, 11):  # the second samples of the two threads' parts of the first batch
            self.both.wait()
        return np.array([info.id, info.num_workers, info.seed % 2**32, info.dataset is self])


def in_threads(ask):
    return DataLoader(Asking(ask), places="cpu", batch_size=20, **THREADS)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1}, THREADS], ids=str)
def test_an_iterable_data_set_of_a_framework_is_read_once(framework, options):
    loader = DataLoader(make_lines(framework), places="cpu", batch_size=3, **options)
    for _ in range(2):
        assert sorted(np.concatenate(list(loader)).tolist()) == list(range(12))


def test_a_framework_asked_about_the_worker_answers_in_its_process(framework):
    def told(samples):
        info = framework.get_worker_info()
        return [info.id, info.num_workers, list(info.dataset)]

    found = list(DataLoader(range(8), places="cpu", batch_size=2, num_workers=2, collate_fn=told))
    assert {number for number, _, _ in found} == {0, 1}
    assert [rest for _, *rest in found] == [[2, [*range(8)]]] * 4
    assert framework.get_worker_info() is None  # in this process


class TestThreads:
    def test_are_told_each_for_itself(self, framework):
        told = np.concatenate(list(in_threads(framework.get_worker_info)))
        assert (told[:, 1] == 2).all()
        assert told[:, 3].all()
        assert len({tuple(row) for row in told.tolist()}) == len({row[0] for row in told.tolist()}) == 2

    def test_leave_the_answer_to_others_as_it_is(self, framework):
        code = framework.get_worker_info.__code__
        epoch = iter(in_threads(framework.get_worker_info))
        next(epoch)
        assert framework.get_worker_info() is None
        inline = DataLoader(make_lines(framework), places="cpu", batch_size=12)
        assert [batch.tolist() for batch in inline] == [[*range(12)]]
        epoch.close()
        assert framework.get_worker_info() is None
        assert framework.get_worker_info.__code__ is code

    def test_of_two_loaders_end_independently(self, framework):
        loader = DataLoader(make_lines(framework), places="cpu", **THREADS)
        first, second = iter(loader), iter(loader)
        next(first)
        next(second)
        first.close()
        assert len(list(second)) == 11

    def test_of_several_ranks_read_everything(self, framework):
        """Under shard every worker reads all items, so the dataset must not divide them."""
        for rank in range(2):
            options = {"shard": (rank, 2), "uneven": "drop", **THREADS}
            loader = DataLoader(make_lines(framework), places="cpu", **options)
            assert np.concatenate(list(loader)).tolist() == [*range(rank, 12, 2)]

    def test_collate_without_shared_memory(self, framework):
        if framework.__name__ != "torch.utils.data":
            pytest.skip("only PyTorch's function asks")
        import torch

        seen = []

        def collate(samples):
            batch = framework.default_collate(samples)
            seen.append(batch.is_shared())
            return batch

        loader = DataLoader([torch.ones(3)] * 4, places="cpu", batch_size=2, collate_fn=collate, **THREADS)
        assert [batch.shape for batch in loader] == [(2, 3)] * 2
        assert seen == [False] * 2

    def test_ask_a_release_that_keeps_the_information_elsewhere(self, monkeypatch):
        def get_worker_info():
            return "elsewhere"

        moved = SimpleNamespace(get_worker_info=get_worker_info, WorkerInfo=dict)
        monkeypatch.setitem(sys.modules, "torch.utils.data._utils.worker", moved)
        options = {"collate_fn": lambda samples: get_worker_info(), **THREADS}
        assert list(DataLoader(range(2), places="cpu", **options)) == ["elsewhere"] * 2

    def test_are_answered_over_a_module_like_the_frameworks(self, monkeypatch):
        """So this is tested where neither is installed."""
        worker = ModuleType("worker")
        exec("_worker_info = None\ndef get_worker_info():\n    return _worker_info", vars(worker))
        worker.WorkerInfo = SimpleNamespace
        monkeypatch.setitem(sys.modules, "torch.utils.data._utils.worker", worker)
        code = worker.get_worker_info.__code__
        told = np.concatenate(list(in_threads(worker.get_worker_info)))
        assert {row[1] for row in told.tolist()} == {2}
        assert worker.get_worker_info() is None
        assert worker.get_worker_info.__code__ is code


class TestWithoutTheFrameworks:
    def test_what_derives_from_their_class_is_iterable(self, monkeypatch):
        class IterableDataset:
            def __getitem__(self, index):
                raise NotImplementedError

            def __iter__(self):
                return iter(range(4))

        monkeypatch.setitem(sys.modules, "torch.utils.data", SimpleNamespace(IterableDataset=IterableDataset))
        assert describe(IterableDataset()).iterable
        batches = DataLoader(IterableDataset(), places="cpu", batch_size=2)
        assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]

    def test_a_private_part_that_has_moved_is_no_error(self, monkeypatch):
        info = WorkerInfo(1, 2, 3, "data")
        moved = SimpleNamespace()
        monkeypatch.setitem(sys.modules, "torch.utils.data._utils.worker", moved)
        tell_worker(info)
        assert not vars(moved)
        moved.WorkerInfo = lambda **told: told
        tell_worker(info)
        assert moved._worker_info == {"id": 1, "num_workers": 2, "seed": 3, "dataset": "data"}
