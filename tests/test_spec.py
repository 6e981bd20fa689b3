"""Feed specs, and the conversion of samples to them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpuloader import FeedSpec, SampleError, data
from gpuloader.spec import convert, fit, native, resolve_feeds


class TestDeclaring:
    def test_none_and_minus_one_are_free_dimensions(self):
        assert data("a", [-1, 3, None]).shape == (None, 3, None)
        assert data("a", (None, np.int64(4))).sample_shape == (4,)

    def test_specs_are_values(self):
        assert data("a", [None, 3]) == FeedSpec("a", (None, 3), np.float32)
        assert len({data("a", [None, 3]), data("a", [-1, 3])}) == 1

    @pytest.mark.parametrize("name", ["", None, 3])
    def test_a_name_is_a_string(self, name):
        with pytest.raises(ValueError, match="name"):
            data(name, [None])

    @pytest.mark.parametrize("shape", [[], 3, "ab", [None, -2], [None, 1.5], [None, True], None])
    def test_a_shape_is_a_list_of_sizes(self, shape):
        with pytest.raises(ValueError, match="'a'"):
            data("a", shape)

    @pytest.mark.parametrize("dtype", ["nonsense", object, "U5", "M8[s]"])
    def test_a_dtype_is_numeric(self, dtype):
        with pytest.raises(ValueError, match="'a'"):
            data("a", [None], dtype)

    @pytest.mark.parametrize("level", [-1, 3, "1", True])
    def test_levels(self, level):
        with pytest.raises(ValueError, match="lod_level"):
            data("a", [None], lod_level=level)

    def test_names_that_were_declared_resolve(self):
        feed = data("declared here", [None, 2])
        assert resolve_feeds(["declared here"]) == (feed,)


class TestConverting:
    @pytest.mark.parametrize(
        ("value", "dtype", "shape", "expected"),
        [
            (5, "int64", (1,), [5]),
            ([5], "int64", (), 5),
            (3.7, "int64", (1,), [3]),
            (True, "float32", (1,), [1]),
            ("2.5", "float32", (1,), [2.5]),
            (["1", "2"], "int64", (2,), [1, 2]),
            ([[1, 2], [3, 4]], "float32", (4,), [1, 2, 3, 4]),
            ([1, 2, 3, 4], "float32", (2, 2), [[1, 2], [3, 4]]),
            ([1, 2, 3], "float32", (None,), [1, 2, 3]),
            ([1, 2, 3], "float32", (None, 1), [[1], [2], [3]]),
            ([], "int64", (None, 1), np.zeros((0, 1))),
            (np.arange(3, dtype=">i2"), "int32", (3,), [0, 1, 2]),
            (np.float64("nan"), "float32", (), np.nan),
            (255, "uint8", (), 255),
        ],
    )
    def test_what_fits(self, value, dtype, shape, expected):
        result = convert(value, np.dtype(dtype), shape)
        assert result.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(result, expected)

    @pytest.mark.parametrize(
        ("value", "dtype", "shape", "message"),
        [
            (None, "float32", (1,), "got None"),
            ([1, None], "float32", (2,), "dtype object"),
            ("text", "float32", (1,), "got text"),
            ([[1], [2, 3]], "float32", (3,), "got list"),
            ({}, "float32", (1,), "dtype object"),
            (float("nan"), "int64", (1,), "whole numbers of dtype int64, got nan"),
            ([1.0, float("-inf")], "uint8", (2,), "got -inf"),
            (256, "uint8", (1,), r"uint8 \(0 to 255\), got 256"),
            (-1, "uint64", (1,), "got -1"),
            (2**70, "int64", (1,), "dtype"),
            (1e300, "int64", (1,), "int64"),
            (1j, "float32", (1,), "real numbers"),
            ([1, 2, 3], "float32", (2,), r"expected shape \(2,\), got \(3,\)"),
            ([1, 2, 3], "float32", (None, 2), r"expected shape \(-, 2\), got \(3,\)"),
            ([[1, 2]], "float32", (None, 3), r"expected shape \(-, 3\), got \(1, 2\)"),
        ],
    )
    def test_what_does_not(self, value, dtype, shape, message):
        with pytest.raises(SampleError, match=message):
            convert(value, np.dtype(dtype), shape)

    @given(
        array=arrays.arrays(
            st.sampled_from(["int8", "int32", "uint16", "float32", "float64", ">f4"]),
            arrays.array_shapes(max_dims=3, max_side=4),
            elements=st.integers(0, 100),
        ),
        dtype=st.sampled_from(["float32", "int64", "uint8"]),
    )
    def test_numbers_that_fit_come_out_as_numpy_casts_and_reshapes_them(self, array, dtype):
        for shape in (array.shape, (array.size,), (1, array.size), (array.size, 1)):
            result = convert(array, np.dtype(dtype), shape)
            np.testing.assert_array_equal(result, array.astype(dtype).reshape(shape))
            assert result.dtype.isnative

    def test_fitting_copies_nothing(self):
        array = np.zeros((28, 28))
        assert np.shares_memory(fit(array, (784,)), array)
        assert fit(array, (None, 28)) is array

    def test_a_plain_dtype_is_the_one_object_numpy_has_for_it(self):
        assert native(np.dtype(">i8")) is np.dtype("int64")
        assert data("a", [None], ">f4").dtype is np.dtype("float32")
