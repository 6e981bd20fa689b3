"""The information that workers get about themselves."""

import pytest

from gpuloader import DataLoader, IterableDataset, get_worker_info
from gpuloader.order.worker_info import WorkerInfo, ask_ranks, count_rank_questions, enter_worker
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


def test_questions_for_the_rank_are_counted_and_others_are_not():
    enter_worker(WorkerInfo(1, 2, 3, None, (4, 5)))
    try:
        before = count_rank_questions()
        assert get_worker_info().id == 1
        assert count_rank_questions() == before
        assert (get_worker_info().rank, get_worker_info().world_size) == (4, 5)
        assert ask_ranks() == (4, 5)
        assert count_rank_questions() == before + 3
    finally:
        enter_worker(None)
    assert get_worker_info() is None


def test_outside_a_worker_the_launcher_is_asked_for_the_rank(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    before = count_rank_questions()
    assert ask_ranks() == (1, 3)
    assert count_rank_questions() == before + 1
