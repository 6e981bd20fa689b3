"""Loaders of pictures: decoded, resized and augmented, the same for any workers, places and resume."""

import io
import itertools
import sys
import threading
from functools import partial

import numpy as np
import pytest

from gpuloader import (
    DataLoader,
    DecodeError,
    ImageFiles,
    ImageFolder,
    ImageSample,
    MissingPackage,
    Picture,
    SampleError,
    TensorDataset,
    data,
)
from gpuloader.sources.images import resampling
from gpuloader.sources.images.resampling import LateResizer
from gpuloader.testing import simulated_places
from gpuloader.transforms import (
    Cast,
    CenterCrop,
    ColorJitter,
    Normalize,
    OneHot,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)
from tests.api.streams import Items
from tests.loading import load, resume
from tests.picture_files import choose_resizer, decoded_by_pillow, encode, make_pixels, pillow, write_folder
from tests.sample_sets import Made

AUGMENTED = [
    RandomResizedCrop("image", 24),
    RandomFlip("image"),
    ColorJitter("image", 0.4, 0.4, 0.4, 0.1),
    Normalize("image", mean=0.5, std=0.25, scale=1 / 255),
]


INLINE, THREAD, THREADS = {}, {"num_workers": 1}, {"num_workers": 3}
PROCESSES = {"num_workers": 2, "worker_type": "process"}
by_workers = pytest.mark.parametrize("workers", [INLINE, THREAD, THREADS, PROCESSES], ids=str)
by_kinds = pytest.mark.parametrize("workers", [INLINE, THREADS, PROCESSES], ids=str)
OPTIONS = {"places": "cpu", "batch_size": 4, "seed": 5, "transforms": AUGMENTED}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    write_folder(root, ("cat", "dog", "owl"), count=5)
    return ImageFolder(root)


def read(dataset, **options):
    return list(DataLoader(dataset, **{**OPTIONS, "shuffle": True, **options}))


def in_order(dataset, **options):
    return read(dataset, **{"shuffle": False, **options})


def find_image(batch):
    if isinstance(batch, np.ndarray):
        return batch if batch.ndim == 4 else None
    entries = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return next((found for one in entries if (found := find_image(one)) is not None), None)


def assert_equal(batches, expected):
    assert len(batches) == len(expected)
    for (images, labels), (their_images, their_labels) in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(images, their_images)
        np.testing.assert_array_equal(labels, their_labels)


@pytest.mark.parametrize(
    "options", [THREAD, THREADS, PROCESSES, {"num_workers": 2, "use_buffer_reader": False}], ids=str
)
def test_augmentation_is_the_same_with_any_workers(folder, options):
    assert_equal(read(folder, **options), read(folder))


def test_augmentation_is_the_same_on_any_place_and_after_resuming(folder):
    [whole] = read(folder, batch_size=15)
    assert isinstance(whole, ImageSample)
    images, labels = whole
    assert (images.shape, images.dtype, labels.dtype) == ((15, 3, 24, 24), np.float32, np.int64)
    assert whole.image is images
    assert_equal(read(folder, places=simulated_places(1), batch_size=15, **THREADS), [whole])
    before, again = resume(lambda: DataLoader(folder, shuffle=True, **OPTIONS), 2)
    assert_equal([*before, *again], read(folder))


def test_augmentation_differs_between_epochs_and_seeds(folder):
    loader = load(folder, batch_size=15, seed=5, transforms=AUGMENTED)
    [(first, _)], [(second, _)] = list(loader), list(loader)
    [(other, _)] = in_order(folder, batch_size=15, seed=6)
    assert not (first == second).all((1, 2, 3)).any()
    assert not (first == other).all((1, 2, 3)).any()


def test_augmentation_is_the_same_on_ranks(folder):
    parts = [in_order(folder, batch_size=2, shard=(rank, 2), uneven="drop") for rank in range(2)]
    for step, (images, _) in enumerate(in_order(folder)[:3]):
        np.testing.assert_array_equal(images, np.concatenate([part[step][0] for part in parts]))


def test_pixels_are_pillows(folder):
    resize = [Resize("image", (16, 20), filter="bicubic")]
    [(images, _)] = in_order(folder, batch_size=15, transforms=resize)
    kind = pillow.Resampling.BICUBIC
    for image, (path, _) in zip(images, folder.samples, strict=True):
        shown = pillow.open(path).convert("RGB")
        wide = shown.resize((20, shown.height), kind)
        np.testing.assert_array_equal(image, np.asarray(wide.resize((20, 16), kind)))


SOURCES = {
    "bytes": lambda data: data,
    "a picture": Picture,
    "as Hugging Face stores it": lambda data: {"bytes": data, "path": None},
    "an array": decoded_by_pillow,
    "an image of Pillow": lambda data: pillow.open(io.BytesIO(data)),
}
FORMS = {
    "dict": (lambda image, label: {"label": label, "image": image, "name": "x"}, "image"),
    "tuple": (lambda image, label: (image, label), "0"),
    "first": (lambda image, label: [label, {"x": label, "y": image}], None),
    "nested": (lambda image, label: {"a": [label, {"b": image}]}, "a.1.b"),
    "dots in a key": (lambda image, label: {"left.jpg": image, "label": label}, "left.jpg"),
    "alone": (lambda image, label: image, "0"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("source", SOURCES)
def test_any_field_of_any_dataset_may_hold_pictures(source, form):
    if (source, form) == ("as Hugging Face stores it", "alone"):
        pytest.skip("a dict that is the sample has fields of its own")
    arrange, field = FORMS[form]
    data = [encode(make_pixels(20 + number, 30), "PNG") for number in range(3)]
    dataset = [arrange(SOURCES[source](one), number) for number, one in enumerate(data)]
    [batch] = load(dataset, batch_size=3, transforms=[Resize(field, (10, 15))])
    found = find_image(batch)
    assert found.shape == (3, 10, 15, 3)
    one = pillow.fromarray(make_pixels(20, 30))
    kind = pillow.Resampling.BILINEAR
    np.testing.assert_array_equal(found[0], np.asarray(one.resize((15, 20), kind).resize((15, 10), kind)))


def test_which_fields_hold_pictures():
    data = encode(make_pixels(8, 9), "PNG")
    dataset = [{"a": data, "b": b"no picture", "c": make_pixels(8, 9)}]
    [batch] = load(dataset, transforms=[Resize(None, (4, 5))])  # without a name, the first one
    assert (batch["a"].shape, batch["c"].shape) == ((1, 4, 5, 3), (1, 8, 9, 3))
    assert batch["b"] == [b"no picture"]
    grey = TensorDataset(np.stack([make_pixels(8, 9, 1, seed)[..., 0] for seed in range(4)]), np.arange(4))
    [(images, labels)] = load(grey, batch_size=4, transforms=[CenterCrop("0", 4)])
    np.testing.assert_array_equal(images, grey.tensors[0][:, 2:6, 2:6, None])
    assert labels.tolist() == [0, 1, 2, 3]


def streamed(folder):
    return Items(partial(map, folder.__getitem__, range(len(folder))))


@pytest.mark.parametrize("workers", [INLINE, THREAD, {**THREAD, "worker_type": "process"}], ids=str)
def test_items_of_streams_are_augmented_too(folder, workers):
    whole = list(DataLoader(streamed(folder), **OPTIONS))
    assert sum(len(labels) for _, labels in whole) == 15
    assert_equal(list(DataLoader(streamed(folder), **OPTIONS, **workers)), whole)
    before, again = resume(lambda: DataLoader(streamed(folder), **OPTIONS, **workers), 1)
    assert_equal([*before, *again], whole)


def test_decode_turns_bytes_into_pixels():
    data = [encode(make_pixels(8, 9, seed=number), "PNG") for number in range(3)]
    dataset = [{"image": one, "label": number, "name": "x"} for number, one in enumerate(data)]
    [batch] = load(dataset, batch_size=3, decode="image")
    np.testing.assert_array_equal(batch["image"], np.stack([make_pixels(8, 9, seed=n) for n in range(3)]))
    assert batch["name"] == ["x"] * 3
    [batch] = load(dataset, batch_size=3)
    assert batch["image"] == data


@pytest.mark.parametrize("field", ["a", "b"])
def test_pictures_of_several_sizes_are_an_error_that_says_how_to_make_them_alike(field):
    """Whether a transform makes these pictures or they came as arrays."""
    plain = {"a": make_pixels(8, 9), "b": make_pixels(8, 9)}
    dataset = [{**plain, field: make_pixels(8, 20 + n)} for n in range(2)]
    steps = [Resize("a", 8 if field == "a" else (4, 5))]
    with pytest.raises(SampleError, match="so that all images have one size") as caught:
        list(load(dataset, batch_size=2, transforms=steps))
    assert caught.value.field == field


def test_without_batches_and_with_a_collate_fn_samples_are_transformed_too(folder):
    samples = read(folder, batch_size=None, transforms=[Resize("image", (4, 5))])
    assert [image.shape for image, _ in samples] == [(4, 5, 3)] * 15
    shown = []
    read(folder, transforms=[Resize("image", (8, 9))], collate_fn=shown.extend)
    assert [sample.image.shape for sample in shown] == [(8, 9, 3)] * 15


def test_without_pillow_it_says_what_to_install(folder, monkeypatch):
    from gpuloader.sources.images import decoding

    decoding.load_pillow.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingPackage, match=r"decoding images needs pillow, .*\[images\]"):
        DataLoader(folder)


def test_cached_pictures(tmp_path):
    write_folder(tmp_path, ("cat",), count=1)
    loader = load(ImageFolder(tmp_path), batch_size=2, cache="host")
    assert_equal(list(loader), list(loader))
    with pytest.raises(ValueError, match="transforms of single images, such as Resize"):
        load(ImageFolder(tmp_path), cache="host", transforms=[RandomFlip("image")])


def test_declared_fields(folder):
    dataset = [tuple(folder[index]) for index in range(4)]
    feeds = [data("img", [None, 8, 8, 3], "uint8"), data("label", [None, 1], "int64")]
    steps = [Resize("img", (8, 8)), Cast("img", "int32")]
    [(images, labels)] = DataLoader(dataset, feeds, "cpu", batch_size=4, transforms=steps)
    assert (images.shape, images.dtype, labels.shape) == ((4, 8, 8, 3), np.int32, (4, 1))


def test_threads_decode_by_default(folder):
    for dataset, options, kind in [
        (folder, {}, "thread"),
        (folder, {"worker_type": "process"}, "process"),
        (folder, {"start_method": "fork"}, "process"),
        ([1, 2], {}, "process"),
    ]:
        assert DataLoader(dataset, num_workers=2, **options)._epochs.workers.kind == kind


def test_no_more_pictures_are_decoded_than_threads(folder, way, monkeypatch):
    """Each thread holds one decoded picture at a time, whatever the batch."""
    held, most, lock = 0, 0, threading.Lock()
    decoder = "decode_at" if way == "Pillow" else "decode_part"
    decode, resample = getattr(Picture, decoder), resampling.apply_geometry

    def counted(*arguments):
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        return decode(*arguments)

    def done(*arguments):
        nonlocal held
        image = resample(*arguments)
        with lock:
            held -= 1
        return image

    monkeypatch.setattr(Picture, decoder, counted)
    monkeypatch.setattr(resampling, "apply_geometry", done)
    read(folder, batch_size=15, num_workers=4, transforms=[Resize("image", (8, 8))])
    assert 1 <= most <= 4
    assert held == 0


@pytest.mark.parametrize("transforms", [AUGMENTED, [Resize("image", 30), CenterCrop("image", 34)]], ids=len)
@pytest.mark.parametrize("workers", [INLINE, THREADS], ids=str)
def test_compiled_code_makes_the_same_batches(folder, transforms, workers, monkeypatch, compiled_resizer):
    options = {"transforms": transforms, **workers}
    choose_resizer(monkeypatch, None)
    expected = read(folder, **options)
    choose_resizer(monkeypatch, compiled_resizer)
    assert_equal(read(folder, **options), expected)


def test_compiled_code_takes_over_in_the_middle_of_an_epoch(folder, monkeypatch, compiled_resizer):
    choose_resizer(monkeypatch, None)
    expected = read(folder)
    pictures, late = itertools.count(), LateResizer()
    monkeypatch.setattr(late, "find", lambda: compiled_resizer if next(pictures) >= 7 else None)
    monkeypatch.setattr(resampling, "LATE_RESIZER", late)
    assert_equal(read(folder), expected)
    assert next(pictures) == 15


@by_kinds
@pytest.mark.parametrize("transforms", [AUGMENTED, []], ids=["augmented", "plain"])
def test_a_damaged_file_is_an_error_that_names_file_and_index(tmp_path, workers, transforms):
    paths = write_folder(tmp_path, count=1)
    with open(paths[1], "r+b") as file:
        file.truncate(500)
    with pytest.raises(DecodeError) as caught:
        in_order(ImageFolder(tmp_path), transforms=transforms, **workers)
    error = caught.value
    assert isinstance(error, SampleError)
    assert (error.file, error.index, error.dataset_index, error.field) == (paths[1], 1, 1, "image")
    assert "sample 1, dataset index 1, field 'image'" in str(error)
    assert f"{paths[1]}: cannot decode the image" in str(error)


def damage(root, bad, count=10):
    """Write numbered pictures, of which those in `bad` are empty; return the dataset and the good batches."""
    paths = []
    for number in range(count):
        data = b"" if number in bad else encode(make_pixels(20 + number, 30, seed=number), "PNG")
        (root / f"{number}.png").write_bytes(data)
        paths.append(root / f"{number}.png")
    return ImageFiles(paths, labels=range(count))


@pytest.mark.parametrize(
    ("bad", "workers"),
    [
        *itertools.product([{0}, {3}, {1, 2, 5}, {0, 1, 4, 7, 9}, {9}, set()], [INLINE, THREADS]),
        *itertools.product([{1, 2, 5}, {0, 1, 4, 7, 9}], [THREAD, PROCESSES]),
    ],
    ids=str,
)
def test_bad_pictures_are_left_out_and_counted(tmp_path, bad, workers):
    dataset = damage(tmp_path, bad)
    whole = in_order(damage(tmp_path / "..", set()), batch_size=1)
    loader = DataLoader(dataset, on_bad="skip", **OPTIONS, **workers)
    good = [[number for number in range(at, min(at + 4, 10)) if number not in bad] for at in (0, 4, 8)]
    for (images, labels), numbers in zip(loader, good, strict=True):
        assert labels.tolist() == numbers
        np.testing.assert_array_equal(images, np.concatenate([whole[number][0] for number in numbers]))
    assert loader.stats().skipped == len(bad)


@pytest.mark.parametrize("workers", [INLINE, THREAD], ids=str)  # several would all read all items
def test_bad_pictures_of_streams_are_left_out_too(tmp_path, workers):
    def make(**options):
        return DataLoader(streamed(dataset), on_bad="skip", **OPTIONS, **workers, **options)

    def labels_of(loader):
        return [labels.tolist() for _, labels in loader]

    dataset = damage(tmp_path, {1, 2, 5, 9})
    loader = make()
    assert labels_of(make(drop_last=True)) == [[0, 3], [4, 6, 7]]  # as many as were read count
    assert labels_of(loader) == [[0, 3], [4, 6, 7], [8]]
    assert loader.stats().skipped == 4
    assert labels_of(resume(make, 1)[1]) == [[4, 6, 7], [8]]


@pytest.mark.parametrize("workers", [INLINE, THREADS], ids=str)
def test_other_fields_keep_their_samples_when_some_are_left_out(workers):
    data = [encode(make_pixels(20, 30, seed=number), "PNG") for number in range(5)]
    data[1] = data[3] = b"damaged"
    options = {"places": "cpu", "batch_size": 5, "decode": "image", "on_bad": "skip", **workers}
    short = [{"image": one, "name": f"{number}"} for number, one in enumerate(data)]
    dataset = [{**sample, "words": np.arange(number)} for number, sample in enumerate(short)]
    [batch] = DataLoader(dataset, pad={"words": -1}, **options)
    assert batch["name"] == ["0", "2", "4"]
    assert batch["words"].tolist() == [[-1] * 4, [0, 1, -1, -1], [0, 1, 2, 3]]
    [batch] = DataLoader(short, **options)
    assert batch["name"] == ["0", "2", "4"]
    assert batch["image"].shape == (3, 20, 30, 3)
    shown = []
    list(DataLoader(short, collate_fn=shown.extend, **options))
    assert [sample["name"] for sample in shown] == ["0", "2", "4"]


@by_workers
def test_errors_name_the_sample_though_others_were_left_out(tmp_path, workers):
    dataset = damage(tmp_path, {0, 1, 4}, count=8)
    with pytest.raises(SampleError, match=r"expected shape \(22, 30, 3\)") as caught:  # of several sizes
        in_order(dataset, batch_size=8, decode="image", on_bad="skip", transforms=[], **workers)
    assert (caught.value.index, caught.value.dataset_index) == (3, 3)
    dataset = damage(tmp_path, {0, 1, 2, 3})
    with pytest.raises(SampleError, match=r"batch 0.*: none of the batch's 4 samples can be read"):
        in_order(dataset, on_bad="skip", **workers)


def test_a_dataset_that_decodes_itself_may_skip_too(tmp_path):
    dataset = damage(tmp_path, {1})

    class Decoding(Made):
        holds_pictures = True

    decoding = Decoding(lambda index: (np.asarray(dataset[index].image)[:20], index), 4)
    [(_, labels)] = load(decoding, batch_size=4, on_bad="skip")
    assert labels.tolist() == [0, 2, 3]


def test_files_that_cannot_be_opened_are_not_skipped(tmp_path, folder):
    dataset = damage(tmp_path, set())
    (tmp_path / "2.png").unlink()
    with pytest.raises(SampleError, match="cannot read the image: No such file"):
        read(dataset, on_bad="skip")
    assert len(read(folder, on_bad="skip", shard=(0, 2), uneven="drop")) == 2


NO_FIELD = r"no field 'picture' to transform; the sample has the fields \['image', 'label'\]"
NO_IMAGE = r"field 'label': expected an image: encoded bytes, or uint8 .*, got int"
NOT_FIRST = "Resize is done to single images, and Normalize to batches"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"transforms": [Resize("picture", 8)]}, SampleError, NO_FIELD),
        ({"transforms": [Resize("label", 8)]}, SampleError, NO_IMAGE),
        ({"transforms": [Normalize("image"), Resize("image", 8)]}, ValueError, NOT_FIRST),
        ({"transforms": [Resize]}, TypeError, "the class Resize; pass an instance of it"),
        ({"on_bad": "drop"}, ValueError, "on_bad must be one of 'raise', 'skip', got 'drop'"),
        ({"on_bad": "skip", "shard": (0, 2)}, ValueError, "cannot be combined with split='shards'"),
        ({"decode": "jpg"}, ValueError, "decode must be one of 'image', 'device' or None, got 'jpg'"),
    ],
)
def test_what_does_not_fit_is_refused(folder, options, error, message):
    with pytest.raises(error, match=message):
        read(folder, **options)
    read(folder, transforms=[OneHot("label", 3), Resize("image", (8, 8))])


def test_none_is_not_an_image():
    with pytest.raises(SampleError, match=r"dataset index 0, field '0': expected an image: .*, got NoneType"):
        next(iter(DataLoader([(None, 1)], places="cpu", transforms=[Resize("0", (8, 8))])))
