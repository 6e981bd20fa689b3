import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.kernels.cast import _SOURCES, _TARGETS, FLOATS, INTEGERS, cast, cast_on_host, cpp_type
from tests.kernels.shim import (
    Placed,
    as_floats,
    built_entries,
    examples,
    launch_shapes,
    offsets,
    place,
    read,
    same_bits,
)


def interesting(dtype):
    """Return numbers around the limits of rounding, wrapping and saturating, and every kind of float."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    powers = [
        2.0**exponent for exponent in (-149, -140, -133, -126, -25, -24, -14, -1, 0, *range(5, 66), 127)
    ]
    numbers = [
        sign * (power + step) for power in powers for step in (0, 0.5, 1, -1, -0.5) for sign in (1, -1)
    ]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        whole = [int(number) + step for number in numbers for step in (0, 1, -1)]
        return np.array([number for number in whole if limits.min <= number <= limits.max], dtype)
    with np.errstate(all="ignore"):
        near = np.array([*numbers, 65504, 65519.99, 65520, 3.3e38, 1e300, 5e-324, 0.0, -0.0], dtype)
        around = [near, np.nextafter(near, dtype.type(np.inf)), np.nextafter(near, dtype.type(-np.inf))]
    nans = np.array([np.nan, np.inf, -np.inf, -np.nan], dtype)
    # One above infinity, and all ones: NaNs that would become something else if rounded like numbers.
    payloads = np.concatenate([nans[1:3].view(f"u{dtype.itemsize}") + 1, [2 ** (8 * dtype.itemsize) - 1]])
    return np.concatenate([*around, nans, payloads.astype(f"u{dtype.itemsize}").view(dtype)])


def is_built(source, target):
    entry = f"cast<{cpp_type(source)}, {cpp_type(target)}>"
    return entry in built_entries("cast")


def check(seen, expected, target):
    if target == "bfloat16":
        assert seen.dtype == expected.dtype == np.uint16
        seen, expected = as_floats(seen), as_floats(expected)
    same_bits(seen, expected)


PAIRS = [(source, target) for source in _SOURCES for target in _TARGETS if is_built(source, target)]


@pytest.mark.parametrize("scale", [None, 1 / 255, -3.0])
@pytest.mark.parametrize("source", _SOURCES)
def test_the_launcher_and_its_twin_agree_on_every_kind_of_number(device, source, scale):
    device.shape = None
    numbers = interesting(source)
    numbers = np.concatenate([numbers, numbers[::-1], numbers[:3]])
    at = place(numbers)
    for target in (target for one, target in PAIRS if one == source):
        check(read(cast(at, target, scale=scale)), cast_on_host(numbers, target, scale=scale), target)


@pytest.mark.parametrize("pair", PAIRS[:: len(PAIRS) // 12])
def test_they_agree_at_any_offset(device, pair):
    device.shape = None
    source, target = pair
    numbers = interesting(source)[:21]
    expected = cast_on_host(numbers, target)
    for start in range(9):
        for out_start in range(9):
            out = Placed(np.zeros_like(expected), out_start * expected.itemsize)
            cast(place(numbers, start * numbers.itemsize), target, out=out.array)
            check(read(out.array), expected, target)
            out.check()


@given(
    pair=st.sampled_from(PAIRS),
    bits=st.binary(max_size=800),
    rank=st.integers(0, 2),
    scale=st.none() | st.floats(-1000, 1000),
    offsets=offsets(2),
    shape=launch_shapes(1),
    given_out=st.booleans(),
)
@examples(300)
def test_the_launcher_and_its_twin_agree(device, pair, bits, rank, scale, offsets, shape, given_out):
    source, target = pair
    device.shape = shape
    dtype = np.dtype(source)
    numbers = np.frombuffer(
        bits[: len(bits) // dtype.itemsize * dtype.itemsize], "u1" if source == "bool" else dtype
    )
    numbers = (numbers % 2).astype(bool) if source == "bool" else numbers
    numbers = numbers.reshape([(-1,), (1, -1), (-1, 1)][rank]) if numbers.size else numbers
    expected = cast_on_host(numbers, target, scale=scale)
    out = Placed(np.zeros_like(expected), offsets[1] * expected.itemsize)
    where = out.array if given_out else None
    result = cast(place(numbers, offsets[0] * dtype.itemsize), target, scale=scale, out=where)
    assert result.shape == numbers.shape
    check(read(result), expected, target)
    out.check()


@pytest.mark.parametrize("source", _SOURCES)
@pytest.mark.parametrize("target", [target for target in _TARGETS if target != "bfloat16"])
def test_the_twin_is_what_numpy_gives_where_that_is_defined(source, target):
    numbers = interesting(source)
    with np.errstate(all="ignore"):
        if numbers.dtype.kind == "f" and target in INTEGERS:
            limits = np.iinfo(target)
            wide = numbers.astype(np.float64)
            numbers = numbers[(wide > limits.min) & (wide < float(limits.max))]
        same_bits(cast_on_host(numbers, target), numbers.astype(target))


def test_what_numpy_leaves_open_saturates():
    numbers = np.array([-np.inf, -1e30, -129, -0.9, 127.9, 128, 1e30, np.inf, np.nan])
    assert cast_on_host(numbers, "int8").tolist() == [-128, -128, -128, 0, 127, 127, 127, 127, 0]
    assert cast_on_host(numbers, "uint8").tolist() == [0, 0, 0, 0, 127, 128, 255, 255, 0]
    limits = np.iinfo(np.int64)
    assert cast_on_host(numbers.astype(np.float32), "int64").tolist()[::7] == [limits.min, limits.max]


def test_bfloat16_is_rounded_to_the_nearest_and_ties_to_even():
    numbers = np.array([1.0, 1.00390625, 1.01171875, 1.0039064, 3.4e38, -0.0, np.inf], np.float32)
    assert [hex(bits) for bits in cast_on_host(numbers, "bfloat16")] == [
        *("0x3f80", "0x3f80", "0x3f82", "0x3f81", "0x7f80", "0x8000", "0x7f80")
    ]
    every = np.arange(2**16, dtype=np.uint16)
    exact = as_floats(every)
    back = cast_on_host(exact, "bfloat16")
    number = ~np.isnan(exact)
    np.testing.assert_array_equal(back[number], every[number])
    assert np.isnan(as_floats(back[~number])).all()


def test_a_dtype_of_ml_dtypes_is_held_as_it_is():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    numbers = interesting(np.float32)
    result = cast_on_host(numbers, ml_dtypes.bfloat16)
    assert result.dtype == ml_dtypes.bfloat16
    with np.errstate(all="ignore"):
        same_bits(result.astype(np.float32), numbers.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize(
    ("values", "dtype", "scale", "problem"),
    [
        (
            np.zeros(3, np.complex64),
            "float32",
            None,
            "values must have dtype bool or .* or float64, got complex64",
        ),
        (np.zeros(3, "M8[s]"), "int64", None, "values must have dtype"),
        (np.zeros(3), "complex64", None, "dtype must be one of uint8, .*, float64, got complex64"),
        (np.zeros(3), "bool", None, "dtype must be one of"),
        (np.zeros(3), "number", None, "dtype must be one of uint8, .*, float64, got 'number'"),
        (np.zeros(3), ">f4", None, "dtype must be one of"),
        (np.zeros(3), "float32", "2", "scale must be a number or None, got str"),
        (np.zeros(3), "float32", True, "scale must be a number or None, got bool"),
    ],
)
def test_what_cannot_be_cast_is_an_error(values, dtype, scale, problem):
    with pytest.raises(TypeError, match=problem):
        cast_on_host(values, dtype, scale=scale)


def test_every_pair_of_dtypes_has_an_entry():
    assert set(_TARGETS) == {*INTEGERS, *FLOATS}
    assert all(is_built(source, target) for source in _SOURCES for target in _TARGETS) or len(PAIRS) < 50
