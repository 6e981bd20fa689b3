"""`blend`, `paste` and `mix_labels`: mix each sample of a batch with the one before it.

Each has a launcher for the device, and a twin in NumPy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.kernels.dtypes import FLOATS, INTEGERS, WORDS, cpp_type, resolve_target, round_to
from gpuloader.kernels.launching import (
    Library,
    check_array,
    check_size,
    launch,
    make_struct,
    obtain,
    obtain_on_device,
    spread,
)
from gpuloader.kernels.windows import (
    Layout,
    as_pixels,
    check_images,
    geometry_type,
)

_FLOATS = ("float16", "float32", "float64")

ENTRIES = (
    *(f"blend<{cpp_type(name)}>" for name in FLOATS),
    *(f"paste<{word}>" for size, word in WORDS.items() if size <= 8),
    *(f"mix_labels<{cpp_type(name)}>" for name in (*INTEGERS, *_FLOATS)),
)

_OWN = 4
_EACH = 4  # neighboring values that a thread makes
_IMAGES = geometry_type("samples", "values", "line", "lines", "pixel")
_LABELS = np.dtype([("samples", np.uint64), ("classes", np.uint64)])


def blend(
    images: Any, mix: Any, *, dtype: DTypeLike | None = None, out: Any = None, stream: Any = None
) -> Any:
    """Return each image of a batch blended with the one before it, the first with the last, on the device.

    The kernel computes ``before * (1 - own) + image * own`` and rounds each operation: in float64 for images
    of float64, otherwise in float32, which is rounded once more at the end if the images have 16 bits.

    Parameters
    ----------
    images : cupy.ndarray
        The images, of any shape (n, ...); float16, float32 or float64; fewer than 2**31 values per sample;
        contiguous.
    dtype : dtype-like or None
        The dtype of the images; "bfloat16" if they hold its bits in uint16. None takes that of the array.
    mix : cupy.ndarray
        Shape (n, 5), int32. The fifth number of the first row is the own share of each image, as the bits
        of a float32; nothing else of it is read.
    out : cupy.ndarray or None
        The array to write to, with the shape and the dtype of the images; contiguous, not overlapping them.
        None allocates a new array.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the images' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or has another dtype.
    ValueError
        An array has another shape, is not contiguous, or is on another device.
    """
    name, counts = _check_floats(images, mix, dtype, "cupy")
    return _launch("blend", cpp_type(name), images, mix, counts, out, stream)


def blend_on_host(
    images: NDArray[Any],
    mix: NDArray[np.int32],
    *,
    dtype: DTypeLike | None = None,
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return each image of a batch blended with the one before it: the twin of `blend`.

    Examples
    --------
    >>> mix = np.zeros((2, 5), np.int32)
    >>> mix[0, 4] = np.float32(0.75).view(np.int32)
    >>> blend_on_host(np.array([[[[0.0]]], [[[4.0]]]]), mix).ravel().tolist()
    [1.0, 3.0]
    """
    name, _ = _check_floats(images, mix, dtype, "numpy")
    result: NDArray[Any] = obtain("out", out, "numpy", images.shape, [images.dtype])
    for position in range(len(images)):  # one at a time, so that it stays in the cache
        here, before = slice(position, position + 1), slice(position - 1, position or None)
        if name == "bfloat16":
            mixed = _mix_two(_as_floats(images[before]), _as_floats(images[here]), mix)
            result[here] = round_to(mixed, name)
        else:
            result[here] = _mix_two(images[before], images[here], mix)
    return result


def paste(images: Any, mix: Any, *, layout: Layout = "CHW", out: Any = None, stream: Any = None) -> Any:
    """Return each image of a batch with a window of the one before it pasted in, on the device.

    Parameters
    ----------
    images : cupy.ndarray
        The images, shape (n, height, width, channels) or (n, channels, height, width) depending on `layout`.
        Any dtype of 1, 2, 4 or 8 bytes; at least 1 channel; fewer than 2**31 values per sample; contiguous.
    mix : cupy.ndarray
        Shape (n, 5), int32. The first row begins with top, left, bottom and right of the window; nothing else
        of it is read. What reaches over the edge of the images is cut off.
    layout : {"HWC", "CHW"}
        The layout of the images and of the result.
    out : cupy.ndarray or None
        The array to write to, with the shape and the dtype of the images; contiguous, not overlapping them.
        None allocates a new array.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the images' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or has another dtype.
    ValueError
        An array has another shape, is not contiguous, or is on another device.
    """
    counts = _check_images(images, mix, layout, "cupy")
    return _launch("paste", WORDS[images.itemsize], images, mix, counts, out, stream)


def paste_on_host(
    images: NDArray[Any],
    mix: NDArray[np.int32],
    *,
    layout: Layout = "CHW",
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return each image of a batch with a window of the one before it pasted in: the twin of `paste`.

    Examples
    --------
    >>> images = np.array([[[[1, 1, 1]]], [[[2, 2, 2]]]])
    >>> paste_on_host(images, np.array([[0, 1, 1, 9, 0]] * 2, np.int32)).reshape(2, 3).tolist()
    [[1, 2, 2], [2, 1, 1]]
    """
    _check_images(images, mix, layout, "numpy")
    result: NDArray[Any] = obtain("out", out, "numpy", images.shape, [images.dtype])
    np.copyto(result, images)
    if len(images):
        top, left, bottom, right = (max(one, 0) for one in mix[0, :_OWN].tolist())
        place = slice(None), slice(top, bottom), slice(left, right)
        as_pixels(result, layout)[place] = np.roll(as_pixels(images, layout)[place], 1, 0)
    return result


def mix_labels(labels: Any, mix: Any, *, classes: int, out: Any = None, stream: Any = None) -> Any:
    """Return each sample's shares of all classes after `blend` or `paste`, on the device.

    The kernel computes ``before * (1 - own) + sample * own`` and rounds each operation: in float64 for shares
    of float64, otherwise in float32.

    Parameters
    ----------
    labels : cupy.ndarray
        The labels, contiguous: of shape (n,) and any integer dtype, of which one outside 0 to ``classes - 1``
        belongs to no class; or shares, of shape (n, classes) and float16, float32 or float64.
    mix : cupy.ndarray
        As for `blend`.
    classes : int
        The number of classes.
    out : cupy.ndarray or None
        The array to write to, float32 of shape (n, classes); contiguous. None allocates a new array.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the labels' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or has another dtype; `classes` is not an integer.
    ValueError
        An array has another shape, is not contiguous, or is on another device; `classes` is below 0.
    """
    shape = _check_labels(labels, mix, classes, "cupy")
    result, device = obtain_on_device(out, shape, np.float32, labels=labels, mix=mix)
    if result.size:
        arguments = labels, mix, result, make_struct(_LABELS, samples=shape[0], classes=shape[1])
        entry = f"mix_labels<{cpp_type(labels.dtype.name)}>"
        launch("mix", entry, spread(result.size), arguments, device, stream)
    return result


def mix_labels_on_host(
    labels: NDArray[Any],
    mix: NDArray[np.int32],
    *,
    classes: int,
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return each sample's shares of all classes after `blend` or `paste`: the twin of `mix_labels`.

    Examples
    --------
    >>> mix = np.zeros((2, 5), np.int32)
    >>> mix[0, 4] = np.float32(0.75).view(np.int32)
    >>> mix_labels_on_host(np.array([2, 0]), mix, classes=3).tolist()
    [[0.25, 0.0, 0.75], [0.75, 0.0, 0.25]]
    """
    shape = _check_labels(labels, mix, classes, "numpy")
    result: NDArray[Any] = obtain("out", out, "numpy", shape, [np.float32])
    rows = labels
    if labels.ndim == 1:
        rows = np.zeros(shape, np.float32)
        known = np.flatnonzero((labels >= 0) & (labels < classes))
        rows[known, labels[known].astype(np.intp)] = 1
    if len(rows):
        result[...] = _mix_two(np.roll(rows, 1, 0), rows, mix)
    return result


def _mix_two(before: NDArray[Any], own: NDArray[Any], mix: NDArray[np.int32]) -> NDArray[Any]:
    share = mix[0, _OWN:].view(np.float32)
    if own.dtype == np.float16:
        before, own = before.astype(np.float32), own.astype(np.float32)
    mixed: NDArray[Any] = before * (np.float32(1) - share) + own * share
    return mixed


def _launch(
    name: str, kind: str, images: Any, mix: Any, counts: dict[str, int], out: Any, stream: Any
) -> Any:
    result, device = obtain_on_device(out, images.shape, images.dtype, images=images, mix=mix)
    if result.size:
        grid = spread(-(-counts["values"] // _EACH), counts["samples"])
        arguments = images, mix, result, make_struct(_IMAGES, **counts)
        launch("mix", f"{name}<{kind}>", grid, arguments, device, stream)
    return result


def _as_floats(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    floats: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return floats


def _check_floats(
    images: Any, mix: Any, dtype: DTypeLike | None, library: Library
) -> tuple[str, dict[str, int]]:
    """Return the name of the images' dtype, and the kernel's geometry, as if an image were a row."""
    if dtype is None:
        check_array("images", images, library, dtypes=_FLOATS)
        name = images.dtype.name
    else:
        name, held = resolve_target(dtype, FLOATS)
        check_array("images", images, library, dtypes=[held])
    if not images.ndim:
        raise ValueError("images must have at least one dimension, got shape ()")
    values = check_size("values per image", math.prod(images.shape[1:]), 0, 2**31)
    check_array("mix", mix, library, shape=(len(images), _OWN + 1), dtypes=[np.int32])
    return name, {"samples": len(images), "values": values}


def _check_images(images: Any, mix: Any, layout: str, library: Library) -> dict[str, int]:
    """Return the kernel's geometry."""
    channels, height, width = check_images(images, layout, library)
    check_array("mix", mix, library, shape=(len(images), _OWN + 1), dtypes=[np.int32])
    pixel = channels if layout == "HWC" else 1
    values = channels * height * width
    return {"samples": len(images), "values": values, "line": width * pixel, "lines": height, "pixel": pixel}


def _check_labels(labels: Any, mix: Any, classes: int, library: Library) -> tuple[int, int]:
    """Return the shape of the result."""
    check_array("labels", labels, library)
    classes = check_size("classes", classes, 0)
    if labels.ndim == 1:
        check_array("labels", labels, library, dtypes=INTEGERS)
    else:
        check_array("labels", labels, library, shape=(None, classes), dtypes=_FLOATS)
    check_array("mix", mix, library, shape=(len(labels), _OWN + 1), dtypes=[np.int32])
    return len(labels), classes
