from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuloader.kernels.normalize import _multiply_add, normalize
from tests.kernels.cases import NORMALIZE, check_agreement
from tests.kernels.shim import cut, examples

LAYOUTS = ["HWC", "CHW"]
floats = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)


@given(value=floats, factor=floats, offset=floats)
# A tie, except for bits that a double cannot hold.
@example(value=1 + 2**-12, factor=1 + 2**-12, offset=2.0**-80)
@example(value=1 + 2**-12, factor=1 + 2**-12, offset=-(2.0**-80))
@example(value=1 + 3 * 2**-12, factor=1 + 2**-12, offset=2.0**-80)
@example(value=2.0**-75, factor=2.0**-75, offset=0)  # a tie of subnormals, rounded to zero
@examples(500)
def test_the_twins_multiply_add_is_rounded_once(value, factor, offset):
    result = float(_multiply_add(*(np.float32([number]) for number in (value, factor, offset)))[0])
    if not np.isfinite([value, factor, offset]).all():
        with np.errstate(invalid="ignore"):
            expected = float(np.float64(value) * np.float64(factor) + np.float64(offset))
        assert result == expected or (np.isnan(result) and np.isnan(expected))
        return
    exact = Fraction(value) * Fraction(factor) + Fraction(offset)
    if not np.isfinite(result):
        assert abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103
        return
    with np.errstate(over="ignore", under="ignore"):
        near = [np.nextafter(np.float32(result), np.float32(side)) for side in (-np.inf, np.inf)]
    distance = abs(exact - Fraction(result))
    for other in near:
        if np.isfinite(other):
            further = abs(exact - Fraction(float(other)))
            assert distance < further or (
                distance == further and np.float32(result).view(np.uint32) % 2 == 0
            ), "not the nearest, or a tie that is not even"


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("out_layout", LAYOUTS)
def test_the_twin_is_what_numpy_gives(dtype, layout, out_layout):
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 10, 3)).astype(dtype)
    windows = np.array([[0, 0, 0], [1, 2, 1], [3, 4, 0]], np.int32)
    mean, std = np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.25, 0.125])
    expected = (cut(images, windows, 5, 6) / 255 - mean) / std
    given = images if layout == "HWC" else np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    options = {"layout": layout, "out_layout": out_layout, "size": (5, 6), "windows": windows}
    result = normalize.on_host(given, mean, std, scale=1 / 255, **options)
    assert result.dtype == np.float32
    result = result if out_layout == "HWC" else result.transpose(0, 2, 3, 1)
    np.testing.assert_allclose(result, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_they_agree_on_rows_of_pixels_of_any_length(device, offset, channels, dtype):
    """Mirrored or not, and aligned to 16 bytes, to 8 or to none."""
    device.shape, windows = None, np.array([[0, 0, 1], [1, 2, 0]], np.int32)
    options = {"mean": np.linspace(0.1, 0.9, channels), "std": np.linspace(0.2, 0.7, channels)}
    options |= {"scale": 1 / 255, "out_layout": "HWC", "dtype": dtype, "windows": windows}
    for width in range(1, 18):
        images = np.random.default_rng(width).integers(0, 256, (2, 3, width + 2, channels), np.uint8)
        for out_offset in (0, 4, offset):
            arguments = {"images": images, **options, "size": (2, width)}
            check_agreement(NORMALIZE, arguments, [offset, 0, out_offset], given_out=True)
