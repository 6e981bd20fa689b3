"""Samples that raise are left out of their batches, counted and named, if the user asks for it."""

import errno
import logging
import os

import numpy as np
import pytest

from gpuloader import DataLoader, SampleError, SourceError
from tests.loading import resume
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, name_workers

BAD = {1, 4, 5, 13}


class Numbers:
    """The numbers from 0 to 15, some of which raise."""

    def __init__(self, bad=BAD, error=ValueError):
        self.bad, self.error = bad, error

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index in self.bad:
            raise self.error(f"number {index}")
        return {"x": np.full(3, index), "name": str(index)}


class Together(Numbers):
    """The same, several at once."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


by_kind = pytest.mark.parametrize("kind", [Numbers, Together])


def load(dataset, **options):
    return DataLoader(dataset, **{"places": "cpu", "batch_size": 4, "on_bad": "skip", **options})


def check(batch):
    assert (batch["x"] == batch["x"][:, :1]).all()
    assert batch["name"] == [str(number) for number in batch["x"][:, 0]]
    return batch["x"][:, 0].tolist()


WHOLE = [[0, 2, 3], [6, 7], [8, 9, 10, 11], [12, 14, 15]]


@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, THREADS, PROCESSES], ids=name_workers)
@by_kind
def test_samples_that_raise_are_left_out_counted_and_named(kind, workers, caplog):
    loader = load(kind(), **workers)
    before = loader.stats()
    with caplog.at_level(logging.WARNING, "gpuloader"):
        assert [check(batch) for batch in loader] == WHOLE
    stats = loader.stats()
    reasons = {f"dataset index {index}: ValueError: number {index}" for index in BAD}
    assert (stats.skipped, set(stats.skipped_samples)) == (len(BAD), reasons)
    logged = {record.getMessage().removeprefix("a sample is left out: ") for record in caplog.records}
    assert logged == reasons
    assert (stats - before).skipped == len(BAD)


def test_what_is_left_reaches_the_collate_fn_and_padded_fields():
    names = list(load(Numbers(), collate_fn=lambda samples: [one["name"] for one in samples]))
    assert names == [[str(number) for number in batch] for batch in WHOLE]
    assert [check(batch) for batch in load(Numbers(), pad={"x": 0})] == WHOLE
    before, again = resume(lambda: load(Numbers()), 2)
    assert [check(batch) for batch in [*before, *again]] == WHOLE
    # Pillow's UnidentifiedImageError is an OSError without a number.
    assert [check(batch) for batch in load(Numbers(error=OSError))] == WHOLE


def test_the_first_ten_are_named(caplog):
    loader = load(Numbers(set(range(16)) - {0, 4, 8, 12}))
    assert sum(len(batch["x"]) for batch in loader) == 4
    stats = loader.stats()
    assert (stats.skipped, len(stats.skipped_samples), len(caplog.records)) == (12, 10, 10)


@by_kind
@pytest.mark.parametrize("error", [lambda text: SourceError(text, url="a"), MemoryError])
def test_what_still_ends_the_epoch(kind, error):
    """Files that are missing and memory that is full, and every error without the option."""
    for dataset, options in ((kind(error=error), {}), (kind(), {"on_bad": "raise"})):
        with pytest.raises(SampleError, match="number 1"):
            list(load(dataset, **options))
    with pytest.raises(SampleError, match=r"none of the batch's 4 samples can be read.*: number 4\)"):
        list(load(kind({4, 5, 6, 7})))
    with pytest.raises(ValueError, match="an iterator that has raised has ended"):
        load(iter([1, 2]))


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EMFILE, errno.EIO], ids=os.strerror)
def test_files_that_cannot_be_opened_end_the_epoch(number):
    with pytest.raises(SampleError, match="dataset index 1") as caught:
        list(load(Numbers(error=lambda text: OSError(number, text))))
    assert caught.value.__cause__.errno == number
