"""Train a small network to find the shapes in pictures, pixel by pixel: masks move with their pictures.

    python examples/train_segmentation.py --made 400                 on pictures that it makes itself
    python examples/train_segmentation.py path/to/pictures           with train/ and val/
    python examples/train_segmentation.py --made 40 --show look.png  and look at an augmented batch first

Both folders have the folders images and masks. A mask is a PNG with the name of its picture. Its values are
the classes, from 0, the ground; 255 is counted neither in the loss nor in the score.

The example needs torch (a CPU build is enough) and gpuloader's extra `images`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

import gpuloader
from gpuloader import DataLoader, Dataset
from gpuloader.transforms import (
    Cast,
    CenterCrop,
    ColorJitter,
    Mask,
    Normalize,
    RandomAffine,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)

SEED = 1
CLASSES = ("ground", "circle", "square", "triangle")
IGNORED = 255
FIELDS = ("image", Mask("mask", fill=IGNORED))  # what comes in at the edges of a turned picture has no class


def draw_shape(
    draws: list[ImageDraw.ImageDraw], name: str, box: tuple[int, int, int, int], inks: list
) -> None:
    """Draw a shape into a picture and its mask, each with its ink."""
    left, top, right, bottom = box
    for draw, ink in zip(draws, inks, strict=True):
        if name == "circle":
            draw.ellipse(box, ink)
        elif name == "square":
            draw.rectangle(box, ink)
        else:
            draw.polygon([(left, bottom), (right, bottom), ((left + right) // 2, top)], ink)


def make_pictures(root: Path, count: int) -> None:
    """Write pictures of shapes and their masks; a fifth of them for validation."""
    random = np.random.default_rng(SEED)
    for number in range(count):
        folder = root / ("val" if number % 5 == 0 else "train")
        width, height = (int(side) for side in random.integers(80, 140, 2))
        picture = Image.new("RGB", (width, height), tuple(random.integers(0, 100, 3).tolist()))
        mask = Image.new("L", (width, height))
        for _ in range(random.integers(1, 4)):
            kind, size = int(random.integers(1, len(CLASSES))), int(random.integers(20, 45))
            left, top = int(random.integers(0, width - size)), int(random.integers(0, height - size))
            inks = [tuple(random.integers(140, 256, 3).tolist()), kind]
            draws = [ImageDraw.Draw(picture), ImageDraw.Draw(mask)]
            draw_shape(draws, CLASSES[kind], (left, top, left + size, top + size), inks)
        for name, image, end in (("images", picture, "jpg"), ("masks", mask, "png")):
            (folder / name).mkdir(parents=True, exist_ok=True)
            image.save(folder / name / f"{number:05}.{end}")


class Pictures(Dataset):
    """The pictures of a folder, and their masks; both are decoded by the loader."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = sorted(path.name for path in (root / "images").iterdir())

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, gpuloader.Image]:
        name = Path(self.names[index])
        mask = self.root / "masks" / name.with_suffix(".png")
        return {
            "image": gpuloader.Image.read(self.root / "images" / name),
            "mask": gpuloader.Image.read(mask),
        }


def make_loaders(root: Path, options: argparse.Namespace) -> tuple[DataLoader, DataLoader]:
    """Return the loaders of training and of validation; batches land on the first GPU if there is one."""
    finish = [Normalize("image", mean=0.5, std=0.25, scale=1 / 255), Cast("mask", "int64")]
    augment = [
        RandomAffine(FIELDS, degrees=15),
        RandomResizedCrop(FIELDS, options.size, scale=(0.5, 1.0)),
        RandomFlip(FIELDS),
        ColorJitter(FIELDS, brightness=0.2, contrast=0.2, saturation=0.2),
        *finish,
    ]
    look = [Resize(FIELDS, options.size), CenterCrop(FIELDS, options.size), *finish]
    shared = {"batch_size": options.batch, "num_workers": options.workers, "output": "torch"}
    train = DataLoader(
        Pictures(root / "train"), shuffle=True, seed=SEED, drop_last=True, transforms=augment, **shared
    )
    return train, DataLoader(Pictures(root / "val"), transforms=look, **shared)


class Network(nn.Module):
    """Features at a quarter of the size and at full size, from which each pixel's class follows."""

    def __init__(self, classes: int) -> None:
        super().__init__()

        def layer(channels: int, out: int, stride: int = 1) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()
            )

        self.fine = layer(3, 12)
        self.coarse = nn.Sequential(layer(12, 24, 2), layer(24, 48, 2), layer(48, 48), layer(48, 12))
        self.classify = nn.Sequential(layer(24, 12), nn.Conv2d(12, classes, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of each class, for each pixel."""
        fine = self.fine(images)
        coarse = nn.functional.interpolate(self.coarse(fine), fine.shape[2:], mode="bilinear")
        return self.classify(torch.cat([fine, coarse], 1))


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader) -> float:
    """Take a step per batch, and return the mean loss."""
    model.train()
    losses = []
    for batch in loader:
        loss = nn.functional.cross_entropy(model(batch["image"]), batch["mask"], ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return float(torch.stack(losses).mean())


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader) -> float:
    """Return the intersection over union of what is found and what is there, the mean of the classes."""
    model.eval()
    both = torch.zeros(len(CLASSES))
    either = torch.zeros(len(CLASSES))
    for batch in loader:
        found, there = model(batch["image"]).argmax(1), batch["mask"]
        known = there != IGNORED
        for number in range(len(CLASSES)):
            mine, theirs = (found == number) & known, (there == number) & known
            both[number] += int((mine & theirs).sum())
            either[number] += int((mine | theirs).sum())
    return float((both / either.clamp(min=1)).mean())


def run(root: Path, options: argparse.Namespace) -> None:
    """Train and validate."""
    train, validation = make_loaders(root, options)
    if options.show is not None:
        gpuloader.show(next(iter(train)), fields=FIELDS).save(options.show)
    torch.manual_seed(SEED)
    model = Network(len(CLASSES)).to("cuda" if torch.cuda.is_available() else "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    for epoch in range(options.epochs):
        begun = perf_counter()
        loss = train_epoch(model, optimizer, train)
        rate = len(train) * options.batch / (perf_counter() - begun)
        score = validate(model, validation)
        print(f"epoch {epoch}: loss {loss:.3f}, mean IoU {score:.1%}; {rate:,.0f} pictures/s")


def main() -> None:
    """Read the options, make pictures if asked, and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, nargs="?", help="folder with train/ and val/")
    parser.add_argument("--made", type=int, help="train on this many pictures made for it")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=64, help="height and width for the model (default: 64)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--show", type=Path, help="draw the first batch into this file")
    options = parser.parse_args()
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
