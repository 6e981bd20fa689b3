"""Parquet files through the loader: which values arrive, in which form, and what is read for them."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from gpuloader import DataLoader, ParquetDataset, SourceError
from gpuloader.errors import MissingPackage
from gpuloader.sources.block import Block
from gpuloader.sources.files import parquet
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, name_workers
from tests.sources.files.parquet_files import COLUMNS, SHUFFLED, pa, pq
from tests.sources.files.serving import serve


def check(batch):
    labels = batch["label"]
    assert labels.dtype == np.int64
    assert batch["image"].dtype == np.float32
    assert batch["image"].shape == (len(labels), 2, 3)
    assert (batch["image"] == labels[:, None, None]).all()
    assert (batch["even"] == (labels % 2 == 0)).all()
    assert batch["name"] == [f"sample {label}" for label in labels]
    return labels.tolist()


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
def test_a_loader_resumes_where_another_was(files, workers):
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
    assert len(made) == 1  # the first one, which determines the form of all


def test_columns_that_are_not_selected_are_not_read(tmp_path):
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


def test_other_arrow_types(tmp_path):
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


@pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)
@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (pa.list_(pa.string()), [["a"], [], ["b", "c"], None]),
        (pa.list_(pa.string()), [[], ["a"], ["b", "c"]]),
        (pa.list_(pa.list_(pa.int64())), [[[1], [2, 3]], [], [[4]]]),
        (pa.list_(pa.string(), 2), [["a", "b"], ["c", "d"], ["e", "f"]]),
        (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("b", 2), ("c", 3)], []]),
        (pa.list_(pa.struct({"tag": pa.string()})), [[{"tag": "a"}], [], [{"tag": "b"}, {"tag": "c"}]]),
    ],
    ids=lambda one: str(one) if isinstance(one, pa.DataType) else "",
)
def test_lists_of_non_numbers_stay_whole(tmp_path, kind, rows, workers):
    pq.write_table(pa.table({"x": pa.array(rows, kind)}), tmp_path / "a.parquet")
    (batch,) = DataLoader(ParquetDataset(tmp_path / "a.parquet"), places="cpu", batch_size=9, **workers)
    assert batch["x"] == rows


def test_lists_in_a_struct_stay_whole_as_well(tmp_path):
    rows = [{"tags": ["a"], "x": 1}, {"tags": [], "x": 2}]
    pq.write_table(pa.table({"box": rows}), tmp_path / "a.parquet")
    (batch,) = DataLoader(ParquetDataset(tmp_path / "a.parquet"), places="cpu", batch_size=2)
    assert batch["box"]["tags"] == [["a"], []]
    assert batch["box"]["x"].tolist() == [1, 2]


@pytest.mark.parametrize("options", [{}, SHUFFLED], ids=["in order", "shuffled"])
def test_files_may_disagree_on_whether_a_column_is_nullable(tmp_path, options):
    for number, nullable in enumerate((False, True)):
        schema = pa.schema([pa.field("label", pa.int64(), nullable)])
        table = pa.table({"label": [2 * number, 2 * number + 1]}, schema=schema)
        pq.write_table(table, tmp_path / f"{number}.parquet")
    dataset = ParquetDataset([tmp_path / "0.parquet", tmp_path / "1.parquet"], **options)
    (batch,) = DataLoader(dataset, places="cpu", batch_size=4)
    assert sorted(batch["label"].tolist()) == [0, 1, 2, 3]


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
        outputs = [process.communicate(timeout=60) for process in started]
        assert [error.decode() for _, error in outputs] == ["", ""]
        assert served.dropped > 4
    halves = [json.loads(output) for output, _ in outputs]
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


def test_without_pyarrow_the_error_says_what_to_install(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackage, match=r"pip install '.*\[parquet\]"):
        ParquetDataset(files)
