"""`cast`: convert numbers to another dtype, optionally scaled, on the device or in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.kernels.dtypes import FLOATS, INTEGERS, cpp_type, resolve_target, round_to
from gpuloader.kernels.launching import Library, check_array, launch, obtain, obtain_on_device, spread

_SOURCES = ("bool", *INTEGERS, "float16", "float32", "float64")
_TARGETS = (*INTEGERS, *FLOATS)

ENTRIES = tuple(
    f"cast<{cpp_type(source)}, {cpp_type(target)}>" for source in _SOURCES[1:] for target in _TARGETS
)


def cast(
    values: Any, dtype: DTypeLike, *, scale: float | None = None, out: Any = None, stream: Any = None
) -> Any:
    """Return `values` converted to another dtype and multiplied by `scale`, on the device.

    Where NumPy's ``astype`` is defined, the result is the same: integers wrap around; floats round to the
    nearest, ties to even; converting to an integer drops the fraction. Elsewhere, floats out of an integer's
    range saturate, and NaN becomes 0. Numbers are converted to bfloat16 by way of float32. With `scale`, they
    are converted to float32 (float64 if either dtype is float64), multiplied there, and then cast.

    Parameters
    ----------
    values : cupy.ndarray
        The numbers, of any shape; bool, an integer dtype, float16, float32 or float64; contiguous.
    dtype : dtype-like
        The result's dtype: an integer dtype, float16, float32, float64, or "bfloat16" as bits in uint16.
    scale : float or None
        The factor; None does not multiply.
    out : cupy.ndarray or None
        The array to write to, with the shape of `values` and the result's dtype; contiguous, not overlapping
        `values`. None allocates a new array.
    stream : cupy.cuda.Stream or None
        The stream to run on; None is the current stream of the values' device.

    Raises
    ------
    TypeError
        An argument is not a CuPy array, a dtype is not supported, or the scale is not a number.
    ValueError
        An array has another shape, is not contiguous, or is on another device.
    """
    name, held = _check(values, dtype, scale, "cupy")
    result, device = obtain_on_device(out, values.shape, held, values=values)
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
    """Return `values` converted to another dtype and multiplied by `scale`: the twin of `cast`.

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
    """Return the name of the dtype to cast to, and the dtype of the array that holds it."""
    check_array("values", values, library, dtypes=_SOURCES)
    check_scale(scale)
    return resolve_target(dtype, _TARGETS)


def check_scale(scale: object) -> None:
    """Raise `TypeError` unless `scale` is a number or None.

    >>> check_scale(1 / 255)
    """
    if scale is not None and (
        isinstance(scale, bool | np.bool_) or not isinstance(scale, int | float | np.integer | np.floating)
    ):
        raise TypeError(f"scale must be a number or None, got {type(scale).__name__}")


def _to_integers(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return floats as integers: fractions are dropped, numbers out of range saturate, and NaN becomes 0."""
    limits = np.iinfo(dtype)
    with np.errstate(invalid="ignore"):
        numbers = numbers.astype(np.float32) if numbers.dtype == np.float16 else numbers
        # The limits are powers of two or their negatives, so they are exact; the greatest integer may not be.
        low, high = numbers.dtype.type(limits.min), numbers.dtype.type(float(limits.max) + 1)
        result = np.where((numbers > low) & (numbers < high), numbers, 0).astype(dtype)
        result[numbers >= high] = limits.max
        result[numbers <= low] = limits.min
    return result
