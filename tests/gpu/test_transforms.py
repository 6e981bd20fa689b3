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


NORMALIZE = t.Normalize("0", MEAN, STD, scale=1 / 255)
STEPS = {
    "normalized": [t.Normalize("0", MEAN, STD, scale=1 / 255, dtype="bfloat16", to="HWC")],
    "windows": [t.RandomCropFlip("0", (13, 9)), NORMALIZE],
    "windows alone": [t.RandomCropFlip("0", (13, 9))],  # bytes stay bytes, without a `Normalize`
    "windows cast": [t.RandomCropFlip("0", (8, 12), flip=False), t.Cast("0", "float16")],
    "one hot": [t.OneHot("1", 5, dtype="float16")],  # labels out of range become rows of zeros
    "cast": [t.Cast("0", "bfloat16", scale=1 / 255)],
}


@pytest.mark.parametrize("case", STEPS)
def test_a_gpu_makes_what_a_cpu_makes(case):
    """`test_kernels.py` compares each kernel with its twin for every dtype and layout."""
    check_same(Pictures(), STEPS[case])


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
    steps = [t.RandomCropFlip("0", (12, 12)), NORMALIZE, t.OneHot("1", 10)]
    check_same(Pictures(), steps, num_workers=2, worker_type=kind)


@pytest.mark.parametrize("size", [(224, 224), (223, 221)])
def test_large_pictures(size):
    """Full-sized pictures, including rows that do not start at aligned addresses."""
    check_same(Pictures(14, size=224), [t.RandomCropFlip("0", size), NORMALIZE])


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
    check_same(pictures, [*steps, NORMALIZE], num_workers=2, worker_type=kind)
    check_same(pictures, steps)


def test_kernels_run_before_the_batch_is_handed_over(torch):
    """A batch that torch reads at once on its stream is already transformed, not only copied."""
    options = {"batch_size": 7, "transforms": [NORMALIZE]}
    loader = DataLoader(Pictures(), places="gpu:0", output="torch", **options)
    kept = [images.clone() for images, _ in loader]
    expected = collect(Pictures(), "cpu", shuffle=False, epochs=1, **options)
    check_equal([[one.cpu().numpy()] for one in kept], [[images] for images, _ in expected])
