import gzip
import json

import numpy as np
import pytest

from gpuloader.errors import DataFileError, LoaderError
from gpuloader.sources.mnist import digits as mnist_json
from gpuloader.sources.mnist.digits import read_json
from tests.fakes import memory_below

RESULT_BYTES = 70_000 * 784 * 4
BUFFER_BYTES = 16 * 2**20


def small_sets(counts=(130, 3, 2)):
    chance = np.random.default_rng(0)
    return [
        [(chance.integers(0, 256, (count, 784)) / 256).tolist(), chance.integers(0, 10, count).tolist()]
        for count in counts
    ]


def write(folder, text):
    path = folder / "mnist.json.gz"
    path.write_bytes(gzip.compress(text, 1))
    return path


def write_sets(folder, sets, **style):
    return write(folder, json.dumps(sets, **style).encode())


@pytest.mark.parametrize("style", [{}, {"separators": (",", ":")}, {"indent": 1}])
@pytest.mark.parametrize("window", [64, 2**18])
def test_every_value_arrives(tmp_path, monkeypatch, style, window):
    monkeypatch.setattr(mnist_json, "_WINDOW_BYTES", window)
    sets = small_sets((3, 2, 1) if window == 64 else (130, 3, 2))
    mnist = read_json(write_sets(tmp_path, sets, **style))
    for (images, labels), digits in zip(sets, (mnist.train, mnist.valid, mnist.test), strict=True):
        assert digits.images.dtype == np.float32
        assert digits.labels.dtype == np.int64
        np.testing.assert_array_equal(digits.images, np.array(images, np.float32))
        assert digits.labels.tolist() == labels


def test_one_is_a_pixel_and_several_gzip_members_are_one_file(tmp_path):
    sets = small_sets((1, 1, 1))
    sets[1][0][0][5] = 1
    text = json.dumps(sets).encode()
    path = tmp_path / "mnist.json.gz"
    path.write_bytes(gzip.compress(text[:999]) + gzip.compress(text[999:]))
    assert read_json(path).valid.images[0, 5] == 1


def set_pixel(value):
    return lambda sets: sets[0][0][40].__setitem__(3, value)


def set_label(value):
    return lambda sets: sets[2][1].__setitem__(1, value)


@pytest.mark.parametrize(
    ("spoil", "where", "problem"),
    [
        (set_pixel(float("nan")), "set 'train', image 40", "from 0 to 1, got nan at position 3"),
        (set_pixel(255), "set 'train', image 40", "from 0 to 1, got 255 at position 3"),
        (set_pixel(-0.5), "set 'train', image 40", "from 0 to 1, got -0.5 at position 3"),
        (set_pixel(None), "set 'train', image 40", "only numbers: could not convert string ' null'"),
        (lambda sets: sets[0][0][40].pop(), "set 'train', image 40", "expected 784 numbers, got 783"),
        (lambda sets: sets[1][0][2].append(0.5), "set 'valid', image 2", "expected 784 numbers, got 785"),
        (lambda sets: sets[1][0].__setitem__(0, []), "set 'valid', image 0", "expected 784 numbers, got 0"),
        (lambda sets: sets[1][0].__setitem__(1, 7), "set 'valid', image 1", "of 784 numbers, got ', 7"),
        (lambda sets: sets[1].__setitem__(0, []), "set 'valid', image 0", "of 784 numbers, got ', [[]'"),
        (set_label(10), "labels of set 'test'", "integers from 0 to 9, got '10' at row 1"),
        (set_label(-1), "labels of set 'test'", "integers from 0 to 9, got '-1' at row 1"),
        (set_label(3.0), "labels of set 'test'", "integers from 0 to 9, got '3.0' at row 1"),
        (set_label("3"), "labels of set 'test'", "got '\"3\"' at row 1"),
        (set_label(True), "labels of set 'test'", "got 'true' at row 1"),
        (lambda sets: sets[0][1].pop(), "labels of set 'train'", "expected 45 labels"),
        (lambda sets: sets[0].pop(), "labels of set 'train'", "labels after the images"),
        (lambda sets: sets[0].append([]), "labels of set 'train'", "']' after the images and labels"),
        (lambda sets: sets.pop(), "set 'test'", "a list of 784 numbers, got ']'"),
        (lambda sets: sets.append(sets[0]), "end of the file", "']' after three sets"),
    ],
)
def test_a_wrong_value_is_reported_with_its_place(tmp_path, spoil, where, problem):
    sets = small_sets((45, 3, 2))  # more than one window
    spoil(sets)
    with pytest.raises(DataFileError) as raised:
        read_json(write_sets(tmp_path, sets))
    for part in (str(tmp_path), where, problem, "download the file again"):
        assert part in str(raised.value)
    assert isinstance(raised.value, LoaderError)
    assert isinstance(raised.value, ValueError)


def with_row(row):
    """Return a file's text whose images begin with these two numbers, followed by zeros."""
    one = b"[[[" + row + b", 0" * 782 + b"]], [7]]"
    return b"[" + b", ".join([one] * 3) + b"]"


NOTATIONS = b"0.0, 1.0", b"0,1", b" 0.25 ,\t0.10000000001 ", b" 0.25 ,\r\n1e-2 ", b"5E-1,0.5e+0"
NOTATIONS += b"0.0, 1e-400", b"0.1234567890123456789, 0.1234567890123456"


@pytest.mark.parametrize("row", NOTATIONS)
def test_a_row_takes_any_notation_of_json(tmp_path, row):
    images = read_json(write(tmp_path, with_row(row))).train.images
    assert images[0, :2].tolist() == np.array(json.loads(b"[" + row + b"]"), "f4").tolist()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"0.0, Infinity", "got inf at position 1"),
        (b"0.0, 1" + b"0" * 5000, "got inf at position 1"),
        (b'0.0, "1"', "only numbers"),
        (b"0.0, 0..5", "only numbers"),
        (b"0.0, 1 2", "only numbers"),
        (b"0.0\n0.5, 0.5", "only numbers"),
        (b"0.0, \xff", "only numbers"),
        (b"0.0, 1#", "only numbers"),
        (b"0.0, 1, ", "only numbers"),
    ],
)
def test_a_wrong_row_is_described(tmp_path, row, problem):
    with pytest.raises(DataFileError, match=problem):
        read_json(write(tmp_path, with_row(row)))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the text ends after 0 bytes"),
        (b"[[[[0.0]]]]", "valid gzip file.*[Nn]ot a gzipped file"),
        (b"PK\3\4 zip", "[Nn]ot a gzipped file"),
        (gzip.compress(b""), "the text ends after 0 bytes"),
        (gzip.compress(b'{"images": []}'), "a list of 784 numbers, got '{\"images"),
        (gzip.compress(b"\xff\xfe\x00"), "the text ends after 3 bytes"),
        (gzip.compress(b"[" * 100_000), "the text ends after 100,000 bytes"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path, content, problem):
    path = tmp_path / "mnist.json.gz"
    path.write_bytes(content)
    with pytest.raises(DataFileError, match=problem):
        read_json(path)


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.999])
def test_truncated_text_and_truncated_gzip_are_refused(tmp_path, kept):
    text = json.dumps(small_sets((20, 3, 2))).encode()
    path = write(tmp_path, text[: int(len(text) * kept)])
    with pytest.raises(DataFileError, match="the text ends after"):
        read_json(path)
    packed = gzip.compress(text)
    path.write_bytes(packed[: int(len(packed) * kept)])
    with pytest.raises(DataFileError, match="cut off after"):
        read_json(path)


def test_text_after_the_sets_and_a_damaged_byte_are_refused(tmp_path):
    text = json.dumps(small_sets((1, 1, 1))).encode()
    with pytest.raises(DataFileError, match=r"end of the file: expected .*, but the text ends"):
        read_json(write(tmp_path, text + b"\nx"))
    path = write(tmp_path, text + b" \n")
    assert len(read_json(path).test) == 1
    packed = bytearray(path.read_bytes())
    packed[-6] ^= 1  # which only the checksum tells
    path.write_bytes(bytes(packed))
    with pytest.raises(DataFileError, match="valid gzip file"):
        read_json(path)


def test_more_images_than_the_maximum_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist_json, "MAXIMUM_IMAGES", 5)
    assert len(read_json(write_sets(tmp_path, small_sets((2, 2, 1)))).train) == 2
    with pytest.raises(DataFileError, match=r"set 'test', image 1: expected at most 5 images"):
        read_json(write_sets(tmp_path, small_sets((2, 2, 2))))


BOMBS = {
    "endless row": (b"[[[[", b"0.0, "),
    "endless space": (b"[[[", b" "),
    "endless second row": (b"[[[[" + b"0.0, " * 783 + b"0.0], [", b"0.5,"),
    "endless nesting": (b"[[[", b"["),
    "endless labels": (b"[[[" + json.dumps([0.5] * 784).encode() + b"], [", b"7,"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_within_the_stated_memory(tmp_path, monkeypatch, bomb):
    head, filler = BOMBS[bomb]
    if bomb != "endless labels":
        monkeypatch.setattr(mnist_json, "MAXIMUM_TEXT_BYTES", 40 * 2**20)
    path = write(tmp_path, head + filler * (48 * 2**20 // len(filler)))
    with memory_below(RESULT_BYTES + BUFFER_BYTES), pytest.raises(DataFileError):
        read_json(path)


def test_the_longest_rows_and_labels_stay_within_the_stated_memory(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "mnist.json.gz")
    images = b", ".join([b"[" + b",".join([b"0.123456789012345678901234567"] * 784) + b"]"] * 70)
    labels = b"[" + b", ".join([b"7"] * 70) + b"]"
    one_set = b"[[" + images + b"], " + labels + b"]"
    path = write(tmp_path, b"[" + b",".join([one_set] * 3) + b"]")
    with memory_below(RESULT_BYTES + BUFFER_BYTES):
        assert len(read_json(path).test) == 70
