"""`resample`: its twin is Pillow, bit for bit, and the kernel is its twin."""

import os

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuloader.kernels.normalize import normalize_on_host
from gpuloader.kernels.resample import GEOMETRY, resample, resample_on_host, resize_on_host
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

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
CHANNELS = st.sampled_from([1, 3])
DTYPES = ["float32", "float16", "bfloat16", "uint8"]


def make_picture(height, width, channels, seed):
    """Return a picture whose neighboring pixels differ strongly, so that sums overshoot."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, channels))
    return np.where(noise > 170, 255, np.where(noise < 80, 0, noise)).astype(np.uint8)


def resize_by_pillow(picture, box, size, interpolation, window=None):
    """Return what two one-dimensional calls of Pillow make of a box, the first along x."""
    left, top, right, bottom = box
    tall, wide, y, x = (*size, 0, 0) if window is None else window
    image = Image.fromarray(picture.squeeze(2) if picture.shape[2] == 1 else picture)
    across = image.resize((wide, image.height), FILTERS[interpolation], (left, 0, right, image.height))
    both = across.resize((wide, tall), FILTERS[interpolation], (0, top, wide, bottom))
    both = both.crop((x, y, x + size[1], y + size[0]))  # black outside
    return np.asarray(both).reshape(*size, picture.shape[2])


CASES = int(os.environ.get("GPULOADER_CASES", "60"))
"""How many cases compare the kernel with Pillow."""


@st.composite
def edges(draw, length):
    """Return the ends of a box along one axis, of whole pixels or with fractions."""
    whole = draw(st.booleans())
    number = st.integers(0, length) if whole else st.floats(0, length, width=32, allow_subnormal=False)
    low, high = sorted((draw(number), draw(number)))
    if np.float32(high) - np.float32(low) < 1e-3:
        low, high = 0, length
    return float(low), float(high)


@st.composite
def cases(draw, longest=70, largest=50):
    """Return a picture's size, a box in it, an output size, and a window of the resized box or None."""
    lengths, outputs = st.integers(1, longest), st.integers(1, largest)
    height, width = draw(lengths), draw(lengths)
    (left, right), (top, bottom) = draw(edges(width)), draw(edges(height))
    size = draw(outputs), draw(outputs)
    window = None
    if draw(st.booleans()):
        whole = draw(outputs), draw(outputs)
        window = [*whole, *(draw(st.integers(-9, one + 9)) for one in whole)]
    return (height, width), (left, top, right, bottom), size, window


@given(
    case=cases(),
    channels=CHANNELS,
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


@given(
    case=cases(200, 120),
    channels=CHANNELS,
    interpolation=st.sampled_from(list(FILTERS)),
    seed=st.integers(0, 9),
    shape=launch_shapes(1),
)
@examples(CASES)
def test_the_kernel_is_pillow(device, case, channels, interpolation, seed, shape):
    device.shape = shape or ((1, 1), (32,))
    (height, width), box, size, window = case
    picture = make_picture(height, width, channels, seed)
    batch = make_batch([picture], [(*box, *(window or (*size, 0, 0)), 0)], size)
    arrays = [place(batch[name]) for name in ("values", "row_splits", "geometry")]
    found = resample(*arrays, size, interpolation=interpolation, dtype="uint8", out_layout="HWC")
    expected = resize_by_pillow(picture, box, size, interpolation, window)
    np.testing.assert_array_equal(read(found)[0], expected)


def make_batch(pictures, geometry, size):
    """Return the arguments of `resample` for whole pictures, and box, window and turn of each."""
    sizes = [picture.shape[:2] for picture in pictures]
    channels = pictures[0].shape[2] if pictures else 3
    rows = [(*whole, 0, 0, *rest) for whole, rest in zip(sizes, geometry, strict=True)]
    return {
        "values": np.concatenate(
            [np.zeros((0, channels), np.uint8), *(one.reshape(-1, channels) for one in pictures)]
        ),
        "row_splits": np.cumsum([0, *(height * width for height, width in sizes)]).astype(np.int64),
        "geometry": np.array(rows, np.float32).reshape(len(rows), 13),
        "size": size,
    }


@st.composite
def batches(draw):
    """Return the arguments of `resample` for several pictures, of which some may be impossible."""
    samples, channels = draw(st.integers(0, 3)), draw(CHANNELS)
    size = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    pictures, geometry = [], []
    for number in range(samples):
        (height, width), box, _, window = draw(cases(70, 40))
        pictures.append(make_picture(height, width, channels, number))
        geometry.append((*box, *(window or (*size, 0, 0)), draw(st.integers(0, 3))))
    arguments = make_batch(pictures, geometry, size)
    if samples and draw(st.integers(0, 3)) == 0:  # an impossible number: nothing outside may be read
        name = draw(st.sampled_from(["row_splits", "geometry"]))
        array = arguments[name].reshape(-1)
        wrong = st.integers(-(2**40), 2**40) | st.integers(-3, 90)
        if name == "geometry":
            wrong = st.floats(width=32) | st.sampled_from([-1, 0, np.inf, np.nan, 0.5, 2**24, 2**25])
        array[draw(st.integers(0, array.size - 1))] = draw(wrong)
    return arguments


def check_agreement(device, arguments, offset=(0, 0), **options):
    expected = resample_on_host(**arguments, **options)
    out = Placed(np.zeros_like(expected), offset[1] * expected.itemsize)
    placed = {
        name: place(value) if isinstance(value, np.ndarray) else value for name, value in arguments.items()
    }
    placed["values"] = place(arguments["values"], offset[0])
    check_result(resample(**placed, **options, out=out.array), expected, out, given_out=True)
    return expected


@given(
    arguments=batches(),
    interpolation=st.sampled_from(list(FILTERS)),
    out_layout=st.sampled_from(["CHW", "HWC"]),
    dtype=st.sampled_from(DTYPES),
    offset=offsets(2),
    shape=launch_shapes(1),
)
@examples(80)
def test_the_launcher_and_its_twin_agree(device, arguments, interpolation, out_layout, dtype, offset, shape):
    device.shape = shape
    channels = arguments["values"].shape[1]
    norm = {} if dtype == "uint8" else {"mean": np.arange(channels) / 9, "std": 0.3, "scale": 1 / 255}
    options = {"interpolation": interpolation, "out_layout": out_layout, "dtype": dtype, **norm}
    check_agreement(device, arguments, offset, **options)


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
    found = check_agreement(device, arguments, interpolation=interpolation, dtype="uint8", out_layout="HWC")
    np.testing.assert_array_equal(found[0], resize_by_pillow(picture, box, size, interpolation))


@given(case=cases(200, 60), interpolation=st.sampled_from(list(FILTERS)))
@examples(40)
def test_only_the_region_that_the_result_needs_has_to_be_there(device, case, interpolation):
    (height, width), box, size, window = case
    device.shape = (1, 1), (32,)
    picture = make_picture(height, width, 3, 7)
    whole = make_batch([picture], [(*box, *(window or (*size, 0, 0)), 0)], size)
    expected = resample_on_host(**whole, interpolation=interpolation)
    tall, wide, y, x = window or (*size, 0, 0)
    reach = 2 if interpolation == "bicubic" else 1
    top, bottom = find_extent(box[1], box[3], tall, range(max(y, 0), min(y + size[0], tall)), reach, height)
    left, right = find_extent(box[0], box[2], wide, range(max(x, 0), min(x + size[1], wide)), reach, width)
    part = np.ascontiguousarray(picture[top:bottom, left:right])
    if part.size:
        batch = make_batch([part], [(*box, tall, wide, y, x, 0)], size)
        batch["geometry"][0, 2:4] = top, left
        found = check_agreement(device, batch, interpolation=interpolation)
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
    boxes = (0, 0, 20, 9, 12, 10, 0, 0), (3, 4, 10, 30, 12, 10, 0, 0)
    arguments = make_batch(pictures, [(*box, 0) for box in boxes], (12, 10))
    mirrored = make_batch(pictures, [(*boxes[0], 1), (*boxes[1], 2)], (12, 10))
    numbers = {"mean": [0.1, 0.2, 0.3], "std": [1, 2, 3], "scale": 1 / 255}
    found = check_agreement(device, mirrored, **numbers)
    plain = resample_on_host(**arguments, dtype="uint8", out_layout="HWC")
    turned = np.stack([plain[0, :, ::-1], plain[1, ::-1]])
    assert found.tobytes() == normalize_on_host(turned, **numbers).tobytes()
    assert device.launches[-1][:3] == ("resample<3, float>", (1, 2), (256,))


def test_further_columns_of_geometry_are_not_read(device):
    device.shape = None
    boxes = [(0, 0, 5, 4, 3, 3, 0, 0, 0), (1, 0, 4, 3, 3, 3, 0, 0, 1)]
    batch = make_batch([make_picture(4, 5, 3, seed) for seed in range(2)], boxes, (3, 3))
    wide = batch | {"geometry": np.pad(batch["geometry"], ((0, 0), (0, 4)), constant_values=9)}
    expected = resample_on_host(**batch, dtype="uint8")
    assert check_agreement(device, wide, dtype="uint8").tobytes() == expected.tobytes()


def test_an_impossible_picture_is_black(device):
    device.shape = None
    good = make_batch([make_picture(4, 5, 1, 0)], [(0, 0, 5, 4, 3, 3, 0, 0, 0)], (3, 3))
    assert check_agreement(device, good, dtype="uint8").any()
    for splits in ([1, 21], [-1, 20], [3, 20], [20, 0]):
        assert not check_agreement(device, good | {"row_splits": np.array(splits)}, dtype="uint8").any()
    wrong = {"height": 5, "width": -5, "top": np.nan, "left": 5, "tall": 0, "turn": 4, "y": np.inf, "row": 40}
    for name, number in wrong.items():
        geometry = good["geometry"].copy()
        geometry[0, GEOMETRY.index(name)] = number
        assert not check_agreement(device, good | {"geometry": geometry}, dtype="uint8").any()


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"values": np.zeros(20, np.uint8)}, ValueError, r"values must have shape \(any, any\)"),
        ({"values": np.zeros((20, 3), np.int8)}, TypeError, "values must have dtype uint8, got int8"),
        ({"values": np.zeros((20, 2), np.uint8)}, ValueError, "values must have 1 or 3 channels"),
        ({"row_splits": np.array([0])}, ValueError, r"row_splits must have shape \(2,\)"),
        ({"geometry": np.zeros((1, 13))}, TypeError, "geometry must have dtype float32, got float64"),
        (
            {"geometry": np.zeros((1, 4), np.float32)},
            ValueError,
            "geometry must have 13 columns or more, got",
        ),
        ({"size": 3}, ValueError, r"size must be \(height, width\), got 3"),
        ({"size": (3, -1)}, ValueError, "width in size must be from 0"),
        ({"interpolation": "nearest"}, ValueError, "interpolation must be 'bilinear' or 'bicubic'"),
        ({"out_layout": "NHWC"}, ValueError, "out_layout must be 'HWC' or 'CHW'"),
        ({"dtype": "float64"}, TypeError, "dtype must be one of float16, bfloat16, float32, uint8"),
        ({"dtype": "uint8", "mean": 3}, ValueError, "a result of dtype uint8 is not normalized"),
        ({"std": 0}, ValueError, "std must be finite and not 0"),
    ],
)
def test_launcher_and_twin_refuse_alike(device, change, error, problem):
    whole = make_batch([make_picture(4, 5, 3, 0)], [(0, 0, 5, 4, 3, 3, 0, 0, 0)], (3, 3))
    arguments = whole | change
    check_refusal(resample, resample_on_host, arguments, error, problem)


def test_without_out_a_new_array_is_made(device):
    device.shape = None
    batch = make_batch([np.full((2, 3, 1), 9, np.uint8)], [(0, 0, 3, 2, 1, 1, 0, 0, 0)], (1, 1))
    arrays = [place(batch[name]) for name in ("values", "row_splits", "geometry")]
    assert read(resample(*arrays, (1, 1), mean=8)).tolist() == [[[[1.0]]]]
