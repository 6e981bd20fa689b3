"""Changes of color, as Pillow's ``ImageEnhance`` and torchvision's ``adjust_hue`` make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloader.sources.pictures.decoding import load_pillow


@dataclass(frozen=True, slots=True)
class Coloring:
    """Changes of a picture's colors.

    Attributes
    ----------
    steps : tuple of (str, float)
        What to change, in order, and by which factor: 'brightness', 'contrast', 'saturation', for which 1
        changes nothing; and 'hue', a shift in turns of the color wheel.
    """

    steps: tuple[tuple[str, float], ...]


def recolor(image: Any, coloring: Coloring) -> Any:
    """Return an image of Pillow with changed colors.

    >>> import numpy as np, pytest
    >>> pillow = pytest.importorskip("PIL.Image")
    >>> red = pillow.new("RGB", (1, 1), (200, 0, 0))
    >>> [recolor(red, Coloring(((name, amount),))).getpixel((0, 0))
    ...  for name, amount in {"brightness": 0.5, "contrast": 0, "saturation": 0, "hue": 0.5}.items()]
    [(100, 0, 0), (60, 60, 60), (60, 60, 60), (0, 200, 198)]
    """
    from PIL import ImageEnhance

    kinds = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "saturation": ImageEnhance.Color,
    }
    for name, amount in coloring.steps:
        image = _shift_hue(image, amount) if name == "hue" else kinds[name](image).enhance(amount)
    return image


def _shift_hue(image: Any, turns: float) -> Any:
    if image.mode != "RGB":
        return image
    pillow = load_pillow()
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue) + np.uint8(find_shift(turns))
    return pillow.merge("HSV", (pillow.fromarray(turned), saturation, value)).convert("RGB")


def find_shift(turns: float) -> int:
    """Return a shift of hue as a byte, as torchvision rounds it.

    >>> find_shift(0.5), find_shift(-0.1)
    (127, 231)
    """
    return int(turns * 255) % 256
