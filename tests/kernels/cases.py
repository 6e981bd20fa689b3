"""A case for each declared kernel: what it takes, and what it refuses. `test_conformance` runs them."""

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpuloader.kernels.cast import _SOURCES, _TARGETS, FLOATS, INTEGERS, NUMPY_FLOATS, cast, round_to
from gpuloader.kernels.compiler import CPP_TYPES
from gpuloader.kernels.crop import crop, erase
from gpuloader.kernels.gather import gather
from gpuloader.kernels.launching import Kernel
from gpuloader.kernels.mixup import blend, mix_labels, paste
from gpuloader.kernels.normalize import normalize
from gpuloader.kernels.one_hot import one_hot
from gpuloader.kernels.pad import pad
from gpuloader.kernels.recolor import recolor
from gpuloader.kernels.resample import TABLE_LINES, resample
from gpuloader.kernels.shuffle import shuffle
from gpuloader.transforms.image_transforms import CHANGES
from tests.kernels.shim import Placed, as_floats, built_entries, launch_shapes, read, same_bits


@dataclass(eq=False)
class Case:
    """A kernel, and arguments for it."""

    kernel: Kernel
    count: int  # how many problems to try
    shapes: st.SearchStrategy  # grids and blocks that the kernel takes; None is the launcher's own
    problems: st.SearchStrategy  # arguments, by name
    is_exact: bool = True  # whether every bit is the twin's; otherwise, the payloads of NaNs may differ
    is_loud: bool = False  # whether the twin may warn of an overflow
    example: dict[str, Any] = field(default_factory=dict, init=False)  # arguments that are accepted
    refused: list = field(default_factory=list, init=False)  # changes to the example, error, pattern

    @property
    def has_out(self):
        return "out" in inspect.signature(self.kernel).parameters


LAYOUTS = st.sampled_from(["HWC", "CHW"])
BITS = ["bool", "uint8", "int16", "float16", "int32", "float32", "int64", "float64"]
WINDOWS = [
    ({"layout": "NHWC"}, ValueError, "layout must be one of 'HWC', 'CHW', got 'NHWC'"),
    ({"windows": np.zeros((1, 4), np.int32)}, ValueError, r"windows must have shape \([12], [34]\)"),
    ({"windows": np.zeros((2, 5), np.int32)}, ValueError, r"windows must have shape \([12], [34]\)"),
]


def count_up(shape, dtype):
    """Return an array whose bytes count up, so that one out of place is found."""
    array = np.zeros(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = np.arange(array.nbytes) % (2 if array.dtype == "bool" else 251)
    return array


@st.composite
def image_batches(draw, dtypes=BITS):
    """Return images of any layout, and the layout."""
    samples, channels = draw(st.integers(0, 4)), draw(st.integers(1, 5) | st.just(20))
    height, width, layout = draw(st.integers(0, 9)), draw(st.integers(0, 21)), draw(LAYOUTS)
    shape = (samples, height, width, channels) if layout == "HWC" else (samples, channels, height, width)
    return count_up(shape, draw(st.sampled_from(dtypes))), layout, (height, width)


@st.composite
def int32_rows(draw, rows, columns):
    """Return an int32 array of which some numbers reach over the edge of small images, or far out."""
    numbers = st.integers(-3, 14) | st.sampled_from([-(2**31), 2**31 - 1])
    found = draw(st.lists(st.tuples(*[numbers] * columns), min_size=rows, max_size=rows))
    return np.array(found, np.int32).reshape(rows, columns)


# cast


def interesting(dtype):
    """Return numbers around the limits of rounding, wrapping and saturating, and every kind of float."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    exponents = (-149, -140, -133, -126, -25, -24, -14, -1, 0, *range(5, 66), 127)
    steps = (0, 0.5, 1, -1, -0.5)
    numbers = [sign * (2.0**one + step) for one in exponents for step in steps for sign in (1, -1)]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        whole = [int(number) + step for number in numbers for step in (0, 1, -1)]
        return np.array([number for number in whole if limits.min <= number <= limits.max], dtype)
    with np.errstate(all="ignore"):
        near = np.array([*numbers, 65504, 65519.99, 65520, 3.3e38, 1e300, 5e-324, 0.0, -0.0], dtype)
        around = [near, np.nextafter(near, dtype.type(np.inf)), np.nextafter(near, dtype.type(-np.inf))]
    nans = np.array([np.nan, np.inf, -np.inf, -np.nan], dtype)
    # One above infinity, and all ones: NaNs that would become something else if rounded like numbers.
    payloads = np.concatenate([nans[1:3].view(f"u{dtype.itemsize}") + 1, [2 ** (8 * dtype.itemsize) - 1]])
    return np.concatenate([*around, nans, payloads.astype(f"u{dtype.itemsize}").view(dtype)])


def is_built(source, target):
    return f"cast<{CPP_TYPES[source]}, {CPP_TYPES[target]}>" in built_entries("cast")


PAIRS = [(source, target) for source in _SOURCES for target in _TARGETS if is_built(source, target)]


@st.composite
def casts(draw):
    source, target = draw(st.sampled_from(PAIRS))
    bits, size = draw(st.binary(max_size=800)), np.dtype(source).itemsize
    numbers = np.frombuffer(bits[: len(bits) // size * size], "u1" if source == "bool" else source)
    numbers = (numbers % 2).astype(bool) if source == "bool" else numbers
    numbers = numbers.reshape(draw(st.sampled_from([(-1,), (1, -1), (-1, 1)]))) if numbers.size else numbers
    return {"values": numbers, "dtype": target, "scale": draw(st.none() | st.floats(-1000, 1000))}


CAST = Case(cast, 300, launch_shapes(1), casts(), is_exact=False)
# One of the few entries that are built with sanitizers, too.
CAST.example.update({"values": np.arange(24, dtype=np.uint8), "dtype": "float64"})
CAST.refused += [
    ({"values": np.zeros(3, np.complex64)}, TypeError, "values must have dtype bool or .*, got complex64"),
    ({"values": np.zeros(3, "M8[s]"), "dtype": "int64"}, TypeError, "values must have dtype"),
    ({"dtype": "complex64"}, TypeError, "dtype must be one of uint8, .*, float64, got complex64"),
    ({"dtype": "bool"}, TypeError, "dtype must be one of"),
    ({"dtype": "number"}, TypeError, "dtype must be one of uint8, .*, float64, got 'number'"),
    ({"dtype": ">f4"}, TypeError, "dtype must be one of"),
    ({"scale": "2"}, TypeError, "scale must be a number or None, got str"),
    ({"scale": True}, TypeError, "scale must be a number or None, got bool"),
]

# crop and erase


@st.composite
def crops(draw):
    images, layout, (height, width) = draw(image_batches())
    frames = draw(st.sampled_from([one for one in (1, 2, 3) if len(images) % one == 0]))  # of a clip
    windows = draw(int32_rows(len(images) // frames, 3))
    windows[:, 2] &= 1
    size = draw(st.integers(0, height)), draw(st.integers(0, width))
    return {"images": images, "size": size, "windows": windows, "layout": layout}


WIDE = {"images": np.zeros((0, 1, 2**27, 1)), "size": (1, 1), "windows": np.zeros((0, 3), np.int32)}
CROP = Case(crop, 300, launch_shapes(2), crops())
CROP.example.update(
    {"images": count_up((2, 4, 5, 3), np.uint8), "size": (2, 2), "windows": np.zeros((2, 3), np.int32)}
)
CROP.refused += [
    ({"images": np.zeros((2, 4, 5), np.uint8)}, ValueError, "images must have shape"),
    ({"images": np.zeros((2, 4, 5, 3), complex)}, TypeError, "1, 2, 4 or 8 bytes, got complex128"),
    ({"images": np.zeros((2, 4, 5, 0), np.uint8)}, ValueError, "images must have at least 1 channel"),
    ({"size": (5, 5)}, ValueError, "height in size must be from 0 to 4, got 5"),
    ({"size": (4, 6)}, ValueError, "width in size must be from 0 to 5, got 6"),
    ({"size": 4}, ValueError, r"size must be \(height, width\), got 4"),
    (WIDE, ValueError, "rows of images must have fewer than 1073741824 bytes, got 1073741824"),
    ({"windows": np.zeros((2, 3), np.int64)}, TypeError, "windows must have dtype int32, got int64"),
    *WINDOWS,
]


@st.composite
def erasures(draw):
    images, layout, _ = draw(image_batches())
    color = range(images.shape[1 if layout == "CHW" else 3]) if draw(st.booleans()) else 0
    windows = draw(int32_rows(len(images), 4))
    return {"images": images, "windows": windows, "color": color, "layout": layout}


ERASE = Case(erase, 80, launch_shapes(1), erasures())
ERASE.example.update({"images": np.ones((2, 3, 4, 5), np.uint8), "windows": np.ones((2, 4), np.int32)})
ERASE.refused += [
    ({"images": np.zeros((2, 4, 5), np.uint8)}, ValueError, "images must have shape"),
    ({"images": np.zeros((2, 3, 4, 5), complex)}, TypeError, "numbers of 1, 2, 4 or 8 bytes"),
    ({"images": np.zeros((2, 0, 4, 5))}, ValueError, "images must have at least 1 channel"),
    ({"windows": np.zeros((2, 4))}, TypeError, "windows must have dtype int32, got float64"),
    ({"color": [1, 2]}, ValueError, r"one number for each of 3 channels.*; got \[1, 2\]"),
    ({"images": np.zeros((2, 65, 4, 5)), "color": [0] * 65}, ValueError, "65 channels, of which .* be 64"),
    *WINDOWS,
]

# gather


@st.composite
def gathers(draw):
    rows, inner = draw(st.integers(1, 9)), draw(st.lists(st.integers(0, 7), max_size=2))
    inner = inner or [draw(st.sampled_from([1, 3, 16, 300, 5000]))]
    indices = draw(st.lists(st.integers(0, rows - 1), max_size=20))
    source = count_up((rows, *inner), draw(st.sampled_from([*BITS, "complex128"])))
    return {"source": source, "indices": np.array(indices, np.int64)}


GATHER = Case(gather, 200, launch_shapes(2), gathers())
GATHER.example.update({"source": np.arange(24).reshape(4, 6), "indices": np.array([3, 0])})
GATHER.refused += [
    ({"indices": np.zeros(2, np.int32)}, TypeError, "indices must have dtype int64, got int32"),
    ({"indices": np.zeros((2, 1), np.int64)}, ValueError, r"indices must have shape \(any,\)"),
    ({"indices": None}, TypeError, "indices must be a"),
    ({"source": np.zeros(())}, ValueError, "source must have at least one dimension"),
    ({"source": np.zeros((0, 3))}, ValueError, r"2 rows from an empty source of"),
    ({"span": np.array([0, 1])}, TypeError, "out must be a"),
    ({"span": np.zeros(3, "i8"), "out": np.zeros((1, 6), "i8")}, ValueError, r"span must have shape \(2,\)"),
    ({"span": np.array([0, 1]), "out": np.zeros((1, 3), "i8")}, ValueError, r"out must have shape \(1, 6\)"),
]

# blend, paste and mix_labels

SHARES = st.floats(0, 1, width=32) | st.sampled_from([0.0, 1.0, 1e-40])


def as_images(floats, dtype):
    """Return floats in a dtype; those of bfloat16 as its bits."""
    return round_to(floats, dtype) if dtype == "bfloat16" else floats


def make_mix(samples, share, window=(0, 0, 0, 0)):
    """Return a mix of which only the first row may be read."""
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


@st.composite
def blends(draw):
    samples, dtype, seed = draw(st.integers(0, 4)), draw(st.sampled_from(FLOATS)), draw(st.integers(0, 99))
    shape = samples, *draw(st.lists(st.integers(0, 6), max_size=3))
    images = as_images(make_floats(shape, dtype, seed), dtype)
    options = {"dtype": dtype} if dtype == "bfloat16" or seed % 2 else {}
    return {"images": images, "mix": make_mix(samples, draw(SHARES)), **options}


MIX = [
    ({"mix": np.zeros((2, 4), np.int32)}, ValueError, r"mix must have shape \(2, 5\)"),
    ({"mix": np.zeros((2, 5))}, TypeError, "mix must have dtype int32, got float64"),
]
PAIR = {"images": np.ones((2, 3, 4, 5), np.float32), "mix": make_mix(2, 0.5, (0, 0, 2, 2))}

BLEND = Case(blend, 80, launch_shapes(1), blends())
BLEND.example.update(PAIR)
BLEND.refused += [
    ({"images": np.zeros((2, 3), np.uint8)}, TypeError, "images must have dtype float16 or"),
    ({"images": np.array(1.0)}, ValueError, "images must have at least one dimension"),
    ({"dtype": "bfloat16"}, TypeError, "images must have dtype uint16, got float32"),
    ({"dtype": "uint16"}, TypeError, "dtype must be one of float16, bfloat16, float32, float64"),
    *MIX,
]


@st.composite
def pastes(draw):
    images, layout, _ = draw(image_batches())
    window = draw(int32_rows(1, 4))[0]
    return {"images": images, "mix": make_mix(len(images), 0.5, window), "layout": layout}


PASTE = Case(paste, 80, launch_shapes(1), pastes())
PASTE.example.update(PAIR)
PASTE.refused += [
    ({"images": np.zeros((2, 3), np.uint8)}, ValueError, "images must have shape"),
    ({"images": np.zeros((2, 3, 4, 5), complex)}, TypeError, "numbers of 1, 2, 4 or 8 bytes"),
    ({"images": np.zeros((2, 0, 4, 5))}, ValueError, "at least 1 channel"),
    ({"layout": "NCHW"}, ValueError, "layout must be one of 'HWC', 'CHW'"),
    *MIX,
]


@st.composite
def label_batches(draw):
    samples, classes = draw(st.integers(0, 5)), draw(st.integers(0, 9))
    dtype, mix = draw(st.sampled_from([*INTEGERS, *NUMPY_FLOATS])), make_mix(samples, draw(SHARES))
    if dtype in FLOATS:
        labels = make_floats((samples, classes), dtype, draw(st.integers(0, 99)))
    else:
        limits = np.iinfo(dtype)
        numbers = st.integers(0, 10) | st.sampled_from([limits.min, limits.max])
        labels = np.array(draw(st.lists(numbers, min_size=samples, max_size=samples)), dtype)
    return {"labels": labels, "mix": mix, "classes": classes}


MIX_LABELS = Case(mix_labels, 80, launch_shapes(1), label_batches(), is_loud=True)
MIX_LABELS.example.update({"labels": np.array([0, 2]), "mix": make_mix(2, 0.5), "classes": 3})
MIX_LABELS.refused += [
    ({"labels": np.zeros(2, bool)}, TypeError, "labels must have dtype uint8 or"),
    ({"labels": np.zeros((2, 3), np.int64)}, TypeError, "labels must have dtype float16 or"),
    ({"labels": np.zeros((2, 4), np.float32)}, ValueError, r"labels must have shape \(any, 3\)"),
    ({"classes": -1}, ValueError, "classes must be from 0"),
    *MIX,
]

# normalize


@st.composite
def normalizations(draw):
    height, width, channels = draw(st.integers(0, 9)), draw(st.integers(0, 21)), draw(st.integers(1, 16))
    channels = draw(st.sampled_from([1, 3, 4])) if draw(st.booleans()) else channels
    samples, layout = draw(st.integers(0, 4)), draw(LAYOUTS)
    size = (height, width, channels) if layout == "HWC" else (channels, height, width)
    generator = np.random.default_rng(draw(st.integers(0, 999)))
    if draw(st.booleans()):
        images = generator.integers(0, 256, (samples, *size), np.uint8)
    else:
        images = generator.integers(0, 2**32, (samples, *size), np.uint32).view(np.float32)  # any bit pattern
    arguments = {
        "images": images,
        "mean": generator.normal(size=channels) if draw(st.booleans()) else 0.5,
        "std": generator.uniform(0.01, 2, channels) if draw(st.booleans()) else 0.25,
        "scale": draw(st.sampled_from([1.0, 1 / 255, -3.7])),
        "layout": layout,
        "out_layout": draw(LAYOUTS),
        "dtype": draw(st.sampled_from(["float32", "float16", "bfloat16"])),
    }
    if draw(st.booleans()):
        arguments["size"] = draw(st.integers(0, height)), draw(st.integers(0, width))
    if draw(st.booleans()):
        # Some windows reach over the edge; kernel and twin must move them inside.
        windows = draw(arrays.arrays(np.int32, (samples, 3), elements=st.integers(-2, 12)))
        windows[:, 2] = windows[:, 2] > 4
        arguments["windows"] = windows
    return arguments


NORMALIZE = Case(normalize, 300, launch_shapes(2), normalizations(), is_exact=False)
NORMALIZE.example.update({"images": count_up((2, 4, 5, 3), np.uint8), "mean": 0.5, "std": 2})
NORMALIZE.refused += [
    ({"images": np.zeros((2, 4, 5), np.uint8)}, ValueError, r"images must have shape \(any, any, any, any\)"),
    ({"images": np.zeros((2, 4, 5, 3))}, TypeError, "images must have dtype uint8 or float32, got float64"),
    ({"images": np.zeros((2, 4, 5, 17), np.uint8)}, ValueError, "1 to 16 channels, got 17"),
    ({"mean": [1, 2]}, ValueError, "mean must be one number for each of 3 channels"),
    ({"std": 0}, ValueError, "std must be finite and not 0, got 0"),
    ({"std": "a"}, TypeError, "std must be a number, got 'a'"),
    ({"std": 1e-300}, ValueError, "must fit into float32"),
    ({"scale": float("nan")}, ValueError, "scale must be finite, got nan"),
    ({"scale": [1, 2, 3]}, ValueError, "scale must be one number"),
    ({"out_layout": "NHWC"}, ValueError, "out_layout must be one of 'HWC', 'CHW', got 'NHWC'"),
    ({"dtype": "float64"}, TypeError, "dtype must be one of float16, bfloat16, float32, got float64"),
    ({"size": (5, 5)}, ValueError, "height in size must be from 0 to 4, got 5"),
    ({"size": 4}, ValueError, r"size must be \(height, width\), got 4"),
    ({"windows": np.zeros((2, 3), np.int64)}, TypeError, "windows must have dtype int32, got int64"),
    *WINDOWS,
]

# one_hot


@st.composite
def some_labels(draw):
    dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
    limits = np.iinfo(dtype)
    label = st.integers(0, 9) | st.integers(int(limits.min), int(limits.max))
    labels = np.array(draw(st.lists(label, max_size=20)), dtype)
    return labels.reshape(-1, 1) if draw(st.booleans()) else labels


ONE_HOT = Case(
    one_hot,
    200,
    launch_shapes(2),
    st.fixed_dictionaries(
        {
            "labels": some_labels(),
            "classes": st.integers(0, 12) | st.sampled_from([100, 1000, 1030]),
            "dtype": st.sampled_from(["bool", *INTEGERS, *FLOATS]),
        }
    ),
)
ONE_HOT.example.update({"labels": np.arange(24, dtype=np.uint8), "classes": 5})
ONE_HOT.refused += [
    ({"labels": np.zeros(3)}, TypeError, "labels must have dtype uint8 or .* or int64, got float64"),
    ({"classes": -1}, ValueError, "classes must be from 0 to .*, got -1"),
    ({"dtype": "complex64"}, TypeError, "dtype must be one of bool, .*, got complex64"),
]

# pad


@st.composite
def pads(draw):
    inner = draw(st.lists(st.integers(0, 5), max_size=2) | st.just([40]))
    lengths = draw(st.lists(st.integers(0, 9), max_size=9))
    row_splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = count_up((row_splits[-1], *inner), draw(st.sampled_from([*BITS, "complex128"])))
    longest = draw(st.integers(0, 12))
    if draw(st.booleans()):  # splits that do not belong to the values
        row_splits = draw(
            arrays.arrays(np.int64, row_splits.size, elements=st.integers(-3, 30) | st.just(-(2**63)))
        )
    fill = draw(st.integers(0, 1) | st.integers(2, 100))
    return {"values": values, "row_splits": row_splits, "longest": longest, "fill": fill}


PAD = Case(pad, 200, launch_shapes(2), pads())
# The last row ends within a word, and so do the values.
PAD.example.update(
    {"values": np.arange(20, dtype=np.uint8).reshape(5, 4), "row_splits": np.array([0, 2, 5]), "longest": 4}
)
PAD.refused += [
    ({"row_splits": np.zeros(0, np.int64)}, ValueError, "row_splits must have one more entry"),
    ({"longest": -1}, ValueError, "longest must be from 0 to .*, got -1"),
    ({"longest": 2.5}, TypeError, "longest must be an integer, got float"),
    ({"longest": True}, TypeError, "longest must be an integer, got bool"),
    ({"values": np.zeros(())}, ValueError, "values must have at least one dimension"),
    ({"values": np.zeros(3, "S3")}, TypeError, "values must be numbers of up to 16 bytes"),
    ({"fill": 300}, ValueError, "fill must fit into uint8, got 300"),
    *(({"fill": fill}, ValueError, "fill must") for fill in ("one", [1, 2], None, 2**70, 0.5)),
]

# recolor

FACTORS = st.floats(0, 3, width=32) | st.sampled_from([0.0, 0.5, 1.0, 1.5, 1e-40, 300.0])
TURNS = st.floats(-0.5, 0.5)
TARGETS = st.sampled_from(["float32", "float16", "bfloat16", "uint8"])


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


def make_colors(height, width, channels, seed):
    """Return a picture with all sorts of colors, of which many are gray, pure or dark."""
    draw = np.random.default_rng(seed)
    levels = draw.choice([0, 1, 84, 85, 127, 128, 170, 254, 255], (height, width, channels))
    noise = draw.integers(0, 256, (height, width, channels))
    return np.where(draw.random((height, width, 1)) < 0.5, levels, noise).astype(np.uint8)


def make_finish(dtype, channels):
    norm = {} if dtype == "uint8" else {"mean": np.arange(channels) / 9, "std": 0.3, "scale": 1 / 255}
    return {"dtype": dtype, **norm}


@st.composite
def recolorings(draw):
    rows, first = draw(st.lists(changes(), max_size=3)), draw(st.integers(0, 13))
    size, channels = draw(st.tuples(st.integers(0, 12), st.integers(0, 12))), draw(st.sampled_from([1, 3]))
    pictures = np.empty((len(rows), *size, channels), np.uint8)
    for seed, picture in enumerate(pictures):
        picture[...] = make_colors(*size, channels, seed)
    contrasts = draw(st.none() | st.integers(0, 8))
    contrasts = min(count_contrasts(rows), 8) if contrasts is None else contrasts
    # The twin needs none; a kernel must write them before it reads them.
    sums = {"sums": np.full((len(rows), contrasts, 32), 7, np.uint64)} if draw(st.booleans()) else {}
    finish = make_finish(draw(TARGETS), channels)
    numbers = {"numbers": make_numbers(rows, first), "first": first, "contrasts": contrasts}
    return {"images": pictures, **numbers, "out_layout": draw(LAYOUTS), **finish, **sums}


FINISH = [
    ({"out_layout": "NHWC"}, ValueError, "out_layout must be one of 'HWC', 'CHW'"),
    ({"dtype": "float64"}, TypeError, "dtype must be one of float16, bfloat16, float32, uint8"),
    ({"dtype": "uint8", "mean": 3}, ValueError, "a result of dtype uint8 is not normalized"),
    ({"std": 0}, ValueError, "std must be finite and not 0"),
]

RECOLOR = Case(recolor, 40, launch_shapes(1), recolorings())
RECOLOR.example.update({"images": np.ones((2, 4, 5, 3), np.uint8), "numbers": np.zeros((2, 4), np.float32)})
RECOLOR.refused += [
    ({"images": np.zeros((2, 4, 5), np.uint8)}, ValueError, "images must have shape"),
    ({"images": np.zeros((2, 4, 5, 3))}, TypeError, "images must have dtype uint8, got float64"),
    ({"images": np.zeros((2, 4, 5, 2), np.uint8)}, ValueError, "images must have 1 or 3 channels, got 2"),
    ({"numbers": np.zeros((3, 4), np.float32)}, ValueError, r"numbers must have shape \(2, any\)"),
    ({"numbers": np.zeros((2, 4))}, TypeError, "numbers must have dtype float32, got float64"),
    ({"first": 1}, ValueError, "numbers must have pairs from column 1 on"),
    ({"first": 6}, ValueError, "numbers must have pairs from column 6 on"),
    ({"contrasts": 9}, ValueError, "contrasts must be from 0 to 8, got 9"),
    *FINISH,
]

# resample


def make_picture(height, width, channels, seed):
    """Return a picture whose neighboring pixels differ strongly, so that sums overshoot."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, channels))
    return np.where(noise > 170, 255, np.where(noise < 80, 0, noise)).astype(np.uint8)


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
def boxes(draw, longest=70, largest=50):
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


def make_batch(pictures, geometry, size):
    """Return the arguments of `resample` for whole pictures, and box, window and turn of each."""
    sizes = [picture.shape[:2] for picture in pictures]
    channels = pictures[0].shape[2] if pictures else 3
    rows = [(*whole, 0, 0, *rest) for whole, rest in zip(sizes, geometry, strict=True)]
    nothing = np.zeros((0, channels), np.uint8)
    return {
        "values": np.concatenate([nothing, *(one.reshape(-1, channels) for one in pictures)]),
        "row_splits": np.cumsum([0, *(height * width for height, width in sizes)]).astype(np.int64),
        "geometry": np.array(rows, np.float32).reshape(len(rows), 13),
        "size": size,
    }


@st.composite
def resamplings(draw):
    """Return the arguments for several pictures, of which some may be impossible."""
    samples, channels = draw(st.integers(0, 3)), draw(st.sampled_from([1, 3]))
    size = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    pictures, geometry = [], []
    for number in range(samples):
        (height, width), box, _, window = draw(boxes(70, 40))
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
    finish = make_finish(draw(TARGETS), arguments["values"].shape[1])
    interpolation = draw(st.sampled_from(["bilinear", "bicubic"]))
    return arguments | {"interpolation": interpolation, "out_layout": draw(LAYOUTS), **finish}


RESAMPLE = Case(resample, 80, launch_shapes(1), resamplings())
RESAMPLE.example.update(make_batch([make_picture(4, 5, 3, 0)], [(0, 0, 5, 4, 3, 3, 0, 0, 0)], (3, 3)))
RESAMPLE.example["tables"] = np.zeros((1, TABLE_LINES, 6), np.int32)
RESAMPLE.refused += [
    ({"values": np.zeros(20, np.uint8)}, ValueError, r"values must have shape \(any, any\)"),
    ({"values": np.zeros((20, 3), np.int8)}, TypeError, "values must have dtype uint8, got int8"),
    ({"values": np.zeros((20, 2), np.uint8)}, ValueError, "images must have 1 or 3 channels, got 2"),
    ({"row_splits": np.array([0])}, ValueError, r"row_splits must have shape \(2,\)"),
    ({"geometry": np.zeros((1, 13))}, TypeError, "geometry must have dtype float32, got float64"),
    ({"geometry": np.zeros((1, 4), np.float32)}, ValueError, "geometry must have 13 columns or more, got"),
    ({"size": 3}, ValueError, r"size must be \(height, width\), got 3"),
    ({"size": (3, -1)}, ValueError, "width in size must be from 0"),
    ({"interpolation": "nearest"}, ValueError, "interpolation must be one of 'bilinear', 'bicubic'"),
    *FINISH,
]

# shuffle

SEEDS = st.integers(0, 2**64 - 1)


@st.composite
def permutations(draw):
    """Draw a short or a long count, and a part of its permutation."""
    count = draw(st.integers(0, 300) | st.integers(2**18 + 1, 2**62) | st.sampled_from([2**18 + 1, 2**62]))
    start = draw(st.integers(0, count) | st.just(0))
    stop = draw(st.integers(start, min(count, start + 300)) | st.just(min(count, start + 300)))
    return {"count": count, "seed": draw(SEEDS), "epoch": draw(SEEDS), "start": start, "stop": stop}


FLAT = st.none() | st.tuples(st.tuples(st.integers(1, 5), st.just(1)), st.tuples(st.integers(1, 70)))
SHUFFLE = Case(shuffle, 200, FLAT, permutations())
SHUFFLE.example.update({"count": 5, "seed": 1, "epoch": 2})
SHUFFLE.refused += [
    ({"count": -1}, ValueError, "count must be from 0 to 4611686018427387904, got -1"),
    ({"count": 5.0}, TypeError, "count must be an integer, got float"),
    ({"seed": 2**64}, ValueError, "seed must be from 0 to 18446744073709551615"),
    ({"epoch": -1}, ValueError, "epoch must be from 0"),
    ({"stop": 6}, ValueError, "stop must be from 0 to 5, got 6"),
    ({"start": 3, "stop": 2}, ValueError, "start must be from 0 to 2, got 3"),
]

CASES = [one for one in list(vars().values()) if isinstance(one, Case)]


def check_agreement(case, arguments, offsets, given_out):
    """Raise unless launcher and twin write the same to their result, and leave the same in other arrays."""
    kernel = case.kernel
    given = {
        name: one for name, one in arguments.items() if isinstance(one, np.ndarray) and name in kernel.arrays
    }
    held = arguments | {name: one.copy() for name, one in given.items()}
    with np.errstate(over="ignore" if case.is_loud else "warn"):
        expected = kernel.on_host(**held)
    places = {
        name: Placed(one, offset * one.itemsize)
        for (name, one), offset in zip(given.items(), offsets, strict=False)
    }
    options = arguments | {name: one.array for name, one in places.items()}
    out = Placed(np.zeros_like(expected), offsets[-1] * expected.itemsize)
    if case.has_out and given_out:
        options["out"] = out.array
    result = kernel(**options)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    seen = read(result)
    if case.is_exact:
        assert seen.tobytes() == expected.tobytes()
    elif arguments.get("dtype") == "bfloat16":
        same_bits(as_floats(seen), as_floats(expected))
    else:
        same_bits(seen, expected)
    if case.has_out:
        assert (result is out.array) == given_out
    else:
        assert result is places[next(iter(kernel.arrays))].array
    for name, one in places.items():
        one.check()
        if name not in ("sums", "tables"):  # memory of the device alone
            assert read(one.array).tobytes() == held[name].tobytes(), f"{name} differs"
    out.check()
    return expected
