"""Whatever form a number comes in, a batch holds that number, or the loader raises a `SampleError`."""

import decimal
import fractions
import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from gpuloader import DataFeeder, DataFileError, DataLoader, Ragged, SampleError, TensorDataset, data
from gpuloader.fluid import create_lod_tensor
from tests.loading import load

try:
    import ml_dtypes
except ImportError:  # the tests of the frameworks have it
    ml_dtypes = None

NATIVE = [np.dtype(code) for code in "?bBhHiIlLefdFD"]
NARROW = [
    np.dtype(getattr(ml_dtypes, name))
    for name in (
        *["bfloat16", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e3m4"],
        *["float8_e8m0fnu", "float4_e2m1fn", "float6_e2m3fn", "int4", "uint4", "int2"],
    )
    if hasattr(ml_dtypes, name)
]
KINDS = {"bool": "b", "int": "i", "uint": "i", "float": "f", "bfloat": "f", "complex": "c"}

BITS = itertools.product((1, -1), (7, 8, 15, 24, 31, 53, 63, 64), (-1, 0, 1))
EDGES = [
    *[0, 1, -1, 2.5, 0.1, 7, 8, 15, 16, 100, 1000, -0.0],
    *[math.nan, math.inf, -math.inf, 1 + 2j, 1e300j],
    *[sign * 2**bits + more for sign, bits, more in BITS],
    *[65504.0, 65519.9, 65520.0, 3.4028235e38, 3.5e38, -3.5e38, 1e39, 1e300, 1e-46, 1e-320],
    *[448.0, 464.0, 57344.0, 6e4, 10**400],
]
numbers = st.one_of(
    st.sampled_from(EDGES),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.floats(width=16),
    st.booleans(),
    st.complex_numbers(allow_nan=False),
)


def kind_of(dtype):
    return KINDS[dtype.name.partition("_")[0].rstrip("0123456789")]


def as_scalar(number, dtype):
    """Return a number as a scalar of a dtype; skip the example if it would be another number."""
    try:
        with np.errstate(all="ignore"):
            scalar = np.asarray(number).astype(dtype)[()]
        assume(same(scalar, number))
    except (TypeError, ValueError, OverflowError, RuntimeWarning):
        assume(False)
    return scalar


def as_python(number):
    """Return a number of any library as one of Python's, which compare exactly."""
    if not hasattr(number, "dtype"):
        return number
    if number.dtype.isbuiltin == 1:
        return number.item()
    return int(number) if kind_of(number.dtype) == "i" else float(number)


def same(one, other):
    one, other = as_python(one), as_python(other)
    return one == other or (one != one and other != other)


FORMS = {
    "number": lambda number: (number, (), [number]),
    "list": lambda number: ([number], (1,), [number]),
    "tuple": lambda number: ((number,), (1,), [number]),
    "list of several": lambda number: ([number, 0, number], (3,), [number, 0, number]),
    "list with a float": lambda number: ([0.5, number], (2,), [0.5, number]),
    "list with an integer": lambda number: ([3, number], (2,), [3, number]),
    "list with a negative integer": lambda number: ([-3, number], (2,), [-3, number]),
    "list with a complex number": lambda number: ([number, 1j], (2,), [number, 1j]),
    "nested list": lambda number: ([[number, number]], (1, 2), [number, number]),
    "list of arrays": lambda number: ([np.asarray([number])] * 2, (2, 1), [number] * 2),
    "array": lambda number: (np.array([number]), (1,), [number]),
    "array without dimensions": lambda number: (np.array(number), (), [number]),
    "every other element": lambda number: (np.array([number] * 4)[::2], (2,), [number] * 2),
    "the other byte order": lambda number: (swapped(np.array([number])), (1,), [number]),
    "objects": lambda number: (np.array([number, number], object), (2,), [number] * 2),
    "text": lambda number: (str(as_python(number)), (), [number]),
    "list of texts": lambda number: ([str(as_python(number))], (1,), [number]),
    "nothing masked": lambda number: (masked([number] * 2, [False] * 2), (2,), [number] * 2),
    "masked": lambda number: (masked([number] * 2, [False, True]), (2,), [number, None]),
    "list of masked arrays": lambda number: ([masked([number], [True])], (1, 1), [None]),
    "nested list of masked arrays": lambda number: ([[masked([number], [True])]], (1, 1, 1), [None]),
    "masked number": lambda number: (masked(number, True), (), [None]),
    "list with the masked constant": lambda number: ([number, np.ma.masked], (2,), [number, None]),
    "decimal": lambda number: (decimal.Decimal(number), (), [number]),
    "fraction": lambda number: ([fractions.Fraction(number)], (1,), [number]),
}
"""Make a value of a number; return it, its shape, and the numbers in it, with None for masked ones."""


def masked(numbers, mask):
    return np.ma.masked_array(numbers, mask)


def swapped(array):
    return array.astype(array.dtype.newbyteorder())


def flat(array):
    return [as_python(one) for one in array.ravel()]


def make(form, number, source):
    """Return a number as a scalar of the dtype `source`, or Python's own, in a form; see `FORMS`."""
    if source is not None:
        number = as_scalar(number, source)
    try:
        value, shape, wanted = FORMS[form](number)
    except (TypeError, ValueError, OverflowError):
        assume(False)
    return value, shape, [None if one is None else as_python(one) for one in wanted]


def is_rounded(found, number, dtype):
    """Return whether a number of `dtype` is what NumPy would round another number to."""
    kind = kind_of(dtype)
    if kind == "b":
        return found == bool(number)
    if isinstance(number, complex) and kind != "c":
        return False
    if kind == "c":
        wide, part = complex(number), np.dtype(f"f{dtype.itemsize // 2}")
        return is_near(found.real, wide.real, part) and is_near(found.imag, wide.imag, part)
    if kind == "i":
        return math.isfinite(number) and found == math.trunc(number)
    return is_near(found, number, dtype)


def is_near(found, number, dtype):
    if isinstance(number, float) and not math.isfinite(number):
        return same(found, number)
    if not math.isfinite(found):
        return False
    if dtype.isbuiltin == 1:
        size = abs(dtype.type(found))
        step = 2 * float(size - np.nextafter(size, dtype.type(0))) or float(
            np.finfo(dtype).smallest_subnormal
        )
    else:
        limits = ml_dtypes.finfo(dtype)
        step = max(abs(found) * float(limits.eps), float(limits.smallest_subnormal))
    return abs(fractions.Fraction(found) - fractions.Fraction(number)) <= fractions.Fraction(step)


def declared(value, shape, dtype, route):
    """Return what becomes of a value in a field that is declared with this dtype."""
    feed = data("x", [None, *shape], dtype, lod_level=int(route == "varying"))
    if route == "feeder":
        return DataFeeder([feed], "cpu").feed([(value,)])["x"][0]
    if route == "dataset":
        ((batch,),) = DataLoader([(value,)], [feed], "cpu")
    elif route == "varying":
        ((batch,),) = DataLoader([([value],)], [feed], "cpu", pad={"x": 0})
    else:
        ((batch,),) = read_samples([(value,)], [feed], grouped=route == "lists")
    return batch[0]


def read_samples(samples, feeds=None, grouped=False):
    """Return a loader over a reader of these samples, which make up one batch."""
    loader = DataLoader.from_generator(feeds, capacity=1, return_list=True, use_double_buffer=False)
    if grouped:
        loader.set_sample_list_generator(lambda: iter([samples]), places="cpu")
    else:
        loader.set_sample_generator(lambda: iter(samples), batch_size=len(samples), places="cpu")
    return loader if feeds is None else (step[0] for step in loader)


values_of_any_form = given(
    st.sampled_from(NATIVE + NARROW),
    st.sampled_from(sorted(FORMS)),
    numbers,
    st.sampled_from([None, *NATIVE, *NARROW]),
)


@pytest.mark.parametrize("route", ["dataset", "varying", "feeder", "samples", "lists"])
@values_of_any_form
def test_a_declared_field_rounds_and_nothing_else(route, dtype, form, number, source):
    value, shape, wanted = make(form, number, source)
    try:
        found = declared(value, shape, dtype, route)
    except SampleError:
        event("refused")
        return
    event("accepted")
    assert found.dtype == dtype
    assert None not in wanted
    assert len(wanted) == found.size
    for one, other in zip(flat(found), wanted, strict=True):
        assert is_rounded(one, other, dtype), (one, other)


@pytest.mark.parametrize("route", ["dataset", "samples"])
@values_of_any_form
def test_a_field_that_the_first_sample_settles_changes_no_number(route, dtype, form, number, source):
    value, shape, wanted = make(form, number, source)
    samples = [(np.zeros(shape, dtype),), (value,)]
    try:
        if route == "dataset":
            options = {"pad": {"0": 0}} if isinstance(value, list | tuple) else {}
            ((found,),) = load(samples, batch_size=2, **options)
        else:
            ((found,),) = read_samples(samples)
    except SampleError:
        event("refused")
        return
    event("accepted")
    assert found.dtype == dtype
    assert None not in wanted
    assert all(map(same, flat(found[1]), wanted))


MASKED = np.ma.masked_array([1.0, 2.0], [False, True])


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: TensorDataset(MASKED), TypeError),
        (lambda: load({"x": MASKED}), DataFileError),
        (lambda: load({"x": [MASKED, MASKED]}), DataFileError),
        (lambda: load({"x": Ragged(MASKED, (np.array([0, 2]),))}), DataFileError),
        (lambda: create_lod_tensor(MASKED, [[2]], "cpu"), SampleError),
    ],
)
def test_a_source_refuses_masked_elements_at_once(make, error):
    with pytest.raises(error, match=r"got an array with masked elements.*value.filled\(0\)"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: load([0], collate_fn=lambda _: MASKED),
        lambda: load([(MASKED,)], ragged=["0"]),
        lambda: load([MASKED], cache="host"),
    ],
)
def test_a_batch_refuses_masked_elements(make):
    with pytest.raises(SampleError, match="got an array with masked elements"):
        list(make())


@pytest.mark.parametrize("text", ["9007199254740993", ["9007199254740993"], np.array("1"), np.array([b"1"])])
def test_text_is_no_number_in_a_field_that_the_first_sample_settles(text):
    with pytest.raises(SampleError, match="expected numbers as in the batch's first sample, got text"):
        list(read_samples([(np.zeros(np.shape(text), np.float32),), (text,)]))


def test_a_masked_constant_beside_an_integer_beyond_64_bits_is_refused():
    """NumPy adds the two with an error of its own kind."""
    with pytest.raises(SampleError, match="masked elements"):
        list(read_samples([([2**64, np.ma.masked],)], [data("x", [None, 2], "float16")]))
