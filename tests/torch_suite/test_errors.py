"""What fails: in the dataset, in a worker's start, in time."""

import pytest
import torch

from tests.torch_suite.datasets import Broken, Made, Numbers, Slow, Unwritten, pictures


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_fails_at_once(lib, workers, persistent):
    loader = lib.DataLoader(Broken(), num_workers=workers, **(persistent if workers else {}))
    with lib.raises(RuntimeError, "the stream is broken"):
        list(loader)


def fail_to_start(worker):
    raise RuntimeError("no configuration")


def test_worker_init_fn_fails(lib, persistent):
    options = {"num_workers": 2, "worker_init_fn": fail_to_start, **persistent}
    with lib.raises(RuntimeError, "no configuration"):
        list(lib.DataLoader(Numbers(4), **options))
    tensors = lib.DataLoader(pictures(lib), **options)
    if lib.differs("arrays-need-no-workers"):
        assert len(list(tensors)) == 100
    else:
        with lib.raises(RuntimeError, "no configuration"):
            list(tensors)


@pytest.mark.parametrize(("count", "workers"), [(100, 0), (41, 4)])
def test_every_batch_fails(lib, count, workers, persistent):
    options = persistent if workers else {}
    epoch = iter(lib.DataLoader(Unwritten(count), batch_size=2, shuffle=True, num_workers=workers, **options))
    with lib.raises(NotImplementedError):
        next(epoch)
    errors = 1
    while True:
        try:
            next(epoch)
        except StopIteration:
            break
        except NotImplementedError:
            errors += 1
    # Without a worker, an epoch of PyTorch goes on after an error; so it does with workers.
    assert errors == (1 if lib.differs("an-error-ends-the-epoch") else -(-count // 2))


def fail_at_three(index):
    if index == 3:
        raise KeyError("three")
    return index


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_epoch_begins_anew_after_an_error(lib, workers, persistent):
    loader = lib.DataLoader(Made(fail_at_three), num_workers=workers, **(persistent if workers else {}))
    for _ in range(2):
        epoch = iter(loader)
        assert [int(next(epoch)) for _ in range(3)] == [0, 1, 2]
        with lib.raises(KeyError, "three"):
            next(epoch)


def test_a_sample_takes_too_long(lib, persistent):
    loader = lib.DataLoader(Slow(10), batch_size=2, num_workers=2, timeout=0.5, **persistent)
    with pytest.raises(RuntimeError, match=r"timed out|within"):
        next(iter(loader))


def test_large_batches_of_indices(lib, persistent):
    """More indices than a pipe holds are waiting while the loop fails."""

    def run():
        options = {"batch_size": 40960, "num_workers": 1, **persistent}
        for batch in lib.DataLoader(Made(make_empty, 10_000_000), **options):
            assert batch.numel() == 0
            raise RuntimeError("the loop fails")

    with pytest.raises(RuntimeError, match="the loop fails"):
        run()


def make_empty(index):
    return EMPTY


EMPTY = torch.empty(0)


@pytest.mark.parametrize("context", [None, "fork"])
def test_many_threads_in_the_parent(lib, context):
    threads = torch.get_num_threads()
    torch.set_num_threads(max(4, threads))
    try:
        loader = lib.DataLoader([1, 2, 3], num_workers=1, multiprocessing_context=context)
        assert [int(batch) for batch in loader] == [1, 2, 3]
    finally:
        torch.set_num_threads(threads)


def test_an_inline_loader_in_a_failing_loop(lib):
    def load():
        for batch in lib.DataLoader(Numbers(5)):
            raise RuntimeError(f"batch {int(batch)}")

    with pytest.raises(RuntimeError, match="batch 0"):
        load()
