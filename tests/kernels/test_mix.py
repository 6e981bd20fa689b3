"""`blend`, `paste` and `mix_labels`: each rounding is NumPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.kernels.cast import INTEGERS, round_to
from gpuloader.kernels.mix import (
    blend,
    blend_on_host,
    mix_labels,
    mix_labels_on_host,
    paste,
    paste_on_host,
)
from tests.kernels.shim import (
    Placed,
    as_floats,
    check_refusal,
    check_result,
    examples,
    launch_shapes,
    offsets,
    place,
    read,
    same_bits,
)

FLOATS = ["float16", "float32", "float64"]
SHARES = st.floats(0, 1, width=32) | st.sampled_from([0.0, 1.0, 1e-40])


def as_images(floats, dtype):
    """Return floats in a dtype; those of bfloat16 as its bits."""
    return round_to(floats, dtype) if dtype == "bfloat16" else floats


def make_mix(samples, share, window=(0, 0, 0, 0)):
    """Return a mix as it is drawn: the same in each row, of which only the first is read."""
    mix = np.full((samples, 5), 2**31 - 1, np.int32)
    mix[:1] = *window, np.float32(share).view(np.int32)
    return mix


def make_floats(shape, dtype, seed):
    """Return floats of all exponents that the dtype has, subnormal ones and zeros of both signs included."""
    dtype = "float32" if dtype == "bfloat16" else dtype
    draw, kind = np.random.default_rng(seed), np.finfo(dtype)
    exponents = draw.integers(kind.minexp - kind.nmant, kind.maxexp - 1, shape)
    signs = draw.choice([-1.0, 1.0, 0.0, -0.0], shape)
    return (signs * np.ldexp(draw.uniform(0.5, 1, shape), exponents)).astype(dtype)


@given(
    samples=st.integers(0, 4),
    rest=st.lists(st.integers(0, 6), max_size=3),
    dtype=st.sampled_from([*FLOATS, "bfloat16"]),
    share=SHARES,
    seed=st.integers(0, 99),
    offset=offsets(2),
    shape=launch_shapes(1),
)
@examples(80)
def test_a_blend_and_its_twin_agree(device, samples, rest, dtype, share, seed, offset, shape):
    device.shape = shape
    images, mix = as_images(make_floats((samples, *rest), dtype, seed), dtype), make_mix(samples, share)
    options = {"dtype": dtype} if dtype == "bfloat16" or seed % 2 else {}
    expected = blend_on_host(images, mix, **options)
    out = Placed(np.zeros_like(images), offset[1] * images.itemsize)
    at = place(images, offset[0] * images.itemsize)
    check_result(blend(at, place(mix), out=out.array, **options), expected, out, given_out=True)


def test_a_blend_of_bfloat16_is_one_of_floats_rounded():
    floats = as_floats(as_images(make_floats((4, 50), "float32", 3), "bfloat16"))
    mix = make_mix(4, 0.3)
    found = blend_on_host(as_images(floats, "bfloat16"), mix, dtype="bfloat16")
    np.testing.assert_array_equal(found, round_to(blend_on_host(floats, mix), "bfloat16"))


@given(dtype=st.sampled_from(FLOATS), share=SHARES, seed=st.integers(0, 99))
@examples(50)
def test_a_blend_rounds_each_operation(dtype, share, seed):
    images = make_floats((3, 8), dtype, seed)
    own = np.float32(share).astype("float64" if dtype == "float64" else "float32")
    before = np.float32(1) - np.float32(share)
    rows = images.astype(own.dtype)
    expected = [rows[one - 1] * before.astype(own.dtype) + rows[one] * own for one in range(3)]
    same_bits(blend_on_host(images, make_mix(3, share)), np.stack(expected).astype(dtype))


@st.composite
def pictures(draw):
    samples, channels = draw(st.integers(0, 3)), draw(st.integers(1, 5))
    height, width = draw(st.integers(0, 9)), draw(st.integers(0, 13))
    layout = draw(st.sampled_from(["HWC", "CHW"]))
    shape = (samples, height, width, channels) if layout == "HWC" else (samples, channels, height, width)
    images = np.zeros(shape, draw(st.sampled_from(["bool", "uint8", "float16", "int32", "float64"])))
    images.reshape(-1).view(np.uint8)[:] = np.arange(images.nbytes) % (2 if images.dtype == "bool" else 251)
    ends = st.integers(-3, 14) | st.sampled_from([-(2**31), 2**31 - 1])
    return images, [draw(ends) for _ in range(4)], layout


@given(problem=pictures(), offset=offsets(2), shape=launch_shapes(1))
@examples(80)
def test_a_paste_and_its_twin_agree(device, problem, offset, shape):
    device.shape = shape
    images, window, layout = problem
    mix = make_mix(len(images), 0.5, window)
    expected = paste_on_host(images, mix, layout=layout)
    out = Placed(np.zeros_like(images), offset[1] * images.itemsize)
    at = place(images, offset[0] * images.itemsize)
    result = paste(at, place(mix), layout=layout, out=out.array)
    check_result(result, expected, out, given_out=True)


def test_a_window_is_that_of_the_image_before():
    images = np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 1, 2, 4)
    expected = images.copy()
    expected[:, 0, 1, 2:] = images[[2, 0, 1], 0, 1, 2:]
    found = paste_on_host(images, make_mix(3, 0.5, (1, 2, 2, 4)))
    np.testing.assert_array_equal(found, expected)


@st.composite
def labels(draw):
    samples, classes = draw(st.integers(0, 5)), draw(st.integers(0, 9))
    dtype = draw(st.sampled_from([*INTEGERS, *FLOATS]))
    if dtype in FLOATS:
        return make_floats((samples, classes), dtype, draw(st.integers(0, 99))), classes
    limits = np.iinfo(dtype)
    numbers = st.integers(0, 10) | st.sampled_from([limits.min, limits.max])
    return np.array(draw(st.lists(numbers, min_size=samples, max_size=samples)), dtype), classes


@given(problem=labels(), share=SHARES, offset=offsets(2), shape=launch_shapes(1))
@examples(80)
def test_mixed_labels_and_their_twin_agree(device, problem, share, offset, shape):
    device.shape = shape
    given_labels, classes = problem
    mix = make_mix(len(given_labels), share)
    with np.errstate(over="ignore"):  # doubles that floats cannot hold
        expected = mix_labels_on_host(given_labels, mix, classes=classes)
    out = Placed(np.zeros_like(expected), offset[1] * 4)
    at = place(given_labels, offset[0] * given_labels.itemsize)
    result = mix_labels(at, place(mix), classes=classes, out=out.array)
    check_result(result, expected, out, given_out=True)


def test_labels_and_rows_of_shares_are_mixed_alike():
    mix = make_mix(3, 0.3)
    whole = mix_labels_on_host(np.array([2, 0, 5]), mix, classes=3)
    rows = np.array([[0, 0, 1], [1, 0, 0], [0, 0, 0]], np.float32)
    same_bits(mix_labels_on_host(rows, mix, classes=3), whole)
    np.testing.assert_allclose(whole, [[0, 0, 0.3], [0.3, 0, 0.7], [0.7, 0, 0]], rtol=1e-6)


def test_arrays_are_made_if_none_are_given(device):
    device.shape = None
    images, mix = np.ones((2, 1, 3, 3), np.float32), make_mix(2, 0.25)
    assert read(blend(place(images), place(mix))).sum() == 18
    assert read(paste(place(images), place(mix))).sum() == 18
    assert read(mix_labels(place(np.array([0, 1])), place(mix), classes=2))[1].tolist() == [0.75, 0.25]
    assert [entry for entry, *_ in device.launches[-3:]] == [
        "blend<float>",
        "paste<unsigned int>",
        "mix_labels<long long>",
    ]


IMAGES = {"images": np.zeros((2, 3, 4, 5), np.float32), "mix": np.zeros((2, 5), np.int32)}
MIX = [
    ({"mix": np.zeros((2, 4), np.int32)}, ValueError, r"mix must have shape \(2, 5\)"),
    ({"mix": np.zeros((2, 5))}, TypeError, "mix must have dtype int32, got float64"),
]


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"images": np.zeros((2, 3), np.uint8)}, TypeError, "images must have dtype float16 or"),
        ({"images": np.array(1.0)}, ValueError, "images must have at least one dimension"),
        ({"dtype": "bfloat16"}, TypeError, "images must have dtype uint16, got float32"),
        ({"dtype": "uint16"}, TypeError, "dtype must be one of float16, bfloat16, float32, float64"),
        *MIX,
    ],
)
def test_blends_are_refused_alike(device, change, error, problem):
    check_refusal(blend, blend_on_host, IMAGES | change, error, problem)


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"images": np.zeros((2, 3), np.uint8)}, ValueError, "images must have shape"),
        ({"images": np.zeros((2, 3, 4, 5), complex)}, TypeError, "numbers of 1, 2, 4 or 8 bytes"),
        ({"images": np.zeros((2, 0, 4, 5))}, ValueError, "at least 1 channel"),
        ({"layout": "NCHW"}, ValueError, "layout must be 'HWC' or 'CHW'"),
        *MIX,
    ],
)
def test_pastes_are_refused_alike(device, change, error, problem):
    check_refusal(paste, paste_on_host, IMAGES | change, error, problem)


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"labels": np.zeros(2, bool)}, TypeError, "labels must have dtype uint8 or"),
        ({"labels": np.zeros((2, 3), np.int64)}, TypeError, "labels must have dtype float16 or"),
        ({"labels": np.zeros((2, 4), np.float32)}, ValueError, r"labels must have shape \(any, 3\)"),
        ({"classes": -1}, ValueError, "classes must be from 0"),
        *MIX,
    ],
)
def test_labels_are_refused_alike(device, change, error, problem):
    arguments = {"labels": np.array([0, 2]), "mix": np.zeros((2, 5), np.int32), "classes": 3} | change
    check_refusal(mix_labels, mix_labels_on_host, arguments, error, problem)
