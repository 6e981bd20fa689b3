import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.kernels.cast import FLOATS, INTEGERS
from gpuloader.kernels.one_hot import one_hot, one_hot_on_host
from tests.kernels.shim import Placed, as_floats, check_result, examples, launch_shapes, place

DTYPES = ["bool", *INTEGERS, *FLOATS]


@st.composite
def some_labels(draw):
    dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
    limits = np.iinfo(dtype)
    label = st.integers(0, 9) | st.integers(int(limits.min), int(limits.max))
    labels = np.array(draw(st.lists(label, max_size=20)), dtype)
    return labels.reshape(-1, 1) if draw(st.booleans()) else labels


@given(
    labels=some_labels(),
    classes=st.integers(0, 12) | st.sampled_from([100, 1000, 1030]),
    dtype=st.sampled_from(DTYPES),
    offset=st.integers(0, 9),
    shape=launch_shapes(2),
    given_out=st.booleans(),
)
@examples(200)
def test_the_launcher_and_its_twin_agree(device, labels, classes, dtype, offset, shape, given_out):
    device.shape = shape
    expected = one_hot_on_host(labels, classes, dtype)
    out = Placed(np.ones_like(expected), offset * expected.itemsize)
    where = out.array if given_out else None
    result = one_hot(place(labels, offset * labels.itemsize), classes, dtype, out=where)
    check_result(result, expected, out, given_out)


@given(labels=some_labels(), classes=st.integers(0, 12), dtype=st.sampled_from(DTYPES))
def test_the_twin_has_a_one_where_the_label_is_and_nowhere_else(labels, classes, dtype):
    rows = one_hot_on_host(labels, classes, dtype)
    rows = as_floats(rows) if dtype == "bfloat16" else rows
    assert rows.shape == (*labels.shape, classes)
    for label, row in zip(labels.reshape(-1).tolist(), rows.reshape(labels.size, classes), strict=True):
        assert row.tolist() == [float(column == label) for column in range(classes)]


def test_labels_that_are_no_integers_are_an_error():
    with pytest.raises(TypeError, match=r"labels must have dtype uint8 or .* or int64, got float64"):
        one_hot_on_host(np.zeros(3), 2)
