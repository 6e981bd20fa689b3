"""The loading code of Paddle's MNIST tutorials, with its import lines changed and nothing else.

They read the digits in the package: all 70,000 would take them longer than the rest of the folder.
"""

import functools
import gzip
import json
import re
import warnings

import numpy as np
import pytest

from gpuloader.dataset import mnist
from gpuloader.sources.mnist import load, sample
from tests.paddle_suite import tutorials

IMPORTS = {
    r"import paddle\.fluid as fluid$": "from gpuloader import fluid",
    r"import paddle$": "import gpuloader as paddle",
    r"from paddle\.io import": "from gpuloader.io import",
}
load_once = functools.cache(load)  # for all programs


@pytest.fixture(scope="module")
def datafile(tmp_path_factory):
    digits = sample()
    path = tmp_path_factory.mktemp("mnist") / "mnist.json.gz"
    sets = [
        [part.images.tolist(), part.labels.tolist()] for part in (digits.train, digits.valid, digits.test)
    ]
    path.write_bytes(gzip.compress(json.dumps(sets).encode(), 1))
    return str(path)


@pytest.fixture(scope="module")
def digits(datafile):
    return load_once(datafile)


@pytest.fixture
def run(datafile, monkeypatch):
    monkeypatch.setenv("GPULOADER_MNIST", datafile)
    monkeypatch.setattr(mnist, "_load", load_once)

    def run(program):
        """Return what a program's training loop would get, once its import lines name gpuloader."""
        for theirs, ours in IMPORTS.items():
            program = re.sub(f"^{theirs}", ours, program, flags=re.MULTILINE)
        assert not re.search("^(import|from) paddle", program, re.MULTILINE)
        names = {"datafile": datafile, "seen": []}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(program, "tutorial", "exec"), names)
        return names["seen"]

    return run


def check(epoch, expected, scale):
    """Check that an epoch has the digits in their order: images scaled as the program wants them."""
    images = np.concatenate([np.reshape(image, (-1, 784)) for image, _ in epoch])
    labels = np.concatenate([label for _, label in epoch])
    assert (images.dtype, labels.dtype) == (np.float32, np.int64)
    assert (labels == expected.labels[:, None]).all()
    assert (images == scale(expected.images)).all()
    assert len({np.shape(image)[1:] for image, _ in epoch}) == 1


def to_paddles_range(images):
    return images * 256 / np.float32(255) * 2 - 1


@pytest.mark.parametrize("program", ["READERS", "PROGRAMS", "STARTED", "DATASETS", "GENERATORS"])
def test_every_epoch_has_all_digits_in_order(run, digits, program):
    epochs = run(getattr(tutorials, program))
    assert len(epochs) in (2, 3)
    for epoch in epochs:
        if program == "GENERATORS":  # it makes its batches by itself
            assert {np.shape(image) for image, _ in epoch} == {(100, 1, 28, 28)}
            check(epoch, digits.valid, np.asarray)
        else:
            check(epoch, digits.test, to_paddles_range)
