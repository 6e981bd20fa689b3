"""Casts of arrays from one dtype to another that never lose a number silently.

`cast` serves declared fields: it rounds, and drops fractions for integers, as NumPy does. `cast_exactly`
serves inferred fields: every number must come out as it came in. Neither wraps integers around, turns a
finite number into infinity or NaN, or drops an imaginary part.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.fields.spec import Array
from gpuloader.fields.tensors import describe_dtype

_KINDS = {"b": "b", "i": "i", "u": "i", "f": "f", "c": "c"}
_ORDER = "bifc"
"""Booleans, integers, floats and complex numbers: each kind holds the ones before it."""
_ML_PREFIXES = {"int": "i", "uint": "i", "float": "f", "bfloat": "f"}


def find_kind(dtype: np.dtype[Any]) -> str:
    """Return a dtype's kind of numbers: 'b', 'i', 'f' or 'c'; empty for any other dtype.

    >>> find_kind(np.dtype("uint8")), find_kind(np.dtype([("x", "f4")]))
    ('i', '')
    """
    if dtype.isbuiltin != 2:
        return _KINDS.get(dtype.kind, "")
    # The dtypes of ml_dtypes: their `kind` says nothing, and not all of its complex ones can be cast.
    return _ML_PREFIXES.get(dtype.name.partition("_")[0].rstrip("0123456789"), "")


def _info(dtype: np.dtype[Any], kind: str) -> Any:
    """Return NumPy's ``iinfo`` or ``finfo`` of a dtype, or that of the package it comes from."""
    module: Any = np if dtype.isbuiltin != 2 else sys.modules[dtype.type.__module__.partition(".")[0]]
    return (module.iinfo if kind == "i" else module.finfo)(dtype)


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return `array` cast to `dtype`, rounded if need be.

    Raises
    ------
    SampleError
        A number is out of the dtype's range, or the dtype is of a kind that cannot hold it, not even rounded.

    >>> cast(np.array([2.7, -1.2]), np.dtype("int8"))
    array([ 2, -1], dtype=int8)
    """
    if array.dtype == dtype:
        return array
    target = find_kind(dtype)
    array, source = _plain(array, dtype)
    if not target:
        raise SampleError(f"expected {describe_dtype(dtype)}, got dtype {describe_dtype(array.dtype)}")
    if source == "c" and target != "c":
        raise SampleError(f"expected real numbers of dtype {dtype}, got dtype {array.dtype}")
    if target == "i":
        _check_integers(array, dtype)
    if target in "bi" or not array.size:
        return array.astype(dtype)
    return _to_floats(array, dtype, source)


def _plain(array: Array, dtype: np.dtype[Any]) -> tuple[Array, str]:
    """Return an array in a dtype of NumPy's own that holds the same numbers, and their kind."""
    kind = find_kind(array.dtype)
    if not kind:
        raise SampleError(f"expected numbers of dtype {dtype}, got dtype {describe_dtype(array.dtype)}")
    if array.dtype.isbuiltin == 2:
        array = array.astype(np.int64 if kind == "i" else np.float64)
    return array, kind


def _check_integers(array: Array, dtype: np.dtype[Any]) -> None:
    if not array.size:
        return
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = array[~np.isfinite(array)].ravel()[0]
        raise SampleError(f"expected whole numbers of dtype {dtype}, got {bad}")
    limits = _info(dtype, "i")
    # Python numbers compare exactly. As a float, 2**63 - 1 is 2**63, so 2**63 itself would pass.
    low, high = array.min().item(), array.max().item()
    if low < limits.min or high > limits.max:
        bad = low if low < limits.min else high
        raise SampleError(f"expected numbers of dtype {dtype} ({limits.min} to {limits.max}), got {bad}")


def _to_floats(array: Array, dtype: np.dtype[Any], source: str) -> Array:
    if dtype.isbuiltin != 2 and source in "fc":
        try:
            with np.errstate(over="raise", under="ignore"):
                return array.astype(dtype)
        except FloatingPointError:
            raise _too_large(dtype) from None
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        if dtype.isbuiltin != 2:
            if dtype == np.float16 and not np.isfinite(converted).all():
                raise _too_large(dtype)
            return converted
        limits = _info(dtype, "f")
        wide, back = array.astype(np.float64), converted.astype(np.float64)
        finite = np.isfinite(wide)
        # Dtypes without infinity or NaN turn them, and what is out of range, into something else.
        kept = np.where(finite, np.isfinite(back), _is_same(wide, back))
        kept &= ~finite | ((wide >= float(limits.min)) & (wide <= float(limits.max)))
    if not kept.all():
        bad = array[~kept].ravel()[0]
        raise SampleError(f"expected numbers of dtype {dtype} ({limits.min} to {limits.max}), got {bad}")
    return converted


def _too_large(dtype: np.dtype[Any]) -> SampleError:
    limit = np.finfo(dtype).max
    return SampleError(f"expected numbers of dtype {dtype} (at most {limit}), got larger ones")


def cast_exactly(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return `array` cast to `dtype`, every number unchanged.

    Raises
    ------
    SampleError
        The dtype cannot hold a number exactly, or holds another kind of numbers: no integer dtype accepts
        floats, whatever their values are.

    >>> cast_exactly(np.array([1, 2]), np.dtype("float32"))
    array([1., 2.], dtype=float32)
    """
    if array.dtype == dtype:
        return array
    source, target = find_kind(array.dtype), find_kind(dtype)
    if not source or not target or target == "b" or _ORDER.index(source) > _ORDER.index(target):
        raise SampleError(
            f"expected {describe_dtype(dtype)} as in the batch's first sample, got "
            f"{describe_dtype(array.dtype)}"
        )
    array, _ = _plain(array, dtype)
    converted = cast(array, dtype)
    if target != "i" and source != "b":
        _check_exact(array, converted, source)
    return converted


def _check_exact(array: Array, converted: Array, source: str) -> None:
    dtype = converted.dtype
    with np.errstate(all="ignore"):
        if source == "i":
            same = _holds_integers(array, converted)
        else:
            back = converted.astype(np.float64) if dtype.isbuiltin == 2 else converted
            same = _is_same(array, back)
    if not same.all():
        bad = array[~same].ravel()[0]
        raise SampleError(
            f"expected numbers that {dtype}, the dtype of the batch's first sample, holds exactly, got {bad} "
            f"of {array.dtype}; return the same dtype in all samples, or declare the field in feed_list, "
            "which rounds"
        )


def _is_same(one: Array, other: Array) -> Any:
    """Return where numbers are equal, or both NaN; NumPy compares them in the wider dtype."""
    return (one == other) | ((one != one) & (other != other))


def _holds_integers(array: Array, converted: Array) -> Any:
    """Return where floats equal the integers that they were converted from."""
    wide = converted.real if converted.dtype.kind == "c" else converted
    if wide.dtype.isbuiltin == 2:
        wide = wide.astype(np.float64)
    info = np.iinfo(array.dtype)
    # One more than the largest integer is a power of two, so a float holds it. It cannot be cast back.
    inside = (wide >= float(info.min)) & (wide < float(info.max + 1))
    return inside & (np.where(inside, wide, 0).astype(array.dtype) == array)
