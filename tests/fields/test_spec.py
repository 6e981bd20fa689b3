"""Feed specs, and the conversion of samples to their fields."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpuloader import FeedSpec, SampleError, data
from gpuloader.fields.convert import convert, fit
from gpuloader.fields.spec import native, resolve_feeds


class TestDeclaring:
    def test_none_and_minus_one_are_free_dimensions(self):
        assert data("a", [-1, 3, None]).shape == (None, 3, None)
        assert data("a", (None, np.int64(4))).sample_shape == (4,)

    def test_specs_are_values(self):
        assert data("a", [None, 3]) == FeedSpec("a", (None, 3), np.float32)
        assert len({data("a", [None, 3]), data("a", [-1, 3])}) == 1
        with pytest.raises(AttributeError):
            data("a", [None]).name = "b"

    @pytest.mark.parametrize(
        ("declared", "message"),
        [
            *(({"name": name}, "name") for name in ("", None, 3)),
            *(
                ({"shape": shape}, "'a'")
                for shape in ([], 3, "ab", [None, -2], [None, 1.5], [None, True], None)
            ),
            *(({"dtype": dtype}, "'a'") for dtype in ("nonsense", object, "U5", "M8[s]")),
            *(({"lod_level": level}, "lod_level") for level in (-1, 3, "1", True)),
        ],
        ids=repr,
    )
    def test_what_cannot_be_declared(self, declared, message):
        with pytest.raises(ValueError, match=message):
            data(**{"name": "a", "shape": [None], **declared})

    def test_what_is_declared_is_what_numpy_calls_it(self):
        feed = data("a", np.array([4, 2]), float, lod_level=1)
        assert (feed.shape, feed.dtype, feed.lod_level) == ((4, 2), np.dtype("float64"), 1)
        assert all(type(size) is int for size in feed.shape)
        assert data("a", [None]).dtype == np.float32
        assert data("a", [None], "bool").dtype == np.bool_
        assert data("a", [None, 0]).sample_shape == (0,)
        assert data("a", [None], ">f4").dtype is native(np.dtype(">f4")) is np.dtype("float32")

    def test_names_resolve_to_their_latest_declaration(self):
        data("declared twice", [None, 2])
        latest = data("declared twice", [None, 3])
        assert resolve_feeds(["declared twice"]) == (latest,)


class TestConverting:
    @pytest.mark.parametrize(
        ("value", "dtype", "shape", "expected"),
        [
            (5, "int64", (1,), [5]), ([5], "int64", (), 5), (3.7, "int64", (1,), [3]),
            (True, "float32", (1,), [1]), ("2.5", "float32", (1,), [2.5]),
            (["1", "2"], "int64", (2,), [1, 2]), ([[1, 2], [3, 4]], "float32", (4,), [1, 2, 3, 4]),
            ([1, 2, 3, 4], "float32", (2, 2), [[1, 2], [3, 4]]), ([1, 2, 3], "float32", (None,), [1, 2, 3]),
            ([1, 2, 3], "float32", (None, 1), [[1], [2], [3]]), ([], "int64", (None, 1), np.zeros((0, 1))),
            (np.arange(3, dtype=">i2"), "int32", (3,), [0, 1, 2]), (np.float64("nan"), "float32", (), np.nan),
            (255, "uint8", (), 255), (-(2**63), "int64", (), -(2**63)), (2**64 - 1, "uint64", (), 2**64 - 1),
            (np.float32(-(2**31)), "int32", (), -(2**31)), (np.float16(5), "int64", (), 5),
            (b"3", "int64", (), 3), (" -4 ", "int8", (), -4), ("2.9", "int64", (), 2),
            ("1e3", "uint16", (), 1000), ("9007199254740993", "int64", (), 2**53 + 1),
            (["18446744073709551615", "0"], "uint64", (2,), [2**64 - 1, 0]), ("nan", "float32", (), np.nan),
            (float("inf"), "float32", (), np.inf), ([True, False], "uint8", (2,), [1, 0]),
            ([0, 2], "bool", (2,), [False, True]), (1, "complex64", (), 1 + 0j),
            ((np.int8(1), 2.5), "float64", (2,), [1, 2.5]), (range(4), "int16", (2, 2), [[0, 1], [2, 3]]),
            (np.array(["1.5"], object).astype("U"), "float32", (1,), [1.5]),
            (np.zeros((0, 4)), "float32", (None, 4), np.zeros((0, 4))),
        ],
    )  # fmt: skip
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
            (float(2**63), "int64", (), "numbers of dtype int64"),
            (float(2**64), "uint64", (), "numbers of dtype uint64"),
            (np.float32(2**31), "int32", (), "numbers of dtype int32"),
            (np.array([0, 2**63], np.uint64), "int64", (2,), "numbers of dtype int64"),
            ("nan", "int64", (), "whole numbers of dtype int64, got nan"),
            ("300", "uint8", (), r"uint8 \(0 to 255\), got 300"),
            ("-1", "uint64", (), "got -1"),
            ("9223372036854775808", "int64", (), "numbers of dtype int64"),
            ("", "int64", (), "got text"),
            (["1", "x"], "float32", (2,), "got text"),
            (np.datetime64("2020-01-01"), "int64", (), "dtype datetime64"),
            ([1, 2], "float32", (), r"expected shape \(\), got \(2,\)"),
            ([], "float32", (1,), r"expected shape \(1,\), got \(0,\)"),
            ([1, 2, 3, 4], "float32", (None, None), r"expected shape \(-, -\), got \(4,\)"),
            (np.zeros((2, 6)), "float32", (None, 4), r"expected shape \(-, 4\), got \(2, 6\)"),
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
        array=arrays.arrays("int16", arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
        shape=st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=3).map(tuple),
    )
    def test_fitting_keeps_all_elements_in_order_and_every_fixed_dimension(self, array, shape):
        try:
            fitted = fit(array, shape)
        except SampleError:
            assert array.shape != shape
            return
        assert fitted.ravel().tolist() == array.ravel().tolist()
        assert len(fitted.shape) == len(shape)
        assert all(size in (None, actual) for size, actual in zip(shape, fitted.shape, strict=True))

    def test_long_text_is_shortened_in_the_message(self):
        with pytest.raises(SampleError) as caught:
            convert("x" * 10_000, np.dtype("float32"), ())
        assert len(str(caught.value)) < 200

    def test_what_has_the_dtype_already_is_not_copied(self):
        array = np.zeros((28, 28), np.float32)
        assert np.shares_memory(convert(array, np.dtype("float32"), (784,)), array)
        assert fit(array, (None, 28)) is array
