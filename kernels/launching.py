"""What launchers and twins share: checked arguments, results to write into, grids, and the launch itself."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.kernels.compiling import load_kernel

Library = Literal["numpy", "cupy"]
"""Whose arrays are taken: the launcher's or the twin's."""

NO_ARRAY = np.uint64(0)
"""Where a kernel takes a pointer, and has nothing to point to."""

_BLOCK = 256
_GREATEST_X, _GREATEST_Y = 2**31 - 1, 65535
_WORDS_A_LANE = 4


def check_array(
    name: str,
    array: Any,
    library: Library,
    *,
    shape: Sequence[int | None] | None = None,
    dtypes: Sequence[DTypeLike] | None = None,
) -> None:
    """Raise unless `array` can be handed to a kernel as it is.

    Parameters
    ----------
    name : str
        Of the parameter, for the message.
    array : object
        What was given.
    library : {"numpy", "cupy"}
        Whose array it must be.
    shape : sequence of int or None, optional
        What it must be; None is any size.
    dtypes : sequence of dtype-like, optional
        Which it may be; without them, any that holds plain bytes.

    Raises
    ------
    TypeError
        It is not an array of that library, or of another dtype.
    ValueError
        It has another shape, does not lie in one piece, in order, or starts off its dtype's boundary.
    """
    module = sys.modules.get(library)
    if module is None or not isinstance(array, module.ndarray):
        found = f"{type(array).__module__}.{type(array).__name__}"
        raise TypeError(f"{name} must be a {library}.ndarray, got {found}")
    if dtypes is not None and not any(array.dtype == np.dtype(dtype) for dtype in dtypes):
        expected = " or ".join(np.dtype(dtype).name for dtype in dtypes)
        raise TypeError(f"{name} must be of {expected}, got {array.dtype}")
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
        raise ValueError(f"{name} must lie on a boundary of its dtype {array.dtype}, got address {address}")


def check_size(name: str, value: object, least: int, limit: int = 2**63) -> int:
    """Return `value` as an integer if it is one from `least` to below `limit`, else raise.

    Raises
    ------
    TypeError
        It is not an integer.
    ValueError
        It is out of range.

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
    """Return the array to write into: `out` if it is given and fits exactly, else a new one.

    Parameters
    ----------
    name : str
        Of the parameter, for the message.
    out : array or None
        What was given.
    library : {"numpy", "cupy"}
        Whose array it must be.
    shape : tuple of int
        Which it must have.
    dtypes : sequence of dtype-like
        Which it may be; a new one is of the first.
    device : cupy.cuda.Device or None
        Where it must lie.

    Raises
    ------
    TypeError
        `out` is not an array of that library, or of another dtype.
    ValueError
        `out` has another shape, does not lie in one piece, lies on another device, or cannot be written to.
    """
    if out is None:
        with on_device(device):
            return sys.modules[library].empty(shape, dtypes[0])
    check_array(name, out, library, shape=shape, dtypes=dtypes)
    if not getattr(out.flags, "writeable", True):
        raise ValueError(f"{name} must be writable")
    if device is not None and out.device.id != device.id:
        raise ValueError(f"{name} must lie on gpu:{device.id}, got gpu:{out.device.id}")
    return out


def find_device(**arrays: Any) -> Any:
    """Return the one device that all arrays lie on; those that are None do not count.

    Raises
    ------
    ValueError
        They lie on several.
    """
    devices = {name: array.device for name, array in arrays.items() if array is not None}
    if len({device.id for device in devices.values()}) > 1:
        found = ", ".join(f"{name} on gpu:{device.id}" for name, device in devices.items())
        raise ValueError(f"arrays must lie on one device, got {found}")
    return next(iter(devices.values()), None)


def on_device(device: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which `device` is the current one; None changes nothing."""
    context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext() if device is None else device
    return context


def current_device() -> Any:
    """Return CuPy's current device, of this thread."""
    import cupy

    return cupy.cuda.Device()


def sort(array: Any, device: Any, stream: Any) -> None:
    """Sort a CuPy array in place, on a stream of its device; it takes memory from CuPy's pool."""
    with on_device(device), on_stream(stream):
        array.sort()


def on_stream(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which `stream` is the current one; None changes nothing."""
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
    """Put a kernel on a stream of a device.

    Parameters
    ----------
    name, entry : str
        As in `load_kernel`.
    shape : tuple
        Grid and block, as `spread` and `spread_rows` give them.
    arguments : tuple
        CuPy arrays, NumPy scalars and structures (arrays of one element) of the types the kernel takes.
    device : cupy.cuda.Device
        Where the arrays lie.
    stream : cupy.cuda.Stream or None
        None is the current stream of that device.
    """
    grid, block = shape
    with on_device(device):
        load_kernel(name, entry)(grid, block, arguments, stream=stream)


def spread(items: int, samples: int = 1) -> tuple[tuple[int, int], tuple[int]]:
    """Return grid and block for a thread an item, samples along the grid's y.

    >>> spread(1000), spread(20, samples=70_000)
    (((4, 1), (256,)), ((1, 65535), (32,)))
    """
    block = min(_BLOCK, max(-(-items // 32) * 32, 32))
    return (min(max(-(-items // block), 1), _GREATEST_X), min(max(samples, 1), _GREATEST_Y)), (block,)


def spread_rows(rows: int, words: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return grid and block for rows of words: lanes along a row, rows side by side, long rows in parts.

    >>> spread_rows(rows=1000, words=3)
    ((16, 1), (4, 64))
    >>> spread_rows(rows=2, words=10_000)
    ((2, 10), (256, 1))
    """
    lanes = min(1 << max(words - 1, 0).bit_length(), _BLOCK)
    beside = _BLOCK // lanes
    parts = -(-words // (lanes * _WORDS_A_LANE))
    return (min(max(-(-rows // beside), 1), _GREATEST_X), min(max(parts, 1), _GREATEST_Y)), (lanes, beside)


def find_word(*sizes: int) -> int:
    """Return the most bytes, up to 16, that can be moved at once: a power of two that divides all sizes.

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
