"""What the questions and the limits of the documentation claim, where no other test proves it."""

import itertools

import numpy as np
import pytest

from gpuloader import DataLoader, Dataset, IterableDataset, SampleError, TarDataset, sample_rng
from gpuloader.sources.mnist import sample


class Numbers(Dataset):
    """Ten numbers, raised by an offset; the sample `broken` raises an error."""

    def __init__(self, offset=0, broken=None):
        self.offset = offset
        self.broken = broken

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == self.broken:
            raise ValueError("broken")
        return index + self.offset


class Parts(IterableDataset):
    def __iter__(self):
        yield from range(10)


def read(loader):
    return [batch.tolist() for batch in loader]


THREADS = {"num_workers": 2, "worker_type": "thread"}


def test_samples_are_skipped_only_on_request():
    assert read(DataLoader(Numbers(broken=3), places="cpu", batch_size=2, on_bad="skip"))[1] == [2]
    with pytest.raises(SampleError, match="ValueError: broken"):
        read(DataLoader(Numbers(broken=3), places="cpu", batch_size=2))


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_who_sees_a_change_of_the_dataset(worker_type):
    dataset = Numbers()
    loader = DataLoader(
        dataset, places="cpu", batch_size=10, num_workers=1, worker_type=worker_type, persistent_workers=True
    )
    first = list(range(10))
    assert read(loader) == [first]
    dataset.offset = 100
    changed = [[number + 100 for number in first]]
    assert read(loader) == ([first] if worker_type == "process" else changed)
    loader.close()
    assert read(loader) == changed


def test_the_order_of_an_iterable_dataset_depends_on_workers_only_without_shard():
    def order(**options):
        return np.concatenate(read(DataLoader(Parts(), places="cpu", batch_size=2, **options))).tolist()

    assert order(**THREADS, shard=(0, 1)) == order(shard=(0, 1)) == list(range(10))
    assert sorted(order(**THREADS)) == sorted(order() * 2)  # it does not ask which worker it is in


def test_no_call_of_set_epoch_is_needed_for_a_new_order():
    one, other = (DataLoader(Numbers(), places="cpu", batch_size=10, shuffle=True, seed=1) for _ in range(2))
    orders = [read(one) for _ in range(3)]
    assert orders == [read(other) for _ in range(3)]
    assert all(a != b for a, b in itertools.combinations(orders, 2))


def test_random_numbers_differ_from_sample_to_sample_whoever_draws_them():
    class Draws(Numbers):
        def __getitem__(self, index):
            return sample_rng().random()

    alone, shared = (
        np.concatenate(read(DataLoader(Draws(), places="cpu", batch_size=2, seed=1, **options)))
        for options in ({}, THREADS)
    )
    assert np.array_equal(alone, shared)
    assert len(set(alone)) == 10


def test_files_shuffle_by_themselves(tmp_path):
    with pytest.raises(ValueError, match="determines its own order: shuffle cannot be given"):
        DataLoader(TarDataset(tmp_path / "a.tar"), places="cpu", shuffle=True)
    with pytest.raises(ValueError, match="shuffle_buffer needs shuffle=True"):
        TarDataset(tmp_path / "a.tar", shuffle_buffer=10)


def test_flat_labels_keep_a_loss_at_the_variance_of_the_labels():
    digits = sample().train
    labels = digits.labels[:100].astype("float64")
    predictions = labels[:, None]  # perfect ones
    assert np.square(predictions - labels[:, None]).mean() == 0
    assert np.isclose(np.square(predictions - labels).mean(), 2 * labels.var())
    assert 7 < labels.var() < 10
