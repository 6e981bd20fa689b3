"""Rows: each sample is written into its row of a slot as soon as it arrives, and its bytes only once.

`SampleRows` knows the fields and where they lie in a slot. `write` is the loader's innermost loop: C code
checks and writes what fits its row unchanged; anything else is converted, or refused with an error that names
the sample and the field. Below it come the targets, one for each field of a slot, and the packers for numbers
and lists.
"""

from __future__ import annotations

import array as arrays
import functools
import itertools
import math
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from gpuloader.errors import SampleError, unlike_first
from gpuloader.fields.convert import EXACT, IF_A_LIST, Conversion, convert, convert_dtype
from gpuloader.fields.spec import Array, FeedSpec
from gpuloader.foreign import is_tensor, tensor_over
from gpuloader.staging import FieldLayout, Layout, SlotViews, arrange, find_runs

IN_FEEDS = (
    "if its length varies, declare the field in feed_list with lod_level=1, or make batches of samples of "
    "equal length (bucketing)"
)
"""What to do about samples of different shapes in one batch, with a feed_list and for readers."""

UNFIT = (TypeError, ValueError, AttributeError, OverflowError, NotImplementedError, Warning, struct.error)
"""What writing a sample raises if it does not fit its field unchanged, and has to be converted."""

SAMPLE_TYPES = (tuple, list)


class SampleRows:
    """The fields of samples, and how their values are written into the rows of a slot.

    `conversion` converts values that do not fit their field unchanged. If some of the feeds' dimensions are
    free, `shapes` are those of the fields' samples. With `keeps_dtypes`, a number of another dtype does not
    fit. With a `count`, samples are dense and come in batches of that many, which have the `layout`.
    """

    def __init__(
        self,
        feeds: Sequence[FeedSpec],
        conversion: Conversion = convert,
        shapes: Sequence[tuple[int, ...]] | None = None,
        keeps_dtypes: bool = False,
        count: int | None = None,
    ) -> None:
        self.feeds = feeds
        self.conversion = conversion
        self._shapes = shapes
        self._places: list[_RowPlaces] = []
        # Whether samples are written field by field: None before the first tensor, unless the only field is
        # a number; False once some did not fit, because all fields would be written twice.
        self.in_columns: bool | None = None
        if count is not None:
            self.layout = self.layout_of(count)
            strict = conversion is not convert  # refuses what would have to be reshaped
            for field in self.layout.fields:
                self._places.append(_row_places(field, strict, keeps_dtypes))
            self.in_columns = [parts[-1] for parts in self._places] == [True] or None

    def convert(self, field: int, index: int, value: Any) -> Array:
        """Return one value of sample `index` converted to its field; the `SampleError` names both."""
        feed = self.feeds[field]
        conversion = convert_dtype if feed.keeps_shapes else self.conversion
        try:
            return conversion(value, feed.dtype, feed.shape[1:])
        except SampleError as error:
            error.index, error.field = index, feed.name
            raise

    def layout_of(self, count: int) -> Layout:
        """Return the layout of a batch of `count` dense samples."""
        specs = []
        for number, feed in enumerate(self.feeds):
            shape: Sequence[Any] = feed.shape[1:] if self._shapes is None else self._shapes[number]
            specs.append(((count, *shape), feed.dtype))
        return find_runs(arrange(tuple(specs)))

    def write(self, views: SlotViews, samples: Iterable[Any], start: int = 0) -> int:
        """Write samples into the rows of `views`, starting at row `start`; return the row after the last."""
        targets = self._targets(views)
        fields, rest = len(targets), iter(samples)
        if 0 < fields < 3:
            start, other = self._write_plain(targets, rest, start)
            if not other:
                return start
            rest = itertools.chain(other, rest)
        parts = [(*target[1:5], target) for target in targets]
        array, index = np.ndarray, start - 1
        for index, sample in enumerate(rest, start):
            if (type(sample) is not tuple and not isinstance(sample, SAMPLE_TYPES)) or len(sample) != fields:
                fields_of(sample, self.feeds, index)
            # No strict=True: here it would cost a tenth of the time that a whole sample takes.
            for (region, places, numbers, kinds, target), value in zip(parts, sample):  # noqa: B905
                try:
                    if type(value) is array and region is not None:
                        region[places[index]] = value
                    elif type(value) in kinds:
                        numbers[index] = value
                    else:
                        self._write_other(target, index, value)
                except SampleError:  # a ValueError, too, of a value that was converted already
                    raise
                except UNFIT:
                    self._convert_and_write(target, index, value)
        return index + 1

    def write_columns(
        self, views: SlotViews, columns: Sequence[Sequence[Any]], start: int, stop: int
    ) -> None:
        """Write samples, given the values of each field, into rows `start` to `stop`.

        Samples of a stream have no columns: it may use the same memory for each, and fail after some.
        """
        if self.in_columns:
            self.in_columns = _write_columns(self._targets(views), columns, start, stop)
        if not self.in_columns:
            self.write(views, zip(*columns, strict=True), start)

    def _write_plain(
        self, targets: list[Target], samples: Iterator[Any], start: int
    ) -> tuple[int, list[Any]]:
        """Write samples such as an image, or an image and its label, up to the first one that does not fit.

        Returns its row and a list of the sample, which is empty at the end. That takes less time than the
        loop of `write`, which handles any number of fields.
        """
        is_pair, one_target, two_target = len(targets) == 2, targets[0], targets[-1]
        one_rows, one_region, one_places, one_numbers, one_kinds, *_ = one_target
        _, two_region, two_places, two_numbers, two_kinds, *_ = two_target
        one_dtype, array, index = one_rows.dtype, np.ndarray, start - 1
        for index, sample in enumerate(samples, start):
            if type(sample) is not tuple and not isinstance(sample, SAMPLE_TYPES):
                break
            try:
                if is_pair:
                    one, two = sample
                    if type(two) in two_kinds:
                        two_numbers[index] = two
                    elif type(two) is not array:
                        self._write_other(two_target, index, two)
                    elif two_region is not None:
                        two_region[two_places[index]] = two
                    else:
                        break
                else:
                    [one] = sample
                if type(one) is not array:
                    if type(one) in one_kinds:
                        one_numbers[index] = one
                    else:
                        self._write_other(one_target, index, one)
                elif one_region is not None:
                    one_region[one_places[index]] = one
                elif one.shape == one_places and one.dtype == one_dtype:
                    one_rows[index] = one
                else:
                    break
            except UNFIT:
                break
        else:
            return index + 1, []
        return index, [sample]

    def _write_other(self, target: Target, index: int, value: Any) -> None:
        """Write one value that is not an array, or an array that has to be converted."""
        rows, region, places, _, _, packers, memory, _ = target
        kind = type(value)
        try:
            if kind in packers:
                packers[kind](memory, index, value)
            else:
                array = value
                if is_tensor(value):
                    self.in_columns = self.in_columns is not False
                    array = value.numpy()  # a tensor whose numbers are not what lies in its memory raises
                elif kind is not np.memmap and kind is not np.ndarray:
                    raise TypeError
                if region is not None and array.ndim:
                    region[places[index]] = array
                # Also a label that is a tensor, as a `TensorDataset` has them.
                elif array.shape == rows.shape[1:] and array.dtype == rows.dtype:
                    rows[index] = array
                else:
                    raise TypeError
        except (RuntimeError, *UNFIT):
            self._convert_and_write(target, index, value)

    def _convert_and_write(self, target: Target, index: int, value: Any) -> None:
        rows, field = target[0], target[-1]
        array = self.convert(field, index, value)
        expected = rows.shape[1:]
        if array.shape != expected:  # of a field with free dimensions
            name = self.feeds[field].name
            raise unlike_first(f"shape {expected}", array.shape, IN_FEEDS, index=index, field=name)
        rows[index] = array

    def _targets(self, views: SlotViews) -> list[Target]:
        """Return where each field's samples are written, given the views of a slot, which keep the answer.

        An array of at most one dimension is assigned to a memoryview, which accepts only an array of the same
        format and length. `struct` packs numbers and lists, and accepts only the right number of them, each
        within the field's range. Both check in C, in less time than NumPy needs to assign a row.
        """
        # A slot returns every few batches with the same layout, and with the memoryviews of its fields.
        prepared_for, targets = views.prepared
        if prepared_for is self._places:
            return targets
        targets = []
        for field, (rows, parts) in enumerate(zip(views, self._places, strict=True)):
            places, kinds, packers, numbers_only = parts
            if not places:
                targets.append((rows, None, rows.shape[1:], None, kinds, packers, None, field))
                continue
            flat = rows.reshape(-1)
            region = flat.data.toreadonly() if numbers_only else flat.data
            memory = flat.view(np.uint8).data if packers else None
            targets.append((rows, region, places, flat.data, kinds, packers, memory, field))
        views.prepared = self._places, targets
        return targets


_GRAIN = 32767
"""The most elements that PyTorch copies in the calling thread alone. A thread that reads ahead stays below,
because the other cores belong to the loop."""


_dtype_of, _requires_grad = attrgetter("dtype"), attrgetter("requires_grad")


def _write_columns(targets: list[Target], columns: Sequence[Sequence[Any]], start: int, stop: int) -> bool:
    """Write samples field by field; return False if any of them has to be written by itself.

    PyTorch stacks a field's tensors in one call: 32 rows of 784 floats take 6 µs, and one by one 28 µs.
    """
    torch: Any = sys.modules.get("torch")
    of_tensors = {getattr(torch, "Tensor", None)}
    try:
        for target, column in zip(targets, columns, strict=True):
            rows, _, _, numbers, kinds, packers, memory, _ = target
            found = {*map(type, column)}
            if found == of_tensors:
                out, step = tensor_over(rows[start:stop]), len(column)
                # For others, PyTorch would resize `out`, convert numbers, or leave a graph without a word;
                # while it records one, it refuses them.
                if {*map(_dtype_of, column)} != {out.dtype} or column[0].shape != out.shape[1:]:
                    return False
                if not torch.is_grad_enabled() and any(map(_requires_grad, column)):
                    return False
                if rows.size > _GRAIN and threading.current_thread() is not threading.main_thread():
                    step = _GRAIN // math.prod(rows.shape[1:])
                if not step:  # a single row is larger
                    return False
                for at in range(0, len(column), step):
                    # Slicing a tensor takes a sixth of the time of stacking 32 rows.
                    part = out if step == len(column) else out[at : at + step]
                    torch.stack(column[at : at + step], out=part)
                continue
            if found <= kinds and numbers.format in arrays.typecodes:
                numbers[start:stop] = arrays.array(numbers.format, column)
                continue
            for index, value in enumerate(column, start):
                if type(value) in kinds:
                    numbers[index] = value
                elif type(value) is not np.ndarray:
                    packers[type(value)](memory, index, value)
                elif value.shape == rows.shape[1:] and value.dtype == rows.dtype:
                    rows[index] = value
                else:
                    return False
    except (KeyError, RuntimeError, *UNFIT):
        return False
    return True


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


Packer = Callable[[Any, int, Any], None]
"""Writes one sample into memory: called with the memory as bytes, the sample's position, and its value."""

Target = tuple[Array, Any, Any, Any, frozenset[type], dict[type, Packer], Any, int]
"""Where one field's samples are written: (rows, region, places, numbers, kinds, packers, memory, field).

Each of these writes sample i, or raises one of `UNFIT` if the sample does not fit:
``region[places[i]] = array``; ``numbers[i] = number``, if the number's type is one of `kinds`; and
``packers[type(value)](memory, i, value)``, for other numbers and for lists.

Without a region, samples have more than one dimension, or a dtype without a buffer format. Then `places` is
their shape, and only an array of exactly this shape and the rows' dtype is assigned to ``rows[i]``. NumPy
would silently broadcast or convert any other, but that decision is up to `SampleRows.convert`.
"""

_RowPlaces = tuple[Sequence[slice], frozenset[type], dict[type, Packer], bool]
"""The parts of a `Target` that do not depend on the slot: places (none without a region), kinds and packers.

The last one says that no array is accepted unchanged, so that an array with a single number does not pass for
that number.
"""


def _row_places(field: FieldLayout, strict: bool, keeps_dtypes: bool) -> _RowPlaces:
    """Return the places of a field's samples; `strict` refuses values that would have to be reshaped."""
    own = field.dtype.type
    count, elements = field.shape[0], math.prod(field.shape[1:])
    # Structured dtypes have no buffer format, nor do those of other packages, such as bfloat16.
    if len(field.shape) > 2 or not count or not elements or field.dtype.isbuiltin != 1:
        return (), frozenset(), {}, False
    stops = range(elements, (count + 1) * elements, elements)
    places = [*map(slice, range(0, count * elements, elements), stops)]
    # A memoryview accepts an array with a single number, of any shape, as that number. An inferred field
    # without dimensions must refuse it.
    single = len(field.shape) == 1
    # The code by which `struct` knows the dtype; empty if it does not.
    code: str = field.dtype.char if field.dtype.char in "?efd" else ""
    if field.dtype.kind in "iu":
        signed = {1: "b", 2: "h", 4: "i", 8: "q"}[field.dtype.itemsize]
        code = signed if field.dtype.kind == "i" else signed.upper()
    kinds: frozenset[type] = frozenset()
    packers: dict[type, Packer] = {}
    if elements == 1 and (single or not strict):
        kinds = exact_types(code, strict=strict)
        # `struct` packs other numbers, and raises an error if one is out of range.
        if code == "d" and strict:
            packers[int] = _pack_integer
        elif code in ("e", "f"):
            others = (frozenset(_FLOATS[code]) if strict else _REAL) - kinds
            pack = functools.partial(_pack_number, _struct(1, code).pack_into, field.dtype.itemsize)
            packers |= dict.fromkeys(others, pack)
        if keeps_dtypes and own not in _PYTHONS:
            kinds &= {own}
            packers = {kind: packer for kind, packer in packers.items() if kind is own}
    if not (single and strict):
        packers |= list_packers(code, elements, strict=strict)
    return places, kinds, packers, single and strict


# Numbers and lists that C writes into a row as they are, after checking their range; by their types.

_INTEGERS: tuple[type, ...] = (int, bool, *(np.dtype(code).type for code in "bBhHiIlLqQ"))
_FLOATS: dict[str, tuple[type, ...]] = {
    "e": (np.float16,),
    "f": (np.float32, np.float16),
    "d": (float, np.float64, np.float32, np.float16),
}
"""For the code of each float dtype, the scalar types whose numbers it holds exactly."""
_PYTHONS = (np.bool_, np.int64, np.uint64, np.float64)
"""The dtypes of Python's numbers, which are those of a batch of them and NumPy's, whichever comes first."""
_REAL = frozenset([*_INTEGERS, *_FLOATS["d"]])


def exact_types(code: str, *, strict: bool) -> frozenset[type]:
    """Return the types of numbers that can be assigned to a memoryview of a dtype, given by its code.

    The memoryview raises ValueError for a number that is out of the dtype's range. With `strict`, it also
    holds every other number exactly.

    >>> int in exact_types("B", strict=True)
    True
    """
    if code == "d" and not strict:
        return _REAL
    # Only these for "f", because a memoryview turns numbers out of range into infinity.
    others = {"": (), "e": (), "?": (bool, np.bool_), "d": _FLOATS["d"], "f": _FLOATS["f"]}
    return frozenset(others.get(code, _INTEGERS))


def list_packers(code: str, length: int, *, strict: bool) -> dict[type, Packer]:
    """Return how to write a list of `length` numbers; empty if nothing can.

    It raises `struct.error` or OverflowError for numbers that are out of the dtype's range, or with `strict`
    if the dtype cannot hold them exactly.

    >>> memory = bytearray(8)
    >>> list_packers("h", 2, strict=True)[list](memory, 1, [3, 4])
    >>> list(memory)
    [0, 0, 0, 0, 3, 0, 4, 0]
    """
    if code in ("", "?"):
        return {}
    packed = _struct(length, code)
    if code not in _FLOATS:
        return {list: functools.partial(_pack_integers, packed.pack, packed.size)}
    if strict and code != "d":
        return {}
    sums = frozenset(_FLOATS["d"]) if strict else _REAL
    return {list: functools.partial(_pack_floats, packed.pack, packed.size, sums, strict)}


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
    # `struct` accepts anything with `__float__`, and a complex number's drops the imaginary part. But a sum
    # of real and complex numbers is complex, and a sum of arrays is an array. Nothing else checks all
    # elements of a list as fast.
    if not values or type(values[0]) is float:
        total = sum(values)
    else:
        with np.errstate(all="ignore"):  # NumPy's narrow numbers may overflow
            total = sum(values)
    if type(total) not in sums:
        raise TypeError
    # An integer among the floats may not be exact as a float. The norm is at least as large as each number.
    if strict and not math.hypot(*values) < EXACT:
        raise TypeError
    memory[index * nbytes : (index + 1) * nbytes] = pack(*values)
