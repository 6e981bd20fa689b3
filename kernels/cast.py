"""`cast`: numbers of one dtype to another, with a factor on the way, on the device or in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.kernels.dtypes import FLOATS, INTEGERS, cpp_type, resolve_target, round_to
from gpuloader.kernels.launching import Library, check_array, find_device, launch, obtain, spread

_SOURCES = ("bool", *INTEGERS, "float16", "float32", "float64")
_TARGETS = (*INTEGERS, *FLOATS)

ENTRIES = tuple(
    f"cast<{cpp_type(source)}, {cpp_type(target)}>" for source in _SOURCES[1:] for target in _TARGETS
)


def cast(
    values: Any, dtype: DTypeLike, *, scale: float | None = None, out: Any = None, stream: Any = None
) -> Any:
    """Return `values` as numbers of another dtype, multiplied by `scale`, on the device.

    What NumPy's ``astype`` defines is as there: integers wrap around, floats are rounded to the nearest,
    ties to even, and lose their fraction on the way to an integer. Beyond that, floats out of an integer's
    range become its nearest end, and NaN becomes 0. To bfloat16, numbers become float32 first. With `scale`
    they are converted to float32 (float64 if either dtype is float64), multiplied there, and then cast.

    Parameters
    ----------
    values : cupy.ndarray
        Any shape; bool, an integer, float16, float32 or float64; contiguous.
    dtype : dtype-like
        An integer, float16, float32, float64, or "bfloat16" as bits in uint16.
    scale : float or None
        A factor; None leaves the numbers as they are.
    out : cupy.ndarray or None
        Of that shape and dtype, contiguous, apart from `values`; None makes a new one.
    stream : cupy.cuda.Stream or None
        Where the kernel runs; None is the current stream of the values' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, or a dtype is none of these; the scale is not a number.
    ValueError
        An array has another shape, is not contiguous, or lies on another device.
    """
    name, held = _check(values, dtype, scale, "cupy")
    device = find_device(values=values)
    result = obtain("out", out, "cupy", values.shape, [held], device)
    if result.size:
        factor = np.float64(1.0 if scale is None else scale)
        arguments = values, result, np.uint64(values.size), factor, np.int32(scale is not None)
        entry = f"cast<{cpp_type(values.dtype.name)}, {cpp_type(name)}>"
        launch("cast", entry, spread(-(-values.size // 4)), arguments, device, stream)
    return result


def cast_on_host(
    values: NDArray[Any],
    dtype: DTypeLike,
    *,
    scale: float | None = None,
    out: NDArray[Any] | None = None,
    stream: Any = None,  # noqa: ARG001
) -> NDArray[Any]:
    """Return `values` as numbers of another dtype, multiplied by `scale`: the twin of `cast`.

    Examples
    --------
    >>> cast_on_host(np.array([1.9, -3, 300, np.nan]), "uint8").tolist()
    [1, 0, 255, 0]
    >>> cast_on_host(np.array([0, 64, 255], np.uint8), "float32", scale=1 / 256).tolist()
    [0.0, 0.25, 0.99609375]
    """
    name, held = _check(values, dtype, scale, "numpy")
    result: NDArray[Any] = obtain("out", out, "numpy", values.shape, [held])
    numbers = values
    if scale is not None:
        way = np.dtype(np.float64 if np.float64 in (values.dtype, held) else np.float32)
        with np.errstate(all="ignore"):
            numbers = values.astype(way) * np.asarray(scale, way)
    if name in INTEGERS:
        result[...] = _to_integers(numbers, held) if numbers.dtype.kind == "f" else numbers.astype(held)
    else:
        result[...] = round_to(numbers, name).view(held)
    return result


def _check(values: Any, dtype: DTypeLike, scale: float | None, library: Library) -> tuple[str, np.dtype[Any]]:
    """Return the name of the dtype to cast to, and the dtype that holds it."""
    check_array("values", values, library, dtypes=_SOURCES)
    check_scale(scale)
    return resolve_target(dtype, _TARGETS)


def check_scale(scale: object) -> None:
    """Raise `TypeError` unless a factor is a number, or None.

    >>> check_scale(1 / 255)
    """
    if scale is not None and (
        isinstance(scale, bool | np.bool_) or not isinstance(scale, int | float | np.integer | np.floating)
    ):
        raise TypeError(f"scale must be a number or None, got {type(scale).__name__}")


def _to_integers(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return floats without their fractions, those out of range as the nearest end, NaN as 0."""
    limits = np.iinfo(dtype)
    with np.errstate(invalid="ignore"):
        numbers = numbers.astype(np.float32) if numbers.dtype == np.float16 else numbers
        # Powers of two or their negatives: exact, where the greatest integer itself may not be.
        low, high = numbers.dtype.type(limits.min), numbers.dtype.type(float(limits.max) + 1)
        result = np.where((numbers > low) & (numbers < high), numbers, 0).astype(dtype)
        result[numbers >= high] = limits.max
        result[numbers <= low] = limits.min
    return result
