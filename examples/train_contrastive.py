"""Learn to see without labels: two views of an image should look alike to a network (SimCLR, 2020).

    python examples/train_contrastive.py --made 240          on images that it makes itself
    python examples/train_contrastive.py path/to/images      with train/CLASS/… and val/CLASS/…

Each image is decoded once, and augmented twice. After each epoch the labels are used for the first time: how
many images of val have the class of the image of train that the network finds the most alike?

The example needs torch (a CPU build is enough) and gpuloader's extra `images`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from gpuloader import DataLoader, ImageFolder
from gpuloader.transforms import (
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    Normalize,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    Views,
)

SEED = 1
SHAPES = ("ellipse", "rectangle", "line")


def make_images(root: Path, count: int) -> None:
    """Write images of shapes in any color; a fifth of them for validation."""
    random = np.random.default_rng(SEED)
    for number in range(count):
        name = SHAPES[number % len(SHAPES)]
        image = Image.new("RGB", (96, 80), tuple(random.integers(0, 120, 3).tolist()))
        left, top, size = random.integers((5, 5, 45), (40, 25, 50)).tolist()
        draw = getattr(ImageDraw.Draw(image), name)
        ink = {"fill": tuple(random.integers(130, 256, 3).tolist()), "width": 1 if name != "line" else 9}
        draw((left, top, left + size, top + size), **ink)
        folder = root / ("val" if number % 5 == 0 else "train") / name
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{number}.jpg", quality=90)


def make_model() -> tuple[nn.Module, nn.Module]:
    """Return a network that describes images, and the head through which the descriptions are compared."""
    torch.manual_seed(SEED)
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return body, nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))


def compare(features: Tensor, temperature: float = 0.1) -> Tensor:
    """Return the loss of features of shape (2 n, size), of which two in a row are views of one image."""
    features = nn.functional.normalize(features)
    alike = features @ features.T / temperature
    alike.fill_diagonal_(-torch.inf)
    other = torch.arange(len(features), device=features.device) ^ 1
    return nn.functional.cross_entropy(alike, other)


@torch.no_grad()
def describe(body: nn.Module, loader: DataLoader) -> tuple[Tensor, Tensor]:
    """Return the features of all images of a loader, and their labels."""
    body.eval()
    found = [(nn.functional.normalize(body(images)), labels) for images, labels in loader]
    features, labels = zip(*found, strict=True)
    return torch.cat(features), torch.cat(labels)


def run(root: Path, options: argparse.Namespace) -> None:
    """Train, and look for the nearest images after each epoch."""
    size = options.size
    scale = Normalize("image", 127.5, 127.5)
    augment = Views(
        2,
        [
            RandomResizedCrop("image", size, scale=(0.3, 1.0)),
            RandomFlip("image"),
            ColorJitter("image", 0.4, 0.4, 0.4, 0.1, p=0.8),
            Grayscale("image", p=0.2),
            GaussianBlur("image", p=0.5),
        ],
    )
    look = [Resize("image", size), CenterCrop("image", size), scale]
    shared = {"batch_size": options.batch, "num_workers": options.workers, "output": "torch"}
    images, others = ImageFolder(root / "train"), ImageFolder(root / "val")
    train = DataLoader(images, shuffle=True, seed=SEED, drop_last=True, transforms=[augment, scale], **shared)
    known, asked = (DataLoader(one, transforms=look, **shared) for one in (images, others))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    body, head = (part.to(device) for part in make_model())
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=options.rate)
    for epoch in range(options.epochs):
        body.train()
        losses = []
        for views, _ in train:
            loss = compare(head(body(views.flatten(0, 1))))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        (features, labels), (queries, answers) = describe(body, known), describe(body, asked)
        right = labels[(queries @ features.T).argmax(1)] == answers
        loss = torch.stack(losses).mean()
        print(f"epoch {epoch}: loss {loss:.3f}, {right.float().mean():.1%} of neighbors right")


def main() -> None:
    """Read the options, make images if asked, and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, nargs="?", help="folder with train/CLASS/ and val/CLASS/")
    parser.add_argument(
        "--made", type=int, help="train on this many images made for it, at least twice a batch"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=48, help="height and width for the model (default: 48)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-3)
    options = parser.parse_args()
    if options.made is not None:
        if options.made < 2 * options.batch:
            parser.error(f"--made must be {2 * options.batch} or more for a batch, got {options.made}")
        with tempfile.TemporaryDirectory() as folder:
            make_images(Path(folder), options.made)
            run(Path(folder), options)
    elif options.root is None:
        parser.error("pass a folder of images, or --made 240")
    else:
        run(options.root, options)


if __name__ == "__main__":
    main()
