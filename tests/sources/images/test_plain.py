"""Which files a GPU may decode: whole JPEG files of usual kinds, told by their markers."""

import random

import pytest

from gpuloader.sources.images.decoding import is_plain
from tests.picture_files import encode, make_pixels, pillow

SMALL = make_pixels(17, 23)


def converted(mode):
    return pillow.fromarray(SMALL).convert(mode)


def find(data, *markers):
    """Return where the first segment with one of these markers begins."""
    at = 2
    while data[at + 1] not in markers:
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    return at


def without(data, *markers):
    """Return a file without the segments of these markers before its first scan."""
    kept, at = bytearray(data[:2]), 2
    while data[at + 1] != 0xDA:
        end = at + 2 + (data[at + 2] << 8 | data[at + 3])
        if data[at + 1] not in markers:
            kept += data[at:end]
        at = end
    return bytes(kept + data[at:])


def changed(data, at, value):
    return data[:at] + bytes([value]) + data[at + 1 :]


@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}, {"optimize": True}, {"quality": 1}],
)
def test_usual_files_are_plain(options):
    assert is_plain(encode(SMALL, **options))
    assert is_plain(encode(converted("L"), **options))


def test_metadata_padding_and_what_follows_the_end_do_not_matter():
    data = encode(
        SMALL, exif=b"Exif\0\0" + b"\xff\xd9" * 40, comment=b"\xff\xd9", icc_profile=b"\xff\xd9" * 9
    )
    assert is_plain(data)
    assert is_plain(data + b"\0" * 100)
    at = find(data, 0xDB)
    assert is_plain(data[:at] + b"\xff\xff" + data[at:])
    assert is_plain(bytearray(data))


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_other_formats_are_not(form):
    assert not is_plain(encode(SMALL, form))


def test_cmyk_is_not():
    assert not is_plain(encode(converted("CMYK")))


def test_rgb_is_not():
    data = encode(SMALL)
    at = find(data, 0xC0)
    named = data
    for number, name in enumerate(b"RGB"):
        named = changed(named, at + 10 + 3 * number, name)
    assert not is_plain(named)
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"
    assert is_plain(data[:2] + adobe + b"\x01" + data[2:])
    assert not is_plain(data[:2] + adobe + b"\x00" + data[2:])


def test_every_part_of_a_file_is_truncated():
    data = encode(SMALL, exif=b"Exif\0\0" + b"\xff\xd9" * 4)
    assert is_plain(data)
    assert not any(is_plain(data[:size]) for size in range(len(data)))


def test_missing_tables_and_frames():
    data = encode(SMALL)
    for markers in [(0xDB,), (0xC4,), (0xC0,)]:
        assert not is_plain(without(data, *markers))


@pytest.mark.parametrize("marker", [0xC3, 0xC5, 0xC9, 0xCF])
def test_lossless_and_arithmetic_frames_are_not(marker):
    data = encode(SMALL)
    assert not is_plain(changed(data, find(data, 0xC0) + 1, marker))


@pytest.mark.parametrize(("offset", "value"), [(4, 12), (9, 2), (9, 4), (11, 0x33), (14, 0x21)])
def test_depths_and_samplings_that_gpus_do_not_decode(offset, value):
    data = encode(SMALL)
    assert not is_plain(changed(data, find(data, 0xC0) + offset, value))


def test_a_height_that_comes_later_is_not():
    data = encode(SMALL)
    at = find(data, 0xC0)
    assert not is_plain(changed(changed(data, at + 5, 0), at + 6, 0))


def test_damage_never_raises():
    draw = random.Random(5)
    data = encode(SMALL)
    for _ in range(2000):
        broken = bytearray(data)
        for _ in range(draw.randrange(1, 6)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        assert is_plain(bytes(broken)) in (True, False)
    for size in range(12):
        assert not is_plain(draw.randbytes(size))
