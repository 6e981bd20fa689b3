"""Samples that raise are left out of their batches, counted and named, if the user asks for it."""

import errno
import itertools
import logging
import os
from functools import partial

import numpy as np
import pytest

from gpuloader import (
    ChainDataset,
    CSVDataset,
    DataLoader,
    MixDataset,
    ParquetDataset,
    SampleError,
    SourceError,
    TarDataset,
)
from tests.loading import resume
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, name_workers
from tests.sources.files.tar_files import write_tar

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


# Streams of files, whose map or decode raises.


@pytest.fixture
def files(tmp_path):
    """Write the numbers from 0 to 15 as files of three kinds, and return their folder."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"n": range(16)}), tmp_path / "a.parquet", row_group_size=3)
    (tmp_path / "a.csv").write_text("n\n" + "".join(f"{number}\n" for number in range(16)))
    write_tar(tmp_path / "a.tar", [(f"{number}.n", b"%d" % number) for number in range(16)])
    return tmp_path


def make_number(sample, error=ValueError):
    number = int(sample["n"])
    if number in BAD:
        raise error(f"number {number}")
    return {"x": np.full(3, number), "name": str(number)}


def fail_to_open(sample):
    return make_number(sample, partial(OSError, errno.ENOENT))


STREAMS = {
    "parquet": lambda files, make: ParquetDataset(files / "a.parquet", map=make),
    "csv": lambda files, make: CSVDataset(files / "a.csv", map=make),
    "tar": lambda files, make: TarDataset(files / "a.tar", make),
    "mix": lambda files, make: MixDataset(
        [TarDataset(files / "a.tar", make), ParquetDataset(files / "a.parquet", map=make)],
        [1, 1],
        at_end="drop",
    ),
    "chain": lambda files, make: ChainDataset([STREAMS["csv"](files, make), STREAMS["tar"](files, make)]),
}


class TestStreams:
    @pytest.mark.parametrize(
        ("kind", "workers"),
        [*itertools.product(STREAMS, [INLINE, ONE_THREAD]), ("mix", PROCESSES), ("chain", PROCESSES)],
        ids=str,
    )
    def test_samples_that_raise_are_left_out_counted_and_named(self, files, kind, workers):
        def make():
            return load(STREAMS[kind](files, make_number), seed=1, **workers)

        loader, times = make(), 2 if kind in ("mix", "chain") else 1
        whole = [check(batch) for batch in loader]
        assert sorted(itertools.chain(*whole)) == sorted([*set(range(16)) - BAD] * times)
        stats = loader.stats()
        assert stats.skipped == len(BAD) * times
        assert all("raised ValueError: number " in one for one in stats.skipped_samples)
        before, again = resume(make, 2)
        assert [check(batch) for batch in [*before, *again]] == whole

    def test_ranks_that_divide_it_leave_out_the_same(self, files):
        found = []
        for rank in range(2):
            made = STREAMS["tar"](files, make_number)
            found += [check(batch) for batch in load(made, shard=(rank, 2), uneven="drop")]
        assert sorted(itertools.chain(*found)) == sorted(set(range(16)) - BAD)

    def test_the_reason_names_the_sample(self, files):
        for kind, reason in (
            ("parquet", "map raised ValueError: number 1 for {'n': "),
            ("tar", f"decode raised ValueError: number 1 for {files / 'a.tar'}, 1"),
        ):
            loader = load(STREAMS[kind](files, make_number))
            list(loader)
            assert loader.stats().skipped_samples[0].startswith(reason)

    @pytest.mark.parametrize("kind", STREAMS)
    def test_what_still_ends_the_epoch(self, files, kind):
        with pytest.raises(SampleError, match=r"No such file|number 1"):
            list(load(STREAMS[kind](files, fail_to_open)))
        with pytest.raises(SampleError, match="number 1"):
            list(load(STREAMS[kind](files, make_number), on_bad="raise"))
        with pytest.raises(ValueError, match="number 1"):
            list(STREAMS[kind](files, make_number))

    def test_a_file_that_changes_ends_the_epoch(self, files):
        epoch = iter(load(ParquetDataset(files / "a.parquet").random_access(), use_buffer_reader=False))
        next(epoch)
        os.utime(files / "a.parquet", (1, 1))
        with pytest.raises(SampleError, match="the file has changed since the dataset was made"):
            list(epoch)

    def test_a_dataset_that_a_map_reads_raises(self, files):
        inner = STREAMS["parquet"](files, make_number)

        def join(sample):
            return {**make_number(sample), "others": len(list(inner))}

        with pytest.raises(SampleError, match=r"none of the batch's 4 samples.*number 1"):
            next(iter(load(STREAMS["csv"](files, join))))

    def test_a_class_that_reads_in_its_own_way_is_refused(self, files):
        class Own(TarDataset):
            def __iter__(self):
                return (sample["x"] for sample in super().__iter__())

        for made in (Own(files / "a.tar", make_number), MixDataset([Own(files / "a.tar")], [1])):
            with pytest.raises(ValueError, match="an iterator that has raised has ended"):
                load(made)
