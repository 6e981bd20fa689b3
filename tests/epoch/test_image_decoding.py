"""decode='device': a device decodes, the CPU decodes what it cannot, and batches are those of a CPU place."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest

from gpuloader import DataLoader, DecodeError, ImageFiles, Ragged, SampleError
from gpuloader.devices import simulated
from gpuloader.devices.places import CustomPlace
from gpuloader.epoch import image_decoding as decoding
from gpuloader.testing import RaceError, SimulatedDevice, simulated_places
from gpuloader.transforms import (
    CenterCrop,
    ColorJitter,
    CutMix,
    Normalize,
    RandomCropFlip,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)
from tests.loading import resume
from tests.picture_files import encode, make_pixels, pillow, turned

FORMS = [
    ("JPEG", "RGB", {}),
    ("PNG", "RGB", {}),
    ("JPEG", "L", {}),
    ("JPEG", "RGB", {"progressive": True, "subsampling": 1}),
    ("WEBP", "RGB", {"lossless": True}),
    ("JPEG", "CMYK", {}),
    ("JPEG", "RGB", {"subsampling": 0}),
]
TRAIN = [RandomResizedCrop("image", 32), RandomFlip("image")]
CHAINS = {
    "train": TRAIN,
    "bicubic": [RandomResizedCrop("image", (40, 24), filter="bicubic"), RandomFlip("image", axis="vertical")],
    "validate": [Resize("image", 48), CenterCrop("image", 40)],
    "margin": [CenterCrop("image", 90)],
    "color": [RandomResizedCrop("image", 32), ColorJitter("image", 0.4, 0.4), RandomFlip("image")],
    "color first": [ColorJitter("image", 0.4, 0.4), RandomResizedCrop("image", 32)],
    "two passes": [Resize("image", (50, 50), filter="bicubic"), RandomResizedCrop("image", 32)],
}
NORMALIZE = Normalize("image", [0.5, 0.4, 0.3], [0.2, 0.3, 0.4], scale=1 / 255)


def make(number, form="JPEG", mode="RGB", **options):
    image = pillow.fromarray(make_pixels(60 + 7 * number, 90 - 5 * number, seed=number)).convert(mode)
    return encode(image, form, **options)


@pytest.fixture(scope="module")
def files():
    """Return encoded pictures of several formats, some of which only the CPU decodes, with their numbers."""
    return [
        {"image": make(number, form, mode, **options), "label": number, "name": f"no. {number}"}
        for number, (form, mode, options) in enumerate(FORMS)
    ]


@pytest.fixture
def decoded(monkeypatch):
    """Return a list to which each code is added that a simulated device decodes."""
    codes = []
    real = simulated._SimulatedCodec.decode

    def decode(self, asked, stream):
        codes.extend(replace(code, data=code.data.copy()) for code in asked)  # the slot is used again
        return real(self, asked, stream)

    monkeypatch.setattr(simulated._SimulatedCodec, "decode", decode)
    return codes


def load(samples, places, transforms=TRAIN, **options):
    options = {"batch_size": 4, "seed": 3, "decode": "device", "transforms": transforms, **options}
    return DataLoader(samples, places=places, **options)


def read(samples, places, transforms=TRAIN, epochs=2, **options):
    """Return what batches of some epochs hold."""
    loader = load(samples, places, transforms, **options)
    return [describe(batch) for _ in range(epochs) for batch in loader]


def check_alike(samples, transforms=TRAIN, device=None, **options):
    """Fail unless the batches of a device are those of a CPU place; return what they hold."""
    expected = read(samples, "cpu", transforms, **options)
    assert read(samples, device or simulated_places(1), transforms, **options) == expected
    return expected


def describe(batch):
    if isinstance(batch, dict):
        return {name: describe(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [describe(value) for value in batch]
    if isinstance(batch, Ragged):
        return [describe(batch.values), *map(describe, batch.row_splits)]
    array = np.asarray(batch)
    return array.dtype, array.shape, array.tobytes() if array.ndim > 1 else array.tolist()


def labels_of(batches):
    return [batch["label"][2] for batch in batches]


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("chain", CHAINS)
def test_batches_are_those_of_a_cpu_place(files, chain, normalized, decoded):
    transforms = [*CHAINS[chain], *([NORMALIZE] if normalized else [])]
    expected = read(files, "cpu", transforms, decode="image")
    assert read(files, simulated_places(1), transforms) == expected
    of_device = 4 if chain not in ("color first", "two passes") else 0
    assert len(decoded) == 2 * of_device


@pytest.mark.parametrize(("shape", "ratio"), [((2, 2), (5, 6)), ((300, 1), (2.5, 3)), ((1, 300), (0.2, 0.3))])
def test_the_smallest_windows_are_those_of_a_cpu_place(shape, ratio, decoded):
    data = encode(pillow.fromarray(make_pixels(*shape)), "JPEG")
    crop = [RandomResizedCrop("image", 8, scale=(1e-9, 1e-9), ratio=ratio)]
    batches = check_alike([{"image": data}] * 4, crop)
    assert any(batch["image"][2].strip(b"\0") for batch in batches)
    assert decoded


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers_send_what_is_encoded(files, worker_type, decoded):
    check_alike(files, num_workers=2, worker_type=worker_type)
    assert len(decoded) == 8


def test_only_what_the_window_needs_is_decoded(files, decoded):
    read(files, simulated_places(1), [RandomResizedCrop("image", 8, scale=(0.05, 0.1))])
    sizes = [np.prod(code.shape) for code in decoded]
    whole = [pillow.open(io.BytesIO(code.data.tobytes())).size for code in decoded]
    assert sum(sizes) < sum(3 * width * height for width, height in whole) / 2


@pytest.mark.parametrize("seed", range(4))
def test_only_codes_are_not_copied_to_the_device(files, seed):
    copied = []

    class Device(SimulatedDevice):
        def copy_async(self, target, source, nbytes, stream, offset=0):
            copied.append(bytes(source.bytes[:nbytes]))
            super().copy_async(target, source, nbytes, stream, offset)

    # A crop of the batch draws numbers, which lie behind the codes.
    transforms = [Resize("image", (40, 40)), RandomCropFlip("image", (32, 32))]
    check_alike(files, transforms, CustomPlace(Device(seed=seed)))
    assert not any(files[0]["image"][50:300] in one for one in copied)


def test_transforms_of_batches_follow(files):
    check_alike(files, [*TRAIN, NORMALIZE, RandomErasing("image"), CutMix("image", "label", classes=9)])


def test_a_device_that_decodes_nothing_leaves_it_to_the_cpu(files, monkeypatch):
    asked = []

    def decode(self, codes, stream):
        asked.extend(codes)
        return [None] * len(codes)

    monkeypatch.setattr(simulated._SimulatedCodec, "decode", decode)
    check_alike(files)
    assert len(asked) == 8


def test_shards_of_a_batch_and_batches_at_fixed_addresses_are_made_by_workers(files, decoded):
    expected = np.asarray(next(iter(load(files, "cpu")))["image"])
    parts = next(iter(load(files, simulated_places(2), split="shards", drop_last=True)))
    np.testing.assert_array_equal(np.concatenate([np.asarray(part["image"]) for part in parts]), expected)
    expected = read(files, "cpu", drop_last=True)
    assert read(files, simulated_places(1), static=True, drop_last=True) == expected
    assert not decoded


def test_pictures_turned_by_exif(tmp_path, decoded):
    paths = [tmp_path / f"{orientation}.jpg" for orientation in range(1, 9)]
    for orientation, path in enumerate(paths, 1):
        path.write_bytes(encode(make_pixels(50, 70, seed=orientation), **turned(orientation)))
    for upright in (True, False):
        pictures = ImageFiles(paths, upright=upright)
        check_alike(pictures, [RandomResizedCrop(None, 24)], batch_size=8, epochs=1)
    assert [code.orientation for code in decoded] == [*range(1, 9), *[1] * 8]


def test_an_epoch_resumes_in_the_middle(files):
    places = iter([simulated_places(1), "cpu"])
    before, again = resume(lambda: load(files * 3, next(places), shuffle=True), 2)
    found = [describe(batch) for batch in (*before, *again)]
    assert found == read(files * 3, simulated_places(1), shuffle=True, epochs=1)


def damaged(data):
    """Return a JPEG file with all markers and its end, which no decoder reads: a scan of no component."""
    start = data.rindex(b"\xff\xda")
    return data[: start + 2] + b"\x00\x06\x00\x00\x3f\x00" + data[start + 14 :]


BROKEN = {
    "empty": lambda data: b"",
    "garbage": lambda data: b"\x00" * 100,
    "truncated": lambda data: data[: len(data) // 2],
    "unreadable": damaged,
}


def break_some(files, kind, numbers):
    """Return copies of the samples, of which those of the given numbers are broken."""
    broken = BROKEN[kind](files[0]["image"])
    return [{**file, "image": broken} if number in numbers else file for number, file in enumerate(files)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_the_error_of_the_cpu(files, kind, workers):
    errors = []
    for places in ("cpu", simulated_places(1)):
        epoch = iter(load(break_some(files, kind, [5]), places, batch_size=2, num_workers=workers))
        assert labels_of([describe(next(epoch)), describe(next(epoch))]) == [[0, 1], [2, 3]]
        with pytest.raises(DecodeError) as caught:
            next(epoch)
        errors.append(re.sub(r", worker \d|<.*>", "", str(caught.value)))
    assert errors[0] == errors[1]
    assert "batch 2, sample 1, dataset index 5, field 'image'" in errors[0]


@pytest.mark.parametrize(
    ("kind", "worker_type"), [*((kind, "thread") for kind in BROKEN), ("truncated", "process")]
)
def test_broken_files_are_left_out(files, kind, worker_type):
    samples, transforms = break_some(files, kind, [1, 6]), [*TRAIN, NORMALIZE]
    options = {"on_bad": "skip", "num_workers": 2, "worker_type": worker_type}
    expected = read(samples, "cpu", transforms, **options)
    loader = load(samples, simulated_places(1), transforms, **options)
    assert [describe(batch) for _ in range(2) for batch in loader] == expected
    assert labels_of(expected) == [[0, 2, 3], [4, 5]] * 2
    assert loader.stats().skipped == 4


def test_leaving_out_moves_all_fields_and_draws(files):
    samples = [
        {**file, "size": np.arange(file["label"] + 1), "place": np.full((2, 3), file["label"])}
        for file in break_some(files, "unreadable", [0, 2, 6])
    ]
    transforms = [Resize("image", (40, 40)), RandomCropFlip("image", (32, 32)), NORMALIZE]
    batches = check_alike(samples, transforms, on_bad="skip", ragged=["size"], batch_size=7)
    assert labels_of(batches) == [[1, 3, 4, 5]] * 2


def test_a_batch_of_broken_files_alone_is_an_error(files):
    samples = break_some(files, "unreadable", range(len(files)))
    with pytest.raises(SampleError, match="batch 0: none of the batch's 4 samples can be read"):
        list(load(samples, simulated_places(1), on_bad="skip"))


@pytest.mark.parametrize("seed", range(4))
def test_slots_are_used_again_only_after_their_pictures_are_decoded(files, seed):
    """The simulated device decodes late, and checks that nothing has changed until then."""
    check_alike(files * 8, device=simulated_places(1, seed=seed), epochs=1)


def test_copying_without_waiting_for_the_decoder_is_a_race(files, monkeypatch):
    """What the test above relies on: the simulated device notices a copy that does not wait."""
    real = decoding.BatchDecoder.place

    def place(self, device, *args):
        monkeypatch.setattr(self, "_event", device.event())  # never recorded, so waiting for it does nothing
        real(self, device, *args)

    monkeypatch.setattr(decoding.BatchDecoder, "place", place)
    with pytest.raises(RaceError):
        read(files * 8, simulated_places(1), epochs=1)


def test_gray_pixels_stay_gray():
    pictures = [np.random.default_rng(number).integers(0, 256, (20, 30), np.uint8) for number in range(4)]
    [(_, shape, _)] = check_alike(pictures, [Resize(None, (7, 9))], epochs=1)
    assert shape == (4, 7, 9, 1)


def test_two_fields_of_pictures(files):
    samples = [{**one, "left": two["image"]} for one, two in zip(files, files[::-1], strict=True)]
    check_alike(samples, [RandomResizedCrop("left", 16), RandomResizedCrop("image", 24), NORMALIZE])
