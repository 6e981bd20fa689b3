"""`resample`: its twin is Pillow, bit for bit, and the kernel is its twin."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuloader.kernels.normalize import normalize
from gpuloader.kernels.resample import GEOMETRY, resample, resize_on_host
from tests.kernels.cases import RESAMPLE, boxes, check_agreement, make_batch, make_picture
from tests.kernels.shim import examples

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def resize_by_pillow(picture, box, size, interpolation, window=None):
    """Return what two one-dimensional calls of Pillow make of a box, the first along x."""
    left, top, right, bottom = box
    tall, wide, y, x = (*size, 0, 0) if window is None else window
    image = Image.fromarray(picture.squeeze(2) if picture.shape[2] == 1 else picture)
    across = image.resize((wide, image.height), FILTERS[interpolation], (left, 0, right, image.height))
    both = across.resize((wide, tall), FILTERS[interpolation], (0, top, wide, bottom))
    both = both.crop((x, y, x + size[1], y + size[0]))  # black outside
    return np.asarray(both).reshape(*size, picture.shape[2])


@given(
    case=boxes(),
    channels=st.sampled_from([1, 3]),
    interpolation=st.sampled_from(list(FILTERS)),
    seed=st.integers(0, 9),
)
@example(((3, 3000), (0, 0, 3000, 3), (2, 2), None), 1, "bicubic", 0)
@example(((500, 375), (10.5, 3, 300.25, 499), (224, 224), None), 3, "bilinear", 0)
@examples(150)
def test_the_twin_is_pillow(case, channels, interpolation, seed):
    (height, width), box, size, window = case
    picture = make_picture(height, width, channels, seed)
    found = resize_on_host(picture, np.float32(box).tolist(), size, interpolation, window)
    np.testing.assert_array_equal(found, resize_by_pillow(picture, box, size, interpolation, window))


def check(arguments, **options):
    """Return what launcher and twin make of the arguments; raise unless it is the same."""
    return check_agreement(RESAMPLE, arguments | options, [0] * 4, given_out=True)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(
    ("height", "width", "size"),
    [
        (500, 375, (224, 224)),  # the usual: a tile at once
        (3, 40, (70, 90)),  # more tiles than one each way, larger than the picture
        (900, 30, (20, 40)),  # a tile's input rows do not fit: fewer rows at once
        (9000, 3, (2, 40)),  # the rows of one output do not fit: sums continue
        (3, 4000, (4, 33)),  # the weights of a tile's columns do not fit: fewer at once
        (2, 9000, (2, 2)),  # nor those of one column: each is computed when it is used
        (9000, 2, (2, 2)),
    ],
)
def test_they_agree_at_any_scale(device, height, width, size, interpolation):
    device.shape = (2, 1), (64,)
    picture = make_picture(height, width, 3, 1)
    box = 0.25, 0, width, height - 0.5
    arguments = make_batch([picture], [(*box, *size, 0, 0, 0)], size)
    found = check(arguments, interpolation=interpolation, dtype="uint8", out_layout="HWC")
    np.testing.assert_array_equal(found[0], resize_by_pillow(picture, box, size, interpolation))


@pytest.mark.parametrize(
    ("picture", "box", "size"),
    [
        ((2, 5, 3), (0, 0, 5, 2), (3, 3)),  # a word more than the pixels of eight taps does not fit
        ((1, 1, 3), (0, 0, 1, 1), (2, 2)),
        ((2, 3, 1), (0, 0, 3, 2), (4, 4)),
        ((32, 32, 3), (5, 17, 14, 25), (224, 224)),  # fewer input rows than a block has warps
        ((28, 28, 1), (3, 14, 12, 22), (224, 224)),
        ((40, 500, 1), (0, 0, 500, 40), (20, 4000)),
    ],
)
def test_they_agree_where_the_array_ends(device, picture, box, size):
    device.shape = (2, 1), (256,)
    picture = make_picture(*picture, 5)
    check(make_batch([picture], [(*box, *size, 0, 0, 0)], size), interpolation="bicubic", dtype="uint8")


@pytest.mark.parametrize(
    ("width", "box", "outputs"),
    [(7, (1.169, 0, 10.7153, 1), 3), (6, (4.085386, 0, 8.579587, 1), 2), (1, (0, 0, 4, 1), 8)],
)
def test_they_agree_on_a_box_beyond_the_image(device, width, box, outputs):
    device.shape = (1, 1), (32,)
    picture, size = make_picture(1, width, 3, 2), (1, outputs)
    check(make_batch([picture], [(*box, *size, 0, 0, 0)], size), interpolation="bicubic", dtype="uint8")


@given(case=boxes(200, 60), interpolation=st.sampled_from(list(FILTERS)))
@examples(40)
def test_only_the_region_that_the_result_needs_has_to_be_there(device, case, interpolation):
    (height, width), box, size, window = case
    device.shape = (1, 1), (32,)
    picture = make_picture(height, width, 3, 7)
    whole = make_batch([picture], [(*box, *(window or (*size, 0, 0)), 0)], size)
    expected = resample.on_host(**whole, interpolation=interpolation)
    tall, wide, y, x = window or (*size, 0, 0)
    reach = 2 if interpolation == "bicubic" else 1
    top, bottom = find_extent(box[1], box[3], tall, range(max(y, 0), min(y + size[0], tall)), reach, height)
    left, right = find_extent(box[0], box[2], wide, range(max(x, 0), min(x + size[1], wide)), reach, width)
    part = np.ascontiguousarray(picture[top:bottom, left:right])
    if part.size:
        batch = make_batch([part], [(*box, tall, wide, y, x, 0)], size)
        batch["geometry"][0, 2:4] = top, left
        found = check(batch, interpolation=interpolation)
        assert found.tobytes() == expected.tobytes()


def find_extent(low, high, whole, outputs, reach, length):
    """Return the first pixel that the outputs depend on, and the one after the last."""
    scale = float(np.float32(high) - np.float32(low)) / whole
    support = reach * max(scale, 1)
    first = low + (outputs.start + 0.5) * scale - support + 0.5
    last = low + (outputs.stop - 0.5) * scale + support + 0.5
    return max(int(first), 0), min(int(last), length)


def test_pictures_are_normalized_as_by_normalize(device):
    device.shape = None
    pictures = [make_picture(height, 20, 3, height) for height in (9, 31)]
    places = (0, 0, 20, 9, 12, 10, 0, 0), (3, 4, 10, 30, 12, 10, 0, 0)
    arguments = make_batch(pictures, [(*box, 0) for box in places], (12, 10))
    mirrored = make_batch(pictures, [(*places[0], 1), (*places[1], 2)], (12, 10))
    numbers = {"mean": [0.1, 0.2, 0.3], "std": [1, 2, 3], "scale": 1 / 255}
    found = check(mirrored, **numbers)
    plain = resample.on_host(**arguments, dtype="uint8", out_layout="HWC")
    turned = np.stack([plain[0, :, ::-1], plain[1, ::-1]])
    assert found.tobytes() == normalize.on_host(turned, **numbers).tobytes()
    assert device.launches[-1][:3] == ("resample<3, float>", (1, 2), (256,))


def test_further_columns_of_geometry_are_not_read(device):
    device.shape = None
    places = [(0, 0, 5, 4, 3, 3, 0, 0, 0), (1, 0, 4, 3, 3, 3, 0, 0, 1)]
    batch = make_batch([make_picture(4, 5, 3, seed) for seed in range(2)], places, (3, 3))
    wide = batch | {"geometry": np.pad(batch["geometry"], ((0, 0), (0, 4)), constant_values=9)}
    expected = resample.on_host(**batch, dtype="uint8")
    assert check(wide, dtype="uint8").tobytes() == expected.tobytes()


def test_an_impossible_picture_is_black(device):
    device.shape = None
    good = make_batch([make_picture(4, 5, 1, 0)], [(0, 0, 5, 4, 3, 3, 0, 0, 0)], (3, 3))
    assert check(good, dtype="uint8").any()
    for splits in ([1, 21], [-1, 20], [3, 20], [20, 0]):
        assert not check(good | {"row_splits": np.array(splits)}, dtype="uint8").any()
    wrong = {"height": 5, "width": -5, "top": np.nan, "left": 5, "tall": 0, "turn": 4, "y": np.inf, "row": 40}
    for name, number in wrong.items():
        geometry = good["geometry"].copy()
        geometry[0, GEOMETRY.index(name)] = number
        assert not check(good | {"geometry": geometry}, dtype="uint8").any()
