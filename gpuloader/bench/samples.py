"""The datasets that every library loads: plain classes over NumPy, importable by worker processes."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable, Iterator
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

    def take(self, indices: list[int]) -> Sample:
        """Return whole fields of these samples, as those who index once a batch do."""
        rows = np.asarray(indices) % len(self.images)
        return self.images[rows], self.labels[rows]


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

    def take(self, indices: list[int]) -> Sample:
        """Return the whole field of these samples."""
        return (self.rows[indices],)


class Stream:
    """What can only be read from its beginning: samples, or batches that are ready; `length` of them."""

    def __init__(self, items: list[Any], length: int) -> None:
        self.items = items
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(itertools.cycle(self.items), self.length)

    def samples(self) -> Iterator[Any]:
        """Give the items with lists made into arrays, for loaders that would take a list for many fields."""
        if isinstance(self.items[0][0], list):
            return ((np.asarray(image, np.float32), label) for image, label in self)
        return iter(self)


# One copy a process, shared by its candidates.


@cache
def flat_images(length: int) -> Arrays:
    """Return rows of 784 float32 and their labels."""
    generator = np.random.default_rng(0)
    return Arrays(generator.random((length, 784), np.float32), generator.integers(0, 10, length))


@cache
def digit_lists(length: int) -> DigitLists:
    """Return the first digits of those in the package, 4,000 at most, as lists."""
    from gpuloader.sources import mnist

    digits = mnist.sample().train
    return DigitLists(digits.images[:length].tolist(), digits.labels[:length].tolist())


@cache
def pictures(length: int) -> Arrays:
    """Return 256 pictures of 3 x 224 x 224 uint8 as a dataset of any length."""
    images = np.random.default_rng(0).integers(0, 255, (256, 3, 224, 224), np.uint8)
    return Arrays(images, np.arange(256), length)


@cache
def jpegs(length: int) -> Jpegs:
    """Return 64 files of 256 x 256 pixels, gradients under noise, as a dataset of any length."""
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
    return Jpegs(files, length)


@cache
def row_stream(length: int) -> Stream:
    """Return digits one by one, a row of 784 float32 and a label each."""
    from gpuloader.sources import mnist

    digits = mnist.sample().train
    return Stream([(image, np.int64(label)) for image, label in zip(*_fields(digits), strict=True)], length)


@cache
def list_stream(length: int) -> Stream:
    """Return digits one by one, a list of 784 Python floats and an int each, 400 of them in turn."""
    from gpuloader.sources import mnist

    images, labels = _fields(mnist.sample().train)
    return Stream(list(zip(images[:400].tolist(), labels[:400].tolist(), strict=True)), length)


@cache
def ready_rows(length: int) -> Stream:
    """Return one batch of 32 x 784 float32 with labels, again and again."""
    return Stream([[np.random.default_rng(0).random((32, 784), np.float32), np.arange(32)[:, None]]], length)


@cache
def ready_images(length: int) -> Stream:
    """Return one batch of 64 x 3 x 224 x 224 uint8 with labels, again and again."""
    pictures = np.random.default_rng(0).integers(0, 255, (64, 3, 224, 224), np.uint8)
    return Stream([[pictures, np.arange(64)]], length)


def _fields(digits: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    return digits.images, digits.labels


Maker = Callable[[int], Any]
"""Makes a dataset of so many samples, or of so many ready batches."""
