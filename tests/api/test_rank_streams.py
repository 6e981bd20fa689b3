"""Iterable datasets that every rank reads, and the information their workers get."""

import os

import numpy as np
import pytest

from gpuloader import IterableDataset, SampleError, get_worker_info, sample_rng
from gpuloader.order.worker_info import WorkerInfo
from tests.loading import load
from tests.rank_loaders import Stream, epoch_of, make
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, Made, name_workers

by_workers = pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)


class Dying(Stream):
    """A stream whose process dies at its tenth item, once."""

    def __init__(self, count, path):
        super().__init__(count)
        self.path = path

    def __iter__(self):
        for number in super().__iter__():
            if number == 9 and not self.path.exists():
                self.path.touch()
                os._exit(3)
            yield number


class TestStreams:
    def test_are_read_again_by_the_successor_of_a_worker_that_died(self, tmp_path):
        samples = []
        for rank in range(2):
            dataset = Dying(30, tmp_path / str(rank))
            loader = make(dataset, rank, 2, on_worker_death="respawn", **PROCESSES)
            samples += [one for batch in epoch_of(loader) for one in batch]
            assert dataset.path.exists()
        assert sorted(samples) == list(range(30))

    @by_workers
    def test_that_divide_themselves_are_asked_for_all_items(self, workers):
        class Divided(IterableDataset):
            def __iter__(self):
                info = get_worker_info()
                assert info is not None
                one, all_of_them = info.rank * info.num_workers + info.id, info.world_size * info.num_workers
                return iter(range(one, 23, all_of_them))

        found = [epoch_of(make(Divided(), rank, 2, **workers)) for rank in range(2)]
        assert sorted(one for batches in found for batch in batches for one in batch) == list(range(23))
        assert get_worker_info() is None

    @by_workers
    def test_that_draw_their_items_draw_the_same_everywhere(self, workers):
        class Drawn(IterableDataset):
            def __iter__(self):
                for number in sample_rng().permutation(20).tolist():
                    yield 1000 * get_worker_info().seed % 999983 * 20 + number

        ranks = [make(Drawn(), rank, 2, **workers) for rank in range(2)]
        samples = [one for loader in ranks for batch in epoch_of(loader) for one in batch]
        assert sorted(one % 20 for one in samples) == list(range(20))
        assert len({one // 20 for one in samples}) == 1

    @pytest.mark.parametrize("workers", [ONE_THREAD, PROCESSES], ids=name_workers)
    def test_without_shard_are_told_their_rank(self, workers, monkeypatch):
        class Told(IterableDataset):
            def __iter__(self):
                info = get_worker_info()
                yield np.array([info.rank, info.world_size, info.id, info.num_workers])

        monkeypatch.setenv("RANK", "2")
        monkeypatch.setenv("WORLD_SIZE", "5")
        told = [batch[0].tolist() for batch in load(Told(), **workers)]
        assert told == [[2, 5, worker, len(told)] for worker in range(len(told))]
        with monkeypatch.context() as broken:
            broken.delenv("RANK")
            with pytest.raises(SampleError, match="sets WORLD_SIZE='5' but not RANK"):
                list(load(Told(), **workers))

    @pytest.mark.parametrize("workers", [THREADS, PROCESSES], ids=name_workers)
    def test_of_data_sets_with_indices_workers_have_seeds_of_their_own(self, workers):
        def look(index):
            info = get_worker_info()
            return np.array([info.rank, info.world_size, info.seed, np.random.randint(2**31)])

        seen = [{tuple(row) for rows in make(Made(look, 40), rank, 2, **workers) for row in rows.tolist()}
                for rank in range(2)]  # fmt: skip
        assert [{row[:2] for row in rows} for rows in seen] == [{(0, 2)}, {(1, 2)}]
        # Global generators of processes are seeded by rank, too.
        for at in (2, 3) if workers is PROCESSES else (2,):
            assert not {row[at] for row in seen[0]} & {row[at] for row in seen[1]}

    def test_an_info_alone_asks_the_launcher(self, monkeypatch):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "3")
        info = WorkerInfo(0, 1, 2, None)
        assert (info.rank, info.world_size) == (1, 3)
