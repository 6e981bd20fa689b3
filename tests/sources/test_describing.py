"""Datasets that are chained or mixed: those that do not fit together are found, and errors name them."""

from functools import partial

import numpy as np
import pytest

from gpuloader import (
    ConcatDataset,
    MixDataset,
    SampleError,
    SequenceSampler,
    Subset,
    TableDataset,
    TensorDataset,
    TokenWindows,
    data,
)
from tests import loading
from tests.sample_sets import INLINE, PROCESSES, THREADS, Made, name_workers


def floats(*shape):
    return TensorDataset(np.zeros(shape, np.float32), np.arange(shape[0]))


def table(**columns):
    return TableDataset(columns)


FLOATS = floats(3, 2)
WIDER = TensorDataset(np.zeros((5, 2)), np.arange(5))


load = partial(loading.load, batch_size=4)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [FLOATS, WIDER],
            r"field '0': dataset 0 \(TensorDataset\) has float32, but dataset 1 \(TensorDataset\) has float64"
            ", and a batch may mix them: convert one of them, declare the field in feed_list",
        ),
        ([FLOATS, Subset(FLOATS, [1]), Subset(WIDER, [0])], r"float32, but dataset 2 \(Subset\) has float64"),
        ([FLOATS, ConcatDataset([FLOATS, WIDER])], r"float32, but dataset 1.1 \(TensorDataset\) has float64"),
        ([FLOATS, floats(3, 4)], r"field '0': .* has the shape \(2,\), but dataset 1 .* has \(4,\)"),
        ([FLOATS, TensorDataset(FLOATS.arrays[0])], "samples that are tuples of 2, but .* has tuples of 1"),
        ([table(x=[1], y=[1]), table(x=[1], z=[1])], r"with the keys \['x', 'y'\], but .* \['x', 'z'\]"),
        ([table(x=[1], y=[1]), table(y=[1], x=[0.5])], "field 'x': .* has int64, but .* has float64"),
        ([table(x=["a"]), table(x=[1])], "field 'x': .* has Python objects, but dataset 1 .* has int64"),
        ([table(x=[True]), table(x=np.ones(1, "u1"))], "field 'x': .* has bool, but dataset 1 .* has uint8"),
        ([TokenWindows(range(8), 4), TokenWindows(range(8), 3)], r"has the shape \(4,\), but .* has \(3,\)"),
        ([np.zeros(3), FLOATS], r"dataset 0 \(ndarray\) has samples that are single values, but dataset 1"),
    ],
)
@pytest.mark.parametrize("compose", [ConcatDataset, lambda parts: MixDataset(parts, [1] * len(parts))])
def test_what_does_not_fit_is_found_before_anything_is_read(parts, message, compose):
    with pytest.raises(SampleError, match=message):
        load(compose(parts), shuffle=True)


@pytest.mark.parametrize(
    "options",
    [
        {"collate_fn": list},
        {"feed_list": [data("x", [None, 2]), data("y", [None], "int64")]},
        {"batch_size": None},
        {"batch_size": 1},
        {"batch_size": 3},
        {"batch_size": 1, "batch_sampler": [[0, 1], [5, 6]]},
        {"sampler": [0, 1, 2]},
    ],
)
def test_what_never_shares_a_batch_need_not_fit(options):
    assert sum(1 for _ in load(FLOATS + WIDER, **options)) > 0


@pytest.mark.parametrize("options", [{"batch_size": 3, "shuffle": True}, {"batch_size": 1, "cache": "host"}])
def test_an_order_that_mixes_them_is_refused_with_any_batch_size(options):
    with pytest.raises(SampleError, match="a batch may mix them"):
        load(FLOATS + WIDER, **options)


def test_fields_of_varying_length_may_have_any_shape():
    def part(length):
        return TensorDataset(np.ones((2, length)), np.zeros(2))

    dataset = part(2) + part(3)
    with pytest.raises(SampleError, match="name the field in pad or ragged if its length varies"):
        load(dataset)
    ((rows, _),) = load(dataset, pad={"0": 0})
    assert rows.sum(axis=1).tolist() == [2, 2, 3, 3]


def test_integers_of_any_size_and_empty_datasets_fit():
    ((numbers,),) = load(TensorDataset(np.arange(2, dtype=np.uint16)) + TensorDataset(np.arange(2)))
    assert (numbers.dtype, numbers.tolist()) == (np.uint16, [0, 1, 0, 1])
    ((numbers,),) = load(TensorDataset(np.zeros((0, 7))) + TensorDataset(np.arange(3)))
    assert numbers.tolist() == [0, 1, 2]


def fail(index):
    raise KeyError("label")


UNREAD = Made(fail, 4)  # what is known of it is its length


class Shifted(TensorDataset):
    def __getitem__(self, index):
        return tuple(value.astype("float32") for value in super().__getitem__(index))


def test_a_class_that_reads_in_its_own_way_is_not_judged_by_its_arrays_nor_read():
    load(MixDataset([UNREAD, FLOATS], [1, 1]), shuffle=True)
    ((numbers,),) = load(TensorDataset(np.zeros(3, "float32")) + Shifted(np.arange(2)), batch_size=5)
    assert numbers.tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)
class TestLateErrors:
    def test_a_sample_that_does_not_fit_names_both_datasets(self, workers):
        dataset = MixDataset([[1, 2], [1.5, 2.5]], [1, 1])
        message = (
            r"batch 0, sample (1, dataset index 2|3, dataset index 3), field '0'.*expected int64 as in the "
            r"batch's first sample, got float64; .* from dataset 1 \(list\), the batch's first from "
            r"dataset 0 \(list\)$"
        )
        with pytest.raises(SampleError, match=message):
            list(load(dataset, **workers))

    def test_a_failure_names_the_dataset(self, workers):
        dataset = ConcatDataset(["ab", Subset(ConcatDataset([[1], UNREAD]), [4, 3])])
        message = (
            r"dataset index 2.*: the dataset raised KeyError: 'label'; the sample is from dataset 1.1 \("
        )
        with pytest.raises(SampleError, match=message) as caught:
            list(load(dataset, batch_size=1, **workers))
        assert caught.value.dataset_index == 2

    def test_a_sampler_of_the_users_names_them_too(self, workers):
        wrong = TensorDataset(np.zeros((3, 2), int), np.arange(3)) + WIDER
        message = r"the sample is from dataset 1 \(TensorDataset\), the batch's first from dataset 0"
        with pytest.raises(SampleError, match=message):
            list(load(wrong, sampler=SequenceSampler(wrong), **workers))
