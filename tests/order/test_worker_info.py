"""The information that workers get about themselves."""

import pytest

from gpuloader import DataLoader, IterableDataset, get_worker_info
from gpuloader.order.worker_info import WorkerInfo, enter_worker, has_asked
from tests.sample_sets import ONE_THREAD, PROCESSES, THREADS, Made, name_workers, values


class Told(IterableDataset):
    """Yields the information that each worker gets."""

    def __iter__(self):
        info = get_worker_info()
        yield {"id": info.id, "of": info.num_workers, "seed": info.seed, "own": info.dataset is self}


@pytest.mark.parametrize("workers", [ONE_THREAD, THREADS, PROCESSES], ids=name_workers)
def test_each_worker_is_told_who_it_is(workers):
    count = workers["num_workers"]
    loader = DataLoader(Told(), places="cpu", seed=3, **workers)
    epochs = [list(loader) for _ in range(2)]
    for batches in epochs:
        assert [batch["id"].item() for batch in batches] == list(range(count))
        assert all(batch["of"].item() == count for batch in batches)
        assert all(batch["own"].item() for batch in batches)
    seeds = [batch["seed"].item() for batches in epochs for batch in batches]
    assert len(set(seeds)) == 2 * count


def test_threads_and_processes_are_told_the_same():
    def told(**options):
        loader = DataLoader(Told(), places="cpu", seed=3, num_workers=2, **options)
        return [{name: value.item() for name, value in batch.items()} for batch in loader]

    assert told(worker_type="thread") == told(start_method="fork")


@pytest.mark.parametrize("workers", [{}, THREADS], ids=["inline", "threads"])
def test_the_consumer_is_no_worker(workers):
    assert get_worker_info() is None
    loader = DataLoader(Made(lambda index: get_worker_info() is None), places="cpu", batch_size=7, **workers)
    [[*alone]] = values(loader)
    assert alone == [not workers] * 7
    assert get_worker_info() is None


def test_init_functions_are_told_too():
    seen = set()

    def begin(number):
        info = get_worker_info()
        seen.add((number, info.id, info.num_workers))

    list(DataLoader(Made(abs), places="cpu", batch_size=3, worker_init_fn=begin, **THREADS))
    assert seen == {(0, 0, 3), (1, 1, 3), (2, 2, 3)}


def test_whether_it_was_asked():
    enter_worker(WorkerInfo(1, 2, 3, None))
    try:
        assert not has_asked()
        assert get_worker_info() == WorkerInfo(1, 2, 3, None)
        assert has_asked()
    finally:
        enter_worker(None)
    assert not has_asked()
    assert get_worker_info() is None
