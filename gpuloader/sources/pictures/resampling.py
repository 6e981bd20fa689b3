"""Resamples pictures with Pillow, columns first, whatever order Pillow itself would choose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuloader.sources.pictures.decoding import Pixels, load_pillow
from gpuloader.sources.pictures.geometry import Geometry

_STRIP = 4 << 20  # bytes of a picture that are copied at once for the first pass
_MODES = {1: "L", 3: "RGB"}


def resample(picture: Pixels | Any, geometry: Geometry) -> Any:
    """Return the picture that a geometry describes, as an image of Pillow.

    It equals Pillow's ``resize`` of the columns, and then of the rows, bit for bit. Only the rows that the
    result depends on are computed.

    Parameters
    ----------
    picture : numpy.ndarray or PIL.Image.Image
        uint8 pixels of shape (height, width, channels) with 1 or 3 channels, or an image of mode L or RGB.
    geometry : Geometry
        What to take from the picture.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("PIL")
    >>> ramp = np.repeat(np.arange(0, 200, 2, np.uint8), 3).reshape(1, 100, 3)
    >>> geometry = Geometry.of(1, 100).resized((1, 4), "bilinear")
    >>> np.asarray(resample(ramp, geometry))[0, :, 0].tolist()
    [29, 74, 124, 169]
    """
    top, left, height, width = geometry.window
    if geometry.filter is None:
        image = _take(picture, top, left, height, width)
    else:
        image = _resize(picture, geometry)
        if (top, left, height, width) != (0, 0, *geometry.size):
            image = image.crop((left, top, left + width, top + height))
    pillow = load_pillow()
    if geometry.flip:
        image = image.transpose(pillow.Transpose.FLIP_LEFT_RIGHT)
    if geometry.flop:
        image = image.transpose(pillow.Transpose.FLIP_TOP_BOTTOM)
    return image


def _resize(picture: Pixels | Any, geometry: Geometry) -> Any:
    pillow = load_pillow()
    kind = pillow.Resampling[str(geometry.filter).upper()]
    left, top, right, bottom = geometry.box
    height, width = geometry.size
    tall, wide = _measure(picture)
    first, _, last, far = geometry.find_region()
    last, far = min(last, tall), min(max(far, math.ceil(right)), wide)
    # Rows above and below are not read, but with them the box needs no shift, which would round otherwise.
    below = max(math.ceil(bottom), last)
    step = max(_STRIP // (far * 4), 1)
    strips: list[tuple[int, Any]] = []
    for start in range(first, last, step):
        rows = min(step, last - start)
        image = _take(picture, start, 0, rows, far)
        if (left, right) != (0, width) or far != width:
            image = image.resize((width, rows), kind, (left, 0, right, rows))
        strips.append((start, image))
    if len(strips) > 1 or first or below > last:
        image = pillow.new(image.mode, (width, below))
        for start, strip in strips:
            image.paste(strip, (0, start))
    if (top, bottom) != (0, height) or below != height:
        image = image.resize((width, height), kind, (0, top, width, bottom))
    return image


def _measure(picture: Pixels | Any) -> tuple[int, int]:
    if isinstance(picture, np.ndarray):
        return picture.shape[0], picture.shape[1]
    return picture.height, picture.width


def _take(picture: Pixels | Any, top: int, left: int, height: int, width: int) -> Any:
    """Return a part of a picture as an image of Pillow; what lies outside of the picture is black."""
    if not isinstance(picture, np.ndarray):
        return picture.crop((left, top, left + width, top + height))
    tall, wide = picture.shape[:2]
    if top < 0 or left < 0 or top + height > tall or left + width > wide:
        whole = _take(picture, 0, 0, tall, wide)
        return whole.crop((left, top, left + width, top + height))
    channels = picture.shape[2]
    # The decoder for raw data copies rows from anywhere in memory, so only this part is touched.
    start = (top * wide + left) * channels
    data = picture.reshape(-1)[start : start + ((height - 1) * wide + width) * channels]
    mode = _MODES[channels]
    return load_pillow().frombytes(mode, (width, height), data, "raw", mode, wide * channels, 1)


def as_pixels(image: Any) -> Pixels:
    """Return the pixels of an image of Pillow, of shape (height, width, channels)."""
    channels = len(image.getbands())
    return np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, channels)
