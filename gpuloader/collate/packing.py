"""Numbers and lists that C writes into a row as they are, after checking their range; by their types."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from gpuloader.fields.convert import EXACT

Packer = Callable[[Any, int, Any], None]
"""Writes one sample into memory: called with the memory as bytes, the sample's position, and its value."""

_INTEGERS: tuple[type, ...] = (int, bool, *(np.dtype(code).type for code in "bBhHiIlLqQ"))
_FLOATS: dict[str, tuple[type, ...]] = {
    "e": (np.float16,),
    "f": (np.float32, np.float16),
    "d": (float, np.float64, np.float32, np.float16),
}
"""For the code of each float dtype, the scalar types whose numbers it holds exactly."""
_REAL = frozenset([*_INTEGERS, *_FLOATS["d"]])


def exact_types(dtype: np.dtype[Any], *, strict: bool) -> frozenset[type]:
    """Return the types of numbers that can be assigned to a memoryview of a dtype.

    The memoryview raises ValueError for a number that is out of the dtype's range. With `strict`, it also
    holds every other number exactly.

    >>> int in exact_types(np.dtype("uint8"), strict=True)
    True
    """
    code = _code(dtype)
    if code == "?":
        return frozenset([bool, np.bool_])
    if code == "d":
        return frozenset(_FLOATS["d"]) if strict else _REAL
    if code == "f":  # a memoryview turns what is out of range into infinity
        return frozenset(_FLOATS["f"])
    return frozenset(_INTEGERS) if code not in ("", "e") else frozenset()


def number_packers(dtype: np.dtype[Any], *, strict: bool) -> dict[type, Packer]:
    r"""Return how to write other single numbers, by their types.

    They raise `struct.error` or OverflowError for a number that is out of the dtype's range, or with `strict`
    if the dtype cannot hold it exactly.

    >>> memory = bytearray(8)
    >>> number_packers(np.dtype("float32"), strict=False)[float](memory, 1, 2.0)
    >>> memory
    bytearray(b'\x00\x00\x00\x00\x00\x00\x00@')
    """
    code = _code(dtype)
    if code == "d":
        return {int: _pack_integer} if strict else {}
    if code not in _FLOATS:
        return {}
    packed = _struct(1, code)
    kinds = frozenset(_FLOATS[code]) if strict else _REAL
    return dict.fromkeys(
        kinds - exact_types(dtype, strict=strict),
        functools.partial(_pack_number, packed.pack_into, packed.size),
    )


def list_packers(dtype: np.dtype[Any], length: int, *, strict: bool) -> dict[type, Packer]:
    """Return how to write a list of `length` numbers, as `number_packers` does; empty if there is no way."""
    code = _code(dtype)
    if code in ("", "?"):
        return {}
    packed = _struct(length, code)
    if code not in _FLOATS:
        return {list: functools.partial(_pack_integers, packed.pack, packed.size)}
    if strict and code != "d":
        return {}
    sums = frozenset(_FLOATS["d"]) if strict else _REAL
    return {list: functools.partial(_pack_floats, packed.pack, packed.size, sums, strict)}


def _code(dtype: np.dtype[Any]) -> str:
    """Return the code by which `struct` knows a dtype; empty if it does not."""
    if dtype.kind in "iu":
        code = {1: "b", 2: "h", 4: "i", 8: "q"}[dtype.itemsize]
        return code if dtype.kind == "i" else code.upper()
    return dtype.char if dtype.char in "?efd" else ""


def _struct(count: int, code: str) -> struct.Struct:
    # Not in native mode, which would turn floats out of range into infinity.
    return struct.Struct(f"={count}{code}")


_pack_double = _struct(1, "d").pack_into


def _pack_integer(memory: Any, index: int, value: int) -> None:
    if not -EXACT <= value <= EXACT:
        raise OverflowError
    _pack_double(memory, index * 8, value)


def _pack_number(pack: Callable[..., None], nbytes: int, memory: Any, index: int, value: Any) -> None:
    pack(memory, index * nbytes, value)


def _pack_integers(pack: Callable[..., bytes], nbytes: int, memory: Any, index: int, values: Any) -> None:
    # Takes a fifth less time than `pack_into`, which would copy the list twice.
    memory[index * nbytes : (index + 1) * nbytes] = pack(*values)


def _pack_floats(
    pack: Callable[..., bytes],
    nbytes: int,
    sums: frozenset[type],
    strict: bool,
    memory: Any,
    index: int,
    values: Any,
) -> None:
    # `struct` accepts whatever has `__float__`, and that of a complex number drops the imaginary part. But a
    # sum of real and complex numbers is complex, and one of arrays is an array. Nothing else looks at all
    # elements of a list as fast.
    if not values or type(values[0]) is float:
        total = sum(values)
    else:
        with np.errstate(all="ignore"):  # NumPy's narrow numbers may overflow
            total = sum(values)
    if type(total) not in sums:
        raise TypeError
    # An integer among the floats may be one that no float is. The norm is at least as large as each number.
    if strict and not math.hypot(*values) < EXACT:
        raise TypeError
    memory[index * nbytes : (index + 1) * nbytes] = pack(*values)
