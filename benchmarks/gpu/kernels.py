"""Measure kernels that move memory, compared with a device-to-device copy of the same number of bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import cupy
import numpy as np

from benchmarks.gpu.blocks import MEAN, STD
from benchmarks.gpu.clocks import DEVICE_TO_DEVICE, MIB, on_device, on_host, synchronize
from benchmarks.gpu.turns import Judged, measure
from benchmarks.measure import Candidate
from gpuloader.kernels.cast import cast
from gpuloader.kernels.crop import crop
from gpuloader.kernels.gather import gather
from gpuloader.kernels.normalize import normalize
from gpuloader.kernels.one_hot import one_hot
from gpuloader.kernels.pad import pad
from gpuloader.kernels.recolor import recolor
from gpuloader.kernels.resample import resample
from gpuloader.kernels.shuffle import shuffle
from gpuloader.order.randomness import SORTED_AT_MOST

LAUNCHES = 20
PICTURES = 1024
GATHERED = ((3136, 1 << 20, 1 << 17), (128, 1 << 24, 1 << 22), (150_528, 1 << 14, 1 << 12))
"""Bytes per row, rows in the source, rows gathered."""
SHARE = 0.8


def kernels(repeats: int) -> list[Judged]:
    """Time kernels and copies over several times the bytes that the device's caches hold.

    A copy of n bytes reads n and writes n, so the floor copies half as many bytes as the kernel reads and
    writes together. Both are queued behind a spin, so that only device time counts.
    """
    moving = _normalize, _crop, _gather, _others, _pictures
    return [*(case for cases in moving for case in cases(repeats)), _shuffle(repeats)]


def _normalize(repeats: int) -> list[Judged]:
    count, size = PICTURES, 224
    generator = np.random.default_rng(0)
    images = cupy.asarray(generator.integers(0, 256, (count, size, size, 3), np.uint8))
    windows = np.stack([*generator.integers(0, 33, (2, count)), generator.integers(0, 2, count)], 1)
    placed = cupy.asarray(windows.astype(np.int32))
    cases = []
    for dtype, layout, window in (
        ("float32", "CHW", None),
        ("float16", "CHW", None),
        ("bfloat16", "HWC", None),
        ("float32", "CHW", (192, 192)),
    ):
        height, width = window or (size, size)
        shape = (3, height, width) if layout == "CHW" else (height, width, 3)
        out = cupy.empty((count, *shape), {"bfloat16": "uint16"}.get(dtype, dtype))
        read = count * height * width * 3
        options: dict[str, Any] = {"scale": 1 / 255, "out_layout": layout, "dtype": dtype, "out": out}
        if window is not None:
            options |= {"size": window, "windows": placed}
        name = f"normalize, {count} x 224 x 224 x 3 uint8 to {layout} {dtype}"
        name += "" if window is None else f", random {height} x {width} windows, half of them flipped"
        cases.append(_beside(name, _bind(images, options), read + out.nbytes, SHARE, repeats))
    return cases


def _bind(images: Any, options: dict[str, Any]) -> Callable[[], object]:
    return lambda: normalize(images, MEAN, STD, **options)


def _crop(repeats: int) -> list[Judged]:
    count, size, window = PICTURES, 224, 192
    generator = np.random.default_rng(0)
    windows = np.stack([*generator.integers(0, 33, (2, count)), generator.integers(0, 2, count)], 1)
    placed = cupy.asarray(windows.astype(np.int32))
    cases = []
    for layout in ("HWC", "CHW"):
        shape, inner = (size, size), (window, window)
        images = cupy.empty((count, *shape, 3) if layout == "HWC" else (count, 3, *shape), cupy.uint8)
        out = cupy.empty((count, *inner, 3) if layout == "HWC" else (count, 3, *inner), cupy.uint8)
        name = f"crop, {count} x 224 x 224 x 3 uint8 {layout}, random 192 x 192 windows, half of them flipped"
        launch = partial(crop, images, inner, placed, layout=layout, out=out)
        cases.append(_beside(name, launch, 2 * out.nbytes, SHARE, repeats))
    return cases


def _others(repeats: int) -> list[Judged]:
    """Time the other kernels: a cast with a factor, one-hot labels, and padding of ragged rows."""
    numbers = cupy.empty(1 << 28, cupy.uint8)
    floats = cupy.empty(numbers.shape, cupy.float32)
    labels = cupy.zeros(1 << 18, cupy.int64)
    columns = cupy.empty((labels.size, 1000), cupy.float32)
    lengths = np.random.default_rng(0).integers(1, 1025, 1 << 18)
    splits = cupy.asarray(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    words = cupy.empty(int(lengths.sum()), cupy.int32)
    padded = cupy.empty((lengths.size, 1024), cupy.int32)
    launches: list[tuple[str, Callable[[], object], int]] = [
        (
            "cast, uint8 to float32 with a factor",
            partial(cast, numbers, "float32", scale=1 / 255, out=floats),
            numbers.nbytes + floats.nbytes,
        ),
        (
            "one_hot, 1,000 classes, float32",
            partial(one_hot, labels, 1000, out=columns),
            labels.nbytes + columns.nbytes,
        ),
        (
            "pad, rows of 1 to 1,024 int32",
            partial(pad, words, splits, 1024, out=padded),
            words.nbytes + splits.nbytes + padded.nbytes,
        ),
    ]
    return [_beside(name, launch, moved, SHARE, repeats) for name, launch, moved in launches]


def _pictures(repeats: int) -> list[Judged]:
    """Time kernels that compute much for each byte: resizing, and changing of colors, of 256 photos."""
    count, tall, wide, size = 256, 375, 500, 224
    generator = np.random.default_rng(0)
    pixels = cupy.asarray(generator.integers(0, 256, (count * tall * wide, 3), np.uint8))
    splits = cupy.asarray(np.arange(count + 1) * tall * wide)
    whole = cupy.asarray(
        np.array([[tall, wide, 0, 0, 0, 0, wide, tall, size, size, 0, 0, 0]] * count, np.float32)
    )
    images = cupy.asarray(generator.integers(0, 256, (count, size, size, 3), np.uint8))
    changes = np.array([[1, 1.2, 2, 0.8, 3, 1.1, 4, 20]] * count, np.float32)
    changes[:, 1::2] += generator.random((count, 4)) * [0.2, 0.2, 0.2, 20]
    changes[:, 7] = changes[:, 7].round()
    numbers = cupy.asarray(changes)
    out = cupy.empty((count, 3, size, size), cupy.float32)
    normal: dict[str, Any] = {"mean": MEAN, "std": STD, "scale": 1 / 255, "out": out}
    launches: list[tuple[str, Callable[[], object], int, float]] = [
        (
            f"resample, {count} photos of {wide} x {tall} to {size} x {size} float32",
            partial(resample, pixels, splits, whole, (size, size), **normal),
            pixels.nbytes + out.nbytes,
            0.6,
        ),
        (
            f"recolor, {count} x {size} x {size} x 3, all four changes, to float32",
            partial(recolor, images, numbers, contrasts=1, **normal),
            images.nbytes + out.nbytes,
            0.4,
        ),
    ]
    return [_beside(*launch, repeats) for launch in launches]


def _shuffle(repeats: int) -> Judged:
    """Time an epoch's permutation, including the host's part: a cached dataset's first batch waits for it."""
    turns: dict[str, Candidate] = {}
    for count in (60_000, SORTED_AT_MOST, 1_281_167, 1 << 24):
        out = cupy.empty(count, cupy.int64)
        way = "sorted" if count <= SORTED_AT_MOST else "computed"
        turns[f"{count:,} samples, {way}"] = _whole(partial(shuffle, count, 0, 0, out=out))
        turns[f"{count:,} samples, on the host"] = _whole(partial(shuffle.on_host, count, 0, 0))
    return measure(Judged("an epoch's permutation", "µs", None, "none", {}), turns, repeats)


def _whole(work: Callable[[], object]) -> Candidate:
    def run() -> float:
        synchronize()
        start = perf_counter()
        work()
        synchronize()
        return (perf_counter() - start) * 1e6

    return run


def _gather(repeats: int) -> list[Judged]:
    cases = []
    for nbytes, rows, count in GATHERED:
        source = cupy.empty((rows, nbytes), cupy.uint8)
        chosen = np.random.default_rng(0).integers(0, rows, count)
        indices = cupy.asarray(chosen.astype(np.int64))
        out = cupy.empty((count, nbytes), cupy.uint8)
        name = f"gather, {count:,} of {rows:,} rows of {nbytes:,} bytes"
        moved = 2 * out.nbytes + indices.nbytes
        cases.append(_beside(name, _take(source, indices, out), moved, SHARE, repeats))
        del source, out
        cupy.get_default_memory_pool().free_all_blocks()
    return cases


def _take(source: Any, indices: Any, out: Any) -> Callable[[], object]:
    return lambda: gather(source, indices, out=out)


def _beside(name: str, launch: Callable[[], object], moved: int, share: float, repeats: int) -> Judged:
    half = moved // 2
    source, target = cupy.cuda.Memory(half), cupy.cuda.Memory(half)

    def copy() -> None:
        stream = cupy.cuda.get_current_stream()
        cupy.cuda.runtime.memcpyAsync(target.ptr, source.ptr, half, DEVICE_TO_DEVICE, stream.ptr)

    copied = "device-to-device copy moving as many bytes"
    return measure(
        Judged(
            f"{name}: {moved / MIB:,.0f} MiB read and written",
            "µs of device time",
            copied,
            f"{share:g} of the copy's bandwidth",
            {},
            "kernel",
            1 / share,
        ),
        {
            copied: on_device(copy, LAUNCHES),
            "kernel": on_device(launch, LAUNCHES),
            "host time of a launch": on_host(launch, LAUNCHES),
        },
        repeats,
    )
