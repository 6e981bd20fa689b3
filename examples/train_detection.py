"""Train a small network to find the shapes in pictures as boxes, which move with their pictures.

    python examples/train_detection.py --made 400                 on pictures that it makes itself
    python examples/train_detection.py path/to/pictures           with train/ and val/
    python examples/train_detection.py --made 40 --show look.png  and look at an augmented batch first

Both folders have the folders images and labels. The labels of a picture are a text file of its name, with a
line `class x y width height` for each box: the number of the class, and the center and the size as fractions
of the picture's, as for YOLO.

For each cell of 8 x 8 pixels the network says how likely the center of a box of each class lies there, where
in the cell, and how large the box is (Zhou et al., Objects as Points, 2019).

The example needs torch (a CPU build is enough) and gpuloader's extra `images`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

import gpuloader
from gpuloader import DataLoader, Dataset, Ragged
from gpuloader.transforms import (
    Boxes,
    CenterCrop,
    ColorJitter,
    Normalize,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)

SEED = 1
CLASSES = ("circle", "square")
CELL = 8
# A box of which less than a quarter is left says little of its class.
FIELDS = ("image", Boxes("boxes", "labels", format="cxcywh", fractions=True, min_visible=0.25))


def make_pictures(root: Path, count: int) -> None:
    """Write pictures of shapes and their boxes; a fifth of them for validation."""
    random = np.random.default_rng(SEED)
    for number in range(count):
        folder = root / ("val" if number % 5 == 0 else "train")
        width, height = (int(side) for side in random.integers(80, 140, 2))
        picture = Image.new("RGB", (width, height), tuple(random.integers(0, 100, 3).tolist()))
        draw, lines = ImageDraw.Draw(picture), []
        for _ in range(random.integers(0, 4)):
            kind, size = int(random.integers(0, len(CLASSES))), int(random.integers(16, 40))
            left, top = int(random.integers(0, width - size)), int(random.integers(0, height - size))
            draw_shape = draw.ellipse if CLASSES[kind] == "circle" else draw.rectangle
            ink = tuple(random.integers(140, 256, 3).tolist())
            draw_shape((left, top, left + size - 1, top + size - 1), ink)
            middle = (left + size / 2) / width, (top + size / 2) / height
            lines.append(f"{kind} {middle[0]} {middle[1]} {size / width} {size / height}\n")
        for name in ("images", "labels"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        picture.save(folder / "images" / f"{number:05}.jpg")
        (folder / "labels" / f"{number:05}.txt").write_text("".join(lines))


class Pictures(Dataset):
    """The pictures of a folder, and their boxes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = sorted(path.name for path in (root / "images").iterdir())

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, Any]:
        name = Path(self.names[index])
        lines = (self.root / "labels" / name.with_suffix(".txt")).read_text().splitlines()
        rows = np.array([line.split() for line in lines], np.float32).reshape(-1, 5)
        image = gpuloader.Image.read(self.root / "images" / name)
        return {"image": image, "boxes": rows[:, 1:], "labels": rows[:, 0].astype(np.int64)}


def make_loaders(root: Path, options: argparse.Namespace) -> tuple[DataLoader, DataLoader]:
    """Return the loaders of training and of validation; batches land on the first GPU if there is one."""
    finish = Normalize("image", mean=0.5, std=0.25, scale=1 / 255)
    augment = [
        RandomResizedCrop(FIELDS, options.size, scale=(0.5, 1.0)),
        RandomFlip(FIELDS),
        ColorJitter(FIELDS, brightness=0.2, contrast=0.2, saturation=0.2),
        finish,
    ]
    look = [Resize(FIELDS, options.size), CenterCrop(FIELDS, options.size), finish]
    shared = {"batch_size": options.batch, "num_workers": options.workers, "output": "torch"}
    train = DataLoader(
        Pictures(root / "train"), shuffle=True, seed=SEED, drop_last=True, transforms=augment, **shared
    )
    return train, DataLoader(Pictures(root / "val"), transforms=look, **shared)


def make_model() -> nn.Module:
    """Return a network with a score per class and four numbers of a box, for each cell."""
    torch.manual_seed(SEED)
    layers: list[nn.Module] = []
    for channels, out, stride in ((3, 16, 2), (16, 32, 2), (32, 64, 2), (64, 64, 1), (64, 64, 1)):
        layers += [
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
        ]
    last = nn.Conv2d(64, len(CLASSES) + 4, 1)
    nn.init.constant_(last.bias[: len(CLASSES)], -3.0)  # most cells have no center
    return nn.Sequential(*layers, last)


def find_cells(boxes: Ragged, labels: Ragged, cells: int) -> tuple[Tensor, Tensor]:
    """Return the image, class, row and column of the center of each box, and the numbers to predict there."""
    splits = boxes.row_splits[0]
    images = torch.arange(len(boxes), device=splits.device).repeat_interleave(splits[1:] - splits[:-1])
    middles = boxes.values[:, :2] * cells
    columns, rows = middles.long().clamp(max=cells - 1).T
    inside = middles - torch.stack([columns, rows], 1)
    return torch.stack([images, labels.values, rows, columns]), torch.cat([inside, boxes.values[:, 2:]], 1)


def find_loss(made: Tensor, batch: dict[str, Any]) -> Tensor:
    """Return the loss of what the network makes of a batch."""
    where, numbers = find_cells(batch["boxes"], batch["labels"], made.shape[-1])
    images, labels, rows, columns = where
    scores, shapes = made[:, : len(CLASSES)], made[:, len(CLASSES) :]
    there = torch.zeros_like(scores)
    there[images, labels, rows, columns] = 1
    # The focal loss: a cell that is judged well counts little, because there are so many of them.
    right = torch.sigmoid(scores) * there + torch.sigmoid(-scores) * (1 - there)
    focal = (1 - right) ** 2 * nn.functional.binary_cross_entropy_with_logits(scores, there, reduction="none")
    shape = (shapes[images, :, rows, columns] - numbers).abs()
    return (focal.sum() + 5 * shape.sum()) / max(len(numbers), 1)


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader) -> float:
    """Return the part of the boxes that are found: the class is right, and half of the boxes in common."""
    model.eval()
    found = count = 0
    for batch in loader:
        made = model(batch["image"])
        cells = made.shape[-1]
        where, _ = find_cells(batch["boxes"], batch["labels"], cells)
        images, labels, rows, columns = where
        numbers = made[images, :, rows, columns]
        scores, middles, sizes = numbers.split([len(CLASSES), 2, 2], 1)
        middles = (middles + torch.stack([columns, rows], 1)) / cells
        mine = torch.cat([middles - sizes / 2, middles + sizes / 2], 1)
        theirs = batch["boxes"].values
        theirs = torch.cat([theirs[:, :2] - theirs[:, 2:] / 2, theirs[:, :2] + theirs[:, 2:] / 2], 1)
        shared = (torch.minimum(mine, theirs)[:, 2:] - torch.maximum(mine, theirs)[:, :2]).clamp(min=0)
        shared = shared.prod(1)
        whole = sum((one[:, 2:] - one[:, :2]).clamp(min=0).prod(1) for one in (mine, theirs)) - shared
        certain = (scores.argmax(1) == labels) & (scores.amax(1) > 0)
        found += int((certain & (shared > 0.5 * whole)).sum())
        count += len(labels)
    return found / max(count, 1)


def run(root: Path, options: argparse.Namespace) -> None:
    """Train and validate."""
    train, validation = make_loaders(root, options)
    if options.show is not None:
        gpuloader.show(next(iter(train)), fields=FIELDS, classes=CLASSES).save(options.show)
    model = make_model().to("cuda" if torch.cuda.is_available() else "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    for epoch in range(options.epochs):
        begun, losses = perf_counter(), []
        model.train()
        for batch in train:
            loss = find_loss(model(batch["image"]), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        rate = len(train) * options.batch / (perf_counter() - begun)
        loss, score = float(torch.stack(losses).mean()), validate(model, validation)
        print(f"epoch {epoch}: loss {loss:.3f}, {score:.1%} of the boxes found; {rate:,.0f} pictures/s")


def main() -> None:
    """Read the options, make pictures if asked, and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, nargs="?", help="folder with train/ and val/")
    parser.add_argument("--made", type=int, help="train on this many pictures made for it")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=96, help=f"height and width, a multiple of {CELL}")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--show", type=Path, help="draw the first batch into this file")
    options = parser.parse_args()
    if options.size < CELL or options.size % CELL:
        parser.error(f"--size must be a multiple of {CELL}, got {options.size}")
    if options.made is not None:
        if options.made * 4 // 5 < options.batch:
            parser.error(
                f"--made must be {-(-options.batch * 5 // 4)} or more for a batch, got {options.made}"
            )
        with tempfile.TemporaryDirectory() as folder:
            make_pictures(Path(folder), options.made)
            run(Path(folder), options)
    elif options.root is None:
        parser.error("pass a folder of images, or --made 400")
    else:
        run(options.root, options)


if __name__ == "__main__":
    main()
