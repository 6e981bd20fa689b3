"""Images are resampled as Pillow does it: first the columns, then the rows."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuloader.sources.images import resampling
from gpuloader.sources.images.image import Geometry, Image
from gpuloader.sources.images.resampling import apply_geometry, as_pixels
from gpuloader.sources.images.turbojpeg import load_turbojpeg
from tests.picture_files import encode, make_pixels, pillow

FILTERS = {"bilinear": pillow.Resampling.BILINEAR, "bicubic": pillow.Resampling.BICUBIC}


def by_pillow(pixels, box, size, kind):
    """Resize the whole image in two steps, without any of our shortcuts."""
    (left, top, right, bottom), (height, width), kind = box, size, FILTERS[kind]
    image = pillow.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image = image.resize((width, image.height), kind, (left, 0, right, image.height))
    return as_pixels(image.resize((width, height), kind, (0, top, width, bottom)))


@st.composite
def cases(draw):
    """Draw pixels, a geometry that resizes a part of them and cuts a window, and that without the window."""
    height, width = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    tall, wide = draw(st.integers(1, height)), draw(st.integers(1, width))
    top, left = draw(st.integers(0, height - tall)), draw(st.integers(0, width - wide))
    size = draw(st.integers(1, 50)), draw(st.integers(1, 50))
    window = draw(st.integers(-3, size[0])), draw(st.integers(-3, size[1]))
    window += draw(st.tuples(*[st.integers(1, 50)] * 2))
    part = Geometry.of(height, width).cut(top, left, tall, wide)
    resized = part.resized(size, draw(st.sampled_from(sorted(FILTERS))), scaled=draw(st.booleans()))
    return make_pixels(height, width, draw(st.sampled_from([1, 3]))), resized.cut(*window), resized


# The fixture does not depend on the example.
SAME_WAY = [HealthCheck.function_scoped_fixture]


@settings(suppress_health_check=SAME_WAY)
@given(cases(), st.booleans(), st.booleans())
def test_a_window_of_a_resized_part_equals_pillows(way, case, flip, flop):
    pixels, geometry, _ = case
    size, (top, left, tall, wide) = geometry.size, geometry.window
    whole = by_pillow(pixels, geometry.box, size, geometry.filter)
    expected = np.zeros((tall, wide, pixels.shape[2]), np.uint8)  # what lies outside is black
    first, last = max(top, 0), max(min(top + tall, size[0]), 0)
    near, far = max(left, 0), max(min(left + wide, size[1]), 0)
    seen = whole[first:last, near:far]
    if seen.size:
        expected[first - top : last - top, near - left : far - left] = seen
    expected = expected[:, ::-1] if flip else expected
    expected = expected[::-1] if flop else expected
    for image in (pixels, pillow.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)):
        got = as_pixels(apply_geometry(image, geometry.mirrored(flip=flip, flop=flop)))
        np.testing.assert_array_equal(got, expected)


@given(cases(), st.integers(1, 3000))
def test_large_images_are_resampled_in_strips(case, strip):
    pixels, geometry, _ = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resampling, "_STRIP", strip)
        got = as_pixels(apply_geometry(pixels, geometry))
    np.testing.assert_array_equal(got, as_pixels(apply_geometry(pixels, geometry)))


@settings(suppress_health_check=SAME_WAY)
@given(cases())
def test_the_region_is_all_that_the_result_depends_on(way, case):
    pixels, geometry, _ = case
    first, near, last, far = geometry.find_region()
    changed = 255 - pixels
    changed[first:last, near:far] = pixels[first:last, near:far]
    got, expected = apply_geometry(changed, geometry), apply_geometry(pixels, geometry)
    np.testing.assert_array_equal(as_pixels(got), as_pixels(expected))


def test_without_resizing_pixels_are_copied_and_mirroring_comes_last():
    pixels, whole = make_pixels(9, 11), Geometry.of(9, 11)
    part = whole.cut(2, 3, 4, 5).mirrored(flip=True).cut(1, 0, 2, 2)
    turned = whole.mirrored(flip=True, flop=True)
    assert part.window == (3, 6, 2, 2)
    for geometry, expected in (
        (part, pixels[3:5, 6:8][:, ::-1]),
        (turned, pixels[::-1, ::-1]),
        (turned.cut(0, 0, 3, 3), pixels[::-1, ::-1][:3, :3]),
    ):
        np.testing.assert_array_equal(as_pixels(apply_geometry(pixels, geometry)), expected)
    assert turned.mirrored(flip=True, flop=True) == whole


@settings(suppress_health_check=SAME_WAY)
@given(cases(), st.sampled_from([None, 0.5, 1.5]))
def test_what_is_decoded_in_part_is_resampled_like_the_whole(way, case, edge):
    pixels, cut, geometry = case
    image = Image(encode(np.broadcast_to(pixels, (*pixels.shape[:2], 3)), quality=90, subsampling=2))
    left, top, right, bottom = geometry.box
    if edge is not None and edge / 3 < min(right - left, bottom - top):
        # A box between pixels, as that of an image that the decoder has shrunk.
        geometry = geometry._replace(box=(left + edge / 3, top + edge / 3, right, bottom))
    geometry = geometry.cut(*cut.window).mirrored(flip=True)
    shrink, shrunk = image.plan_decoding(geometry)
    expected = resampling.apply_by_pillow(np.array(image.decode_at(shrink)), shrunk)
    np.testing.assert_array_equal(as_pixels(apply_geometry(image, geometry)), as_pixels(expected))


@pytest.mark.parametrize("size", [(700, 900), (1, 3000), (3000, 1)], ids=str)
@pytest.mark.parametrize("target", [(1, 1), (64, 3), (3, 200), (150, 150)], ids=str)
@pytest.mark.parametrize("kind", FILTERS)
def test_large_images_of_any_scale(way, size, target, kind):
    pixels = make_pixels(*size)
    geometry = Geometry.of(*size).resized(target, kind)
    expected = by_pillow(pixels, geometry.box, target, kind)
    np.testing.assert_array_equal(as_pixels(apply_geometry(pixels, geometry)), expected)


@pytest.mark.parametrize("is_small", [False, True])
def test_only_the_part_is_decoded(is_small, way, monkeypatch):
    library = load_turbojpeg()
    if library is None:
        pytest.skip("TurboJPEG 3 is not installed")
    seen, decode_part = [], library.decode_part

    def note(data, part, shrink, out):
        seen.append(out.shape)
        return decode_part(data, part, shrink, out)

    monkeypatch.setattr(library, "decode_part", note)
    monkeypatch.setattr(resampling, "_PART_FROM", 160 * 200 + is_small)
    image = Image(encode(make_pixels(160, 200)))
    apply_geometry(image, Geometry.of(160, 200).cut(60, 70, 50, 40).resized((20, 20), "bilinear"))
    if way == "compiled" and not is_small:
        [(height, width, _)] = seen
        assert 50 < height < 60
        assert 40 < width < 80
    else:
        assert not seen
