"""Odd input is an error that says what, where, and what to do."""

import re

import numpy as np
import pytest

from gpuloader import BatchSampler, DataLoader, SampleError, data
from tests.loading import load
from tests.sample_sets import INLINE, PROCESSES, THREADS, Made, MadeAtOnce, name_workers

by_workers = pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)


LIST, DICT = [1], {"x": 1}
LIST.append(LIST)
DICT["inner"] = {"outer": DICT}


@by_workers
@pytest.mark.parametrize(
    ("sample", "what"), [(LIST, "a list of 2"), (DICT, r"a dict with the keys \['x', 'inner'\]")]
)
def test_a_sample_that_contains_itself(workers, sample, what):
    epoch = iter(load(Made(lambda index: sample if index else [1, [2]], 2), **workers))
    next(epoch)
    with pytest.raises(SampleError, match=f"{what} that contains itself") as caught:
        next(epoch)
    assert (caught.value.batch, caught.value.index, caught.value.dataset_index) == (1, 0, 1)


def test_the_result_of_a_collate_fn_that_contains_itself():
    with pytest.raises(SampleError, match=r"batch 0: .*a list of 2 that contains itself"):
        list(load([1], collate_fn=lambda _: LIST))


@by_workers
@pytest.mark.parametrize("kind", [Made, MadeAtOnce])
def test_none_is_no_index(workers, kind):
    """NumPy would take it for a new dimension, and return another sample."""
    array = np.arange(6)
    loader = load(kind(lambda index: array[index], 6), batch_size=2, sampler=[3, 1, 2, None], **workers)
    epoch = iter(loader)
    assert next(epoch).tolist() == [3, 1]
    with pytest.raises(SampleError, match=r"batch 1, sample 1.*: the sampler yielded None instead of"):
        next(epoch)


class Unfinished:
    def __iter__(self):
        return [1, 2]

    def __len__(self):
        return 2


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": Unfinished()},
        {"batch_sampler": Unfinished()},
        {"batch_sampler": BatchSampler(sampler=Unfinished())},
        {"batch_sampler": Unfinished(), "shard": (0, 2), "seed": 1},
    ],
)
def test_a_sampler_whose_iter_returns_no_iterator(options):
    message = "Unfinished.__iter__ of the sampler or batch sampler must return .*write it as a generator"
    with pytest.raises(TypeError, match=message):
        list(load(Made(np.arange), **options))


@pytest.mark.parametrize(
    ("value", "dtype", "got"),
    [(300, "uint8", 300), ([1, 300], "uint8", 300), ([-1, 7], "uint8", -1), (2**70, "int64", 2**70)],
)
def test_a_number_out_of_range_is_named(value, dtype, got):
    limits = np.iinfo(dtype)
    message = f"field 'x': expected numbers of dtype {dtype} ({limits.min} to {limits.max}), got {got}"
    with pytest.raises(SampleError, match=re.escape(message) + "$"):
        list(DataLoader([(value,)], [data("x", [None, *np.shape(value)], dtype)], "cpu"))
