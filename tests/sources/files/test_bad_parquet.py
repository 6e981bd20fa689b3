"""Parquet files that are damaged, do not fit together, or hold values that cannot be delivered."""

import os

import pytest

from gpuloader import DataFileError, DataLoader, ParquetDataset, SourceError
from tests.sample_sets import INLINE, PROCESSES, name_workers
from tests.sources.files.parquet_files import COLUMNS, SHUFFLED, make_table, pa, pq


def test_a_missing_file(files):
    with pytest.raises(SourceError, match=r"gone\.parquet: cannot open the file"):
        ParquetDataset([*files, files[0].with_name("gone.parquet")])


@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.99])
def test_a_truncated_file(files, keep):
    body = files[1].read_bytes()
    files[1].write_bytes(body[: int(keep * len(body)) if isinstance(keep, float) else keep])
    with pytest.raises(DataFileError, match="the file is truncated or not a Parquet file") as caught:
        ParquetDataset(files)
    assert caught.value.file == str(files[1])


def test_a_column_that_is_not_there(files):
    with pytest.raises(DataFileError, match="no column of this name; the file has") as caught:
        ParquetDataset(files, ["label", "lable"])
    assert (caught.value.file, caught.value.column) == (str(files[0]), "lable")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (make_table(0, 3, label=[0.5, 1.0, 2.0]), "expected int64 as in .*, got double"),
        (make_table(0, 3).drop_columns("label"), "no column of this name, unlike in"),
    ],
)
def test_a_schema_that_changes(files, table, problem):
    pq.write_table(table, files[1])
    with pytest.raises(DataFileError, match=problem) as caught:
        ParquetDataset(files)
    assert (caught.value.file, caught.value.column) == (str(files[1]), "label")
    assert ParquetDataset(files, ["name"]).rows == 53  # this column is the same in both files


@pytest.mark.parametrize("options", [{}, SHUFFLED], ids=["in order", "shuffled"])
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
    pq.write_table(make_table(0, 16, more=column), files[0], row_group_size=8)
    loader = DataLoader(ParquetDataset(files[0], **options), places="cpu", batch_size=4, ragged=["words"])
    with pytest.raises(DataFileError, match=r"1 of .* values is null") as caught:
        list(loader)
    assert (caught.value.file, caught.value.row_group, caught.value.column) == (str(files[0]), 1, "more")


def test_missing_text_is_none(files):
    pq.write_table(pa.table({"name": ["a", None]}), files[0])
    (batch,) = DataLoader(ParquetDataset(files[0]), places="cpu", batch_size=2)
    assert batch["name"] == ["a", None]


@pytest.mark.parametrize("options", [{}, SHUFFLED], ids=["in order", "shuffled"])
@pytest.mark.parametrize("nested", [False, True])
def test_text_that_is_not_utf8(files, nested, options):
    values = [b"text"] * 10 + [b"\xff\xfe"] + [b"text"] * 5
    text = pa.Array.from_buffers(pa.string(), 16, pa.array(values).buffers())
    if nested:
        text = pa.StructArray.from_arrays([text], ["tag"])
    pq.write_table(pa.table({"name": text}), files[0], row_group_size=8)
    with pytest.raises(DataFileError, match=r"UTF8.*write data that is not text as binary") as caught:
        list(DataLoader(ParquetDataset(files[0], **options), places="cpu", batch_size=4))
    assert (caught.value.file, caught.value.row_group, caught.value.column) == (str(files[0]), 1, "name")


def test_what_python_has_no_object_for(files):
    dates = pa.array([0, 10_000_000], pa.date32())  # the second is in the year 29349
    pq.write_table(pa.table({"day": dates}), files[0])
    with pytest.raises(DataFileError, match=r"column 'day': cannot convert a value of type date32\[day\] to"):
        list(DataLoader(ParquetDataset(files[0]), places="cpu", batch_size=4))


@pytest.mark.parametrize("columns", [None, ["label"]])
@pytest.mark.parametrize("which", [0, 1])
def test_two_columns_of_one_name(files, columns, which):
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["label", "label"]), files[which])
    with pytest.raises(DataFileError, match="several columns have this name") as caught:
        ParquetDataset(files, columns)
    assert (caught.value.file, caught.value.column) == (str(files[which]), "label")


def test_no_columns(files):
    pq.write_table(pa.table({"label": [1]}).select([]), files[0])
    with pytest.raises(DataFileError, match=r"0\.parquet: the file has no columns"):
        ParquetDataset(files[0])


@pytest.mark.parametrize("rows", [0, 5, 100])
def test_a_file_that_was_replaced(files, rows):
    loader = DataLoader(ParquetDataset(files[0]), places="cpu", batch_size=7, ragged=["words"])
    pq.write_table(make_table(0, rows), files[0], row_group_size=7)
    with pytest.raises(DataFileError, match="the file has changed since the dataset was made") as caught:
        list(loader)
    assert caught.value.file == str(files[0])


@pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
def test_a_damaged_row_group(files, workers):
    found = pq.ParquetFile(files[0])
    offset = found.metadata.row_group(3).column(0).data_page_offset
    found.close()
    body = bytearray(files[0].read_bytes())
    body[offset : offset + 40] = b"\xff" * 40
    files[0].write_bytes(body)
    loader = DataLoader(ParquetDataset(files[0], ["label"]), places="cpu", batch_size=8, **workers)
    with pytest.raises(
        DataFileError, match="row group 3: the file is truncated or not a Parquet file"
    ) as caught:
        list(loader)
    assert caught.value.file == str(files[0])


@pytest.mark.parametrize(
    ("columns", "error"), [("label", TypeError), ([], ValueError), (["label", "label"], ValueError)]
)
def test_columns_are_checked(files, columns, error):
    with pytest.raises(error, match="columns must be"):
        ParquetDataset(files, columns)


def test_nothing_stays_open(files):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc to count open files")
    before = set(os.listdir("/proc/self/fd"))
    loader = DataLoader(ParquetDataset(files, COLUMNS), places="cpu", batch_size=7)
    batches = iter(loader)
    next(batches)
    batches.close()
    list(loader)
    assert len(set(os.listdir("/proc/self/fd")) - before) == 0
