"""CSV and JSON Lines through the loader: which values arrive, and how one file is divided."""

import bz2
import gzip
import json
import lzma
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import CSVDataset, DataFileError, DataLoader, JSONLDataset, SourceError
from gpuloader.order.worker_info import WorkerInfo, exchange_worker
from gpuloader.sources.files import text
from tests.fakes import nothing_left_behind
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, name_workers
from tests.sources.files.parquet_files import pa
from tests.sources.files.serving import serve

ROWS = 5000


def as_csv(rows=ROWS, header="label,half,name\n", end="\n"):
    lines = [f'{row},{row / 2},"sample, {row}"{end}' for row in range(rows)]
    return (header + "".join(lines)).encode()


def as_jsonl(rows=ROWS):
    rows = ({"label": row, "half": row / 2, "name": f"sample, {row}"} for row in range(rows))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def zstd(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


KINDS = pytest.mark.parametrize(
    ("kind", "data"), [(CSVDataset, as_csv()), (JSONLDataset, as_jsonl())], ids=["csv", "jsonl"]
)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(text, "_LEAST_NBYTES", 4 << 10)


def load(dataset, workers=INLINE, **options):
    return DataLoader(dataset, places="cpu", batch_size=100, **workers, **options)


def check(batch):
    labels = batch["label"]
    assert labels.dtype == np.int64
    assert (batch["half"] == labels / 2).all()
    assert batch["name"] == [f"sample, {label}" for label in labels]
    return labels.tolist()


@KINDS
@pytest.mark.parametrize(
    ("pack", "workers"),
    [
        *((bytes, workers) for workers in (INLINE, ONE_THREAD, PROCESSES)),
        (gzip.compress, PROCESSES),
        (bz2.compress, ONE_THREAD),
        (zstd, INLINE),
    ],
    ids=lambda one: name_workers(one) if isinstance(one, dict) else one.__module__,
)
def test_every_row_of_one_file_arrives_once(tmp_path, kind, data, pack, workers):
    path = tmp_path / "all"
    path.write_bytes(pack(data))
    dataset = kind(path)
    assert (dataset.shards > 20) is (pack is bytes)
    with nothing_left_behind():
        labels = [label for batch in load(dataset, workers) for label in check(batch)]
    assert sorted(labels) == list(range(ROWS))
    assert (labels == sorted(labels)) is (workers is not PROCESSES or pack is not bytes)


@KINDS
def test_ranks_have_disjoint_shares_and_with_shard_equal_ones(tmp_path, kind, data):
    path = tmp_path / "all"
    path.write_bytes(data)
    shares = []
    for rank in range(3):
        exchange_worker(WorkerInfo(0, 1, 0, None, (rank, 3)))
        try:
            shares.append([row["label"] for row in kind(path)])
        finally:
            exchange_worker(None)
    assert sorted(label for share in shares for label in share) == list(range(ROWS))
    assert max(map(len, shares)) < 1.2 * min(map(len, shares))
    equal = [
        [label for batch in load(kind(path), shard=(rank, 2)) for label in check(batch)] for rank in range(2)
    ]
    assert sorted(equal[0] + equal[1]) == list(range(ROWS))
    assert len(equal[0]) == len(equal[1])


@given(
    lines=st.lists(st.text("ab\"'\n", max_size=12), max_size=12),
    quoted=st.booleans(),
    last=st.booleans(),
    piece=st.integers(1, 20),
    longer=st.integers(1, 20),
    step=st.integers(1, 30),
)
def test_each_row_is_in_one_range_however_a_file_is_cut(lines, quoted, last, piece, longer, step):
    if quoted:
        rows = ['"' + line.replace('"', '""') + '"\n' for line in lines]
    else:
        rows = [line.replace("\n", "") + "\n" for line in lines]
    data = "".join(rows).encode()[: None if last else -1]
    step = max(len(data), 1) if quoted else step
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "PIECE_NBYTES", piece)
        patch.setattr(text, "_LINE", longer)
        for start in range(0, len(data), step):
            at = start - (start > 0)

            def read(count):
                nonlocal at
                at += count
                return data[at - count : at]

            cut = text._lines(
                read, start, min(start + step, len(data)), b'"' if quoted else b"", within=start > 0
            )
            found += list(cut)
    assert b"".join(found) == data
    for one in found[:-1]:
        assert one.endswith(b"\n")
        assert not quoted or one.count(b'"') % 2 == 0


def test_quoted_values_may_hold_line_breaks(tmp_path):
    path = tmp_path / "a.csv"
    lines = [f'{row},"first\nof ""{row}"""\r\n' for row in range(ROWS)]
    path.write_text('label,"long\nname"\r\n' + "".join(lines), newline="")
    dataset = CSVDataset(path, newlines_in_values=True)
    assert dataset.shards == 1
    rows = list(dataset)
    assert [row["label"] for row in rows] == list(range(ROWS))
    assert [row["long\nname"] for row in rows] == [f'first\nof "{row}"' for row in range(ROWS)]
    path.write_text("".join(lines), newline="")
    with pytest.raises(DataFileError, match=r"a\.csv: quotes .* newlines_in_values=True"):
        list(CSVDataset(path, column_names=["label", "text"]))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lines_may_end_in_carriage_returns_alone(tmp_path, pack):
    path = tmp_path / "a.csv"
    path.write_bytes(pack(b"number,text\r" + b"".join(b"%d,text\r" % row for row in range(20_000))))
    assert [row["number"] for row in CSVDataset(path)] == list(range(20_000))


def test_columns_types_delimiters_and_headers(tmp_path):
    first, second, bare = (tmp_path / f"{name}.csv" for name in ("first", "second", "bare"))
    first.write_text("a\tb\tc\n1\t2\tx\n", encoding="utf-8-sig")
    second.write_text("c\tb\ta\ny\t3\t4")
    dataset = CSVDataset([first, second], ["c", "a"], schema=pa.schema({"a": pa.float32()}), delimiter="\t")
    [batch] = load(dataset)
    assert batch["a"].dtype == np.float32
    assert (list(batch), batch["a"].tolist(), batch["c"]) == (["c", "a"], [1, 4], ["x", "y"])
    bare.write_text('1,5" pipe\n2,b\n')
    [batch] = load(CSVDataset(str(bare), column_names=["n", "t"], quote=None))
    assert (batch["n"].tolist(), batch["t"]) == ([1, 2], ['5" pipe', "b"])


@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD], ids=name_workers)
def test_a_column_without_a_name(tmp_path, workers):
    path = tmp_path / "a.csv"
    path.write_text(",size,name\n0,5,a\n1,6,b\n")  # as pandas writes a table with its index
    [batch] = load(CSVDataset(path), workers)
    assert [list(batch), batch[""].tolist(), batch["size"].tolist(), batch["name"]] == [
        ["", "size", "name"],
        [0, 1],
        [5, 6],
        ["a", "b"],
    ]


def test_json_lists_and_missing_fields(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"ids": [1, 2], "t": null}\n\n{"ids": [], "t": "x", "later": 1}')
    dataset = JSONLDataset(tmp_path, ["ids", "t"])  # the folder's files
    [batch] = DataLoader(dataset, places="cpu", batch_size=2, ragged=["ids"])
    assert batch["ids"].recursive_sequence_lengths() == [[2, 0]]
    assert batch["ids"].values.tolist() == [1, 2]
    assert batch["t"] == [None, "x"]


@pytest.mark.parametrize(
    ("kind", "content", "options", "problem"),
    [
        (CSVDataset, "a,b\n1\n", {}, "Expected 2 columns, got 1"),
        (CSVDataset, "a,b\n1,2\n" * 2, {"schema": {"a": "int64"}}, "invalid value 'a'"),
        (CSVDataset, "a,b\n1,2\n", {"columns": ["c"]}, r"column 'c': no column .* \['a', 'b'\]"),
        (CSVDataset, "a,a\n1,2\n", {}, "column 'a': several columns have this name"),
        (CSVDataset, "a,b\n1,2\n,3\n", {}, "column 'a': 1 of 2 values is null"),
        (CSVDataset, "", {}, "no rows that tell"),
        (JSONLDataset, '{"a": 1}\n[2]\n', {}, "changed from object to array"),
        (JSONLDataset, '\ufeff\n null\n{"a": 1}\n', {}, "column 'a': 1 of 2 values is null"),
        (JSONLDataset, '\n[{"a": 1}]\n', {}, "expected lines with an object each, got an array"),
        (JSONLDataset, f'{{"a": 1{" " * 999}}}\n' * 2_000 + '{"b": 2}\n', {}, "unexpected field"),
        (JSONLDataset, '{"a": 1}\n{"a": null}\n', {}, "column 'a': 1 of 2 values is null"),
        (JSONLDataset, "\n", {}, "no rows that tell"),
        (CSVDataset, "a,b\n1,2\n".encode("utf-16"), {"column_names": ["a", "b"]}, "text must be UTF-8"),
        (CSVDataset, lzma.compress(b"a,b\n1,2\n"), {}, "text must be UTF-8"),
        (JSONLDataset, lzma.compress(b'{"a": 1}\n'), {}, "text must be UTF-8"),
        (CSVDataset, "ä,b\n1,2\n".encode("latin-1"), {}, "can't decode byte 0xe4"),
        (CSVDataset, "a,b\nä,2\n".encode("latin-1"), {}, "from byte 4 on: .*0xe4 in position 0.*not UTF-8"),
        (
            CSVDataset,
            b"a,b\nx,2\n" + b"x,2\n" * 300_000 + b"\xe4,2\n",
            {},
            "invalid UTF8 data.*not UTF-8, con",
        ),
        (CSVDataset, '{"a": 1}\n{"a": 2}\n', {}, "begins with JSON, .* try JSONLDataset"),
        (CSVDataset, '\ufeff[ {"a": 1,\n "b": 2}]\n', {}, "begins with JSON, .* try JSONLDataset"),
        (JSONLDataset, 'null{"a": 1}\n', {}, "a line has more than one value; write one object per line"),
        (JSONLDataset, '{"a": 1}\n{"a": 2}{"a": 3}\n\n', {}, "a line has more than one value"),
        (JSONLDataset, "null\n" * 300_000, {}, "no rows that tell"),
    ],
)
def test_errors_name_the_file(tmp_path, kind, content, options, problem):
    path = tmp_path / "bad.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataFileError, match=rf"(?s)bad\.txt.*{problem}"):
        list(kind(path, **options))


def test_text_that_is_not_utf_8_can_be_read_as_bytes(tmp_path):
    (tmp_path / "a.csv").write_bytes("name,[id]\nä,1\n".encode("latin-1"))
    assert list(CSVDataset(tmp_path / "a.csv", schema={"name": "binary"})) == [{"name": b"\xe4", "[id]": 1}]
    assert list(CSVDataset(tmp_path / "a.csv", columns=["[id]"])) == [{"[id]": 1}]


def test_more_null_lines_than_are_read_at_once_do_not_hide_the_columns(tmp_path):
    (tmp_path / "a.jsonl").write_text("null\n" * 300_000 + '{"a": 1}\n')
    *_, last = JSONLDataset(tmp_path / "a.jsonl", fill={"a": -1})
    assert last == {"a": 1}


def test_an_object_may_have_line_breaks(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a":\n1}\n\n{"a": 2}\n')
    assert [int(row["a"]) for row in JSONLDataset(tmp_path / "a.jsonl")] == [1, 2]


@pytest.mark.parametrize("at", range(3))
def test_a_null_line_is_a_row_of_nulls_wherever_it_stands(tmp_path, at):
    lines = ['{"a": 1}', '{"a": 2}']
    lines.insert(at, "null")
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    rows = list(JSONLDataset(tmp_path / "a.jsonl", fill={"a": -1}))
    assert [int(row["a"]) for row in rows] == [int(line[6:-1]) if "{" in line else -1 for line in lines]


@KINDS
def test_damage_and_change_are_errors(tmp_path, kind, data):
    path = tmp_path / "all.gz"
    path.write_bytes(gzip.compress(data)[:-1000])
    with pytest.raises(DataFileError, match=r"all\.gz.*runcated"):
        list(kind(path))
    path.write_bytes(data)
    dataset = kind(path)
    for changed in (data[: len(data) // 2], data.replace(b"1", b"2")):
        path.write_bytes(changed)
        os.utime(path, (1, 1))  # a clock's tick may be longer than this test
        with pytest.raises(SourceError, match="the file has changed"):
            list(dataset)


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"delimiter": ";;"}, ValueError, "delimiter must be a single ASCII character"),
        ({"quote": "ä"}, ValueError, "quote must be"),
        ({"schema": {"a": "nope"}}, ValueError, "No type alias for nope"),
        ({"columns": "a"}, TypeError, "columns must be a list"),
    ],
)
def test_bad_options(tmp_path, options, error, problem):
    with pytest.raises(error, match=problem):
        CSVDataset(tmp_path / "a.csv", **options)


@KINDS
def test_a_remote_file_is_read_once_in_few_requests(tmp_path, remote, kind, data):
    rows = 60_000
    data = as_csv(rows) if kind is CSVDataset else as_jsonl(rows)
    (tmp_path / "all.txt").write_bytes(data)
    with serve(tmp_path, drops=lambda tries: tries == 1) as served:
        dataset = kind(f"{served.url}/all.txt")
        labels = [label for batch in load(dataset) for label in check(batch)]
        assert labels == list(range(rows))
    with serve(tmp_path) as served:
        dataset = kind(f"{served.url}/all.txt")
        before = sum(nbytes for _, nbytes in served.ranges)
        served.ranges.clear()
        assert sum(len(batch["label"]) for batch in load(dataset)) == rows
        assert sum(nbytes for _, nbytes in served.ranges) <= 1.1 * len(data)
        assert len(served.ranges) <= 2 * len(data) / 2**20 + 4
        assert before <= 1.2 * 2**20
