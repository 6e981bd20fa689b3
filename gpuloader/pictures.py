"""Transforms of pictures: random windows, mirrored by lot, and numbers of mean 0 and deviation 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.checks import check_count
from gpuloader.errors import SampleError
from gpuloader.kernels.dtypes import resolve_target
from gpuloader.kernels.normalize import normalize, normalize_on_host
from gpuloader.operations import KernelCall, Plain, Spec, no_rows
from gpuloader.spec import Array

_LAYOUTS = ("HWC", "CHW")
_TARGETS = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class RandomCropFlip(Plain):
    """A random window of each picture, mirrored by lot; runs in one pass with the `Normalize` behind it.

    Attributes
    ----------
    field : str or None
        Which field; None: the first that is an array.
    size : tuple of int
        Height and width of the window.
    flip : bool
        Whether half of the pictures, by lot, are mirrored left to right.
    """

    field: str | None
    size: tuple[int, int]
    flip: bool = True

    def __post_init__(self) -> None:
        check_window(self.size)

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:  # noqa: ARG002
        """Refuse: `fuse` has not found a `Normalize`."""
        raise SampleError("RandomCropFlip must come right before the Normalize of its field")


@dataclass(frozen=True)
class Normalize:
    """Pictures to floats: ``(x * scale - mean) / std`` in every channel, and from one layout to another.

    Attributes
    ----------
    field : str or None
        Which field, uint8 or float32, (height, width, channels) or (channels, height, width); None: the
        first that is an array.
    mean, std : float or sequence of float
        One for all channels, or one each.
    scale : float
        What values are multiplied by before; ``1 / 255`` makes bytes 0 to 1.
    layout, to : str
        'HWC' or 'CHW': of the samples, and of the result.
    dtype : dtype-like
        float32, float16, or "bfloat16" as bits in uint16.
    crop : tuple of int or None
        Height and width of a random window.
    flip : bool
        Whether half of the pictures, by lot, are mirrored left to right.
    """

    field: str | None
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0
    scale: float = 1.0
    layout: str = "HWC"
    to: str = "CHW"
    dtype: DTypeLike = "float32"
    crop: tuple[int, int] | None = None
    flip: bool = False

    def __post_init__(self) -> None:
        for name, value in (("layout", self.layout), ("to", self.to)):
            if value not in _LAYOUTS:
                raise ValueError(f"{name} must be 'HWC' or 'CHW', got {value!r}")
        resolve_target(self.dtype, _TARGETS)
        if self.crop is not None:
            check_window(self.crop)

    @property
    def draws(self) -> int:
        """Numbers drawn for each sample: where its window begins, and whether it is mirrored."""
        return 3 if self.crop is not None or self.flip else 0

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return top, left and flip of each sample."""
        _, height, width = self._sizes(inputs)
        tall, wide = self.crop or (height, width)
        drawn = np.empty((len(words), 3), np.int32)
        drawn[:, 0] = words[:, 0] % np.uint64(height - tall + 1)
        drawn[:, 1] = words[:, 1] % np.uint64(width - wide + 1)
        drawn[:, 2] = words[:, 2] >> np.uint64(63) if self.flip else 0
        return drawn

    def check(self, inputs: Sequence[Array]) -> None:
        """Accept any content."""

    def _sizes(self, inputs: Sequence[Spec]) -> tuple[int, int, int]:
        """Return channels, height and width."""
        shape, dtype = inputs[0]
        if len(inputs) != 1 or len(shape) != 4 or dtype not in (np.uint8, np.float32):
            raise SampleError(
                f"expected pictures, uint8 or float32, in the layout {self.layout}, got {dtype} {shape[1:]}"
            )
        height, width, channels = shape[1:] if self.layout == "HWC" else (*shape[2:], shape[1])
        return channels, height, width

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        channels, height, width = self._sizes(inputs)
        tall, wide = self.crop or (height, width)
        if tall > height or wide > width:
            raise SampleError(f"expected pictures of {tall} x {wide} at least, got {height} x {width}")
        size = (tall, wide, channels) if self.to == "HWC" else (channels, tall, wide)
        _, held = resolve_target(self.dtype, _TARGETS)
        empty = [no_rows(inputs[0])] + [np.zeros((0, self.draws), np.int32)] * bool(self.draws)
        call, twin = (
            partial(self._run, normalize, (tall, wide)),
            partial(self._run, normalize_on_host, (tall, wide)),
        )
        return KernelCall.settle(empty, ((inputs[0][0][0], *size), held), call, twin)

    def _run(
        self,
        function: Callable[..., Any],
        size: tuple[int, int],
        images: Any,
        windows: Any = None,
        **where: Any,
    ) -> None:
        function(
            images,
            self.mean,
            self.std,
            scale=self.scale,
            layout=self.layout,
            out_layout=self.to,
            dtype=self.dtype,
            size=size,
            windows=windows,
            **where,
        )


def check_window(size: object) -> None:
    """Raise `ValueError` unless a window's size is a height and a width.

    >>> check_window((28, 28))
    """
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(f"a window's size must be height and width, got {size!r}")
    for name, value in zip(("height", "width"), size, strict=True):
        check_count(name, value)
