"""Transforms that resize, crop, mirror and color pictures: what torchvision does to Pillow's images."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.sources.images.image import Geometry, as_image
from gpuloader.transforms import CenterCrop, ColorJitter, RandomFlip, RandomResizedCrop, Resize
from gpuloader.transforms.image_transforms import draw_window, finish_plan
from tests.picture_files import make_pixels, pillow, plan_image

BILINEAR = pillow.Resampling.BILINEAR


def rng(seed=0):
    return np.random.default_rng(seed)


def made(pixels, *transforms, seed=0):
    return finish_plan(as_image(pixels), plan_image(pixels.shape[:2], transforms, rng(seed)))


def resized(pixels, height, width, kind=BILINEAR):
    image = pillow.fromarray(pixels)
    if image.width != width:
        image = image.resize((width, image.height), kind)
    return np.asarray(image.resize((width, height), kind) if image.height != height else image)


@pytest.mark.parametrize(
    ("size", "wanted", "expected"),
    [
        ((375, 500), 256, (256, 341)),
        ((500, 375), 256, (341, 256)),
        ((100, 100), 256, (256, 256)),
        ((300, 200), (32, 64), (32, 64)),
        ((7, 1000), 224, (224, 32000)),
    ],
)
def test_resize_gives_torchvisions_sizes(size, wanted, expected):
    [geometry] = plan_image(size, [Resize(None, wanted)], rng())
    assert geometry.size == expected


@pytest.mark.parametrize("size", [(60, 80), (80, 60), (33, 47), (20, 100)], ids=str)
def test_resize_and_center_crop_are_those_of_the_whole_picture(size):
    pixels = make_pixels(*size)
    shorter = 40
    height, width = (max(int(shorter * side / min(size)), shorter) for side in size)
    whole = resized(pixels, height, width)
    top, left = round((height - 32) / 2), round((width - 32) / 2)
    expected = whole[top : top + 32, left : left + 32]
    np.testing.assert_array_equal(made(pixels, Resize(None, 40), CenterCrop(None, 32)), expected)


def test_a_center_crop_of_a_smaller_picture_has_a_black_margin():
    pixels = make_pixels(3, 10)
    expected = np.zeros((6, 6, 3), np.uint8)
    expected[1:4] = pixels[:, 2:8]
    np.testing.assert_array_equal(made(pixels, CenterCrop(None, 6)), expected)


def test_pictures_may_be_resized_more_than_once():
    pixels = make_pixels(40, 60)
    expected = resized(resized(pixels, 30, 20), 10, 15)
    np.testing.assert_array_equal(made(pixels, Resize(None, (30, 20)), Resize(None, (10, 15))), expected)
    padded = np.zeros((50, 70, 3), np.uint8)
    padded[5:45, 5:65] = pixels
    got = made(pixels, CenterCrop(None, (50, 70)), Resize(None, (25, 35)))
    np.testing.assert_array_equal(got, resized(padded, 25, 35))


def test_a_window_is_resized_with_what_lies_around_it():
    pixels = make_pixels(100, 120)
    crop = RandomResizedCrop(None, 24)
    top, left, tall, wide = draw_window(100, 120, crop.scale, crop.ratio, rng(3))
    image = pillow.fromarray(pixels)
    image = image.resize((24, 100), BILINEAR, (left, 0, left + wide, 100))
    expected = image.resize((24, 24), BILINEAR, (0, top, 24, top + tall))
    np.testing.assert_array_equal(made(pixels, crop, seed=3), np.asarray(expected))


SIDES = st.one_of(st.integers(1, 4), st.integers(1, 600))
PAIRS = [st.lists(st.floats(low, high), min_size=2, max_size=2) for low, high in ((1e-9, 1), (1e-3, 1e3))]


@given(
    SIDES, SIDES, PAIRS[0] | st.just([0.08, 1.0]), PAIRS[1] | st.just([3 / 4, 4 / 3]), st.integers(0, 2**32)
)
def test_windows_lie_within_the_picture_and_have_pixels(height, width, scale, ratio, seed):
    top, left, tall, wide = draw_window(height, width, sorted(scale), sorted(ratio), rng(seed))
    assert 0 <= top <= height - tall
    assert 0 <= left <= width - wide
    assert min(tall, wide) >= 1
    usual = (scale, ratio) == ([0.08, 1.0], [3 / 4, 4 / 3])
    if usual and height * width > 10_000 and 0.5 < height / width < 2:
        assert 0.07 <= tall * wide / (height * width) <= 1
        assert 0.7 < wide / tall < 1.4


def test_windows_are_spread_over_areas_and_shapes():
    found = np.array(
        [draw_window(1000, 1000, (0.08, 1.0), (3 / 4, 4 / 3), rng(seed)) for seed in range(2000)]
    )
    areas = found[:, 2] * found[:, 3] / 1e6
    shapes = np.log(found[:, 3] / found[:, 2])
    assert 0.45 < areas.mean() < 0.55  # a little below the middle, as large windows often do not fit
    assert abs(shapes.mean()) < 0.02
    assert shapes.std() == pytest.approx(2 * math.log(4 / 3) / math.sqrt(12), rel=0.1)


@pytest.mark.parametrize(
    ("size", "scale", "ratio", "expected"),
    [
        ((10, 1000), 1, (3 / 4, 4 / 3), (0, 493, 10, 13)),
        ((1000, 10), 1, (3 / 4, 4 / 3), (493, 0, 13, 10)),
        ((2, 2), 1e-9, (5, 6), (0, 0, 1, 2)),
        ((300, 1), 1e-9, (2.5, 3), (149, 0, 1, 1)),
        ((1, 300), 1e-9, (0.2, 0.3), (0, 149, 1, 1)),
        ((40, 50), 1e-9, (100, 100), (19, 0, 1, 50)),
    ],
)
def test_a_window_that_never_fits_is_the_middle_of_a_pixel_at_least(size, scale, ratio, expected):
    assert draw_window(*size, (scale, scale), ratio, rng()) == expected


def test_flips():
    pixels = make_pixels(5, 7)
    np.testing.assert_array_equal(made(pixels, RandomFlip(None, p=1)), pixels[:, ::-1])
    np.testing.assert_array_equal(made(pixels, RandomFlip(None, p=1, axis="vertical")), pixels[::-1])
    np.testing.assert_array_equal(made(pixels, RandomFlip(None, p=0)), pixels)
    flipped = [bool((made(pixels, RandomFlip(None), seed=seed) != pixels).any()) for seed in range(200)]
    assert 70 < sum(flipped) < 130
    got = made(pixels, RandomFlip(None, p=1), CenterCrop(None, (5, 4)))
    np.testing.assert_array_equal(got, pixels[:, ::-1][:, 2:6])


AMOUNTS = [(name, amount) for name in ("brightness", "contrast", "saturation") for amount in (0.3, 0.5, 1.7)]


@pytest.mark.parametrize(("name", "amount"), [*AMOUNTS, ("hue", -0.5), ("hue", -0.1), ("hue", 0.3)])
def test_colors_change_as_in_torchvision(name, amount):
    transforms = pytest.importorskip("torchvision.transforms.functional")
    expected = getattr(transforms, f"adjust_{name}")(pillow.fromarray(make_pixels(16, 16)), amount)
    got = made(make_pixels(16, 16), ColorJitter(None, **{name: (amount, amount)}))
    np.testing.assert_array_equal(got, np.asarray(expected))


@pytest.mark.parametrize(
    ("name", "kind"), [("brightness", "Brightness"), ("contrast", "Contrast"), ("saturation", "Color")]
)
def test_colors_change_as_pillow_changes_them(name, kind):
    from PIL import ImageEnhance

    pixels = make_pixels(16, 16)
    got = made(pixels, ColorJitter(None, **{name: (1.4, 1.4)}))
    expected = getattr(ImageEnhance, kind)(pillow.fromarray(pixels)).enhance(1.4)
    np.testing.assert_array_equal(got, np.asarray(expected))


def test_colors_are_drawn_from_their_ranges_in_random_order():
    jitter = ColorJitter(None, brightness=0.4, contrast=(0.5, 0.7), hue=0.1)
    plans = [plan_image((8, 8), [jitter], rng(seed)) for seed in range(200)]
    orders = {tuple(name for name, _ in coloring.steps) for _, coloring in plans}
    assert len(orders) == 6
    drawn = {
        name: [dict(coloring.steps)[name] for _, coloring in plans]
        for name in ("brightness", "contrast", "hue")
    }
    for name, (low, high) in {"brightness": (0.6, 1.4), "contrast": (0.5, 0.7), "hue": (-0.1, 0.1)}.items():
        assert low <= min(drawn[name]) < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < max(drawn[name]) <= high
    assert plan_image((8, 8), [ColorJitter(None)], rng()) == [Geometry.of(8, 8)]


def test_a_crop_after_colors_is_a_step_of_its_own():
    pixels = make_pixels(20, 30)
    colored = made(pixels, ColorJitter(None, contrast=(0.5, 0.5)))
    got = made(pixels, ColorJitter(None, contrast=(0.5, 0.5)), CenterCrop(None, 8), RandomFlip(None, p=1))
    np.testing.assert_array_equal(got, colored[6:14, 11:19][:, ::-1])
