"""`cast`: convert numbers to another dtype, optionally scaled; and the dtypes that kernels know.

Other kernels take the rounding to bfloat16 from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.kernels.compiler import CPP_TYPES
from gpuloader.kernels.launching import Work, declare, spread, takes

# Kernels that only move bits are compiled once per size, and not once per dtype.
# Maps the number of bytes moved at once to the C++ type that moves them.
WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "uint4"}

# The words that hold one number of a dtype.
NUMBER_WORDS = (WORDS[1], WORDS[2], WORDS[4], WORDS[8])

INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
# Names of the float dtypes, including bfloat16.
FLOATS = ("float16", "bfloat16", "float32", "float64")
NUMPY_FLOATS = ("float16", "float32", "float64")


def find_word(*sizes: int) -> int:
    """Return how many bytes can be moved at once: the largest power of two, up to 16, that divides all sizes.

    >>> find_word(12, 256), find_word(32, 0), find_word(3)
    (4, 16, 1)
    """
    return math.gcd(16, *sizes)


_SOURCES = ("bool", *INTEGERS, *NUMPY_FLOATS)
_TARGETS = (*INTEGERS, *FLOATS)

# Without bool, which shares the entries of uint8: NumPy's bools are bytes of 0 or 1.
ENTRIES = {"cast<{}, {}>": (_SOURCES[1:], _TARGETS)}


@declare(values=takes(*_SOURCES))
def cast(
    values: Any, dtype: DTypeLike, *, scale: float | None = None, out: Any = None, stream: Any = None
) -> Work:
    """Return `values`, of any shape, converted to another dtype and multiplied by `scale`.

    Where NumPy's ``astype`` is defined, the result is the same: integers wrap around; floats round to the
    nearest, ties to even; converting to an integer drops the fraction. Elsewhere, floats out of an integer's
    range saturate, and NaN becomes 0. Numbers are converted to bfloat16 by way of float32. With `scale`, they
    are converted to float32 (float64 if either dtype is float64), multiplied there, and then cast.

    >>> cast.on_host(np.array([1.9, -3, 300, np.nan]), "uint8").tolist()
    [1, 0, 255, 0]
    >>> cast.on_host(np.array([0, 64, 255], np.uint8), "float32", scale=1 / 256).tolist()
    [0.0, 0.25, 0.99609375]
    """
    check_scale(scale)
    name, held = resolve_target(dtype, _TARGETS)

    def on_host(result: NDArray[Any]) -> None:
        numbers = values
        if scale is not None:
            # float32 is exact for bytes and halves, and a GPU has a fraction of the units for float64.
            between = np.dtype(np.float64 if np.float64 in (values.dtype, held) else np.float32)
            with np.errstate(all="ignore"):
                numbers = values.astype(between) * np.asarray(scale, between)
        if name in INTEGERS:
            result[...] = _to_integers(numbers, held) if numbers.dtype.kind == "f" else numbers
        else:
            result[...] = round_to(numbers, name).view(held)

    def on_device(result: Any) -> Iterator[Any]:
        # A factor of 1 would not do for None: int64 does not survive a conversion to float.
        factor, scaled = np.float64(1.0 if scale is None else scale), np.int32(scale is not None)
        entry = f"cast<{CPP_TYPES[values.dtype.name]}, {CPP_TYPES[name]}>"
        yield entry, spread(-(-values.size // 4)), (values, result, np.uint64(values.size), factor, scaled)

    return Work(values.shape, held, on_host, on_device)


def check_scale(scale: object) -> None:
    """Raise `TypeError` unless `scale` is a number or None."""
    if scale is not None and (
        isinstance(scale, bool | np.bool_) or not isinstance(scale, int | float | np.integer | np.floating)
    ):
        raise TypeError(f"scale must be a number or None, got {type(scale).__name__}")


def _to_integers(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return floats as integers: fractions are dropped, numbers out of range saturate, and NaN becomes 0."""
    limits = np.iinfo(dtype)
    with np.errstate(invalid="ignore"):
        # Halves end at 65504, so they cannot hold the limits of larger integers.
        numbers = numbers.astype(np.float32) if numbers.dtype == np.float16 else numbers
        # The limits are powers of two or their negatives, so they are exact; the greatest integer may not be.
        low, high = numbers.dtype.type(limits.min), numbers.dtype.type(float(limits.max) + 1)
        # Only what fits is converted: NumPy does not define the result for anything else.
        result = np.where((numbers > low) & (numbers < high), numbers, 0).astype(dtype)
        result[numbers >= high] = limits.max
        result[numbers <= low] = limits.min
    return result


def resolve_target(dtype: DTypeLike, expected: tuple[str, ...]) -> tuple[str, np.dtype[Any]]:
    """Return the name of a dtype to convert to, and the dtype of the array that holds it.

    >>> resolve_target("bfloat16", FLOATS), resolve_target(np.float16, FLOATS)
    (('bfloat16', dtype('uint16')), ('float16', dtype('float16')))
    """
    # Only the string means bits in uint16. A dtype object of that name, such as ml_dtypes has, means itself.
    is_bits = isinstance(dtype, str) and dtype == "bfloat16"
    try:
        held: np.dtype[Any] = np.dtype(np.uint16 if is_bits else dtype)
    except TypeError:
        raise TypeError(f"dtype must be one of {', '.join(expected)}, got {dtype!r}") from None
    name = "bfloat16" if is_bits else held.name
    if name not in expected or not held.isnative:
        raise TypeError(f"dtype must be one of {', '.join(expected)}, got {held}")
    return name, held


def round_to(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Return floats rounded to the named float dtype, to the nearest, ties to even; bfloat16 as its bits.

    >>> hex(round_to(np.float32([1.0]), "bfloat16")[0])
    '0x3f80'
    """
    with np.errstate(all="ignore"):
        if name != "bfloat16":
            return values.astype(name)
        bits = np.ascontiguousarray(values.astype(np.float32)).view(np.uint32)
    # A carry out of the fraction rightly raises the exponent, up to infinity; a NaN must not become infinity.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)
