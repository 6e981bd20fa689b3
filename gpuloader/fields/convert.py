"""The one place that validates values and converts them to their fields."""

from __future__ import annotations

import contextlib
import math
import numbers
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuloader.base.errors import LoaderError, SampleError
from gpuloader.fields.casting import cast, cast_exactly
from gpuloader.fields.spec import Array, Dims, describe, is_stageable, native
from gpuloader.fields.tensors import describe_dtype, is_tensor, tensor_array

Conversion = Callable[[object, np.dtype[Any], Dims], Array]
"""`convert` or `convert_alike`: returns a value as an array of a dtype and shape, or raises `SampleError`."""

EXACT = 2**53
"""All integers up to this one are float64 numbers."""

IF_IT_VARIES = (
    "if its length varies, name the field in ragged, or in pad with the value to fill up with, or choose "
    "batches of samples of equal length (bucketing) with a batch_sampler"
)
"""The ways out of samples of different shapes in one batch, for error messages."""

IF_PICTURES = (
    "add CenterCrop after Resize(size), or pass Resize((height, width)), so that all pictures have one size"
)
"""The ways out of pictures of different sizes in one batch, for error messages."""

IF_A_LIST = (
    "each entry of a list or tuple is a field; if the sample is a single sequence of varying length, return "
    "an array, and pass pad={'0': 0} or ragged=['0']"
)
"""What to do about samples that are lists of different lengths, for error messages."""


def convert(value: object, dtype: np.dtype[Any], shape: Dims) -> Array:
    """Return one sample's value as an array of `dtype` and `shape`.

    Accepts numbers, nested lists, arrays and numeric strings. A value of another shape is reshaped if the
    element counts match and it contradicts no fixed dimension (28 x 28 to 784, a number to [1]). Finite
    numbers are cast as NumPy casts them: in an integer field 3.7 becomes 3, as in Paddle.

    Parameters
    ----------
    value : object
        The value from the reader.
    dtype : numpy.dtype
        The field's dtype.
    shape : tuple of int or None
        Shape of one sample; None stands for any size.

    Raises
    ------
    SampleError
        The value is not numeric, is a ragged list, has a shape that does not fit, is NaN or infinity for an
        integer field, or is outside the range of the field's dtype. The caller adds batch, sample and field.

    Examples
    --------
    >>> convert([1, 2, 3, 4], np.dtype("float32"), (2, 2))
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    return fit(cast(as_numbers(value, dtype), dtype), shape)


def convert_dtype(value: object, dtype: np.dtype[Any], shape: Dims) -> Array:
    """Return one sample's value as an array of `dtype`, without reshaping it.

    Raises
    ------
    SampleError
        As for `convert`, but a shape with another number of dimensions fits.

    Examples
    --------
    >>> convert_dtype([1, 2, 3, 4], np.dtype("float32"), (None, 2)).shape
    (4,)
    """
    return fit_if_alike(cast(as_numbers(value, dtype), dtype), shape)


def convert_alike(value: object, dtype: np.dtype[Any], shape: Dims, advice: str = IF_IT_VARIES) -> Array:
    """Return one sample's value as an array of `dtype` and `shape`, with fewer conversions than `convert`.

    For undeclared fields. Nothing is reshaped, no text is parsed, and every number stays what it is.

    Raises
    ------
    SampleError
        The value has another shape, which the `advice` is about if no dimension is free, or numbers that
        `dtype` cannot hold exactly.

    Examples
    --------
    >>> convert_alike(0.5, np.dtype("int64"), ())
    Traceback (most recent call last):
    gpuloader.base.errors.SampleError: expected int64 as in the batch's first sample, got float64
    """
    if isinstance(value, list | tuple) and not value and shape and shape[0] in (None, 0):
        # An empty sequence fits steps of any shape and dtype.
        return np.empty([size or 0 for size in shape], dtype)
    array = as_numbers(value, dtype if is_tensor(value) else None, parses=False)
    if not matches(array.shape, shape):
        advice = "" if None in shape else f"; {advice}"
        raise SampleError(
            f"expected shape {describe(shape)} as in the batch's first sample, got {describe(array.shape)}"
            f"{advice}"
        )
    return cast_exactly(array, dtype)


def as_numbers(value: object, wanted: np.dtype[Any] | None = None, *, parses: bool = True) -> Array:
    """Return `value` as an array of numbers in native byte order.

    A tensor of a dtype that NumPy lacks becomes its bits; see `bits_dtype`. Text becomes float64.

    Parameters
    ----------
    value : object
        Numbers in any form that NumPy or torch knows.
    wanted : numpy.dtype or None
        The dtype that the array will be cast to, if known. Text then becomes an integer if this is an integer
        dtype, because a float keeps only 53 bits of an id. A tensor's numbers then stay numbers.
    parses : bool
        Whether text may stand for numbers.

    Raises
    ------
    SampleError
        The value does not consist of numbers, or has masked ones.
    """
    if value is None:
        raise SampleError("expected numbers, got None: every sample needs a value in every field")
    try:
        if is_tensor(value):
            return tensor_array(value, wanted)
        array = np.asarray(value)
    except (LoaderError, MemoryError):
        raise
    except Exception as error:  # `__array__` of another library may raise anything
        raise SampleError(f"expected an array of numbers, got {type(value).__name__}: {error}") from error
    check_mask(value)
    if (
        array.dtype == np.float64
        and isinstance(value, list | tuple)
        and (wanted is None or wanted.kind in "iu")
    ):
        _check_mixed(value, array)
    if array.dtype.kind in "US":
        if not parses:
            raise SampleError(f"expected numbers as in the batch's first sample, got text: {_shorten(value)}")
        try:
            array = _parse_text(array, wanted)
        except ValueError as error:
            raise SampleError(f"expected numbers, got text: {_shorten(value)}") from error
    if array.dtype == object and wanted is not None and wanted.kind in "fiu" and _is_real(array):
        array = _from_objects(array, wanted)
    if not is_stageable(array.dtype):
        raise SampleError(
            f"expected an array of numbers, got dtype {array.dtype} from {type(value).__name__} "
            f"{_shorten(value)}; convert it in the reader, e.g. with numpy.asarray(value, 'float32')"
        )
    return array if array.dtype.isnative else _swapped(array)


def check_mask(value: object) -> None:
    """Raise `SampleError` if masked elements of a value would become numbers.

    >>> check_mask([np.ma.masked_array([1, 2], [False, True])])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gpuloader.base.errors.SampleError: expected numbers, got an array with masked elements, ...
    """
    masked = sys.modules.get("numpy.ma")
    if masked is None or type(value) is np.ndarray:
        return
    if _has_masked(value if isinstance(value, list | tuple) else (value,), masked):
        raise SampleError(
            "expected numbers, got an array with masked elements, which a batch cannot hold; fill them, e.g. "
            "with value.filled(0), and return the mask as another field"
        )


def _has_masked(values: Sequence[Any], masked: Any) -> bool:
    """Return whether a sequence, or one nested in it, has an array with masked elements."""
    kinds = set(map(type, values))
    arrays = {kind for kind in kinds if issubclass(kind, masked.MaskedArray)}
    if arrays and any(masked.is_masked(one) for one in values if type(one) in arrays):
        return True
    nested = {kind for kind in kinds if issubclass(kind, list | tuple)}
    return bool(nested) and any(_has_masked(one, masked) for one in values if type(one) in nested)


def _is_real(array: Array) -> bool:
    """Return whether an array of objects consists of Decimals, fractions and large integers."""
    # A Decimal is neither real nor complex, and NumPy's complex64 is not derived from Python's complex.
    return all(
        isinstance(one, numbers.Real)
        or (isinstance(one, numbers.Number) and not isinstance(one, numbers.Complex))
        for one in array.flat
    )


def _check_mixed(values: Sequence[Any], array: Array) -> None:
    """Raise `SampleError` if NumPy rounded an integer of a list, because it stands among floats."""
    if not (np.abs(array) >= EXACT).any():
        return
    for value, held in zip(np.asarray(values, object).flat, array.flat, strict=True):
        if isinstance(value, int | np.integer) and int(value) != held.item():
            raise SampleError(
                f"expected floats or integers, got a list of both, with {value}, which no float64 is; "
                "convert it in the reader, e.g. with numpy.asarray(values, dtype)"
            )


def _swapped(array: Array) -> Array:
    """Return an array of foreign byte order in the machine's own."""
    try:
        return array.astype(native(array.dtype))
    except (TypeError, ValueError) as error:  # those of ml_dtypes cannot be swapped
        raise SampleError(
            f"expected numbers in this machine's byte order, got {array.dtype.name} in another: {error}"
        ) from error


def _from_objects(array: Array, wanted: np.dtype[Any]) -> Array:
    """Return numbers of Python as float64, or for an integer dtype as they are unless one is out of range.

    Raises
    ------
    SampleError
        A number is out of the dtype's range, or larger than any float64.
    """
    if wanted.kind != "f":
        limits = np.iinfo(wanted)
        bad = next((one for one in array.flat if not _is_between(one, limits.min, limits.max)), None)
        if bad is not None:
            raise SampleError(f"expected numbers of dtype {wanted} ({limits.min} to {limits.max}), got {bad}")
        return array
    try:
        return array.astype(np.float64)
    except OverflowError:
        raise SampleError(f"expected numbers up to {np.finfo(np.float64).max}, got a larger one") from None


def _is_between(number: Any, low: int, high: int) -> bool:
    number = number.item() if isinstance(number, np.generic) else number
    try:
        return bool(low <= number <= high)
    except ArithmeticError:  # a Decimal that is no number
        return False


def _parse_text(array: Array, wanted: np.dtype[Any] | None) -> Array:
    if wanted is not None and wanted.kind in "iu":
        with contextlib.suppress(ValueError, OverflowError):  # "2.5" or out of range: left to `cast`
            if wanted.kind == "u" and any("-" in text for text in array.astype(str).flat):
                return array.astype(np.float64)  # NumPy 1.26 would parse "-1" as 2**64 - 1
            return array.astype(f"{wanted.kind}8")
    floats = array.astype(np.float64)
    infinite = np.isinf(floats)
    if infinite.any() and any("inf" not in text.lower() for text in array[infinite].astype(str).flat):
        raise SampleError(
            f"expected numbers up to {np.finfo(np.float64).max}, got text: {array[infinite][0]}"
        )
    return floats


def fit(array: Array, shape: Dims) -> Array:
    """Return `array` reshaped to `shape` if the element counts match, or raise `SampleError`."""
    if matches(array.shape, shape):
        return array
    unknown = sum(size is None for size in shape)
    known = math.prod(size for size in shape if size is not None)
    if unknown == 0 and array.size == known:
        return array.reshape([size or 0 for size in shape])
    if unknown == 1 and known and array.size % known == 0 and array.ndim != len(shape):
        return array.reshape([-1 if size is None else size for size in shape])
    raise SampleError(f"expected shape {describe(shape)}, got {describe(array.shape)}")


def fit_if_alike(array: Array, shape: Dims) -> Array:
    """Return `array` as it is; raise `SampleError` if a shape of as many dimensions contradicts `shape`."""
    return fit(array, shape) if array.ndim == len(shape) else array


def matches(got: tuple[int, ...], expected: Dims) -> bool:
    """Return whether an array of the shape `got` has the shape `expected`, whose None stands for any size.

    >>> matches((32, 784), (None, 784)), matches((784,), (None, 784))
    (True, False)
    """
    return len(got) == len(expected) and all(
        size is None or size == actual for size, actual in zip(expected, got, strict=True)
    )


def describe_field(shape: Dims, dtype: np.dtype[Any]) -> str:
    """Return the shape and the dtype of a field's samples as text.

    >>> describe_field((None, 784), np.dtype("float32"))
    'shape (-, 784) and dtype float32'
    """
    return f"shape {describe(shape)} and dtype {describe_dtype(dtype)}"


def _shorten(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"
