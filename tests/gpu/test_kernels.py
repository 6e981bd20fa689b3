"""Every launcher against its twin on real hardware: instructions, addresses and streams."""

import numpy as np
import pytest

from gpuloader.kernels.cast import _SOURCES, _TARGETS, FLOATS, INTEGERS, cast, cast_on_host
from gpuloader.kernels.checksum import checksum, checksum_on_host
from gpuloader.kernels.compiler import kernel_entries, kernel_names, load_kernel
from gpuloader.kernels.crop import crop, crop_on_host, erase, erase_on_host
from gpuloader.kernels.gather import gather, gather_on_host
from gpuloader.kernels.mix import (
    blend,
    blend_on_host,
    mix_labels,
    mix_labels_on_host,
    paste,
    paste_on_host,
)
from gpuloader.kernels.normalize import normalize, normalize_on_host
from gpuloader.kernels.one_hot import one_hot, one_hot_on_host
from gpuloader.kernels.pad import pad, pad_on_host
from gpuloader.kernels.recolor import recolor, recolor_on_host
from gpuloader.kernels.resample import resample, resample_on_host
from gpuloader.kernels.shuffle import shuffle, shuffle_on_host
from gpuloader.kernels.spin import spin
from tests.kernels.shim import as_floats, same_bits
from tests.kernels.test_cast import interesting
from tests.kernels.test_mix import as_images, make_floats, make_mix

OFFSETS = [0, 1, 3]


def to_device(array, offset=0):
    """Return a copy on the GPU that begins `offset` elements after a multiple of 256 bytes."""
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


@pytest.mark.parametrize("name", kernel_names())
def test_every_kernel_loads(name):
    for entry in kernel_entries(name)[:: 20 if name == "cast" else 1]:
        assert load_kernel(name, entry).num_regs > 0


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("out_layout", ["HWC", "CHW"])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize(
    ("samples", "height", "width", "channels", "size"),
    [
        (3, 64, 96, 3, None),
        (5, 33, 47, 3, (30, 41)),
        (2, 7, 5, 16, None),
        (70_001, 2, 3, 1, None),
        (2, 1080, 1920, 3, (1024, 1024)),
    ],
)
def test_normalize(samples, height, width, channels, size, layout, out_layout, dtype, offset):
    draw = np.random.default_rng(samples)
    shape = (samples, height, width, channels) if layout == "HWC" else (samples, channels, height, width)
    options = {"layout": layout, "out_layout": out_layout, "dtype": dtype, "size": size, "scale": 1 / 255}
    mean, std = draw.normal(size=channels), draw.uniform(0.1, 2, channels)
    windows = draw.integers(-5, 60, (samples, 3)).astype(np.int32)
    windows[:, 2] %= 2
    images = draw.integers(0, 256, shape, np.uint8)
    numbers = draw.integers(0, 2**32, shape, np.uint32).view(np.float32)  # any float, including subnormals
    for source in (images, numbers) if samples < 10 and height < 100 else (images,):
        for window in (None, windows):
            expected = normalize_on_host(source, mean, std, windows=window, **options)
            on_gpu = None if window is None else to_device(window)
            result = normalize(to_device(source, offset), mean, std, windows=on_gpu, **options)
            check(result, expected, dtype)
            out = to_device(np.zeros_like(expected), offset)
            assert normalize(to_device(source), mean, std, windows=on_gpu, out=out, **options) is out
            check(out, expected, dtype)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("out_layout", ["HWC", "CHW"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("longest", "channels", "size"), [(500, 3, (224, 224)), (90, 1, (33, 70)), (5000, 3, (8, 100))]
)
def test_resample(longest, channels, size, interpolation, out_layout, dtype, offset):
    draw = np.random.default_rng(longest)
    sizes = draw.integers(1, longest, (6, 2))
    corners = draw.uniform(0, 0.4, (6, 2)) * sizes[:, ::-1]
    boxes = np.concatenate([corners, corners + draw.uniform(0.1, 0.6, (6, 2)) * sizes[:, ::-1]], 1)
    windows = [[*size, 0, 0, number % 4] for number in range(5)] + [[*size, 3, -2, 0]]
    geometry = np.concatenate([sizes, np.zeros((6, 2)), boxes, windows], 1).astype(np.float32)
    splits = np.concatenate([[0], np.cumsum(sizes.prod(1))]).astype(np.int64)
    values = draw.integers(0, 256, (splits[-1], channels), np.uint8)
    options = {"interpolation": interpolation, "out_layout": out_layout, "dtype": dtype}
    if dtype != "uint8":
        options |= {"mean": draw.uniform(0, 1, channels), "std": 0.3, "scale": 1 / 255}
    expected = resample_on_host(values, splits, geometry, size, **options)
    arrays = to_device(values, offset), to_device(splits), to_device(geometry)
    check(resample(*arrays, size, **options), expected, dtype)
    out = to_device(np.zeros_like(expected), offset)
    assert resample(*arrays, size, out=out, **options) is out
    check(out, expected, dtype)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize(
    ("samples", "height", "width", "channels", "size"),
    [
        (3, 64, 96, 3, (64, 96)),
        (5, 33, 47, 3, (30, 41)),
        (2, 7, 5, 20, (3, 5)),
        (70_001, 2, 3, 1, (1, 2)),
        (2, 720, 1280, 3, (512, 512)),
    ],
)
def test_crop(samples, height, width, channels, size, layout, dtype, offset):
    draw = np.random.default_rng(samples)
    shape = (samples, height, width, channels) if layout == "HWC" else (samples, channels, height, width)
    images = draw.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    windows = draw.integers(-5, 60, (samples, 3)).astype(np.int32)
    windows[:, 2] %= 2
    expected = crop_on_host(images, size, windows, layout=layout)
    check(crop(to_device(images, offset), size, to_device(windows), layout=layout), expected)
    out = to_device(np.zeros_like(expected), offset)
    assert crop(to_device(images), size, to_device(windows), layout=layout, out=out) is out
    check(out, expected)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("out_layout", ["HWC", "CHW"])
@pytest.mark.parametrize(
    ("samples", "height", "width", "channels"),
    [(6, 224, 224, 3), (3, 33, 47, 1), (2, 2048, 2048, 3), (1, 1, 1, 3), (70_001, 2, 3, 3)],
)
def test_recolor(samples, height, width, channels, out_layout, dtype, offset):
    draw = np.random.default_rng(samples)
    pictures = draw.integers(0, 256, (samples, height, width, channels), np.uint8)
    if height == 2048:  # every color, in two pictures of which each is half of them
        colors = np.arange(2**23, dtype=np.uint32).reshape(samples, height, width) * 2 + 1
        pictures = np.stack([colors >> 8 * part & 255 for part in range(3)], -1).astype(np.uint8)
    kinds, amounts = draw.integers(0, 5, (samples, 6)), draw.uniform(0, 2, (samples, 6))
    amounts[kinds == 4] = draw.integers(0, 256)
    numbers = np.stack([kinds, amounts], -1).astype(np.float32).reshape(samples, -1)
    contrasts = int((kinds[:, 1:] == 2).sum(1).max())
    options = {"first": 2, "contrasts": contrasts, "out_layout": out_layout, "dtype": dtype}
    if dtype != "uint8":
        options |= {"mean": draw.uniform(0, 1, channels), "std": 0.3, "scale": 1 / 255}
    expected = recolor_on_host(pictures, numbers, **options)
    arrays = to_device(pictures, offset), to_device(numbers)
    check(recolor(*arrays, **options), expected, dtype)
    out = to_device(np.zeros_like(expected), offset)
    assert recolor(*arrays, out=out, **options) is out
    check(out, expected, dtype)


IMAGES = [(3, 3, 64, 96), (5, 33, 47, 3), (2, 20, 7, 5), (70_001, 2, 3, 1), (2, 3, 720, 1280)]


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("shape", IMAGES)
def test_erase(shape, layout, dtype, offset):
    draw = np.random.default_rng(shape[0])
    images = draw.integers(0, 2, shape).astype(dtype)
    windows = draw.integers(-5, 60, (len(images), 4)).astype(np.int32)
    channels = shape[1] if layout == "CHW" else shape[3]
    color = range(channels) if channels <= 64 else 1
    at = to_device(images, offset)
    assert erase(at, to_device(windows), color=color, layout=layout) is at
    check(at, erase_on_host(images, windows, color=color, layout=layout))


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, 1e-40])
@pytest.mark.parametrize("shape", [(1, 5), (3, 3, 64, 96), (2, 7, 5, 3), (70_001, 3)])
def test_blend(shape, share, dtype, offset):
    images, mix = as_images(make_floats(shape, dtype, 1), dtype), make_mix(shape[0], share)
    expected = blend_on_host(images, mix, dtype=dtype)
    check(blend(to_device(images, offset), to_device(mix), dtype=dtype), expected, dtype)
    out = to_device(np.zeros_like(images), offset)
    assert blend(to_device(images), to_device(mix), dtype=dtype, out=out) is out
    check(out, expected, dtype)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("shape", IMAGES)
def test_paste(shape, layout, dtype, offset):
    images = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    mix = make_mix(shape[0], 0.5, (1, -3, 40, 90))
    result = paste(to_device(images, offset), to_device(mix), layout=layout)
    check(result, paste_on_host(images, mix, layout=layout))


@pytest.mark.parametrize("dtype", [*INTEGERS, "float16", "float32", "float64"])
@pytest.mark.parametrize(("samples", "classes"), [(1, 1), (300, 10), (64, 1000)])
def test_mix_labels(samples, classes, dtype):
    labels = np.arange(samples).astype(dtype)
    if labels.dtype.kind == "f":
        labels = np.random.default_rng(0).uniform(0, 1, (samples, classes)).astype(dtype)
    for share in (0.0, 0.3, 1.0):
        mix = make_mix(samples, share)
        expected = mix_labels_on_host(labels, mix, classes=classes)
        check(mix_labels(to_device(labels, 1), to_device(mix), classes=classes), expected)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("has_order", [False, True])
@pytest.mark.parametrize("width", [1, 3, 784, 100_003])
def test_gather_a_span_of_an_order(width, has_order, offset):
    draw = np.random.default_rng(0)
    source = draw.integers(0, 256, (50, width), np.uint8)
    order = draw.permutation(50)
    span = np.array([7, 30])
    out = np.zeros((40, width), np.uint8)
    expected = gather_on_host(source, order if has_order else None, span=span, out=out)
    there = to_device(np.zeros_like(out), offset)
    gather(
        to_device(source, offset), to_device(order) if has_order else None, span=to_device(span), out=there
    )
    check(there, expected)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("shape", [(1000, 1), (1000, 3), (300, 28, 28), (40, 100_003), (2, 5_000_000)])
def test_gather(shape, dtype, offset):
    if np.prod(shape) * np.dtype(dtype).itemsize > 2**27:
        shape = (2, 500_000)
    draw = np.random.default_rng(0)
    source = draw.integers(0, 100, shape).astype(dtype)
    indices = draw.integers(0, len(source), min(2 * len(source), 100))
    expected = gather_on_host(source, indices)
    check(gather(to_device(source, offset), to_device(indices)), expected)
    out = to_device(np.zeros_like(expected), offset)
    check(gather(to_device(source), to_device(indices), out=out), expected)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32", "complex128"])
@pytest.mark.parametrize("inner", [(), (1,), (3,), (128,)])
def test_pad(inner, dtype, offset):
    draw = np.random.default_rng(0)
    splits = np.concatenate([[0], np.cumsum(draw.integers(0, 90, 200))])
    values = draw.integers(0, 2, (splits[-1], *inner)).astype(dtype)
    for row_splits, longest in ((splits, 90), (splits, 20), (splits[::-1].copy(), 5), (splits + 50, 90)):
        mask = np.ones((200, longest), bool)
        expected = pad_on_host(values, row_splits, longest, 1, mask=mask)
        on_gpu = to_device(np.zeros_like(mask), offset)
        result = pad(to_device(values, offset), to_device(row_splits), longest, 1, mask=on_gpu)
        check(result, expected)
        check(on_gpu, mask)


@pytest.mark.parametrize("label", INTEGERS)
@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_one_hot(label, dtype):
    labels = np.arange(3000).astype(label) - np.array(5, label)
    for classes in (1, 10, 100, 1001):
        check(one_hot(to_device(labels, 1), classes, dtype), one_hot_on_host(labels, classes, dtype))


@pytest.mark.parametrize("scale", [None, 1 / 255, -3.0])
@pytest.mark.parametrize("source", _SOURCES)
def test_cast(source, scale):
    numbers = np.tile(interesting(source), 50)
    for target in _TARGETS:
        expected = cast_on_host(numbers, target, scale=scale)
        for offset in OFFSETS:
            check(cast(to_device(numbers, offset), target, scale=scale), expected, target)


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
        expected = shuffle_on_host(count, seed, epoch, start, stop)
        check(shuffle(count, seed, epoch, start, stop), expected)
        stream = cupy.cuda.Stream(non_blocking=True)
        out = cupy.zeros(expected.shape, np.int64)
        cupy.cuda.Device().synchronize()
        shuffle(count, seed, epoch, start, stop, out=out, stream=stream)
        stream.synchronize()
        check(out, expected)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100_001])
def test_checksum(size):
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    assert checksum(to_device(data, 3)).get() == checksum_on_host(data)


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


def test_with_out_no_memory_is_taken():
    import cupy

    source, indices = to_device(np.arange(1000).reshape(100, 10)), to_device(np.arange(100))
    out = cupy.empty((100, 10), np.int64)
    gather(source, indices, out=out)

    def refuse(nbytes):
        raise AssertionError(f"{nbytes} bytes were allocated")

    with cupy.cuda.using_allocator(refuse):
        gather(source, indices, out=out)
        shuffle(2**20, 1, 1, 0, 1000, out=out.reshape(-1))


def test_another_device_than_the_current_one():
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is only one GPU")
    with cupy.cuda.Device(1):
        labels = cupy.arange(5)
    result = one_hot(labels, 5)
    assert result.device.id == 1
    assert result.get().tolist() == np.eye(5).tolist()
    with pytest.raises(ValueError, match="out must be on gpu:1, got gpu:0"):
        one_hot(labels, 5, out=cupy.zeros((5, 5), np.float32))


def test_each_device_has_kernels_of_its_own():
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is only one GPU")
    loaded = []
    for index in (0, 1):
        with cupy.cuda.Device(index):
            rows, order = cupy.arange(100), cupy.arange(99, -1, -1)
            loaded.append(load_kernel("gather", "gather<unsigned long long>"))
        assert gather(rows, order).get().tolist() == list(range(99, -1, -1))
    assert loaded[0] is not loaded[1]
