"""Writing shards: what is read back, that files are whole, and how an interrupted call goes on."""

import errno
import io
import json
import os
import signal
import tarfile
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gpuloader
from gpuloader import ImageFolder, IterableDataset, ParquetDataset, TarDataset, write_shards
from gpuloader.errors import SampleError, SourceError
from gpuloader.system.platforms import locked
from tests.picture_files import write_folder
from tests.processes import run_in_fork
from tests.sample_sets import Made, name_workers
from tests.sources.files.parquet_files import pa, pq

INLINE = {"num_workers": 0}
PROCESSES = {"num_workers": 2, "worker_type": "process"}
WORKERS = pytest.mark.parametrize("workers", [INLINE, PROCESSES], ids=name_workers)


def make_sample(number):
    return {
        "number": number,
        "half": np.float32(number / 2),
        "matrix": np.full((2, 3), number, np.int16),
        "ids": np.arange(number % 4),
        "text": f"sample {number}",
        "data": bytes([number % 256]),
    }


class Samples:
    """Map-style samples that count how often they are read, and may raise at one of them."""

    def __init__(self, count=200, fails=None):
        self.count, self.fails = count, fails
        self.read = []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read.append(index)
        if index == self.fails:
            raise RuntimeError("broken")
        return make_sample(index)


class Stream(IterableDataset):
    def __init__(self, fails=None):
        self.samples = Samples(fails=fails)

    def __iter__(self):
        return map(self.samples.__getitem__, range(200))


class WithOwnState(Stream):
    """A stream whose state is not plain data."""

    at = 0

    def __iter__(self):
        while self.at < 200:
            self.at += 1
            yield self.samples[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": np.int64(self.at)}

    def load_state_dict(self, state):
        self.at = int(state["at"])


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != ".lock"}


@WORKERS
def test_parquet_holds_the_samples(tmp_path, workers):
    counts = []
    paths = write_shards(Samples(), tmp_path, rows=70, progress=counts.append, **workers)
    assert [pq.read_metadata(path).num_rows for path in paths] == [70, 70, 60]
    assert counts == [64, 128, 192, 200]
    assert sorted(tmp_path.glob("*.parquet")) == sorted(map(Path, paths))
    rows = list(ParquetDataset(tmp_path))
    for number, row in enumerate(rows):
        expected = make_sample(number)
        assert row.keys() == expected.keys()
        for name, value in expected.items():
            assert np.array_equal(row[name], value)
            assert getattr(row[name], "dtype", None) == getattr(np.asarray(value), "dtype", None) or name in (
                "text",
                "data",
            )
    assert len(rows) == 200


@WORKERS
def test_tar_holds_the_samples(tmp_path, workers):
    paths = write_shards(Samples(), tmp_path, rows=70, format="tar", **workers)
    assert len(paths) == 3
    rows = list(TarDataset(tmp_path))
    assert [json.loads(row["number.json"]) for row in rows] == list(range(200))
    row = rows[150]
    assert (row["__key__"], row["text.txt"], row["data"]) == ("000000150", b"sample 150", bytes([150]))
    assert json.loads(row["half.json"]) == 75


@WORKERS
def test_images_stay_encoded(tmp_path, workers):
    pytest.importorskip("PIL")
    source = tmp_path / "source"
    write_folder(source)
    images = ImageFolder(source)
    write_shards(images, tmp_path / "tar", format="tar", **workers)
    for (image, label), found in zip(images, TarDataset(tmp_path / "tar", "image"), strict=True):
        assert (found["image"].data, found["label"]) == (image.data, label)
    write_shards(images, tmp_path / "parquet", **workers)
    for (image, label), found in zip(images, ParquetDataset(tmp_path / "parquet"), strict=True):
        assert (found["image"], found["label"]) == (image.data, label)


def test_a_shard_ends_at_its_size(tmp_path):
    sizes = [len(data) for data in contents_of(write_shards(Samples(), tmp_path, size=50_000, format="tar"))]
    assert len(sizes) > 3
    assert all(50_000 <= size < 50_000 + 8_000 + tarfile.RECORDSIZE for size in sizes[:-1])


LARGE = [{"x": np.full(200_000, number, np.uint8)} for number in range(70)]


@WORKERS
@pytest.mark.parametrize("form", ["parquet", "tar"])
def test_a_file_of_large_samples_ends_with_the_sample_that_fills_it(tmp_path, form, workers):
    paths = write_shards(LARGE, tmp_path / "out", size=1 << 20, format=form, **workers)
    index = json.loads((tmp_path / "out" / "index.json").read_bytes())
    assert [shard["samples"] for shard in index["shards"]] == [6] * 11 + [4]
    assert contents_of(paths) == contents_of(write_shards(LARGE, tmp_path / "b", size=1 << 20, format=form))
    assert read_numbers(tmp_path / "out", form) == list(range(70))


def read_numbers(folder, form):
    rows = ParquetDataset(folder) if form == "parquet" else TarDataset(folder)
    arrays = (row["x"] if form == "parquet" else np.load(io.BytesIO(row["x.npy"])) for row in rows)
    return [int(array[0]) for array in arrays]


@pytest.mark.parametrize("form", ["parquet", "tar"])
def test_files_that_are_larger_than_size_are_continued(tmp_path, form):
    samples = Failing(70, fails=65)
    with pytest.raises(SampleError, match="broken"):  # within the second file of 30 samples
        write_shards(samples, tmp_path, rows=30, size=1 << 30, format=form)
    index = json.loads((tmp_path / "index.json").read_bytes())
    index["size"] = 1 << 20  # releases that write 64 samples at a time leave such files
    (tmp_path / "index.json").write_text(json.dumps(index))
    samples.fails = None
    write_shards(samples, tmp_path, rows=30, size=1 << 20, format=form)
    index = json.loads((tmp_path / "index.json").read_bytes())
    assert [shard["samples"] for shard in index["shards"]] == [30, 30, 6, 4]
    assert read_numbers(tmp_path, form) == list(range(70))


class Failing(Samples):
    def __getitem__(self, index):
        return super().__getitem__(index) and LARGE[index]


@pytest.mark.parametrize("form", ["parquet", "tar"])
def test_a_url_is_refused_before_anything_is_written(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    for url in ("s3://bucket/x", "memory://x"):
        with pytest.raises(SourceError, match=f"{url}: is not a local folder; write into one, then upload"):
            write_shards([1], url, format=form)
    assert list(tmp_path.iterdir()) == []
    [path] = write_shards([1], f"file://{tmp_path}/out", format=form)
    assert Path(path).parent == tmp_path / "out"


def contents_of(paths):
    return [Path(path).read_bytes() for path in paths]


@pytest.mark.parametrize(
    ("kind", "form", "workers"),
    [
        (Samples, "parquet", INLINE),
        (Samples, "tar", PROCESSES),
        (Stream, "parquet", PROCESSES),
        (Stream, "tar", INLINE),
        (WithOwnState, "parquet", INLINE),
        (WithOwnState, "tar", PROCESSES),
    ],
    ids=lambda one: name_workers(one) if isinstance(one, dict) else getattr(one, "__name__", one),
)
def test_a_call_after_an_error_writes_what_is_missing(tmp_path, form, workers, kind):
    if workers is PROCESSES and kind is not Samples:
        workers = {"num_workers": 1, "worker_type": "process"}  # each would yield all
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    write_shards(kind(), whole, rows=30, format=form, **workers)
    with pytest.raises(SampleError, match="broken"):
        write_shards(kind(fails=150), resumed, rows=30, format=form, **workers)
    assert [path.name for path in sorted(resumed.iterdir()) if path.suffix == ".part"] == []
    assert len(contents(resumed)) == 5  # four whole shards, and the index
    dataset = kind()
    paths = write_shards(dataset, resumed, rows=30, format=form, **workers)
    assert contents(resumed) == contents(whole) or kind is not Samples
    assert contents_of(paths) == [data for name, data in sorted(contents(whole).items()) if "shard" in name]
    if kind is Samples and workers is INLINE:
        assert min(dataset.read) == 64  # of the batch in which the fourth shard ended
    assert write_shards(dataset, resumed, rows=30, format=form) == paths
    with pytest.raises(ValueError, match="has shards with rows=30, but 31 was asked for"):
        write_shards(dataset, resumed, rows=31, format=form)


def test_a_killed_program_leaves_whole_files(tmp_path):
    killed = tmp_path / "killed"

    def read(index):
        if index == 2900 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": index}

    write = partial(write_shards, Made(read, 3000), tmp_path / "out", rows=100)
    with pytest.raises(AssertionError, match="the child exited with code -9"):
        run_in_fork(write)
    counts = [pq.read_metadata(path).num_rows for path in (tmp_path / "out").glob("*.parquet")]
    assert counts == [100] * len(counts)
    assert 0 < len(counts) <= 29
    write()
    assert [row["x"] for row in ParquetDataset(tmp_path / "out")] == list(range(3000))
    assert not list((tmp_path / "out").glob(".*.part"))


class Growing(Samples):
    """Samples that are small at first."""

    def __getitem__(self, index):
        return {"data": np.random.default_rng(index).bytes(10 if index < 64 else 100_000)}


@pytest.mark.parametrize("form", ["parquet", "tar"])
def test_a_disk_that_is_full_names_the_file_and_the_same_call_goes_on(tmp_path, form):
    resource = pytest.importorskip("resource")
    write = partial(write_shards, Growing(128), rows=64, format=form)
    whole = contents_of(write(tmp_path / "whole"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))  # the system refuses to write more
    try:
        with pytest.raises(SourceError, match=rf"shard-000001\.{form}: cannot be written \(comp") as caught:
            write(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert sorted(contents(tmp_path / "out")) == ["index.json", f"shard-000000.{form}"]
    assert contents_of(write(tmp_path / "out")) == whole


def test_one_process_writes_at_a_time(tmp_path):
    with locked(tmp_path / ".lock"), pytest.raises(ValueError, match="another process writes shards"):
        write_shards(Samples(), tmp_path)
    write_shards(Samples(), tmp_path)


@pytest.mark.parametrize(
    ("samples", "form", "error", "problem"),
    [
        ([{"x": 1}] * 64 + [{"y": 1}], "parquet", ValueError, "64 to 64 differ .*Column x does not"),
        ([{"x": 1}, {"y": 1}], "parquet", SampleError, "the same fields"),
        (
            [{"x": date(2020, 1, 1)}, {"x": datetime(2020, 1, 1, 5)}],
            "parquet",
            SampleError,
            "dates and datetimes",
        ),
        (
            [{"x": [[date(2020, 1, 1)], [datetime(2020, 1, 1, 5)]]}],
            "parquet",
            SampleError,
            "dates and datetimes",
        ),
        ([{"x": "a"}, {"x": None}, {"x": b"b"}], "parquet", SampleError, "bytes and text need columns"),
        (
            [{"x": np.str_("a")}, {"x": bytearray(b"b")}],
            "parquet",
            SampleError,
            "bytes and text need columns",
        ),
        ([{"x": {"y": ["a", b"b"]}}], "parquet", SampleError, "bytes and text need columns"),
        (
            [{"x": {"a": 1}}, {"x": {"a": 1, "b": 2}}],
            "parquet",
            SampleError,
            r"\['a', 'b'\] and dicts of \['a'\]",
        ),
        ([{"x": [{"a": {"b": 1}}, {"a": {}}]}], "parquet", SampleError, r"dicts of \['b'\] and dicts of \["),
        ([{"x": {"a": {}}}], "parquet", SampleError, "field 'x': .* a dict without keys has no columns"),
        ([{"x": {"a": 1}}, {"x": 3}], "parquet", SampleError, "field 'x': Parquet cannot hold these dict"),
        (
            [{"x": datetime(2020, 1, 1)}, {"x": datetime(2020, 1, 1, tzinfo=UTC)}],
            "parquet",
            SampleError,
            "with a time zone need columns of their own",
        ),
        ([{"x": 2**63}], "parquet", SampleError, "field 'x': Parquet cannot hold these int"),
        ([{"a\0b": 1}], "tar", SampleError, "cannot be a member"),
        ([{"x": np.array([2**62 + 1])}, {"x": np.array([1], "u8")}], "parquet", SampleError, "'uint64'"),
        ([{"x": object()}], "parquet", SampleError, "field 'x': Parquet cannot hold these object"),
        ([{"x": object()}], "tar", SampleError, "not JSON serializable"),
        ([{"a/b": 1}], "tar", SampleError, "field 'a/b' cannot be a member"),
        ([{"a": 1, "A": 2}], "tar", SampleError, "field 'A' cannot be a member 'A.json'"),
        ([{"Name": "q"}], "tar", SampleError, "field 'Name' cannot be a member"),
        ([{"x": 1}, {}], "tar", SampleError, "a sample without fields"),
        ([{"__key__": "1"}], "tar", SampleError, "a sample without fields"),
        ([{}], "parquet", SampleError, "a sample without fields"),
        ([{1: 1, "1": 2}], "parquet", SampleError, "have the same name in a file"),
    ],
)
def test_samples_that_do_not_fit_are_errors(tmp_path, samples, form, error, problem):
    with pytest.raises(error, match=problem):
        write_shards(samples, tmp_path, format=form)


def test_tar_keeps_fields_whose_names_begin_with_underscores(tmp_path):
    write_shards([{"__key__": "left out", "__index_level_0__": "a"}], tmp_path, format="tar")
    (row,) = TarDataset(tmp_path)
    assert (row["__key__"], row["__index_level_0__.txt"]) == ("000000000", b"a")


@pytest.mark.parametrize(
    ("first", "later", "types"),
    [
        (np.float32(0.5), 0.1, "double, not float"),
        (np.zeros(2, "f4"), np.zeros(2), r"<item: double>\[2\], not fixed_size_list<item: float>"),
        (np.zeros(2), np.zeros(3), r"<item: double>\[3\], not fixed_size_list<item: double>\[2\]"),
        (True, 7, "bool vs int64"),
        (1, 1.0, "double, not int64"),
        (np.int8(1), 300, "int64, not int8"),
        (date(2020, 1, 1), datetime(2020, 1, 1, 5), r"date32\[day\] vs timestamp\[us\]"),
        (datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC), r"\[us\] vs timestamp\[us, tz=UTC\]"),
        ("a", 7, "string vs int64"),
        (7, "8", "int64 vs string"),
        ({"a": 1}, {"a": 1, "b": 2}, "struct<a: int64, b: int64>, not struct<a: int64>"),
        ({"a": 1, "b": 2}, {"a": 1}, "struct<a: int64>, not struct<a: int64, b: int64>"),
        ([{"a": 1, "b": 2}], [{"b": 1}], "list<item: struct<b: int64>>, not list<item: struct<a: int64, b"),
        (b"a", "b", "string, not binary"),
        ([b"a"], ["b"], "string>, not list<item: binary>"),
    ],
)
def test_a_later_value_of_another_type_is_an_error_that_names_both(tmp_path, first, later, types):
    with pytest.raises(ValueError, match=rf"samples 64 to 64 differ from .*[Ff]ield '?x\b.*{types}"):
        write_shards([{"x": first}] * 64 + [{"x": later}], tmp_path)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (None, "text"),
        (None, 1.5),
        ("text", None),
        (0.5, 1),
        (0.1, np.float32(0.5)),
        ({"a": 1, "b": "c"}, {"b": None, "a": 2}),
        ({"a": [{"b": 1.5}]}, {"a": []}),
        ([1.5], [2]),
        ([b"a"], []),
    ],
)
def test_later_values_may_be_none_or_narrower(tmp_path, first, later):
    write_shards([{"x": first, "y": 1}] * 100 + [{"y": 1, "x": later}] * 100, tmp_path, rows=150)
    tables = (pq.read_table(tmp_path / f"shard-00000{number}.parquet") for number in (0, 1))
    rows = [row for table in tables for row in table.to_pylist()]
    assert [row["x"] for row in rows] == [first] * 100 + [later] * 100


def test_bad_arguments(tmp_path):
    for options in ({"format": "zip"}, {"size": 0}, {"rows": -1}, {"rows": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            write_shards([1], tmp_path, **options)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(ValueError, match=r"index\.json is damaged"):
        write_shards([1], tmp_path)
    assert gpuloader.write_shards is write_shards


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(
            SourceError, match="no files can be written into this folder; pass another"
        ) as told:
            write_shards([1], folder)
        assert told.value.url == str(folder)


def test_a_wrong_option_leaves_no_folder_behind(tmp_path):
    with pytest.raises(ValueError, match="num_workers"):
        write_shards([1], tmp_path / "new", num_workers=-1)
    assert not (tmp_path / "new").exists()


def test_what_another_dataset_has_written_is_not_returned(tmp_path):
    write_shards([1, 2], tmp_path / "list")
    with pytest.raises(ValueError, match="has shards with samples=2, but 3 was asked for"):
        write_shards([1, 2, 3], tmp_path / "list")
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("x\n1\n")
    write_shards(gpuloader.CSVDataset(tmp_path / "a.csv"), tmp_path / "csv")
    with pytest.raises(ValueError, match=r"shards with files=\['a\.csv'\], but \['b\.csv'\] was asked"):
        write_shards(gpuloader.CSVDataset(tmp_path / "b.csv"), tmp_path / "csv")


def test_workers_do_not_write_an_iterable_again_each(tmp_path):
    class Numbers:
        def __iter__(self):
            return iter(range(5))

    with pytest.raises(ValueError, match="each worker would read all of the iterable, and write it again"):
        write_shards(Numbers(), tmp_path, num_workers=2)
    assert len(ParquetDataset(write_shards(Numbers(), tmp_path))) == 5


def test_tuples_and_values_have_names(tmp_path):
    write_shards([(1, "a"), (2, "b")], tmp_path / "tuples")
    assert [row["1"] for row in ParquetDataset(tmp_path / "tuples")] == ["a", "b"]
    write_shards(pa.table({"n": [1, 2]}), tmp_path / "table")
    assert ParquetDataset(tmp_path / "table").schema.names == ["n"]
    write_shards([1.5], tmp_path / "values")
    assert [row["value"] for row in ParquetDataset(tmp_path / "values")] == [1.5]
