"""``gpuloader convert``: which sources it takes, and what it says."""

import sys

import pytest

from gpuloader import ParquetDataset, TarDataset
from gpuloader.cli import conversion
from tests.cli.running import invoke
from tests.picture_files import write_folder


def test_pictures_become_tar_shards(tmp_path):
    pytest.importorskip("PIL")
    write_folder(tmp_path / "photos")
    out = tmp_path / "out"
    shown = invoke("convert", str(tmp_path / "photos"), str(out), "--format", "tar", "--rows", "5")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == f"2 shards in {out}\n"
    assert [sample["label"] for sample in TarDataset(out, "image")] == [0] * 4 + [1] * 4


def test_pictures_without_folders_of_classes_become_shards_without_labels(tmp_path):
    pytest.importorskip("PIL")
    write_folder(tmp_path / "photos")
    folder, out = next(path for path in (tmp_path / "photos").iterdir() if path.is_dir()), tmp_path / "out"
    (folder / "notes.txt").touch()
    shown = invoke("convert", str(folder), str(out), "--format", "tar", "--workers", "1")
    assert (shown.exit_code, shown.stderr) == (0, "")
    pictures = [path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "notes.txt"]
    samples = list(TarDataset(out, "image"))
    assert [sample["image"].data for sample in samples] == pictures
    assert {*samples[0]} == {"image"}
    (tmp_path / "empty").mkdir()
    assert "no images in" in invoke("convert", str(tmp_path / "empty"), str(tmp_path / "none")).stderr


@pytest.mark.parametrize("name", ["rows.arrow", "rows.feather"])
def test_files_of_arrow_become_shards(tmp_path, name):
    pa, feather = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.feather"))
    feather.write_feather(pa.table({"x": [1, 2]}), tmp_path / name)
    shown = invoke("convert", str(tmp_path / name), str(tmp_path / "out"))
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert [row["x"] for row in ParquetDataset(tmp_path / "out")] == [1, 2]


def test_a_folder_that_hugging_face_saved_becomes_shards(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": [1, 2]})
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": data}).save_to_disk(tmp_path / "several")
    shown = invoke("convert", str(tmp_path / "one"), str(tmp_path / "out"))
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert [row["x"] for row in ParquetDataset(tmp_path / "out")] == [1, 2]
    told = invoke("convert", str(tmp_path / "several"), str(tmp_path / "none")).stderr
    assert "expected one dataset, got a DatasetDict of ['train']; pass one of them" in told


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "x,t\n1,a\n2,b\n"),
        *((name, '{"x": 1, "t": "a"}\n{"x": 2, "t": "b"}') for name in ("a.jsonl", "a.ndjson")),
    ],
)
def test_tables_become_parquet_shards(tmp_path, name, content):
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(content)
    for _ in range(2):  # the second time, all is there
        shown = invoke("convert", str(tmp_path / name), str(tmp_path / "out"), "--workers", "1")
        assert (shown.exit_code, shown.stderr) == (0, "")
    again = invoke("convert", str(tmp_path / "out" / "shard-000000.parquet"), str(tmp_path / "again"))
    assert again.exit_code == 0
    assert list(ParquetDataset(tmp_path / "again")) == [{"x": 1, "t": "a"}, {"x": 2, "t": "b"}]


def test_a_terminal_shows_how_far_it_is(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    shown = []
    monkeypatch.setattr(conversion, "show_status", shown.append)
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 100)
    invoke("convert", str(tmp_path / "a.csv"), str(tmp_path / "out"))
    assert shown == ["64 samples written", "100 samples written", ""]
    shown.clear()
    invoke("convert", str(tmp_path / "out" / "shard-000000.parquet"), str(tmp_path / "again"))
    assert shown == ["64 of 100 samples written", "100 of 100 samples written", ""]


def test_mistakes_are_one_line(tmp_path):
    problems = {"a.doc": "expected a folder of images", "missing.csv": "cannot open the file"}
    for source, problem in problems.items():
        shown = invoke("convert", str(tmp_path / source), str(tmp_path / "out"))
        assert shown.exit_code == 2
        assert problem in shown.stderr
        assert shown.stderr.count("\n") == 1
    shown = invoke("convert", str(tmp_path), str(tmp_path / "out"), "--workers", "-1")
    assert (shown.exit_code, shown.stderr) == (2, "argument --workers: must be 0 or more, got '-1'\n")
    assert not (tmp_path / "out").exists()
    shown = invoke("convert", "hf:digits", "s3://bucket/x")  # before a dataset is downloaded
    told = "s3://bucket/x: is not a local folder; write into one, then upload its files\n"
    assert (shown.exit_code, shown.stderr) == (2, told)


def test_a_missing_package_is_named_with_what_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    shown = invoke("convert", "hf:digits:test", str(tmp_path / "out"))
    told = "reading hf:digits:test needs datasets, which is not installed: pip install datasets\n"
    assert (shown.exit_code, shown.stderr) == (2, told)
    assert not (tmp_path / "out").exists()
