"""The rows of a batch: the fields that samples have, and how a sample is written into its row of a slot."""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.errors import SampleError
from gpuloader.fields.convert import (
    EXACT,
    IF_A_LIST,
    Conversion,
    as_numbers,
    convert,
    convert_alike,
    convert_dtype,
)
from gpuloader.fields.spec import Array, FeedSpec
from gpuloader.staging.layout import FieldLayout, Layout, arrange
from gpuloader.staging.ring import Views

# Numbers and lists that C writes into a row as they are, after checking their range; by their types.

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


# Where the samples of a batch are written: one target for each field of a slot.

UNFIT = (TypeError, ValueError, OverflowError, NotImplementedError, RuntimeWarning, struct.error)
"""What writing a sample raises if it does not fit its field as it is, and has to be converted."""

Target = tuple[int, Any, Sequence[slice | int], Any, frozenset[type], dict[type, Packer], Any]
"""Where one field's samples are written: (field, region, places, numbers, kinds, packers, memory).

Each of these writes sample i, or raises one of `UNFIT` if the sample does not fit:
``region[places[i]] = array``; ``numbers[i] = number``, if the number's type is one of `kinds`; and
``packers[type(value)](memory, i, value)``, for other numbers and for lists.
"""


class CheckedRows:
    """The rows of a field whose samples have more than one dimension, or a dtype without a buffer format.

    An array of exactly the row's dtype and shape is written; anything else raises TypeError. NumPy would
    broadcast or convert it silently, but that decision is up to `SampleRows.convert`.
    """

    def __init__(self, rows: Array) -> None:
        self._rows = rows
        self._shape = rows.shape[1:]

    def __setitem__(self, index: int, value: Array) -> None:
        if value.dtype == self._rows.dtype and value.shape == self._shape:
            self._rows[index] = value
        else:
            raise TypeError


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """The parts of a field's `Target` that do not depend on the slot.

    Attributes
    ----------
    flat : bool
        Whether a sample has at most one dimension, so that it is written through a flat view.
    places : sequence
        The position of each sample in the region.
    kinds : frozenset of type
        The types of numbers that are assigned as they are.
    packers : dict of type to callable
        How to write values of other types; those that are missing, too, have to be converted.
    numbers_only : bool
        Whether no array is accepted as it is, so that one of a single number is not taken for that number.
    """

    flat: bool
    places: Sequence[slice | int]
    kinds: frozenset[type] = frozenset()
    packers: dict[type, Packer] = dataclasses.field(default_factory=dict)
    numbers_only: bool = False


def row_places(field: FieldLayout, strict: bool) -> RowPlaces:
    """Return the places of a field's samples; `strict` refuses what would have to be reshaped."""
    count, elements = field.shape[0], math.prod(field.shape[1:])
    # Structured dtypes have no buffer format, nor do those of other packages, such as bfloat16.
    if len(field.shape) > 2 or not count or not elements or field.dtype.isbuiltin != 1:
        return RowPlaces(False, range(count))
    places = [slice(start, start + elements) for start in range(0, count * elements, elements)]
    single = len(field.shape) == 1
    kinds: frozenset[type] = frozenset()
    packers: dict[type, Packer] = {}
    if elements == 1 and (single or not strict):
        kinds = exact_types(field.dtype, strict=strict)
        packers |= number_packers(field.dtype, strict=strict)
    if not (single and strict):
        packers |= list_packers(field.dtype, elements, strict=strict)
    return RowPlaces(True, places, kinds, packers, single and strict)


def make_target(field: int, rows: Array, row: RowPlaces) -> Target:
    """Return where to write the samples of field number `field`, given the field's view of a slot."""
    if not row.flat:
        return field, CheckedRows(rows), row.places, None, row.kinds, row.packers, None
    flat = rows.reshape(-1)
    numbers = flat.data
    region = numbers.toreadonly() if row.numbers_only else numbers
    memory = flat.view(np.uint8).data if row.packers else None
    return field, region, row.places, numbers, row.kinds, row.packers, memory


_SAMPLE_TYPES = (tuple, list)

IN_FEEDS = (
    "if its length varies, declare the field in feed_list with lod_level=1, or make batches of samples of "
    "equal length (bucketing)"
)
"""The ways out of samples of different shapes in one batch, with a feed_list and for readers."""


class SampleRows:
    """The fields of a stream of samples, either declared or inferred from each batch's first sample.

    Parameters
    ----------
    feeds : sequence of FeedSpec or None
        The fields; None infers them from the first sample of each batch.
    strict : bool
        Whether to refuse values that would have to be reshaped, or that their field cannot hold exactly.
        Meant for fields that were inferred from a sample, not declared; implied if `feeds` is None.
    """

    def __init__(self, feeds: Sequence[FeedSpec] | None, *, strict: bool = False) -> None:
        self._feeds = feeds
        self._infers = feeds is None
        self._strict = strict or self._infers
        self.conversion: Conversion = convert_alike if strict else convert
        if self._infers:
            self.conversion = functools.partial(convert_alike, advice=IN_FEEDS)
        self._open = feeds is None or any(None in feed.sample_shape for feed in feeds)
        self._shapes: list[tuple[int, ...]] = []
        self.layout = arrange(())
        self.count = -1
        self._places: list[RowPlaces] = []
        self.ragged = feeds is not None and any(feed.lod_level for feed in feeds)
        self.levels: tuple[int, ...] = tuple(feed.lod_level for feed in feeds or ())
        if feeds is not None and not self._open and not self.ragged:
            self._shapes = [tuple(size or 0 for size in feed.sample_shape) for feed in feeds]

    @property
    def feeds(self) -> Sequence[FeedSpec]:
        """One spec per field; empty until the first sample if the fields are inferred."""
        return self._feeds or ()

    def begin(self, first: Any) -> None:
        """Infer what is still open, the fields or their free dimensions, from a batch's first sample."""
        if self._infers:
            self._infer(fields_of(first, None))
        elif self._open and not self.ragged:
            values = fields_of(first, self._feeds)
            shapes = [self.convert(index, 0, value).shape for index, value in enumerate(values)]
            if shapes != self._shapes:
                self._shapes, self.count = shapes, -1

    def _infer(self, values: Sequence[Any]) -> None:
        """Take the fields from the values of a sample, unless they are like those of the batch before."""
        if self._are_alike(values):
            return
        arrays = [_locate(as_numbers, 0, str(index), value) for index, value in enumerate(values)]
        if len(arrays) == len(self.feeds) and all(
            array.shape == feed.sample_shape and array.dtype == feed.dtype
            for array, feed in zip(arrays, self.feeds, strict=True)
        ):
            return
        self._feeds = [
            FeedSpec(str(index), (None, *array.shape), array.dtype) for index, array in enumerate(arrays)
        ]
        self.levels = (0,) * len(arrays)
        self._shapes, self.count = [array.shape for array in arrays], -1

    def _are_alike(self, values: Sequence[Any]) -> bool:
        """Return whether all values are arrays or numbers of NumPy that look like the batch before."""
        if len(values) != len(self.feeds):
            return False
        for value, feed in zip(values, self.feeds):  # noqa: B905  both are equally long
            if type(value) is not np.ndarray and not isinstance(value, np.generic):
                return False
            if value.dtype != feed.dtype or value.shape != feed.sample_shape:
                return False
        return True

    def convert(self, field: int, index: int, value: Any) -> Array:
        """Return one value of sample `index` converted to its field; the `SampleError` names both."""
        feed = self.feeds[field]
        conversion = convert_dtype if feed.keeps_shapes else self.conversion
        return _locate(conversion, index, feed.name, value, feed.dtype, feed.sample_shape)

    def arrange(self, count: int) -> Layout:
        """Return the layout of a batch of `count` dense samples."""
        if count != self.count:
            self.layout = self.layout_of(count)
            self.count = count
            self._places = [row_places(field, self._strict) for field in self.layout.fields]
        return self.layout

    def layout_of(self, count: int) -> Layout:
        """Return the layout of a batch of `count` dense samples without arranging for it."""
        dtypes = [feed.dtype for feed in self.feeds]
        return arrange(
            tuple(((count, *shape), dtype) for shape, dtype in zip(self._shapes, dtypes, strict=True))
        )

    def targets(self, views: list[Array]) -> list[Target]:
        """Return where each field's samples are written, given the views of a slot.

        An array of at most one dimension is assigned to a memoryview, which accepts only an array of its own
        format and length. Numbers and lists are packed by `struct`, which accepts only the right number of
        them, each within the field's range. Both check in C, in less time than NumPy needs to assign a row.
        """
        prepared = views.prepared if isinstance(views, Views) else None
        if prepared is not None and prepared[0] is self._places:
            found: list[Target] = prepared[1]
            return found
        targets = [
            make_target(field, rows, places)
            for field, (rows, places) in enumerate(zip(views, self._places, strict=True))
        ]
        if isinstance(views, Views):
            views.prepared = self._places, targets
        return targets

    def write(self, views: list[Array], samples: Iterable[Any], start: int = 0) -> int:
        """Write samples into the rows of `views`, starting at row `start`; return the row after the last."""
        targets = self.targets(views)
        fields = len(targets)
        if fields == 1:
            return self._write_single(views, targets[0], samples, start)
        if fields == 2:
            return self._write_pairs(views, targets, samples, start)
        regions = [(target[1], target[2], target) for target in targets]
        array = np.ndarray
        index = start - 1
        for index, sample in enumerate(samples, start):
            if (type(sample) is not tuple and not isinstance(sample, _SAMPLE_TYPES)) or len(sample) != fields:
                fields_of(sample, self.feeds, index)
            # No strict=True: here it would cost a tenth of the time that a whole sample takes.
            for (region, places, target), value in zip(regions, sample):  # noqa: B905
                if type(value) is array:
                    try:
                        region[places[index]] = value
                    except UNFIT:
                        self._convert_and_write(views[target[0]], target[0], index, value)
                else:
                    self._write_other(views, target, index, value)
        return index + 1

    def _write_single(self, views: list[Array], target: Target, samples: Iterable[Any], start: int) -> int:
        """Write samples of one field, as `write` does."""
        _, region, places, *_ = target
        array, index = np.ndarray, start - 1
        for index, sample in enumerate(samples, start):
            if type(sample) in _SAMPLE_TYPES and len(sample) == 1:
                value = sample[0]
                if type(value) is array:
                    try:
                        region[places[index]] = value
                        continue
                    except UNFIT:
                        pass
            value = fields_of(sample, self.feeds, index)[0]
            self._write_other(views, target, index, value)
        return index + 1

    def _write_pairs(
        self, views: list[Array], targets: list[Target], samples: Iterable[Any], start: int
    ) -> int:
        """Write samples of two fields, such as an image and its label, as `write` does."""
        (_, one_region, one_places, *_), (_, two_region, two_places, two_numbers, two_kinds, *_) = targets
        array, index = np.ndarray, start - 1
        for index, sample in enumerate(samples, start):
            if type(sample) not in _SAMPLE_TYPES or len(sample) != 2:
                sample = fields_of(sample, self.feeds, index)
            one, two = sample
            if type(one) is array:
                try:
                    one_region[one_places[index]] = one
                except UNFIT:
                    self._convert_and_write(views[0], 0, index, one)
            else:
                self._write_other(views, targets[0], index, one)
            kind = type(two)
            if kind not in two_kinds and kind is not array:
                self._write_other(views, targets[1], index, two)
                continue
            try:
                if kind is array:
                    two_region[two_places[index]] = two
                else:
                    two_numbers[index] = two
            except UNFIT:
                self._convert_and_write(views[1], 1, index, two)
        return index + 1

    def _write_other(self, views: list[Array], target: Target, index: int, value: Any) -> None:
        """Write one value that is not an array, or is one that has to be converted."""
        field, region, places, numbers, kinds, packers, memory = target
        kind = type(value)
        try:
            if kind in kinds:
                numbers[index] = value
            elif kind in packers:
                packers[kind](memory, index, value)
            elif kind is np.memmap:
                region[places[index]] = value
            else:
                raise TypeError
        except UNFIT:
            self._convert_and_write(views[field], field, index, value)

    def _convert_and_write(self, rows: Array, field: int, index: int, value: Any) -> None:
        array = self.convert(field, index, value)
        expected = rows.shape[1:]
        if array.shape != expected:  # of a field with free dimensions
            raise SampleError(
                f"expected shape {expected} as in the batch's first sample, got {array.shape}; {IN_FEEDS}",
                index=index,
                field=self.feeds[field].name,
            )
        rows[index] = array


def fields_of(sample: Any, feeds: Sequence[FeedSpec] | None, index: int = 0) -> Sequence[Any]:
    """Return a sample's values; raise `SampleError` unless it is a tuple or list with one value per field."""
    if not isinstance(sample, list | tuple):
        raise SampleError(
            f"expected a tuple with one value per field, got {type(sample).__name__}", index=index
        )
    if feeds is not None and len(sample) != len(feeds):
        names = [feed.name for feed in feeds]
        advice = f"; {IF_A_LIST}" if names == [*map(str, range(len(names)))] else ""  # not declared
        problem = f"expected {len(feeds)} fields ({', '.join(names)}), got {len(sample)}{advice}"
        raise SampleError(problem, index=index)
    if not sample:
        raise SampleError("expected one value per field, got an empty tuple", index=index)
    return sample


def _locate(function: Any, index: int, field: str, *arguments: Any) -> Array:
    """Call `function`; add the sample and the field to a `SampleError` it raises."""
    try:
        result: Array = function(*arguments)
    except SampleError as error:
        error.index, error.field = index, field
        raise
    return result
