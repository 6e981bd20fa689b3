from hypothesis import given
from hypothesis import strategies as st

from gpuloader.kernels.cast import FLOATS, INTEGERS
from gpuloader.kernels.one_hot import one_hot
from tests.kernels.cases import some_labels
from tests.kernels.shim import as_floats


@given(labels=some_labels(), classes=st.integers(0, 12), dtype=st.sampled_from(["bool", *INTEGERS, *FLOATS]))
def test_the_twin_has_a_one_where_the_label_is_and_nowhere_else(labels, classes, dtype):
    rows = one_hot.on_host(labels, classes, dtype)
    rows = as_floats(rows) if dtype == "bfloat16" else rows
    assert rows.shape == (*labels.shape, classes)
    for label, row in zip(labels.reshape(-1).tolist(), rows.reshape(labels.size, classes), strict=True):
        assert row.tolist() == [float(column == label) for column in range(classes)]
