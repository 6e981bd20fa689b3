"""Transforms on a GPU compute the same as on a CPU place, bit for bit."""

import numpy as np
import pytest

import gpuloader.transforms as t
from gpuloader import DataLoader
from tests.gpu.datasets import Pictures, Words, check_equal, collect

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def check_same(dataset, transforms, **options):
    """Raise unless a GPU makes what a CPU place makes, and return it."""
    got = collect(dataset, transforms=transforms, **options)
    check_equal(got, collect(dataset, "cpu", transforms=transforms, **options))
    return got


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("to", ["CHW", "HWC"])
def test_normalize(dtype, to):
    check_same(Pictures(), [t.Normalize("0", MEAN, STD, scale=1 / 255, dtype=dtype, to=to)])


@pytest.mark.parametrize("size", [(16, 16), (13, 9), (8, 12)])
@pytest.mark.parametrize("flip", [False, True])
def test_crop_and_flip(size, flip):
    steps = [t.RandomCropFlip("0", size, flip=flip), t.Normalize("0", MEAN, STD, scale=1 / 255)]
    first, second = np.array_split(np.array([one[0].sum() for one in check_same(Pictures(), steps)]), 2)
    assert not np.array_equal(first, second)  # the second epoch draws other windows, in another order


@pytest.mark.parametrize("size", [(16, 16), (13, 9), (8, 12)])
@pytest.mark.parametrize("after", [None, "float16"])
def test_windows_alone(size, after):
    """Without a `Normalize` after the crop, bytes stay bytes unless a `Cast` follows."""
    steps = [t.RandomCropFlip("0", size)] + ([] if after is None else [t.Cast("0", after)])
    assert {images.dtype for images, *_ in check_same(Pictures(), steps)} == {np.dtype(after or "uint8")}


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_one_hot(dtype):
    check_same(Pictures(), [t.OneHot("1", 10, dtype=dtype)])
    check_same(Pictures(), [t.OneHot("1", 5, dtype=dtype)])  # labels out of range become rows of zeros


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32"])
@pytest.mark.parametrize("scale", [None, 1 / 255, 2.0])
def test_cast(dtype, scale):
    check_same(Pictures(), [t.Cast("0", dtype, **({} if scale is None else {"scale": scale}))])


def test_pad():
    check_same(Words(), [t.Pad("0", 6, fill=-1)], ragged=["0"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("to", ["CHW", "HWC"])
@pytest.mark.parametrize("options", [{}, {"cache": "device"}, {"static": True, "drop_last": True}], ids=str)
def test_mixed_pictures(options, to, dtype):
    steps = [
        t.RandomErasing("0", value=[1, 2, 3], layout="HWC"),
        t.Normalize("0", MEAN, STD, scale=1 / 255, to=to, dtype=dtype),
        t.RandomErasing("0", layout=to),
        t.CutMix("0", "1", 10, layout=to),
        t.MixUp("0", "1", 10),
    ]
    check_same(Pictures(), steps, **options)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_with_workers(kind):
    steps = [t.RandomCropFlip("0", (12, 12)), t.Normalize("0", MEAN, STD, scale=1 / 255), t.OneHot("1", 10)]
    check_same(Pictures(), steps, num_workers=2, worker_type=kind)


@pytest.mark.parametrize("size", [(224, 224), (223, 221)])
def test_large_pictures(size):
    """Full-sized pictures, including rows that do not start at aligned addresses."""
    check_same(
        Pictures(14, size=224), [t.RandomCropFlip("0", size), t.Normalize("0", MEAN, STD, scale=1 / 255)]
    )


@pytest.mark.parametrize("kind", ["process", "thread"])
@pytest.mark.parametrize(
    "steps",
    [
        [t.RandomResizedCrop("0", 224), t.RandomFlip("0")],
        [t.RandomResizedCrop("0", 224), t.ColorJitter("0", 0.4, 0.4, 0.4, 0.1), t.RandomFlip("0")],
        [t.Resize("0", 96, filter="bicubic"), t.CenterCrop("0", (80, 91))],
    ],
    ids=["train", "colors", "validate"],
)
def test_pictures_of_any_size(steps, kind):
    """The kernel makes of staged regions what Pillow makes of the pictures."""
    pytest.importorskip("PIL", reason="Pillow is not installed")
    draw = np.random.default_rng(0)
    sizes = draw.integers(20, 500, (23, 2))
    pictures = [(draw.integers(0, 256, (*size, 3), np.uint8), label) for label, size in enumerate(sizes)]
    normalize = t.Normalize("0", MEAN, STD, scale=1 / 255)
    check_same(pictures, [*steps, normalize], num_workers=2, worker_type=kind)
    check_same(pictures, steps)


def test_kernels_run_before_the_batch_is_handed_over(torch):
    """A batch that torch reads at once on its stream is already transformed, not only copied."""
    options = {"batch_size": 7, "transforms": [t.Normalize("0", MEAN, STD, scale=1 / 255)]}
    loader = DataLoader(Pictures(), places="gpu:0", output="torch", **options)
    kept = [images.clone() for images, _ in loader]
    expected = collect(Pictures(), "cpu", shuffle=False, epochs=1, **options)
    check_equal([[one.cpu().numpy()] for one in kept], [[images] for images, _ in expected])
