"""JPEG files that nvImageCodec decodes on the GPU: close to Pillow's pixels, and the same from run to run."""

import io

import numpy as np
import pytest

from gpuloader import DataLoader, DecodeError
from gpuloader.devices.places import CUDAPlace, open_device
from gpuloader.sources.images.regions import Code
from gpuloader.transforms import Normalize, RandomFlip, RandomResizedCrop
from tests.gpu.conftest import import_or_skip
from tests.picture_files import encode, make_pixels, pillow

STEPS = [RandomResizedCrop("image", 64), RandomFlip("image")]
FLOATS = Normalize("image", 0.5, 0.25, scale=1 / 255)
KINDS = {
    "4:2:0": {},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "progressive": {"progressive": True},
    "quality 30": {"quality": 30},
}


@pytest.fixture(autouse=True)
def codec():
    import_or_skip("nvidia")
    import_or_skip("nvidia.nvimgcodec")
    return open_device(CUDAPlace(0)).codec()


def make_files(count, **options):
    return [
        {
            "image": encode(make_pixels(200 + 9 * number, 300 - 7 * number, seed=number), **options),
            "label": number,
        }
        for number in range(count)
    ]


def load(samples, places, transforms=STEPS, **options):
    options = {"batch_size": 8, "seed": 3, "decode": "device", "transforms": transforms, **options}
    return DataLoader(samples, places=places, **options)


def to_host(batch):
    image = batch["image"]
    return image.get() if hasattr(image, "get") else np.asarray(image)


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_close_to_those_of_pillow(kind, say):
    samples = make_files(16, **KINDS[kind])
    expected = [to_host(batch).astype(int) for batch in load(samples, "cpu")]
    found = [to_host(batch).astype(int) for batch in load(samples, "gpu:0")]
    apart = np.concatenate([abs(one - other).reshape(-1) for one, other in zip(found, expected, strict=True)])
    share = (apart > 0).mean()
    say(f"{kind}: {share:.1%} of values differ, by {apart.mean():.3f} on average, by {apart.max()} at most")
    assert apart.mean() < 1
    assert apart.max() < 24


@pytest.mark.parametrize("orientation", range(1, 9))
def test_regions_of_turned_pictures(codec, orientation, say):
    import cupy
    from PIL import ImageOps

    exif = pillow.Exif()
    exif[0x0112] = orientation
    data = encode(make_pixels(160, 240, seed=5), exif=exif, subsampling=0)
    upright = np.asarray(ImageOps.exif_transpose(pillow.open(io.BytesIO(data)))).astype(int)
    height, width, _ = upright.shape
    parts = [(0, 0, height, width), (10, 20, 90, 140), (1, 0, 50, width), (height - 40, 33, height, 99)]
    codes = [Code(np.frombuffer(data, np.uint8), part, orientation) for part in parts]
    device = open_device(CUDAPlace(0))
    stream = device.stream()
    for part, code, picture in zip(parts, codes, codec.decode(codes, stream), strict=True):
        assert picture is not None, f"the GPU decodes no region of a picture of orientation {orientation}"
        top, left, bottom, right = part
        memory = device.alloc(int(np.prod(code.shape)))
        codec.copy(memory, picture, stream, 0)
        event = device.event()
        device.record(event, stream)
        device.synchronize(event)
        pointer = cupy.cuda.MemoryPointer(
            cupy.cuda.UnownedMemory(memory.address, memory.nbytes, memory, 0), 0
        )
        found = cupy.ndarray(code.shape, np.uint8, pointer).get().astype(int)
        apart = abs(found - upright[top:bottom, left:right])
        say(f"orientation {orientation}, {part}: mean {apart.mean():.3f}, most {apart.max()}")
        assert apart.mean() < 1


def test_two_runs_are_the_same_while_the_gpu_is_busy(torch):
    """The engine must not write into memory that earlier batches still read."""
    samples = make_files(64)
    busy = torch.randn(4096, 4096, device="cuda")

    def run():
        sums = []
        for batch in load(samples, "gpu:0", [*STEPS, FLOATS], output="torch", prefetch=3):
            for _ in range(20):
                busy.copy_(busy @ busy / 4096)
            sums.append(batch["image"].double().sum())
        return [float(one) for one in sums]

    quiet = [
        float(batch["image"].double().sum())
        for batch in load(samples, "gpu:0", [*STEPS, FLOATS], output="torch")
    ]
    assert run() == run() == quiet


def test_other_formats_and_broken_files():
    samples = make_files(16)
    samples[3]["image"] = encode(make_pixels(90, 120), "PNG")
    samples[5]["image"] = encode(pillow.fromarray(make_pixels(90, 120)).convert("CMYK"))
    assert len(list(load(samples, "gpu:0"))) == 2
    samples[9]["image"] = samples[9]["image"][:900]
    with pytest.raises(DecodeError, match="batch 1, sample 1"):
        list(load(samples, "gpu:0"))
    loader = load(samples, "gpu:0", on_bad="skip")
    assert [len(to_host(batch)) for batch in loader] == [8, 7]
    assert loader.stats().skipped == 1


def test_a_damaged_scan_is_decoded_as_somehow_as_on_a_cpu():
    """Inside of the compressed pixels, decoders notice different damage; none may hang or fail."""
    samples = make_files(8)
    data = bytearray(samples[2]["image"])
    middle = len(data) // 2
    data[middle : middle + 40] = bytes(range(40))
    samples[2]["image"] = bytes(data)
    assert len(list(load(samples, "gpu:0", on_bad="skip"))) == 1
