"""Datasets written for PyTorch or Paddle: iterable ones are recognized and get their worker's info."""

import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from gpuloader import DataLoader, Dataset
from gpuloader.loader.options import check_dataset
from gpuloader.order.worker_info import WorkerInfo
from gpuloader.sources.frameworks import tell_worker

MODULES = {"torch": "torch.utils.data", "paddle": "paddle.io"}


@pytest.fixture(params=MODULES)
def framework(request):
    return pytest.importorskip(MODULES[request.param])


def make_lines(framework):
    class Lines(framework.IterableDataset):
        def __iter__(self):
            info = framework.get_worker_info()
            first, step = (0, 1) if info is None else (info.id, info.num_workers)
            return itertools.islice(range(12), first, None, step)

    return Lines()


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1}], ids=str)
def test_an_iterable_data_set_of_a_framework_is_read_once(framework, options):
    loader = DataLoader(make_lines(framework), places="cpu", batch_size=3, start_method=None, **options)
    for _ in range(2):
        assert sorted(np.concatenate(list(loader)).tolist()) == list(range(12))


def test_a_framework_asked_about_the_worker_answers_in_its_process(framework):
    class Asking(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            info = framework.get_worker_info()
            return np.array([info.id, info.num_workers, type(info.dataset) is Asking])

    told = np.concatenate(list(DataLoader(Asking(), places="cpu", batch_size=2, num_workers=2)))
    assert sorted(set(told[:, 0])) == [0, 1]
    assert (told[:, 1:] == [2, 1]).all()
    assert framework.get_worker_info() is None  # in this process


class TestWithoutTheFrameworks:
    def test_what_derives_from_their_class_is_iterable(self, monkeypatch):
        class IterableDataset:
            def __getitem__(self, index):
                raise NotImplementedError

            def __iter__(self):
                return iter(range(4))

        monkeypatch.setitem(sys.modules, "torch.utils.data", SimpleNamespace(IterableDataset=IterableDataset))
        assert check_dataset(IterableDataset())
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
