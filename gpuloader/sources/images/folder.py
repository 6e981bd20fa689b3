"""`ImageFolder` and `ImageFiles`: images in files, with their labels; and the base of other folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Sized
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.checks import check_function
from gpuloader.order.randomness import current_draw, sample_rng
from gpuloader.sources.array_rows import locate
from gpuloader.sources.block import join_samples, number_rows
from gpuloader.sources.dataset import Dataset
from gpuloader.sources.images.image import Image

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""File extensions that are treated as images, as in torchvision."""

Path = str | os.PathLike[str]


def draw_position(at: float | None) -> float:
    """Return where a clip lies in its file, from 0 to 1: as given, drawn for the sample, or the middle.

    It is drawn while a loader fetches the sample. Raises `ValueError` for a number that is not a part.
    """
    if at is None:
        return 0.5 if current_draw().seed is None else sample_rng().random()
    if not 0 <= at <= 1:
        raise ValueError(f"at must be a number from 0 to 1, got {at!r}")
    return at


class ImageSample(NamedTuple("_Pair", [("image", Any), ("label", Any)])):
    """An image and its label; a batch has the same two fields.

    Attributes
    ----------
    image, label : object
        The image and the label.

    Examples
    --------
    >>> image, label = ImageSample("pixels", 3)
    >>> image, label
    ('pixels', 3)
    """

    __slots__ = ()

    _names_fields = True  # tells the loader to name its fields, instead of '0' and '1'


class _Files(Dataset[ImageSample]):
    """The base of datasets of image files, each with one of the `labels`, if there are any."""

    holds_pictures = True  # tells the loader to decode them

    _kind = "image"
    _sample: Callable[[Any, Any], Any] = ImageSample

    def __init__(
        self,
        paths: list[str],
        labels: NDArray[Any] | None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[str], Any] | None = None,
        upright: bool = False,
    ) -> None:
        given = {"transform": transform, "target_transform": target_transform, "loader": loader}
        for name, function in given.items():
            if function is not None:
                check_function(name, function)
        self.transform, self.target_transform, self.loader = transform, target_transform, loader
        self.upright = bool(upright)
        # One array, which workers share. A list of a million strings would be copied into each of them, page
        # by page, as their reference counts change.
        self._paths = np.array([*map(os.fsencode, paths)], "S")
        self._labels = labels

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: Any) -> Any:
        rows = locate(self, index)
        if not isinstance(rows, int):
            return join_samples([self[row] for row in number_rows(rows).tolist()])
        image = self._load(os.fsdecode(self._paths[rows]))
        if self.transform is not None:
            image = self.transform(image.to_pillow() if isinstance(image, Image) else image)
        if self._labels is None:
            return image
        label = self._labels[rows] if self._labels.ndim > 1 else self._labels[rows].item()
        return self._sample(image, label if self.target_transform is None else self.target_transform(label))

    def _load(self, path: str) -> Any:
        return self.loader(path) if self.loader else Image.read(path, upright=self.upright)

    def __repr__(self) -> str:
        count = f"1 {self._kind}" if len(self) == 1 else f"{len(self):,} {self._kind}s"
        return f"<{type(self).__name__}: {count}{self._describe_labels()}>"

    def _describe_labels(self) -> str:
        return "" if self._labels is None else " with labels"


class Folder(_Files):
    """The base of datasets of files in one folder per class."""

    _extensions: tuple[str, ...] = EXTENSIONS

    def __init__(
        self,
        root: Path,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[str], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        *,
        upright: bool = False,
    ) -> None:
        self.root = os.path.expanduser(os.fspath(root))  # noqa: PTH111
        self.extensions = self._extensions if is_valid_file is None else None
        self.classes, self.class_to_idx = self.find_classes(self.root)
        paths, labels, empty = list[str](), list[int](), list[str]()
        for name, label in self.class_to_idx.items():
            before = len(paths)
            # In torchvision's order: folders by path, then files by name.
            for folder, _, files in sorted(os.walk(os.path.join(self.root, name), followlinks=True)):  # noqa: PTH118
                for file in sorted(files):
                    path = os.path.join(folder, file)  # noqa: PTH118
                    if is_valid_file(path) if is_valid_file else file.lower().endswith(self._extensions):
                        paths.append(path)
            labels += [label] * (len(paths) - before)
            if len(paths) == before:
                empty.append(name)
        if empty and not allow_empty:
            kind = self._kind
            valid = "" if self.extensions is None else f"; {kind}s end with {', '.join(self.extensions)}"
            raise FileNotFoundError(f"no {kind}s in the folders {empty} of {self.root}{valid}")
        super().__init__(paths, np.array(labels, np.int64), transform, target_transform, loader, upright)

    # The interpreter names the class that users call in the TypeError for an unknown parameter: the other
    # folders have their own parameters.
    __init__.__qualname__ = "ImageFolder.__init__"

    def find_classes(self, directory: Path) -> tuple[list[str], dict[str, int]]:
        """Return the names of the classes in a folder, and the label of each."""
        try:
            with os.scandir(directory) as entries:
                classes = sorted(map(attrgetter("name"), filter(os.DirEntry.is_dir, entries)))
        except (FileNotFoundError, NotADirectoryError) as error:
            problem = "does not exist" if isinstance(error, FileNotFoundError) else "is a file"
            raise FileNotFoundError(f"{directory} {problem}; expected a folder of folders") from None
        if not classes:
            raise FileNotFoundError(f"{directory} has no folders; expected one for each class")
        return classes, dict(zip(classes, range(len(classes)), strict=True))

    def _describe_labels(self) -> str:
        classes = "1 class" if len(self.classes) == 1 else f"{len(self.classes):,} classes"
        return f" of {classes} in {self.root}"

    @property
    def targets(self) -> list[int]:
        """The label of each image."""
        assert self._labels is not None
        listed: list[int] = self._labels.tolist()
        return listed

    @cached_property
    def samples(self) -> list[tuple[str, int]]:
        """The path and the label of each image."""
        return list(zip(map(os.fsdecode, self._paths), self.targets, strict=True))

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """The same as `samples`."""
        return self.samples

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "samples"}


class ImageFolder(Folder):
    """Images in one folder per class; a sample is the tuple ``(image, label)``.

    The order, the attributes and the parameters are those of torchvision's class of the same name. The image
    is an `Image`: a loader decodes it at the size that its transforms need.

    Parameters
    ----------
    root : path
        The folder that contains one folder per class. These may have subfolders.
    transform, target_transform : callable or None
        Called with each image, as an RGB image of Pillow, and with each label. The transforms of the loader
        are faster, and their random numbers do not depend on the workers.
    loader : callable or None
        Returns the image in a file, given its path: pixels, a Pillow image or an `Image`. None reads any
        format that Pillow knows.
    is_valid_file, allow_empty : callable or None, bool
        Returns whether a path is an image (None checks the file's extension); and whether a class may have no
        images.
    upright : bool
        Whether to turn images as their Exif orientation says.

    Attributes
    ----------
    classes, class_to_idx : list of str, dict of str to int
        The names of the classes, sorted; and the label of each.
    samples, imgs, targets : list of (str, int), list of int
        The path and the label of each image, or the label alone.
    extensions : tuple of str or None
        The extensions of images; None if is_valid_file chooses them.

    Raises
    ------
    FileNotFoundError
        The folder does not exist, has no folders, or a class has no images.

    Examples
    --------
    >>> import pathlib, tempfile, pytest
    >>> from gpuloader import DataLoader
    >>> pillow = pytest.importorskip("PIL.Image")
    >>> root = tempfile.TemporaryDirectory()
    >>> for name in ("cat", "dog"):
    ...     pathlib.Path(root.name, name).mkdir()
    ...     pillow.new("RGB", (8, 6), "white").save(f"{root.name}/{name}/0.png")
    >>> dataset = ImageFolder(root.name)
    >>> dataset.classes, dataset.targets
    (['cat', 'dog'], [0, 1])
    >>> for images, labels in DataLoader(dataset, places="cpu", batch_size=2):
    ...     print(images.shape, images.dtype, labels)
    (2, 6, 8, 3) uint8 [0 1]
    >>> root.cleanup()
    """


class ImageFiles(_Files):
    """Images in the given files; a sample is the tuple ``(image, label)``, or the image alone.

    Parameters
    ----------
    paths : sequence of path
        The files.
    labels : sequence or None
        One number, or row of numbers, per file; None for samples that are images alone.
    loader, upright : callable or None, bool
        As for `ImageFolder`.

    Raises
    ------
    ValueError
        There are more labels than files, or fewer.

    Examples
    --------
    >>> import tempfile, pytest
    >>> pillow = pytest.importorskip("PIL.Image")
    >>> folder = tempfile.TemporaryDirectory()
    >>> pillow.new("L", (8, 6)).save(f"{folder.name}/a.png")
    >>> dataset = ImageFiles([f"{folder.name}/a.png"], labels=[7])
    >>> image, label = dataset[0]
    >>> image.shape, label
    ((6, 8, 3), 7)
    >>> folder.cleanup()
    """

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Sequence[Any] | NDArray[Any] | None = None,
        *,
        loader: Callable[[str], Any] | None = None,
        upright: bool = False,
    ) -> None:
        if isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Sized):
            raise TypeError(f"paths must be a list of paths, got {paths!r}")
        rows = None if labels is None else np.asarray(labels)
        if rows is not None and (not rows.ndim or len(rows) != len(paths)):
            raise ValueError(f"expected one label per file, got {len(paths)} files, labels of {rows.shape}")
        super().__init__([os.fspath(path) for path in paths], rows, loader=loader, upright=upright)
