"""Encoded images have Pillow's pixels, whoever decodes them; what is no image is an error."""

import io
import pickle
import random
import struct
import warnings
import zlib

import numpy as np
import pytest

from gpuloader import DecodeError, Image, SampleError, SourceError
from gpuloader.sources.images import decoding
from gpuloader.sources.images.decoding import is_plain
from gpuloader.sources.images.image import Geometry
from tests.picture_files import decoded_by_pillow, encode, make_pixels, pillow, turned

BOTH = pytest.mark.parametrize("turbo", [True, False], ids=["simplejpeg", "pillow"])


@pytest.fixture
def by(monkeypatch):
    def choose(turbo):
        if turbo:
            pytest.importorskip("simplejpeg")
        else:
            monkeypatch.setattr(decoding, "load_turbo", lambda: None)

    return choose


def pixels_of(data, **options):
    return Image(data, **options).decode()


@pytest.mark.parametrize("size", [(64, 64), (37, 53), (1, 1), (16, 200)], ids=str)
@pytest.mark.parametrize("quality", [1, 30, 75, 95, 100])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpegs_have_pillows_pixels(size, quality, subsampling, progressive, by):
    by(turbo=True)
    data = encode(make_pixels(*size), quality=quality, subsampling=subsampling, progressive=progressive)
    assert Image(data).header.is_turbo
    np.testing.assert_array_equal(pixels_of(data), decoded_by_pillow(data))


PIXELS, GREY = make_pixels(21, 33), make_pixels(21, 33, 1)[..., 0]
OTHERS = {
    "grey JPEG": encode(GREY),
    "CMYK JPEG": encode(pillow.fromarray(PIXELS).convert("CMYK")),
    "grey PNG": encode(GREY, "PNG"),
    "PNG of 16 bits": encode(np.linspace(0, 65535, 600).astype(np.uint16).reshape(20, 30), "PNG"),
    "PNG with transparency": encode(make_pixels(20, 30, 4), "PNG"),
    "PNG with a palette": encode(pillow.fromarray(PIXELS).convert("P"), "PNG"),
    "lossless WebP": encode(PIXELS, "WEBP", lossless=True),
    **{form: encode(PIXELS, form) for form in ("PNG", "WEBP", "BMP", "GIF", "TIFF")},
}


@BOTH
@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_all_formats_have_pillows_pixels(data, turbo, by):
    by(turbo)
    got = pixels_of(data)
    assert (got.dtype, got.flags.c_contiguous, got.flags.writeable) == (np.uint8, True, True)
    np.testing.assert_array_equal(got, decoded_by_pillow(data))


@BOTH
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright_if_asked(orientation, form, turbo, by):
    from PIL import ImageOps

    by(turbo)
    data = encode(make_pixels(21, 33), form, **turned(orientation))
    np.testing.assert_array_equal(pixels_of(data), decoded_by_pillow(data))  # as torchvision takes them
    upright = np.asarray(ImageOps.exif_transpose(pillow.open(io.BytesIO(data))).convert("RGB"))
    assert Image(data, upright=True).shape == upright.shape
    np.testing.assert_array_equal(pixels_of(data, upright=True), upright)


def bomb(height=100_000, width=100_000):
    """A PNG whose header promises many pixels, and whose few bytes would expand to zeros."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1 << 20))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def jpeg_bomb():
    """A JPEG of 8 x 8 pixels whose header promises 65,000 x 65,000."""
    data = bytearray(encode(make_pixels(8, 8)))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 65000, 65000)
    return bytes(data)


BAD = {
    "empty": (b"", "the file is empty"),
    "text": (b"this is not a image", "cannot decode the image: its data is in no format"),
    "half of a JPEG": (encode(make_pixels(64, 64))[:800], "cannot decode"),
    "the head of a JPEG": (encode(make_pixels(64, 64))[:10], "cannot decode"),
    "half of a PNG": (encode(make_pixels(64, 64), "PNG")[:3000], "cannot decode"),
    "half of a WebP": (encode(make_pixels(64, 64), "WEBP")[:300], "cannot decode"),
    "a PNG bomb": (bomb(), "10000000000 pixels"),
    "a JPEG bomb": (jpeg_bomb(), r"65000 x 65000 pixels|4225000000 pixels"),
}


@BOTH
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_decoded_is_an_error_that_names_the_file(name, turbo, by):
    by(turbo)
    data, problem = BAD[name]
    with pytest.raises(DecodeError, match=problem) as caught:
        Image(data, "cat/1.jpg").decode()
    assert caught.value.file == "cat/1.jpg"
    assert str(caught.value).startswith("cat/1.jpg: ")
    assert isinstance(caught.value, SampleError)
    assert pickle.loads(pickle.dumps(caught.value)).file == "cat/1.jpg"


def test_the_limit_of_pixels_is_pillows(monkeypatch):
    data = encode(make_pixels(20, 30), "PNG")
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 200)
    with pytest.raises(DecodeError, match="exceeds limit of 400 pixels"):
        pixels_of(data)
    pytest.importorskip("simplejpeg")
    with pytest.raises(DecodeError, match=r"20 x 30 pixels, more than the 400"):
        pixels_of(encode(make_pixels(20, 30)))
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", None)
    assert pixels_of(data).shape == (20, 30, 3)


def test_a_warning_is_still_shown_only_once_while_images_are_decoded():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(3):
            pixels_of(encode(make_pixels(3, 4), "PNG"))
            warnings.warn("mind the step", UserWarning, stacklevel=1)
    assert len(said) == 1


def test_bytes_that_pillow_ignores_are_ignored(by):
    """libjpeg-turbo's wrapper refuses what libjpeg only warns of, so Pillow decides."""
    by(turbo=True)
    data = encode(make_pixels(64, 64))
    start = data.index(b"\xff\xda")
    odd = data[:start] + b"\x00" * 7 + data[start:]  # between two markers
    np.testing.assert_array_equal(pixels_of(odd), decoded_by_pillow(odd))


def test_numpy_takes_a_image_for_its_pixels(tmp_path):
    data, pixels = encode(make_pixels(20, 30), "PNG"), make_pixels(20, 30)
    image = Image(data, "a.png")
    assert (image.shape, image.dtype) == ((20, 30, 3), np.uint8)
    np.testing.assert_array_equal(np.asarray(image), pixels)
    assert np.asarray(image, np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="without a copy"):
        np.array(image, copy=False)
    assert repr(image) == f"<Image a.png: {len(data):,} bytes>"
    again = pickle.loads(pickle.dumps(image))
    assert (again.file, again.data) == ("a.png", data)
    np.testing.assert_array_equal(np.asarray(image.to_pillow()), pixels)
    with pytest.raises(SourceError, match=r"missing\.jpg: cannot read the image: No such file"):
        Image.read(tmp_path / "missing.jpg")


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize(
    ("size", "eighths"), [((50, 60), 1), ((100, 120), 2), ((200, 200), 4), ((300, 300), 8)]
)
def test_the_decoder_shrinks_as_far_as_the_window_allows(size, eighths, upright):
    pytest.importorskip("simplejpeg")
    options = turned(6) if upright else {}
    image = Image(encode(make_pixels(*((21, 33) if upright else (401, 480))), **options), upright=upright)
    height, width, _ = image.shape
    size = size[0] * height // 401, size[1] * width // 480
    whole = Geometry.of(height, width)
    shrink, geometry = image.plan_decoding(whole.resized(size, "bilinear", scaled=True))
    tall, wide = image.decode_at(shrink).shape[:2]
    assert tall >= min(size[0], height)
    assert upright or shrink == eighths
    assert (tall, wide) == (-(-height * shrink // 8), -(-width * shrink // 8))
    assert geometry.box == pytest.approx((0, 0, wide, tall))
    assert image.plan_decoding(whole.resized(size, "bilinear"))[0] == 8


# Which files a GPU may decode: whole JPEG files of usual kinds, told by their markers.

SMALL = make_pixels(17, 23)


def segments(data):
    """Yield the marker of each segment before the first scan, where it begins, and where it ends."""
    at = 2
    while data[at + 1] != 0xDA:
        end = at + 2 + (data[at + 2] << 8 | data[at + 3])
        yield data[at + 1], at, end
        at = end


def find(data, wanted):
    """Return where the first segment with a marker begins."""
    return next(at for marker, at, _ in segments(data) if marker == wanted)


def without(data, unwanted):
    """Return a file without the segments of a marker before its first scan."""
    for marker, at, end in reversed(list(segments(data))):
        data = data[:at] + data[end:] if marker == unwanted else data
    return data


def changed(data, at, value):
    return data[:at] + bytes([value]) + data[at + 1 :]


@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}, {"optimize": True}, {"quality": 1}],
)
def test_usual_files_are_plain(options):
    assert is_plain(encode(SMALL, **options))
    assert is_plain(encode(pillow.fromarray(SMALL).convert("L"), **options))


def test_metadata_padding_and_what_follows_the_end_do_not_matter():
    end = b"\xff\xd9"
    data = encode(SMALL, exif=b"Exif\0\0" + end * 40, comment=end, icc_profile=end * 9)
    at = find(data, 0xDB)
    for plain in (data, data + b"\0" * 100, data[:at] + b"\xff\xff" + data[at:], bytearray(data)):
        assert is_plain(plain)
    assert not any(is_plain(data[:size]) for size in range(len(data)))  # which is truncated


JPEG = encode(SMALL)
FRAME = find(JPEG, 0xC0)
NOT_PLAIN = {
    **{form: encode(SMALL, form) for form in ("PNG", "WEBP", "GIF", "BMP", "TIFF")},
    "CMYK": encode(pillow.fromarray(SMALL).convert("CMYK")),
    **{f"without {marker:x}": without(JPEG, marker) for marker in (0xDB, 0xC4, 0xC0)},
    **{f"a frame of kind {kind:x}": changed(JPEG, FRAME + 1, kind) for kind in (0xC3, 0xC5, 0xC9, 0xCF)},
    **{
        f"{value} at {offset}, a depth or sampling": changed(JPEG, FRAME + offset, value)
        for offset, value in [(4, 12), (9, 2), (9, 4), (11, 0x33), (14, 0x21)]
    },
    "a height that comes later": changed(changed(JPEG, FRAME + 5, 0), FRAME + 6, 0),
}


@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_others_are_not(kind):
    assert not is_plain(NOT_PLAIN[kind])


def test_rgb_is_not():
    named = JPEG
    for number, name in enumerate(b"RGB"):
        named = changed(named, FRAME + 10 + 3 * number, name)
    assert not is_plain(named)
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"
    assert is_plain(JPEG[:2] + adobe + b"\x01" + JPEG[2:])
    assert not is_plain(JPEG[:2] + adobe + b"\x00" + JPEG[2:])


def test_damage_never_raises():
    draw = random.Random(5)
    for _ in range(2000):
        broken = bytearray(JPEG)
        for _ in range(draw.randrange(1, 6)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        assert is_plain(bytes(broken)) in (True, False)
    assert not any(is_plain(draw.randbytes(size)) for size in range(12))
