"""Parse rows of JSON numbers to float32 with array operations.

Most of a large JSON array of floats is plain: ``0.`` and a few digits. Array operations parse many such rows
at a time, several times as fast as ``json.loads``. Any other row (exponents, integers, 16 digits or more,
other spacing, errors) goes through ``json.loads``, which also describes errors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_NUMBER_CHARACTERS = b"0123456789+-.eE, \t\r\n"
_COMMA, _SPACE, _ZERO, _POINT = b", 0."
# Integers of 15 digits and powers of ten up to 10**22 are exact in float64. So their quotient is rounded only
# once and equals the result of a decimal parser.
_EXACT_DIGITS = 15


def parse_numbers(text: bytes) -> list[int | float]:
    """Return the numbers in `text`, the inside of a JSON array.

    Raises
    ------
    ValueError
        The text holds something else, such as NaN, a string or a nested array, or lacks a value.

    Examples
    --------
    >>> parse_numbers(b"1, 2.5e-1, 3")
    [1, 0.25, 3]
    >>> parse_numbers(b"1, NaN")
    Traceback (most recent call last):
    ...
    ValueError: expected only numbers, got 'NaN'
    """
    foreign = text.translate(None, _NUMBER_CHARACTERS)
    if foreign:
        raise ValueError(f"expected only numbers, got {foreign[:20].decode('ascii', 'replace')!r}")
    try:
        numbers: list[int | float] = json.loads(b"[" + text + b"]")
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON numbers, got {error.msg} at character {error.pos}") from None
    return numbers


def parse_row(text: bytes, count: int) -> NDArray[np.float32]:
    """Return one row of `count` numbers from 0 to 1.

    Raises
    ------
    ValueError
        The row does not hold that; the message says what differs and where in the row.

    Examples
    --------
    >>> parse_row(b"0.0, 1, 5e-1", 3)
    array([0. , 1. , 0.5], dtype=float32)
    >>> parse_row(b"0.0, 1.5", 2)
    Traceback (most recent call last):
    ...
    ValueError: expected numbers from 0 to 1, got 1.5 at position 1
    """
    numbers = parse_numbers(text)
    if len(numbers) != count:
        raise ValueError(f"expected {count} numbers, got {len(numbers)}")
    for position, number in enumerate(numbers):
        if not 0 <= number <= 1:
            raise ValueError(f"expected numbers from 0 to 1, got {str(number)[:20]} at position {position}")
    return np.array(numbers, np.float32)


def parse_plain_rows(rows: Sequence[bytes], count: int) -> NDArray[np.float32] | None:
    """Return all rows at once if every number in them is plain, else None.

    A plain number is ``0.`` and 1 to 15 digits, after at most one space. It lies in [0, 1).

    Parameters
    ----------
    rows : sequence of bytes
        The insides of JSON arrays. Parsing takes about 60 bytes of memory per number in them.
    count : int
        Numbers per row.

    Returns
    -------
    ndarray of float32, shape (len(rows), count), or None
        The same values that `parse_row` returns.

    Examples
    --------
    >>> parse_plain_rows([b"0.0, 0.25", b"0.5,0.75"], 2)
    array([[0.  , 0.25],
           [0.5 , 0.75]], dtype=float32)
    >>> parse_plain_rows([b"0.0, 1e-3"], 2) is None
    True
    """
    if any(row.count(b",") != count - 1 for row in rows):
        return None
    text = np.frombuffer(b",".join([*rows, b"  "]), np.uint8)
    ends = np.flatnonzero(text == _COMMA)
    starts = np.concatenate([ends[:1] * 0, ends[:-1] + 1])
    starts += text[starts] == _SPACE
    digit_counts = ends - starts - 2
    if digit_counts.min() < 1 or digit_counts.max() > _EXACT_DIGITS:
        return None
    if (text[starts] != _ZERO).any() or (text[starts + 1] != _POINT).any():
        return None
    numbers = np.zeros(len(starts), np.float32)
    # Four of five pixels are background, written as 0.0: only the others need parsing.
    busy = np.flatnonzero((digit_counts > 1) | (text[starts + 2] != _ZERO))
    fractions = _parse_fractions(text, starts[busy] + 2, digit_counts[busy])
    if fractions is None:
        return None
    numbers[busy] = fractions
    return numbers.reshape(len(rows), count)


def _parse_fractions(
    text: NDArray[np.uint8], starts: NDArray[np.int64], digit_counts: NDArray[np.int64]
) -> NDArray[np.float64] | None:
    """Return the fractions that the digits after the point denote, or None if one is not a digit."""
    digits_read = np.zeros(len(starts), np.int64)
    for place in range(int(digit_counts.max(initial=0))):
        live = digit_counts > place
        # Past its own end, a number reads on into the text: the bound keeps that inside, `live` discards it.
        digits = text[np.minimum(starts + place, len(text) - 1)] - _ZERO
        if (digits[live] > 9).any():
            return None
        digits_read = np.where(live, digits_read * 10 + digits, digits_read)
    return digits_read / 10.0**digit_counts
