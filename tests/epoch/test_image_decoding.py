"""decode='device': a device decodes, the CPU decodes what it cannot, and batches are those of a CPU place."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest

from gpuloader import DataLoader, ImageFiles, PictureError, SampleError
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
from tests.picture_files import encode, make_pixels, pillow

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


@pytest.fixture
def refusing(monkeypatch):
    """Make simulated devices decode nothing; return the number of codes that they were asked for."""
    asked = []

    def decode(self, codes, stream):
        asked.extend(codes)
        return [None] * len(codes)

    monkeypatch.setattr(simulated._SimulatedCodec, "decode", decode)
    return asked


def load(samples, places, transforms=TRAIN, **options):
    options = {"batch_size": 4, "seed": 3, "decode": "device", "transforms": transforms, **options}
    return DataLoader(samples, places=places, **options)


def read(samples, places, transforms=TRAIN, epochs=2, **options):
    """Return what batches of some epochs hold."""
    loader = load(samples, places, transforms, **options)
    return [describe(batch) for _ in range(epochs) for batch in loader]


def describe(batch):
    image = np.asarray(batch["image"])
    return image.shape, image.dtype, image.tobytes(), np.asarray(batch["label"]).tolist(), batch.get("name")


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
    samples = [{"image": data, "label": number} for number in range(4)]
    crop = [RandomResizedCrop("image", 8, scale=(1e-9, 1e-9), ratio=ratio)]
    expected = read(samples, "cpu", crop)
    assert any(pixels.strip(b"\0") for _, _, pixels, *_ in expected)
    assert read(samples, simulated_places(1), crop) == expected
    assert decoded


def test_a_picture_on_the_host_is_where_a_device_copies_it_from():
    pixels = make_pixels(6, 5)
    host = decoding.HostBytes(pixels)
    assert (host.address, host.bytes.tobytes()) == (pixels.ctypes.data, pixels.tobytes())


def test_a_cpu_place_takes_the_way_of_the_cpu(files):
    assert read(files, "cpu") == read(files, "cpu", decode="image")


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers_send_what_is_encoded(files, worker_type, decoded):
    expected = read(files, "cpu")
    assert read(files, simulated_places(1), num_workers=2, worker_type=worker_type) == expected
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

    place = CustomPlace(Device(seed=seed))
    # A crop of the batch draws numbers, which lie behind the codes.
    transforms = [Resize("image", (40, 40)), RandomCropFlip("image", (32, 32))]
    expected = read(files, "cpu", transforms)
    assert read(files, place, transforms) == expected
    assert not any(files[0]["image"][50:300] in one for one in copied)


def test_transforms_of_batches_follow(files):
    transforms = [*TRAIN, NORMALIZE, RandomErasing("image"), CutMix("image", "label", classes=9)]
    expected = read(files, "cpu", transforms, decode="image")
    assert read(files, simulated_places(1), transforms) == expected


def test_a_device_that_decodes_nothing_leaves_it_to_the_cpu(files, refusing):
    expected = read(files, "cpu")
    assert read(files, simulated_places(1)) == expected
    assert len(refusing) == 8


def test_several_places_get_batches_in_turn(files, decoded):
    expected = [np.asarray(batch["image"]).tobytes() for batch in load(files, "cpu", batch_size=2)]
    steps = list(load(files, simulated_places(2, seed=5), batch_size=2))
    found = [np.asarray(batch["image"]).tobytes() for step in steps for batch in step]
    assert found == expected
    assert decoded


def test_shards_of_a_batch_are_made_by_workers(files, decoded):
    options = {"split": "shards", "drop_last": True}
    expected = np.asarray(next(iter(load(files, "cpu")))["image"])
    parts = next(iter(load(files, simulated_places(2), **options)))
    np.testing.assert_array_equal(np.concatenate([np.asarray(part["image"]) for part in parts]), expected)
    assert not decoded


def test_fixed_addresses_are_for_workers(files, decoded):
    options = {"static": True, "drop_last": True}
    expected = read(files, "cpu", drop_last=True, epochs=1)
    found = [describe(batch) for batch in load(files, simulated_places(1), **options)]
    assert found == expected
    assert not decoded


def test_pictures_turned_by_exif(tmp_path, decoded):
    paths = []
    for orientation in range(1, 9):
        exif = pillow.Exif()
        exif[0x0112] = orientation
        path = tmp_path / f"{orientation}.jpg"
        path.write_bytes(encode(make_pixels(50, 70, seed=orientation), exif=exif))
        paths.append(path)
    for upright in (True, False):
        pictures = ImageFiles(paths, upright=upright)
        found = []
        for places in ("cpu", simulated_places(1)):
            loader = load(pictures, places, [RandomResizedCrop(None, 24)], batch_size=8)
            [batch] = loader
            found.append(np.asarray(batch[0] if isinstance(batch, list | tuple) else batch))
        np.testing.assert_array_equal(*found)
    assert [code.orientation for code in decoded] == [*range(1, 9), *[1] * 8]


def test_an_epoch_resumes_in_the_middle(files):
    expected = read(files * 3, simulated_places(1), shuffle=True, epochs=1)
    loader = load(files * 3, simulated_places(1), shuffle=True)
    epoch = iter(loader)
    first = [describe(next(epoch)) for _ in range(2)]
    state = loader.state_dict()
    del epoch
    other = load(files * 3, "cpu", shuffle=True)
    other.load_state_dict(state)
    assert first + [describe(batch) for batch in other] == expected


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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_the_error_of_the_cpu(files, kind, workers):
    samples = [dict(file) for file in files]
    samples[5]["image"] = BROKEN[kind](files[0]["image"])
    errors = []
    for places in ("cpu", simulated_places(1)):
        found = []
        with pytest.raises(PictureError) as caught:
            for batch in load(samples, places, batch_size=2, num_workers=workers):
                found.append(describe(batch))
        assert len(found) == 2
        errors.append(re.sub(r", worker \d|<.*>", "", str(caught.value)))
    assert errors[0] == errors[1]
    assert "batch 2, sample 1, dataset index 5, field 'image'" in errors[0]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_files_are_left_out(files, kind, worker_type):
    samples = [dict(file) for file in files]
    for number in (1, 6):
        samples[number]["image"] = BROKEN[kind](files[0]["image"])
    transforms = [*TRAIN, NORMALIZE]
    options = {"on_bad": "skip", "num_workers": 2, "worker_type": worker_type}
    expected = read(samples, "cpu", transforms, **options)
    loader = load(samples, simulated_places(1), transforms, **options)
    assert [describe(batch) for _ in range(2) for batch in loader] == expected
    assert [entry[3] for entry in expected] == [[0, 2, 3], [4, 5]] * 2
    assert loader.stats().skipped == 4


def test_leaving_out_moves_all_fields_and_draws(files):
    samples = [
        {**file, "size": np.arange(file["label"] + 1), "place": np.full((2, 3), file["label"])}
        for file in files
    ]
    for number in (0, 2, 6):
        samples[number]["image"] = damaged(files[0]["image"])
    transforms = [Resize("image", (40, 40)), RandomCropFlip("image", (32, 32)), NORMALIZE]
    options = {"on_bad": "skip", "ragged": ["size"], "batch_size": 7}
    batches = []
    for places in ("cpu", simulated_places(1)):
        [batch] = load(samples, places, transforms, **options)
        size = batch["size"]
        batches.append(
            [
                describe(batch),
                np.asarray(size.values).tolist(),
                np.asarray(size.row_splits[0]).tolist(),
                np.asarray(batch["place"])[:, 0, 0].tolist(),
            ]
        )
    assert batches[0] == batches[1]
    assert batches[0][3] == [1, 3, 4, 5]


def test_a_batch_of_broken_files_alone_is_an_error(files):
    samples = [{**file, "image": damaged(files[0]["image"])} for file in files]
    with pytest.raises(SampleError, match="batch 0: none of the batch's 4 samples can be read"):
        list(load(samples, simulated_places(1), on_bad="skip"))


def test_the_error_names_the_file(tmp_path, files):
    paths = [tmp_path / f"{number}.jpg" for number in range(3)]
    for path in paths:
        path.write_bytes(files[0]["image"])
    paths[1].write_bytes(damaged(files[0]["image"]))
    with pytest.raises(PictureError, match=r"1\.jpg: cannot decode") as caught:
        list(load(ImageFiles(paths), simulated_places(1), [Resize(None, (8, 8))]))
    assert caught.value.file == str(paths[1])


@pytest.mark.parametrize("seed", range(4))
def test_slots_are_used_again_only_after_their_pictures_are_decoded(files, seed):
    """The simulated device decodes late, and checks that nothing has changed until then."""
    samples = files * 8
    assert read(samples, simulated_places(1, seed=seed), epochs=1) == read(samples, "cpu", epochs=1)


def test_copying_without_waiting_for_the_decoder_is_a_race(files, monkeypatch):
    """What the test above relies on: the simulated device notices a copy that does not wait."""
    real = decoding.BatchDecoder.place

    def place(self, device, *args):
        event = device.event()  # never recorded, so waiting for it does nothing
        self._event, before = event, self._event
        real(self, device, *args)
        self._event = before

    monkeypatch.setattr(decoding.BatchDecoder, "place", place)
    with pytest.raises(RaceError):
        read(files * 8, simulated_places(1), epochs=1)


def test_gray_pixels_stay_gray():
    pictures = [np.random.default_rng(number).integers(0, 256, (20, 30), np.uint8) for number in range(4)]
    found = []
    for places in ("cpu", simulated_places(1)):
        [batch] = load(pictures, places, [Resize(None, (7, 9))])
        found.append(np.asarray(batch))
    assert found[0].shape == (4, 7, 9, 1)
    np.testing.assert_array_equal(*found)


def test_one_file_may_be_larger_than_those_before(files):
    large = [*files[:4], *({**file, "image": encode(make_pixels(700, 900))} for file in files[:4])]
    assert read(large, simulated_places(1), [Resize("image", (32, 32))]) == read(
        large, "cpu", [Resize("image", (32, 32))]
    )


def test_two_fields_of_pictures(files):
    samples = [
        {"left": one["image"], "image": two["image"], "label": 0}
        for one, two in zip(files, files[::-1], strict=True)
    ]
    transforms = [RandomResizedCrop("left", 16), RandomResizedCrop("image", 24), NORMALIZE]
    found = []
    for places in ("cpu", simulated_places(1)):
        batches = load(samples, places, transforms)
        found.append(
            [(np.asarray(one["left"]).tobytes(), np.asarray(one["image"]).tobytes()) for one in batches]
        )
    assert found[0] == found[1]


def test_an_unknown_word_is_refused(files):
    with pytest.raises(ValueError, match="decode"):
        load(files, "cpu", decode="gpu")
