"""Parquet files through the loader: which values arrive, in which form, and what is read for them."""

import itertools
import sys
import threading
import time

import numpy as np
import pytest

from gpuloader import DataLoader, ParquetDataset, SourceError
from gpuloader.errors import MissingPackage
from gpuloader.sources.files import parquet
from tests.fakes import wait_until
from tests.fetch.faulty import run_program
from tests.loading import resume
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, name_workers
from tests.sources.files.parquet_files import BOTH_ORDERS, COLUMNS, SHUFFLED, pa, pq
from tests.sources.files.serving import serve


def load(urls, *arguments, batch_size=7, workers=INLINE, **options):
    dataset = ParquetDataset(urls, *arguments, **options)
    return DataLoader(dataset, places="cpu", batch_size=batch_size, **workers)


def check(batch):
    labels = batch["label"]
    assert labels.dtype == np.int64
    assert batch["image"].dtype == np.float32
    assert batch["image"].shape == (len(labels), 2, 3)
    assert (batch["image"] == labels[:, None, None]).all()
    assert (batch["even"] == (labels % 2 == 0)).all()
    assert batch["name"] == [f"sample {label}" for label in labels]
    return labels.tolist()


@BOTH_ORDERS
def test_row_groups_may_come_in_pieces(files, options, monkeypatch):
    loader = load(files, COLUMNS, **options)
    assert (loader.dataset.rows, loader.dataset.shards) == (100, 14)
    whole = [check(batch) for batch in loader]
    monkeypatch.setattr(parquet, "PIECE_NBYTES", 150)
    monkeypatch.setattr(parquet, "REMOTE_PIECE_NBYTES", 150)
    assert [check(batch) for batch in load(files, COLUMNS, **options)] == whole
    for received in (1, 4, 9):
        _, again = resume(lambda: load(files, COLUMNS, **options), received)
        assert [check(batch) for batch in again] == whole[received:]


def test_columns_that_are_not_selected_are_not_read(tmp_path, remote):
    noise = np.random.default_rng(0).random(200_000)
    pq.write_table(pa.table({"noise": noise, "label": np.arange(200_000)}), tmp_path / "a.parquet")
    with serve(tmp_path) as served:
        dataset = ParquetDataset(f"{served.url}/a.parquet", ["label"])
        before = sum(size for _, size in served.ranges)
        (batch,) = DataLoader(dataset, places="cpu", batch_size=200_000)
        assert batch["label"].tolist() == list(range(200_000))
        read = sum(size for _, size in served.ranges) - before
    assert (tmp_path / "a.parquet").stat().st_size > 1_600_000 + read / 2


FORKED = {"num_workers": 2, "start_method": "fork"}  # which have read the footer with the program


@pytest.mark.parametrize(
    ("rows", "options"), [(100, {}), (2_000, {"shard": (0, 2)}), (2_000, FORKED), (14_000, {})], ids=str
)
def test_a_remote_file_is_read_once_in_few_requests(tmp_path, remote, rows, options):
    generator = np.random.default_rng(0)
    columns = {f"x{number}": generator.random(rows) for number in range(20)}
    pq.write_table(pa.table({"id": np.arange(rows), **columns}), tmp_path / "a.parquet", row_group_size=100)
    with serve(tmp_path) as served:
        loader = load(f"{served.url}/a.parquet", batch_size=64, workers={"uneven": "drop", **options})
        found = [one for batch in loader for one in batch["id"].tolist()]
        assert sorted(found) == list(range(0, rows, 2 if "shard" in options else 1))
    size = (tmp_path / "a.parquet").stat().st_size
    assert sum(count for _, count in served.ranges) <= 1.1 * size
    if not options.get("num_workers"):  # of which each reads every second row group
        assert served.heads + served.requests <= 2 * size / 2**20 + 4


@pytest.mark.parametrize(
    ("workers", "options"),
    [(INLINE, {}), (THREADS, {"shuffle": True}), (PROCESSES, {"shuffle": True})],
    ids=str,
)
def test_remote_files_are_read_ahead(files, tmp_path, remote, monkeypatch, options, workers):
    monkeypatch.setattr(parquet, "TOGETHER_NBYTES", 600)  # fewer than two row groups
    monkeypatch.setattr(parquet, "_SMALL", 0)  # request row groups, although the end of the file holds some
    with serve(tmp_path) as served:
        urls = [f"{served.url}/{file.name}" for file in files]
        whole = [check(batch) for batch in load(files, COLUMNS, workers=workers, **options)]
        assert [check(batch) for batch in load(urls, COLUMNS, workers=workers, **options)] == whole
        _, again = resume(lambda: load(urls, COLUMNS, workers=workers, **options), 5)
        assert [check(batch) for batch in again] == whole[5:]
        dataset = ParquetDataset(urls, COLUMNS, **options)
        asked = served.requests
        rows = iter(dataset)
        next(rows)
        wait_until(lambda: served.requests - asked >= 5)
        rows.close()
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "gpuloader-buffered"])


def test_footers_beyond_the_bound_are_read_again(files, monkeypatch):
    monkeypatch.setattr(parquet, "FOOTERS_NBYTES", 1)
    dataset = ParquetDataset(files, COLUMNS, **SHUFFLED)
    assert sorted(one for batch in DataLoader(dataset, places="cpu") for one in check(batch)) == [*range(100)]
    assert len(dataset._footers) == 1


@BOTH_ORDERS
@pytest.mark.parametrize("longest", [3, 2_000])
def test_lists_are_padded_and_joined_as_a_loop_would(tmp_path, longest, options):
    lengths = np.random.default_rng(0).integers(0, longest + 1, 50)
    rows = [[row * 10_000 + position for position in range(length)] for row, length in enumerate(lengths)]
    pq.write_table(pa.table({"row": np.arange(50), "x": rows}), tmp_path / "a.parquet", row_group_size=20)
    dataset = ParquetDataset(tmp_path / "a.parquet", **options)
    padded = DataLoader(dataset, places="cpu", batch_size=8, pad={"x": -1})
    ragged = DataLoader(dataset, places="cpu", batch_size=8, ragged=["x"])
    for one, other in zip(padded, ragged, strict=True):
        own = [rows[row] for row in one["row"]]
        width = max(map(len, own))
        assert one["x"].tolist() == [row + [-1] * (width - len(row)) for row in own]
        assert other["x"].recursive_sequence_lengths() == [[len(row) for row in own]]
        assert other["x"].values.tolist() == list(itertools.chain(*own))


def test_other_arrow_types(tmp_path):
    numbers, kinds = np.arange(6, dtype=np.uint8), ["a", "b", None] * 2
    table = pa.table(
        {
            "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24.0).reshape(6, 2, 2)),
            "class": pa.array([0, 1, 0, 1, 0, 1], pa.int8()).dictionary_encode(),
            "kind": pa.array(kinds).dictionary_encode(),
            "box": [{"x": number, "tag": str(number)} for number in numbers.tolist()],
            "raw": [bytes([number]) for number in numbers],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (batch,) = load(tmp_path / "a.parquet")
    assert batch["tensor"].tolist() == np.arange(24.0).reshape(6, 2, 2).tolist()
    assert (batch["class"].tolist(), batch["kind"]) == ([0, 1] * 3, kinds)
    assert (batch["box"]["x"].tolist(), batch["box"]["tag"]) == (numbers.tolist(), list("012345"))
    assert batch["raw"] == [bytes([number]) for number in numbers]


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
def test_lists_of_non_numbers_stay_whole_also_in_a_struct(tmp_path, kind, rows):
    inside = pa.StructArray.from_arrays([pa.array(rows, kind), pa.array(range(len(rows)))], ["x", "n"])
    pq.write_table(pa.table({"x": pa.array(rows, kind), "box": inside}), tmp_path / "a.parquet")
    for workers in (INLINE, PROCESSES):
        (batch,) = load(tmp_path / "a.parquet", workers=workers)
        assert batch["x"] == batch["box"]["x"] == rows
        assert batch["box"]["n"].tolist() == list(range(len(rows)))


@BOTH_ORDERS
def test_files_may_disagree_on_whether_a_column_is_nullable(tmp_path, options):
    for number, nullable in enumerate((False, True)):
        schema = pa.schema([pa.field("label", pa.int64(), nullable)])
        table = pa.table({"label": [2 * number, 2 * number + 1]}, schema=schema)
        pq.write_table(table, tmp_path / f"{number}.parquet")
    (batch,) = load(tmp_path, **options)
    assert sorted(batch["label"].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, PROCESSES], ids=name_workers)
def test_a_server_that_never_recovers(files, remote, workers, monkeypatch):
    monkeypatch.setattr(parquet, "_SMALL", 0)  # keep nothing but the footer
    broken = []
    with serve(files[0].parent, drops=lambda tries: bool(broken)) as served:
        url = f"{served.url}/{files[0].name}"
        loader = load(url, ["label"], attempts=2, workers=workers)
        broken.append(True)
        with pytest.raises(SourceError) as caught:
            list(loader)
    assert (caught.value.url, caught.value.attempts) == (url, 2)


def test_without_pyarrow_the_error_says_what_to_install(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackage, match=r"pip install '.*\[parquet\]"):
        ParquetDataset(files)


def test_a_program_ends_while_remote_files_are_read_ahead(tmp_path):
    table = pa.table({"x": np.arange(4096.0)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=64)
    program = """
        import sys, time
        from gpuloader import DataLoader, ParquetDataset
        from gpuloader.sources.files import parquet

        class Late:
            def __del__(self):
                time.sleep(1)  # while the interpreter goes, answers come to the threads that read

        late = Late()
        parquet.TOGETHER_NBYTES = 1
        next(iter(DataLoader(ParquetDataset(sys.argv[1]), places="cpu", batch_size=64)))
        sys.exit(7)
    """
    requests = itertools.count()
    with serve(tmp_path, drops=lambda tries: bool(time.sleep(next(requests) / 20))) as served:
        ended = run_program(program, f"{served.url}/a.parquet")
    assert (ended.returncode, ended.stderr) == (7, "")
