"""What programs do with a loader: idioms of tutorials and training scripts, with only the import changed."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from tests.sample_sets import values
from tests.torch_suite.datasets import Made, Numbers

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class TestTutorials:
    @WORKERS
    def test_sentences_are_padded(self, lib, workers):
        pairs = [(torch.arange(1 + index % 5), torch.arange(2 + index % 3)) for index in range(8)]
        loader = lib.DataLoader(pairs, 4, num_workers=workers, collate_fn=pad_pairs)
        assert [type(batch) for batch in loader] == [tuple, tuple]
        assert [(*source.shape, *target.shape) for source, target in loader] == [(4, 4, 4, 4), (5, 4, 4, 4)]

    @WORKERS
    def test_samples_that_could_not_be_read_are_left_out(self, lib, workers):
        loader = lib.DataLoader([1, None, 3, None, None, None], 2, num_workers=workers, collate_fn=skip_none)
        assert [None if batch is None else batch.tolist() for batch in loader] == [[1], [3], None]


def pad_pairs(samples):
    sources, targets = zip(*samples, strict=True)
    return pad_sequence(sources, padding_value=1), pad_sequence(targets, padding_value=1)


def skip_none(samples):
    samples = [sample for sample in samples if sample is not None]
    return torch.utils.data.default_collate(samples) if samples else None


@WORKERS
class TestIterating:
    def test_without_end(self, lib, workers):
        batches = itertools.cycle(lib.DataLoader(Numbers(6), 2, num_workers=workers))
        assert values(itertools.islice(batches, 5)) == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]

        loader = lib.DataLoader(Numbers(6), 2, shuffle=True, num_workers=workers)
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        first = values(itertools.islice(batches, 3))
        assert sorted(itertools.chain.from_iterable(first)) == list(range(6))

    def test_one_loader_twice_at_once(self, lib, workers):
        loader = lib.DataLoader(Numbers(4), 2, num_workers=workers)
        pairs = [(one.tolist(), other.tolist()) for one in loader for other in loader]
        assert pairs == list(itertools.product([[0, 1], [2, 3]], repeat=2))

    def test_two_iterators_of_persistent_workers(self, lib, workers):
        if workers:
            loader = lib.DataLoader(Numbers(4), 2, num_workers=workers, persistent_workers=True)
            pairs = [(one.tolist(), other.tolist()) for one, other in zip(loader, loader, strict=True)]
            if lib.differs("iterators-are-independent"):
                assert pairs == [([0, 1], [0, 1]), ([2, 3], [2, 3])]
            else:
                assert pairs == [([0, 1], [2, 3])]

    def test_batches_may_be_kept_and_changed(self, lib, workers):
        kept = []
        for batch in lib.DataLoader(Made(float, 20), 2, num_workers=workers):
            batch += 1
            kept.append(batch)
        assert torch.cat(kept).tolist() == list(range(1, 21))


def test_tensors_and_arrays_are_datasets(lib):
    for dataset in (torch.arange(6.0).view(3, 2), np.arange(6.0).reshape(3, 2)):
        assert values(lib.DataLoader(dataset, 2)) == [[[0, 1], [2, 3]], [[4, 5]]]
    assert list(lib.DataLoader([], 2)) == []


def asks_a_program(index):
    """Return what Ctrl-C does in a program that the dataset starts, such as one that decodes videos."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    return subprocess.run([sys.executable, "-Sc", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_programs_that_a_worker_starts_hear_ctrl_c(lib, start_method):
    loader = lib.DataLoader(Made(asks_a_program, 1), num_workers=1, multiprocessing_context=start_method)
    assert list(loader) == [["True\n"]]
