"""Pictures with masks and boxes beside torchvision's transforms.v2: processor time per sample, on one core.

python benchmarks/annotations.py [--repeats N] [--output FILE.json]

JPEG files of 500 x 375 in memory with a mask (a PNG) and eight boxes each go to random windows of 224 x 224,
mirrored at random and normalized, in batches of 32, without workers. torchvision decodes pictures by its own
decoder, transforms tensors, which is its faster way, and drops boxes by SanitizeBoundingBoxes. Beside them,
Pillow alone decodes images and masks, and resizes windows of them: no boxes, no normalizing, no batches. It
needs torch and torchvision. The ways take turns in one process, with one thread.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Result, compare_epochs, describe_machine, make_parser, run_script
from benchmarks.peers.samples import photos
from benchmarks.run import render

COUNT, BATCH, SIZE = 256, 32, 224
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def make_samples() -> list[dict[str, Any]]:
    """Return pictures with masks and boxes."""
    from PIL import Image

    random = np.random.default_rng(0)
    samples = []
    for file in photos(COUNT).files:
        mask = np.zeros((375, 500), np.uint8)
        low = random.integers(0, (400, 300), (8, 2))
        boxes = np.concatenate([low, low + random.integers(20, 75, (8, 2))], 1)
        for number, (left, top, right, bottom) in enumerate(boxes, 1):
            mask[top:bottom, left:right] = number
        encoded = io.BytesIO()
        Image.fromarray(mask).save(encoded, "png")
        samples.append(
            {
                "image": file,
                "mask": encoded.getvalue(),
                "boxes": boxes.astype(np.float32),
                "labels": np.arange(8),
            }
        )
    return samples


def make_own(samples: list[dict[str, Any]]) -> Any:
    """Return gpuloader's way."""
    from gpuloader import DataLoader
    from gpuloader.transforms import Boxes, Cast, Normalize, RandomFlip, RandomResizedCrop

    fields = ("image", "mask", Boxes("boxes", labels="labels"))
    steps = [RandomResizedCrop(fields, SIZE), RandomFlip(fields)]
    finish = [Normalize("image", MEAN, STD, scale=1 / 255), Cast("mask", "int64")]
    return DataLoader(
        samples, places="cpu", output="torch", batch_size=BATCH, seed=0, transforms=[*steps, *finish]
    )


def make_theirs(samples: list[dict[str, Any]]) -> Any:
    """Return torchvision's way."""
    import torch
    from torch.utils.data import DataLoader, Dataset
    from torchvision import tv_tensors
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.SanitizeBoundingBoxes(),
            v2.ToDtype(
                {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True
            ),
            v2.Normalize(MEAN, STD),
        ]
    )

    class Samples(Dataset):
        def __len__(self) -> int:
            return len(samples)

        def __getitem__(self, index: int) -> Any:
            sample = samples[index]
            image, mask = (
                torch.frombuffer(bytearray(sample[name]), dtype=torch.uint8) for name in ("image", "mask")
            )
            boxes = torch.from_numpy(sample["boxes"])
            return transform(
                {
                    "image": tv_tensors.Image(decode_image(image, ImageReadMode.RGB)),
                    "mask": tv_tensors.Mask(decode_image(mask, ImageReadMode.UNCHANGED)),
                    "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(375, 500)),
                    "labels": torch.from_numpy(sample["labels"]),
                }
            )

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        stacked = {name: torch.stack([row[name] for row in rows]) for name in ("image", "mask")}
        return stacked | {name: [row[name] for row in rows] for name in ("boxes", "labels")}

    return DataLoader(Samples(), batch_size=BATCH, collate_fn=collate)


class PillowAlone:
    """Windows of images and masks as Pillow makes them, one sample after the other."""

    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self.samples, self.random = samples, np.random.default_rng(0)

    def __iter__(self) -> Iterator[Any]:
        from PIL import Image

        from gpuloader.transforms.image_transforms import draw_window

        for sample in self.samples:
            made = []
            window = draw_window(375, 500, (0.08, 1.0), (3 / 4, 4 / 3), self.random)
            top, left, height, width = window
            for name, how in ("image", Image.Resampling.BILINEAR), ("mask", Image.Resampling.NEAREST):
                image = Image.open(io.BytesIO(sample[name]))
                box = left, top, left + width, top + height
                made.append(np.asarray(image.resize((SIZE, SIZE), how, box)))
            yield made


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the report."""
    import torch
    import torchvision

    torch.set_num_threads(1)
    samples = make_samples()
    ways: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
        f"torchvision.transforms.v2 {torchvision.__version__.split('+')[0]}": make_theirs,
        "Pillow's decoding and resizing alone": PillowAlone,
        "gpuloader, exactly Pillow's pixels": make_own,
    }
    rows = compare_epochs({name: make(samples) for name, make in ways.items()}, COUNT, options)
    title = f"Pictures, masks and boxes, 500 x 375 to {SIZE} x {SIZE}"
    result = Result(
        title, "µs of one core per sample", next(iter(rows)), "at most half of torchvision's", rows
    )
    return {"machine": describe_machine(), "repeats": options.repeats, "cases": [result.to_json()]}


def main() -> None:
    """Measure and print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="turns of each way, after a warm-up turn")
    parser.add_argument("--warm", type=int, default=20, help="epochs before, in which resizing is compiled")
    run_script(parser, measure, render)


if __name__ == "__main__":
    main()
