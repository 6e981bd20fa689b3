import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.kernels.crop import erase, erase_on_host
from tests.kernels.shim import Placed, check_refusal, examples, launch_shapes, offsets, place, read

DTYPES = ["bool", "uint8", "int16", "float16", "float32", "int64", "float64"]
LAYOUTS = ["HWC", "CHW"]


@st.composite
def problems(draw):
    samples, channels = draw(st.integers(0, 4)), draw(st.integers(1, 5) | st.just(20))
    height, width = draw(st.integers(0, 9)), draw(st.integers(0, 21))
    layout = draw(st.sampled_from(LAYOUTS))
    shape = (samples, height, width, channels) if layout == "HWC" else (samples, channels, height, width)
    images = np.ones(shape, draw(st.sampled_from(DTYPES)))
    # Some rectangles reach over the edge, and some are empty.
    numbers = st.integers(-3, 12) | st.sampled_from([-(2**31), 2**31 - 1])
    windows = draw(st.lists(st.tuples(*[numbers] * 4), min_size=samples, max_size=samples))
    color = list(range(channels)) if draw(st.booleans()) else 0
    return images, np.array(windows, np.int32).reshape(samples, 4), color, layout


@given(problem=problems(), offset=offsets(1), shape=launch_shapes(1))
@examples(80)
def test_the_launcher_and_its_twin_agree(device, problem, offset, shape):
    images, windows, color, layout = problem
    device.shape = shape
    at = Placed(images, offset[0] * images.itemsize)
    assert erase(at.array, place(windows), color=color, layout=layout) is at.array
    expected = images.copy()
    assert erase_on_host(expected, windows, color=color, layout=layout) is expected
    assert read(at.array).tobytes() == expected.tobytes()
    at.check()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_twin_is_what_numpy_assigns(layout):
    images = np.zeros((2, 6, 5, 3), np.float32)
    windows = np.array([[1, 2, 3, 2], [0, 0, 0, 9]], np.int32)
    expected = images.copy()
    expected[0, 1:4, 2:4] = 0.5, 1.5, 2.5
    turn = (0, 3, 1, 2) if layout == "CHW" else (0, 1, 2, 3)
    given = np.ascontiguousarray(images.transpose(turn))
    erase_on_host(given, windows, color=[0.5, 1.5, 2.5], layout=layout)
    np.testing.assert_array_equal(given, expected.transpose(turn))


def test_more_samples_than_a_grid_has_rows(device):
    device.shape = None
    images, windows = np.ones((70_000, 1, 2, 2), np.uint8), np.zeros((70_000, 4), np.int32)
    windows[1::2, 2:] = 1
    found = read(erase(place(images), place(windows)))
    assert found[:, 0, 0, 0].tolist() == [1, 0] * 35_000
    assert found.sum() == images.sum() - 35_000
    assert device.launches[-1][:3] == ("erase<unsigned char>", (1, 65535), (32,))


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"images": np.zeros((2, 4, 5), np.uint8)}, ValueError, "images must have shape"),
        ({"images": np.zeros((2, 3, 4, 5), complex)}, TypeError, "numbers of 1, 2, 4 or 8 bytes"),
        ({"images": np.zeros((2, 0, 4, 5))}, ValueError, "images must have at least 1 channel"),
        ({"layout": "NCHW"}, ValueError, "layout must be 'HWC' or 'CHW', got 'NCHW'"),
        ({"windows": np.zeros((2, 3), np.int32)}, ValueError, r"windows must have shape \(2, 4\)"),
        ({"windows": np.zeros((2, 4))}, TypeError, "windows must have dtype int32, got float64"),
        ({"color": [1, 2]}, ValueError, r"one number for each of 3 channels.*; got \[1, 2\]"),
        (
            {"images": np.zeros((2, 65, 4, 5), np.uint8), "color": [0] * 65},
            ValueError,
            "each of 65 channels, of which there may be 64",
        ),
    ],
)
def test_launcher_and_twin_refuse_alike(device, change, error, problem):
    arguments = {"images": np.zeros((2, 3, 4, 5), np.uint8), "windows": np.zeros((2, 4), np.int32)} | change
    check_refusal(erase, erase_on_host, arguments, error, problem)
