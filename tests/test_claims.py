"""What the questions and the limits of the documentation claim, where no other test proves it."""

import json

import numpy as np
import pytest

from gpuloader import SampleError, TarDataset, cpu_places
from tests.api.streams import Items
from tests.loading import load
from tests.sample_sets import THREADS, Made, values


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_who_sees_a_change_of_the_dataset(worker_type):
    class Raised(Made):
        offset = 0

        def __getitem__(self, index):
            return index + self.offset

    dataset = Raised(None)
    loader = load(dataset, batch_size=7, num_workers=1, worker_type=worker_type, persistent_workers=True)
    assert values(loader) == [list(range(7))]
    dataset.offset = 100
    assert values(loader) == [list(range(7) if worker_type == "process" else range(100, 107))]
    loader.close()
    assert values(loader) == [list(range(100, 107))]


def test_the_order_of_an_iterable_dataset_depends_on_workers_only_without_shard():
    def order(**options):
        return np.concatenate(values(load(Items(lambda: range(10)), batch_size=2, **options))).tolist()

    assert order(**THREADS, shard=(0, 1)) == order(shard=(0, 1)) == list(range(10))
    assert sorted(order(**THREADS)) == sorted(order() * 3)  # it does not ask which worker it is in


def test_files_shuffle_by_themselves(tmp_path):
    with pytest.raises(ValueError, match="determines its own order: shuffle cannot be given"):
        load(TarDataset(tmp_path / "a.tar"), shuffle=True)
    with pytest.raises(ValueError, match="shuffle_buffer needs shuffle=True"):
        TarDataset(tmp_path / "a.tar", shuffle_buffer=10)


def test_skipping_samples_needs_batches_that_may_be_shorter():
    dataset, skipping = Made(lambda index: 1 // (index - 2), 8), {"on_bad": "skip", "batch_size": 2}
    for options in ({"places": cpu_places(2), "split": "shards"}, {"shard": (0, 2), "uneven": "pad"}):
        with pytest.raises(ValueError, match="on_bad='skip' makes shorter batches"):
            load(dataset, **skipping, **options)
    with pytest.raises(SampleError, match="with static=True all batches must have one shape"):
        values(load(dataset, **skipping, static=True))


def test_a_state_takes_about_80_bytes():
    assert len(json.dumps(load(range(10**6), seed=2**31, shuffle=True).state_dict())) < 90
