"""Batches of a reader: samples one by one or in lists, and the loop around them."""

import copy
import itertools

import numpy as np
import pytest

from gpuloader import DataLoader, SampleError, data
from gpuloader.batches import items as module
from gpuloader.batches.readers import ReadSoFar, SampleListStager, SampleStager, stage_all
from gpuloader.batches.staged import StagedBatch
from gpuloader.staging import Ring, arrange
from gpuloader.watch.meter import Meter
from tests.loading import make_slot

LAYOUT = arrange((((2, 3), np.dtype("int64")),))


@pytest.mark.parametrize(("reached", "fails_at", "batch"), [(0, None, 0), (0, 2, 2), (3, 4, 4)])
def test_an_error_of_the_reader_names_the_batch(reached, fails_at, batch):
    closed = []

    def reader():
        if fails_at is None:
            raise OSError("cannot open")
        return items()

    def items():
        try:
            for number in range(9):
                if number == fails_at:
                    raise OSError("cannot read")
                yield number
        finally:
            closed.append(1)

    def stage(items, number, reserve):
        return StagedBatch(reserve(1), LAYOUT, (0,), next(items))

    with pytest.raises(OSError, match="cannot") as caught:
        list(stage_all(reader, stage, Ring(9, 1), Meter(), ReadSoFar(reached), None))
    assert f"batch {batch}" in caught.value.__notes__[0]
    assert closed == [1] * (fails_at is not None)


@pytest.fixture(params=[False, True], ids=["at once", "gradually"])
def gradually(request, monkeypatch):
    """Large batches are written into memory that grows until one has been full."""
    monkeypatch.setattr(module, "AT_ONCE", 0 if request.param else 1 << 20)
    return request.param


def batches_of(stager, items, ring=None, meter=None):
    """Return the arrays of all batches, whose slots go back at once."""
    ring, found = ring or Ring(2, 1), []
    for staged in stage_all(lambda: iter(items), stager, ring, meter or Meter(), ReadSoFar(), None):
        assert staged.number == len(found)
        found.append([view.tolist() for view in staged.slot.views(staged.layout)])
        ring.release(staged.slot)
    return found


def pairs(count):
    return ((np.full(2, number), number) for number in range(count))


@pytest.mark.parametrize("size", [2, 1000])
@pytest.mark.parametrize("drop_last", [False, True])
def test_samples_are_staged_a_batch_at_a_time(gradually, drop_last, size):
    ring, meter = Ring(2, 1), Meter()
    found = batches_of(SampleStager(None, size, drop_last=drop_last), pairs(5), ring, meter)
    batches = [list(range(start, min(start + size, 5))) for start in range(0, 5, size)]
    batches = batches[: 5 // size] if drop_last else batches
    assert found == [[[[number, number] for number in batch], batch] for batch in batches]
    assert ring.free == (2 if ring.allocated else 0)
    assert meter.batches == len(batches)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda sample: 1 / 0], ids=["copied", "not copied"])
def test_memory_grows_with_the_samples_only_until_a_batch_has_been_full(monkeypatch, make):
    """Until then, the samples are copied, because the reader may fill its memory again, if they can be."""
    copied = []
    monkeypatch.setattr(module, "AT_ONCE", 0)
    monkeypatch.setattr(module.copy, "deepcopy", lambda sample: copied.append(1) or make(sample))
    buffer = np.zeros(2)

    def reuse():
        for number in range(7):
            buffer[:] = number
            yield (buffer if make is copy.deepcopy else buffer.copy(),)

    found = batches_of(SampleStager(None, 3, drop_last=False), reuse())
    assert [[row[0] for row in rows] for [rows] in found] == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(copied) == 3


UNLIKE = [
    ([1, 2],), ([1.5, 2.5],), ([1, 2, 3],), (np.arange(2, dtype="i4"),), (np.arange(3, dtype="f4"),), (7,),
    (np.float32(7),), (np.ones((2, 3)), 1), (np.ones((2, 3)), [1, 2]), (np.ones((3, 2)), 1),
    (np.ones((2, 3)), 1, 2), (np.ones((2, 3)), 1, np.int8(2)),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2])
def test_without_feeds_every_batch_has_the_fields_of_its_own_first_sample(size):
    for samples in itertools.permutations(UNLIKE, 2):
        stager = SampleStager(None, size, drop_last=False)
        items = iter([sample for sample in (*samples, samples[0]) for _ in range(size)])
        for number, sample in enumerate((*samples, samples[0])):
            staged = stager(items, number, make_slot)
            for view, value in zip(staged.slot.views(staged.layout), sample, strict=True):
                assert view.dtype == np.asarray(value).dtype
                np.testing.assert_array_equal(view, np.stack([value] * size))


@pytest.mark.parametrize("fields", [1, 2, 3])
@pytest.mark.parametrize(
    "column",
    [
        [1.5, 2, -3, 2**53, -(2**53)],
        [1, 2**63 - 1, -(2**63)],
        [True, False, True],
        [[1.5, 2.5], [3, 4.5], [5, 6], [2**52, -1]],
        [[1, 2], [3, 4], [2**63 - 1, -(2**63)]],
        [[[1.5], [2]], [[3], [4]]],
    ],
    ids=str,
)
def test_numbers_and_lists_of_them_are_written_behind_one_another(fields, column):
    stager = SampleStager(None, len(column), drop_last=False)
    assert batches_of(stager, [(value,) * fields for value in column]) == [[column] * fields]


@pytest.mark.parametrize("fields", [1, 2, 3])
@pytest.mark.parametrize(
    ("first", "other"),
    [(1.5, 2**53 + 1), (1.5, -(2**53) - 1), ([1.5], [2**53 + 1]), (1, 2**63), ([1], [2**63]), (1, 1.5)],
    ids=str,
)
def test_a_number_that_the_field_cannot_hold_is_an_error(fields, first, other):
    stager = SampleStager(None, 3, drop_last=False)
    with pytest.raises(SampleError) as caught:
        stager(iter([(first,) * fields, (first,) * fields, (first,) * (fields - 1) + (other,)]), 0, make_slot)
    assert (caught.value.index, caught.value.field) == (2, str(fields - 1))


class Named(tuple):
    """A class of a user's for samples."""


@pytest.mark.parametrize("fields", [1, 2, 3, 4])
def test_every_sample_has_one_value_per_field(fields):
    good = tuple(range(fields))
    stager = SampleStager(None, 4, drop_last=False)
    kinds = [good, [*good], Named(good), tuple(np.array(value) for value in good)]
    assert batches_of(stager, kinds) == [[[value] * 4 for value in good]]
    for bad, message in [
        (good[:-1], f"expected {fields} fields .* got {fields - 1}"),
        ((*good, 0), f"expected {fields} fields .* got {fields + 1}"),
        (dict.fromkeys(good), "expected a tuple with one value per field, got dict"),
        ("abcd"[:fields], "expected a tuple with one value per field, got str"),
        (np.arange(fields), "expected a tuple with one value per field, got ndarray"),
        (None, "expected a tuple with one value per field, got NoneType"),
    ]:
        with pytest.raises(SampleError, match=message) as caught:
            stager(iter([good, good, bad, good]), 1, make_slot)
        assert caught.value.index == 2
    for bad in ({}, "a", None, (), []):
        with pytest.raises(SampleError, match=r"expected (a tuple with )?one value") as caught:
            SampleStager(None, 4, drop_last=False)(iter([bad, good]), 0, make_slot)
        assert caught.value.index == 0


@pytest.mark.parametrize("make", [lambda feeds: SampleStager(feeds, 3), SampleListStager])
def test_a_sample_unlike_the_first_is_an_error_that_costs_no_slot(gradually, make):
    samples = [(np.zeros(2),), (np.zeros(3),), (np.zeros(3),)]
    ring = Ring(2, 1)
    stager = make(None)
    items = [samples] if isinstance(stager, SampleListStager) else samples
    with pytest.raises(SampleError, match=r"expected shape \(2,\).*got \(3,\)") as caught:
        batches_of(stager, items, ring)
    assert (caught.value.index, caught.value.field) == (1, "0")
    assert ring.free == (2 if ring.allocated else 0)


@pytest.mark.parametrize(("drop_last", "count"), [(False, 2), (True, 1)])
def test_samples_of_varying_length_are_kept_until_their_batch_is_complete(drop_last, count):
    buffer = np.zeros((4, 1))

    def reuse():
        for number in range(1, 4):
            buffer[:number] = number
            yield (buffer[:number],)

    ring = Ring(2, 1)
    stager = SampleStager([data("x", [None, 1], "float64", 1)], 2, drop_last=drop_last)
    found = batches_of(stager, reuse(), ring)
    assert found[0] == [[[1.0], [2.0], [2.0]], [0, 1, 3]]
    assert len(found) == count
    assert ring.free == 2


@pytest.mark.parametrize("given", [3, "ab", None, [], ()])
def test_a_list_of_samples_must_be_one(given):
    with pytest.raises(SampleError, match="expected a list of samples"):
        SampleListStager(None)(iter([given]), 0, make_slot)


def test_arrays_that_are_not_copied_are_those_of_the_reader():
    """And of a dataset of ready batches, or of a function that makes them; in a thread, too."""
    made = [np.full((2, 3), number) for number in range(5)]
    made[1].flags.writeable = False
    loader = DataLoader.from_generator(capacity=2, copy=False).set_batch_generator(
        lambda: ([one] for one in made), "cpu"
    )
    threads = {"num_workers": 2, "worker_type": "thread"}
    for batches in (
        [batch for [batch] in loader],
        list(DataLoader((one for one in made), places="cpu", batch_size=None, copy=False)),
        list(DataLoader(made, places="cpu", batch_size=None, copy=False, **threads)),
        list(DataLoader(range(5), places="cpu", collate_fn=lambda samples: made[samples[0]], copy=False)),
    ):
        assert all(batch is one for batch, one in zip(batches, made, strict=True))
    assert loader.stats().slots_in_use == 0
    with pytest.raises(ValueError, match=r"copy=False .* set_batch_generator"):
        loader.set_sample_generator(lambda: made, 2, places="cpu")
