"""Every kernel against its twin on real hardware: instructions, addresses and streams."""

import inspect
import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings

from benchmarks.gpu.compiling import kernel_entries
from gpuloader.kernels.cast import _SOURCES, _TARGETS, cast
from gpuloader.kernels.compiler import kernel_names, load_kernel
from gpuloader.kernels.crop import crop, erase
from gpuloader.kernels.gather import gather
from gpuloader.kernels.mixup import blend, paste
from gpuloader.kernels.normalize import normalize
from gpuloader.kernels.one_hot import one_hot
from gpuloader.kernels.recolor import recolor
from gpuloader.kernels.resample import resample
from gpuloader.kernels.shuffle import shuffle
from gpuloader.kernels.spin import spin
from tests.gpu.conftest import REHEARSED
from tests.kernels.cases import CASES, interesting, make_finish, make_floats, make_mix
from tests.kernels.shim import as_floats, same_bits

OFFSETS = [0, 1, 3]
LAYOUTS = list(itertools.product(["HWC", "CHW"], repeat=2))
BITS = ["bool", "uint8", "float16", "float32", "float64"]


class Rehearsed:
    """An array that plays one on a GPU."""

    def __init__(self, array):
        self.array = array

    def get(self):
        return self.array


def to_device(array, offset=0):
    """Return a copy on the GPU that begins `offset` elements after a multiple of 256 bytes."""
    if REHEARSED:
        return Rehearsed(np.array(array))
    import cupy

    array = np.asarray(array)
    room = cupy.empty(array.size + offset, array.dtype)[offset:].reshape(array.shape)
    room.set(array)
    return room


def check(result, expected, dtype=None):
    seen = result.get()
    if dtype == "bfloat16":
        assert seen.dtype == expected.dtype == np.uint16
        seen, expected = as_floats(seen), as_floats(expected)
    if seen.dtype.kind == "f":
        same_bits(seen, expected)
    else:
        assert (seen.dtype, seen.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(seen, expected)


def agree(kernel, *, out=None, expected=None, **arguments):
    """Raise unless a kernel writes what its twin does, wherever its arrays begin.

    The twin runs once, or not at all if its result is `expected`: it takes nearly all the time.
    """
    dtype = arguments.get("dtype")
    places = [name for name in kernel.arrays if arguments.get(name) is not None]
    held = arguments | {name: np.array(arguments[name]) for name in places}
    if expected is None:
        expected = kernel.on_host(**held) if out is None else kernel.on_host(**held, out=out.copy())
    for offset in OFFSETS:
        given = arguments | {name: to_device(arguments[name], offset) for name in places}
        if REHEARSED:
            check(to_device(expected), expected, dtype)
            continue
        if out is None:
            check(kernel(**given), expected, dtype)
        for name in places:
            if name not in ("sums", "tables"):  # memory of the device alone
                check(given[name], held[name])
        if "out" in inspect.signature(kernel).parameters:
            there = to_device(np.zeros_like(expected), offset)
            assert kernel(**given, out=there) is there
            check(there, expected, dtype)


def make_images(samples, height, width, channels, layout, dtype):
    shape = (samples, height, width, channels) if layout == "HWC" else (samples, channels, height, width)
    most = {"bool": 2, "uint8": 256}.get(np.dtype(dtype).name, 100)
    return np.random.default_rng(samples).integers(0, most, shape).astype(dtype)


def make_windows(samples, columns=3):
    """Return windows of which some reach over the edge, and half are mirrored."""
    windows = np.random.default_rng(samples).integers(-5, 60, (samples, columns)).astype(np.int32)
    windows[:, 2] %= 2 if columns == 3 else 60
    return windows


@pytest.mark.parametrize("name", kernel_names())
def test_every_kernel_loads(name):
    for entry in kernel_entries(name)[:: 20 if name == "cast" else 1]:
        assert load_kernel(name, entry).num_regs > 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel.__name__)
def test_the_launcher_and_its_twin_agree(case):
    """On an example, and on what the tests without a GPU draw."""

    @given(case.problems)
    @example(case.example)
    @settings(max_examples=case.count // 2, deadline=None)
    def attempt(arguments):
        with np.errstate(over="ignore" if case.is_loud else "warn"):
            agree(case.kernel, **arguments)

    attempt()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("layout", "out_layout"), LAYOUTS)
@pytest.mark.parametrize(
    ("size", "window"),
    [
        ((3, 64, 96, 3), None),
        ((5, 33, 47, 3), (30, 41)),
        ((2, 7, 5, 16), None),
        ((2, 270, 480, 3), (256, 256)),
    ],
)
def test_normalize(size, window, layout, out_layout, dtype):
    draw, samples = np.random.default_rng(size[0]), size[0]
    images = make_images(*size, layout, np.uint8)
    options = {"mean": draw.normal(size=size[3]), "std": draw.uniform(0.1, 2, size[3]), "scale": 1 / 255}
    options |= {"layout": layout, "out_layout": out_layout, "dtype": dtype, "size": window}
    agree(normalize, images=images, windows=make_windows(samples), **options)
    if samples < 10 and size[1] < 100:
        agree(normalize, images=images, **options)
        numbers = draw.integers(0, 2**32, images.shape, np.uint32).view(np.float32)  # subnormals, too
        for windows in (None, make_windows(samples)):
            agree(normalize, images=numbers, windows=windows, **options)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("longest", "channels", "size", "out_layout"),
    [
        (500, 3, (224, 224), "CHW"),
        (300, 3, (70, 90), "HWC"),
        (90, 1, (33, 70), "CHW"),
        (90, 1, (33, 70), "HWC"),
        (1500, 3, (8, 100), "CHW"),
    ],
)
def test_resample(longest, channels, size, out_layout, interpolation, dtype):
    draw = np.random.default_rng(longest)
    sizes = draw.integers(1, longest, (6, 2))
    corners = draw.uniform(0, 0.4, (6, 2)) * sizes[:, ::-1]
    boxes = np.concatenate([corners, corners + draw.uniform(0.1, 0.6, (6, 2)) * sizes[:, ::-1]], 1)
    windows = [[*size, 0, 0, number % 4] for number in range(5)] + [[*size, 3, -2, 0]]
    geometry = np.concatenate([sizes, np.zeros((6, 2)), boxes, windows], 1).astype(np.float32)
    splits = np.concatenate([[0], np.cumsum(sizes.prod(1))]).astype(np.int64)
    pixels = {"values": draw.integers(0, 256, (splits[-1], channels), np.uint8), "row_splits": splits}
    options = {"size": size, "interpolation": interpolation, "out_layout": out_layout}
    agree(resample, **pixels, geometry=geometry, **options, **make_finish(dtype, channels))


def make_changes(samples, changes=6):
    """Return changes of colors, behind two other numbers, and how many contrasts are among them."""
    draw = np.random.default_rng(samples)
    kinds, amounts = draw.integers(0, 5, (samples, changes)), draw.uniform(0, 2, (samples, changes))
    amounts[kinds == 4] = draw.integers(0, 256)
    numbers = np.stack([kinds, amounts], -1).astype(np.float32).reshape(samples, -1)
    return {"numbers": numbers, "first": 2, "contrasts": int((kinds[:, 1:] == 2).sum(1).max())}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("out_layout", ["HWC", "CHW"])
@pytest.mark.parametrize("size", [(6, 96, 100, 3), (3, 33, 47, 1), (1, 1, 1, 3)])
def test_recolor(size, out_layout, dtype):
    pictures = make_images(*size, "HWC", np.uint8)
    options = {"out_layout": out_layout, **make_finish(dtype, size[3])}
    agree(recolor, images=pictures, **make_changes(size[0]), **options)


@pytest.mark.parametrize("change", [(3, 0.7), (4, 100)], ids=["saturation", "hue"])
def test_recolor_of_a_64th_of_all_colors(change):
    """By changes that depend on all channels, in a picture so large that a thread has many pixels."""
    numbers = np.arange(2**18, dtype=np.uint32)
    colors = (64 * numbers + numbers // 64 % 64).reshape(1, 512, 512)
    pictures = np.stack([colors >> 8 * part & 255 for part in range(3)], -1).astype(np.uint8)
    numbers = np.array([[*change, 2, 1.5]], np.float32)
    agree(recolor, images=pictures, numbers=numbers, contrasts=1, out_layout="HWC", dtype="uint8")


MANY = 70_001  # images, more than a grid has rows


def test_recolor_of_many_images():
    pictures, changes = make_images(101, 2, 3, 3, "HWC", np.uint8), make_changes(101, 3)
    finish = make_finish("float32", 3)
    order = np.arange(MANY) % 101
    expected = recolor.on_host(images=pictures, **changes, **finish)[order]
    changes["numbers"] = changes["numbers"][order]
    agree(recolor, images=pictures[order], expected=expected, **changes, **finish)


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_many_images(layout):
    images, windows = make_images(MANY, 2, 3, 1, layout, np.uint8), make_windows(MANY)
    agree(normalize, images=images, mean=0.5, std=2, windows=windows, layout=layout)
    agree(crop, images=images, size=(1, 2), windows=windows, layout=layout)
    agree(erase, images=images, windows=make_windows(MANY, 4), color=range(1), layout=layout)
    agree(paste, images=images, mix=make_mix(MANY, 0.5, (1, -3, 40, 90)), layout=layout)
    agree(blend, images=make_floats((MANY, 3), "float32", 1), mix=make_mix(MANY, 0.3))


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize(
    ("size", "window"),
    [
        ((3, 64, 96, 3), (64, 96)),
        ((5, 33, 47, 3), (30, 41)),
        ((2, 7, 5, 20), (3, 5)),
        ((2, 360, 640, 3), (256, 256)),
    ],
)
def test_crop_erase_and_paste(size, window, layout, dtype):
    images, samples = make_images(*size, layout, dtype), size[0]
    agree(crop, images=images, size=window, windows=make_windows(samples), layout=layout)
    agree(erase, images=images, windows=make_windows(samples, 4), color=range(size[3]), layout=layout)
    agree(paste, images=images, mix=make_mix(samples, 0.5, (1, -3, 40, 90)), layout=layout)


@pytest.mark.parametrize("has_order", [False, True])
@pytest.mark.parametrize("width", [1, 3, 784, 100_003])
def test_gather_a_span_of_an_order(width, has_order):
    draw = np.random.default_rng(0)
    source = draw.integers(0, 256, (50, width), np.uint8)
    order, out = draw.permutation(50) if has_order else None, np.zeros((40, width), np.uint8)
    agree(gather, source=source, indices=order, span=np.array([7, 30]), out=out)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("shape", [(1000, 1), (1000, 3), (300, 28, 28), (40, 100_003), (2, 500_000)])
def test_gather(shape, dtype):
    if np.prod(shape) * np.dtype(dtype).itemsize > 2**25:
        shape = (2, 500_000)
    draw = np.random.default_rng(0)
    indices = draw.integers(0, shape[0], min(2 * shape[0], 100))
    agree(gather, source=draw.integers(0, 100, shape).astype(dtype), indices=indices)


@pytest.mark.parametrize("scale", [None, 1 / 255, -3.0])
@pytest.mark.parametrize("source", _SOURCES)
def test_cast(source, scale):
    numbers = np.tile(interesting(source), 5)
    for target in _TARGETS:
        agree(cast, values=numbers, dtype=target, scale=scale)


@pytest.mark.parametrize(
    ("count", "start", "stop"),
    [
        (0, 0, 0),
        (1, 0, 1),
        (1000, 0, None),
        (1000, 10, 20),
        (2**18, 0, None),
        (2**18, 5, 9),
        (2**18 + 1, 0, None),
        (10**9, 10**8, 10**8 + 5000),
        (2**62, 2**61, 2**61 + 5000),
    ],
)
def test_shuffle(count, start, stop):
    import cupy

    for seed, epoch in ((0, 0), (2**64 - 1, 7)):
        expected = shuffle.on_host(count, seed, epoch, start, stop)
        check(shuffle(count, seed, epoch, start, stop), expected)
        stream = cupy.cuda.Stream(non_blocking=True)
        out = cupy.zeros(expected.shape, np.int64)
        cupy.cuda.Device().synchronize()
        shuffle(count, seed, epoch, start, stop, out=out, stream=stream)
        stream.synchronize()
        check(out, expected)


def test_launches_wait_for_their_stream_and_for_nothing_else():
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    source, indices = to_device(np.arange(1000).reshape(100, 10)), to_device(np.arange(99, -1, -1))
    images, labels = to_device(np.zeros((2, 8, 8, 3), np.uint8)), to_device(np.arange(5))
    outs = [
        cupy.zeros((100, 10), np.int64),
        cupy.ones((2, 3, 8, 8), np.float32),
        cupy.zeros((5, 5), np.float32),
    ]
    calls = [
        lambda: gather(source, indices, out=outs[0], stream=stream),
        lambda: normalize(images, 0, 1, out=outs[1], stream=stream),
        lambda: one_hot(labels, 5, out=outs[2], stream=stream),
    ]
    for call in calls:  # compile first, which does wait
        call()
    int(outs[0].sum())
    stream.synchronize()
    outs[0].fill(0)
    cupy.cuda.Device().synchronize()
    spin(300_000_000, stream=stream)
    for call in calls:
        call()
    assert not stream.done  # nothing waited for the stream
    assert int(outs[0].sum()) == 0  # and nothing ran before the spin
    stream.synchronize()
    assert outs[0].get()[0].tolist() == list(range(990, 1000))


def test_another_device_than_the_current_one(gpus):
    """Each has kernels of its own."""
    import cupy

    loaded = []
    for index in (0, 1):
        with cupy.cuda.Device(index):
            labels = cupy.arange(5)
            loaded.append(load_kernel("gather", "gather<unsigned long long>"))
        result = one_hot(labels, 5)
        assert result.device.id == index
        assert result.get().tolist() == np.eye(5).tolist()
    assert loaded[0] is not loaded[1]
    with pytest.raises(ValueError, match="out must be on gpu:1, got gpu:0"):
        one_hot(labels, 5, out=cupy.zeros((5, 5), np.float32))
