"""`RandomErasing`: a random rectangle of each picture is filled with one color."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array
from gpuloader.kernels.cast import round_to
from gpuloader.kernels.crop import check_layout, erase, erase_on_host
from gpuloader.order.permutation import hash_positions
from gpuloader.transforms.image_transforms import check_probability, check_range
from gpuloader.transforms.normalizing import assume_layout, find_layout, find_sizes
from gpuloader.transforms.program import KernelCall, Spec, no_rows

_TRIES = 10  # rectangles that are drawn before a picture stays whole, as in torchvision
_PER_TRY = 4
_WINDOW = 4  # the numbers of a rectangle: top, left, height and width


@dataclass(frozen=True)
class RandomErasing:
    """Fills a rectangle of random area and place in some pictures of a batch.

    The parameters are torchvision's.

    Attributes
    ----------
    field : str or None
        The field of pictures, all of one size; None means the first array field.
    p : float
        The probability that a picture loses a rectangle, 0 to 1.
    scale : tuple of float
        The least and the greatest part of the picture's area that is erased.
    ratio : tuple of float
        The least and the greatest height of the rectangle, in units of its width.
    value : float or sequence of float
        What to fill in: one number, or one for each channel, in the units of the pictures.
    layout : str or None
        The layout of the pictures, 'CHW' or 'HWC'. None takes what the transforms before it make: 'HWC' after
        transforms of single pictures, and what `Normalize` says after that. If nothing is known, it is 'CHW',
        and pictures that look like 'HWC' are an error.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuloader import DataLoader
    >>> pictures = [np.ones((1, 4, 4), np.float32)] * 2
    >>> erase = RandomErasing(None, p=1, scale=(0.25, 0.25), ratio=(1, 1))
    >>> batch = next(iter(DataLoader(pictures, places="cpu", batch_size=2, seed=1, transforms=[erase])))
    >>> (batch == 0).sum((1, 2, 3))
    array([4, 4])
    """

    field: str | None
    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | Sequence[float] = 0.0
    layout: str | None = None

    def __post_init__(self) -> None:
        check_probability(self.p)
        check_range("scale", self.scale, 1.0)
        check_range("ratio", self.ratio)
        if self.layout is not None:
            check_layout("layout", self.layout)
        if np.ndim(self.value) > 1 or np.asarray(self.value).dtype.kind not in "iuf":
            raise ValueError(f"value must be a number, or one for each channel, got {self.value!r}")

    @property
    def draws(self) -> int:
        """Number of random draws per sample: top, left, height and width of its rectangle."""
        return _WINDOW

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return top, left, height and width of each sample's rectangle; height 0 for none."""
        _, height, width = find_sizes(inputs, assume_layout(self.layout, inputs))
        drawn = np.zeros((len(words), _WINDOW), np.int32)
        chosen = _uniform(words[:, 0], 0) < self.p
        least, greatest = math.log(self.ratio[0]), math.log(self.ratio[1])
        for attempt in range(_TRIES):
            part, aspect, down, across = (
                _uniform(words[:, 1], 1 + attempt * _PER_TRY + column) for column in range(_PER_TRY)
            )
            area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * part)
            shape = np.exp(least + (greatest - least) * aspect)
            tall, wide = np.rint(np.sqrt(area * shape)), np.rint(np.sqrt(area / shape))
            fits = chosen & (tall < height) & (wide < width)
            top, left = down * (height - tall + 1), across * (width - wide + 1)
            drawn[fits] = np.stack([top, left, tall, wide], 1)[fits]
            chosen &= ~fits
        return drawn

    def check(self, inputs: Sequence[Array]) -> None:
        """Accept any values."""

    def adapt(self, before: KernelCall) -> RandomErasing:
        """Return the transform for the layout and the bits that a kernel has given the pictures."""
        value = self.value
        if before.bits is not None:
            value = round_to(np.asarray(value, np.float32), before.bits).tolist()
        return replace(self, value=value, layout=find_layout(self.layout, before))

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        layout = assume_layout(self.layout, inputs)
        channels, _, _ = find_sizes(inputs, layout)
        if np.ndim(self.value) and np.size(self.value) not in (1, channels):
            raise SampleError(
                f"value must have one number for each of {channels} channels, got {self.value} for pictures "
                f"of shape {inputs[0][0][1:]} in layout {layout}"
            )
        empty = {"images": no_rows(inputs[0]), "windows": np.zeros((0, _WINDOW), np.int32)}
        return KernelCall.settle(
            empty, inputs[0], erase, erase_on_host, in_place=True, color=self.value, layout=layout
        )


def _uniform(words: Array, key: int) -> Array:
    """Return numbers from 0 to 1 that depend on each word and on a key."""
    return (hash_positions(words, key) >> np.uint64(11)) * 2.0**-53
