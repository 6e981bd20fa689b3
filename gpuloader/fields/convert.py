"""The one place that validates values and converts them to their fields."""

from __future__ import annotations

import contextlib
import math
import numbers
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gpuloader.errors import LoaderError, SampleError, unlike_first
from gpuloader.fields.spec import Array, Dims, describe, is_stageable, native
from gpuloader.foreign import describe_dtype, is_tensor, tensor_array

# Casts of arrays from one dtype to another that never silently lose a number.
#
# `cast` serves declared fields: like NumPy, it rounds, and drops fractions for integers. `cast_exactly`
# serves inferred fields: every number must come out as it went in. Neither wraps integers around, turns a
# finite number into infinity or NaN, or drops an imaginary part.

_KINDS = {"b": "b", "i": "i", "u": "i", "f": "f", "c": "c"}
_ORDER = "bifc"
"""Booleans, integers, floats and complex numbers: each kind includes the earlier ones."""
_ML_PREFIXES = {"int": "i", "uint": "i", "float": "f", "bfloat": "f"}


def find_kind(dtype: np.dtype[Any]) -> str:
    """Return a dtype's kind of numbers: 'b', 'i', 'f' or 'c'; empty for any other dtype.

    >>> find_kind(np.dtype("uint8")), find_kind(np.dtype([("x", "f4")]))
    ('i', '')
    """
    if dtype.isbuiltin != 2:
        return _KINDS.get(dtype.kind, "")
    # The dtypes of ml_dtypes: their `kind` says nothing, and not all of their complex ones can be cast.
    return _ML_PREFIXES.get(dtype.name.partition("_")[0].rstrip("0123456789"), "")


def _info(dtype: np.dtype[Any], kind: str) -> Any:
    """Return NumPy's ``iinfo`` or ``finfo`` of a dtype, or that of the package it comes from."""
    module: Any = np if dtype.isbuiltin != 2 else sys.modules[dtype.type.__module__.partition(".")[0]]
    return (module.iinfo if kind == "i" else module.finfo)(dtype)


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return `array` cast to `dtype`, rounded if need be.

    Raises `SampleError` if a number is out of the dtype's range, or if the dtype is of a kind that cannot
    hold the number, not even rounded.

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
    # All that remains is to check floats for overflow; integers and booleans cannot overflow.
    if target in "bi" or not array.size:
        return array.astype(dtype)
    if dtype.isbuiltin == 2:
        return _to_ml_floats(array, dtype)
    try:
        with np.errstate(over="raise", under="ignore"):
            return array.astype(dtype)
    except FloatingPointError:
        problem = f"expected numbers of dtype {dtype} (at most {np.finfo(dtype).max}), got larger ones"
        raise SampleError(problem) from None


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
    # Python numbers compare exactly. As a float, 2**63 - 1 becomes 2**63, so 2**63 itself would pass.
    low, high = array.min().item(), array.max().item()
    if low < limits.min or high > limits.max:
        bad = low if low < limits.min else high
        raise SampleError(f"expected numbers of dtype {dtype} ({limits.min} to {limits.max}), got {bad}")


def _to_ml_floats(array: Array, dtype: np.dtype[Any]) -> Array:
    limits = _info(dtype, "f")
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        wide, back = array.astype(np.float64), converted.astype(np.float64)
        finite = np.isfinite(wide)
        # Dtypes without infinity or NaN turn these, and numbers out of range, into something else.
        kept = np.where(finite, np.isfinite(back), _is_same(wide, back))
        kept &= ~finite | ((wide >= float(limits.min)) & (wide <= float(limits.max)))
    if not kept.all():
        bad = array[~kept].ravel()[0]
        raise SampleError(f"expected numbers of dtype {dtype} ({limits.min} to {limits.max}), got {bad}")
    return converted


def cast_exactly(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return `array` cast to `dtype`, every number unchanged, or raise `SampleError`.

    No integer dtype accepts floats, whatever their values.

    >>> cast_exactly(np.array([1, 2]), np.dtype("float32"))
    array([1., 2.], dtype=float32)
    """
    if array.dtype == dtype:
        return array
    source, target = find_kind(array.dtype), find_kind(dtype)
    if not source or not target or target == "b" or _ORDER.index(source) > _ORDER.index(target):
        advice = "make it one dtype in every sample, such as float"
        raise unlike_first(describe_dtype(dtype), describe_dtype(array.dtype), advice)
    array, _ = _plain(array, dtype)
    converted = cast(array, dtype)
    if target == "i" or source == "b":
        return converted
    with np.errstate(all="ignore"):
        wide = converted.astype(np.float64) if dtype.isbuiltin == 2 else converted
        same = _holds_integers(array, wide.real) if source == "i" else _is_same(array, wide)
    if not same.all():
        bad = array[~same].ravel()[0]
        raise SampleError(
            f"expected numbers that {dtype}, the dtype of the batch's first sample, holds exactly, got {bad} "
            f"of {array.dtype}; return the same dtype in all samples, or declare the field in feed_list, "
            "which rounds"
        )
    return converted


def _is_same(one: Array, other: Array) -> Any:
    """Return where numbers are equal, or both NaN; NumPy compares them in the wider dtype."""
    return (one == other) | ((one != one) & (other != other))


def _holds_integers(array: Array, wide: Array) -> Any:
    """Return where floats equal the integers that they were converted from."""
    info = np.iinfo(array.dtype)
    # One more than the largest integer is a power of two, so a float can hold it, but it cannot be cast back.
    inside = (wide >= float(info.min)) & (wide < float(info.max + 1))
    return inside & (np.where(inside, wide, 0).astype(array.dtype) == array)


Conversion = Callable[[object, np.dtype[Any], Dims], Array]
"""`convert` or `convert_alike`: returns a value as an array of a dtype and shape, or raises `SampleError`."""

_UNMASKED = frozenset([np.ndarray, int, float, bool])
EXACT = 2**53
"""All integers up to this one are exact in float64."""

IF_IT_VARIES = (
    "if its length varies, name the field in ragged, or in pad with the value to fill up with, or choose "
    "batches of samples of equal length (bucketing) with a batch_sampler"
)
"""What to do about samples of different shapes in one batch, for error messages."""

IF_IMAGES = (
    "add CenterCrop after Resize(size), or pass Resize((height, width)), so that all images have one size"
)
"""What to do about images of different sizes in one batch, for error messages."""

IF_A_LIST = (
    "each entry of a list or tuple is a field; if the sample is a single sequence of varying length, return "
    "an array, and pass pad={'0': 0} or ragged=['0']"
)
"""What to do about samples that are lists of different lengths, for error messages."""


def convert(value: object, dtype: np.dtype[Any], shape: Dims) -> Array:
    """Return one sample's value as an array of `dtype` and `shape`; None in `shape` stands for any size.

    Accepts numbers, nested lists, arrays and numeric strings. A value of a different shape is reshaped if the
    element counts match and no fixed dimension contradicts it (28 x 28 to 784, a number to [1]). Finite
    numbers are cast as NumPy casts them: in an integer field 3.7 becomes 3, as in Paddle.

    Raises
    ------
    SampleError
        The value is not numeric, is a ragged list, has a shape that does not fit, is NaN or infinity for an
        integer field, or is outside the range of the field's dtype. The caller adds batch, sample and field.

    >>> convert([1, 2, 3, 4], np.dtype("float32"), (2, 2))
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    return fit(cast(as_numbers(value, dtype), dtype), shape)


def convert_dtype(value: object, dtype: np.dtype[Any], shape: Dims) -> Array:
    """Return one sample's value as an array of `dtype`, without reshaping it; raises what `convert` raises.

    A shape with a different number of dimensions is accepted.

    >>> convert_dtype([1, 2, 3, 4], np.dtype("float32"), (None, 2)).shape
    (4,)
    """
    return fit_if_alike(cast(as_numbers(value, dtype), dtype), shape)


def convert_alike(
    value: object, dtype: np.dtype[Any], shape: Dims, advice: str = IF_IT_VARIES, *, keeps_dtype: bool = False
) -> Array:
    """Return one sample's value as an array of `dtype` and `shape`, with fewer conversions than `convert`.

    For undeclared fields. Nothing is reshaped, no text is parsed, and every number stays as it is. Raises
    `SampleError` for a different shape, with `advice` if no dimension is free, and for numbers that `dtype`
    cannot hold exactly. With `keeps_dtype`, also for a number, array or tensor of any other dtype.

    >>> convert_alike(0.5, np.dtype("int64"), ())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gpuloader.errors.SampleError: expected int64 as in the batch's first sample, got float64; make it...
    """
    if type(value) is np.ndarray and value.dtype == dtype and matches(value.shape, shape):
        return value
    if isinstance(value, list | tuple) and not value and shape and shape[0] in (None, 0):
        # An empty sequence fits steps of any shape and dtype.
        return np.empty([size or 0 for size in shape], dtype)
    array = as_numbers(value, dtype if is_tensor(value) and not keeps_dtype else None, parses=False)
    if keeps_dtype and array.dtype != dtype and not isinstance(value, list | tuple):
        advice = "make every sample one dtype"
        raise unlike_first(describe_dtype(dtype), describe_dtype(array.dtype), advice)
    if not matches(array.shape, shape):
        advice = "" if None in shape else advice
        raise unlike_first(f"shape {describe(shape)}", describe(array.shape), advice)
    return cast_exactly(array, dtype)


def as_numbers(value: object, wanted: np.dtype[Any] | None = None, *, parses: bool = True) -> Array:
    """Return `value` as an array of numbers in native byte order; raise `SampleError` for anything else.

    A tensor of a dtype that NumPy lacks becomes its bits; see `bits_dtype`. Text becomes float64, if it can
    stand for numbers at all. `wanted` is the dtype that the array will be cast to, if known. For an integer
    dtype, text then becomes an integer, because a float keeps only 53 bits of an id, and a tensor's numbers
    stay numbers.
    """
    if value is None:
        raise SampleError("expected numbers, got None: every sample needs a value in every field")
    # A NumPy array or a single Python number is neither a tensor nor masked.
    is_plain = type(value) in _UNMASKED
    try:
        if not is_plain and is_tensor(value):
            return tensor_array(value, wanted)
        array = np.asarray(value)
    except (LoaderError, MemoryError):
        raise
    except Exception as error:  # `__array__` of another library may raise anything
        raise SampleError(f"expected an array of numbers, got {type(value).__name__}: {error}") from error
    if not is_plain:
        check_mask(value)
        named = str(getattr(value, "dtype", ""))
        if named.startswith("paddle.") and named != f"paddle.{array.dtype.name}":
            # Paddle hands the bits over as integers.
            raise SampleError(f"expected a dtype that NumPy has, got {named}; pass x.astype('float32')")
        if type(value).__module__ == "pyarrow.lib" and hasattr(value, "column_names"):
            # As one array, a table would lose its column names, and integers next to floats their digits.
            raise SampleError(
                f"expected an array of numbers, got a {type(value).__name__} of Arrow with the columns "
                f"{value.column_names}; to have its rows as samples, pass DataLoader a list of such tables"
            )
    may_round = array.dtype == np.float64 and (wanted is None or wanted.kind in "iu")
    if may_round and isinstance(value, list | tuple):
        _check_mixed(value, array)
    if array.dtype.kind in "US":
        if not parses:
            raise SampleError(f"expected numbers as in the batch's first sample, got text: {_shorten(value)}")
        try:
            array = _parse_text(array, wanted)
        except ValueError as error:
            raise SampleError(f"expected numbers, got text: {_shorten(value)}") from error
    # Decimals and integers beyond 64 bits: NumPy keeps them as objects, and their field may be able to hold
    # them.
    if array.dtype == object and wanted is not None and wanted.kind in "fiu" and _is_real(array):
        array = _from_objects(array, wanted)
    if not is_stageable(array.dtype):
        raise SampleError(
            f"expected an array of numbers, got dtype {array.dtype} from {type(value).__name__} "
            f"{_shorten(value)}; convert it in the reader: numpy.asarray(value, '{wanted or 'float32'}')"
        )
    return array if array.dtype.isnative else _swapped(array)


def check_mask(value: object) -> None:
    """Raise `SampleError` if masked elements of a value would become numbers.

    >>> check_mask([np.ma.masked_array([1, 2], [False, True])])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gpuloader.errors.SampleError: expected numbers, got an array with masked elements; ...
    """
    if "numpy.ma" not in sys.modules or type(value) is np.ndarray:
        return
    # Another thread may be importing it, with nothing in the module yet; this waits for the import.
    import numpy.ma as masked

    if _has_masked(value if isinstance(value, list | tuple) else (value,), masked):
        raise SampleError(
            "expected numbers, got an array with masked elements; fill them, e.g. with value.filled(0), and "
            "pass the mask as another field"
        )


def _has_masked(values: Collection[Any], masked: Any) -> bool:
    """Return whether a collection, or one nested in it, has an array with masked elements."""
    kinds = set(map(type, values))
    arrays = {kind for kind in kinds if issubclass(kind, masked.MaskedArray)}
    if arrays and any(masked.is_masked(one) for one in values if type(one) in arrays):
        return True
    # By class first: a list of a million numbers has only one class, and is not searched.
    nested = {kind for kind in kinds if issubclass(kind, list | tuple | Mapping)}
    inner = (one for one in values if type(one) in nested) if nested else ()
    return any(_has_masked(one.values() if isinstance(one, Mapping) else one, masked) for one in inner)


def _is_real(array: Array) -> bool:
    """Return whether an array of objects consists of Decimals, fractions and large integers."""
    # A Decimal is neither real nor complex, and NumPy's complex64 is not derived from Python's complex.
    return all(
        isinstance(one, numbers.Real)
        or (isinstance(one, numbers.Number) and not isinstance(one, numbers.Complex))
        for one in array.flat
    )


def _check_mixed(values: Sequence[Any], array: Array) -> None:
    """Raise `SampleError` if NumPy rounded an integer of a list because the list also has floats."""
    if not (np.abs(array) >= EXACT).any():
        return
    for value, held in zip(np.asarray(values, object).flat, array.flat, strict=True):
        if isinstance(value, int | np.integer) and int(value) != held.item():
            raise SampleError(
                f"expected floats or integers, got a list of both, with {value}, which float64 cannot hold; "
                "convert it in the reader, e.g. with numpy.asarray(values, dtype)"
            )


def _swapped(array: Array) -> Array:
    """Return an array with foreign byte order in the machine's own."""
    try:
        return array.astype(native(array.dtype))
    except (TypeError, ValueError) as error:  # arrays of ml_dtypes cannot be swapped
        raise SampleError(
            f"expected numbers in this machine's byte order, got {array.dtype.name} in the other one: {error}"
        ) from error


def _from_objects(array: Array, wanted: np.dtype[Any]) -> Array:
    """Return Python numbers as float64, or unchanged for an integer dtype unless one is out of range."""
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
    except ArithmeticError:  # a Decimal that is not a number
        return False


def _parse_text(array: Array, wanted: np.dtype[Any] | None) -> Array:
    if wanted is not None and wanted.kind in "iu":
        with contextlib.suppress(ValueError, OverflowError):  # "2.5" or out of range: left to `cast`
            if wanted.kind == "u" and any("-" in text for text in array.astype(str).flat):
                return array.astype(np.float64)  # NumPy 1.26 would parse "-1" as 2**64 - 1
            return array.astype(f"{wanted.kind}8")
    # NumPy silently parses "1e999" to infinity; only text that says "inf" means it.
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
    # With two free dimensions, the sizes of both are unknown, so nothing is reshaped.
    if unknown == 0 and array.size == known:
        return array.reshape([size or 0 for size in shape])
    if unknown == 1 and known and array.size % known == 0 and array.ndim != len(shape):
        return array.reshape([-1 if size is None else size for size in shape])
    raise SampleError(f"expected shape {describe(shape)}, got {describe(array.shape)}")


def fit_if_alike(array: Array, shape: Dims) -> Array:
    """Return `array` unchanged; raise `SampleError` if a `shape` of equal length contradicts its own."""
    return fit(array, shape) if array.ndim == len(shape) else array


def check_fill(fill: float, dtype: np.dtype[Any]) -> None:
    """Raise `SampleError` if an array of `dtype` cannot hold the value that fills up short rows.

    >>> check_fill(0.5, np.dtype("int64"))
    Traceback (most recent call last):
    gpuloader.errors.SampleError: cannot pad rows of int64 with 0.5
    """
    try:
        held = cast(np.asarray(fill), dtype).item()
    except SampleError as error:
        raise SampleError(f"cannot pad rows of {dtype} with {fill!r}: {error.problem}") from None
    if dtype.kind in "iub" and held != fill:
        raise SampleError(f"cannot pad rows of {dtype} with {fill!r}")


def matches(got: tuple[int, ...], expected: Dims) -> bool:
    """Return whether an array of the shape `got` has the shape `expected`, whose None stands for any size.

    >>> matches((32, 784), (None, 784)), matches((784,), (None, 784))
    (True, False)
    """
    if len(got) != len(expected):
        return False
    for size, actual in zip(expected, got, strict=True):  # noqa: SIM110 - `all` takes twice as long
        if size is not None and size != actual:
            return False
    return True


def describe_field(shape: Dims, dtype: np.dtype[Any]) -> str:
    """Return the shape and the dtype of a field's samples as text.

    >>> describe_field((None, 784), np.dtype("float32"))
    'shape (-, 784) and dtype float32'
    """
    return f"shape {describe(shape)} and dtype {describe_dtype(dtype)}"


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
