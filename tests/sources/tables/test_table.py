"""Tables as datasets: what becomes of each kind of column, of every library, and that rows are not made."""

import datetime as dt
from functools import partial

import numpy as np
import pytest

from gpuloader import (
    BucketSampler,
    ComposeDataset,
    ConcatDataset,
    DataFileError,
    DataLoader,
    MixDataset,
    Ragged,
    RandomSampler,
    SampleError,
    Subset,
    TableDataset,
    random_split,
)
from gpuloader.sources.array_rows import find_arrays
from gpuloader.sources.block import Block
from gpuloader.transforms import OneHot
from tests import loading
from tests.sample_sets import ONE_THREAD, PROCESSES, THREADS, WORKERS, assert_same, name_workers

LIBRARIES = ("pandas", "polars", "pyarrow", "dict")
ROWS = 23


def make_table(library, columns):
    """Return a table of some columns, which are arrays or lists."""
    if library == "dict":
        return columns
    module = pytest.importorskip(library)
    return module.table(columns) if library == "pyarrow" else module.DataFrame(columns)


def numbers():
    rows = np.arange(ROWS)
    return {"x": rows / 4, "label": rows.astype(np.int16), "even": rows % 2 == 0}


def mixed():
    return {**numbers(), "name": [f"row {row}" for row in range(ROWS)]}


load = partial(loading.load, batch_size=5)


def column(loader, name):
    return [value for batch in loader for value in list(batch[name])]


@pytest.mark.parametrize("library", LIBRARIES)
class TestEveryLibrary:
    def test_numbers_keep_their_dtypes(self, library):
        table = make_table(library, numbers())
        assert find_arrays(TableDataset(table)).names == ("x", "label", "even")
        loader = load(table)
        batch = next(iter(loader))
        assert list(batch) == ["x", "label", "even"]
        assert [array.dtype for array in batch.values()] == [np.float64, np.int16, np.bool_]
        assert column(loader, "label") == list(range(ROWS))
        assert column(loader, "even") == [row % 2 == 0 for row in range(ROWS)]
        assert len(loader) == 5

    def test_missing_text_is_none_and_dates_stay_objects(self, library):
        days = [dt.datetime(2024, 1, day) for day in (1, 2, 3)]
        loader = load(make_table(library, {"name": ["a", None, "c"], "day": days}))
        assert (column(loader, "name"), column(loader, "day")) == (["a", None, "c"], days)

    @pytest.mark.parametrize("workers", [*WORKERS, PROCESSES], ids=name_workers)
    @pytest.mark.parametrize("columns", [numbers, mixed])
    def test_shuffled_batches_are_those_of_the_rows(self, library, columns, workers):
        table = make_table(library, columns())
        rows = [TableDataset(table)[row] for row in range(ROWS)]
        options = {"shuffle": True, "seed": 3}
        wanted = load(rows, **options)
        loader = load(table, **options, **workers)
        for _ in range(2):
            for batch, by_row in zip(loader, wanted, strict=True):
                assert_same(batch, by_row)

    def test_lists_are_ragged_or_padded_or_if_of_one_length_rows_of_an_array(self, library):
        words, boxes = [[1.0, 2.0], [3.0], [], [4.0, 5.0, 6.0]], [[row, row + 1] for row in range(4)]
        table = make_table(library, {"words": words, "box": boxes, "name": list("abcd")})
        batch = next(iter(load(table, ragged=["words"])))
        assert batch["words"].values.tolist() == [1, 2, 3, 4, 5, 6]
        assert batch["words"].recursive_sequence_lengths() == [[2, 1, 0, 3]]
        assert batch["box"].tolist() == boxes
        batch = next(iter(load(table, pad={"words": -1}, sampler=[3, 0])))
        assert batch["words"].tolist() == [[4, 5, 6], [1, 2, -1]]
        with pytest.raises(SampleError, match=r"field 'words': .* name the field in ragged, or in pad"):
            list(load(table))

    @pytest.mark.parametrize(
        ("kind", "values"),
        [("Int64", [1, None, 0]), ("Float64", [1.0, None, 0.0]), ("boolean", [True, None, False])],
    )
    def test_a_null_among_numbers_is_an_error(self, library, kind, values):
        if library == "pandas":
            values = pytest.importorskip("pandas").array(values, dtype=kind)
        table = make_table(library, {"age": values})
        with pytest.raises(DataFileError, match="column 'age': 1 of 3 values is null, which no number can"):
            load(table)

    def test_a_sampler_of_indices_reads_rows(self, library):
        table = make_table(library, mixed())
        assert column(load(table, sampler=[4, 0, -1]), "label") == [4, 0, 22]
        assert len(column(load(table, sampler=RandomSampler(range(ROWS))), "name")) == ROWS
        sampler = BucketSampler([len(name) for name in mixed()["name"]], 5)
        loader = DataLoader(table, places="cpu", batch_sampler=sampler, seed=1)
        assert sorted(column(loader, "label")) == list(range(ROWS))

    @pytest.mark.parametrize("columns", [numbers, mixed])
    def test_an_index_out_of_range_is_named(self, library, columns):
        with pytest.raises(SampleError, match=r"(has no sample 23|index 23 is out of range for 23 samples)"):
            list(load(make_table(library, columns()), sampler=[0, 23]))

    def test_columns_differ_in_name(self, library):
        table = make_table(library, {"1": [1], "b": [2]})
        if library == "polars":
            return  # which itself refuses others
        if library == "dict":
            table[1] = [2]
        elif library == "pyarrow":
            table = table.rename_columns(["1", "1"])
        else:
            table.columns = ["1", "1"]
        with pytest.raises(ValueError, match="several columns of the table have the name '1'"):
            TableDataset(table)


class TestPandas:
    @pytest.fixture
    def pd(self):
        return pytest.importorskip("pandas")

    @pytest.mark.parametrize("kind", ["object", "string", "str", "string[pyarrow]"])
    def test_every_kind_of_text(self, pd, kind):
        pytest.importorskip("pyarrow")
        series = pd.Series(["a", None, "c"], dtype=kind)
        assert column(load(pd.DataFrame({"t": series})), "t") == ["a", None, "c"]

    def test_columns_become_what_they_hold(self, pd):
        pa = pytest.importorskip("pyarrow")
        frame = pd.DataFrame(
            {
                "nan": [1.0, np.nan],
                "objects": pd.Series([1, 2], dtype=object),
                "arrow": pd.Series(pa.array([1, 2], pa.int32()), dtype=pd.ArrowDtype(pa.int32())),
                "day": pd.to_datetime(["2024-01-01", None]),
            }
        )
        (batch,) = load(frame)
        assert np.isnan(batch["nan"]).tolist() == [False, True]
        assert (batch["objects"].dtype, batch["arrow"].dtype) == (np.int64, np.int32)
        assert batch["day"] == [dt.datetime(2024, 1, 1), None]
        frame.index = [30, 10]  # is not read
        assert column(load(frame), "arrow") == [1, 2]

    def test_categories_become_their_values(self, pd):
        sizes, pets = pd.Categorical([30, 10, 20, 30]), ["cat", "dog", None, "cat"]
        frame = pd.DataFrame({"pet": pd.Categorical(pets), "size": sizes})
        (batch,) = load(frame)
        assert (batch["pet"], batch["size"].tolist()) == (pets, [30, 10, 20, 30])
        frame["size"] = pd.Categorical([30, None, 20, 30])
        with pytest.raises(DataFileError, match="column 'size': 1 of 4 values is null"):
            load(frame)

    def test_sparse_numbers_and_columns_of_a_matrix(self, pd):
        frame = pd.DataFrame(np.arange(12.0).reshape(4, 3), columns=["a", "b", 3])
        frame["s"] = pd.arrays.SparseArray([0, 0, 1, 0])
        (batch,) = load(frame)
        assert list(batch) == ["a", "b", "3", "s"]
        assert batch["b"].tolist() == [1, 4, 7, 10]
        assert batch["s"].tolist() == [0, 0, 1, 0]
        assert find_arrays(TableDataset(frame)).arrays[1].flags.c_contiguous


class TestPolars:
    @pytest.fixture
    def pl(self):
        return pytest.importorskip("polars")

    def test_columns_become_what_they_hold(self, pl):
        frame = pl.DataFrame(
            {
                "pet": pl.Series(["cat", None], dtype=pl.Categorical),
                "size": pl.Series(["s", "m"], dtype=pl.Enum(["s", "m"])),
                "box": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int8, 2)),
                "point": [{"x": 1, "name": "a"}, {"x": 2, "name": "b"}],
                "object": pl.Series([{1}, {2}], dtype=pl.Object),
            }
        )
        (batch,) = load(frame)
        assert (batch["pet"], batch["size"]) == (["cat", None], ["s", "m"])
        assert (batch["box"].dtype, batch["box"].tolist()) == (np.int8, [[1, 2], [3, 4]])
        assert (batch["point"]["x"].tolist(), batch["point"]["name"]) == ([1, 2], ["a", "b"])
        assert batch["object"] == [{1}, {2}]

    def test_several_chunks(self, pl):
        frame = pl.concat([pl.DataFrame({"x": [1, 2], "t": ["a", "b"]})] * 3, rechunk=False)
        assert column(load(frame), "x") == [1, 2] * 3
        assert column(load(frame), "t") == ["a", "b"] * 3


class TestArrow:
    @pytest.fixture
    def pa(self):
        return pytest.importorskip("pyarrow")

    def make(self, pa, chunks, rows=1000):
        def piece(part):
            columns = {
                "label": part,
                "box": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(part, 3) * 1.0), 3),
                "name": [f"row {row}" for row in part],
                "words": [[int(row)] * (row % 3) for row in part],
                "even": [bool(row % 2 == 0) for row in part],
            }
            return pa.table(columns)

        return pa.concat_tables(map(piece, np.array_split(np.arange(rows), chunks)))

    @pytest.mark.parametrize("joined", [0, 1 << 20])
    @pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 1}, {"shuffle": True, **THREADS}])
    def test_chunks_are_read_where_they_are(self, pa, joined, options, monkeypatch):
        monkeypatch.setattr("gpuloader.sources.tables.arrow._JOINED", joined)
        table = self.make(pa, 37)
        made = []
        iterate = Block.__iter__
        monkeypatch.setattr(Block, "__iter__", lambda block: made.append(block) or iterate(block))
        loader = load(table, batch_size=64, ragged=["words"], **options)
        for batch in [*loader, TableDataset(table)[[700, 3, 999, 3]]]:
            labels = batch["label"]
            assert (batch["box"] == labels[:, None]).all()
            assert batch["name"] == [f"row {label}" for label in labels]
            assert batch["words"].recursive_sequence_lengths() == [(labels % 3).tolist()]
            assert batch["words"].values.tolist() == np.repeat(labels, labels % 3).tolist()
            assert (batch["even"] == (labels % 2 == 0)).all()
        assert 1 <= len(made) <= options.get("num_workers", 1)  # whoever is first settles the form
        assert sorted(column(loader, "label")) == list(range(1000))

    def test_lists_of_one_length_need_no_type_that_says_so(self, pa, monkeypatch):
        monkeypatch.setattr("gpuloader.sources.tables.arrow._JOINED", 0)
        chunks = [[[1, 2], [3, 4]], [[5, 6]], [[7, 8], [9, 10]]]
        table = pa.table({"box": pa.chunked_array(chunks), "name": list("abcde")})
        assert np.concatenate([batch["box"] for batch in load(table, batch_size=2)]).tolist() == [
            [1, 2], [3, 4], [5, 6], [7, 8], [9, 10],
        ]  # fmt: skip

    def test_record_batches_and_empty_chunks_and_tables_without_rows(self, pa):
        (batch,) = load(pa.record_batch({"x": [1, 2]}))
        assert batch["x"].tolist() == [1, 2]
        column_ = pa.chunked_array([[], [1], [], [2, 3], []], type=pa.int64())
        assert column(load(pa.table({"x": column_, "t": ["a", "b", "c"]})), "x") == [1, 2, 3]
        table = pa.table({"x": pa.array([], pa.int64()), "t": pa.array([], pa.string())})
        assert list(load(table)) == []
        assert list(load(pa.schema([("t", pa.string())]).empty_table())) == []

    def test_text_alone_is_loaded_in_threads_even_if_processes_were_asked_for(self, pa):
        loader = load(self.make(pa, 3).select(["name"]), batch_size=100, **PROCESSES)
        assert column(loader, "name") == [f"row {row}" for row in range(1000)]
        assert not loader._epochs._fetching.in_processes


class TestDicts:
    def test_arrays_of_any_shape_and_byte_order_and_ragged_ones_are_columns(self):
        array, words = np.zeros((4, 3)), Ragged.from_samples([[1, 2], [3]], "int64")
        assert find_arrays(TableDataset({"x": array})).arrays[0] is array  # which is not copied
        image = np.arange(12, dtype=">i2").reshape(2, 3, 2)
        table = {"image": image, "f": np.arange(4.0)[::2], "words": words}
        loader = load(table, ragged=["words"])
        assert loader.dataset is table
        (batch,) = loader
        assert (batch["image"].tolist(), batch["f"].tolist()) == (image.tolist(), [0, 2])
        assert batch["words"].recursive_sequence_lengths() == [[2, 1]]

    def test_lists_of_whatever_there_is(self):
        columns = {
            "arrays": [np.ones(2), np.zeros(2)],
            "uneven": [[1, 2], [3.5]],
            "texts": [["a", "b"], ["c"]],
            "tuples": [(1, 2), (3, 4)],
            "dates": np.array(["2024-01-01", "2024-01-02"], "datetime64[D]"),
            "words": np.array(["a", "b"]),
            "scalars": [np.float32(1), np.float32(2)],
            "objects": [{1}, None],
        }
        (batch,) = load(columns, ragged=["uneven"])
        assert batch["arrays"].tolist() == [[1, 1], [0, 0]]
        assert batch["uneven"].values.tolist() == [1, 2, 3.5]
        assert batch["texts"] == [["a", "b"], ["c"]]
        assert batch["tuples"].tolist() == [[1, 2], [3, 4]]
        assert batch["dates"] == [np.datetime64("2024-01-01"), np.datetime64("2024-01-02")]
        assert batch["words"] == ["a", "b"]
        assert batch["scalars"].dtype == np.float32
        assert batch["objects"] == [{1}, None]

    @pytest.mark.parametrize(
        ("make", "table", "kind", "problem"),
        [
            (load, {"x": [1, 2], "y": [1]}, ValueError, r"the same number of rows, got \{'x': 2, 'y': 1\}"),
            *(
                (load, {"x": value}, DataFileError, f"column 'x': expected one value per row, got {what}")
                for value, what in ((3, "int"), ("abc", "str"), (np.float32(2), "the single"))
            ),
            (load, {"boxes": [[1, 2], None]}, DataFileError, "column 'boxes': 1 of 2 values is null"),
            (load, {"huge": [2**70, 1]}, SampleError, "field 'huge': expected an array of numbers, got dt"),
            (TableDataset, {}, ValueError, "the table has no columns"),
            (TableDataset, [1, 2], TypeError, "must be a data frame .*, or a dict of columns, got list"),
        ],
    )
    def test_what_is_no_table(self, make, table, kind, problem):
        with pytest.raises(kind, match=problem):
            list(make(table))

    def test_a_dict_of_samples_is_still_a_map(self):
        samples = {"a.jpg": np.zeros(2), "b.jpg": np.ones(2)}
        loader = load(samples, sampler=["b.jpg", "a.jpg"])
        assert next(iter(loader)).tolist() == [[1, 1], [0, 0]]
        batches = load(samples, batch_size=1, batch_sampler=[["b.jpg"], ["a.jpg"]])
        assert [batch.tolist() for batch in batches] == [[[1, 1]], [[0, 0]]]
        by_number = {number: np.full(2, number) for number in range(3)}
        assert next(iter(load(by_number))).tolist() == [[0, 0], [1, 1], [2, 2]]


class TestWithTheRest:
    @pytest.mark.parametrize("columns", [numbers, mixed])
    def test_parts_of_tables(self, columns):
        table = TableDataset(columns())
        train, test = random_split(table, [0.8, 0.2], seed=1)
        found = column(load(train), "label") + column(load(test, **ONE_THREAD), "label")
        assert sorted(found) == list(range(ROWS))
        part = Subset(Subset(table, [5, -1, 3]), [2, 0])
        assert column(load(part), "label") == [3, 5]
        assert next(iter(load(part)))["x"].tolist() == [0.75, 1.25]

    def test_transforms_and_caches(self):
        (batch,) = load(mixed(), batch_size=ROWS, transforms=[OneHot("label", 23)])
        assert (batch["label"] == np.eye(ROWS)).all()
        loader = load(numbers(), cache="host", shuffle=True, seed=4)
        assert column(loader, "label") == column(load(numbers(), shuffle=True, seed=4), "label")

    def test_a_class_of_ones_own_makes_its_samples(self):
        class Doubled(TableDataset):
            def __getitem__(self, index):
                return {"x": super().__getitem__(index)["x"] * 2}

            __getitems__ = None

        class AtOnce(TableDataset):
            def __getitems__(self, indices):
                return [{"x": row["x"] * 3} for row in super().__getitems__(indices)]

        assert column(load(AtOnce(mixed())), "x") == [row / 4 * 3 for row in range(ROWS)]
        assert find_arrays(Doubled(numbers())) is None

    def test_a_collate_function_gets_the_rows_and_without_batches_they_come_alone(self):
        loader = load(mixed(), collate_fn=lambda rows: [row["name"] for row in rows])
        assert next(iter(loader)) == mixed()["name"][:5]
        first = next(iter(load(mixed(), batch_size=None)))
        assert (first["label"].tolist(), first["name"]) == (0, "row 0")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "combine",
    [
        lambda given: Subset(given, [0, 1]),
        lambda given: Subset(given, slice(0, 1)),
        lambda given: random_split(given, [3, 1]),
        lambda given: random_split(given, [0.5, 0.5]),
        lambda given: ConcatDataset([given, given]),
        lambda given: ComposeDataset([given]),
        lambda given: MixDataset([given, given], [1, 1]),
    ],
)
def test_a_table_or_columns_are_no_dataset_to_combine(library, combine):
    problem = r"must be map-style, got the table \w+; pass TableDataset\(table\)"
    if library == "dict":
        problem = r"must have samples .* pass TableDataset\(columns\)"
    with pytest.raises(TypeError, match=problem):
        combine(make_table(library, {"x": np.arange(4), "y": [1, 2, 3, 4]}))


class TestSeries:
    """A series of pandas is read by position: its index may have gaps, as after a filter."""

    @pytest.fixture(
        params=["int16", "float64", "Int64", "category", "str", "object", "bool", "datetime64[ns]"]
    )
    def series(self, request):
        pandas = pytest.importorskip("pandas")
        values = {
            "str": ["a", "b", "c", "d"],
            "object": ["a", None, 3, [4]],
            "category": ["u", "v", "u", "v"],
        }
        held = pandas.Series(values.get(request.param, [1, 0, 1, 1]), dtype=request.param)
        filtered = held[[False, True, True, True]]
        assert list(filtered.index) == [1, 2, 3]
        return filtered

    def test_as_a_column(self, series):
        table = TableDataset({"x": series})
        assert [row["x"] for row in table] == [row["x"] for row in TableDataset({"x": series.tolist()})]
        assert len(column(load({"x": series, "row": [0, 1, 2]}), "x")) == 3

    def test_as_the_dataset(self, series):
        expected = list(series)
        parts = series[:1], series[1:]
        whole = Subset(ConcatDataset([series]), range(3))
        for dataset in (series, Subset(series, [0, 1, 2]), ConcatDataset(parts), whole):
            loader = load(dataset, batch_size=None, collate_fn=lambda sample: [sample])
            assert [sample for (sample,) in loader] == expected
        for part in random_split(series, [2, 1], seed=0):
            assert [series.iloc[index] for index in part.indices] == list(part)

    def test_as_indices_and_labels_as_keys(self):
        pandas = pytest.importorskip("pandas")
        indices = pandas.Series([9, 4, 2])[[False, True, True]]
        assert list(Subset(range(5), indices)) == [4, 2]
        assert next(iter(load(range(5), sampler=indices))).tolist() == [4, 2]
        assert column(load({"x": np.arange(5)}, sampler=indices), "x") == [4, 2]
        assert list(Subset(pandas.Series([1, 2], index=["a", "b"]), ["b"])) == [2]


def test_the_description_tells_what_it_holds():
    table = TableDataset({"x": [0.5], "box": [[1, 2]], "name": ["a"]})
    assert table.columns == table.names == ("x", "box", "name")
    assert repr(table) == (
        "<TableDataset: 1 row of x (float64), box (int64 of shape (2,)), name (Python objects)>"
    )
    ragged = TableDataset({"tokens": [[1], [2, 3]]})
    assert repr(ragged) == "<TableDataset: 2 rows of tokens (int64 of varying shape)>"
    wide = TableDataset({f"c{number}": [1] for number in range(10)})
    assert repr(wide).endswith("c6 (int64), c7 (int64) and 2 more>")


# Tables in pieces, and tables that are not in memory yet.

WIDE = 2**60 + 1  # which no float64 holds


def arrow_table():
    pa = pytest.importorskip("pyarrow")
    return pa.table({"id": [1, WIDE, 3], "x": [0.5, 1.5, 2.5]})


@pytest.mark.parametrize("split", [lambda table: table.to_batches(2), lambda table: [table[:1], table[1:]]])
def test_a_list_of_arrow_tables_is_one_table(split):
    batches = list(DataLoader(split(arrow_table()), places="cpu", batch_size=2))
    assert [batch["id"].tolist() for batch in batches] == [[1, WIDE], [3]]
    assert [batch["x"].tolist() for batch in batches] == [[0.5, 1.5], [2.5]]


@pytest.mark.parametrize("other", [lambda pa: pa.table({"y": [1]}), lambda pa: 3])
def test_a_list_of_other_arrow_tables_is_refused(other):
    tables = [arrow_table(), other(pytest.importorskip("pyarrow"))]
    with pytest.raises(ValueError, match="a list of tables must hold tables of one schema"):
        TableDataset(tables)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_list_of_data_frames_is_one_table(library):
    frame = pytest.importorskip(library).DataFrame
    frames = [frame({"id": [1, WIDE], "x": [0.5, 1.5]}), frame({"id": [3], "x": [2.5]})]
    batches = list(DataLoader(frames, places="cpu", batch_size=2))
    assert [batch["id"].tolist() for batch in batches] == [[1, WIDE], [3]]
    assert [batch["x"].tolist() for batch in batches] == [[0.5, 1.5], [2.5]]
    for other in (frame({"x": [0.5], "id": [1]}), frame({"id": [0.5], "x": [0.5]}), frame({}), 3):
        with pytest.raises(ValueError, match="a list of tables must hold tables of one schema"):
            DataLoader([*frames, other], places="cpu")


def test_a_collate_fn_of_pytorch_receives_the_tables_of_a_list():
    pytest.importorskip("torch")
    from gpuloader.torch import DataLoader as TorchLoader

    frame = pytest.importorskip("pandas").DataFrame({"id": [1, WIDE]})
    [batch] = TorchLoader([frame, frame], batch_size=2, collate_fn=list)
    assert all(one.equals(frame) for one in batch)


@pytest.mark.parametrize("kind", ["array", "chunked_array"])
def test_a_bare_column_of_arrow_is_refused(kind):
    column = getattr(pytest.importorskip("pyarrow"), kind)([[1, WIDE]])
    advice = rf"got {type(column).__name__}; pass a column as \{{'name': column\}}"
    with pytest.raises(TypeError, match=advice):
        DataLoader(column, places="cpu")


def test_a_table_is_not_one_sample_and_not_a_column():
    table = arrow_table()
    for dataset in (iter(table.to_batches()), [{"table": table}], [(table,)]):
        with pytest.raises(SampleError, match=r"columns \['id', 'x'\]; to have its rows as samples, pass"):
            list(DataLoader(dataset, places="cpu"))
    with pytest.raises(DataFileError, match="column 'table': expected one value per row, got Table"):
        DataLoader({"table": table}, places="cpu")


def unread(kind, path):
    if kind == "LazyFrame":
        return pytest.importorskip("polars").LazyFrame({"id": [1]})
    table = arrow_table()
    import pyarrow as pa
    import pyarrow.dataset
    import pyarrow.parquet as pq

    if kind == "RecordBatchReader":
        return table.to_reader()
    if kind == "RecordBatchFileReader":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        return pa.ipc.open_file(path.read_bytes())
    pq.write_table(table, path)
    if kind.startswith("Parquet"):
        return getattr(pq, kind)(path)
    found = pyarrow.dataset.dataset(path)
    return {"Scanner": found.scanner(), "UnionDataset": pyarrow.dataset.dataset([found])}.get(kind, found)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("LazyFrame", "frame.collect()"),
        ("RecordBatchReader", "reader.read_all()"),
        ("RecordBatchFileReader", "reader.read_all()"),
        ("ParquetFile", "file.read(), or gpuloader.ParquetDataset(path)"),
        ("ParquetDataset", "dataset.read(), or gpuloader.ParquetDataset(dataset.files)"),
        ("FileSystemDataset", "dataset.to_table(), or gpuloader.ParquetDataset(dataset.files)"),
        ("UnionDataset", "dataset.to_table()"),
        ("Scanner", "scanner.to_table()"),
    ],
)
def test_a_table_that_is_not_in_memory_says_what_to_write(tmp_path, kind, line):
    table = unread(kind, tmp_path / "table")
    for read in (lambda: DataLoader(table, places="cpu"), lambda: TableDataset(table)):
        with pytest.raises(TypeError) as caught:
            read()
        assert str(caught.value) == f"a {kind} has not been read yet: pass {line}"
