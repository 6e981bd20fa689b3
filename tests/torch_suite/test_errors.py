"""What fails: in the dataset, in a worker's start, in time."""

import dataclasses
import gc
import time
import weakref

import numpy as np
import pytest
import torch

import gpuloader.torch
from gpuloader import LoaderError
from gpuloader.testing import simulated_places
from tests.torch_suite.datasets import Items, Made, Numbers, pictures
from tests.torch_suite.libraries import assert_same_on_both


def options_of(workers, persistent):
    return {"num_workers": workers, **persistent} if workers else {}


def break_down():
    raise RuntimeError("the stream is broken")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interruption_of_the_dataset(lib, kind):
    interrupts = [kind()]

    def read(index):
        if index == 3 and interrupts:
            raise interrupts.pop()
        return index

    loader = lib.DataLoader(Made(read), 2)
    epoch = iter(loader)
    assert next(epoch).tolist() == [0, 1]
    with pytest.raises(kind):
        next(epoch)
    if not lib.differs("an-interruption-ends-an-epoch"):
        assert next(epoch).tolist() == [4, 5]
        return
    with pytest.raises(LoaderError, match="interrupted in the middle of a batch"):
        next(epoch)
    resumed = lib.DataLoader(Made(read), 2)
    resumed.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in resumed] == [[2, 3], [4, 5]]


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
    assert errors == -(-count // 2)


def fail_at_three(index):
    if index == 3:
        raise KeyError("three")
    return index


def read_on(loader, kind):
    """Return the batches of an epoch, with the texts of errors where they were raised."""
    found, epoch = [], iter(loader)
    while True:
        try:
            found.append(np.asarray(next(epoch)).tolist())
        except StopIteration:
            return found
        except kind as error:
            found.append(str(error))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loop_that_catches_an_error_continues_with_the_next_batch(workers, shuffle, persistent):
    def program(lib):
        options = options_of(workers, persistent)
        loader = lib.DataLoader(Made(fail_at_three, 10), 2, shuffle=shuffle, **options)
        epochs = [read_on(loader, KeyError) for _ in range(2)]
        # PyTorch's worker adds its traceback to the text.
        return [["three" if "three" in str(one) else one for one in epoch] for epoch in epochs]

    assert_same_on_both(program)


def read_and_fail():
    worker = torch.utils.data.get_worker_info().id
    yield 10 * worker
    if worker == 0:
        raise KeyError("the first worker's")
    yield 10 * worker + 1


def test_other_workers_of_an_iterable_dataset_read_on(lib, persistent):
    loader = lib.DataLoader(Items(read_and_fail), num_workers=2, **persistent)
    found = read_on(loader, KeyError)
    assert found[:2] == [[0], [10]]
    assert "the first worker's" in found[2]
    assert found[3:] == ([] if lib.differs("an-error-ends-a-stream") else [[11]])


def fail_at_two_or_three(index):
    if index in (2, 3):
        raise KeyError(index)
    return index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_that_before_an_error_until_the_loop_continues(workers):
    def resume(state, make):
        loader = gpuloader.torch.DataLoader(Made(make, 5), num_workers=workers)
        loader.load_state_dict(state)
        return [batch.item() for batch in loader]

    loader = gpuloader.torch.DataLoader(Made(fail_at_two_or_three, 5), num_workers=workers)
    epoch = iter(loader)
    assert [next(epoch).item() for _ in range(2)] == [0, 1]
    for _ in range(2):
        with pytest.raises(KeyError):
            next(epoch)
        assert resume(loader.state_dict(), int) == [2, 3, 4]
    assert next(epoch).item() == 4
    assert loader.state_dict()["position"] == 5
    assert next(epoch, None) is None


def test_an_epoch_on_a_device_continues_too():
    places = simulated_places(1)  # where further steps are copied while the error waits for its turn
    loader = gpuloader.torch.DataLoader(Made(fail_at_three, 9), 2, places=places, output=None)
    assert read_on(loader, KeyError) == [[0, 1], "'three'", [4, 5], [6, 7], [8]]


@pytest.mark.parametrize(
    "how",
    [{}, {"use_buffer_reader": "thread"}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}],
)
def test_an_error_that_leaves_the_loop_frees_it(how):
    """At once: until the garbage collector came, there would be workers, threads and slots."""
    loader = gpuloader.torch.DataLoader(Made(fail_at_three, 10), 2, **how)

    def loop():
        epoch = iter(loader)
        try:
            list(epoch)
        except KeyError:
            return weakref.ref(epoch)

    gc.collect()
    gc.disable()
    try:
        epoch, deadline = loop(), time.monotonic() + 60
        while epoch() is not None and time.monotonic() < deadline:
            time.sleep(0.01)  # a thread may be about to drop its reference
        assert epoch() is None
    finally:
        gc.enable()


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """An exception that takes no note."""

    index: int


SHARED = ValueError("always the same")


def raise_frozen(index):
    raise Frozen(index)


def raise_shared(index):
    raise SHARED


@pytest.mark.parametrize(("fail", "kind"), [(raise_frozen, Frozen), (raise_shared, ValueError)])
def test_exceptions_of_odd_classes_are_raised_as_they_are(fail, kind):
    epoch = iter(gpuloader.torch.DataLoader(Made(fail, 50)))
    for _ in range(50):
        with pytest.raises(kind) as caught:
            next(epoch)
    assert next(epoch, None) is None
    assert len(getattr(caught.value, "__notes__", ())) == (kind is ValueError)


class Again(torch.utils.data.Sampler):
    """Begins anew with each `iter`, and counts them."""

    def __init__(self):
        self.begun = 0

    def __iter__(self):
        self.begun += 1
        return iter(range(4))


def test_an_epoch_in_which_all_batches_raise_is_not_empty(lib):
    """The sampler would be begun twice more, to see whether it can be read again."""
    sampler, failing = Again(), []
    loader = lib.DataLoader(Made(lambda index: 1 // (not failing)), 2, sampler=sampler)
    assert len(list(loader)) == 2
    failing.append(True)
    assert len(read_on(loader, ZeroDivisionError)) == 2
    assert sampler.begun == 2


def test_a_generator_is_where_it_would_be_behind_an_error():
    def program(lib):
        generator = torch.Generator().manual_seed(3)
        sampler = torch.utils.data.RandomSampler(range(100), replacement=True, generator=generator)
        epoch = iter(lib.DataLoader(Made(lambda index: 1 // 0, 100), 40, sampler=sampler))
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                next(epoch)
        return torch.rand(1, generator=generator).item()

    assert_same_on_both(program)


def stop(index):
    raise StopIteration(index)


def test_an_exception_that_would_end_the_loop_does_not():
    """PyTorch's loop would end in silence, as if there were no more batches."""
    with pytest.raises(gpuloader.SampleError, match="the dataset raised StopIteration"):
        list(gpuloader.torch.DataLoader(Made(stop)))


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
