"""Pictures on a place with a GPU: workers stage regions, and a kernel makes the pixels that a CPU has."""

import io
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpuloader.transforms as t
import gpuloader.transforms.image_staging as image_staging
from gpuloader import DataLoader
from gpuloader.errors import DecodeError, SampleError
from gpuloader.sources.images.image import Geometry, as_image
from gpuloader.sources.images.regions import NUMBERS
from gpuloader.testing import simulated_places
from gpuloader.transforms.image_staging import cut_region, plan_resampling, stage_image
from tests.api.streams import Items
from tests.fakes import memory_below
from tests.picture_files import plan_image

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def encode(height, width, seed, form="jpeg", mode="RGB"):
    rough = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(rough).resize((width, height)).convert(mode).save(file, form)
    return file.getvalue()


@pytest.fixture(scope="module")
def files():
    """Return encoded pictures of several sizes and formats, each with its number."""
    shapes = [(60, 80), (81, 47), (33, 120), (150, 150), (64, 64), (97, 41)]
    forms = map(str.split, ("jpeg RGB", "png RGB", "jpeg L", "jpeg RGB", "webp RGB", "jpeg CMYK"))
    return [
        {"image": encode(*shape, number, *form), "label": number}
        for number, (shape, form) in enumerate(zip(shapes, forms, strict=True))
    ]


JITTER = t.ColorJitter("image", brightness=0.4, contrast=0.5, saturation=0.8, hue=0.3)
JITTER_HUE = t.ColorJitter("image", hue=(0.2, 0.5))
UPSIDE_DOWN = t.RandomFlip("image", axis="vertical")
CHAINS = {
    "train": [t.RandomResizedCrop("image", 32), t.RandomFlip("image")],
    "bicubic": [t.RandomResizedCrop("image", (40, 24), filter="bicubic"), UPSIDE_DOWN],
    "validate": [t.Resize("image", 48), t.CenterCrop("image", 40)],
    "augmented": [
        t.RandomResizedCrop("image", 32),
        t.RandAugment("image"),
        t.ColorJitter("image", 0.4, p=0.5),
        t.Grayscale("image", 0.3),
        t.GaussianBlur("image", p=0.3),
    ],
    "margin": [t.CenterCrop("image", 90)],
    "scaled": [t.RandomResizedCrop("image", 16, scaled=True)],
    "color": [t.RandomResizedCrop("image", 32), t.ColorJitter("image", 0.4, 0.4), t.RandomFlip("image")],
    "colors": [t.RandomResizedCrop("image", (17, 40)), t.RandomFlip("image"), JITTER],
    "hue": [JITTER_HUE, t.RandomFlip("image"), t.CenterCrop("image", 40)],
    "colors twice": [t.Resize("image", (20, 30)), JITTER, JITTER_HUE, t.RandomFlip("image", p=1), JITTER],
    "colors first": [JITTER, t.RandomResizedCrop("image", 32)],
    "contrast often": [t.CenterCrop("image", 20), *[t.ColorJitter("image", contrast=(1.01, 1.1))] * 9],
    "two passes": [t.Resize("image", (50, 50), filter="bicubic"), t.RandomResizedCrop("image", 32)],
}
NORMALIZE = t.Normalize("image", [0.5, 0.4, 0.3], [0.2, 0.3, 0.4], scale=1 / 255)


def read(files, places, transforms, **options):
    """Return the batches of two epochs as pairs of NumPy arrays, and the loader."""
    loader = DataLoader(files, places=places, batch_size=4, seed=3, transforms=transforms, **options)
    batches = [batch for _ in range(2) for batch in loader]
    return [(np.asarray(batch["image"]), np.asarray(batch["label"])) for batch in batches], loader


def check_same(samples, transforms, **options):
    """Raise unless a place with a GPU gets the batches of a CPU place; return them, and its loader."""
    expected, _ = read(samples, "cpu", transforms, **{k: v for k, v in options.items() if k == "on_bad"})
    found, loader = read(samples, simulated_places(1), transforms, **options)
    assert len(found) == len(expected) > 0
    for (image, label), (there, other) in zip(found, expected, strict=True):
        assert (image.dtype, image.shape) == (there.dtype, there.shape)
        assert image.tobytes() == there.tobytes()
        assert label.tolist() == other.tolist()
    return found, loader


@pytest.fixture
def staged(monkeypatch):
    """Return a list to which each region is added that is staged in this process."""
    regions = []

    def stage(*arguments):
        regions.append(stage_image(*arguments))
        return regions[-1]

    monkeypatch.setattr(image_staging, "stage_image", stage)
    return regions


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("chain", CHAINS)
def test_the_pixels_are_those_of_a_cpu(files, chain, normalized, staged):
    check_same(files, [*CHAINS[chain], *([NORMALIZE] if normalized else [])])
    assert len(staged) == (0 if chain == "contrast often" else 2 * len(files))


@pytest.mark.parametrize(
    ("size", "ratio"),
    [((2, 2), (5, 6)), ((300, 1), (2.5, 3)), ((1, 300), (0.2, 0.3)), ((40, 50), (100, 100))],
    ids=str,
)
def test_the_smallest_windows_are_those_of_a_cpu(size, ratio, staged):
    pixels = np.random.default_rng(0).integers(100, 256, (*size, 3), np.uint8)
    samples = [{"image": pixels, "label": number} for number in range(6)]
    for scale in ((0.08, 1), (1e-9, 1e-9)):
        crop = [t.RandomResizedCrop("image", (8, 8), scale=scale, ratio=ratio)]
        assert min(image.min() for image, _ in check_same(samples, crop)[0]) >= 100
    assert staged


@pytest.mark.parametrize("to", ["HWC", "channels_last"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_layout_and_dtype_are_those_of_a_cpu(files, to, dtype, staged):
    check_same(files, [*CHAINS["train"], t.Normalize("image", 0.5, 0.2, scale=1 / 255, to=to, dtype=dtype)])
    assert staged


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers_stage_the_same(files, worker_type):
    check_same(files, [*CHAINS["train"], NORMALIZE], num_workers=2, worker_type=worker_type)


def test_only_what_the_window_needs_is_staged(files, staged):
    crop = t.RandomResizedCrop("image", 8, scale=(0.05, 0.1))
    read(files, simulated_places(1), [crop])
    whole = 2 * sum(np.asarray(Image.open(io.BytesIO(file["image"]))).size for file in files)
    assert sum(math.prod(region.shape) for region in staged) < whole / 2


JITTER_ALL = t.ColorJitter(None, brightness=0.4, contrast=0.5, saturation=0.8, hue=0.3)
GRAY = [np.random.default_rng(number).integers(0, 256, (20, 30), np.uint8) for number in range(6)]


@pytest.mark.parametrize(
    ("make", "transforms"),
    [
        (lambda file: (file["image"], file["label"]), [t.RandomResizedCrop("0", 16), t.Normalize("0")]),
        (lambda file: (file["image"], file["label"]), [t.RandomResizedCrop(None, 16), t.Normalize(None)]),
        (lambda file: file["image"], [t.RandomResizedCrop(None, 16), t.Normalize(None)]),
        (lambda file: (np.float32([file["label"]]), file["image"]), [t.Resize(None, (9, 9))]),
        (lambda file: GRAY[file["label"]], [t.Resize(None, (7, 9))]),
        (lambda file: GRAY[file["label"]], [t.Resize(None, (7, 9)), JITTER_ALL]),
    ],
    ids=["of a tuple", "the first field", "alone", "behind another field", "gray", "gray without colors"],
)
def test_the_picture_of_a_sample_is_found_whatever_the_sample_is(files, make, transforms, staged):
    batches = []
    for places in ("cpu", simulated_places(1)):
        options = {"batch_size": 6, "seed": 1, "transforms": transforms}
        [batch] = DataLoader(list(map(make, files)), places=places, **options)
        batches.append([np.asarray(one) for one in (batch if isinstance(batch, list) else [batch])])
    for image, there in zip(*batches, strict=True):
        np.testing.assert_array_equal(image, there, strict=True)
    assert len(staged) == len(files)


@pytest.mark.parametrize(
    ("transforms", "steps"),
    [
        ([JITTER], 4),
        ([JITTER_HUE], 1),
        ([t.RandomFlip("image", p=1), JITTER, t.RandomFlip("image", p=1), JITTER_HUE], 5),
        ([JITTER, t.CenterCrop("image", 16)], 4),  # of the same size
        ([JITTER_HUE, t.CenterCrop("image", 9)], 0),
        ([JITTER, t.Resize("image", (40, 30))], 0),
        ([t.ColorJitter("image")], 0),
    ],
)
def test_colors_change_on_the_gpu_unless_the_picture_does_later(files, transforms, steps, staged):
    check_same(files, [t.Resize("image", (16, 16)), *transforms])
    assert {np.count_nonzero(region.geometry[NUMBERS::2]) for region in staged} == {steps}


def test_a_gpu_resumes_what_a_cpu_began(files):
    steps = [t.RandomResizedCrop("image", 16), JITTER, NORMALIZE]
    steps += [t.RandomErasing("image"), t.MixUp("image", "label", 9)]

    def make(places):
        return DataLoader(files, places=places, batch_size=2, shuffle=True, seed=3, transforms=steps)

    begun, resumed = make("cpu"), make(simulated_places(1))
    batches = iter(begun)
    next(batches)
    resumed.load_state_dict(begun.state_dict())
    expected = [[np.array(one).tobytes() for one in batch.values()] for batch in batches]
    assert [[np.asarray(one).tobytes() for one in batch.values()] for batch in resumed] == expected


def test_pictures_of_a_size_that_is_not_known_are_made_by_workers(files, staged):
    squares = [file | {"image": encode(64, 64, file["label"])} for file in files]
    check_same(squares, [t.Resize("image", 20)])
    assert not staged


@pytest.mark.parametrize(("count", "way"), [(2, {"split": "shards"}), (1, {"static": True})])
def test_batches_for_several_devices_or_at_fixed_addresses_are_made_by_workers(files, staged, count, way):
    options = {"batch_size": 4, "seed": 3, "transforms": CHAINS["train"], "drop_last": True, **way}
    step = next(iter(DataLoader(files, places=simulated_places(count), **options)))
    parts = [np.asarray(batch["image"]) for batch in (step if count > 1 else [step])]
    expected, _ = read(files, "cpu", CHAINS["train"])
    np.testing.assert_array_equal(np.concatenate(parts), expected[0][0])
    assert not staged


def test_a_batch_may_need_more_memory_than_those_before(files):
    large = [*files[:4], *(file | {"image": encode(700, 900, 9)} for file in files[:4])]
    check_same(large, [t.Resize("image", (32, 32)), NORMALIZE])


def test_bad_pictures_can_be_left_out(files):
    samples = [*files[:3], files[3] | {"image": files[3]["image"][:300]}, *files[4:]]
    found, loader = check_same(samples, CHAINS["train"], on_bad="skip")
    assert sum(len(label) for _, label in found) == 2 * (len(files) - 1)
    assert loader.stats().skipped == 2


def cut_short(sample):
    """Return the sample with an intact header, and only the first half of its picture."""
    return sample | {"image": sample["image"][: len(sample["image"]) // 2]}


WORKERS = [{}, {"num_workers": 3}, {"num_workers": 2, "worker_type": "process"}]


@pytest.mark.parametrize("options", WORKERS, ids=["inline", "threads", "processes"])
def test_pictures_that_end_too_early_can_be_left_out(files, options):
    samples = [cut_short(files[0]), files[1], files[2], cut_short(files[3]), *files[4:]]
    _, loader = check_same(samples, CHAINS["train"], on_bad="skip", **options)
    assert loader.stats().skipped == 4


def test_pictures_of_a_stream_that_end_too_early_can_be_left_out(files):
    stream = Items(lambda: [files[0], cut_short(files[1]), *files[2:]])
    batches, _ = check_same(stream, CHAINS["train"], on_bad="skip")
    assert [label.tolist() for _, label in batches] == 2 * [[0, 2, 3], [4, 5]]


def test_a_batch_of_nothing_but_bad_pictures_is_an_error(files):
    with pytest.raises(SampleError, match="none of the batch's 4 samples can be read"):
        read([cut_short(files[0])] * 4, simulated_places(1), CHAINS["train"], on_bad="skip")


@pytest.mark.parametrize("options", WORKERS, ids=["inline", "threads", "processes"])
@pytest.mark.parametrize("chain", ["train", "color"])
def test_an_error_names_the_first_sample_that_ends_too_early(files, chain, options):
    samples = [*files[:2], cut_short(files[3]), cut_short(files[0])]
    with pytest.raises(DecodeError, match="batch 0, sample 2, dataset index 2, field 'image'") as caught:
        read(samples, simulated_places(1), CHAINS[chain], **options)
    assert caught.value.index == 2


def test_a_damaged_file_that_pillow_reads_is_shrunk_like_any_other():
    whole = encode(120, 160, 3)
    odd = whole[:-2] + b"\0\0\0" + whole[-2:]  # what libjpeg-turbo only warns of
    chain = [t.Resize(None, (20, 20), scaled=True)]
    for places in ("cpu", simulated_places(1)):
        [batch] = DataLoader([odd, whole], places=places, batch_size=2, transforms=chain)
        np.testing.assert_array_equal(*np.asarray(batch))


def test_each_thread_holds_one_decoded_picture():
    picture, transforms = encode(1200, 1600, 1), [t.RandomResizedCrop(None, 32)]
    made_by = plan_resampling(None, transforms)
    decoded, threads = 1200 * 1600 * 3, 2
    random = np.random.default_rng(0)
    slot = np.empty((1200 * 1600, 3), np.uint8)
    with memory_below((threads + 0.5) * decoded), ThreadPoolExecutor(threads) as pool:
        plans = [plan_image((1200, 1600), transforms, random) for _ in range(12)]
        regions = [stage_image(as_image(picture), plan, made_by) for plan in plans]
        list(pool.map(lambda region: region.write(slot[: region.shape[0]]), regions))
    assert sum(region.shape[0] for region in regions) * 3 > 4 * decoded


def test_a_picture_that_is_needed_whole_is_decoded_into_its_slot(monkeypatch):
    used = []
    turbo = pytest.importorskip("simplejpeg")
    decode = turbo.decode_jpeg

    def note(*arguments, buffer=None, **options):
        used.append(buffer)
        return decode(*arguments, buffer=buffer, **options)

    monkeypatch.setattr(turbo, "decode_jpeg", note)
    steps = [t.Resize(None, (20, 20))]
    plan = plan_image((40, 60), steps, np.random.default_rng(0))
    region = stage_image(as_image(encode(40, 60, 1)), plan, plan_resampling(None, steps))
    slot = np.empty(region.shape, np.uint8)
    region.write(slot)
    assert np.shares_memory(used[0], slot)
    np.testing.assert_array_equal(slot, np.asarray(Image.open(io.BytesIO(encode(40, 60, 1)))).reshape(-1, 3))


def test_a_region_is_a_copy():
    pixels = np.zeros((4, 5, 3), np.uint8)
    region = cut_region(pixels, Geometry.of(4, 5))
    pixels[...] = 9  # the thread decodes its next picture
    assert not region.source.any()
