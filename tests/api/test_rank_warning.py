"""Which epoch is next, and the warning for loaders that read everything on each of several ranks."""

import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpuloader import DataLoader, DistributedBatchSampler, ParquetDataset, get_worker_info
from gpuloader.api import dataset_epochs
from tests.api.streams import Items
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, Counting, name_workers, values

by_workers = pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, PROCESSES], ids=name_workers)
EVERYTHING = "rank 1 of 2, and the loader reads all samples on every rank"


@pytest.fixture
def on_rank_1_of_2(monkeypatch, become):
    monkeypatch.setattr(dataset_epochs, "_has_warned", False)
    become(1, 2)


def load(dataset, **options):
    return DataLoader(dataset, places="cpu", **options)


def take_part():
    """Return the items of this worker of this rank."""
    info = get_worker_info()
    return range(info.rank * info.num_workers + info.id, 12, info.world_size * info.num_workers)


@pytest.mark.usefixtures("on_rank_1_of_2")
class TestTheWarningComes:
    @by_workers
    @pytest.mark.parametrize("dataset", [range(4), Counting(4)])
    def test_once_per_process_at_the_first_step(self, dataset, workers):
        options = {"sampler": [3, 2, 1]} if isinstance(dataset, range) else {}
        loaders = [load(dataset, **workers), load(dataset, **options, **workers)]
        epochs = [iter(loader) for loader in [*loaders, loaders[0]]]
        with pytest.warns(UserWarning, match=EVERYTHING) as seen:
            assert all(list(epoch) for epoch in epochs)
        [warning] = [one for one in seen if one.category is UserWarning]  # Python's own are about the fork
        assert warning.filename == __file__
        assert "shard='auto'" in str(warning.message)
        assert "pass shard=(0, 1)" in str(warning.message)

    def test_and_as_an_error_leaves_the_loader_as_it_was(self):
        loader = load(range(4), batch_size=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match=EVERYTHING):
                next(iter(loader))
        assert values(loader) == [[0, 1], [2, 3]]
        assert loader.state_dict()["epoch"] == 1


class Divided:
    """A sampler of the user's that knows its rank, like torch's DistributedSampler."""

    num_replicas, rank = 2, 1

    def __iter__(self):
        return iter([1, 3])


class Grouped:
    """A batch sampler over it."""

    sampler = Divided()

    def __iter__(self):
        return iter([[1], [3]])


@pytest.mark.usefixtures("on_rank_1_of_2")
class TestTheWarningDoesNotCome:
    """Every warning is an error in these tests."""

    @pytest.mark.parametrize(
        "options",
        [
            *[{"shard": shard} for shard in [(0, 1), (1, 2), "auto"]],
            # Everything is meant, even where nothing could be divided.
            {"shard": (0, 1), "in_order": False, "num_workers": 1, "worker_type": "thread"},
            {"shard": (0, 1), "sampler": {1, 2}},
            {"shard": (0, 1), "batch_size": None},
            {"shard": (0, 1), "shuffle": True},
            {"shard": (0, 1), "dataset": iter(range(4))},
            {"sampler": Divided()},
            {"batch_sampler": Grouped()},
            {"batch_sampler": DistributedBatchSampler(range(4), 2)},
        ],
    )
    def test_if_shard_is_given_or_the_sampler_divides(self, options):
        assert list(load(**{"dataset": range(4), **options}))

    @pytest.mark.parametrize(("name", "value"), [("WORLD_SIZE", "1"), ("RANK", "")])
    def test_on_one_rank_or_where_the_environment_makes_no_sense(self, monkeypatch, name, value):
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv(name, value)
        assert list(load(range(4)))

    def test_while_a_cache_is_filled(self):
        assert len(list(load([np.zeros(2)] * 4, shard="auto", cache="host"))) == 2

    @pytest.mark.parametrize("workers", [ONE_THREAD, PROCESSES], ids=name_workers)
    def test_if_the_dataset_asks_for_its_rank(self, workers):
        found = np.concatenate(list(load(Items(take_part), batch_size=2, **workers)))
        count = workers["num_workers"]
        assert sorted(found.tolist()) == [number for number in range(12) if number // count % 2]

    @by_workers
    def test_if_files_are_divided(self, workers, tmp_path):
        for part in range(4):
            pq.write_table(pa.table({"x": [part]}), tmp_path / f"{part}.parquet")
        names = [str(tmp_path / f"{part}.parquet") for part in range(4)]
        assert len(list(load(ParquetDataset(names), **workers))) == 2
