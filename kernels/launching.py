"""Shared by launchers and twins: argument checks, arrays for results, grid sizes, and the launch itself."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.kernels.compiling import load_kernel
from gpuloader.kernels.recording import Launch, note_launch, only_noted

Library = Literal["numpy", "cupy"]
"""The library whose arrays a function takes: CuPy for launchers, NumPy for twins."""

_NULL = np.uint64(0)
_BLOCK = 256
_GREATEST_X, _GREATEST_Y = 2**31 - 1, 65535
_WORDS_PER_LANE = 4
_MOST_LINES = 8
_ENOUGH_BLOCKS = 1024  # fill the largest device, so that lanes may have more than one row each


def check_array(
    name: str,
    array: Any,
    library: Library,
    *,
    shape: Sequence[int | None] | None = None,
    dtypes: Sequence[DTypeLike] | None = None,
) -> None:
    """Raise unless `array` can be passed to a kernel as it is.

    Parameters
    ----------
    name : str
        The parameter's name, for the message.
    array : object
        The argument.
    library : {"numpy", "cupy"}
        The library whose array it must be.
    shape : sequence of int or None, optional
        The required shape; None in it allows any size.
    dtypes : sequence of dtype-like, optional
        The allowed dtypes; without them, any dtype except object.

    Raises
    ------
    TypeError
        The argument is not an array of that library, or has another dtype.
    ValueError
        The array has another shape, is not contiguous in C order, or is not aligned to its dtype.
    """
    module = sys.modules.get(library)
    if module is None or not isinstance(array, module.ndarray):
        found = f"{type(array).__module__}.{type(array).__name__}"
        raise TypeError(f"{name} must be a {library}.ndarray, got {found}")
    if dtypes is not None and not any(array.dtype == np.dtype(dtype) for dtype in dtypes):
        expected = " or ".join(np.dtype(dtype).name for dtype in dtypes)
        raise TypeError(f"{name} must have dtype {expected}, got {array.dtype}")
    if array.dtype.hasobject:
        raise TypeError(f"{name} must hold plain numbers, got {array.dtype}")
    if shape is not None and not _fits(array.shape, shape):
        raise ValueError(f"{name} must have shape {_show(shape)}, got {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{name} must be contiguous, got shape {array.shape} with strides {array.strides}; "
            f"pass {library}.ascontiguousarray({name})"
        )
    address = array.ctypes.data if library == "numpy" else array.data.ptr
    if array.size and address % array.dtype.alignment:
        raise ValueError(f"{name} must be aligned to its dtype {array.dtype}, got address {address}")


def check_size(name: str, value: object, least: int, limit: int = 2**63) -> int:
    """Return `value` as an int if it is an integer from `least` to below `limit`.

    Raises
    ------
    TypeError
        The value is not an integer.
    ValueError
        The value is out of range.

    Examples
    --------
    >>> check_size("classes", np.int64(10), least=0)
    10
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if not least <= value < limit:
        raise ValueError(f"{name} must be from {least} to {limit - 1}, got {value}")
    return int(value)


def obtain(
    name: str,
    out: Any,
    library: Library,
    shape: tuple[int, ...],
    dtypes: Sequence[DTypeLike],
    device: Any = None,
) -> Any:
    """Return the array to write the result into: `out`, which must fit exactly, or a new array for None.

    Parameters
    ----------
    name : str
        The parameter's name, for the message.
    out : array or None
        The argument.
    library : {"numpy", "cupy"}
        The library whose array it must be.
    shape : tuple of int
        The required shape.
    dtypes : sequence of dtype-like
        The allowed dtypes; a new array has the first.
    device : cupy.cuda.Device or None
        The device it must be on.

    Raises
    ------
    TypeError
        `out` is not an array of that library, or has another dtype.
    ValueError
        `out` has another shape, is not contiguous, is on another device, or is read-only.
    """
    if out is None:
        with on_device(device):
            return sys.modules[library].empty(shape, dtypes[0])
    check_array(name, out, library, shape=shape, dtypes=dtypes)
    if not getattr(out.flags, "writeable", True):
        raise ValueError(f"{name} must be writable")
    if device is not None and out.device.id != device.id:
        raise ValueError(f"{name} must be on gpu:{device.id}, got gpu:{out.device.id}")
    return out


def obtain_on_device(out: Any, shape: tuple[int, ...], dtype: DTypeLike, **inputs: Any) -> tuple[Any, Any]:
    """Return the array to write a kernel's result into, and the device that it and all inputs are on.

    Parameters
    ----------
    out : cupy.ndarray or None
        The caller's argument; None allocates a new array.
    shape, dtype : tuple of int, dtype-like
        The result's shape and dtype.
    **inputs : cupy.ndarray or None
        The input arrays by name; None is ignored.

    Raises
    ------
    TypeError
        `out` is not a CuPy array, or has another dtype.
    ValueError
        The arrays are on several devices, or `out` does not fit; see `obtain`.
    """
    device = find_device(**inputs)
    return obtain("out", out, "cupy", shape, [dtype], device), device


def make_struct(dtype: np.dtype[Any], **values: Any) -> NDArray[Any]:
    """Return a structure that `launch` passes to a kernel by value, as an array of one element.

    >>> make_struct(np.dtype([("height", np.int32), ("width", np.int32)]), height=2, width=3).tolist()
    (2, 3)
    """
    struct = np.zeros((), dtype)
    for name, value in values.items():
        struct[name] = value
    return struct


def find_device(**arrays: Any) -> Any:
    """Return the one device that all arrays are on; None is ignored.

    Raises
    ------
    ValueError
        The arrays are on several devices.
    """
    devices = {name: array.device for name, array in arrays.items() if array is not None}
    if len({device.id for device in devices.values()}) > 1:
        found = ", ".join(f"{name} on gpu:{device.id}" for name, device in devices.items())
        raise ValueError(f"arrays must be on one device, got {found}")
    return next(iter(devices.values()), None)


def on_device(device: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which `device` is the current device; None changes nothing.

    A device that is current is not entered, because CuPy sets the device again when it is left.
    """
    if device is None or device.id == sys.modules["cupy"].cuda.runtime.getDevice():
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = device
    return context


def current_device() -> Any:
    """Return CuPy's current device of this thread."""
    import cupy

    return cupy.cuda.Device()


def sort(array: Any, device: Any, stream: Any) -> None:
    """Sort a CuPy array in place on a stream of its device; temporary memory comes from CuPy's pool."""
    with on_device(device), on_stream(stream):
        array.sort()


def on_stream(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which `stream` is the current stream; None changes nothing."""
    context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext() if stream is None else stream
    return context


def launch(
    name: str,
    entry: str | None,
    shape: tuple[tuple[int, ...], tuple[int, ...]],
    arguments: tuple[Any, ...],
    device: Any,
    stream: Any,
) -> None:
    """Launch a kernel on a stream of a device.

    Parameters
    ----------
    name, entry : str
        The kernel's file and entry, as in `load_kernel`.
    shape : tuple
        Grid and block, from `spread`, `spread_rows` or `spread_images`.
    arguments : tuple
        CuPy arrays, NumPy scalars and structures (see `make_struct`) of exactly the types that the kernel
        takes; None is a null pointer.
    device : cupy.cuda.Device
        The device that the arrays are on.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of that device.
    """
    if only_noted(name, entry):
        return
    grid, block = shape
    passed = tuple(_NULL if argument is None else argument for argument in arguments)
    with on_device(device):
        kernel = find_kernel(name, entry)
        kernel(grid, block, passed, stream=stream)
    note_launch(Launch(entry or name, kernel, grid, block, passed))


def find_kernel(name: str, entry: str | None) -> Any:
    """Return a kernel ready to launch on the current device; see `load_kernel`."""
    return load_kernel(name, entry)


def spread(items: int, samples: int = 1) -> tuple[tuple[int, int], tuple[int]]:
    """Return grid and block for one thread per item, with samples along the grid's y.

    >>> spread(1000), spread(20, samples=70_000)
    (((4, 1), (256,)), ((1, 65535), (32,)))
    """
    block = min(_BLOCK, max(-(-items // 32) * 32, 32))
    return (_within(-(-items // block), _GREATEST_X), _within(samples, _GREATEST_Y)), (block,)


def spread_rows(rows: int, words: int, each: int = 1) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return grid and block for copying rows of words: lanes along a row, several rows per block.

    Long rows are split over the grid's y. If there are enough rows to fill a device, a lane copies up to
    `each` times as many words: of more rows, or of a longer part of one.

    >>> spread_rows(rows=1000, words=3), spread_rows(rows=10**6, words=3, each=4)
    (((12, 1), (3, 85)), ((2942, 1), (3, 85)))
    >>> spread_rows(rows=2, words=10_000), spread_rows(rows=5000, words=10_000, each=4)
    (((2, 10), (250, 1)), ((5000, 3), (250, 1)))
    """
    lanes = count_lanes(words)
    beside = _BLOCK // lanes
    blocks, parts = -(-rows // beside), -(-words // (lanes * _WORDS_PER_LANE))
    each = min(each, max(blocks * parts // _ENOUGH_BLOCKS, 1))
    if parts > 1:
        parts = -(-parts // each)
    else:
        blocks = -(-blocks // each)
    return (_within(blocks, _GREATEST_X), _within(parts, _GREATEST_Y)), (lanes, beside)


def spread_images(
    samples: int, lines: int, words: int, planes: int = 1, each: int = 1
) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Return grid and block for images: lanes along a line, with `each` words per lane, and several lines.

    Lines are counted by the grid's x, samples by its y, and planes by its z. If there are enough to fill a
    device, each lane has up to 8 lines, so that threads set out less often.

    >>> spread_images(samples=64, lines=28, words=21), spread_images(samples=4096, lines=224, words=42)
    (((3, 64, 1), (21, 12)), ((5, 4096, 1), (42, 6)))
    """
    lanes = count_lanes(-(-words // each))
    beside = min(_BLOCK // lanes, max(lines, 1))
    blocks = -(-lines // beside)
    each_lines = min(_MOST_LINES, max(blocks * samples * planes // _ENOUGH_BLOCKS, 1))
    x = _within(-(-blocks // each_lines), _GREATEST_X)
    return (x, _within(samples, _GREATEST_Y), _within(planes, _GREATEST_Y)), (lanes, beside)


def count_lanes(words: int) -> int:
    """Return how many lanes copy a row of words: one for each, or an even share of many.

    >>> count_lanes(21), count_lanes(300)
    (21, 150)
    """
    words = max(words, 1)
    return -(-words // -(-words // _BLOCK))


def _within(size: int, greatest: int) -> int:
    return min(max(size, 1), greatest)


def find_word(*sizes: int) -> int:
    """Return how many bytes can be moved at once: the largest power of two, up to 16, that divides all sizes.

    >>> find_word(12, 256), find_word(32, 0), find_word(3)
    (4, 16, 1)
    """
    return math.gcd(16, *sizes)


def _fits(shape: Sequence[int], expected: Sequence[int | None]) -> bool:
    return len(shape) == len(expected) and all(
        wanted is None or size == wanted for size, wanted in zip(shape, expected, strict=True)
    )


def _show(shape: Sequence[int | None]) -> str:
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
