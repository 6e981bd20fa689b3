import gzip
import struct

import numpy as np
import pytest

from gpuloader.errors import DataFileError
from gpuloader.sources.mnist.digits import load_idx, read_idx
from tests.fakes import memory_below


def idx_bytes(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_folder(folder, *, packed=False, mark="-"):
    chance = np.random.default_rng(0)
    for name, count in (("train", 12), ("t10k", 4)):
        images = chance.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for kind, array in (("images", images), ("labels", np.arange(count, dtype=np.uint8) % 10)):
            content = idx_bytes(array)
            path = folder / f"{name}-{kind}{mark}idx{array.ndim}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", [(7,), (0,), (3, 5), (2, 28, 28)])
def test_an_array_comes_back(tmp_path, shape, packed):
    array = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    path = tmp_path / "any-name"
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    got = read_idx(path)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, array)


LABELS = idx_bytes(np.arange(5, dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "begin with 00 00 08"),
        (b"hello world", "begin with 00 00 08 .* got '68 65 6c 6c'"),
        (b"\0\0\x0d\1" + LABELS[4:], "begin with 00 00 08"),
        (b"\0\0\x08\4" + bytes(16), "01, 02 or 03"),
        (LABELS[:6], "expected 1 sizes of 4 bytes"),
        (LABELS[:-1], "expected 5 bytes of data.*got 4"),
        (LABELS + b"\0", "expected 5 bytes of data.*got more"),
        (b"\0\0\x08\3" + b"\xff" * 12, "at most 54,880,000 bytes"),
        (gzip.compress(LABELS)[:-9], "damaged"),
        (gzip.compress(LABELS)[:-8] + bytes(8), "damaged"),
    ],
)
def test_a_foreign_or_damaged_file_is_refused(tmp_path, content, problem):
    path = tmp_path / "labels-idx1-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataFileError, match=problem) as raised:
        read_idx(path)
    assert str(path) in str(raised.value)


def test_a_bomb_is_refused_within_the_bytes_of_its_header(tmp_path):
    path = tmp_path / "labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(LABELS + bytes(64 * 2**20), 1))
    with memory_below(4 * 2**20), pytest.raises(DataFileError, match="got more"):
        read_idx(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mark", ["-", "."])
def test_a_folder_becomes_three_sets(tmp_path, packed, mark):
    write_folder(tmp_path, packed=packed, mark=mark)
    mnist = load_idx(tmp_path, valid_count=3)
    assert [len(digits) for digits in (mnist.train, mnist.valid, mnist.test)] == [9, 3, 4]
    assert mnist.train.images.dtype == np.float32
    assert mnist.train.images.shape == (9, 784)
    assert mnist.valid.labels.tolist() == [9, 0, 1]
    levels = mnist.train.images * 256
    np.testing.assert_array_equal(levels, levels.astype(np.uint8))
    assert levels.max() > 200


def test_files_that_are_missing_or_do_not_fit_together_are_refused(tmp_path):
    write_folder(tmp_path)
    with pytest.raises(DataFileError, match="more than 10,000 training digits"):
        load_idx(tmp_path)
    with pytest.raises(ValueError, match="valid_count"):
        load_idx(tmp_path, valid_count=0)
    for name, array, problem in (
        ("train-labels-idx1-ubyte", np.zeros(11), r"expected 12 labels, got shape \(11,\)"),
        ("train-labels-idx1-ubyte", np.array([0] * 11 + [10]), "from 0 to 9, got 10 at row 11"),
        ("train-images-idx3-ubyte", np.zeros((12, 28, 27)), "images of 28 x 28"),
    ):
        (tmp_path / name).write_bytes(idx_bytes(array.astype(np.uint8)))
        with pytest.raises(DataFileError, match=problem):
            load_idx(tmp_path, valid_count=3)
    write_folder(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="t10k-labels-idx1-ubyte"):
        load_idx(tmp_path, valid_count=3)
    with pytest.raises(FileNotFoundError):
        read_idx(tmp_path / "absent")
