import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.kernels.crop import crop, crop_on_host
from tests.kernels.shim import (
    Placed,
    check_refusal,
    check_result,
    cut,
    examples,
    launch_shapes,
    offsets,
    place,
    read,
)

DTYPES = ["bool", "uint8", "int16", "float16", "int32", "float32", "int64", "float64"]
LAYOUTS = ["HWC", "CHW"]


@st.composite
def problems(draw):
    samples, channels = draw(st.integers(0, 4)), draw(st.integers(1, 5) | st.just(20))
    height, width = draw(st.integers(0, 9)), draw(st.integers(0, 21))
    layout = draw(st.sampled_from(LAYOUTS))
    shape = (samples, height, width, channels) if layout == "HWC" else (samples, channels, height, width)
    images = np.zeros(shape, draw(st.sampled_from(DTYPES)))
    images.reshape(-1).view(np.uint8)[:] = np.arange(images.nbytes) % (2 if images.dtype == "bool" else 251)
    size = draw(st.integers(0, height)), draw(st.integers(0, width))
    # Some windows reach over the edge; kernel and twin must move them inside.
    ends = st.integers(-3, 12) | st.sampled_from([-(2**31), 2**31 - 1])
    windows = draw(st.lists(st.tuples(ends, ends, st.integers(0, 1)), min_size=samples, max_size=samples))
    return images, size, np.array(windows, np.int32).reshape(samples, 3), layout


@given(
    problem=problems(),
    offsets=offsets(2),
    shape=launch_shapes(2),
    given_out=st.booleans(),
)
@examples(300)
def test_the_launcher_and_its_twin_agree(device, problem, offsets, shape, given_out):
    images, size, windows, layout = problem
    device.shape = shape
    at = Placed(images, offsets[0] * images.itemsize)
    expected = crop_on_host(images, size, windows, layout=layout)
    out = Placed(np.zeros_like(expected), offsets[1] * images.itemsize)
    result = crop(at.array, size, place(windows), layout=layout, out=out.array if given_out else None)
    check_result(result, expected, out, given_out)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_twin_is_what_numpy_cuts(layout, dtype):
    images = np.random.default_rng(0).integers(0, 2, (3, 8, 10, 3)).astype(dtype)
    windows = np.array([[0, 0, 0], [1, 2, 1], [3, 4, 7]], np.int32)
    expected = cut(images, windows, 5, 6)
    turn = (lambda array: array) if layout == "HWC" else (lambda array: array.transpose(0, 3, 1, 2).copy())
    result = crop_on_host(turn(images), (5, 6), windows, layout=layout)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, turn(expected))


def test_more_samples_than_a_grid_has_rows(device):
    device.shape = None
    images = np.arange(70_000 * 4, dtype=np.uint32).reshape(70_000, 2, 2, 1)
    windows = np.zeros((70_000, 3), np.int32)
    windows[:, 2] = np.arange(70_000) % 2
    result = crop(place(images), (1, 2), place(windows))
    np.testing.assert_array_equal(read(result), crop_on_host(images, (1, 2), windows))
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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 16])
def test_they_agree_at_any_offset(device, layout, dtype, channels):
    """Windows that begin at any byte, up to the last one of the images, mirrored or not."""
    device.shape = None
    images = np.zeros((3, 4, 19, channels), dtype)
    images.reshape(-1).view(np.uint8)[:] = np.arange(images.nbytes) % 251
    if layout == "CHW":
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    for width in (1, 5, 16, 17):
        for left in range(0, 20 - width, 3):
            windows = np.array([[1, left, 0], [0, left, 1], [9, 99, left % 2]], np.int32)
            expected = crop_on_host(images, (3, width), windows, layout=layout)
            start, out_start = left * images.itemsize, (left + width) * images.itemsize
            out = Placed(np.zeros_like(expected), out_start)
            crop(place(images, start), (3, width), place(windows), layout=layout, out=out.array)
            assert read(out.array).tobytes() == expected.tobytes()
            out.check()


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"images": np.zeros((2, 4, 5), np.uint8)}, ValueError, "images must have shape"),
        (
            {"images": np.zeros((2, 4, 5, 3), complex)},
            TypeError,
            "numbers of 1, 2, 4 or 8 bytes, got complex128",
        ),
        ({"images": np.zeros((2, 4, 5, 0), np.uint8)}, ValueError, "images must have at least 1 channel"),
        ({"size": (5, 5)}, ValueError, "height in size must be from 0 to 4, got 5"),
        ({"size": (4, 6)}, ValueError, "width in size must be from 0 to 5, got 6"),
        (
            {"images": np.zeros((0, 1, 2**27, 1)), "size": (1, 1), "windows": np.zeros((0, 3), np.int32)},
            ValueError,
            "rows of images must have fewer than 1073741824 bytes, got 1073741824",
        ),
        ({"size": 4}, ValueError, r"size must be \(height, width\), got 4"),
        ({"layout": "NHWC"}, ValueError, "layout must be 'HWC' or 'CHW', got 'NHWC'"),
        ({"windows": np.zeros((1, 3), np.int32)}, ValueError, r"windows must have shape \(2, 3\)"),
        ({"windows": np.zeros((2, 3), np.int64)}, TypeError, "windows must have dtype int32, got int64"),
    ],
)
def test_launcher_and_twin_refuse_alike(device, change, error, problem):
    arguments = {
        "images": np.zeros((2, 4, 5, 3), np.uint8),
        "size": (2, 2),
        "windows": np.zeros((2, 3), np.int32),
    } | change
    check_refusal(crop, crop_on_host, arguments, error, problem)
