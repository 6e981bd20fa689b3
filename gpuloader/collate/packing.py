"""Packers: numbers and lists are written into memory by `struct`, which checks their ranges in C."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

Packer = Callable[..., None]
"""Writes a value into memory: called with the memory, an offset in bytes, and the value."""

_INTEGERS: tuple[type, ...] = (int, bool, *(np.dtype(code).type for code in "bBhHiIlLqQ"))
_FLOATS: dict[str, tuple[type, ...]] = {
    "e": (np.float16,),
    "f": (np.float32, np.float16),
    "d": (np.float64, np.float32, np.float16),
}
"""For the code of each float dtype, the scalar types whose numbers it holds exactly."""
_REAL = frozenset([float, *_INTEGERS, *_FLOATS["d"]])
_FRACTIONAL = frozenset([float, *_FLOATS["d"]])
_EXACT = 2**53
"""All integers up to this one are float64 numbers."""


def number_packers(dtype: np.dtype[Any], *, strict: bool) -> dict[type, Packer]:
    r"""Return how to write single numbers into an array of a dtype, by the numbers' types.

    A packer raises `struct.error` or OverflowError for a number that is out of the dtype's range. `strict`
    leaves out the types whose numbers may have to be rounded.

    >>> memory = bytearray(1)
    >>> number_packers(np.dtype("uint8"), strict=True)[int](memory, 0, 200)
    >>> memory
    bytearray(b'\xc8')
    """
    code = _code(dtype)
    if code == "?":
        return dict.fromkeys((bool, np.bool_), struct.Struct("?").pack_into)
    if not code:
        return {}
    pack = _struct(1, code).pack_into
    if code not in _FLOATS:
        return dict.fromkeys(_INTEGERS, pack)
    if not strict:
        return dict.fromkeys((int, *_REAL), pack)
    packers: dict[type, Packer] = dict.fromkeys(_FLOATS[code], pack)
    if code == "d":
        packers |= {float: pack, int: functools.partial(_pack_integer, pack)}
    return packers


def list_packers(dtype: np.dtype[Any], length: int, *, strict: bool) -> dict[type, Packer]:
    """Return how to write a list of `length` numbers, as `number_packers` does; empty if there is no way."""
    code = _code(dtype)
    if code in ("", "?"):
        return {}
    pack = _struct(length, code).pack_into
    if code not in _FLOATS:
        return {list: lambda memory, offset, values: pack(memory, offset, *values)}
    if strict and code != "d":
        return {}
    return {list: FloatPacker(pack, _FRACTIONAL if strict else _REAL)}


def _code(dtype: np.dtype[Any]) -> str:
    """Return the code by which `struct` knows a dtype; empty if it does not."""
    if dtype.kind in "iu":
        code = {1: "b", 2: "h", 4: "i", 8: "q"}[dtype.itemsize]
        return code if dtype.kind == "i" else code.upper()
    return dtype.char if dtype.char in "?efd" else ""


def _struct(count: int, code: str) -> struct.Struct:
    # Not in native mode, which would turn floats out of range into infinity.
    return struct.Struct(f"={count}{code}")


def _pack_integer(pack: Packer, memory: Any, offset: int, value: int) -> None:
    if not -_EXACT <= value <= _EXACT:
        raise OverflowError
    pack(memory, offset, value)


class FloatPacker:
    """Writes a list of real numbers as floats.

    `struct` accepts whatever has `__float__`, and that of a complex number drops the imaginary part. So the
    sum of the list is looked at: one of real and complex numbers is complex, and one of arrays is an array.

    Parameters
    ----------
    pack : callable
        Writes the numbers.
    sums : frozenset of type
        The types of sum to accept; a list with another raises TypeError.
    """

    def __init__(self, pack: Packer, sums: frozenset[type]) -> None:
        self._pack = pack
        self._sums = sums

    def __call__(self, memory: Any, offset: int, values: list[Any]) -> None:
        """Write the list; the caller ignores NumPy's warnings about sums that overflow."""
        if type(sum(values)) not in self._sums:
            raise TypeError
        self._pack(memory, offset, *values)
