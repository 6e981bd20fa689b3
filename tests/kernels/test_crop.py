import numpy as np
import pytest

from gpuloader.kernels.crop import crop, erase
from tests.kernels.cases import BITS, CROP, check_agreement
from tests.kernels.shim import cut

LAYOUTS = ["HWC", "CHW"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", BITS)
def test_the_twin_is_what_numpy_cuts(layout, dtype):
    images = np.random.default_rng(0).integers(0, 2, (3, 8, 10, 3)).astype(dtype)
    windows = np.array([[0, 0, 0], [1, 2, 1], [3, 4, 7]], np.int32)
    expected = cut(images, windows, 5, 6)
    turn = (lambda array: array) if layout == "HWC" else (lambda array: array.transpose(0, 3, 1, 2).copy())
    result = crop.on_host(turn(images), (5, 6), windows, layout=layout)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, turn(expected))


@pytest.mark.parametrize("offset", range(5))
def test_they_agree_on_mirrored_pixels_of_three_bytes(device, offset):
    """Words of any size, wherever the row begins; the last one ends with the array."""
    device.shape, windows = None, np.array([[0, 0, 1], [0, 3, 1]], np.int32)
    for width in (*range(1, 20), 32):
        images = np.random.default_rng(width).integers(0, 256, (2, 2, width + 3, 3), np.uint8)
        for out_offset in (0, 4, 8, offset):
            arguments = {"images": images, "size": (2, width), "windows": windows}
            check_agreement(CROP, arguments, [offset, 0, out_offset], given_out=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_twin_erases_what_numpy_assigns(layout):
    images = np.zeros((2, 6, 5, 3), np.float32)
    windows = np.array([[1, 2, 3, 2], [0, 0, 0, 9]], np.int32)
    expected = images.copy()
    expected[0, 1:4, 2:4] = 0.5, 1.5, 2.5
    turn = (0, 3, 1, 2) if layout == "CHW" else (0, 1, 2, 3)
    given = np.ascontiguousarray(images.transpose(turn))
    erase.on_host(given, windows, color=[0.5, 1.5, 2.5], layout=layout)
    np.testing.assert_array_equal(given, expected.transpose(turn))
