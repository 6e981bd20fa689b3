"""The data sets that every library loads: plain classes over NumPy, importable by worker processes."""

from __future__ import annotations

import io
import os
import time
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sample = tuple[Any, ...]


class Arrays:
    """Rows of two arrays; a sample is views of them. `length` samples, the rows again and again."""

    def __init__(self, images: NDArray[Any], labels: NDArray[Any], length: int | None = None) -> None:
        self.images = images
        self.labels = labels
        self.length = length or len(images)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        row = index % len(self.images)
        return self.images[row], self.labels[row]


class DigitLists:
    """Digits as JSON gives them, lists of 784 Python floats, made into arrays a sample at a time."""

    def __init__(self, images: list[list[float]], labels: list[int]) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        image = np.array(self.images[index]).astype("float32")
        label = np.array([self.labels[index]]).astype("int64")
        return image, label


class Jpegs:
    """JPEG files in memory, decoded by Pillow and made 224 x 224 x 3 uint8."""

    def __init__(self, files: list[bytes], length: int) -> None:
        self.files = files
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        from PIL import Image

        picture = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        return np.array(picture.resize((224, 224))), np.int64(index)


class Waits:
    """Samples that a disk or a server takes 2 ms to give."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        time.sleep(0.002)
        return np.full(16, index, np.float32), np.int64(index)


class Rows:
    """Samples of a single field, a row of 32 float32."""

    def __init__(self, length: int) -> None:
        self.rows = np.random.default_rng(0).random((length, 32), np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return (self.rows[index],)


class Whose:
    """Small samples that name the process which made them."""

    def __init__(self, length: int) -> None:
        self.rows = np.random.default_rng(0).random((length, 32), np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return self.rows[index], np.int64(os.getpid())


# One copy a process, shared by its candidates.


@cache
def flat_images() -> Arrays:
    """Return 50,000 rows of 784 float32 and their labels, as many as MNIST has to train on."""
    generator = np.random.default_rng(0)
    return Arrays(generator.random((50_000, 784), np.float32), generator.integers(0, 10, 50_000))


@cache
def digit_lists() -> DigitLists:
    """Return the digits of the package as lists, the 4,000 to train on."""
    from gpuloader.sources import mnist

    digits = mnist.sample().train
    return DigitLists(digits.images.tolist(), digits.labels.tolist())


@cache
def pictures() -> Arrays:
    """Return 256 pictures of 3 x 224 x 224 uint8 as a data set of 4,096."""
    images = np.random.default_rng(0).integers(0, 255, (256, 3, 224, 224), np.uint8)
    return Arrays(images, np.arange(256), 4_096)


@cache
def jpegs() -> Jpegs:
    """Return 64 files of 256 x 256 pixels, gradients under noise, as a data set of 512."""
    from PIL import Image

    generator = np.random.default_rng(0)
    across, down = np.meshgrid(np.arange(256), np.arange(256))
    files = []
    for _ in range(64):
        slopes = generator.uniform(-1, 1, (2, 3))
        gradients = 128 + across[..., None] * slopes[0] / 2 + down[..., None] * slopes[1] / 2
        noisy = np.clip(gradients + generator.normal(0, 12, (256, 256, 3)), 0, 255)
        file = io.BytesIO()
        Image.fromarray(noisy.astype(np.uint8)).save(file, "jpeg", quality=90)
        files.append(file.getvalue())
    return Jpegs(files, 512)
