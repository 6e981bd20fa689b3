"""`ColorJitter`: random changes of brightness, contrast, saturation and hue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuloader.kernels.recolor import CHANGES
from gpuloader.sources.pictures.coloring import Coloring, find_shift
from gpuloader.transforms.planning import Plan

Amount = float | tuple[float, float]


@dataclass(frozen=True)
class ColorJitter:
    """Changes brightness, contrast, saturation and hue of each picture at random, in random order.

    The parameters are torchvision's, and the pixels are those that it makes of Pillow's images.

    Attributes
    ----------
    field : str or None
        The field of pictures; None means the first one.
    brightness, contrast, saturation : float or tuple of float
        A number b stands for factors from max(0, 1 - b) to 1 + b; a pair is the least and the greatest
        factor. 0 changes nothing.
    hue : float or tuple of float
        A number h stands for shifts from -h to h, in turns of the color wheel, at most 0.5; a pair is the
        least and the greatest shift.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> from gpuloader import DataLoader
    >>> _ = pytest.importorskip("PIL")
    >>> pictures = [np.full((1, 1, 3), 100, np.uint8)] * 3
    >>> jitter = ColorJitter(None, brightness=0.2)
    >>> loader = DataLoader(pictures, places="cpu", batch_size=3, seed=1, transforms=[jitter])
    >>> bool((abs(next(iter(loader)).astype(int) - 100) <= 20).all())
    True
    """

    field: str | None
    brightness: Amount = 0
    contrast: Amount = 0
    saturation: Amount = 0
    hue: Amount = 0

    def __post_init__(self) -> None:
        self._ranges()

    def _ranges(self) -> dict[str, tuple[float, float]]:
        """Return the least and greatest amount of what is changed at all."""
        found = {name: _as_range(name, getattr(self, name)) for name in CHANGES}
        return {name: limits for name, limits in found.items() if limits != (_neutral(name),) * 2}

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Change the colors of the result of the plan so far."""
        drawn = {name: low + (high - low) * rng.random() for name, (low, high) in self._ranges().items()}
        order = sorted(drawn, key=dict(zip(drawn, rng.random(len(drawn)), strict=True)).__getitem__)
        if order:
            plan.append(Coloring(tuple((name, drawn[name]) for name in order)))


def list_changes(transforms: Sequence[object]) -> list[str]:
    """Return what transforms change of a picture's colors, at most.

    >>> list_changes([ColorJitter(None, hue=0.1, contrast=0.2), ColorJitter(None, hue=0.1)])
    ['contrast', 'hue', 'hue']
    """
    return [name for one in transforms if isinstance(one, ColorJitter) for name in one._ranges()]


def number_changes(steps: Sequence[tuple[str, float]], room: int) -> NDArray[np.float32]:
    """Return changes of color as the kernel `recolor` takes them, with room for as many as given.

    >>> number_changes([("hue", 0.5), ("contrast", 1.5)], 3).tolist()
    [4.0, 127.0, 2.0, 1.5, 0.0, 0.0]
    """
    numbers = np.zeros((room, 2), np.float32)
    with np.errstate(over="ignore"):  # a factor that no float can hold is infinite, as it is for Pillow
        for position, (name, amount) in enumerate(steps):
            amount = find_shift(amount) if name == "hue" else amount
            numbers[position] = CHANGES.index(name) + 1, amount
    return numbers.reshape(-1)


def _neutral(name: str) -> float:
    return 0.0 if name == "hue" else 1.0


def _as_range(name: str, given: object) -> tuple[float, float]:
    """Return the least and the greatest amount; raise `ValueError` if they are none."""
    center, least, most = _neutral(name), (-0.5 if name == "hue" else 0.0), 0.5 if name == "hue" else math.inf
    if isinstance(given, int | float | np.number) and not isinstance(given, bool) and given >= 0:
        low, high = center - float(given), center + float(given)
        low = low if name == "hue" else max(low, 0.0)
    elif isinstance(given, tuple | list) and len(given) == 2:
        low, high = float(given[0]), float(given[1])
    else:
        raise ValueError(f"{name} must be a number of 0 or more, or a pair of numbers, got {given!r}")
    if not least <= low <= high <= most or not math.isfinite(high):
        raise ValueError(f"{name} must lie between {least:g} and {most:g}, got {given!r}")
    return low, high
