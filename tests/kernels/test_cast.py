import numpy as np
import pytest

from gpuloader.kernels.cast import _SOURCES, _TARGETS, FLOATS, INTEGERS, cast
from tests.kernels.cases import PAIRS, interesting, is_built
from tests.kernels.shim import as_floats, place, read, same_bits


def check(seen, expected, target):
    if target == "bfloat16":
        assert seen.dtype == expected.dtype == np.uint16
        seen, expected = as_floats(seen), as_floats(expected)
    same_bits(seen, expected)


@pytest.mark.parametrize("scale", [None, 1 / 255, -3.0])
@pytest.mark.parametrize("source", _SOURCES)
def test_the_launcher_and_its_twin_agree_on_every_kind_of_number(device, source, scale):
    device.shape = None
    numbers = interesting(source)
    numbers = np.concatenate([numbers, numbers[::-1], numbers[:3]])
    at = place(numbers)
    for target in (target for one, target in PAIRS if one == source):
        check(read(cast(at, target, scale=scale)), cast.on_host(numbers, target, scale=scale), target)


@pytest.mark.parametrize("source", _SOURCES)
@pytest.mark.parametrize("target", [target for target in _TARGETS if target != "bfloat16"])
def test_the_twin_is_what_numpy_gives_where_that_is_defined(source, target):
    numbers = interesting(source)
    with np.errstate(all="ignore"):
        if numbers.dtype.kind == "f" and target in INTEGERS:
            limits = np.iinfo(target)
            wide = numbers.astype(np.float64)
            numbers = numbers[(wide > limits.min) & (wide < float(limits.max))]
        same_bits(cast.on_host(numbers, target), numbers.astype(target))


def test_what_numpy_leaves_open_saturates():
    numbers = np.array([-np.inf, -1e30, -129, -0.9, 127.9, 128, 1e30, np.inf, np.nan])
    assert cast.on_host(numbers, "int8").tolist() == [-128, -128, -128, 0, 127, 127, 127, 127, 0]
    assert cast.on_host(numbers, "uint8").tolist() == [0, 0, 0, 0, 127, 128, 255, 255, 0]
    limits = np.iinfo(np.int64)
    assert cast.on_host(numbers.astype(np.float32), "int64").tolist()[::7] == [limits.min, limits.max]


def test_bfloat16_is_rounded_to_the_nearest_and_ties_to_even():
    numbers = np.array([1.0, 1.00390625, 1.01171875, 1.0039064, 3.4e38, -0.0, np.inf], np.float32)
    assert [hex(bits) for bits in cast.on_host(numbers, "bfloat16")] == [
        *("0x3f80", "0x3f80", "0x3f82", "0x3f81", "0x7f80", "0x8000", "0x7f80")
    ]
    every = np.arange(2**16, dtype=np.uint16)
    exact = as_floats(every)
    back = cast.on_host(exact, "bfloat16")
    number = ~np.isnan(exact)
    np.testing.assert_array_equal(back[number], every[number])
    assert np.isnan(as_floats(back[~number])).all()


def test_a_dtype_of_ml_dtypes_is_held_as_it_is():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    numbers = interesting(np.float32)
    result = cast.on_host(numbers, ml_dtypes.bfloat16)
    assert result.dtype == ml_dtypes.bfloat16
    with np.errstate(all="ignore"):
        same_bits(result.astype(np.float32), numbers.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_every_pair_of_dtypes_has_an_entry():
    assert set(_TARGETS) == {*INTEGERS, *FLOATS}
    assert all(is_built(source, target) for source in _SOURCES for target in _TARGETS) or len(PAIRS) < 50
