"""Transforms of single images, which workers apply to each sample before a batch is made.

Each image is first planned and then made, and all images of a batch get the same size. A plan says what to do
to one image: geometry, and perhaps changes of color. It depends on the image's size and on random numbers,
but not on its pixels, so it is known before the image is decoded. The decoder then makes only what is needed.

Sizes, ranges, rounding and pixels are those of torchvision on Pillow images. Random numbers are drawn from
the loader's seed, the epoch and the sample's index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from gpuloader.checks import Checked, check_count, checked
from gpuloader.sources.images import resampling
from gpuloader.sources.images.decoding import Pixels
from gpuloader.sources.images.image import FILTERS, Affine, Geometry, Step
from gpuloader.sources.images.resampling import CHANGES

if TYPE_CHECKING:
    from gpuloader.sources.images.annotations import Fields

# ---------------------------------------------------------------------------------------------------------
# Plans


class Coloring(NamedTuple):
    """Changes of an image's colors, in order: the name of one of Pillow's operations, and its amount.

    For 'brightness', 'contrast', 'saturation' and 'sharpness', 1 changes nothing. 'hue' is a shift, in turns
    of the color wheel, 'blur' the radius in pixels, 'posterize' the bits to keep, and 'solarize' the level
    above which values are inverted. The others take no amount.
    """

    steps: tuple[tuple[str, float], ...]


Plan = list[Step | Coloring]
"""The steps in order; the first is a `Geometry` of the decoded image."""


@runtime_checkable
class ImageTransform(Protocol):
    """A transform of single images, as the user specifies it.

    A false attribute ``moves`` says that it only changes colors, so it need not name what moves along with
    the image. An attribute ``views`` says how many images it makes of each image, each by its own plan.
    """

    @property
    def field(self) -> Fields:
        """Name of the field, None for the sample's first image; or a tuple with what moves along."""

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Add to the plan of one image, with random numbers from the sample's generator."""


def make_plans(
    size: tuple[int, int], transforms: Sequence[ImageTransform], rng: np.random.Generator
) -> list[Plan]:
    """Return the plan of an image of this height and width; several if a transform makes views of it.

    >>> make_plans((4, 6), [CenterCrop(None, 2)], np.random.default_rng(0))[0][0].window
    (1, 2, 2, 2)
    """
    plans: list[Plan] = [[Geometry.of(*size)]]
    for transform in transforms:
        if (views := getattr(transform, "views", 1)) > 1:
            plans = [[*plan] for plan in plans for _ in range(views)]
        for plan in plans:
            transform.extend(plan, rng)
    return plans


def find_size(plan: Plan) -> tuple[int, int]:
    """Return the height and width of what a plan makes; only a geometry changes these."""
    return next(step for step in reversed(plan) if isinstance(step, Geometry)).window[2:]


def find_geometry(plan: Plan) -> Geometry:
    """Return the geometry that ends a plan, after adding one if the plan ends with another step.

    >>> find_geometry([Geometry.of(4, 6)]).size
    (4, 6)
    """
    last = plan[-1]
    if isinstance(last, Geometry):
        return last
    geometry = Geometry.of(*find_size(plan))
    plan.append(geometry)
    return geometry


def finish_plan(image: Any, plan: Plan) -> Pixels:
    """Return the pixels that a plan makes from what `as_image` returned, uint8 (height, width, channels).

    Raises `DecodeError` if the image cannot be decoded.
    """
    for step in plan:
        if isinstance(step, Geometry):
            image = resampling.apply_geometry(image, step)
        elif isinstance(step, Affine):
            image = step.transform(resampling.as_pillow(image), step.filter)
        else:
            image = apply_coloring(resampling.as_pillow(image), step)
    return resampling.as_pixels(image)


def apply_coloring(image: Any, coloring: Coloring) -> Any:
    """Return a Pillow image with changed colors, as Pillow and torchvision change them.

    >>> import numpy as np, pytest
    >>> pillow = pytest.importorskip("PIL.Image")
    >>> red = pillow.new("RGB", (1, 1), (200, 0, 0))
    >>> [apply_coloring(red, Coloring(((name, amount),))).getpixel((0, 0))
    ...  for name, amount in {"brightness": 0.5, "contrast": 0, "saturation": 0, "hue": 0.5}.items()]
    [(100, 0, 0), (60, 60, 60), (60, 60, 60), (0, 200, 198)]
    """
    for name, amount in coloring.steps:
        image = resampling.load_operations()[name](image, amount)
    return image


# ---------------------------------------------------------------------------------------------------------
# Parameters


@dataclass(frozen=True)
class OfImages(Checked):
    """The base of transforms of single images."""

    field: Fields

    def __post_init__(self) -> None:
        if not isinstance(self.field, str | None):
            # Imported late, because most images have nothing that moves along.
            from gpuloader.sources.images.annotations import split_fields

            split_fields(self.field)
        super().__post_init__()


def both(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return a size as height and width.

    >>> both(224), both((32, 64))
    ((224, 224), (32, 64))
    """
    if isinstance(size, int | np.integer):
        return int(size), int(size)
    return int(size[0]), int(size[1])


def check_size(name: str, size: object) -> None:
    """Raise `ValueError` unless a size is a number or a pair of numbers, of 1 or more.

    >>> check_size("size", (224, 224))
    """
    sides: Sequence[object] = size if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2:
        raise ValueError(f"{name} must be a number or (height, width), got {size!r}")
    for side in sides:
        check_count(name, side)


def _as_range(name: str, given: object, neutral: float, least: float, most: float) -> tuple[float, float]:
    """Return the least and the greatest amount that a number around a neutral one stands for, or a pair.

    Raises `ValueError` if they do not rise from `least` to `most`.
    """
    if isinstance(given, int | float | np.number) and not isinstance(given, bool) and given >= 0:
        low, high = max(neutral - float(given), least), neutral + float(given)
    elif isinstance(given, tuple | list) and len(given) == 2:
        low, high = float(given[0]), float(given[1])
    else:
        raise ValueError(f"{name} must be a number of 0 or more, or a pair of numbers, got {given!r}")
    if not least <= low <= high <= most or not math.isfinite(high):
        raise ValueError(f"{name} must rise and lie between {least:g} and {most:g}, got {given!r}")
    return low, high


def check_range(name: str, given: object, most: float = math.inf) -> None:
    """Raise `ValueError` unless this is a pair of ascending numbers above 0 and at most `most`.

    >>> check_range("scale", (0.08, 1.0), 1.0)
    """
    pair = given if isinstance(given, tuple | list) else ()
    number = int | float | np.number
    if len(pair) != 2 or not isinstance(pair[0], number) or not isinstance(pair[1], number):
        raise ValueError(f"{name} must be a pair of numbers, got {given!r}")
    low, high = pair
    if not 0 < low <= high <= most or not math.isfinite(high):
        limit = "" if math.isinf(most) else f" and at most {most:g}"
        raise ValueError(f"{name} must be (least, greatest), above 0{limit}, got {given!r}")


def check_probability(name: str, p: object) -> None:
    """Raise `ValueError` unless this is a number from 0 to 1.

    >>> check_probability("p", 0.5)
    """
    if isinstance(p, bool) or not isinstance(p, int | float | np.number) or not 0 <= p <= 1:
        raise ValueError(f"{name} must be a probability from 0 to 1, got {p!r}")


def _check_shifts(name: str, given: object) -> None:
    parts = given if isinstance(given, tuple | list | np.ndarray) else ()
    if len(parts) != 2 or not all(
        isinstance(part, int | float | np.number) and 0 <= part <= 1 for part in parts
    ):
        raise ValueError(f"{name} must be two parts from 0 to 1, got {given!r}")


check_parts = partial(check_range, most=1.0)
_as_degrees = partial(_as_range, neutral=0.0, least=-360.0, most=360.0)
_as_shear = partial(_as_range, neutral=0.0, least=-89.0, most=89.0)
_as_factor = partial(_as_range, neutral=1.0, least=0.0, most=math.inf)  # of a color
_as_turn = partial(_as_range, neutral=0.0, least=-0.5, most=0.5)  # of the hue


# ---------------------------------------------------------------------------------------------------------
# Sizes and windows


@dataclass(frozen=True)
class Resize(OfImages):
    """Resizes images, antialiased as Pillow does it.

    Attributes
    ----------
    field : str, None or tuple
        The field of images; None means the first one. To move other fields along, pass a tuple with masks,
        `Mask`, `Boxes` or `Keypoints`: ``("image", "mask", Boxes("boxes", labels="labels"))``.
    size : int or tuple of int
        Height and width of the result. A number is the length of the shorter side, and the image keeps its
        aspect ratio.
    filter : str
        'bilinear' or 'bicubic'.
    scaled : bool
        True lets the decoder first shrink a JPEG to a half, a quarter or an eighth, if that is still at least
        as large as the result. This is faster, but the pixels differ slightly from Pillow's.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> images = [np.zeros((40 + 10 * number, 60, 3), np.uint8) for number in range(2)]
    >>> loader = DataLoader(images, places="cpu", batch_size=2, transforms=[Resize(None, (32, 24))])
    >>> next(iter(loader)).shape
    (2, 32, 24, 3)
    """

    size: int | tuple[int, int] = checked(check_size)
    filter: str = checked(tuple(FILTERS), "bilinear")
    scaled: bool = checked(bool, False)

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Resize the result of the plan so far."""
        geometry, size = find_geometry(plan), self.size
        if isinstance(size, int | np.integer):
            # Torchvision truncates the longer side instead of rounding it.
            _, _, height, width = geometry.window
            longer = int(int(size) * max(height, width) / min(height, width))
            size = (longer, int(size)) if width <= height else (int(size), longer)
        _resize(plan, geometry, size, self)


@dataclass(frozen=True)
class CenterCrop(OfImages):
    """Cuts out the middle of images; smaller ones get a black margin.

    Attributes
    ----------
    field, size : str, None or tuple, int or tuple of int
        The field of images, as for `Resize`; and height and width of the result, one number for both.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> images = [np.arange(25, dtype=np.uint8).reshape(5, 5)]
    >>> loader = DataLoader(images, places="cpu", transforms=[CenterCrop(None, (1, 3))])
    >>> next(iter(loader)).ravel()
    array([11, 12, 13], dtype=uint8)
    """

    size: int | tuple[int, int] = checked(check_size)

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Cut the middle out of the result of the plan so far."""
        geometry = find_geometry(plan)
        _, _, *lengths = geometry.window
        size = both(self.size)
        # Torchvision pads first, which rounds down, and then crops, which rounds to even.
        top, left = (
            -((wanted - length) // 2) if wanted > length else round((length - wanted) / 2)
            for length, wanted in zip(lengths, size, strict=True)
        )
        _cut(plan, geometry, top, left, *size)


@dataclass(frozen=True)
class RandomResizedCrop(OfImages):
    """Cuts a window of random area and aspect ratio out of each image, and resizes it.

    If ten windows do not fit into an image, the window is the largest one in the middle whose aspect ratio is
    in the range, as in torchvision. A window has at least one row and column; in torchvision it can be empty,
    an error.

    Attributes
    ----------
    field, size : str, None or tuple, int or tuple of int
        The field of images, as for `Resize`; and height and width of the result, one number for both.
    scale, ratio : tuple of float
        The least and the greatest fraction of the image's area that the window covers; and the least and the
        greatest ratio of the window's width to its height.
    filter, scaled : str, bool
        As for `Resize`.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> images = [np.zeros((40, 60, 3), np.uint8), np.zeros((80, 50, 3), np.uint8)]
    >>> crop = RandomResizedCrop(None, 32)
    >>> next(iter(DataLoader(images, places="cpu", batch_size=2, seed=1, transforms=[crop]))).shape
    (2, 32, 32, 3)
    """

    size: int | tuple[int, int] = checked(check_size)
    scale: tuple[float, float] = checked(check_parts, (0.08, 1.0))
    ratio: tuple[float, float] = checked(check_range, (3 / 4, 4 / 3))
    filter: str = checked(tuple(FILTERS), "bilinear")
    scaled: bool = checked(bool, False)

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Cut a window out of the result of the plan so far, and resize it."""
        geometry = find_geometry(plan)
        _, _, height, width = geometry.window
        _resize(plan, geometry.cut(*draw_window(height, width, self.scale, self.ratio, rng)), self.size, self)


@dataclass(frozen=True)
class RandomFlip(OfImages):
    """Mirrors images at random.

    Attributes
    ----------
    field, p : str, None or tuple, float
        The field of images, as for `Resize`; and the probability, 0 to 1.
    axis : str
        'horizontal' mirrors left to right, 'vertical' top to bottom.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> images = [np.array([[1, 2, 3]], np.uint8)] * 4
    >>> loader = DataLoader(images, places="cpu", batch_size=4, seed=2, transforms=[RandomFlip(None)])
    >>> sorted(next(iter(loader))[:, 0, :, 0].tolist())[::3]
    [[1, 2, 3], [3, 2, 1]]
    """

    p: float = checked(check_probability, 0.5)
    axis: str = checked(("horizontal", "vertical"), "horizontal")

    _keeps_size = True  # of images, so that a GPU may crop them

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Mirror the result of the plan so far, or leave it."""
        geometry = find_geometry(plan)
        if rng.random() < self.p:
            across = self.axis == "horizontal"
            plan[-1] = geometry.mirrored(flip=across, flop=not across)


def _sides(padding: int | tuple[int, int, int, int]) -> tuple[int, ...]:
    return tuple(padding) if isinstance(padding, tuple | list) else (padding,) * 4


def _check_padding(name: str, padding: int | tuple[int, int, int, int]) -> None:
    sides = _sides(padding)
    if len(sides) != 4 or not all(isinstance(one, int | np.integer) and one >= 0 for one in sides):
        raise ValueError(
            f"{name} must be a number of 0 or more, or (left, top, right, bottom), got {padding!r}"
        )


@dataclass(frozen=True)
class PadImage(OfImages):
    """Adds a black margin to images.

    Attributes
    ----------
    field : str, None or tuple
        The field of images, as for `Resize`.
    padding : int or tuple of int
        The pixels to add on each side; or a tuple for left, top, right and bottom.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> images = [np.full((1, 2, 1), 9, np.uint8)]
    >>> loader = DataLoader(images, places="cpu", transforms=[PadImage(None, (1, 0, 2, 1))])
    >>> next(iter(loader))[0, :, :, 0].tolist()
    [[0, 9, 9, 0, 0], [0, 0, 0, 0, 0]]
    """

    padding: int | tuple[int, int, int, int] = checked(_check_padding)

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:  # noqa: ARG002
        """Add a margin to the result of the plan so far."""
        geometry = find_geometry(plan)
        left, top, _, _ = _sides(self.padding)
        _cut(plan, geometry, -top, -left, *self._grow(geometry.window[2:]))

    def _grow(self, size: tuple[int, int]) -> tuple[int, int]:
        left, top, right, bottom = _sides(self.padding)
        return size[0] + top + bottom, size[1] + left + right


@dataclass(frozen=True)
class RandomAffine(OfImages):
    """Turns, moves, scales and slants images at random; they keep their size, and uncovered areas are black.

    The parameters are torchvision's. Pillow computes the pixels, even for a GPU place.

    Attributes
    ----------
    field : str, None or tuple
        The field of images, as for `Resize`.
    degrees : float or tuple of float
        The angles, clockwise: from -degrees to degrees, or the least and the greatest.
    translate : tuple of float
        The largest shifts: to the left or right as a fraction of the image's width, and up or down as a
        fraction of its height.
    scale : tuple of float
        The least and the greatest scale factor.
    shear : float or tuple of float
        The angles by which the image is slanted along x, as for `degrees`.
    filter : str
        'nearest', 'bilinear' or 'bicubic'.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> images = [np.array([[1, 2], [3, 4]], np.uint8)]
    >>> loader = DataLoader(images, places="cpu", transforms=[RandomAffine(None, (90, 90))])
    >>> next(iter(loader))[0, :, :, 0].tolist()
    [[3, 1], [4, 2]]
    """

    degrees: float | tuple[float, float] = checked(_as_degrees, 0.0)
    translate: tuple[float, float] = checked(_check_shifts, (0.0, 0.0))
    scale: tuple[float, float] = checked(check_range, (1.0, 1.0))
    shear: float | tuple[float, float] = checked(_as_shear, 0.0)
    filter: str = checked(("nearest", *FILTERS), "bilinear")

    _keeps_size = True

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Turn the result of the plan so far."""
        size = height, width = find_size(plan)
        angle, right, down, scale, shear = (
            low + (high - low) * rng.random()
            for low, high in (
                _as_degrees("degrees", self.degrees),
                (-self.translate[0] * width, self.translate[0] * width),
                (-self.translate[1] * height, self.translate[1] * height),
                self.scale,
                _as_shear("shear", self.shear),
            )
        )
        shift = round(right), round(down)
        plan.append(make_affine(size, self.filter, angle=angle, shift=shift, scale=scale, shear=(shear, 0.0)))


def make_affine(
    size: tuple[int, int],
    filter: str,  # noqa: A002
    *,
    angle: float = 0.0,
    shift: tuple[int, int] = (0, 0),
    scale: float = 1.0,
    shear: tuple[float, float] = (0.0, 0.0),
    center: tuple[float, float] | None = None,
) -> Affine:
    """Return torchvision's ``affine`` as a step: degrees clockwise, pixels, and degrees along x and y.

    >>> make_affine((20, 10), "nearest", shift=(3, 0), shear=(45.0, 0.0), center=(0, 0)).matrix[:3]
    (1.0, 0.9999999999999999, -3.0)
    """
    x, y = center or (size[1] * 0.5, size[0] * 0.5)
    turn, across, down = math.radians(angle), math.tan(math.radians(shear[0])), math.radians(shear[1])
    # The inverse of a shear followed by a rotation around the center, which then moves.
    a, d = math.cos(turn - down) / math.cos(down), math.sin(turn - down) / math.cos(down)
    b, e = -(a * across + math.sin(turn)), math.cos(turn) - d * across
    a, b, d, e = e / scale, -b / scale, -d / scale, a / scale
    right, below = x + shift[0], y + shift[1]
    return Affine((a, b, x - a * right - b * below, d, e, y - d * right - e * below), size, filter)


def _cut(plan: Plan, geometry: Geometry, top: int, left: int, height: int, width: int) -> None:
    """Make a plan end with a window of its geometry's result; the window may have a margin."""
    tall, wide = geometry.window[2:]
    inside = 0 <= top <= tall - height and 0 <= left <= wide - width
    if inside or geometry.window == (0, 0, *geometry.size):
        plan[-1] = geometry.cut(top, left, height, width)
    else:
        # What was cut off before is not part of a margin.
        plan.append(Geometry.of(tall, wide).cut(top, left, height, width))


def _resize(
    plan: Plan, geometry: Geometry, size: int | tuple[int, int], how: Resize | RandomResizedCrop
) -> None:
    """Make a plan end with a geometry and, if the size differs, with its resizing."""
    height, width = both(size)
    top, left, tall, wide = geometry.window
    rows, columns = geometry.size
    if (tall, wide) == (height, width):
        plan[-1] = geometry
    elif geometry.filter is None and 0 <= top <= rows - tall and 0 <= left <= columns - wide:
        plan[-1] = geometry.resized((height, width), how.filter, scaled=how.scaled)
    else:
        # An image that is already resampled, or has a black margin, takes another pass. The decoder can then
        # no longer shrink anything.
        plan[-1:] = [geometry, Geometry.of(tall, wide).resized((height, width), how.filter)]


_TRIES = 10  # windows to draw before the middle is used, as in torchvision


def draw_window(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a random window, as torchvision's ``get_params`` draws them.

    >>> draw_window(100, 200, (1.0, 1.0), (1.0, 1.0), np.random.default_rng(0))
    (0, 50, 100, 100)
    """
    area, (low, high), random = height * width, scale, rng.random
    least, greatest = map(math.log, ratio)
    for _ in range(_TRIES):
        part = area * (low + (high - low) * random())
        aspect = math.exp(least + (greatest - least) * random())
        wide, tall = round(math.sqrt(part * aspect)), round(math.sqrt(part / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            return int(random() * (height - tall + 1)), int(random() * (width - wide + 1)), tall, wide
    wide, tall = width, height
    if width / height < ratio[0]:
        tall = max(round(width / ratio[0]), 1)
    elif width / height > ratio[1]:
        wide = max(round(height * ratio[1]), 1)
    return (height - tall) // 2, (width - wide) // 2, tall, wide


# ---------------------------------------------------------------------------------------------------------
# Colors

Amount = float | tuple[float, float]


@dataclass(frozen=True)
class ColorJitter(OfImages):
    """Changes brightness, contrast, saturation and hue of each image at random, in random order.

    The parameters are torchvision's, and the pixels are those that torchvision makes from Pillow images.

    Attributes
    ----------
    field : str, None or tuple
        The field of images; None means the first one. A tuple is accepted, too, but only the image changes.
    brightness, contrast, saturation : float or tuple of float
        A number b stands for factors from max(0, 1 - b) to 1 + b; a pair is the least and the greatest
        factor. 0 changes nothing.
    hue : float or tuple of float
        A number h stands for shifts from -h to h, in turns of the color wheel, at most 0.5; a pair is the
        least and the greatest shift.
    p : float
        The probability that an image changes at all, 0 to 1.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> images = [np.full((1, 1, 3), 100, np.uint8)] * 3
    >>> jitter = ColorJitter(None, brightness=0.2)
    >>> loader = DataLoader(images, places="cpu", batch_size=3, seed=1, transforms=[jitter])
    >>> bool((abs(next(iter(loader)).astype(int) - 100) <= 20).all())
    True
    """

    brightness: Amount = checked(_as_factor, 0)
    contrast: Amount = checked(_as_factor, 0)
    saturation: Amount = checked(_as_factor, 0)
    hue: Amount = checked(_as_turn, 0)
    p: float = checked(check_probability, 1.0)

    moves = False

    def _ranges(self) -> dict[str, tuple[float, float]]:
        """Return the least and greatest amount of each property that changes at all."""
        found = {}
        for name in CHANGES:
            neutral, as_range = (0.0, _as_turn) if name == "hue" else (1.0, _as_factor)
            limits = as_range(name, getattr(self, name))
            if limits != (neutral, neutral):
                found[name] = limits
        return found

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Change the colors of the result of the plan so far."""
        if self.p < 1 and rng.random() >= self.p:
            return
        drawn = {name: low + (high - low) * rng.random() for name, (low, high) in self._ranges().items()}
        order = sorted(drawn, key=dict(zip(drawn, rng.random(len(drawn)), strict=True)).__getitem__)
        if order:
            plan.append(Coloring(tuple((name, drawn[name]) for name in order)))
