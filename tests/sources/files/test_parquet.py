"""Parquet files through the loader: what arrives, how it got there, and what is wrong with bad ones."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from gpuloader import DataFileError, DataLoader, ParquetDataset, SourceError
from gpuloader.errors import MissingPackage
from gpuloader.sources.block import Block
from gpuloader.sources.files import parquet
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, name_workers
from tests.sources.files.serving import serve

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def make_table(start, stop, **columns):
    numbers = np.arange(start, stop)
    pixels = pa.array(np.repeat(numbers, 6).astype(np.float32))
    return pa.table(
        {
            "label": numbers,
            "image": pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pixels, 3), 2),
            "even": numbers % 2 == 0,
            "name": [f"sample {number}" for number in numbers],
            "words": [[number] * (number % 3) for number in numbers],
            **columns,
        }
    )


@pytest.fixture
def files(tmp_path):
    """Two files, 100 rows in groups of 8."""
    for number in range(2):
        table = make_table(number * 50, number * 50 + 50)
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=8)
    return [tmp_path / f"{number}.parquet" for number in range(2)]


COLUMNS = ["label", "image", "even", "name"]


def check(batch):
    labels = batch["label"]
    assert labels.dtype == np.int64
    assert batch["image"].dtype == np.float32
    assert batch["image"].shape == (len(labels), 2, 3)
    assert (batch["image"] == labels[:, None, None]).all()
    assert (batch["even"] == (labels % 2 == 0)).all()
    assert batch["name"] == [f"sample {label}" for label in labels]
    return labels.tolist()


SHUFFLED = {"shuffle": True, "shuffle_buffer": 30}


@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, THREADS, PROCESSES], ids=name_workers)
@pytest.mark.parametrize("options", [{}, SHUFFLED], ids=["in order", "shuffled"])
def test_every_row_arrives_once(files, workers, options):
    dataset = ParquetDataset(files, COLUMNS, **options)
    assert (dataset.rows, dataset.shards) == (100, 14)
    loader = DataLoader(dataset, places="cpu", batch_size=7, **workers)
    epochs = [[label for batch in loader for label in check(batch)] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(100))] * 2
    assert (epochs[0] == epochs[1]) is not bool(options)


@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, PROCESSES], ids=name_workers)
def test_a_loader_goes_on_where_another_was(files, workers):
    def load():
        return DataLoader(ParquetDataset(files, COLUMNS, **SHUFFLED), places="cpu", batch_size=7, **workers)

    whole = [check(batch) for batch in load()]
    first = load()
    batches = iter(first)
    for _ in range(5):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    batches.close()
    second = load()
    second.load_state_dict(state)
    assert [check(batch) for batch in second] == whole[5:]


@pytest.mark.parametrize("options", [{}, SHUFFLED], ids=["in order", "shuffled"])
def test_row_groups_may_come_in_pieces(files, options, monkeypatch):
    def load():
        return DataLoader(ParquetDataset(files, COLUMNS, **options), places="cpu", batch_size=7)

    whole = [check(batch) for batch in load()]
    monkeypatch.setattr(parquet, "PIECE_NBYTES", 150)
    assert parquet._count_rows_at_once(pq.read_metadata(files[0]).row_group(0), COLUMNS) < 4
    assert [check(batch) for batch in load()] == whole
    for received in (1, 4, 9):
        first = load()
        batches = iter(first)
        for _ in range(received):
            next(batches)
        state = first.state_dict()
        batches.close()
        second = load()
        second.load_state_dict(state)
        assert [check(batch) for batch in second] == whole[received:]


def test_rows_do_not_become_objects(files, monkeypatch):
    made = []
    iterate = Block.__iter__
    monkeypatch.setattr(Block, "__iter__", lambda block: (made.append(s) or s for s in iterate(block)))
    loader = DataLoader(ParquetDataset(files, COLUMNS, **SHUFFLED), places="cpu", batch_size=7)
    assert sum(len(check(batch)) for batch in loader) == 100
    assert len(made) == 1  # the one that settles the form


def test_columns_that_are_not_asked_for_are_not_read(tmp_path):
    pytest.importorskip("aiohttp")
    pytest.importorskip("fsspec")
    noise = np.random.default_rng(0).random(200_000)
    pq.write_table(pa.table({"noise": noise, "label": np.arange(200_000)}), tmp_path / "a.parquet")
    with serve(tmp_path) as served:
        dataset = ParquetDataset(f"{served.url}/a.parquet", ["label"])
        before = sum(size for _, size in served.ranges)
        (batch,) = DataLoader(dataset, places="cpu", batch_size=200_000)
        assert batch["label"].tolist() == list(range(200_000))
        read = sum(size for _, size in served.ranges) - before
    assert (tmp_path / "a.parquet").stat().st_size > 1_600_000 + read / 2


def test_lists_of_varying_length_are_ragged_or_padded(files):
    dataset = ParquetDataset(files, ["label", "words"], **SHUFFLED)
    (batch,) = DataLoader(dataset, places="cpu", batch_size=100, ragged=["words"])
    lengths = (batch["label"] % 3).tolist()
    assert batch["words"].recursive_sequence_lengths() == [lengths]
    assert batch["words"].values.tolist() == np.repeat(batch["label"], lengths).tolist()
    (batch,) = DataLoader(dataset, places="cpu", batch_size=100, pad={"words": -1})
    assert ((batch["words"] >= 0).sum(1) == batch["label"] % 3).all()


def test_what_else_arrow_has(tmp_path):
    numbers = np.arange(6, dtype=np.uint8)
    table = pa.table(
        {
            "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24.0).reshape(6, 2, 2)),
            "class": pa.array([0, 1, 0, 1, 0, 1], pa.int8()).dictionary_encode(),
            "kind": pa.array(["a", "b"] * 3).dictionary_encode(),
            "box": [{"x": number, "tag": str(number)} for number in numbers.tolist()],
            "raw": [bytes([number]) for number in numbers],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (batch,) = DataLoader(ParquetDataset(tmp_path / "a.parquet"), places="cpu", batch_size=6)
    assert batch["tensor"].tolist() == np.arange(24.0).reshape(6, 2, 2).tolist()
    assert batch["class"].tolist() == [0, 1] * 3
    assert batch["kind"] == ["a", "b"] * 3
    assert batch["box"]["x"].tolist() == numbers.tolist()
    assert batch["box"]["tag"] == ["0", "1", "2", "3", "4", "5"]
    assert batch["raw"] == [bytes([number]) for number in numbers]


READ_A_HALF = """
    import json, sys
    from gpuloader import DataLoader, ParquetDataset

    dataset = ParquetDataset(sys.argv[1:], ["label"], shuffle=True, shuffle_buffer=20)
    loader = DataLoader(dataset, places="cpu", batch_size=7)
    print(json.dumps([label for batch in loader for label in batch["label"].tolist()]))
"""


def test_two_processes_read_halves_from_a_server_that_drops_connections(files):
    pytest.importorskip("aiohttp")
    pytest.importorskip("fsspec")
    with serve(files[0].parent, drops=lambda number: number % 4 == 0) as served:
        urls = [f"{served.url}/{file.name}" for file in files]
        started = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(READ_A_HALF), *urls],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(2)
        ]
        said = [process.communicate(timeout=60) for process in started]
        assert [error.decode() for _, error in said] == ["", ""]
        assert served.dropped > 4
    halves = [json.loads(output) for output, _ in said]
    assert sorted(halves[0] + halves[1]) == list(range(100))
    assert all(40 <= len(half) <= 60 for half in halves)


@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, PROCESSES], ids=name_workers)
def test_a_server_that_never_recovers(files, workers):
    pytest.importorskip("aiohttp")
    pytest.importorskip("fsspec")
    broken = []
    with serve(files[0].parent, drops=lambda number: bool(broken)) as served:
        url = f"{served.url}/{files[0].name}"
        dataset = ParquetDataset(url, ["label"], attempts=2)
        broken.append(True)
        with pytest.raises(SourceError) as caught:
            list(DataLoader(dataset, places="cpu", batch_size=7, **workers))
    assert (caught.value.url, caught.value.attempts) == (url, 2)


class TestBadFiles:
    def test_a_missing_file(self, files):
        with pytest.raises(SourceError, match=r"gone\.parquet: the file cannot be opened"):
            ParquetDataset([*files, files[0].with_name("gone.parquet")])

    @pytest.mark.parametrize("keep", [0, 3, 0.5, 0.99])
    def test_a_truncated_file(self, files, keep):
        body = files[1].read_bytes()
        files[1].write_bytes(body[: int(keep * len(body)) if isinstance(keep, float) else keep])
        with pytest.raises(DataFileError, match="it is truncated or no Parquet file") as caught:
            ParquetDataset(files)
        assert caught.value.file == str(files[1])

    def test_a_column_that_is_not_there(self, files):
        with pytest.raises(DataFileError, match="no such column; there are") as caught:
            ParquetDataset(files, ["label", "lable"])
        assert (caught.value.file, caught.value.column) == (str(files[0]), "lable")

    @pytest.mark.parametrize(
        ("table", "problem"),
        [
            (make_table(0, 3, label=[0.5, 1.0, 2.0]), "expected int64 as in .*, got double"),
            (make_table(0, 3).drop_columns("label"), "no such column, unlike in"),
        ],
    )
    def test_a_schema_that_changes(self, files, table, problem):
        pq.write_table(table, files[1])
        with pytest.raises(DataFileError, match=problem) as caught:
            ParquetDataset(files)
        assert (caught.value.file, caught.value.column) == (str(files[1]), "label")
        assert ParquetDataset(files, ["name"]).rows == 53  # which is the same in both

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
    def test_a_number_that_is_missing(self, files, column, options):
        pq.write_table(make_table(0, 16, more=column), files[0], row_group_size=8)
        loader = DataLoader(ParquetDataset(files[0], **options), places="cpu", batch_size=4, ragged=["words"])
        with pytest.raises(DataFileError, match=r"1 of .* values is null") as caught:
            list(loader)
        assert (caught.value.file, caught.value.row_group, caught.value.column) == (str(files[0]), 1, "more")

    def test_missing_text_is_none(self, files):
        pq.write_table(pa.table({"name": ["a", None]}), files[0])
        (batch,) = DataLoader(ParquetDataset(files[0]), places="cpu", batch_size=2)
        assert batch["name"] == ["a", None]

    @pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
    def test_a_damaged_row_group(self, files, workers):
        found = pq.ParquetFile(files[0])
        offset = found.metadata.row_group(3).column(0).data_page_offset
        found.close()
        body = bytearray(files[0].read_bytes())
        body[offset : offset + 40] = b"\xff" * 40
        files[0].write_bytes(body)
        loader = DataLoader(ParquetDataset(files[0], ["label"]), places="cpu", batch_size=8, **workers)
        with pytest.raises(DataFileError, match="row group 3: it is truncated or no Parquet file") as caught:
            list(loader)
        assert caught.value.file == str(files[0])

    @pytest.mark.parametrize(
        ("columns", "error"), [("label", TypeError), ([], ValueError), (["label", "label"], ValueError)]
    )
    def test_columns_that_are_none(self, files, columns, error):
        with pytest.raises(error, match="columns must be"):
            ParquetDataset(files, columns)

    def test_nothing_stays_open(self, files):
        if not os.path.isdir("/proc/self/fd"):
            pytest.skip("the system does not tell")
        before = set(os.listdir("/proc/self/fd"))
        loader = DataLoader(ParquetDataset(files, COLUMNS), places="cpu", batch_size=7)
        batches = iter(loader)
        next(batches)
        batches.close()
        list(loader)
        assert len(set(os.listdir("/proc/self/fd")) - before) == 0


def test_without_pyarrow_the_error_says_what_to_install(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackage, match=r"gpuloader\[parquet\]"):
        ParquetDataset(files)
