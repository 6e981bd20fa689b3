"""Transforms of single images that Pillow computes in the worker, for any kind of place; views of an image.

The operations are a table: changes of color by name, and geometry as affine steps, which masks, boxes and
keypoints follow. Magnitudes are those of torchvision's ``transforms.v2``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuloader.checks import check_count, check_number, checked
from gpuloader.sources.images.annotations import Fields, split_fields, varying_names
from gpuloader.sources.images.image import FILTERS, Affine
from gpuloader.transforms import image_transforms
from gpuloader.transforms.image_transforms import Plan, make_affine


@dataclass(frozen=True)
class Grayscale(image_transforms.OfImages):
    """Removes the color from images, optionally at random; they keep their channels.

    Attributes
    ----------
    field, p : str, None or tuple, float
        The field of images, as for `ColorJitter`; and the probability, 0 to 1.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> images = [np.array([[[200, 100, 0]]], np.uint8)]
    >>> next(iter(DataLoader(images, places="cpu", transforms=[Grayscale(None)]))).tolist()
    [[[[118, 118, 118]]]]
    """

    p: float = checked(image_transforms.check_probability, 1.0)

    moves = False
    _keeps_size = True  # of images, so that a GPU may crop them

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Remove the color from the result of the plan so far, or leave it."""
        if rng.random() < self.p:
            plan.append(image_transforms.Coloring((("gray", 0.0),)))


def _range(given: float | tuple[float, float]) -> tuple[float, float]:
    return given if isinstance(given, tuple | list) else (given, given)


def _check_sigma(name: str, given: float | tuple[float, float]) -> None:
    image_transforms.check_range(name, _range(given))


@dataclass(frozen=True)
class GaussianBlur(image_transforms.OfImages):
    """Blurs images by a random radius, as Pillow's ``ImageFilter.GaussianBlur`` does.

    Attributes
    ----------
    field : str, None or tuple
        The field of images, as for `ColorJitter`.
    sigma : float or tuple of float
        The radius in pixels, which is the standard deviation; or the least and the greatest radius.
    p : float
        The probability that an image is blurred, 0 to 1.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> images = [np.array([[0, 0, 90, 0, 0]], np.uint8)]
    >>> next(iter(DataLoader(images, places="cpu", transforms=[GaussianBlur(None, 0.5)]))).ravel().tolist()
    [0, 10, 69, 10, 0]
    """

    sigma: float | tuple[float, float] = checked(_check_sigma, (0.1, 2.0))
    p: float = checked(image_transforms.check_probability, 1.0)

    moves = False
    _keeps_size = True

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Blur the result of the plan so far, or leave it."""
        low, high = _range(self.sigma)
        if rng.random() < self.p:
            plan.append(image_transforms.Coloring((("blur", low + (high - low) * rng.random()),)))


# ---------------------------------------------------------------------------------------------------------
# Random operations from a table

Space = Mapping[str, tuple[float, float, bool]]
"""Operations by name: the magnitudes of the first and last bin, and whether their sign is random."""


def make_space(shear: float, across: float, down: float, turn: float, color: float, bits: int) -> Space:
    """Return torchvision's operations, given the greatest magnitude of each kind."""
    return {
        "identity": (0, 0, False),
        "shear_x": (0, shear, True),
        "shear_y": (0, shear, True),
        "translate_x": (0, across, True),
        "translate_y": (0, down, True),
        "rotate": (0, turn, True),
        **dict.fromkeys(("brightness", "saturation", "contrast", "sharpness"), (0, color, True)),
        "posterize": (8, bits, False),
        "solarize": (255, 0, False),
        "autocontrast": (0, 0, False),
        "equalize": (0, 0, False),
    }


_GEOMETRY: Mapping[str, Callable[[tuple[int, int], str, float], Affine]] = {
    "shear_x": lambda size, how, by: make_affine(size, how, shear=(_slant(by), 0.0), center=(0.0, 0.0)),
    "shear_y": lambda size, how, by: make_affine(size, how, shear=(0.0, _slant(by)), center=(0.0, 0.0)),
    "translate_x": lambda size, how, by: make_affine(size, how, shift=(int(by), 0)),
    "translate_y": lambda size, how, by: make_affine(size, how, shift=(0, int(by))),
    "rotate": lambda size, how, by: make_rotation(size, how, by),
}


def _slant(by: float) -> float:
    return math.degrees(math.atan(by))


def make_rotation(size: tuple[int, int], filter: str, angle: float) -> Affine:  # noqa: A002
    """Return the affine step that equals Pillow's ``rotate`` by degrees, counterclockwise.

    >>> make_rotation((4, 4), "nearest", 90).matrix
    (0.0, -1.0, 4.0, 1.0, 0.0, 0.0)
    """
    x, y, turn = size[1] / 2, size[0] / 2, -math.radians(angle % 360.0)
    a, b = round(math.cos(turn), 15), round(math.sin(turn), 15)
    d, e = round(-math.sin(turn), 15), a
    return Affine((a, b, a * -x + b * -y + x, d, e, d * -x + e * -y + y), size, filter)


def add_operation(
    plan: Plan, space: Space, number: int, how: RandAugment | TrivialAugment, rng: np.random.Generator
) -> None:
    """Add a random operation of a space to a plan, with the magnitude of one of a transform's bins."""
    name = [*space][int(rng.random() * len(space))]
    first, last, is_signed = space[name]
    amount = first + (last - first) * number / (how.num_magnitude_bins - 1)
    if is_signed and rng.random() <= 0.5:
        amount = -amount
    if name in _GEOMETRY:
        plan.append(_GEOMETRY[name](image_transforms.find_size(plan), how.filter, amount))
    else:
        # A change of color has a factor; a magnitude of 0 leaves it at 1.
        amount = round(amount) if name == "posterize" else amount + is_signed
        plan.append(image_transforms.Coloring(((name, amount),)))


def _check_several(name: str, bins: int) -> None:
    if check_count(name, bins) < 2:
        raise ValueError(f"{name} must be 2 or more, got {bins}")


@dataclass(frozen=True)
class RandAugment(image_transforms.OfImages):
    """Applies random operations of the same strength to each image (Cubuk et al., 2020).

    An operation shears, moves or turns the image, or changes brightness, color, contrast, sharpness or the
    levels of its values. Masks, boxes and keypoints follow.

    Attributes
    ----------
    field : str, None or tuple
        The field of images, as for `Resize`.
    num_ops, magnitude, num_magnitude_bins : int
        The number of operations, and their strength, from 0 to ``num_magnitude_bins - 1``.
    filter : str
        'nearest', 'bilinear' or 'bicubic'; uncovered areas become black.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> images = [np.zeros((32, 32, 3), np.uint8)] * 2
    >>> loader = DataLoader(images, places="cpu", batch_size=2, transforms=[RandAugment(None)])
    >>> next(iter(loader)).shape
    (2, 32, 32, 3)
    """

    num_ops: int = checked(check_count, 2)
    magnitude: int = checked(check_number, 9)
    num_magnitude_bins: int = checked(_check_several, 31)
    filter: str = checked(("nearest", *FILTERS), "nearest")

    _keeps_size = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.magnitude < self.num_magnitude_bins:
            most = self.num_magnitude_bins - 1
            raise ValueError(f"magnitude must be a number from 0 to {most}, got {self.magnitude!r}")

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Apply operations to the result of the plan so far."""
        height, width = image_transforms.find_size(plan)
        space = make_space(0.3, 150 / 331 * width, 150 / 331 * height, 30.0, 0.9, 4)
        for _ in range(self.num_ops):
            add_operation(plan, space, self.magnitude, self, rng)


@dataclass(frozen=True)
class TrivialAugment(image_transforms.OfImages):
    """Applies one random operation of random strength to each image (Müller and Hutter, 2021).

    The operations are those of `RandAugment`, and the strengths those of torchvision's
    ``TrivialAugmentWide``.

    Attributes
    ----------
    field : str, None or tuple
        The field of images, as for `Resize`.
    num_magnitude_bins, filter : int, str
        The number of strengths, and the filter, as for `RandAugment`.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> images = [np.zeros((32, 32, 3), np.uint8)] * 2
    >>> loader = DataLoader(images, places="cpu", batch_size=2, transforms=[TrivialAugment(None)])
    >>> next(iter(loader)).shape
    (2, 32, 32, 3)
    """

    num_magnitude_bins: int = checked(_check_several, 31)
    filter: str = checked(("nearest", *FILTERS), "nearest")

    _keeps_size = True

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Apply an operation to the result of the plan so far."""
        space = make_space(0.99, 32.0, 32.0, 135.0, 0.99, 2)
        add_operation(plan, space, int(rng.random() * self.num_magnitude_bins), self, rng)


# ---------------------------------------------------------------------------------------------------------
# Views


@dataclass(frozen=True)
class Views:
    """Makes several images of each image, each with its own draws, for contrastive learning; decodes once.

    A sample's image becomes an array of shape (views, height, width, channels), and a batch has the shape
    (samples, views, ...), which transforms of batches such as `Normalize` accept. Masks and keypoints get the
    same dimension.

    Attributes
    ----------
    views : int
        The number of images to make.
    transforms : sequence
        The transforms of single images that make a view. All name the same field, and the result has one
        size.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> from gpuloader.transforms import RandomFlip, RandomResizedCrop
    >>> _ = pytest.importorskip("PIL")
    >>> images = [np.zeros((40, 60, 3), np.uint8)] * 4
    >>> views = Views(2, [RandomResizedCrop(None, 32), RandomFlip(None)])
    >>> batch = next(iter(DataLoader(images, places="cpu", batch_size=4, transforms=[views])))
    >>> batch.shape
    (4, 2, 32, 32, 3)
    """

    views: int
    transforms: Sequence[image_transforms.ImageTransform]

    def __post_init__(self) -> None:
        _check_several("views", self.views)
        if not isinstance(self.transforms, list | tuple):
            raise TypeError(f"Views needs a list of transforms, got {type(self.transforms).__name__}")
        kind = image_transforms.ImageTransform
        others = [type(one).__name__ for one in self.transforms if not isinstance(one, kind)]
        if others or not self.transforms:
            got = f"{others[0]}; put it after Views" if others else "none"
            raise TypeError(f"Views needs transforms of single images, got {got}")
        name, along = split_fields(self.field)
        for one in self.transforms:
            found = split_fields(one.field)
            if found != (name, along) and (found[0] != name or getattr(one, "moves", True)):
                got = f"{self.field!r} and {one.field!r}"
                raise ValueError(f"the transforms of Views must be of one field, got {got}")
        if varying := sorted(varying_names(along)):
            raise ValueError(f"each view would have another number of {varying}, which Views cannot stack")

    @property
    def field(self) -> Fields:
        """The field of images, and what moves along with them."""
        moving = (one.field for one in self.transforms if getattr(one, "moves", True))
        return next(moving, self.transforms[0].field)

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Add to the plan of one view."""
        for transform in self.transforms:
            transform.extend(plan, rng)
