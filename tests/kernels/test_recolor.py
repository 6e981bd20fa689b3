"""`recolor`: its twin is Pillow, bit for bit, and the kernel is its twin."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuloader.kernels.normalize import normalize
from gpuloader.kernels.recolor import recolor, recolor_image
from gpuloader.transforms.image_transforms import Coloring
from gpuloader.transforms.image_transforms import apply_coloring as recolor_by_pillow
from tests.kernels.cases import changes, make_colors, make_numbers
from tests.kernels.shim import examples, place, read

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def make_by_pillow(picture, steps):
    image = Image.fromarray(picture.squeeze(2) if picture.shape[2] == 1 else picture)
    return np.asarray(recolor_by_pillow(image, Coloring(steps))).reshape(picture.shape)


@given(
    steps=changes(),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)
@example((("contrast", 1.5), ("contrast", 0.5), ("hue", 0.5)), 3, 50, 3, 0)
@examples(80)
def test_the_twin_is_pillow(steps, height, width, channels, seed):
    picture = make_colors(height, width, channels, seed)
    [row] = make_numbers([steps]).tolist()
    found = recolor_image(picture, list(zip(row[::2], row[1::2], strict=True)))
    np.testing.assert_array_equal(found, make_by_pillow(picture, steps))


@pytest.mark.parametrize("turns", [0.0, 0.1, 0.5])
def test_all_hues_are_pillows(device, turns):
    """Two of the three channels take all values: most colors, up to their order, are among them."""
    device.shape = None
    levels = np.arange(256, dtype=np.uint8)
    planes = [np.stack(np.broadcast_arrays(levels[:, None], levels, np.uint8(third)), 2) for third in (0, 85)]
    orders = itertools.permutations(range(3))
    pictures = np.stack([plane[..., list(order)] for plane, order in itertools.product(planes, orders)])
    numbers = make_numbers([[("hue", turns)]] * len(pictures))
    found = read(recolor(place(pictures), place(numbers), dtype="uint8", out_layout="HWC"))
    expected = np.stack([make_by_pillow(picture, (("hue", turns),)) for picture in pictures])
    np.testing.assert_array_equal(found, expected)


def test_pictures_are_normalized_as_by_normalize(device):
    device.shape = None
    pictures = np.stack([make_colors(20, 30, 3, seed) for seed in range(2)])
    numbers = make_numbers([[("brightness", 0.5)], [("contrast", 1.2), ("hue", 0.1)]])
    norm = {"mean": [0.1, 0.2, 0.3], "std": [1, 2, 3], "scale": 1 / 255}
    found = recolor(place(pictures), place(numbers), contrasts=1, **norm)
    plain = recolor.on_host(pictures, numbers, contrasts=1, dtype="uint8", out_layout="HWC")
    assert read(found).tobytes() == normalize.on_host(plain, **norm).tobytes()
    assert [launch[:3] for launch in device.launches[-2:]] == [
        ("measure<3>", (32, 2), (256,)),
        ("recolor<3, float>", (1, 2), (160,)),
    ]


def test_numbers_of_no_change_change_nothing(device):
    device.shape = None
    pictures = make_colors(5, 6, 3, 1)[None]
    numbers = np.array([[0, 3, 1.5, 3, np.nan, 3, -1, 3, 5, 3]], np.float32)
    found = recolor(place(pictures), place(numbers), dtype="uint8", out_layout="HWC")
    np.testing.assert_array_equal(read(found), pictures)
