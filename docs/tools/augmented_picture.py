"""Draw docs/images/pictures.png: a batch of pictures, augmented anew in four epochs.

    python docs/tools/augmented_picture.py

It needs torch, for the example that makes the pictures, and the extra `images`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from gpuloader import DataLoader, ImageFolder, show
from gpuloader.transforms import ColorJitter, RandomFlip, RandomResizedCrop

ROOT = Path(__file__).parents[2]
COUNT = 8
"""Pictures in a row."""


def draw(path: Path) -> None:
    """Draw the picture to a file; each row is the same batch in another epoch."""
    sys.path.insert(0, str(ROOT / "examples"))
    from train_images import make_pictures

    steps = [
        RandomResizedCrop("image", 96, scale=(0.35, 1.0)),
        RandomFlip("image"),
        ColorJitter("image", brightness=0.3, contrast=0.3, saturation=0.5, hue=0.1),
    ]
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(Path(folder), 40)
        dataset = ImageFolder(Path(folder, "val"))
        loader = DataLoader(
            dataset, places="cpu", batch_size=COUNT, seed=3, transforms=steps
        )
        rows = [next(iter(loader)) for _ in range(4)]
        images = np.concatenate([row.image for row in rows])
        labels = np.concatenate([row.label for row in rows])
        show((images, labels), columns=COUNT, classes=dataset.classes).save(
            path, optimize=True
        )


if __name__ == "__main__":
    draw(ROOT / "docs/images/pictures.png")
