"""Encoded images in tar shards, Parquet columns and datasets of Hugging Face."""

import numpy as np
import pytest

from gpuloader import DataLoader, Image, ParquetDataset, SampleError, TarDataset
from gpuloader.transforms import RandomResizedCrop, Resize
from tests.loading import resume
from tests.picture_files import decoded_by_pillow, encode, make_pixels
from tests.sources.files.tar_files import write_tar

COUNT = 6
DATA = [encode(make_pixels(20 + number, 30, seed=number)) for number in range(COUNT)]
PIXELS = [decoded_by_pillow(data) for data in DATA]
WORKERS = pytest.mark.parametrize("workers", [{}, {"num_workers": 2}], ids=str)


def check(batches):
    """Check that every image comes once, resized to 8 x 9, with its label."""
    expected = list(DataLoader(PIXELS, places="cpu", transforms=[Resize(None, (8, 9))]))
    seen = []
    for batch in batches:
        for image, label in zip(batch["image"], batch["label"].tolist(), strict=True):
            np.testing.assert_array_equal(image, expected[label][0])
            seen.append(label)
    assert sorted(seen) == list(range(COUNT))


def write_shards(folder, members):
    """Write two tar files of three samples each, whose members a function makes of their numbers."""
    paths = [folder / "0.tar", folder / "1.tar"]
    for path, numbers in zip(paths, (range(3), range(3, 6)), strict=True):
        write_tar(path, [(f"{at:03d}.{end}", data) for at in numbers for end, data in members(at).items()])
    return paths


@WORKERS
def test_tar_shards(tmp_path, workers):
    urls = write_shards(tmp_path, lambda number: {"jpg": DATA[number], "cls": str(number).encode()})
    dataset = TarDataset(urls, decode="image")
    sample = next(iter(dataset))
    assert list(sample) == ["image", "label"]
    assert isinstance(sample["image"], Image)
    assert sample["image"].file == f"{urls[0]}/000.jpg"
    loader = DataLoader(dataset, places="cpu", batch_size=3, transforms=[Resize("image", (8, 9))], **workers)
    check(loader)
    if workers:
        assert loader._epochs.workers.kind == "thread"


def test_several_images_of_a_sample(tmp_path):
    mask = encode(make_pixels(20, 30, 1)[..., 0], "PNG")
    urls = write_shards(tmp_path, lambda number: {"left.jpg": DATA[0], "seg.png": mask, "json": b"{}"})
    sample = next(iter(TarDataset(urls, decode="image")))
    assert list(sample) == ["left", "seg", "json"]
    assert sample["json"] == b"{}"
    with pytest.raises(TypeError, match="decode must be callable or 'image', got 'jpg'"):
        TarDataset(urls, decode="jpg")


def test_a_damaged_image_of_a_shard_is_named(tmp_path):
    urls = write_shards(tmp_path, lambda number: {"jpg": DATA[number][: 300 if number == 1 else None]})
    loader = DataLoader(TarDataset(urls, decode="image"), places="cpu", transforms=[Resize("image", (8, 9))])
    with pytest.raises(
        SampleError, match=r"batch 1, sample 0, field 'image': .*0\.tar/001\.jpg: cannot decode"
    ):
        list(loader)


@WORKERS
@pytest.mark.parametrize("stored", ["bytes", "struct"])
def test_parquet_columns(tmp_path, stored, workers):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = DATA if stored == "bytes" else [{"bytes": data, "path": "x"} for data in DATA]
    table = pa.table({"image": values, "label": np.arange(COUNT)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    dataset = ParquetDataset(tmp_path / "a.parquet")
    steps = [Resize("image", (8, 9))]
    check(DataLoader(dataset, places="cpu", batch_size=2, transforms=steps, **workers))
    [batch, *_] = DataLoader(dataset, places="cpu", batch_size=1, decode="image")
    np.testing.assert_array_equal(batch["image"][0], PIXELS[0])


@WORKERS
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("options", [{"decode": "image"}, {}], ids=["ours", "theirs"])
def test_hugging_face_columns(streamed, options, workers):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": [{"bytes": data, "path": None} for data in DATA], "label": list(range(COUNT))}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    if streamed:
        dataset = dataset.to_iterable_dataset(num_shards=2)
    steps = [Resize("image", (8, 9))]
    check(DataLoader(dataset, places="cpu", batch_size=2, transforms=steps, **options, **workers))
    if not streamed and options:
        part = dataset.select([4, 1])
        [batch] = DataLoader(part, places="cpu", batch_size=2, transforms=steps, **options)
        assert batch["label"].tolist() == [4, 1]


def test_windows_of_streams_resume(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"image": DATA, "label": np.arange(COUNT)}), tmp_path / "a.parquet")
    options = {"places": "cpu", "batch_size": 2, "seed": 4, "transforms": [RandomResizedCrop("image", 8)]}

    def make():
        return DataLoader(ParquetDataset(tmp_path / "a.parquet"), **options)

    _, again = resume(make, 1)
    rest, wanted = list(again), list(make())[1:]
    assert len(rest) == 2
    for batch, other in zip(rest, wanted, strict=True):
        np.testing.assert_array_equal(batch["image"], other["image"])
