"""NumPy dtypes and their C++ names; bfloat16, which NumPy lacks, is represented by its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_INTEGERS = {
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
}
_FLOATS = {"float16": "Half", "bfloat16": "Bfloat16", "float32": "float", "float64": "double"}

INTEGERS = tuple(_INTEGERS)
FLOATS = tuple(_FLOATS)
"""Names of the float dtypes, including bfloat16."""

WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "uint4"}
"""Maps the number of bytes moved at once to the C++ type that moves them."""


def cpp_type(name: str) -> str:
    """Return the C++ type of a dtype, as written in numbers.cuh and by compilers.

    >>> cpp_type("uint8"), cpp_type("float16"), cpp_type("bool")
    ('unsigned char', 'Half', 'unsigned char')
    """
    return "unsigned char" if name == "bool" else _INTEGERS.get(name) or _FLOATS[name]


def resolve_target(dtype: DTypeLike, expected: tuple[str, ...]) -> tuple[str, np.dtype[Any]]:
    """Return the name of a dtype to convert to, and the dtype of the array that holds it.

    The string ``"bfloat16"`` means bits in uint16. A dtype object of that name, such as that of ml_dtypes,
    means itself.

    Raises
    ------
    TypeError
        The dtype is not one of `expected`.

    Examples
    --------
    >>> resolve_target("bfloat16", FLOATS), resolve_target(np.float16, FLOATS)
    (('bfloat16', dtype('uint16')), ('float16', dtype('float16')))
    """
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
