import numpy as np
import pytest

from gpuloader.kernels.crop import crop, erase
from tests.kernels.cases import BITS
from tests.kernels.shim import Placed, cut, place, read

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


def test_more_samples_than_a_grid_has_rows(device):
    device.shape = None
    images = np.arange(70_000 * 4, dtype=np.uint32).reshape(70_000, 2, 2, 1)
    windows = np.zeros((70_000, 3), np.int32)
    windows[:, 2] = np.arange(70_000) % 2
    result = crop(place(images), (1, 2), place(windows))
    np.testing.assert_array_equal(read(result), crop.on_host(images, (1, 2), windows))
    entry, grid, block, _ = device.launches[-1]
    assert (entry, grid, block) == ("crop<unsigned long long>", (1, 65535, 1), (1, 1))


@pytest.mark.parametrize(
    ("width", "channels", "out_offset", "word"),
    [
        (16, 3, 0, "uint4"),
        (8, 3, 0, "unsigned long long"),
        (4, 3, 0, "unsigned int"),
        (5, 3, 0, "unsigned int"),
        (16, 3, 8, "unsigned long long"),
        (16, 3, 3, "unsigned int"),
    ],
)
def test_words_are_as_large_as_the_rows_allow(device, width, channels, out_offset, word):
    device.shape = None
    images = np.zeros((2, 7, 20, channels), np.uint8)
    out = Placed(np.zeros((2, 5, width, channels), np.uint8), out_offset)
    if (out.array.data.ptr - out_offset) % 16:
        pytest.skip("the memory is not aligned to 16 bytes")
    crop(place(images), (5, width), place(np.zeros((2, 3), np.int32)), out=out.array)
    assert device.launches[-1][0] == f"crop<{word}>"


@pytest.mark.parametrize("offset", range(5))
def test_they_agree_on_mirrored_pixels_of_three_bytes(device, offset):
    """Words of any size, wherever the row begins; the last one ends with the array."""
    device.shape = None
    for width in (*range(1, 20), 32):
        images = np.random.default_rng(width).integers(0, 256, (2, 2, width + 3, 3), np.uint8)
        windows = np.array([[0, 0, 1], [0, 3, 1]], np.int32)
        expected = crop.on_host(images, (2, width), windows)
        for out_offset in (0, 4, 8, offset):
            out = Placed(np.zeros_like(expected), out_offset)
            crop(place(images, offset), (2, width), place(windows), out=out.array)
            np.testing.assert_array_equal(read(out.array), expected)
            out.check()


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


def test_more_samples_to_erase_than_a_grid_has_rows(device):
    device.shape = None
    images, windows = np.ones((70_000, 1, 2, 2), np.uint8), np.zeros((70_000, 4), np.int32)
    windows[1::2, 2:] = 1
    found = read(erase(place(images), place(windows)))
    assert found[:, 0, 0, 0].tolist() == [1, 0] * 35_000
    assert found.sum() == images.sum() - 35_000
    assert device.launches[-1][:3] == ("erase<unsigned char>", (1, 65535), (32,))
