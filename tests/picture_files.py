"""Encoded pictures for tests."""

import io

import numpy as np
import pytest

from gpuloader.sources.images import resampling
from gpuloader.sources.images.resampling import LateResizer
from gpuloader.transforms.image_transforms import make_plans

pillow = pytest.importorskip("PIL.Image")


def make_pixels(height, width, channels=3, seed=0):
    """Return a smooth picture with noise, as photographs are; uint8 (height, width, channels)."""
    rng = np.random.default_rng(seed)
    down, across = np.mgrid[:height, :width]
    waves = [128 + 90 * np.sin(down / (5 + part) + across / (9 - part) + seed) for part in range(channels)]
    noisy = np.stack(waves, -1) + rng.normal(0, 12, (height, width, channels))
    return noisy.clip(0, 255).astype(np.uint8)


def encode(pixels, form="JPEG", **options):
    image = pixels if isinstance(pixels, pillow.Image) else pillow.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def turned(orientation):
    """Return the options with which a picture is encoded as one that a viewer has to turn."""
    exif = pillow.Exif()
    exif[0x0112] = orientation
    return {"exif": exif}


def decoded_by_pillow(data):
    return np.asarray(pillow.open(io.BytesIO(data)).convert("RGB"))


def choose_resizer(monkeypatch, resizer):
    """Have all pictures resized by what `compile_function` returned, or by Pillow if it is None.

    Compiled code gets parts of them, however small they are.
    """
    late = LateResizer()
    monkeypatch.setattr(late, "find", lambda: resizer)
    monkeypatch.setattr(resampling, "LATE_RESIZER", late)
    monkeypatch.setattr(resampling, "_PART_FROM", 0)


def write_folder(root, classes=("cat", "dog"), count=4, form="JPEG", size=(40, 50)):
    """Write a folder of pictures per class, each of another size; return their paths."""
    paths = []
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = make_pixels(size[0] + 3 * number, size[1] + 5 * label, seed=10 * label + number)
            path = root / name / f"{number}.{form.lower()}"
            path.write_bytes(encode(pixels, form))
            paths.append(str(path))
    return paths


def plan_image(size, transforms, rng):
    """Return the plan for a picture of this height and width, as a loader makes it."""
    [plan] = make_plans(size, transforms, rng)
    return plan
