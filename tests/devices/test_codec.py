"""nvImageCodec: over a stand-in with its interface, and the real one with its CPU decoders if it is there."""

import ctypes
import gc
import hashlib
import importlib.util
import io
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gpuloader import DataLoader, DecodeError
from gpuloader.devices import codec as codecs
from gpuloader.devices import cuda_device, places
from gpuloader.devices.codec import JpegCodec
from gpuloader.devices.places import CUDAPlace, open_device
from gpuloader.errors import LoaderError, MissingPackage
from gpuloader.sources.images.regions import Code
from gpuloader.transforms import Normalize, RandomFlip, RandomResizedCrop
from tests.fakes import no_other_collection
from tests.fakes_cuda import read
from tests.picture_files import decoded_by_pillow, encode, make_pixels, pillow, turned

nvimgcodec = pytest.importorskip("tests.fakes_nvimgcodec", reason="Pillow is not installed")

STEPS = [RandomResizedCrop("image", 24), RandomFlip("image"), Normalize("image", 0.5, 0.25, scale=1 / 255)]


def make_files(count=12):
    forms = [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("JPEG", {"subsampling": 0})]
    pixels = [make_pixels(50 + 3 * number, 80 - 2 * number, seed=number) for number in range(count)]
    encoded = [encode(one, form, **how) for one, (form, how) in zip(pixels, forms * count, strict=False)]
    return [{"image": data, "label": number} for number, data in enumerate(encoded)]


@pytest.fixture
def runtime(runtime):
    runtime.devices = 2
    return runtime


def install(monkeypatch, module):
    """Let ``from nvidia import nvimgcodec`` return a module, or raise ImportError for None."""
    package = ModuleType("nvidia")
    package.__path__ = []
    if module is not None:
        package.nvimgcodec = module
    monkeypatch.setitem(sys.modules, "nvidia", package)
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", module)


def load(places, samples, **options):
    options = {"batch_size": 4, "seed": 3, "decode": "device", "transforms": STEPS, **options}
    return DataLoader(samples, places=places, **options)


def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


def expect(samples, **options):
    return [digest(batch["image"]) for batch in load("cpu", samples, decode="image", **options)]


def collect(runtime, loader):
    """Return the pixels of all batches; the last one is still used while the next is made."""
    found, before = [], None
    for batch in loader:
        if before is not None:
            runtime.finish()
            found.append(digest(read(before)))
        before = batch["image"]
    runtime.finish()
    return [*found, digest(read(before))]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_batches_are_those_of_a_cpu_place(runtime, monkeypatch, late, prefetch):
    module = nvimgcodec.make_module(runtime, late=late)
    install(monkeypatch, module)
    samples = make_files(40)
    assert collect(runtime, load("gpu:0", samples, prefetch=prefetch)) == expect(samples)
    counts = [count for count, _, _ in module.calls[1:]]
    assert sum(counts) == 30  # three of four files are JPEG
    assert len(counts) == 10
    streams = {stream for _, _, stream in module.calls[1:]}
    assert len(streams) == 1
    assert streams != {0}


def test_it_does_not_end_a_capture_by_another_thread(runtime, monkeypatch):
    install(monkeypatch, nvimgcodec.make_module(runtime))
    samples = make_files()
    runtime.begin_capture(99)
    assert collect(runtime, load("gpu:0", samples)) == expect(samples)
    runtime.end_capture(99)


def test_what_it_is_asked_for(runtime, monkeypatch):
    module = nvimgcodec.make_module(runtime)
    install(monkeypatch, module)
    load("gpu:1", make_files(4))
    kinds = nvimgcodec.BackendKind
    assert module.made.device_id == 1
    assert kinds.CPU_ONLY not in module.made.backends
    assert set(module.made.backends) == {kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU}
    assert ":fancy_upsampling=1" in module.made.options
    assert open_device(CUDAPlace(1)).codec() is open_device(CUDAPlace(1)).codec()


def test_what_it_refuses_the_cpu_decodes(runtime, monkeypatch):
    samples = make_files()
    refused = {samples[number]["image"] for number in (0, 5)}
    install(monkeypatch, nvimgcodec.make_module(runtime, refuses=lambda data: data in refused))
    assert collect(runtime, load("gpu:0", samples)) == expect(samples)


def test_each_gpu_decodes_its_batches(runtime, monkeypatch):
    install(monkeypatch, nvimgcodec.make_module(runtime, late=True))
    samples, found = make_files(16), []
    for step in load(["gpu:0", "gpu:1"], samples):
        runtime.finish()
        found += [digest(read(batch["image"])) for batch in step]
    assert found == expect(samples)


def make_files_with_a_broken_one():
    samples = make_files()
    data = samples[5]["image"]
    start = data.rindex(b"\xff\xda")
    samples[5]["image"] = data[: start + 2] + b"\x00\x06\x00\x00\x3f\x00" + data[start + 14 :]
    return samples


def test_a_broken_file_is_an_error_that_names_it(runtime, monkeypatch):
    install(monkeypatch, nvimgcodec.make_module(runtime))
    with pytest.raises(DecodeError, match="batch 1, sample 1, dataset index 5, field 'image'"):
        list(load("gpu:0", make_files_with_a_broken_one()))
    runtime.finish()


def test_the_images_beside_a_broken_one_are_freed_with_the_error(runtime, monkeypatch):
    """As garbage, they could be collected after the stream on which their memory is freed."""
    install(monkeypatch, nvimgcodec.make_module(runtime))
    with no_other_collection():
        with pytest.raises(DecodeError):
            list(load("gpu:0", make_files_with_a_broken_one(), batch_size=12))
        runtime.finish()
        assert not [one for one in gc.get_objects() if isinstance(one, nvimgcodec.Image)]


def test_without_the_package_the_error_names_the_extra(runtime, monkeypatch):
    install(monkeypatch, None)
    with pytest.raises(MissingPackage, match=r"nvImageCodec.*\[nvimgcodec-cu13\]"):
        load("gpu:0", make_files(4))
    runtime.built = 12090
    with pytest.raises(MissingPackage, match=r"\[nvimgcodec-cu12\]"):
        load("gpu:0", make_files(4))
    assert expect(make_files(4))
    load("cpu", make_files(4))  # where the CPU decodes, nothing is missing


def test_a_decoder_that_fails_is_a_loader_error(runtime, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("CUDA error 700")

    module = nvimgcodec.make_module(runtime)
    install(monkeypatch, module)
    loader = load("gpu:0", make_files(8))
    monkeypatch.setattr(module.Decoder, "decode", fail)
    with pytest.raises(LoaderError, match=r"gpu:0: nvImageCodec failed: .*CUDA error 700"):
        list(loader)
    places._opened.clear()
    monkeypatch.setattr(module, "Decoder", fail)
    with pytest.raises(LoaderError, match="CUDA error 700"):
        load("gpu:0", make_files(4))
    install(monkeypatch, nvimgcodec.make_module(runtime, refuses=lambda data: True))
    with pytest.raises(LoaderError, match=r"gpu:0: nvImageCodec 0.9.0 cannot decode JPEG files: a trial"):
        load("gpu:0", make_files(4))


def test_a_picture_that_it_takes_for_another_is_left_to_the_cpu():
    codec = make_codec(nvimgcodec.make_module())
    data = np.frombuffer(encode(make_pixels(20, 30)), np.uint8)
    codes = [
        Code(data, (0, 0, 40, 40), 1),
        Code(np.zeros(9, np.uint8), (0, 0, 4, 4), 1),
        Code(data, (0, 0, 30, 20), 6),  # turned, says our reader; the decoder finds no such note in the file
    ]
    assert [codec.decode([code], None) for code in codes] == [[None]] * 3


def test_a_whole_picture_is_no_region():
    module = nvimgcodec.make_module()
    data = np.frombuffer(encode(make_pixels(20, 30)), np.uint8)
    parts = [(0, 0, 20, 30), (1, 0, 18, 30), (0, 0, 20, 9)]
    make_codec(module).decode([Code(data, part) for part in parts], None)
    found = [region and (region.start, region.end) for region in module.regions]
    assert found == [None, None, ((0, 0), (20, 11))]


def make_codec(module, backends=()):
    """Return a codec whose copies between memories run at once."""

    def copy(dst, dpitch, src, spitch, width, height, kind, stream):
        for row in range(height):
            ctypes.memmove(dst + row * dpitch, src + row * spitch, width)

    return JpegCodec(module, -99999, backends, SimpleNamespace(memcpy2DAsync=copy))


def take(codec, codes):
    """Return the pixels that a codec decodes, None for each that it does not."""
    stream, found = SimpleNamespace(ptr=0), []
    for code, picture in zip(codes, codec.decode(codes, stream), strict=True):
        pixels = None if picture is None else np.zeros(code.shape, np.uint8)
        if picture is not None:
            codec.copy(SimpleNamespace(address=pixels.ctypes.data - 8), picture, stream, 8)
        found.append(pixels)
    return found


def import_real():
    """Return the real package and the list of its decoders for the CPU, which need no GPU."""
    if importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.nvimgcodec") is None:
        pytest.skip("nvImageCodec is not installed")
    from nvidia import nvimgcodec as real

    return real, [real.Backend(real.BackendKind.CPU_ONLY)]


@pytest.fixture(params=["stand-in", "real"])
def codec(request):
    """Return a codec over the stand-in, and one over the real package with its decoders for the CPU."""
    return make_codec(nvimgcodec.make_module()) if request.param == "stand-in" else make_codec(*import_real())


def test_a_whole_loop_with_the_real_package(runtime, monkeypatch):
    """Its CPU decoders take the place of the GPU's; all else is as on a GPU."""
    module, backends = import_real()
    real = lambda _, calls: JpegCodec(module, -99999, backends, calls)  # noqa: E731
    monkeypatch.setattr(cuda_device, "open_codec", real)
    samples = make_files(40)
    assert collect(runtime, load("gpu:0", samples, prefetch=3)) == expect(samples)


PARTS = [(0, 0, 50, 70), (1, 1, 50, 70), (0, 0, 9, 9), (13, 7, 41, 60), (49, 69, 50, 70), (16, 16, 32, 32)]


@pytest.mark.parametrize("orientation", [None, *range(1, 9)])
def test_regions_are_those_of_the_upright_picture(codec, orientation):
    height, width = (70, 50) if (orientation or 1) > 4 else (50, 70)
    exif = {} if orientation is None else turned(orientation)
    data = encode(make_pixels(height, width, seed=3), quality=90, **exif)
    from PIL import ImageOps

    upright = np.asarray(ImageOps.exif_transpose(pillow.open(io.BytesIO(data))))
    code = np.frombuffer(data, np.uint8)
    codes = [Code(code, part, orientation or 1) for part in PARTS]
    for part, found in zip(PARTS, take(codec, codes), strict=True):
        top, left, bottom, right = part
        np.testing.assert_array_equal(found, upright[top:bottom, left:right])
    if height < width:  # as it is stored, whatever Exif says
        [found] = take(codec, [Code(code, (3, 4, 30, 40), 1)])
        np.testing.assert_array_equal(found, decoded_by_pillow(data)[3:30, 4:40])


def test_kinds_of_files(codec):
    good = [
        encode(make_pixels(40, 60, seed=1), **options)
        for options in ({}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}, {"quality": 20})
    ]
    good.append(encode(pillow.fromarray(make_pixels(40, 60)).convert("L")))
    bad = [b"", b"\xff\xd8garbage", good[0][:150]]
    codes = [Code(np.frombuffer(data, np.uint8), (5, 6, 35, 50), 1) for data in [*good, *bad]]
    found = take(codec, codes)
    assert [one is None for one in found] == [False] * len(good) + [True] * len(bad)
    for data, pixels in zip(good, found, strict=False):
        np.testing.assert_array_equal(pixels, decoded_by_pillow(data)[5:35, 6:50])


def test_the_trial_is_a_gray_picture():
    pixels = decoded_by_pillow(codecs._TRIAL)
    assert pixels.shape == (8, 8, 3)
    assert (pixels == 128).all()


def test_an_image_keeps_the_stream_that_it_was_decoded_on(runtime, monkeypatch):
    """Its memory is freed through that stream, also if nothing else refers to the stream any more."""
    install(monkeypatch, nvimgcodec.make_module(runtime))
    device = open_device(CUDAPlace(0))
    stream = device.stream()
    data = np.frombuffer(encode(make_pixels(20, 30)), np.uint8)
    images = device.codec().decode([Code(data, (0, 0, 20, 30), 1)], stream)
    number = stream.ptr
    del stream
    assert images != [None]
    assert number not in runtime.destroyed
    images.clear()
    assert number in runtime.destroyed
