"""Transforms that give pictures one size: `Resize`, `CenterCrop`, `RandomResizedCrop`; and `RandomFlip`.

Sizes, ranges and rounding are those of torchvision on Pillow's images. Windows are drawn from the loader's
seed, the epoch and the sample's index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuloader.base.checks import check_count, check_word
from gpuloader.sources.pictures.geometry import FILTERS
from gpuloader.transforms.planning import Plan, find_geometry

_TRIES = 10  # windows that are drawn before the middle is taken, as in torchvision


@dataclass(frozen=True)
class Resize:
    """Resizes pictures, antialiased as Pillow does it.

    Attributes
    ----------
    field : str or None
        The field of pictures; None means the first one.
    size : int or tuple of int
        Height and width of the result. A number is the length of the shorter side, and the picture keeps its
        aspect ratio.
    filter : str
        'bilinear' or 'bicubic'.
    scaled : bool
        True lets the decoder of a JPEG shrink it to a half, a quarter or an eighth first, which is faster.
        The pixels then differ a little from Pillow's.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> pictures = [np.zeros((40 + 10 * number, 60, 3), np.uint8) for number in range(2)]
    >>> loader = DataLoader(pictures, places="cpu", batch_size=2, transforms=[Resize(None, (32, 24))])
    >>> next(iter(loader)).shape
    (2, 32, 24, 3)
    """

    field: str | None
    size: int | tuple[int, int]
    filter: str = "bilinear"
    scaled: bool = False

    def __post_init__(self) -> None:
        check_size(self.size)
        check_word("filter", self.filter, tuple(FILTERS))

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Resize the result of the plan so far."""
        geometry = find_geometry(plan)
        size = self.size
        if isinstance(size, int | np.integer):
            size = _keep_aspect(geometry.height, geometry.width, int(size))
        resize(plan, both(size), self.filter, scaled=self.scaled)


@dataclass(frozen=True)
class CenterCrop:
    """Cuts out the middle of pictures; smaller ones get a black margin.

    Attributes
    ----------
    field : str or None
        The field of pictures; None means the first one.
    size : int or tuple of int
        Height and width of the result; a number is both.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> pictures = [np.arange(25, dtype=np.uint8).reshape(5, 5)]
    >>> loader = DataLoader(pictures, places="cpu", transforms=[CenterCrop(None, (1, 3))])
    >>> next(iter(loader)).ravel()
    array([11, 12, 13], dtype=uint8)
    """

    field: str | None
    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        check_size(self.size)

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Cut the middle out of the result of the plan so far."""
        geometry = find_geometry(plan)
        height, width = both(self.size)
        top, left = _center(geometry.height, height), _center(geometry.width, width)
        plan[-1] = geometry.cut(top, left, height, width)


@dataclass(frozen=True)
class RandomResizedCrop:
    """Cuts a window of random area and aspect ratio out of each picture, and resizes it.

    If ten windows do not fit into a picture, it is the largest one in the middle whose aspect ratio is in the
    range, as in torchvision. A window has at least one row and column; torchvision's can be empty, an error.

    Attributes
    ----------
    field : str or None
        The field of pictures; None means the first one.
    size : int or tuple of int
        Height and width of the result; a number is both.
    scale : tuple of float
        The least and the greatest part of the picture's area that the window takes.
    ratio : tuple of float
        The least and the greatest width of the window, in units of its height.
    filter : str
        'bilinear' or 'bicubic'.
    scaled : bool
        True lets the decoder of a JPEG shrink it to a half, a quarter or an eighth first, if the window stays
        as large as the result. That is faster, and the pixels then differ a little from Pillow's.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> pictures = [np.zeros((40, 60, 3), np.uint8), np.zeros((80, 50, 3), np.uint8)]
    >>> crop = RandomResizedCrop(None, 32)
    >>> next(iter(DataLoader(pictures, places="cpu", batch_size=2, seed=1, transforms=[crop]))).shape
    (2, 32, 32, 3)
    """

    field: str | None
    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    filter: str = "bilinear"
    scaled: bool = False

    def __post_init__(self) -> None:
        check_size(self.size)
        check_range("scale", self.scale, 1.0)
        check_range("ratio", self.ratio)
        check_word("filter", self.filter, tuple(FILTERS))

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Cut a window out of the result of the plan so far, and resize it."""
        geometry = find_geometry(plan)
        plan[-1] = geometry.cut(*draw_window(geometry.height, geometry.width, self.scale, self.ratio, rng))
        resize(plan, both(self.size), self.filter, scaled=self.scaled)


@dataclass(frozen=True)
class RandomFlip:
    """Mirrors pictures at random.

    Attributes
    ----------
    field : str or None
        The field of pictures; None means the first one.
    p : float
        The probability, 0 to 1.
    axis : str
        'horizontal' mirrors left to right, 'vertical' top to bottom.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> pictures = [np.array([[1, 2, 3]], np.uint8)] * 4
    >>> loader = DataLoader(pictures, places="cpu", batch_size=4, seed=2, transforms=[RandomFlip(None)])
    >>> sorted(next(iter(loader))[:, 0, :, 0].tolist())[::3]
    [[1, 2, 3], [3, 2, 1]]
    """

    field: str | None
    p: float = 0.5
    axis: str = "horizontal"

    def __post_init__(self) -> None:
        check_probability(self.p)
        check_word("axis", self.axis, ("horizontal", "vertical"))

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Mirror the result of the plan so far, or do not."""
        geometry = find_geometry(plan)
        if rng.random() < self.p:
            across = self.axis == "horizontal"
            plan[-1] = geometry.mirrored(flip=across, flop=not across)


def resize(plan: Plan, size: tuple[int, int], filter: str, *, scaled: bool) -> None:  # noqa: A002
    """Resize the result of a plan, in the geometry that ends it or, if that resizes already, in another."""
    geometry = find_geometry(plan)
    if (geometry.height, geometry.width) == size:
        return
    if geometry.can_resize:
        plan[-1] = geometry.resized(size, filter, scaled=scaled)
    else:
        plan[-1:] = [geometry, type(geometry).of(geometry.height, geometry.width).resized(size, filter)]


def draw_window(
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a random window, as torchvision's ``get_params`` draws them.

    >>> draw_window(100, 200, (1.0, 1.0), (1.0, 1.0), np.random.default_rng(0))
    (0, 50, 100, 100)
    """
    area = height * width
    least, greatest = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_TRIES):
        part = area * (scale[0] + (scale[1] - scale[0]) * rng.random())
        aspect = math.exp(least + (greatest - least) * rng.random())
        wide, tall = round(math.sqrt(part * aspect)), round(math.sqrt(part / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            top, left = int(rng.random() * (height - tall + 1)), int(rng.random() * (width - wide + 1))
            return top, left, tall, wide
    wide, tall = width, height
    if width / height < ratio[0]:
        tall = max(round(width / ratio[0]), 1)
    elif width / height > ratio[1]:
        wide = max(round(height * ratio[1]), 1)
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _keep_aspect(height: int, width: int, shorter: int) -> tuple[int, int]:
    """Return the size at which the shorter side has this length, rounded as torchvision does."""
    if width <= height:
        return int(shorter * height / width), shorter
    return shorter, int(shorter * width / height)


def _center(length: int, wanted: int) -> int:
    """Return where the middle part of a length begins; negative if the length is too short."""
    return -((wanted - length) // 2) if wanted > length else round((length - wanted) / 2)


def both(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return a size as height and width.

    >>> both(224), both((32, 64))
    ((224, 224), (32, 64))
    """
    if isinstance(size, int | np.integer):
        return int(size), int(size)
    return int(size[0]), int(size[1])


def check_size(size: object) -> None:
    """Raise `ValueError` unless a size is a number or a pair of numbers, of 1 or more.

    >>> check_size((224, 224))
    """
    sides: Sequence[object]
    if isinstance(size, tuple | list):
        sides = size
        if len(sides) != 2:
            raise ValueError(f"size must be a number or (height, width), got {size!r}")
    else:
        sides = (size,)
    for side in sides:
        check_count("size", side)


def check_range(name: str, given: object, most: float = math.inf) -> None:
    """Raise `ValueError` unless this is a pair of rising numbers above 0, and at most `most`.

    >>> check_range("scale", (0.08, 1.0), 1.0)
    """
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ValueError(f"{name} must be a pair of numbers, got {given!r}")
    if not all(isinstance(one, int | float | np.number) for one in given):
        raise ValueError(f"{name} must be a pair of numbers, got {given!r}")
    low, high = given
    if not 0 < low <= high <= most or not math.isfinite(high):
        limit = "" if math.isinf(most) else f" and at most {most:g}"
        raise ValueError(f"{name} must be (least, greatest), above 0{limit}, got {given!r}")


def check_probability(p: object) -> None:
    """Raise `ValueError` unless this is a number from 0 to 1.

    >>> check_probability(0.5)
    """
    if isinstance(p, bool) or not isinstance(p, int | float | np.number) or not 0 <= p <= 1:
        raise ValueError(f"p must be a probability from 0 to 1, got {p!r}")
