"""Batches whose memory grows with the samples that arrive."""

import numpy as np
import pytest

from gpuloader import StagingMemoryError
from gpuloader.batches import varying as gradual
from gpuloader.batches.schema import CachedSchema, Collation, infer_schema
from gpuloader.batches.varying import write_gradually

NBYTES = 8000
"""Bytes of a sample."""


def sample(number):
    return [np.full(NBYTES // 8, number)]


@pytest.mark.parametrize("size", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 8, 9])
def test_memory_doubles_whenever_it_is_full(count, size, monkeypatch):
    monkeypatch.setattr(gradual, "_FIRST_NBYTES", 2 * NBYTES)
    known, rooms = CachedSchema(infer_schema([sample(0)], Collation())), []

    def rows(room):
        rooms.append(room)
        return known.rows(room)

    samples = map(sample, range(count))
    names = {1: []}
    [held], found = write_gradually(rows, samples, size, names)
    assert found == min(count, size)
    np.testing.assert_array_equal(held, np.arange(found)[:, None] * np.ones(NBYTES // 8, int))
    assert len(list(samples)) == count - found
    wanted = [room for room in (2, 4, 8, 16) if room < size and room <= 2 * max(count, 1)]
    if not wanted or (wanted[-1] <= count and size <= 2 * wanted[-1]):
        wanted.append(size)
    assert rooms[1:] == wanted  # the first asks for the layout
    assert names == {1: [None] * wanted[-1]}


def test_a_sample_larger_than_the_first_memory_is_written_too():
    known = CachedSchema(infer_schema([[np.zeros(1 << 18)]], Collation()))
    [held], count = write_gradually(known.rows, iter([[np.ones(1 << 18)]] * 3), 10)
    assert (count, held.shape, held.min()) == (3, (3, 1 << 18), 1)


def test_samples_without_bytes_are_counted():
    known = CachedSchema(infer_schema([[np.zeros(0)]], Collation()))
    [held], count = write_gradually(known.rows, iter([[np.zeros(0)]] * 3), 10)
    assert (count, held.shape) == (3, (3, 0))


def test_a_batch_beyond_all_memory_is_an_error_before_it_is_read():
    known = CachedSchema(infer_schema([sample(0)], Collation()))
    samples = iter([sample(0)])
    with pytest.raises(StagingMemoryError):
        write_gradually(known.rows, samples, 10**12)
    assert next(samples)
