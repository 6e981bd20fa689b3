"""What fails: in the dataset, in a worker's start, in time."""

import time

import pytest
import torch

from tests.torch_suite.datasets import Items, Made, Numbers, pictures


def options_of(workers, persistent):
    return {"num_workers": workers, **persistent} if workers else {}


def break_down():
    raise RuntimeError("the stream is broken")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_fails_at_once(lib, workers, persistent):
    with lib.raises(RuntimeError, "the stream is broken"):
        list(lib.DataLoader(Items(break_down), **options_of(workers, persistent)))


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


class Unwritten(Numbers):
    """A dataset whose author forgot `__getitem__`."""

    __getitem__ = torch.utils.data.Dataset.__getitem__


@pytest.mark.parametrize(("count", "workers"), [(100, 0), (41, 4)])
def test_every_batch_fails(lib, count, workers, persistent):
    options = options_of(workers, persistent)
    epoch = iter(lib.DataLoader(Unwritten(count), batch_size=2, shuffle=True, **options))
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
    loader = lib.DataLoader(Made(fail_at_three), **options_of(workers, persistent))
    for _ in range(2):
        epoch = iter(loader)
        assert [int(next(epoch)) for _ in range(3)] == [0, 1, 2]
        with lib.raises(KeyError, "three"):
            next(epoch)


def test_a_sample_takes_too_long(lib, persistent):
    slow = Made(lambda index: time.sleep(60))
    loader = lib.DataLoader(slow, batch_size=2, num_workers=2, timeout=0.5, **persistent)
    with pytest.raises(RuntimeError, match=r"timed out|within"):
        next(iter(loader))


EMPTY = torch.empty(0)


@pytest.mark.parametrize("workers", [0, 1])
def test_large_batches_of_indices(lib, workers, persistent):
    """More indices than a pipe holds are waiting while the loop fails."""
    empty = Made(lambda index: EMPTY, 10_000_000)
    with pytest.raises(RuntimeError, match="the loop fails"):
        for batch in lib.DataLoader(empty, batch_size=40960, **options_of(workers, persistent)):
            assert batch.numel() == 0
            raise RuntimeError("the loop fails")
