"""Kernels that move memory, beside the device's own copy of as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from benchmarks.gpu.blocks import MEAN, STD
from benchmarks.gpu.clocks import DEVICE_TO_DEVICE, MIB, on_device, on_host
from benchmarks.gpu.turns import Judged, measure
from gpuloader.kernels.gather import gather
from gpuloader.kernels.normalize import normalize

LAUNCHES = 20
PICTURES = 1024
GATHERED = ((3136, 1 << 20, 1 << 17), (128, 1 << 24, 1 << 22), (150_528, 1 << 14, 1 << 12))
"""Bytes of a row, rows there are, rows taken."""
SHARE = 0.8


def kernels(repeats: int) -> list[Judged]:
    """Time both, over several times the bytes that the device's caches hold.

    A copy of n bytes moves 2 n: n are read, n are written. The floor copies half as many bytes as the kernel
    reads and writes together. Each is queued behind a spin, so that only the device's time counts.
    """
    return [*_normalize(repeats), *_gather(repeats)]


def _normalize(repeats: int) -> list[Judged]:
    count, size = PICTURES, 224
    generator = np.random.default_rng(0)
    images = cupy.asarray(generator.integers(0, 256, (count, size, size, 3), np.uint8))
    windows = np.stack([*generator.integers(0, 33, (2, count)), generator.integers(0, 2, count)], 1)
    placed = cupy.asarray(windows.astype(np.int32))
    cases = []
    for dtype, layout, crop in (
        ("float32", "CHW", None),
        ("float16", "CHW", None),
        ("bfloat16", "HWC", None),
        ("float32", "CHW", (192, 192)),
    ):
        height, width = crop or (size, size)
        shape = (3, height, width) if layout == "CHW" else (height, width, 3)
        out = cupy.empty((count, *shape), {"bfloat16": "uint16"}.get(dtype, dtype))
        read = count * height * width * 3
        options: dict[str, Any] = {"scale": 1 / 255, "out_layout": layout, "dtype": dtype, "out": out}
        if crop is not None:
            options |= {"size": crop, "windows": placed}
        name = f"normalize, {count} x 224 x 224 x 3 uint8 to {layout} {dtype}"
        name += "" if crop is None else f", random {height} x {width} windows, half of them flipped"
        cases.append(_beside(name, _bind(images, options), read + out.nbytes, repeats))
    return cases


def _bind(images: Any, options: dict[str, Any]) -> Callable[[], object]:
    return lambda: normalize(images, MEAN, STD, **options)


def _gather(repeats: int) -> list[Judged]:
    cases = []
    for nbytes, rows, count in GATHERED:
        source = cupy.empty((rows, nbytes), cupy.uint8)
        chosen = np.random.default_rng(0).integers(0, rows, count)
        indices = cupy.asarray(chosen.astype(np.int64))
        out = cupy.empty((count, nbytes), cupy.uint8)
        name = f"gather, {count:,} of {rows:,} rows of {nbytes:,} bytes"
        cases.append(_beside(name, _take(source, indices, out), 2 * out.nbytes + indices.nbytes, repeats))
        del source, out
        cupy.get_default_memory_pool().free_all_blocks()
    return cases


def _take(source: Any, indices: Any, out: Any) -> Callable[[], object]:
    return lambda: gather(source, indices, out=out)


def _beside(name: str, launch: Callable[[], object], moved: int, repeats: int) -> Judged:
    half = moved // 2
    source, target = cupy.cuda.Memory(half), cupy.cuda.Memory(half)

    def copy() -> None:
        stream = cupy.cuda.get_current_stream()
        cupy.cuda.runtime.memcpyAsync(target.ptr, source.ptr, half, DEVICE_TO_DEVICE, stream.ptr)

    copied = "device-to-device copy of as many bytes"
    return measure(
        Judged(
            f"{name}: {moved / MIB:,.0f} MiB read and written",
            "µs of the device",
            copied,
            f"{SHARE:g} of the copy's bandwidth",
            {},
            "kernel",
            1 / SHARE,
        ),
        {
            copied: on_device(copy, LAUNCHES),
            "kernel": on_device(launch, LAUNCHES),
            "host time of a launch": on_host(launch, LAUNCHES),
        },
        repeats,
    )
