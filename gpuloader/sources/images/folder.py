"""`ImageFolder` and `ImageFiles`: pictures in files, with their labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.sources.array_rows import locate
from gpuloader.sources.block import each_row
from gpuloader.sources.dataset_base import Dataset, join_samples
from gpuloader.sources.images.image import Picture
from gpuloader.sources.packed import PackedList

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The endings of file names that are taken for pictures, as in torchvision."""

Path = str | os.PathLike[str]


class _Pair(NamedTuple):
    image: Any
    label: Any


class ImageSample(_Pair):
    """A picture and its label; a batch has the same two fields.

    Attributes
    ----------
    image : object
        The picture.
    label : object
        Its label.

    Examples
    --------
    >>> image, label = ImageSample("pixels", 3)
    >>> image, label
    ('pixels', 3)
    """

    __slots__ = ()

    _names_fields = True  # for the loader, so that its fields are not '0' and '1'


class _Files(Dataset[ImageSample]):
    """The base of datasets of picture files.

    Parameters
    ----------
    paths : iterable of str
        The files.
    labels : numpy.ndarray or None
        One label per file; None for none.
    """

    holds_pictures = True

    def __init__(
        self,
        paths: Iterator[str],
        labels: NDArray[Any] | None,
        transform: Callable[[Any], Any] | None,
        target_transform: Callable[[Any], Any] | None,
        loader: Callable[[str], Any] | None,
        upright: bool,
    ) -> None:
        for name, given in (
            ("transform", transform),
            ("target_transform", target_transform),
            ("loader", loader),
        ):
            if given is not None and not callable(given):
                raise TypeError(f"{name} must be callable, got {type(given).__name__}")
        self.transform = transform
        self.target_transform = target_transform
        self.loader = loader
        self.upright = bool(upright)
        self._paths = PackedList(paths)
        self._labels = labels

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: Any) -> Any:
        rows = locate(self, index)
        if isinstance(rows, int):
            return self._read(rows)
        return join_samples([self._read(row) for row in each_row(rows)])

    def __repr__(self) -> str:
        count = "1 picture" if len(self) == 1 else f"{len(self):,} pictures"
        return f"<{type(self).__name__}: {count}{self._describe_labels()}>"

    def _describe_labels(self) -> str:
        return "" if self._labels is None else " with labels"

    def _read(self, row: int) -> Any:
        path = self._paths[row]
        image: Any = self.loader(path) if self.loader else Picture.read(path, upright=self.upright)
        if self.transform is not None:
            image = self.transform(image.to_pillow() if isinstance(image, Picture) else image)
        if self._labels is None:
            return image
        label = self._labels[row]
        if not self._labels.ndim > 1:
            label = label.item()
        return ImageSample(image, label if self.target_transform is None else self.target_transform(label))


class ImageFolder(_Files):
    """Pictures in one folder per class; a sample is the tuple ``(image, label)``.

    The order, the attributes and the parameters are those of torchvision's class of this name. The image is a
    `Picture`: a loader decodes it at the size that its transforms need.

    Parameters
    ----------
    root : path
        The folder whose folders are the classes. Those may have folders of their own.
    transform, target_transform : callable or None
        Called with each image, as an RGB image of Pillow, and with each label. The transforms of the loader
        are faster, and their random numbers do not depend on the workers.
    loader : callable or None
        Returns the image in a file, given its path: pixels, an image of Pillow or a `Picture`. None reads any
        format that Pillow knows.
    is_valid_file : callable or None
        Returns whether a path is a picture. None looks at the file's extension.
    allow_empty : bool
        Whether a class may have no pictures.
    upright : bool
        Whether to turn pictures as their Exif orientation says.

    Attributes
    ----------
    classes : list of str
        The names of the classes, sorted.
    class_to_idx : dict of str to int
        The label of each class.
    samples, imgs : list of (str, int)
        The path and the label of each picture.
    targets : list of int
        The label of each picture.
    extensions : tuple of str or None
        The extensions of pictures; None if is_valid_file chooses them.

    Raises
    ------
    FileNotFoundError
        The folder does not exist, has no folders, or a class has no pictures.

    Examples
    --------
    >>> import pathlib, tempfile, pytest
    >>> from gpuloader import DataLoader
    >>> image = pytest.importorskip("PIL.Image")
    >>> root = tempfile.TemporaryDirectory()
    >>> for name in ("cat", "dog"):
    ...     pathlib.Path(root.name, name).mkdir()
    ...     image.new("RGB", (8, 6), "white").save(f"{root.name}/{name}/0.png")
    >>> dataset = ImageFolder(root.name)
    >>> dataset.classes, dataset.targets
    (['cat', 'dog'], [0, 1])
    >>> for images, labels in DataLoader(dataset, places="cpu", batch_size=2):
    ...     print(images.shape, images.dtype, labels)
    (2, 6, 8, 3) uint8 [0 1]
    >>> root.cleanup()
    """

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
        self.extensions = EXTENSIONS if is_valid_file is None else None
        self.classes, self.class_to_idx = self.find_classes(self.root)
        paths: list[str] = []
        labels: list[int] = []
        empty: list[str] = []
        for name, label in self.class_to_idx.items():
            found = list(_walk(os.path.join(self.root, name), is_valid_file))  # noqa: PTH118
            paths += found
            labels += [label] * len(found)
            if not found:
                empty.append(name)
        if empty and not allow_empty:
            valid = "" if self.extensions is None else f"; pictures end with {', '.join(EXTENSIONS)}"
            raise FileNotFoundError(f"no pictures in the folders {empty} of {self.root}{valid}")
        super().__init__(
            iter(paths), np.array(labels, np.int64), transform, target_transform, loader, upright
        )

    def find_classes(self, directory: Path) -> tuple[list[str], dict[str, int]]:
        """Return the names of the classes in a folder, and the label of each."""
        try:
            with os.scandir(directory) as entries:
                classes = sorted(entry.name for entry in entries if entry.is_dir())
        except NotADirectoryError:
            raise FileNotFoundError(f"{directory} is a file; expected a folder of folders") from None
        if not classes:
            raise FileNotFoundError(f"{directory} has no folders; expected one for each class")
        return classes, {name: label for label, name in enumerate(classes)}

    def _describe_labels(self) -> str:
        classes = "1 class" if len(self.classes) == 1 else f"{len(self.classes):,} classes"
        return f" of {classes} in {self.root}"

    @property
    def targets(self) -> list[int]:
        """The label of each picture."""
        assert self._labels is not None
        listed: list[int] = self._labels.tolist()
        return listed

    @cached_property
    def samples(self) -> list[tuple[str, int]]:
        """The path and the label of each picture."""
        return list(zip(self._paths, self.targets, strict=True))

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """The same as `samples`."""
        return self.samples

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "samples"}


class ImageFiles(_Files):
    """Pictures in the given files; a sample is the tuple ``(image, label)``, or the image alone.

    Parameters
    ----------
    paths : sequence of path
        The files.
    labels : sequence or None
        One number, or row of numbers, per file; None for samples that are images alone.
    loader : callable or None
        Returns the image in a file, given its path: pixels, an image of Pillow or a `Picture`. None reads any
        format that Pillow knows.
    upright : bool
        Whether to turn pictures as their Exif orientation says.

    Raises
    ------
    ValueError
        There are more labels than files, or fewer.

    Examples
    --------
    >>> import tempfile, pytest
    >>> image = pytest.importorskip("PIL.Image")
    >>> folder = tempfile.TemporaryDirectory()
    >>> image.new("L", (8, 6)).save(f"{folder.name}/a.png")
    >>> dataset = ImageFiles([f"{folder.name}/a.png"], labels=[7])
    >>> picture, label = dataset[0]
    >>> picture.shape, label
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
            raise ValueError(
                f"expected one label per file, got {len(paths)} files and labels of {rows.shape}"
            )
        super().__init__((os.fspath(path) for path in paths), rows, None, None, loader, upright)


def _walk(folder: str, is_valid_file: Callable[[str], bool] | None) -> Iterator[str]:
    """Yield the pictures below a folder in torchvision's order: folders by path, then files by name."""
    for root, _, names in sorted(os.walk(folder, followlinks=True)):
        for name in sorted(names):
            path = os.path.join(root, name)  # noqa: PTH118
            if is_valid_file(path) if is_valid_file else name.lower().endswith(EXTENSIONS):
                yield path
