"""The datasets that every library loads: plain NumPy classes that worker processes can import."""

from __future__ import annotations

import io
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sample = tuple[Any, ...]


class Arrays:
    """Rows of two arrays, repeated up to `length` samples; a sample is a view of each array."""

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
        """Return the fields of all these samples at once, for loaders that index once per batch."""
        rows = np.asarray(indices) % len(self.images)
        return self.images[rows], self.labels[rows]


class DigitLists:
    """Digits as parsed from JSON, lists of 784 Python floats; each sample is converted to arrays."""

    def __init__(self, images: list[list[float]], labels: list[int]) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        image = np.array(self.images[index]).astype("float32")
        label = np.array([self.labels[index]]).astype("int64")
        return image, label


class _Files:
    """JPEG files in memory, each several times if the dataset is longer."""

    SIZE = 224

    def __init__(self, files: list[bytes], length: int) -> None:
        self.files = files
        self.length = length

    def __len__(self) -> int:
        return self.length

    def file(self, index: int) -> bytes:
        """Return a sample's encoded picture."""
        return self.files[index % len(self.files)]


class Jpegs(_Files):
    """JPEG files in memory, decoded and resized by Pillow to 224 x 224 x 3 uint8."""

    def __getitem__(self, index: int) -> Sample:
        from PIL import Image

        picture = Image.open(io.BytesIO(self.file(index))).convert("RGB")
        return np.array(picture.resize((self.SIZE, self.SIZE))), np.int64(index)


class Pictures(_Files):
    """JPEG files in memory; a sample is what Pillow makes of one for training, as float32 of 3 x 224 x 224.

    A random window of the picture is resized, mirrored at random, and normalized.
    """

    MEAN = (0.485, 0.456, 0.406)
    STD = (0.229, 0.224, 0.225)

    def __init__(self, files: list[bytes], length: int, side: int = _Files.SIZE) -> None:
        super().__init__(files, length)
        self.side = side
        self._mean = 255 * np.array(self.MEAN, np.float32)
        self._std = 255 * np.array(self.STD, np.float32)

    def __getitem__(self, index: int) -> Sample:
        from PIL import Image

        picture = Image.open(io.BytesIO(self.file(index))).convert("RGB")
        box = draw_window(picture.height, picture.width)
        picture = picture.resize((self.side, self.side), Image.Resampling.BILINEAR, box)
        if random.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return self.normalize(np.asarray(picture)), np.int64(index)

    def normalize(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return pixels with mean 0 and deviation 1, channels first."""
        return np.ascontiguousarray(np.moveaxis((pixels - self._mean) / self._std, -1, -3))


def draw_window(height: int, width: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a window of 8 to 100 % of the area, as torchvision."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = random.randint(0, width - wide), random.randint(0, height - tall)
            return left, top, left + wide, top + tall
    return 0, 0, width, height


class Waits:
    """Samples that take 2 ms to arrive, as from a disk or a server."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        time.sleep(0.002)
        return np.full(16, index, np.float32), np.int64(index)


class Rows:
    """Samples with one field, a row of 32 float32."""

    def __init__(self, length: int) -> None:
        self.rows = np.random.default_rng(0).random((length, 32), np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return (self.rows[index],)

    def take(self, indices: list[int]) -> Sample:
        """Return the field of all these samples at once."""
        return (self.rows[indices],)


class Stream:
    """A stream of `length` samples or ready batches, which can be read only from its beginning."""

    def __init__(self, items: list[Any], length: int) -> None:
        self.items = items
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(itertools.cycle(self.items), self.length)

    def samples(self) -> Iterator[Any]:
        """Return the items with lists as arrays, for loaders that would treat a list as many fields."""
        if isinstance(self.items[0][0], list):
            return ((np.asarray(image, np.float32), label) for image, label in self)
        return iter(self)


# The cache keeps one copy per process, which its candidates share.


@cache
def flat_images(length: int) -> Arrays:
    """Return a dataset of rows of 784 float32 and their labels."""
    generator = np.random.default_rng(0)
    return Arrays(generator.random((length, 784), np.float32), generator.integers(0, 10, length))


@cache
def digit_lists(length: int) -> DigitLists:
    """Return the first of the packaged digits, at most 4,000, as lists."""
    from gpuloader.sources import mnist

    digits = mnist.sample().train
    return DigitLists(digits.images[:length].tolist(), digits.labels[:length].tolist())


@cache
def pictures(length: int) -> Arrays:
    """Return at most 256 pictures of 3 x 224 x 224 uint8 as a dataset of any length."""
    count = min(length, 256)
    images = np.random.default_rng(0).integers(0, 255, (count, 3, 224, 224), np.uint8)
    return Arrays(images, np.arange(count), length)


@cache
def jpegs(length: int) -> Jpegs:
    """Return at most 64 files of 256 x 256 pixels, noisy gradients, as a dataset of any length."""
    from PIL import Image

    generator = np.random.default_rng(0)
    across, down = np.meshgrid(np.arange(256), np.arange(256))
    files = []
    for _ in range(min(length, 64)):
        slopes = generator.uniform(-1, 1, (2, 3))
        gradients = 128 + across[..., None] * slopes[0] / 2 + down[..., None] * slopes[1] / 2
        noisy = np.clip(gradients + generator.normal(0, 12, (256, 256, 3)), 0, 255)
        file = io.BytesIO()
        Image.fromarray(noisy.astype(np.uint8)).save(file, "jpeg", quality=90)
        files.append(file.getvalue())
    return Jpegs(files, length)


@cache
def photos(length: int) -> Pictures:
    """Return at most 1,024 files of 500 x 375 pixels as a dataset of any length, like photographs.

    Each has some 50 kB, and is a window of a landscape of smooth regions, edges and grain.
    """
    from PIL import Image

    generator = np.random.default_rng(0)
    wide, tall = 3000, 2250
    landscape = np.zeros((tall, wide, 3), np.float32)
    for cells, height in ((6, 60), (24, 40), (96, 22), (375, 12), (1500, 8)):
        rough = generator.normal(0, height, (cells * 3 // 4, cells, 3)).clip(-99, 99) + 128
        image = Image.fromarray(rough.clip(0, 255).astype(np.uint8)).resize(
            (wide, tall), Image.Resampling.BICUBIC if cells < 1500 else Image.Resampling.NEAREST
        )
        landscape += np.asarray(image, np.float32) - 128
    pixels = (landscape + 128).clip(0, 255).astype(np.uint8)
    files = []
    for _ in range(min(length, 1024)):
        top, left = generator.integers(0, tall - 375), generator.integers(0, wide - 500)
        file = io.BytesIO()
        Image.fromarray(pixels[top : top + 375, left : left + 500]).save(file, "jpeg", quality=90)
        files.append(file.getvalue())
    return Pictures(files, length)


@cache
def row_stream(length: int) -> Stream:
    """Return a stream of digits: a row of 784 float32 and a label each."""
    from gpuloader.sources import mnist

    digits = mnist.sample().train
    return Stream([(image, np.int64(label)) for image, label in zip(*_fields(digits), strict=True)], length)


@cache
def list_stream(length: int) -> Stream:
    """Return a stream of 400 digits, repeated: a list of 784 Python floats and an int each."""
    from gpuloader.sources import mnist

    images, labels = _fields(mnist.sample().train)
    return Stream(list(zip(images[:400].tolist(), labels[:400].tolist(), strict=True)), length)


@cache
def ready_rows(length: int) -> Stream:
    """Return a stream that repeats one batch of 32 x 784 float32 with labels."""
    return Stream([[np.random.default_rng(0).random((32, 784), np.float32), np.arange(32)[:, None]]], length)


@cache
def ready_images(length: int) -> Stream:
    """Return a stream that repeats one batch of 64 x 3 x 224 x 224 uint8 with labels."""
    pictures = np.random.default_rng(0).integers(0, 255, (64, 3, 224, 224), np.uint8)
    return Stream([[pictures, np.arange(64)]], length)


def _fields(digits: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    return digits.images, digits.labels


Maker = Callable[[int], Any]
"""Makes a dataset of the given number of samples, or of ready batches."""
