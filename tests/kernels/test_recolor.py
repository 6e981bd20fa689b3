"""`recolor`: its twin is Pillow, bit for bit, and the kernel is its twin."""

import itertools
import os

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuloader.kernels.normalize import normalize_on_host
from gpuloader.kernels.recolor import CHANGES, recolor, recolor_on_host, recolor_picture
from gpuloader.sources.pictures.coloring import Coloring
from gpuloader.sources.pictures.coloring import recolor as recolor_by_pillow
from tests.kernels.shim import (
    Placed,
    check_refusal,
    check_result,
    examples,
    launch_shapes,
    offsets,
    place,
    read,
)

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

CASES = int(os.environ.get("GPULOADER_CASES", "30"))
"""How many cases compare the kernel with Pillow."""

FACTORS = st.floats(0, 3, width=32) | st.sampled_from([0.0, 0.5, 1.0, 1.5, 1e-40, 300.0])
TURNS = st.floats(-0.5, 0.5)


@st.composite
def changes(draw, most=5):
    """Return changes of colors, as Pillow's twin takes them."""
    names = draw(st.lists(st.sampled_from(CHANGES), max_size=most))
    return tuple((name, draw(TURNS if name == "hue" else FACTORS)) for name in names)


def make_numbers(rows, first=0):
    """Return the numbers of the kernel, behind `first` others."""
    found = np.full((len(rows), first + 2 * max(map(len, rows), default=0)), 9, np.float32)
    found[:, first:] = 0
    for number, row in enumerate(rows):
        for position, (name, amount) in enumerate(row):
            amount = int(amount * 255) % 256 if name == "hue" else amount
            found[number, first + 2 * position :][:2] = CHANGES.index(name) + 1, amount
    return found


def count_contrasts(rows):
    return max((sum(name == "contrast" for name, _ in row) for row in rows), default=0)


def make_picture(height, width, channels, seed):
    """Return a picture with all sorts of colors, of which many are gray, pure or dark."""
    draw = np.random.default_rng(seed)
    levels = draw.choice([0, 1, 84, 85, 127, 128, 170, 254, 255], (height, width, channels))
    noise = draw.integers(0, 256, (height, width, channels))
    return np.where(draw.random((height, width, 1)) < 0.5, levels, noise).astype(np.uint8)


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
    picture = make_picture(height, width, channels, seed)
    [row] = make_numbers([steps]).tolist()
    found = recolor_picture(picture, list(zip(row[::2], row[1::2], strict=True)))
    np.testing.assert_array_equal(found, make_by_pillow(picture, steps))


@pytest.mark.parametrize("turns", [0.0, 0.1, 0.5])
def test_all_hues_are_pillows(turns):
    """Two of the three channels take all values: most colors, up to their order, are among them."""
    levels = np.arange(256, dtype=np.uint8)
    planes = [np.stack(np.broadcast_arrays(levels[:, None], levels, np.uint8(third)), 2) for third in (0, 85)]
    for picture, order in itertools.product(planes, itertools.permutations(range(3))):
        turned = np.ascontiguousarray(picture[..., list(order)])
        found = recolor_picture(turned, [(4, int(turns * 255))])
        np.testing.assert_array_equal(found, make_by_pillow(turned, (("hue", turns),)))


@given(
    steps=changes(),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
    shape=launch_shapes(1),
)
@examples(CASES)
def test_the_kernel_is_pillow(device, steps, height, width, channels, seed, shape):
    device.shape = shape
    picture = make_picture(height, width, channels, seed)
    arrays = place(picture[None]), place(make_numbers([steps]))
    found = recolor(*arrays, contrasts=count_contrasts([steps]), dtype="uint8", out_layout="HWC")
    np.testing.assert_array_equal(read(found)[0], make_by_pillow(picture, steps))


@given(
    rows=st.lists(changes(), max_size=3),
    size=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    channels=st.sampled_from([1, 3]),
    contrasts=st.none() | st.integers(0, 8),
    first=st.integers(0, 13),
    out_layout=st.sampled_from(["CHW", "HWC"]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16", "uint8"]),
    offset=offsets(2),
    shape=launch_shapes(1),
)
@examples(40)
def test_the_launcher_and_its_twin_agree(
    device, rows, size, channels, contrasts, first, out_layout, dtype, offset, shape
):
    device.shape = shape
    pictures = np.empty((len(rows), *size, channels), np.uint8)
    for seed, picture in enumerate(pictures):
        picture[...] = make_picture(*size, channels, seed)
    norm = {} if dtype == "uint8" else {"mean": np.arange(channels) / 9, "std": 0.3, "scale": 1 / 255}
    contrasts = min(count_contrasts(rows), 8) if contrasts is None else contrasts
    options = {"first": first, "contrasts": contrasts, "out_layout": out_layout, "dtype": dtype, **norm}
    numbers = make_numbers(rows, first)
    expected = recolor_on_host(pictures, numbers, **options)
    out = Placed(np.zeros_like(expected), offset[1] * expected.itemsize)
    sums = Placed(np.full((len(rows), contrasts, 32), 7, np.uint64))
    given_sums = {"sums": sums.array} if offset[0] % 2 else {}
    result = recolor(place(pictures, offset[0]), place(numbers), **options, **given_sums, out=out.array)
    check_result(result, expected, out, given_out=True)
    sums.check()


def test_pictures_are_normalized_as_by_normalize(device):
    device.shape = None
    pictures = np.stack([make_picture(20, 30, 3, seed) for seed in range(2)])
    numbers = make_numbers([[("brightness", 0.5)], [("contrast", 1.2), ("hue", 0.1)]])
    norm = {"mean": [0.1, 0.2, 0.3], "std": [1, 2, 3], "scale": 1 / 255}
    found = recolor(place(pictures), place(numbers), contrasts=1, **norm)
    plain = recolor_on_host(pictures, numbers, contrasts=1, dtype="uint8", out_layout="HWC")
    assert read(found).tobytes() == normalize_on_host(plain, **norm).tobytes()
    assert [launch[:3] for launch in device.launches[-2:]] == [
        ("measure<3>", (32, 2), (256,)),
        ("recolor<3, float>", (1, 2), (160,)),
    ]


def test_numbers_of_no_change_change_nothing(device):
    device.shape = None
    pictures = make_picture(5, 6, 3, 1)[None]
    numbers = np.array([[0, 3, 1.5, 3, np.nan, 3, -1, 3, 5, 3]], np.float32)
    found = recolor(place(pictures), place(numbers), dtype="uint8", out_layout="HWC")
    np.testing.assert_array_equal(read(found), pictures)


PICTURES = {"pictures": np.zeros((2, 4, 5, 3), np.uint8), "numbers": np.zeros((2, 4), np.float32)}


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"pictures": np.zeros((2, 4, 5), np.uint8)}, ValueError, "pictures must have shape"),
        ({"pictures": np.zeros((2, 4, 5, 3))}, TypeError, "pictures must have dtype uint8, got float64"),
        ({"pictures": np.zeros((2, 4, 5, 2), np.uint8)}, ValueError, "pictures must have 1 or 3 channels"),
        ({"numbers": np.zeros((3, 4), np.float32)}, ValueError, r"numbers must have shape \(2, any\)"),
        ({"numbers": np.zeros((2, 4))}, TypeError, "numbers must have dtype float32, got float64"),
        ({"first": 1}, ValueError, "numbers must have pairs from column 1 on"),
        ({"first": 6}, ValueError, "numbers must have pairs from column 6 on"),
        ({"contrasts": 9}, ValueError, "contrasts must be from 0 to 8, got 9"),
        ({"out_layout": "NHWC"}, ValueError, "out_layout must be 'HWC' or 'CHW'"),
        ({"dtype": "float64"}, TypeError, "dtype must be one of float16, bfloat16, float32, uint8"),
        ({"dtype": "uint8", "mean": 3}, ValueError, "a result of dtype uint8 is not normalized"),
        ({"std": 0}, ValueError, "std must be finite and not 0"),
    ],
)
def test_launcher_and_twin_refuse_alike(device, change, error, problem):
    check_refusal(recolor, recolor_on_host, PICTURES | change, error, problem)
