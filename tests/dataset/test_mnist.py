"""`gpuloader.dataset.mnist`: the readers of Paddle's tutorials, over files that are there already."""

import gzip
import struct
import subprocess
import sys
import warnings

import numpy as np
import pytest

import gpuloader
from gpuloader.dataset import mnist
from gpuloader.sources.mnist import sample

COUNT = 10_050  # the validation set takes 10,000 of them


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.delenv("GPULOADER_MNIST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    mnist._load.cache_clear()
    yield tmp_path
    mnist._load.cache_clear()


def write_idx(folder):
    """Write four IDX files, as Paddle downloads them, and return the gray levels and labels in them."""
    digits = sample().train
    levels = np.resize((digits.images * 256).astype(np.uint8), (COUNT, 784))
    labels = np.resize(digits.labels.astype(np.uint8), COUNT)
    folder.mkdir(parents=True)
    for kind, content in (
        ("images-idx3", struct.pack(">IIII", 2051, COUNT, 28, 28) + levels.tobytes()),
        ("labels-idx1", struct.pack(">II", 2049, COUNT) + labels.tobytes()),
    ):
        for name in ("train", "t10k"):
            (folder / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(content, 1))
    return levels, labels


def check(reader, levels, labels):
    expected = levels.astype(np.float32) / 255.0 * 2.0 - 1.0
    for (image, label), wanted, number in zip(reader(), expected, labels, strict=True):
        assert (type(label), label) == (int, number)
        assert (image.dtype, image.shape, image.tobytes()) == (np.float32, (784,), wanted.tobytes())


def test_the_digits_in_the_package_come_with_a_warning():
    with pytest.warns(UserWarning, match="GPULOADER_MNIST") as warned:
        train = mnist.train()
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="5,000 digits"):
        test = mnist.test()
    digits = sample()
    levels = np.concatenate([digits.train.images, digits.valid.images]) * 256
    labels = np.concatenate([digits.train.labels, digits.valid.labels])
    for _ in range(2):  # a reader starts afresh
        check(train, levels, labels)
    check(test, digits.test.images * 256, digits.test.labels)
    assert (len(levels), len(digits.test)) == (4500, 500)


def test_the_variable_names_the_full_data(monkeypatch, tmp_path):
    monkeypatch.setenv("GPULOADER_MNIST", "/no/such/file")
    with pytest.raises(FileNotFoundError, match="GPULOADER_MNIST names '/no/such/file'"):
        mnist.train()
    levels, labels = write_idx(tmp_path / "idx")
    monkeypatch.setenv("GPULOADER_MNIST", str(tmp_path / "idx"))
    check(mnist.train(), levels, labels)
    check(gpuloader.dataset.mnist.test(), levels, labels)


def test_what_paddle_downloaded_is_read(home):
    levels, labels = write_idx(home / ".cache" / "paddle" / "dataset" / "mnist")
    check(mnist.train(), levels, labels)


def test_the_readers_serve_the_reader_decorators():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train = gpuloader.batch(gpuloader.reader.shuffle(mnist.train(), buf_size=500), batch_size=16)
    images, labels = zip(*next(train()), strict=True)
    assert np.array(images).shape == (16, 784)
    assert np.array(labels).dtype == np.int64


def test_importing_the_package_reads_no_digits():
    code = "import gpuloader, sys; print('gpuloader.sources.mnist.digits' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_it_is_paddles_reader(tmp_path, monkeypatch):
    """The same files, read by Paddle: the same bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paddle = pytest.importorskip("paddle")
    folder = tmp_path / "idx"
    write_idx(folder)
    monkeypatch.setenv("GPULOADER_MNIST", str(folder))
    files = [str(folder / f"train-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")]
    for theirs, ours in zip(paddle.dataset.mnist.reader_creator(*files, 50)(), mnist.train()(), strict=True):
        assert (ours[0].tobytes(), ours[1]) == (theirs[0].tobytes(), theirs[1])
