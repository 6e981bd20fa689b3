"""``gpuloader show``: draw what training would see of a folder of images."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuloader.cli import check_writable, fail, parse_count


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of images")
    parser.add_argument("--output", type=Path, default="show.png", metavar="FILE", help="default: show.png")
    parser.add_argument("--count", type=parse_count, default=16, help="images to draw (default: 16)")
    parser.add_argument("--size", type=parse_count, default=224, help="height and width (default: 224)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice and the augmentation (default: 0)")
    parser.add_argument("--plain", action="store_true", help="resize and crop only, without augmentation")


def run(options: argparse.Namespace) -> None:
    """Draw augmented images of a folder, with their masks and boxes, as a PNG.

    FOLDER has a folder of images for each class, or just images. Or it has the folders images and masks, with
    a mask of the same name for each image; or images and labels, with a text file of the same name for each
    image: one line "class x y width height" per box, with center and size as fractions of the image.
    """
    from gpuloader.errors import LoaderError

    try:
        drawn = draw(options)
    except (LoaderError, OSError, ValueError) as error:
        fail(error)
    print(drawn)  # not above, because a closed pipe is no mistake


def draw(options: argparse.Namespace) -> str:
    """Draw images of the folder, and return a line that says what was drawn."""
    from gpuloader import DataLoader, show
    from gpuloader.sources.images.folder import EXTENSIONS
    from gpuloader.transforms import CenterCrop, ColorJitter, RandomFlip, RandomResizedCrop, Resize

    dataset, fields, classes = open_folder(options.folder)
    count = min(options.count, len(dataset))
    if count * options.size**2 > 1 << 26:  # all are in memory at the same time, several times over
        raise ValueError(f"--size {options.size}: {count} of these are too many; draw fewer or smaller ones")
    if options.output.suffix.lower() not in EXTENSIONS:
        raise ValueError(f"--output: the name must end with {', '.join(EXTENSIONS)}, got {options.output}")
    check_writable(options.output)
    changes: list[Any] = [RandomResizedCrop(fields, options.size, scale=(0.25, 1.0)), RandomFlip(fields)]
    changes.append(ColorJitter(fields, brightness=0.2, contrast=0.2, saturation=0.2))
    if options.plain:
        changes = [Resize(fields, options.size), CenterCrop(fields, options.size)]
    loader = DataLoader(
        dataset, places="cpu", batch_size=count, shuffle=True, seed=options.seed, transforms=changes
    )
    drawn = show(next(iter(loader)), classes=classes, fields=fields if isinstance(fields, tuple) else None)
    drawn.save(options.output)
    return f"{options.output}: {count} of {len(dataset):,} images of {options.folder}"


def open_folder(folder: Path) -> tuple[Any, Any, Sequence[str] | None]:
    """Return the images of a folder as a dataset, the fields to transform, and the names of classes."""
    from gpuloader import ImageFolder
    from gpuloader.sources.images.folder import EXTENSIONS
    from gpuloader.transforms import Boxes

    def find(where: Path) -> list[Path]:
        return sorted(path for path in where.rglob("*") if path.suffix.lower() in EXTENSIONS)

    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    images, masks, labels = folder / "images", folder / "masks", folder / "labels"
    if images.is_dir() and (masks.is_dir() or labels.is_dir()):
        paths = find(images)
        by_name = {path.relative_to(masks).with_suffix(""): path for path in find(masks)}
        fields: list[Any] = ["image", "mask"] if by_name else ["image"]
        if labels.is_dir():
            fields.append(Boxes("boxes", "labels", "cxcywh", True))
        if paths:
            return Annotated(images, paths, by_name, labels if labels.is_dir() else None), (*fields,), None
    elif any(path.parent != folder for path in find(folder)):
        dataset = ImageFolder(folder, allow_empty=True)
        return dataset, "image", dataset.classes
    elif paths := find(folder):
        return Annotated(folder, paths, {}, None), "image", None
    raise FileNotFoundError(f"no images in {folder}; their names end with {', '.join(EXTENSIONS)}")


class Annotated:
    """Images with masks or boxes, in files of the same names in other folders."""

    def __init__(self, root: Path, paths: list[Path], masks: dict[Path, Path], labels: Path | None) -> None:
        self.root, self.paths, self.masks, self.labels = root, paths, masks, labels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        import numpy as np

        from gpuloader import Image

        path = self.paths[index]
        name = path.relative_to(self.root).with_suffix("")
        sample: dict[str, Any] = {"image": Image.read(path)}
        if self.masks:
            if name not in self.masks:
                raise FileNotFoundError(f"{path} has no mask of the same name")
            sample["mask"] = Image.read(self.masks[name])
        if self.labels is not None:
            file = self.labels / name.with_suffix(".txt")
            # Without a file, there are no boxes.
            lines = file.read_text().split("\n") if file.exists() else []
            rows = [line.split() for line in lines if line.strip()]
            if any(len(row) != 5 for row in rows):
                raise ValueError(f"{file}: expected lines of class, x, y, width and height")
            numbers = np.array(rows, np.float32).reshape(-1, 5)
            sample |= {"boxes": numbers[:, 1:], "labels": numbers[:, 0].astype(np.int64)}
        return sample
