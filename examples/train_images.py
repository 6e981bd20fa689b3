"""Train a small ResNet on a folder of images: training and validation, resuming, mixed precision.

    python examples/train_images.py --made 400 --epochs 2                  on images that it makes itself
    python examples/train_images.py path/to/images --epochs 20             with train/CLASS/… and val/CLASS/…
    python examples/train_images.py path/to/images --compile --amp         compiled, in bfloat16 on a GPU

The workers decode and augment each image; normalization runs where the batch lands. With --checkpoint it
saves after each epoch, and when Ctrl-C or SIGTERM stops it, as clusters do. It continues where it was, in the
middle of an epoch, with the same images in the same order and with the same augmentation:

    python examples/train_images.py --made 400 --epochs 20 --checkpoint last.pt      (and Ctrl-C)
    python examples/train_images.py --made 400 --epochs 20 --checkpoint last.pt --resume last.pt

At the end of each epoch it prints the throughput, and what limits it.

The example needs torch (a CPU build is enough) and gpuloader's extra `images`.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from gpuloader import DataLoader, ImageFolder
from gpuloader.transforms import (
    CenterCrop,
    ColorJitter,
    Normalize,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)

SEED = 1
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # of ImageNet
SHAPES = ("circle", "square", "triangle")
FEWEST = 11  # images to make: then there is one of each shape for validation, too


def make_pictures(root: Path, count: int) -> None:
    """Write JPEGs of circles, squares and triangles; a fifth of them for validation."""
    random = np.random.default_rng(SEED)
    for number in range(count):
        name = SHAPES[number % len(SHAPES)]
        width, height = (int(side) for side in random.integers(80, 160, 2))
        ground, color = (tuple(int(part) for part in random.integers(0, 256, 3)) for _ in range(2))
        image = Image.new("RGB", (width, height), ground)
        draw = ImageDraw.Draw(image)
        size = int(random.integers(30, 60))
        x, y = int(random.integers(0, width - size)), int(random.integers(0, height - size))
        if name == "circle":
            draw.ellipse((x, y, x + size, y + size), color)
        elif name == "square":
            draw.rectangle((x, y, x + size, y + size), color)
        else:
            draw.polygon([(x, y + size), (x + size, y + size), (x + size // 2, y)], color)
        folder = root / ("val" if number % 5 == 0 else "train") / name
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{number}.jpg", quality=90)


class Block(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, images: Tensor) -> Tensor:
        """Return the block's features of images."""
        return nn.functional.relu(self.body(images) + self.shortcut(images))


def make_model(classes: int) -> nn.Module:
    """Return a ResNet of three stages."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def make_loaders(root: Path, options: argparse.Namespace) -> tuple[DataLoader, DataLoader]:
    """Return the loaders of training and of validation; batches land on the first GPU if there is one."""
    scale = Normalize("image", mean=MEAN, std=STD, scale=1 / 255)
    augment = [
        RandomResizedCrop("image", options.size, scale=(0.35, 1.0), scaled=options.scaled),
        RandomFlip("image"),
        ColorJitter("image", brightness=0.2, contrast=0.2, saturation=0.2),
        scale,
    ]
    look = [
        Resize("image", options.size * 8 // 7, scaled=options.scaled),
        CenterCrop("image", options.size),
        scale,
    ]
    shared = {"batch_size": options.batch, "num_workers": options.workers, "output": "torch"}
    shared["decode"] = "device" if options.decode_there else "image"
    train = DataLoader(
        ImageFolder(root / "train"), shuffle=True, seed=SEED, drop_last=True, transforms=augment, **shared
    )
    return train, DataLoader(ImageFolder(root / "val"), transforms=look, **shared)


def train_epoch(
    model: nn.Module, optimizer: Any, loader: DataLoader, options: argparse.Namespace, stops: list[int]
) -> float | None:
    """Take a step per batch until a signal stops it; return the mean loss, or None if the epoch is over."""
    model.train()
    losses: list[Tensor] = []
    for images, labels in islice(iter(loader), options.stop_after):
        with torch.autocast(images.device.type, torch.bfloat16, enabled=options.amp):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if stops:
            break
    return float(torch.stack(losses).mean()) if losses else None


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader, options: argparse.Namespace) -> float:
    """Return the fraction of images that the model recognizes."""
    model.eval()
    right = count = 0
    for images, labels in loader:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=options.amp):
            found = model(images).argmax(1)
        right += int((found == labels).sum())
        count += len(labels)
    return right / count


def report(loader: DataLoader, before: Any, seconds: float) -> str:
    """Return the images per second since a snapshot of the loader's counters, and what limits them."""
    steps = (loader.stats() - before).steps
    rate = steps * (loader.batch_size or 1) / seconds
    return f"{rate:,.0f} images/s; {loader.explain().summary}"


def note_signals() -> list[int]:
    """Return a list that gets the first signal to stop; a second one ends the program at once."""
    stops: list[int] = []

    def note(number: int, _: object) -> None:
        stops.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return stops


def save(path: Path, **parts: Any) -> None:
    """Write a checkpoint; whenever the program ends, the file is whole: the old one or the new."""
    beside = path.with_name(f"{path.name}.part")
    torch.save({name: part.state_dict() for name, part in parts.items()}, beside)
    beside.replace(path)


def run(root: Path, options: argparse.Namespace) -> None:
    """Train and validate, and save checkpoints on request."""
    train, validation = make_loaders(root, options)
    if not len(train):
        raise SystemExit(
            f"{root / 'train'} has {len(train.dataset)} images, fewer than one batch: pass --batch "
            f"{len(train.dataset)} or less, or more images"
        )
    classes = train.dataset.classes
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model(len(classes)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    first = 0
    if options.resume is not None:
        checkpoint = torch.load(options.resume, weights_only=True, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        train.load_state_dict(checkpoint["loader"])
        first = checkpoint["loader"]["epoch"]
    compiled = torch.compile(model) if options.compile else model
    stops = note_signals()
    for epoch in range(first, options.epochs):
        before, begun = train.stats(), perf_counter()
        loss = train_epoch(compiled, optimizer, train, options, stops)
        if loss is None:
            continue  # the checkpoint was saved behind the last batch of this epoch
        if options.checkpoint is not None:
            save(options.checkpoint, model=model, optimizer=optimizer, loader=train)
        if stops:
            print(f"stopped by {signal.Signals(stops[0]).name} in epoch {epoch}")
            break
        told = report(train, before, perf_counter() - begun)
        accuracy = validate(compiled, validation, options)
        print(
            f"epoch {epoch}: loss {loss:.3f}, {accuracy:.1%} of {len(classes)} classes right; {told}",
            flush=True,
        )
        if options.stop_after:
            break


def main() -> None:
    """Read the options, make images if asked, and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, nargs="?", help="folder with train/CLASS/ and val/CLASS/")
    parser.add_argument("--made", type=int, help=f"train on this many images made for it, {FEWEST} or more")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=64, help="height and width for the model (default: 64)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--scaled", action="store_true", help="let the decoder shrink JPEGs first")
    parser.add_argument(
        "--decode-there", action="store_true", help="decode JPEGs on the GPU, if there is one"
    )
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16 where that is safe")
    parser.add_argument("--compile", action="store_true", help="compile the model")
    parser.add_argument("--stop-after", type=int, help="stop after this many steps")
    parser.add_argument("--checkpoint", type=Path, help="file to save the model and the loader's state in")
    parser.add_argument("--resume", type=Path, help="checkpoint to go on from")
    options = parser.parse_args()
    if options.stop_after is not None and options.stop_after < 1:
        parser.error(f"--stop-after must be 1 or more, got {options.stop_after}")
    if options.made is not None:
        if options.made < FEWEST:
            parser.error(f"--made must be {FEWEST} or more, so that there are all shapes, got {options.made}")
        with tempfile.TemporaryDirectory() as folder:
            make_pictures(Path(folder), options.made)
            run(Path(folder), options)
    elif options.root is None:
        parser.error("pass a folder of images, or --made 400")
    else:
        run(options.root, options)


if __name__ == "__main__":
    main()
