"""`blend`, `paste` and `mix_labels`: mix each sample of a batch with the previous one.

The first sample is mixed with the last one. A batch has one mix, drawn on the host: an int32 array of shape
(n, 5), whose first row alone is read. It is top, left, bottom and right of a window, and each sample's own
share, as the bits of a float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.kernels import cast, launching
from gpuloader.kernels.cast import FLOATS, NUMPY_FLOATS
from gpuloader.kernels.compiler import CPP_TYPES
from gpuloader.kernels.crop import IMAGES, Layout, as_hwc, check_images
from gpuloader.kernels.one_hot import one_hot

ENTRIES = {
    "blend<{}>": (FLOATS,),
    "paste<{}>": (cast.NUMBER_WORDS,),
    "mix_labels<{}>": ((*cast.INTEGERS, *NUMPY_FLOATS),),
}

_OWN = 4
_EACH = 4  # neighboring values that a thread makes
# A row per sample, all alike: a transform's draws have a row per sample, and are staged unchanged.
_MIX = launching.takes("int32", shape=("samples", _OWN + 1))


@launching.declare(images=launching.takes(shape=("samples", ...)), mix=_MIX)
def blend(
    images: Any, mix: Any, *, dtype: DTypeLike | None = None, out: Any = None, stream: Any = None
) -> launching.Work:
    """Return each image of a batch blended with the previous one: ``before * (1 - own) + image * own``.

    Images may have any shape (n, ...), with fewer than 2**31 values per sample. Each operation is rounded:
    in float64 for images of float64, otherwise in float32, which is rounded once more at the end if the
    images have 16 bits. `dtype` is "bfloat16" for images that hold its bits in uint16; None takes that of
    the array.

    >>> mix = np.zeros((2, 5), np.int32)
    >>> mix[0, 4] = np.float32(0.75).view(np.int32)
    >>> blend.on_host(np.array([[[[0.0]]], [[[4.0]]]]), mix).ravel().tolist()
    [1.0, 3.0]
    """
    if dtype is None:
        launching.check_dtype("images", images, NUMPY_FLOATS)
        name = images.dtype.name
    else:
        name, held = cast.resolve_target(dtype, FLOATS)
        launching.check_dtype("images", images, [held])
    values = launching.check_size("values per image", math.prod(images.shape[1:]), 0, 2**31)

    def on_host(result: NDArray[Any]) -> None:
        for position in range(len(images)):  # one at a time, so that it stays in the cache
            here, before = slice(position, position + 1), slice(position - 1, position or None)
            if name == "bfloat16":
                mixed = _mix_two(_as_floats(images[before]), _as_floats(images[here]), mix)
                result[here] = cast.round_to(mixed, name)
            else:
                result[here] = _mix_two(images[before], images[here], mix)

    def on_device(result: Any) -> Iterator[Any]:
        # The rest of the structure is of `paste`: no rows, no pixels.
        counts = launching.by_value([len(images), values, 0, 0, 0])
        grid = launching.spread(-(-values // _EACH), len(images))
        yield f"blend<{CPP_TYPES[name]}>", grid, (images, mix, result, counts)

    return launching.Work(images.shape, images.dtype, on_host, on_device)


@launching.declare(images=launching.takes(shape=IMAGES), mix=_MIX)
def paste(
    images: Any, mix: Any, *, layout: Layout = "CHW", out: Any = None, stream: Any = None
) -> launching.Work:
    """Return each image of a batch with a window of the previous one pasted in.

    Images are those of `crop`. Parts beyond the edge of the images are cut off.

    >>> images = np.array([[[[1, 1, 1]]], [[[2, 2, 2]]]])
    >>> paste.on_host(images, np.array([[0, 1, 1, 9, 0]] * 2, np.int32)).reshape(2, 3).tolist()
    [[1, 2, 2], [2, 1, 1]]
    """
    channels, height, width = check_images(images, layout)

    def on_host(result: NDArray[Any]) -> None:
        np.copyto(result, images)
        if len(images):
            # A negative end of a slice would count from the other end.
            top, left, bottom, right = (max(one, 0) for one in mix[0, :_OWN].tolist())
            window = slice(None), slice(top, bottom), slice(left, right)
            as_hwc(result, layout)[window] = np.roll(as_hwc(images, layout)[window], 1, 0)

    def on_device(result: Any) -> Iterator[Any]:
        pixel = channels if layout == "HWC" else 1
        values = channels * height * width
        counts = launching.by_value([len(images), values, width * pixel, height, pixel])
        grid = launching.spread(-(-values // _EACH), len(images))
        yield f"paste<{cast.WORDS[images.itemsize]}>", grid, (images, mix, result, counts)

    return launching.Work(images.shape, images.dtype, on_host, on_device)


@launching.declare(labels=launching.takes(shape=("samples", ...)), mix=_MIX)
def mix_labels(labels: Any, mix: Any, *, classes: int, out: Any = None, stream: Any = None) -> launching.Work:
    """Return each sample's shares of all classes after `blend` or `paste`, float32 of shape (n, classes).

    Labels are integers of shape (n,), and one outside 0 to ``classes - 1`` belongs to no class; or shares,
    floats of shape (n, classes). The kernel computes ``before * (1 - own) + sample * own`` and rounds each
    operation: in float64 for shares of float64, otherwise in float32.

    >>> mix = np.zeros((2, 5), np.int32)
    >>> mix[0, 4] = np.float32(0.75).view(np.int32)
    >>> mix_labels.on_host(np.array([2, 0]), mix, classes=3).tolist()
    [[0.25, 0.0, 0.75], [0.75, 0.0, 0.25]]
    """
    classes = launching.check_size("classes", classes, 0)
    if labels.ndim == 1:
        launching.check_dtype("labels", labels, cast.INTEGERS)
    else:
        launching.check_dtype("labels", labels, NUMPY_FLOATS)
        launching.check_shape("labels", labels, (None, classes))

    def on_host(result: NDArray[Any]) -> None:
        rows = one_hot.on_host(labels, classes) if labels.ndim == 1 else labels
        if len(rows):
            result[...] = _mix_two(np.roll(rows, 1, 0), rows, mix)

    def on_device(result: Any) -> Iterator[Any]:
        arguments = labels, mix, result, launching.by_value([len(labels), classes], np.uint64)
        yield f"mix_labels<{CPP_TYPES[labels.dtype.name]}>", launching.spread(result.size), arguments

    return launching.Work((len(labels), classes), np.float32, on_host, on_device)


def _mix_two(before: NDArray[Any], own: NDArray[Any], mix: NDArray[np.int32]) -> NDArray[Any]:
    share = mix[0, _OWN:].view(np.float32)
    # NumPy rounds every operation on halves to a half; the kernel rounds halves once, at the end.
    if own.dtype == np.float16:
        before, own = before.astype(np.float32), own.astype(np.float32)
    return np.asarray(before * (np.float32(1) - share) + own * share)


def _as_floats(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
