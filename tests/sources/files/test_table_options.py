"""What datasets of tables in files share: casts, filters, nulls, a function per sample; and random access."""

import json
import os
import pickle

import numpy as np
import pytest

from gpuloader import (
    ArrowDataset,
    CSVDataset,
    DataFileError,
    DataLoader,
    JSONLDataset,
    ParquetDataset,
    SourceError,
    random_split,
)
from gpuloader.sources.files import arrow_files, parquet
from tests.fakes import descriptors, wait_until
from tests.loading import resume
from tests.rank_loaders import make
from tests.sample_sets import INLINE, PROCESSES, THREADS, name_workers
from tests.sources.files.parquet_files import COLUMNS, SHUFFLED, make_table, pa, pq
from tests.sources.files.serving import serve

feather = pytest.importorskip("pyarrow.feather")
pa_dataset = pytest.importorskip("pyarrow.dataset")
pc = pytest.importorskip("pyarrow.compute")
ROWS = 20


def write_csv(table, path):
    pytest.importorskip("pyarrow.csv").write_csv(table, path)


def write_jsonl(table, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def write_arrow(table, path):
    feather.write_feather(table, path, chunksize=8)


def write_parquet(table, path):
    pq.write_table(table, path, row_group_size=8)


KINDS = pytest.mark.parametrize(
    ("kind", "write"),
    [
        (ParquetDataset, write_parquet),
        (ArrowDataset, write_arrow),
        (CSVDataset, write_csv),
        (JSONLDataset, write_jsonl),
    ],
    ids=["parquet", "arrow", "csv", "jsonl"],
)


def read(dataset, workers=INLINE, batch_size=6):
    return list(DataLoader(dataset, places="cpu", batch_size=batch_size, **workers))


def joined(batches, name):
    return [value for batch in batches for value in list(batch[name])]


@pytest.fixture
def table():
    ages = [None if row % 5 == 0 else row for row in range(ROWS)]
    return pa.table({"row": range(ROWS), "age": ages, "name": [f"n{row}" for row in range(ROWS)]})


@KINDS
@pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
def test_rows_are_filtered_filled_cast_and_mapped(tmp_path, table, kind, write, workers):
    write(table, tmp_path / "a")
    options = {"filters": [("row", ">", 3)], "fill": {"age": -1}, "schema": {"row": "int16"}}
    dataset = kind(tmp_path / "a", ["age", "row"], **options)
    batches = read(dataset, workers)
    ages = {row: -1 if row % 5 == 0 else row for row in range(4, ROWS)}
    assert dict(zip(joined(batches, "row"), joined(batches, "age"), strict=True)) == ages
    assert [(name, batches[0][name].dtype) for name in batches[0]] == [("age", np.int64), ("row", np.int16)]
    mapped = kind(tmp_path / "a", **options, map=lambda sample: sample["row"] * 10)
    assert sorted(np.concatenate(read(mapped, workers)).tolist()) == [10 * row for row in ages]
    with pytest.raises(DataFileError, match=r"column 'age': \d of \d+ values (is|are) null"):
        read(kind(tmp_path / "a"))


@KINDS
@pytest.mark.parametrize(
    ("filters", "problem"),
    [
        ([("none", ">", 1)], "do not fit the columns .*No match for FieldRef.Name\\(none\\)"),
        ([("row", ">", "a")], "do not fit the columns .*no kernel matching"),
        ("row > 3", "do not fit the columns"),
        (("row", ">", 3), "must be an expression or a list of tuples"),
        ([], "must be an expression or a list of tuples"),
    ],
    ids=str,
)
def test_filters_that_do_not_fit_are_refused_at_once(tmp_path, table, kind, write, filters, problem):
    write(table, tmp_path / "a")
    with pytest.raises(ValueError, match=f"^filters {problem}"):
        kind(tmp_path / "a", ["row"], filters=filters)


@KINDS
def test_a_number_that_fills_nulls_is_not_cut_off(tmp_path, table, kind, write):
    write(table, tmp_path / "a")
    for fill in (0.5, float("nan"), 2**70):
        with pytest.raises(DataFileError, match="column 'age'"):
            read(kind(tmp_path / "a", ["age"], fill={"age": fill}))
    assert joined(read(kind(tmp_path / "a", ["age"], fill={"age": 7.0})), "age")[0] == 7


def test_rows_of_nulls_are_rows_also_between_tabs(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tb\n\t\n\t\n")
    options = {"schema": {"a": "int8", "b": "int8"}, "delimiter": "\t", "fill": {"a": 1, "b": 2}}
    batches = read(CSVDataset(tmp_path / "a.tsv", **options))
    assert [(batch["a"].tolist(), batch["b"].tolist()) for batch in batches] == [([1, 1], [2, 2])]


def test_a_file_of_arrows_format_of_streams_is_told_from_a_damaged_one(tmp_path, table):
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(DataFileError, match=r"format of streams; read it with pyarrow\.ipc\.open_stream"):
        ArrowDataset(tmp_path / "a.arrow")


def test_the_first_version_of_feather_is_told_from_a_damaged_file(tmp_path):
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(60))
    with pytest.raises(DataFileError, match=r"has the format of Feather's version 1; .* write it again"):
        ArrowDataset(tmp_path / "a.feather")


@pytest.mark.usefixtures("remote")
def test_a_folder_of_arrow_files_may_have_the_endings_of_both_names(tmp_path, table):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for number, ending in enumerate(("feather", "arrow", "csv")):
        feather.write_feather(table[10 * number : 10 * number + 10], tmp_path / f"{number}.{ending}")
        memory.pipe(f"/arrows/{number}.{ending}", (tmp_path / f"{number}.{ending}").read_bytes())
    try:
        for folder in (tmp_path, "memory://arrows/"):
            assert joined(read(ArrowDataset(folder, ["row"])), "row") == list(range(20))
    finally:
        memory.rm("/arrows", recursive=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"no file matches .*\*\.arrow or .*\*\.feather"):
        ArrowDataset(tmp_path / "empty")


@KINDS
def test_a_filtered_dataset_resumes(tmp_path, table, kind, write):
    write(table, tmp_path / "a")

    def load():
        dataset = kind(tmp_path / "a", ["row"], filters=[("row", "!=", 3)], **SHUFFLED)
        return DataLoader(dataset, places="cpu", batch_size=4)

    whole = [batch["row"].tolist() for batch in load()]
    _, again = resume(load, 2)
    assert [batch["row"].tolist() for batch in again] == whole[2:]


def test_a_filtered_dataset_resumes_where_pickle_has_taken_it(tmp_path):
    # Row groups have fewer rows than their footers say, and a process that reads several of them must not
    # count by the footers.
    pq.write_table(pa.table({"row": range(100)}), tmp_path / "a.parquet", row_group_size=10)
    dataset = ParquetDataset(tmp_path / "a.parquet", filters=[("row", "not in", list(range(1, 100, 2)))])
    first, again = (pickle.loads(pickle.dumps(dataset)) for _ in range(2))
    blocks = first.iter_blocks(3)
    read = [row for _ in range(6) for row in next(blocks).columns()["row"].tolist()]
    again.load_state_dict(first.state_dict())
    assert read + [sample["row"] for sample in again] == list(range(0, 100, 2))


def test_a_filter_reads_columns_of_its_own_and_skips_row_groups(tmp_path, remote):
    table = pa.table({"row": range(40_000), "x": np.random.default_rng(0).random(40_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10_000)
    with serve(tmp_path) as served:
        dataset = ParquetDataset(f"{served.url}/a.parquet", ["x"], filters=[("row", "<", 5)])
        served.ranges.clear()
        (batch,) = read(dataset)
        assert sum(nbytes for _, nbytes in served.ranges) < 300_000
    assert batch["x"].tolist() == table["x"].to_pylist()[:5]
    assert (dataset.rows, list(batch)) == (40_000, ["x"])


class TestFilteredParquet:
    """Row groups are read together, as without a filter, and positions count the rows that it leaves."""

    EXPRESSIONS = (
        pc.field("age") > 7,
        ~(pc.field("age") > 7),
        pc.field("age").is_null(),
        pc.field("box", "x") > 30,
        (pc.field("kind") == "b") | (pc.field("row") < 20),
        pc.list_value_length(pc.field("words")) > 1,
        pc.field("age") + pc.field("row") > 50,
        pc.field("row").isin([3, 33, 77, 78]),
        pc.field(2) == "n3",  # columns by their numbers
        pc.field("row") > 1000,
        pc.field("row") < 1000,
    )

    @pytest.fixture
    def paths(self, tmp_path):
        found = [tmp_path / f"{file}.parquet" for file in range(2)]
        for file, path in enumerate(found):
            rows = range(50 * file, 50 * file + 50)
            columns = {
                "row": rows,
                "age": [None if row % 5 == 0 else row % 20 for row in rows],
                "name": [f"n{row % 7}" for row in rows],
                "box": [{"x": row, "y": None if row % 3 else 1} for row in rows],
                "kind": pa.array([("a", "b", None)[row % 3] for row in rows]).dictionary_encode(),
                "words": [None if row % 11 == 0 else ["w"] * (row % 4) for row in rows],
            }
            pq.write_table(pa.table(columns), path, row_group_size=7)
        return found

    @pytest.mark.parametrize("pieces", [8 << 20, 300], ids=["whole", "pieces"])
    def test_the_rows_are_those_of_arrow(self, paths, monkeypatch, pieces):
        monkeypatch.setattr(parquet, "PIECE_NBYTES", pieces)
        for filters in self.EXPRESSIONS:
            expected = pa_dataset.dataset(paths).to_table(filter=filters)
            for columns in (["row"], ["name", "row"], ["row", "kind"]):
                batches = read(ParquetDataset(paths, columns, filters=filters))
                for name in columns:
                    assert joined(batches, name) == expected[name].to_pylist(), filters
            shuffled = ParquetDataset(paths, ["row"], filters=filters, **SHUFFLED)
            for _ in range(2):  # the second pass knows how many rows there are
                assert sorted(joined(read(shuffled), "row")) == expected["row"].to_pylist()

    @pytest.mark.parametrize("pieces", [8 << 20, 300], ids=["whole", "pieces"])
    def test_a_position_is_a_row_group_and_the_rows_that_it_leaves(self, paths, monkeypatch, pieces):
        monkeypatch.setattr(parquet, "PIECE_NBYTES", pieces)
        for filters in self.EXPRESSIONS:
            groups = [
                pq.ParquetFile(path).read_row_group(number).filter(filters)["row"].to_pylist()
                for path in paths
                for number in range(8)
            ]
            whole = [row for group in groups for row in group]
            dataset = ParquetDataset(paths, ["row"], filters=filters)
            taken = 0
            for block in dataset.iter_blocks(3):
                taken += len(block)
                state = dataset.state_dict()
                shard, sample = state["shard"], state["sample"]
                assert sum(map(len, groups[:shard])) + sample == taken
                assert 0 < sample <= len(groups[shard])
                again = ParquetDataset(paths, ["row"], filters=filters)
                again.load_state_dict(state)
                assert [sample["row"] for sample in again] == whole[taken:]

    def test_other_workers_continue_within_a_row_group(self, paths):
        def load(workers):
            dataset = ParquetDataset(paths, ["row"], filters=[("age", "not in", [1, 2, 3, 4, 6])])
            return DataLoader(dataset, places="cpu", batch_size=3, **workers)

        whole = joined(load(INLINE), "row")
        for received in (1, 4, 9):
            first, again = resume(lambda: load(INLINE), received)
            other = load(PROCESSES)
            other.load_state_dict(again.state_dict())
            assert joined(first, "row") == whole[: 3 * received]
            assert sorted(joined(other, "row")) == sorted(whole[3 * received :])

    @pytest.mark.parametrize("pieces", [8 << 20, 300], ids=["whole", "pieces"])
    def test_a_damaged_row_group_is_named_after_those_that_are_intact(self, paths, monkeypatch, pieces):
        monkeypatch.setattr(parquet, "PIECE_NBYTES", pieces)
        with pq.ParquetFile(paths[0]) as opened:
            column = opened.metadata.row_group(3).column(0)
        start = column.dictionary_page_offset or column.data_page_offset
        body = bytearray(paths[0].read_bytes())
        body[start : start + 20] = b"\xff" * 20
        paths[0].write_bytes(body)
        filters = [("name", "not in", ["n0", "n1"])]
        intact = [row for row in range(21) if row % 7 > 1]
        for taken in (0, 3, 5, 7):
            dataset, found = ParquetDataset(paths[0], ["row"], filters=filters), []
            if taken:
                blocks = dataset.iter_blocks(taken)
                next(blocks)
                blocks.close()
                dataset.load_state_dict(dataset.state_dict())
            with pytest.raises(DataFileError, match="row group 3: the file is truncated or not a Parq"):
                found.extend(sample["row"] for sample in dataset)
            assert found == intact[taken:]
        # Nothing is wrong with a row group that the statistics rule out.
        rest = ParquetDataset(paths[0], ["row"], filters=[("row", ">", 30)])
        assert [sample["row"] for sample in rest] == [*range(31, 50)]

    def test_a_file_without_the_column_of_a_filter(self, paths):
        pq.write_table(pa.table({"row": [1]}), paths[1])
        with pytest.raises(DataFileError, match=r"1\.parquet: .*No match for FieldRef\.Name\(age\)"):
            ParquetDataset(paths, ["row"], filters=[("age", ">", 1)])

    def test_a_column_is_read_for_its_name_in_an_expression_not_in_a_value(self, paths):
        schema = pq.read_schema(paths[0])
        dataset = ParquetDataset(paths, ["row"], filters=[("name", "!=", "age or words")])
        assert dataset._find_columns(schema) == ["row", "name"]

    @pytest.mark.parametrize("options", [{}, {"shuffle": True, "shuffle_buffer": 500}], ids=str)
    @pytest.mark.parametrize("limit", [-1, 0.5, 0.99, 2])
    def test_a_remote_file_is_read_once_in_few_requests(self, tmp_path, remote, options, limit):
        generator = np.random.default_rng(0)
        columns = {f"x{number}": generator.random(14_000) for number in range(20)}
        table = pa.table({"id": range(14_000), **columns})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
        with serve(tmp_path) as served:
            filters = (pc.field("x3") > limit) & (pc.field("id") >= 600)
            dataset = ParquetDataset(f"{served.url}/a.parquet", filters=filters, **options)
            found = joined(read(dataset, batch_size=64), "id")
        assert sorted(found) == table.filter(filters)["id"].to_pylist()
        size = (tmp_path / "a.parquet").stat().st_size
        assert sum(count for _, count in served.ranges) <= 1.1 * size
        assert served.heads + served.requests <= 2 * size / 2**20 + 4

    def test_long_gaps_in_a_remote_file_are_not_read(self, tmp_path, remote):
        table = pa.table({"id": range(24_000), "x": np.random.default_rng(0).random((24_000, 32)).tolist()})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=500)
        with serve(tmp_path) as served:
            filters = [[("id", "==", row)] for row in (300, 9_000, 23_000)]
            dataset = ParquetDataset(f"{served.url}/a.parquet", filters=filters)
            served.ranges.clear()
            assert joined(DataLoader(dataset, places="cpu", ragged=["x"]), "id") == [300, 9_000, 23_000]
        assert sum(count for _, count in served.ranges) < (tmp_path / "a.parquet").stat().st_size / 8


@pytest.mark.parametrize(("kind", "write"), [(ParquetDataset, write_parquet), (ArrowDataset, write_arrow)])
def test_files_may_differ_in_width_and_encoding(tmp_path, kind, write):
    types = [
        (pa.int32(), pa.string(), pa.list_(pa.float32()), pa.timestamp("ms")),
        (pa.uint8(), pa.dictionary(pa.int8(), pa.string()), pa.large_list(pa.float64()), pa.timestamp("us")),
    ]
    for number, row in enumerate(types):
        columns = zip(("n", "t", "x", "when"), ([number], ["a"], [[0.5]], [number * 1000]), row, strict=True)
        table = pa.table({name: pa.array(values).cast(kind) for name, values, kind in columns})
        write(table, tmp_path / str(number))
    options = {"schema": {"when": "int64"}}
    dataset = kind([tmp_path / "0", tmp_path / "1"], **options)
    (batch,) = DataLoader(dataset, places="cpu", batch_size=2, ragged=["x"])
    assert (batch["n"].dtype, batch["n"].tolist()) == (np.int32, [0, 1])
    assert (batch["t"], batch["x"].values.dtype) == (["a", "a"], np.float32)
    assert batch["when"].tolist() == [0, 1000]  # as each file counts


@pytest.mark.parametrize("listed", [False, True], ids=["numbers", "lists"])
def test_floats_that_would_be_rounded_are_an_error(tmp_path, listed):
    narrow, wide = pa.float32(), pa.float64()
    if listed:
        narrow, wide = pa.list_(narrow), pa.list_(wide)
    files = [tmp_path / name for name in "abc"]
    contents = [(narrow, [0.1]), (wide, [0.5, np.nan, np.inf]), (wide, [0.1])]
    for path, (kind, values) in zip(files, contents, strict=True):
        rows = [[value] for value in values] if listed else values
        pq.write_table(pa.table({"x": pa.array(rows, kind)}), path)
    assert len(list(ParquetDataset(files[:2]))) == 4
    with pytest.raises(DataFileError, match=r"c, row group 0, column 'x': .* would round .*; give schema"):
        list(ParquetDataset(files))
    rows = list(ParquetDataset(files, schema={"x": narrow}))  # as asked for
    assert rows[0]["x"] == rows[-1]["x"] == np.float32(0.1)


@pytest.mark.parametrize(("kind", "write"), [(ParquetDataset, write_parquet), (ArrowDataset, write_arrow)])
def test_a_file_that_tells_no_type_takes_that_of_the_others(tmp_path, kind, write):
    for name, rows in (("a", []), ("b", [None, None]), ("c", [1, None, 3]), ("d", [])):
        write(pa.table({"n": rows}), tmp_path / f"{name}{kind._pattern[1:]}")
    assert joined(read(kind(tmp_path, fill={"n": -1})), "n") == [-1, -1, 1, -1, 3]
    with pytest.raises(DataFileError, match=r"b\..*'n': 2 of 2 values are null"):
        read(kind(tmp_path))


def test_dates_and_decimals_are_cast_to_numbers(tmp_path):
    days = pa.array([1, 2], pa.int32()).cast(pa.date32())
    table = pa.table({"day": days, "price": pa.array(["1.5", "2.25"]).cast(pa.decimal128(5, 2))})
    pq.write_table(table, tmp_path / "a.parquet")
    (batch,) = read(ParquetDataset(tmp_path, schema={"day": "int32", "price": "float32"}))
    assert (batch["day"].tolist(), batch["price"].tolist()) == ([1, 2], [1.5, 2.25])
    assert (batch["day"].dtype, batch["price"].dtype) == (np.int32, np.float32)


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"schema": {"label": "int8"}}, DataFileError, r"row group 1, column 'label': .*give schema or fill"),
        ({"fill": {"label": "x"}}, DataFileError, "column 'label': "),
        ({"fill": {"lable": 0}}, ValueError, r"fill has columns that are not read: \['lable'\]"),
        ({"map": 3}, TypeError, "map must be callable"),
    ],
)
def test_what_does_not_fit_is_an_error(tmp_path, options, error, problem):
    pq.write_table(pa.table({"label": range(100, 140)}), tmp_path / "a.parquet", row_group_size=20)
    with pytest.raises(error, match=problem):
        read(ParquetDataset(tmp_path, **options))


def test_arrow_files_that_are_no_arrow_files(tmp_path, table):
    path = tmp_path / "a.arrow"
    write_arrow(table, path)
    body = path.read_bytes()
    dataset = ArrowDataset(tmp_path, ["row"])
    path.write_bytes(body[: len(body) // 2])
    with pytest.raises(SourceError, match=r"a\.arrow: the file has changed since the dataset was made"):
        read(dataset)
    with pytest.raises(DataFileError, match=r"a\.arrow: the file is truncated or not a file of Arrow's"):
        ArrowDataset(tmp_path)


class TestArrowFilesStayOpen:
    @pytest.fixture
    def paths(self, tmp_path):
        for file in range(5):
            rows = pa.table({"n": range(100 * file, 100 * file + 100)})
            feather.write_feather(rows, tmp_path / f"{file}.arrow", chunksize=5)
        return tmp_path

    def numbers(self, loader):
        return [number for batch in loader for number in batch["n"].tolist()]

    def opened(self, folder):
        return [path for _, path in descriptors() if str(folder) in path]

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_each_is_opened_once_per_pass_and_closed_behind_it(self, paths, monkeypatch, shuffle):
        dataset, asked = ArrowDataset(paths, shuffle=shuffle), []
        assert self.opened(paths) == []
        real = arrow_files.open_source
        monkeypatch.setattr(
            arrow_files, "open_source", lambda *all, **k: asked.append(all) or real(*all, **k)
        )
        loader = DataLoader(dataset, places="cpu", batch_size=8)
        for _ in range(2):
            assert sorted(self.numbers(loader)) == [*range(500)]
            assert self.opened(paths) == []
        assert len(asked) == 10
        epoch = iter(loader)
        next(epoch)
        assert 1 <= len(self.opened(paths)) <= 5
        epoch.close()
        assert self.opened(paths) == []

    def test_what_is_read_ahead_is_closed_behind_a_pass_that_is_left(self, paths, remote, tmp_path):
        (tmp_path / "cache").mkdir()
        with serve(paths) as server:
            urls = [f"{server.url}/{file}.arrow" for file in range(5)]
            dataset = ArrowDataset(urls, cache_dir=tmp_path / "cache")
            for count in (1, 60, 200) * 3:
                rows = iter(dataset)
                for _ in range(count):
                    next(rows)
                rows.close()
                wait_until(lambda: not self.opened(tmp_path / "cache"))

    def test_no_more_than_the_bound_are_open(self, paths, monkeypatch):
        monkeypatch.setattr(arrow_files, "_MOST_READERS", 2)
        most = 0
        found = []
        for batch in DataLoader(ArrowDataset(paths, shuffle=True), places="cpu", batch_size=8):
            found += batch["n"].tolist()
            most = max(most, len(self.opened(paths)))
        assert sorted(found) == [*range(500)]
        assert most <= 3  # one of them in use

    @pytest.mark.parametrize("workers", [PROCESSES, THREADS], ids=name_workers)
    def test_workers_do_not_share_the_readers_of_the_process_that_starts_them(self, paths, workers):
        dataset = ArrowDataset(paths, shuffle=True)
        here = iter(DataLoader(dataset, places="cpu", batch_size=8))
        found = next(here)["n"].tolist()
        theirs = self.numbers(DataLoader(dataset, places="cpu", batch_size=8, **workers))
        assert sorted(theirs) == [*range(500)]
        assert sorted(found + self.numbers(here)) == [*range(500)]

    @pytest.mark.parametrize("change", ["fewer rows", "more rows", "as many bytes", "another file"])
    def test_a_file_that_changes_between_two_batches_is_noticed(self, paths, change):
        epoch = iter(DataLoader(ArrowDataset(paths / "0.arrow"), places="cpu", batch_size=5))
        assert next(epoch)["n"].tolist() == [*range(5)]
        if change.endswith("rows"):
            others = pa.table({"n": range(1000, 1005 if change == "fewer rows" else 6000)})
            feather.write_feather(others, paths / "0.arrow", chunksize=50)
        elif change == "as many bytes":
            (paths / "0.arrow").write_bytes((paths / "1.arrow").read_bytes())
        else:
            (paths / "1.arrow").replace(paths / "0.arrow")
        os.utime(paths / "0.arrow", (1, 1))  # a clock's tick may be longer than this test
        with pytest.raises(SourceError, match=r"0\.arrow: the file has changed since the dataset was made"):
            for _ in range(30):
                next(epoch)

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_remote_footer_is_requested_once(self, tmp_path, remote, shuffle):
        rows = pa.table({"n": np.arange(80_000)})
        feather.write_feather(rows, tmp_path / "a.arrow", chunksize=4000, compression="uncompressed")
        with serve(tmp_path) as server:
            dataset = ArrowDataset(f"{server.url}/a.arrow", shuffle=shuffle)
            loader = DataLoader(dataset, places="cpu", batch_size=8000)
            for epoch in (1, 2):
                assert sorted(self.numbers(loader)) == [*range(80_000)]
                assert (server.heads, server.requests <= 1 + 20 * epoch) == (1, True)


def test_a_length_is_that_of_all_files_unless_rows_depend_on_more(files, become):
    dataset = ParquetDataset(files)
    assert (len(dataset), len(DataLoader(dataset, places="cpu", batch_size=30))) == (100, 4)
    with pytest.raises(TypeError, match="no length with filters"):
        len(ParquetDataset(files, filters=[("label", ">", 3)]))
    become(0, 2)
    with pytest.raises(TypeError, match="nor on several ranks"):
        len(dataset)


class TestRandomAccess:
    @pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=name_workers)
    @pytest.mark.parametrize("memory", [1, parquet.HELD_NBYTES])
    def test_every_row_has_a_number(self, files, workers, memory):
        rows = ParquetDataset(files, COLUMNS).random_access(memory=memory)
        loader = DataLoader(rows, places="cpu", batch_size=7, shuffle=True, seed=1, **workers)
        labels = []
        for batch in loader:
            assert batch["name"] == [f"sample {label}" for label in batch["label"]]
            assert (batch["image"] == batch["label"][:, None, None]).all()
            labels += batch["label"].tolist()
        assert (sorted(labels), labels != sorted(labels)) == (list(range(100)), True)
        assert (len(loader), len(rows._held) <= (1 if memory == 1 else 14)) == (15, True)

    def test_it_is_split_selected_and_divided(self, files):
        rows = ParquetDataset(files, ["label", "words"]).random_access()
        first, second = random_split(rows, [70, 30], seed=0)
        assert sorted(one["label"] for part in (first, second) for one in part) == list(range(100))
        assert rows[[99, 0, 50]]["label"].tolist() == [99, 0, 50]
        assert rows[[]]["label"].tolist() == []
        assert rows[7:9]["words"].recursive_sequence_lengths() == [[1, 2]]
        with pytest.raises(IndexError, match="has no sample 100"):
            rows[100]
        ranks = [make(rows, rank, 2, ragged=["words"], uneven="drop") for rank in range(2)]
        assert sorted(label for rank in ranks for batch in rank for label in batch["label"]) == [*range(100)]

    def test_row_groups_are_held_within_a_bound(self, files, monkeypatch):
        read, decode = [], ParquetDataset._read
        monkeypatch.setattr(ParquetDataset, "_read", lambda *given: read.append(1) or decode(*given))
        size = make_table(0, 8).select(["label"]).nbytes
        rows = ParquetDataset(files, ["label"]).random_access(memory=2 * size + size // 2)
        for index in (0, 9, 1, 17, 2, 10):  # the row group used longest ago goes
            assert rows[index]["label"] == index
        assert (len(read), len(rows._held)) == (4, 2)
        with pytest.raises(ValueError, match="filters or map has no random access"):
            ParquetDataset(files, map=len).random_access()


@pytest.mark.parametrize("kind", [ArrowDataset, CSVDataset, JSONLDataset, ParquetDataset])
def test_a_pickle_from_before_files_had_stamps_is_loaded(tmp_path, kind):
    path = tmp_path / "a.csv"
    if kind is ArrowDataset:
        write_arrow(pa.table({"n": [1, 2]}), path)
    elif kind is ParquetDataset:
        pq.write_table(pa.table({"n": [1, 2]}), path)
    else:
        path.write_text("n\n1\n2\n" if kind is CSVDataset else '{"n": 1}\n{"n": 2}\n')
    dataset = kind(path)
    del dataset._seen
    assert [sample["n"] for sample in pickle.loads(pickle.dumps(dataset))] == [1, 2]
