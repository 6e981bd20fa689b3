"""`resample`: crop and resize images of any size as Pillow does, mirror and normalize them, in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gpuloader.checks import check_word
from gpuloader.kernels.compiler import CPP_TYPES
from gpuloader.kernels.crop import Layout, check_window, join_shape
from gpuloader.kernels.launching import Work, by_value, check_shape, declare, obtain, spread, takes
from gpuloader.kernels.normalize import CHANNELS, TARGETS, plan_finish
from gpuloader.sources.images.resizing import Taps, find_taps

Interpolation = Literal["bilinear", "bicubic"]

# The numbers of an image's geometry, all float32, which holds integers up to 2**24. Only the region of the
# image that the result depends on may be present. The numbers are: height and width of the region, and its
# first row and column in the image; the edges of the box in the image, which may have fractions; height and
# width to resize the box to; top and left of the result in the resized box; and the turn: 1 mirrors the
# result left to right, 2 top to bottom, 3 both. Pixels outside the resized box are black.
GEOMETRY = (
    *("height", "width", "row", "column", "left", "top", "right", "bottom"),
    *("tall", "wide", "y", "x", "turn"),
)

# Numbers that `tabulate` keeps for each column and row: four for each of the kernel's TABLE_LINES.
TABLE_LINES = 36

ENTRIES = {"tabulate": (), "resample<{}, {}>": (CHANNELS, TARGETS)}

# samples, pixels, out_height, out_width, out_planar, cubic, numbers
_IMAGES = np.dtype("u8, i8, i4, i4, i4, i4, i4", align=True)

_TILE_COLUMNS, _TILE_ROWS, _THREADS = 32, 112, 256
_ENOUGH_BLOCKS = 2048  # fill the largest device, so that a block may make all tiles of some columns
_BITS = 22  # of a weight's fraction; Pillow's, and 8 bits of a pixel and a sign fit into an int with them
_MOST_SIZE = 2**16 - 1  # of the result
_GREATEST = 2**24  # height or width: exact as a float, like the edges of a box
# The least and the greatest values of the numbers of `GEOMETRY`.
_LEAST = np.array((1, 1, 0, 0, 0, 0, 0, 0, 1, 1, -_GREATEST, -_GREATEST, 0), np.float32)
_MOST = np.array((*(_GREATEST,) * 12, 3), np.float32)


@declare(
    values=takes("uint8", shape=(None, None)),
    geometry=takes("float32", shape=("samples", None)),
    row_splits=takes("int64", shape=(None,)),
    tables=takes("int32", optional=True),
)
def resample(
    values: Any,
    row_splits: Any,
    geometry: Any,
    size: Sequence[int],
    *,
    interpolation: Interpolation = "bilinear",
    tables: Any = None,
    mean: ArrayLike = 0.0,
    std: ArrayLike = 1.0,
    scale: float = 1.0,
    out_layout: Layout = "CHW",
    dtype: DTypeLike = "float32",
    out: Any = None,
    stream: Any = None,
) -> Work:
    """Return a box of each image, resized, mirrored and normalized.

    The resized pixels are those of two calls of Pillow's ``Image.resize`` with `box`, the first along x, the
    second along y: antialiased, with each pass rounded to bytes. The filter reaches beyond the box into the
    image. Then an image may be mirrored, and ``(x * scale - mean) / std`` is computed as `normalize` does.

    Parameters
    ----------
    values, row_splits : array
        The pixels of all images, one after another, uint8 of shape (pixels, 1 or 3); image i
        spans ``row_splits[i]`` to ``row_splits[i + 1]``.
    geometry : array
        The 13 numbers of `GEOMETRY` for each image; further columns are not read. An image whose numbers
        are impossible is black.
    size, interpolation : (int, int), {"bilinear", "bicubic"}
        Height and width of the result, and the filter.
    tables : array or None
        Memory for the device's weights, int32 of shape (n, 36, height + width). None allocates it.
    mean, std, scale, out_layout, dtype, out, stream
        As for `normalize`; also dtype uint8, which is not normalized.

    >>> image = np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6, 1)
    >>> pixels, splits = image.reshape(-1, 1), np.array([0, 24])
    >>> whole = np.array([[4, 6, 0, 0, 0, 0, 6, 4, 2, 3, 0, 0, 0]], np.float32)
    >>> resample.on_host(pixels, splits, whole, (2, 3), dtype="uint8").tolist()
    [[[[50, 68, 86], [144, 162, 180]]]]
    """
    if geometry.shape[1] < len(GEOMETRY):
        raise ValueError(f"geometry must have {len(GEOMETRY)} columns or more, got shape {geometry.shape}")
    samples, channels = len(geometry), values.shape[1]
    check_shape("row_splits", row_splits, (samples + 1,))
    check_word("interpolation", interpolation, ("bilinear", "bicubic"))
    height, width = check_window(size, _MOST_SIZE, _MOST_SIZE)
    target, held, constants, write = plan_finish(channels, mean, std, scale, out_layout, dtype)

    def on_host(result: NDArray[Any]) -> None:
        pixels = np.zeros((samples, height, width, channels), np.uint8)
        known = geometry[:, : len(GEOMETRY)]
        is_possible = ((known >= _LEAST) & (known <= _MOST)).all(1) & (known[:, 4:6] < known[:, 6:8]).all(1)
        for number, numbers in enumerate(known.tolist()):
            begin, end = row_splits[number : number + 2].tolist()
            # Black, not refused, as on the device, where a check would wait for the copy of the geometry.
            if not (is_possible[number] and 0 <= begin <= end <= len(values)):
                continue
            tall, wide, *corner = map(int, numbers[:4])
            *window, turn = map(int, numbers[8:])
            if tall * wide <= end - begin:
                region = values[begin : begin + tall * wide].reshape(tall, wide, -1)
                resized = resize_on_host(region, numbers[4:8], (height, width), interpolation, window, corner)
                pixels[number] = resized[:: -1 if turn & 2 else 1, :: -1 if turn & 1 else 1]
        write(pixels, result)

    def on_device(result: Any) -> Iterator[Any]:
        numbers = out_layout == "CHW", interpolation == "bicubic", geometry.shape[1]
        images = by_value((samples, len(values), height, width, *numbers), _IMAGES)
        shape = samples, TABLE_LINES, height + width
        weights = obtain("tables", tables, shape, np.int32, result.device, stream)
        yield "tabulate", spread(height + width, samples), (row_splits, geometry, weights, images)
        # A block makes the tiles of some columns, or only one where there are few images. Where scales are
        # large, tiles are smaller and a block makes more of them.
        tiles = -(-width // _TILE_COLUMNS)
        if tiles * samples < _ENOUGH_BLOCKS:
            tiles *= -(-height // _TILE_ROWS)
        entry = f"resample<{channels}, {CPP_TYPES[target]}>"
        arguments = values, row_splits, geometry, weights, result, images, constants
        yield entry, spread(tiles * _THREADS, samples), arguments

    return Work((samples, *join_shape(channels, height, width, out_layout)), held, on_host, on_device)


def resize_on_host(
    region: NDArray[np.uint8],
    box: Sequence[float],
    size: Sequence[int],
    interpolation: Interpolation = "bilinear",
    window: Sequence[int] | None = None,
    corner: Sequence[int] = (0, 0),
) -> NDArray[np.uint8]:
    """Return a box of one image, resized as Pillow does in two calls: the definition of `resample`.

    `box` is left, top, right and bottom in the image, and `size` height and width of the result. The region
    is the part of the image that the result depends on, or more; `corner` is its first row and column in the
    image. `window` has height and width to resize the box to, and top and left of the result in the resized
    box; None resizes the box to `size`.

    >>> image = np.array([[[0], [100], [200], [100]]], np.uint8)
    >>> resize_on_host(image, (0, 0, 4, 1), (1, 2)).ravel().tolist()
    [71, 143]
    """
    left, top, right, bottom = box
    tall, wide, y, x = (*size, 0, 0) if window is None else window
    # The part of the result that lies in the resized box; the rest is black.
    rows, columns = range(max(-y, 0), min(tall - y, size[0])), range(max(-x, 0), min(wide - x, size[1]))
    result = np.zeros((*size, region.shape[2]), np.uint8)
    if rows and columns:
        (first, near), cubic = corner, interpolation == "bicubic"
        firsts, counts, weights = _find_taps(
            first, len(region), top, bottom, tall, rows.start + y, len(rows), cubic
        )
        across = _find_taps(near, region.shape[1], left, right, wide, columns.start + x, len(columns), cubic)
        begin, end = int(firsts[0]), int(firsts[-1] + counts[-1])
        lines = _resize_rows(region[begin:end].swapaxes(0, 1), across).swapaxes(0, 1)
        inside = result[rows.start : rows.stop, columns.start : columns.stop]
        inside[...] = _resize_rows(lines, (firsts - begin, counts, weights))
    return result


_find_taps = lru_cache(maxsize=256)(find_taps)  # the images of a batch often have the same size


def _resize_rows(rows: NDArray[np.uint8], taps: Taps) -> NDArray[np.uint8]:
    """Return weighted sums of rows, rounded to bytes."""
    firsts, counts, weights = taps
    # Starts with half a unit, so that the shift rounds to the nearest.
    sums = np.full((len(firsts), *rows.shape[1:]), 1 << (_BITS - 1), np.int32)
    wide = rows.astype(np.int32)
    for tap in range(int(counts.max(initial=0))):
        chosen = np.minimum(firsts + tap, len(rows) - 1)
        sums += wide[chosen] * weights[:, tap].reshape(-1, *[1] * (rows.ndim - 1))
    return np.asarray(np.clip(sums >> _BITS, 0, 255), np.uint8)
