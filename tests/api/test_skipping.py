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


def load(dataset, **options):
    return DataLoader(dataset, **{"places": "cpu", "batch_size": 4, "on_bad": "skip", **options})


def check(batch):
    assert (batch["x"] == batch["x"][:, :1]).all()
    assert batch["name"] == [str(number) for number in batch["x"][:, 0]]
    return batch["x"][:, 0].tolist()


WHOLE = [[0, 2, 3], [6, 7], [8, 9, 10, 11], [12, 14, 15]]


@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, THREADS, PROCESSES], ids=name_workers)
@pytest.mark.parametrize("kind", [Numbers, Together])
def test_samples_that_raise_are_left_out_counted_and_named(kind, workers, caplog):
    loader = load(kind(), **workers)
    before = loader.stats()
    with caplog.at_level(logging.WARNING, "gpuloader"):
        assert [check(batch) for batch in loader] == WHOLE
    stats = loader.stats()
    reasons = {f"dataset index {index}: ValueError: number {index}" for index in BAD}
    assert (stats.skipped, set(stats.skipped_samples)) == (len(BAD), reasons)
    assert {
        record.getMessage().removeprefix("a sample is left out: ") for record in caplog.records
    } == reasons
    assert (stats - before).skipped == len(BAD)


@pytest.mark.parametrize("kind", [Numbers, Together])
def test_without_the_option_the_sample_is_an_error(kind):
    with pytest.raises(SampleError, match="number 1"):
        list(load(kind(), on_bad="raise"))


def test_what_is_left_reaches_the_collate_fn_and_padded_fields():
    assert list(load(Numbers(), collate_fn=lambda samples: [one["name"] for one in samples])) == [
        [str(number) for number in batch] for batch in WHOLE
    ]
    assert [check(batch) for batch in load(Numbers(), pad={"x": 0})] == WHOLE


def test_a_loader_resumes_among_them():
    _, again = resume(lambda: load(Numbers()), 2)
    assert [check(batch) for batch in again] == WHOLE[2:]


def test_the_first_ten_are_named(caplog):
    loader = load(Numbers(set(range(16)) - {0, 4, 8, 12}))
    assert sum(len(batch["x"]) for batch in loader) == 4
    stats = loader.stats()
    assert (stats.skipped, len(stats.skipped_samples), len(caplog.records)) == (12, 10, 10)


def test_a_batch_of_which_nothing_is_left_is_an_error():
    with pytest.raises(SampleError, match=r"none of the batch's 4 samples can be read.*: number 4\)"):
        list(load(Numbers({4, 5, 6, 7})))


@pytest.mark.parametrize("kind", [Numbers, Together])
@pytest.mark.parametrize("error", [lambda text: SourceError(text, url="a"), MemoryError])
def test_files_and_memory_that_are_missing_still_end_the_epoch(kind, error):
    with pytest.raises(SampleError, match="number 1"):
        list(load(kind(error=error)))


def test_an_iterator_that_has_raised_has_no_next_sample():
    with pytest.raises(ValueError, match="an iterator that has raised has ended"):
        load(iter([1, 2]))


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EMFILE, errno.EIO], ids=os.strerror)
def test_files_that_cannot_be_opened_end_the_epoch(number):
    with pytest.raises(SampleError, match="dataset index 1") as caught:
        list(load(Numbers(error=lambda text: OSError(number, text))))
    assert caught.value.__cause__.errno == number


def test_what_a_decoder_refuses_is_left_out():
    # Pillow's UnidentifiedImageError is an OSError without a number.
    assert [check(batch) for batch in load(Numbers(error=OSError))] == WHOLE
