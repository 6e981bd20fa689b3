"""`ImageFolder` and `ImageFiles` find, label and read images as torchvision's class does."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from gpuloader import DataLoader, Image, ImageFiles, ImageFolder, ImageSample, SampleError, Subset
from gpuloader.testing import simulated_places
from gpuloader.transforms import Resize
from tests.picture_files import decoded_by_pillow, encode, make_pixels, pillow, write_folder


def test_classes_are_sorted_folders_and_samples_sorted_files(tmp_path):
    paths = write_folder(tmp_path, ("dog", "cat", "ant"), count=3)
    (tmp_path / "cat" / "deep").mkdir()
    (tmp_path / "cat" / "deep" / "0.PNG").write_bytes(encode(make_pixels(5, 5), "PNG"))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "README.md").write_text("no class")
    dataset = ImageFolder(tmp_path)
    assert dataset.classes == ["ant", "cat", "dog"]
    assert dataset.class_to_idx == {"ant": 0, "cat": 1, "dog": 2}
    found = [path for path, _ in dataset.samples]
    assert found == paths[6:9] + paths[3:6] + [str(tmp_path / "cat/deep/0.PNG")] + paths[:3]
    assert dataset.targets == [0] * 3 + [1] * 4 + [2] * 3
    assert dataset.imgs == dataset.samples
    assert len(dataset) == 10
    assert ".jpg" in dataset.extensions
    image, label = sample = dataset[-1]
    assert isinstance(sample, ImageSample)
    assert (type(label), label, sample.label) == (int, 2, 2)
    np.testing.assert_array_equal(np.asarray(image), decoded_by_pillow(Path(paths[2]).read_bytes()))


def test_torchvision_finds_the_same(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    write_folder(tmp_path, ("dog", "cat"), count=3)
    theirs, ours = datasets.ImageFolder(str(tmp_path)), ImageFolder(tmp_path)
    for name in ("classes", "class_to_idx", "samples", "targets", "imgs", "extensions"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for (image, label), (their_image, their_label) in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(image), np.asarray(their_image))
        assert label == their_label


def test_an_unknown_parameter_names_the_class_that_was_called(tmp_path):
    write_folder(tmp_path, ("cat",))
    with pytest.raises(TypeError, match=r"^ImageFolder\.__init__\(\) got an unexpected .* 'zzz'"):
        ImageFolder(tmp_path, zzz=1)


def test_what_is_missing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        ImageFolder(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="has no folders"):
        ImageFolder(tmp_path)
    write_folder(tmp_path, ("cat",))
    (tmp_path / "dog").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no images in the folders \['dog'\]"):
        ImageFolder(tmp_path)
    assert ImageFolder(tmp_path, allow_empty=True).classes == ["cat", "dog"]
    with pytest.raises(FileNotFoundError, match="is a file"):
        ImageFolder(tmp_path / "cat" / "0.jpeg")


def test_the_users_functions_choose_and_read(tmp_path):
    write_folder(tmp_path)
    dataset = ImageFolder(
        tmp_path,
        transform=lambda image: np.asarray(image)[:2, :2] // 2,
        target_transform=lambda label: label + 10,
        loader=pillow.open,
        is_valid_file=lambda path: path.endswith("1.jpeg"),
    )
    assert dataset.extensions is None
    assert [label for _, label in dataset] == [10, 11]
    assert dataset[0].image.shape == (2, 2, 3)
    with pytest.raises(TypeError, match="loader must be callable"):
        ImageFolder(tmp_path, loader="pillow")
    shown = []
    ImageFolder(tmp_path, transform=shown.append)[0]
    assert (shown[0].mode, shown[0].size) == ("RGB", (50, 40))


def test_several_samples_at_once_and_a_copy_in_another_process(tmp_path):
    write_folder(tmp_path)
    dataset = ImageFolder(tmp_path)
    images, labels = dataset[2:6]
    assert [type(image) for image in images] == [Image] * 4
    assert labels.tolist() == [0, 0, 1, 1]
    again = pickle.loads(pickle.dumps(dataset))
    assert again.samples == dataset.samples
    assert again[3].label == dataset[3].label


def test_files_with_and_without_labels(tmp_path):
    paths = write_folder(tmp_path)
    assert ImageFiles(paths, labels=range(8))[5].label == 5
    assert ImageFiles(paths)[5].shape == (43, 55, 3)
    rows = ImageFiles(paths, labels=np.eye(8, dtype=np.float32))
    assert rows[1].label.tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="one label per file, got 8 files, labels of"):
        ImageFiles(paths, labels=[1, 2])
    with pytest.raises(TypeError, match="list of paths"):
        ImageFiles(paths[0])


def write_images(folder, sizes):
    """Write an image of each size, with its number as the seed, and return their paths."""
    paths = [folder / f"{number}.png" for number in range(len(sizes))]
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        path.write_bytes(encode(make_pixels(*size, seed=number), "PNG"))
    return paths


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_one_size_need_no_transform(tmp_path, workers):
    dataset = Subset(ImageFiles(write_images(tmp_path, [(8, 9)] * 5), labels=range(5)), [4, 2, 0])
    loader = DataLoader(dataset, places="cpu", batch_size=2, num_workers=workers)
    for batch, numbers in zip(loader, ([4, 2], [0]), strict=True):
        assert type(batch) is ImageSample
        assert batch.label.tolist() == numbers
        expected = np.stack([make_pixels(8, 9, seed=number) for number in numbers])
        np.testing.assert_array_equal(batch.image, expected)


ONE_SIZE = r"add CenterCrop after Resize\(size\), or pass Resize\(\(height, width\)\), so that all"


def load_pixels(path):
    return np.asarray(pillow.open(path))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static": True},
        {"num_workers": 2},
        {"num_workers": 1, "worker_type": "process"},
        {"transforms": [Resize("image", 32)]},
        {"transforms": [Resize(None, 32)], "places": simulated_places(1)},
        {"on_bad": "skip"},
    ],
    ids=lambda options: ",".join(options) or "default",
)
@pytest.mark.parametrize("loader", [None, load_pixels], ids=["images", "pixels"])
def test_images_of_several_sizes_are_an_error_that_says_how_to_make_them_one(tmp_path, options, loader):
    (tmp_path / "cat").mkdir()
    write_images(tmp_path / "cat", [(40, 50), (70, 50)])
    dataset = ImageFolder(tmp_path, loader=loader)
    with pytest.raises(SampleError, match=f"field 'image'.*: .*{ONE_SIZE}") as caught:
        list(DataLoader(dataset, **{"places": "cpu", "batch_size": 2, **options}))
    assert "ragged" not in str(caught.value)
    if not options:
        assert "sample 1, dataset index 1, field 'image': expected shape (40, 50, 3)" in str(caught.value)


def test_static_batches_of_images_of_several_sizes_are_such_an_error_too(tmp_path):
    dataset = ImageFiles(write_images(tmp_path, [(40, 50), (70, 50)]))
    with pytest.raises(SampleError, match=f"as in the loader's first batch.*for images, {ONE_SIZE}"):
        for batch in DataLoader(dataset, places="cpu", batch_size=1, static=True):
            del batch


def test_other_fields_beside_images_keep_their_advice():
    samples = [{"image": encode(make_pixels(8, 8)), "words": np.arange(3 + number)} for number in range(2)]
    with pytest.raises(SampleError, match=r"field 'words': .* name the field in ragged, or in pad"):
        list(DataLoader(samples, places="cpu", batch_size=2, decode="image"))


def test_it_describes_itself(tmp_path):
    paths = write_folder(tmp_path, ("dog", "cat"), count=3)
    assert repr(ImageFolder(tmp_path)) == f"<ImageFolder: 6 images of 2 classes in {tmp_path}>"
    assert repr(ImageFiles(paths, labels=range(6))) == "<ImageFiles: 6 images with labels>"
    assert repr(ImageFiles(paths[:1])) == "<ImageFiles: 1 image>"


def test_its_paths_are_one_array_which_workers_share(tmp_path):
    write_folder(tmp_path, ("dög", "cat\udcff"), count=2)
    dataset = ImageFolder(tmp_path)
    buffers = []
    again = pickle.loads(pickle.dumps(dataset, 5, buffer_callback=buffers.append), buffers=buffers)
    assert dataset.samples[0][0].encode("utf-8", "surrogateescape") in bytes(buffers[0])
    assert (again.samples, again[-1][1]) == (dataset.samples, dataset[-1][1])
    assert [path.rsplit("/", 2)[1] for path, _ in again.samples] == ["cat\udcff"] * 2 + ["dög"] * 2
