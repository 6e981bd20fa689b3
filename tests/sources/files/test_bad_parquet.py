"""Parquet files that are damaged, do not fit together, or hold values that cannot be delivered."""

import os
import pickle

import numpy as np
import pytest

from gpuloader import DataFileError, DataLoader, ParquetDataset, SourceError
from tests.sample_sets import INLINE, PROCESSES, name_workers
from tests.sources.files.parquet_files import BOTH_ORDERS, make_table, pa, pq


def refused(problem, urls, *arguments, **options):
    """Return the error with which a dataset is made or read."""
    with pytest.raises(DataFileError, match=problem) as caught:
        list(DataLoader(ParquetDataset(urls, *arguments, **options), places="cpu", batch_size=4))
    return caught.value


@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.99])
def test_a_missing_or_truncated_file(files, keep):
    body = files[1].read_bytes()
    files[1].write_bytes(body[: int(keep * len(body)) if isinstance(keep, float) else keep])
    assert refused("the file is truncated or not a Parquet file", files).file == str(files[1])
    with pytest.raises(SourceError, match=r"gone\.parquet: cannot open the file"):
        ParquetDataset([files[0], files[0].with_name("gone.parquet")])


def test_a_thread_that_the_system_refuses_is_not_called_damage(files, monkeypatch):
    def refuse(*_arguments, **_options):  # with Arrow's words, for which it has no type
        raise pa.ArrowException(
            "Unknown error: Failed to launch worker thread: Resource temporarily unavailable"
        )

    monkeypatch.setattr(pq, "ParquetFile", refuse)
    with pytest.raises(SourceError, match="the system refused Arrow a thread") as caught:
        ParquetDataset(files)
    assert caught.value.url == str(files[0])


def test_a_column_that_is_not_there(files):
    error = refused("no column of this name; the file has", files, ["label", "lable"])
    assert (error.file, error.column) == (str(files[0]), "lable")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (make_table(0, 3, label=[0.5, 1.0, 2.0]), "expected int64 as in .*, got double"),
        (make_table(0, 3).drop_columns("label"), "no column has this name"),
    ],
)
def test_a_schema_that_changes(files, table, problem):
    pq.write_table(table, files[1])
    error = refused(problem, files)
    assert (error.file, error.column) == (str(files[1]), "label")
    assert ParquetDataset(files, ["name"]).rows == 53  # this column is the same in both files


@BOTH_ORDERS
@pytest.mark.parametrize(
    "column",
    [
        pa.array([0] * 10 + [None] + [1] * 5),
        pa.array([[1]] * 10 + [[None]] + [[2]] * 5),
        pa.array([[1]] * 10 + [None] + [[2]] * 5),
        pa.array([[1.0, 2.0]] * 10 + [[1.0, None]] + [[2.0, 1.0]] * 5, pa.list_(pa.float64(), 2)),
        pa.array([[1.0, 2.0]] * 10 + [None] + [[2.0, 1.0]] * 5, pa.list_(pa.float64(), 2)),
        pa.array([True] * 10 + [None] + [False] * 5),
        pa.array([1] * 10 + [None] + [2] * 5).dictionary_encode(),
    ],
    ids=lambda column: str(column.type)[:20],
)
def test_a_number_that_is_missing(files, column, options):
    pq.write_table(make_table(0, 16, more=column).drop_columns("words"), files[0], row_group_size=8)
    error = refused(r"1 of .* values is null", files[0], **options)
    assert (error.file, error.row_group, error.column) == (str(files[0]), 1, "more")


@BOTH_ORDERS
@pytest.mark.parametrize("nested", [False, True])
def test_text_that_is_not_utf8(files, nested, options):
    values = [b"text"] * 10 + [b"\xff\xfe"] + [b"text"] * 5
    text = pa.Array.from_buffers(pa.string(), 16, pa.array(values).buffers())
    if nested:
        text = pa.StructArray.from_arrays([text], ["tag"])
    pq.write_table(pa.table({"name": text}), files[0], row_group_size=8)
    error = refused(r"UTF8.*write data that is not text as binary", files[0], **options)
    assert (error.file, error.row_group, error.column) == (str(files[0]), 1, "name")


def test_what_python_has_no_object_for(files):
    dates = pa.array([0, 10_000_000], pa.date32())  # the second is in the year 29349
    pq.write_table(pa.table({"day": dates}), files[0])
    refused(r"column 'day': cannot convert a value of type date32\[day\] to .*; cast it to another", files[0])


@pytest.mark.parametrize("columns", [None, ["label"]])
@pytest.mark.parametrize("which", [0, 1])
def test_two_columns_of_one_name_or_none(files, columns, which):
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["label", "label"]), files[which])
    error = refused("several columns have this name", files, columns)
    assert (error.file, error.column) == (str(files[which]), "label")
    pq.write_table(pa.table({"label": [1]}).select([]), files[0])
    refused(r"0\.parquet: the file has no columns", files[0])


@pytest.mark.parametrize("rows", [0, 5, 100])
def test_a_file_that_was_replaced(files, rows):
    loader = DataLoader(ParquetDataset(files[0]), places="cpu", batch_size=7, ragged=["words"])
    pq.write_table(make_table(0, rows), files[0], row_group_size=7)
    with pytest.raises(SourceError, match="the file has changed since the dataset was made") as caught:
        list(loader)
    assert caught.value.url == str(files[0])


@pytest.mark.parametrize("when", ["before", "between", "in workers"])
def test_a_file_of_equal_size_that_was_replaced(files, when):
    def write(first):
        rows = pa.table({"n": np.arange(first, first + 60)})
        plain = {"use_dictionary": False, "write_statistics": False, "compression": "none"}
        pq.write_table(rows, files[0], row_group_size=7, **plain)

    write(0)
    dataset, size = ParquetDataset(files[0]), files[0].stat().st_size
    workers = PROCESSES if when == "in workers" else INLINE
    epoch = iter(DataLoader(dataset, places="cpu", batch_size=7, **workers))
    if when == "between":
        assert next(epoch)["n"].tolist() == [*range(7)]
    write(1000)
    assert files[0].stat().st_size == size
    os.utime(files[0], (1, 1))  # a clock's tick may be longer than this test
    with pytest.raises(SourceError, match="the file has changed since the dataset was made"):
        list(epoch) if when != "between" else [*dataset]
    copied = pickle.loads(pickle.dumps(dataset))  # as on another machine, whose copy has another time
    copied._seen = {key: value for key, value in dataset._seen.items() if isinstance(key, str)}
    assert len(list(copied)) == 60


def test_a_file_that_is_being_written_while_it_is_read_has_changed_and_is_not_damaged(files, monkeypatch):
    dataset = ParquetDataset(files[0])
    whole = files[0].read_bytes()
    real = pq.ParquetFile

    def write_meanwhile(*args, **options):
        files[0].write_bytes(whole[: len(whole) // 2])
        return real(*args, **options)

    monkeypatch.setattr(pq, "ParquetFile", write_meanwhile)
    dataset._footers.clear()
    with pytest.raises(SourceError, match="the file has changed since the dataset was made"):
        list(dataset)


@pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
def test_a_damaged_row_group(files, workers):
    with pq.ParquetFile(files[0]) as found:
        offset = found.metadata.row_group(3).column(0).data_page_offset
    body = bytearray(files[0].read_bytes())
    body[offset : offset + 40] = b"\xff" * 40
    files[0].write_bytes(body)
    loader = DataLoader(ParquetDataset(files[0], ["label"]), places="cpu", batch_size=8, **workers)
    with pytest.raises(DataFileError, match="row group 3: the file is truncated or not a Parq") as caught:
        list(loader)
    assert caught.value.file == str(files[0])


@pytest.mark.parametrize(
    ("columns", "error"), [("label", TypeError), ([], ValueError), (["label", "label"], ValueError)]
)
def test_columns_are_checked(files, columns, error):
    with pytest.raises(error, match="columns must be"):
        ParquetDataset(files, columns)
