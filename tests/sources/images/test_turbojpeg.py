"""Parts of JPEGs have the pixels of the whole, whatever is read of the rest."""

import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuloader import DecodeError, Image
from gpuloader.sources.images import turbojpeg
from gpuloader.sources.images.image import as_image
from gpuloader.sources.images.turbojpeg import TurboJPEG, load_turbojpeg
from tests.picture_files import encode, make_pixels, pillow, turned

LIBRARY = load_turbojpeg()
if LIBRARY is None:
    pytest.skip("TurboJPEG 3 is not installed", allow_module_level=True)


def decode_part(image, shrink, part):
    """Return exactly the part, as `Image.decode_part` finds it."""
    found = image.find_decodable(shrink, part)
    return cut(image.decode_part(shrink, found), part, found).copy()


def cut(pixels, part, found):
    (top, left, bottom, right), (y, x, _, _) = part, found
    return pixels[top - y : bottom - y, left - x : right - x]


@st.composite
def parts(draw, height, width):
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return top, left, draw(st.integers(top + 1, height)), draw(st.integers(left + 1, width))


SUBSAMPLINGS = ["4:4:4", "4:2:2", "4:2:0", "4:1:1"]


def encode_by_turbo(pixels, subsampling):
    space = {"colorspace": "GRAY"} if subsampling == "Gray" else {"colorsubsampling": subsampling}
    return pytest.importorskip("simplejpeg").encode_jpeg(np.ascontiguousarray(pixels), **space)


def decode_by_library(image, part, shrink=8):
    """Return the part, decoded by TurboJPEG for sure."""
    found = image.find_decodable(shrink, part)
    out = np.empty((found[2] - found[0], found[3] - found[1], 3), np.uint8)
    assert LIBRARY.decode_part(image.data, found, shrink, out)
    return cut(out, part, found)


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411", "Gray"])
def test_narrow_parts_at_the_right_edge(subsampling):
    for width in [1, 7, 8, 9, *range(15, 26), 33, 39, 40, 65]:
        image = Image(encode_by_turbo(make_pixels(20, width, 1 if subsampling == "Gray" else 3), subsampling))
        whole = image.decode()
        for left in range(max(width - 9, 0), width):
            part = (5, left, 12, width)
            for found in (decode_by_library(image, part), decode_part(image, 8, part)):
                np.testing.assert_array_equal(found, whole[5:12, left:])


@pytest.mark.parametrize("subsampling", ["440", "411", "420"])
@pytest.mark.parametrize("shrink", [2, 4, 8])
def test_large_parts_have_the_pixels_of_the_whole(subsampling, shrink):
    image = Image(encode_by_turbo(make_pixels(301, 403), subsampling))
    whole, rng = np.array(image.decode_at(shrink)), np.random.default_rng(0)
    for _ in range(12):
        top, left = (int(rng.integers(length)) for length in whole.shape[:2])
        bottom, right = int(rng.integers(top, len(whole))) + 1, int(rng.integers(left, whole.shape[1])) + 1
        part = decode_by_library(image, (top, left, bottom, right), shrink)
        np.testing.assert_array_equal(part, whole[top:bottom, left:right])


@given(
    st.data(),
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.sampled_from(SUBSAMPLINGS),
    st.sampled_from([5, 60, 95]),
    st.sampled_from([{}, {"restart_marker_blocks": 2}, {"optimize": True}]),
    st.sampled_from([1, 2, 4, 8]),
)
def test_a_part_has_the_pixels_of_the_whole(data, size, subsampling, quality, options, shrink):
    # Fewer pixels have the same size at some eighths, and simplejpeg goes by the size.
    assume(shrink == 8 or max(size) >= 8)
    encoded = encode(make_pixels(*size), quality=quality, subsampling=subsampling, **options)
    image = Image(encoded)
    whole = np.asarray(image.decode_at(shrink)).copy()
    part = data.draw(parts(*whole.shape[:2]))
    top, left, bottom, right = part
    np.testing.assert_array_equal(decode_by_library(image, part, shrink), whole[top:bottom, left:right])
    np.testing.assert_array_equal(decode_part(image, shrink, part), whole[top:bottom, left:right])


def test_only_what_is_needed_is_decoded_and_where_it_is_wanted():
    image, out = Image(encode(make_pixels(60, 80), subsampling="4:2:0")), np.empty((10, 33, 3), np.uint8)
    part = image.find_decodable(8, (20, 40, 30, 64))
    assert part == (20, 32, 30, 65)
    assert image.decode_part(8, part).shape == (10, 33, 3)
    assert image.decode_part(8, part, out) is out
    np.testing.assert_array_equal(out[:, 8:-1], image.decode()[20:30, 40:64])


PROGRESSIVE = encode(make_pixels(20, 30), progressive=True)
SCANS = [at for at in range(len(PROGRESSIVE) - 1) if PROGRESSIVE[at : at + 2] == b"\xff\xda"]


UNFIT = {
    "progressive": PROGRESSIVE,
    "progressive, without its last scans": PROGRESSIVE[: SCANS[2]] + b"\xff\xd9",
    "PNG": encode(make_pixels(20, 30), "PNG"),
    "CMYK": encode(pillow.fromarray(make_pixels(20, 30)).convert("CMYK")),
    "more behind its end": encode(make_pixels(20, 30)) + b"more",
    "cut off": encode(make_pixels(20, 30))[:-60] + b"\xff\xd9",
}


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("kind", UNFIT)
def test_what_is_not_decoded_in_part_is_decoded_as_a_whole(kind, into):
    image = Image(UNFIT[kind])
    part = (12, 3, 20, 9)
    out = np.empty((8, 6, 3), np.uint8) if into else None
    pixels = image.decode_part(8, part, out)
    assert pixels.flags.c_contiguous
    assert not into or pixels is out
    np.testing.assert_array_equal(pixels, np.asarray(image.decode_at(8))[12:20, 3:9])
    if kind != "cut off" and "progressive" not in kind:  # which show only when they are decoded
        assert image.find_decodable(8, part) == part


@pytest.mark.parametrize("kind", [bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_encoded_data_may_lie_in_any_memory(kind):
    encoded = encode(make_pixels(40, 50))
    value = {"bytes": kind(encoded), "path": None}
    for image in (Image(kind(encoded)), as_image(value)):
        np.testing.assert_array_equal(decode_part(image, 8, (3, 4, 9, 9)), image.decode()[3:9, 4:9])


def test_a_file_that_is_cut_off_below_the_part_is_an_error_all_the_same():
    image = Image(encode(make_pixels(60, 80))[:-300], "cut.jpg")
    with pytest.raises(DecodeError, match=r"cut\.jpg: .* truncated"):
        image.decode_part(8, (0, 0, 8, 8))


def test_a_turned_image_is_decoded_as_a_whole():
    encoded = encode(make_pixels(20, 30), **turned(6))
    assert Image(encoded).find_decodable(8, (4, 0, 9, 5)) == (4, 0, 9, 8)
    image = Image(encoded, upright=True)
    assert image.find_decodable(8, (4, 0, 9, 5)) == (4, 0, 9, 5)
    np.testing.assert_array_equal(image.decode_part(8, (4, 0, 9, 5)), image.decode()[4:9, :5])


def test_damaged_files_have_the_same_pixels_in_part():
    for seed in range(150):
        rng = np.random.default_rng(seed)
        data = bytearray(encode(make_pixels(60, 80), quality=70, restart_marker_rows=int(rng.integers(2))))
        place = int(rng.integers(2, len(data) - 2))
        data[place : place + int(rng.integers(4))] = rng.bytes(int(rng.integers(4)))
        image = Image(bytes(data))
        try:
            whole = np.asarray(image.decode_at(8)).copy()
        except ValueError:
            continue
        assert whole.shape == image.shape
        top, left = int(rng.integers(image.shape[0])), int(rng.integers(image.shape[1]))
        part = top, left, min(top + 20, image.shape[0]), min(left + 20, image.shape[1])
        expected = whole[part[0] : part[2], part[1] : part[3]]
        np.testing.assert_array_equal(decode_part(image, 8, part), expected)


def test_a_handle_serves_again_after_damaged_data():
    library, out = TurboJPEG(LIBRARY.library), np.empty((15, 32, 3), np.uint8)
    sound = encode(make_pixels(40, 50))
    expected = Image(sound).decode()[5:20, 10:30]
    for data in (sound, sound[:200] + b"\0" * 300, b"", b"\xff\xd8\xff", sound):
        assert library.decode_part(data, (5, 0, 20, 32), 8, out) == (data is sound)
    np.testing.assert_array_equal(out[:, 10:30], expected)
    assert len(library._idle) == 1


def test_many_threads_decode_at_once():
    encoded = [encode(make_pixels(90, 120, seed=seed)) for seed in range(4)]
    wholes = [Image(data).decode() for data in encoded]

    def check(number):
        top, left = number % 40, number % 70
        part = decode_part(Image(encoded[number % 4]), 8, (top, left, top + 40, left + 40))
        return np.array_equal(part, wholes[number % 4][top : top + 40, left : left + 40])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(400)))
    assert len(LIBRARY._idle) <= 9


@pytest.mark.parametrize("size", [(10, 10), (10, 30), (20, 10)], ids=str)
def test_a_header_that_promises_another_size_is_no_reason_to_read_beyond(size):
    data = bytearray(encode(make_pixels(20, 30)))
    at = data.index(b"\xff\xc0") + 5
    assert data[at : at + 4] == struct.pack(">HH", 20, 30)
    data[at : at + 4] = struct.pack(">HH", *size)
    assert not LIBRARY.decode_part(bytes(data), (5, 0, 20, 30), 8, np.empty((15, 30, 3), np.uint8))


@pytest.mark.parametrize("missing", [OSError("no such library"), AttributeError("tj3Init")])
def test_without_turbojpeg_3_images_are_decoded_as_a_whole(monkeypatch, missing):
    def fail(library):
        raise missing

    monkeypatch.setattr(turbojpeg.ctypes, "CDLL", fail)
    assert load_turbojpeg.__wrapped__() is None
    monkeypatch.setattr(turbojpeg, "load_turbojpeg", lambda: None)
    image = Image(encode(make_pixels(20, 30)))
    assert image.find_decodable(8, (12, 3, 20, 9)) == (12, 3, 20, 9)
    np.testing.assert_array_equal(image.decode_part(8, (12, 3, 20, 9)), image.decode()[12:20, 3:9])


def test_the_library_of_the_system_is_taken_where_no_package_has_one_that_loads(monkeypatch, tmp_path):
    broken = tmp_path / "turbojpeg.libs" / "libturbojpeg-1.so"
    broken.parent.mkdir()
    broken.write_bytes(b"no library")

    class Files:
        files = (broken, tmp_path / "turbojpeg.so", tmp_path / "turbojpeg.libs" / "libother.so")

    def missing(name):
        raise turbojpeg.PackageNotFoundError(name)

    for path in Files.files:
        monkeypatch.setattr(type(path), "locate", lambda path: path, raising=False)
    monkeypatch.setattr(turbojpeg, "_SYSTEM", LIBRARY.library)
    asked, real = [], turbojpeg.ctypes.CDLL
    monkeypatch.setattr(turbojpeg.ctypes, "CDLL", lambda path: asked.append(path) or real(path))
    for find, found in ((missing, []), (lambda name: Files, [str(broken)])):
        monkeypatch.setattr(turbojpeg, "distribution", find)
        asked.clear()
        assert load_turbojpeg.__wrapped__() is not None
        assert asked == [*found, LIBRARY.library]
