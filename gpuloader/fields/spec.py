"""Field declarations, and the one place that validates samples and converts them to their fields."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuloader.base.errors import LoaderError, SampleError

Array = NDArray[Any]
Dims = tuple[int | None, ...]
Conversion = Callable[[object, np.dtype[Any], Dims], Array]
"""`convert` or `convert_alike`: returns a value as an array of a dtype and shape, or raises `SampleError`."""
Indices = Sequence[Any] | NDArray[np.int64]
"""The indices of a batch: a range, an int64 array, or a list of whatever a sampler yields."""


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """A declared field: its name, the shape of one batch of it, and its dtype.

    Attributes
    ----------
    name : str
        The field's key in a dict batch.
    shape : tuple of int or None
        Shape of a batch, batch dimension first; None stands for any size.
    dtype : numpy.dtype
        The dtype samples are converted to; None means float32.
    lod_level : int
        0 for dense fields, 1 for sequences of varying length, 2 for sequences of such sequences.

    Examples
    --------
    >>> FeedSpec("image", (None, 784), "float32").sample_shape
    (784,)
    """

    name: str
    shape: Dims
    dtype: np.dtype[Any]
    lod_level: int = 0

    def __init__(
        self, name: str, shape: Sequence[int | None], dtype: DTypeLike = "float32", lod_level: int = 0
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"the name of a feed must be a non-empty string, got {name!r}")
        if isinstance(lod_level, bool) or lod_level not in (0, 1, 2):
            raise ValueError(f"feed {name!r}: lod_level must be 0, 1 or 2, got {lod_level!r}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "shape", _parse_dims(name, shape))
        object.__setattr__(self, "dtype", _parse_dtype(name, dtype))
        object.__setattr__(self, "lod_level", lod_level)

    @property
    def sample_shape(self) -> Dims:
        """Shape of one sample; for a ragged field, of one step of its sequence."""
        return self.shape[1:]


def _parse_dims(name: str, shape: object) -> Dims:
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise ValueError(f"feed {name!r}: shape must be a list of dimensions, got {shape!r}")
    dims: list[int | None] = []
    for size in shape:
        if size is None or (isinstance(size, int) and size == -1):
            dims.append(None)
        elif isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 0:
            dims.append(int(size))
        else:
            raise ValueError(f"feed {name!r}: a dimension must be None, -1 or an integer >= 0, got {size!r}")
    if not dims:
        raise ValueError(f"feed {name!r}: shape must have at least the batch dimension, e.g. [None]")
    return tuple(dims)


def _parse_dtype(name: str, dtype: DTypeLike) -> np.dtype[Any]:
    try:
        parsed = native(np.dtype("float32" if dtype is None else dtype))  # NumPy takes None for float64
    except TypeError as error:
        raise ValueError(f"feed {name!r}: {dtype!r} is not a dtype") from error
    if not is_stageable(parsed):
        raise ValueError(f"feed {name!r}: a field must hold numbers or booleans, got dtype {parsed}")
    return parsed


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return `dtype` in native byte order, the only one devices compute in.

    >>> native(np.dtype(">f4")) is np.dtype("float32")
    True
    """
    # NumPy keeps one object per plain dtype. Looking it up by name returns that object, so that `is` works.
    return dtype if dtype.isnative else np.dtype(dtype.newbyteorder("=").str)


def is_stageable(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of `dtype` can be copied to a device as raw bytes.

    >>> is_stageable(np.dtype("float32")), is_stageable(np.dtype(object))
    (True, False)
    """
    return not dtype.hasobject and dtype.kind not in "USMm"


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


def convert_alike(value: object, dtype: np.dtype[Any], shape: Dims) -> Array:
    """Return one sample's value as an array of `dtype` and `shape`, with fewer conversions than `convert`.

    For undeclared fields. Nothing is reshaped, no text is parsed, and no fraction or imaginary part is lost.

    Raises
    ------
    SampleError
        The value has another shape, or numbers that `dtype` cannot hold.

    Examples
    --------
    >>> convert_alike(0.5, np.dtype("int64"), ())
    Traceback (most recent call last):
    gpuloader.base.errors.SampleError: expected int64 as in the first sample, got float64
    """
    if isinstance(value, str | bytes):
        raise SampleError(f"expected numbers as in the first sample, got text: {_shorten(value)}")
    if isinstance(value, list | tuple) and not value and shape and shape[0] in (None, 0):
        # An empty sequence fits steps of any shape and dtype.
        return np.empty([size or 0 for size in shape], dtype)
    array = as_numbers(value)
    if not np.can_cast(array.dtype, dtype, "same_kind") and not (
        array.dtype.kind in "iu" and dtype.kind in "iu"
    ):
        raise SampleError(f"expected {dtype} as in the first sample, got {array.dtype}")
    if not _matches(array.shape, shape):
        raise SampleError(
            f"expected shape {describe(shape)} as in the first sample, got {describe(array.shape)}; if "
            "the field's length varies, name it in the loader's ragged or pad"
        )
    return cast(array, dtype)


def as_numbers(value: object, wanted: np.dtype[Any] | None = None) -> Array:
    """Return `value` as an array of numbers in native byte order, or raise `SampleError`.

    Text becomes float64. If `wanted` is an integer dtype, integer text becomes an integer instead, because a
    float keeps only 53 bits of an id.
    """
    if value is None:
        raise SampleError("expected numbers, got None: every sample needs a value in every field")
    try:
        array = np.asarray(value)
    except (LoaderError, MemoryError):
        raise
    except Exception as error:  # `__array__` of another library may raise anything
        raise SampleError(f"expected an array of numbers, got {type(value).__name__}: {error}") from error
    if array.dtype.kind in "US":
        try:
            array = _parse_text(array, wanted)
        except ValueError as error:
            raise SampleError(f"expected numbers, got text: {_shorten(value)}") from error
    if not is_stageable(array.dtype):
        raise SampleError(
            f"expected an array of numbers, got dtype {array.dtype} from {type(value).__name__} "
            f"{_shorten(value)}; convert it in the reader, e.g. with numpy.asarray(value, 'float32')"
        )
    return array if array.dtype.isnative else array.astype(native(array.dtype))


def _parse_text(array: Array, wanted: np.dtype[Any] | None) -> Array:
    if wanted is not None and wanted.kind in "iu":
        with contextlib.suppress(ValueError, OverflowError):  # "2.5" or out of range: left to `cast`
            if wanted.kind == "u" and any("-" in text for text in array.astype(str).flat):
                return array.astype(np.float64)  # NumPy 1.26 would parse "-1" as 2**64 - 1
            return array.astype(f"{wanted.kind}8")
    return array.astype(np.float64)


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return `array` cast to `dtype`, or raise `SampleError` if it cannot represent one of the numbers."""
    if array.dtype == dtype:
        return array
    if dtype.kind in "iu" and array.size and array.dtype.kind in "iufb":
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            bad = array[~np.isfinite(array)].ravel()[0]
            raise SampleError(f"expected whole numbers of dtype {dtype}, got {bad}")
        limits = np.iinfo(dtype)
        # Python numbers compare exactly. As a float, 2**63 - 1 is 2**63, so 2**63 itself would pass.
        low, high = array.min().item(), array.max().item()
        if low < limits.min or high > limits.max:
            raise SampleError(
                f"expected numbers of dtype {dtype} ({limits.min} to {limits.max}), got {low} to {high}"
            )
    if array.dtype.kind == "c" and dtype.kind != "c":
        raise SampleError(f"expected real numbers of dtype {dtype}, got dtype {array.dtype}")
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError:
        raise SampleError(
            f"expected numbers of dtype {dtype} (at most {np.finfo(dtype).max}), got larger ones"
        ) from None


def fit(array: Array, shape: Dims) -> Array:
    """Return `array` reshaped to `shape` if the element counts match, or raise `SampleError`."""
    if _matches(array.shape, shape):
        return array
    unknown = sum(size is None for size in shape)
    known = math.prod(size for size in shape if size is not None)
    if unknown == 0 and array.size == known:
        return array.reshape([size or 0 for size in shape])
    if unknown == 1 and known and array.size % known == 0 and array.ndim != len(shape):
        return array.reshape([-1 if size is None else size for size in shape])
    raise SampleError(f"expected shape {describe(shape)}, got {describe(array.shape)}")


def _matches(got: tuple[int, ...], expected: Dims) -> bool:
    return len(got) == len(expected) and all(
        size is None or size == actual for size, actual in zip(expected, got, strict=True)
    )


def describe(shape: Dims) -> str:
    """Return a shape as text, with a dash for a dimension of any size.

    >>> describe((None, 784))
    '(-, 784)'
    """
    sizes = ["-" if size is None else str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def _shorten(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"
