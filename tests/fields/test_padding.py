"""Padding along any axes, on either side, with the lengths and masks that a model needs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import DataLoader, FeedSpec, Padding, SampleError, TableDataset
from gpuloader.transforms import Cast
from tests import loading
from tests.sample_sets import PROCESSES, WORKERS, name_workers


def expect(arrays, pad):
    """Return the padded batch, its lengths and its mask, sample by sample with numpy.pad."""
    rank = arrays[0].ndim
    longest = [max(array.shape[axis] for array in arrays) for axis in range(rank)]
    target = [
        -(-size // pad.multiple) * pad.multiple if axis in pad.axes else size
        for axis, size in enumerate(longest)
    ]
    batch, masks = [], []
    for array in arrays:
        more = [whole - own for whole, own in zip(target, array.shape, strict=True)]
        widths = [(one, 0) if pad.side == "left" else (0, one) for one in more]
        batch.append(np.pad(array, widths, constant_values=pad.value))
        own = np.ones([array.shape[axis] for axis in pad.axes], bool)
        masks.append(np.pad(own, [widths[axis] for axis in pad.axes]))
    lengths = np.array([[array.shape[axis] for axis in pad.axes] for array in arrays])
    return np.stack(batch), lengths[:, 0] if len(pad.axes) == 1 else lengths, np.stack(masks)


@given(
    sizes=st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=4),
    axes=st.sampled_from([(0,), (1,), (2,), (0, 1), (0, 2), (0, 1, 2)]),
    side=st.sampled_from(["left", "right"]),
    multiple=st.integers(1, 4),
    value=st.integers(-2, 2),
)
def test_a_batch_is_that_of_numpy_pad(sizes, axes, side, multiple, value):
    first = sizes[0]
    shapes = [[size[at] if at in axes else first[at] for at in range(3)] for size in sizes]
    arrays = [np.random.default_rng(at).integers(-9, 9, shape) for at, shape in enumerate(shapes)]
    pad = Padding(value, axes, side, multiple, lengths="sizes", mask="inside")
    samples = [{"x": array, "name": f"n{at}", "label": at} for at, array in enumerate(arrays)]
    [batch] = DataLoader(samples, places="cpu", batch_size=len(samples), pad={"x": pad})
    assert list(batch) == ["x", "name", "label", "sizes", "inside"]
    assert batch["name"] == [sample["name"] for sample in samples]
    assert batch["label"].tolist() == [*range(len(samples))]
    for found, expected in zip(
        [batch[one] for one in ("x", "sizes", "inside")], expect(arrays, pad), strict=True
    ):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_long_rows_are_copied_one_by_one(side):
    """Their path is another one, for speed."""
    arrays = [np.arange(size, dtype=np.float64) for size in (2000, 1, 0, 1999)]
    pad = Padding(-1, side=side, multiple=16, mask="mask")
    [batch] = DataLoader([{"x": one} for one in arrays], places="cpu", batch_size=4, pad={"x": pad})
    wanted, _, mask = expect(arrays, pad)
    np.testing.assert_array_equal(batch["x"], wanted)
    np.testing.assert_array_equal(batch["mask"], mask)


SAMPLES = [{"a": np.arange(n % 5 + 1), "b": np.ones((2, n % 3 + 1))} for n in range(24)]
PADS = {"b": Padding(axes=(1,), lengths="b_length"), "a": Padding(lengths="a_length", mask="a_mask")}


def plain(batches):
    return [{name: array.tolist() for name, array in batch.items()} for batch in batches]


@pytest.mark.parametrize("workers", [*WORKERS, PROCESSES], ids=name_workers)
def test_workers_make_the_same_batches_and_resume(workers):
    def load(**options):
        return loading.load(SAMPLES, batch_size=4, pad=PADS, shuffle=True, seed=1, **options)

    whole = plain(load())
    assert list(whole[0]) == ["a", "b", "a_length", "a_mask", "b_length"]
    assert plain(load(**workers)) == whole
    before, again = loading.resume(lambda: load(**workers), 2)
    assert plain(before) + plain(again) == whole


def test_a_table_and_an_iterable_dataset_are_padded_alike():
    table = {"a": [[1, 2, 3], [4], [], [5, 6]], "label": [1, 2, 3, 4]}
    pad = {"a": Padding(9, side="left", lengths="length", mask="mask")}
    [batch] = DataLoader(TableDataset(table), places="cpu", batch_size=4, pad=pad)
    assert plain([batch]) == [
        {
            "a": [[1, 2, 3], [9, 9, 4], [9, 9, 9], [9, 5, 6]],
            "label": [1, 2, 3, 4],
            "length": [3, 1, 0, 2],
            "mask": [[True] * 3, [False, False, True], [False] * 3, [False, True, True]],
        }
    ]
    rows = [{"a": np.array(a, int), "label": n} for n, a in enumerate(table["a"], 1)]
    [items] = DataLoader((row for row in rows), places="cpu", batch_size=4, pad=pad)
    assert plain([items]) == plain([batch])


def test_tuples_get_their_lengths_last_and_transforms_see_masks():
    samples = [(np.ones(n + 1, np.float32), n) for n in range(3)]
    options = {"places": "cpu", "batch_size": 3, "transforms": [Cast("mask", "float32")]}
    pad = {"0": Padding(lengths="length", mask="mask")}
    [(values, labels, lengths, mask)] = DataLoader(samples, pad=pad, **options)
    assert (values.shape, labels.tolist(), lengths.tolist()) == ((3, 3), [0, 1, 2], [1, 2, 3])
    assert mask.dtype == np.float32
    np.testing.assert_array_equal(mask, values)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"value": "x"}, "value must be a number, got 'x'"),
        ({"axes": ()}, "axes must be different integers"),
        ({"axes": (0, 0)}, "axes must be different integers"),
        ({"axes": (-1,)}, "axes must be different integers of 0 or more"),
        ({"side": "top"}, "side must be one of"),
        ({"multiple": 0}, "multiple must be"),
        ({"mask": 3}, "lengths and mask must be names"),
    ],
)
def test_bad_arguments(options, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        Padding(**options)


@pytest.mark.parametrize(
    ("samples", "pad", "problem"),
    [
        ([{"x": np.ones((2, 3))}, {"x": np.ones((2, 4))}], Padding(), r"expected .*shape"),
        (
            [{"x": np.ones((2, 3))}, {"x": np.ones((4, 4))}],
            Padding(axes=(1,)),
            "sample 1.*expected 2 along axis 0 .*, got 4; name the axis in axes",
        ),
        ([{"x": np.ones(3)}], Padding(axes=(1,)), "pad has axis 1, but the sample has 1 dimensions"),
        ([{"x": [1]}], Padding(0.5), "cannot pad rows of int64 with 0.5"),
        (
            [{"x": [1], "y": 1}],
            Padding(mask="y"),
            r"adds the fields \['y'\], but the fields \['x', 'y'\] are there",
        ),
        ([{"x": [1]}], Padding(lengths="y", mask="y"), "give lengths and mask names of their own"),
    ],
)
def test_samples_that_do_not_fit(samples, pad, problem):
    with pytest.raises(SampleError, match=problem):
        next(iter(DataLoader(samples, places="cpu", batch_size=len(samples), pad={"x": pad})))


def test_what_has_no_place_for_lengths():
    bare = DataLoader([np.ones(2)], places="cpu", pad={"0": Padding(lengths="length")})
    with pytest.raises(SampleError, match="expected samples that are dicts or tuples, to which pad adds"):
        next(iter(bare))
    feeds = [FeedSpec("x", (None, None), "float32", lod_level=1)]
    with pytest.raises(ValueError, match="pass no feed_list, or Padding without axes, lengths and mask"):
        DataLoader([([1.0],)], feed_list=feeds, places="cpu", pad={"x": Padding(mask="mask")})
