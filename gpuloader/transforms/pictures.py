"""Transforms of pictures: random windows, mirrored by lot, and numbers of mean 0 and deviation 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.base.checks import check_count
from gpuloader.base.errors import SampleError
from gpuloader.fields.spec import Array
from gpuloader.kernels.crop import crop, crop_on_host
from gpuloader.kernels.dtypes import resolve_target
from gpuloader.kernels.normalize import as_constant, normalize, normalize_on_host
from gpuloader.transforms.operations import KernelCall, Spec, no_rows
from gpuloader.transforms.program import Transform

_LAYOUTS = ("HWC", "CHW")
_TARGETS = ("float16", "bfloat16", "float32")
_WINDOW = 3  # numbers of a window: top, left, flip


@dataclass(frozen=True)
class RandomCropFlip:
    """A random window of each picture, mirrored by lot; in one pass with a `Normalize` right behind it.

    Attributes
    ----------
    field : str or None
        Which field, of any numbers of 1 to 8 bytes; None: the first that is an array.
    size : tuple of int
        Height and width of the window.
    flip : bool
        Whether half of the pictures, by lot, are mirrored left to right.
    layout : str or None
        'HWC' or 'CHW', of the samples and of the result; None: as the `Normalize` behind it says, else 'HWC'.
    """

    field: str | None
    size: tuple[int, int]
    flip: bool = True
    layout: str | None = None

    def __post_init__(self) -> None:
        check_window(self.size)
        if self.layout is not None:
            check_layout("layout", self.layout)

    @property
    def draws(self) -> int:
        """Numbers drawn for each sample: where its window begins, and whether it is mirrored."""
        return _WINDOW

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return top, left and flip of each sample."""
        _, height, width = self._sizes(inputs)
        return draw_windows(words, (height, width), self.size, flip=self.flip)

    def check(self, inputs: Sequence[Array]) -> None:
        """Accept any content."""

    def _sizes(self, inputs: Sequence[Spec]) -> tuple[int, int, int]:
        return find_sizes(inputs, self.layout or "HWC")

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch, where no `Normalize` does it along."""
        channels, height, width = self._sizes(inputs)
        layout = self.layout or "HWC"
        check_room(self.size, height, width, layout)
        tall, wide = self.size
        shape = (tall, wide, channels) if layout == "HWC" else (channels, tall, wide)
        (samples, *_), dtype = inputs[0]
        call, twin = (partial(self._run, function, (tall, wide), layout) for function in (crop, crop_on_host))
        empty = [no_rows(inputs[0]), np.zeros((0, _WINDOW), np.int32)]
        return KernelCall.settle(empty, ((samples, *shape), dtype), call, twin)

    @staticmethod
    def _run(
        function: Callable[..., Any],
        size: tuple[int, int],
        layout: str,
        images: Any,
        windows: Any,
        **where: Any,
    ) -> None:
        function(images, size, windows, layout=layout, **where)


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
            check_layout(name, value)
        resolve_target(self.dtype, _TARGETS)
        for name in ("mean", "std", "scale"):
            as_constant(name, getattr(self, name))
        if self.crop is not None:
            check_window(self.crop)

    @property
    def draws(self) -> int:
        """Numbers drawn for each sample: where its window begins, and whether it is mirrored."""
        return _WINDOW if self.crop is not None or self.flip else 0

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return top, left and flip of each sample."""
        _, height, width = self._sizes(inputs)
        return draw_windows(words, (height, width), self.crop or (height, width), flip=self.flip)

    def check(self, inputs: Sequence[Array]) -> None:
        """Accept any content."""

    def _sizes(self, inputs: Sequence[Spec]) -> tuple[int, int, int]:
        return find_sizes(inputs, self.layout, (np.uint8, np.float32))

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        channels, height, width = self._sizes(inputs)
        tall, wide = self.crop or (height, width)
        check_room((tall, wide), height, width, self.layout)
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


def fuse(transforms: Sequence[Transform]) -> list[Transform]:
    """Return transforms with a `RandomCropFlip` and the `Normalize` right behind it made one.

    A `Normalize` of another field, or with a window of its own, stays apart.

    Raises
    ------
    ValueError
        Of two that would be one, each names another layout.

    >>> [type(one).__name__ for one in fuse([RandomCropFlip(None, (4, 4)), Normalize(None)])]
    ['Normalize']
    """
    fused: list[Transform] = []
    for transform in transforms:
        before = fused[-1] if fused else None
        if (
            isinstance(before, RandomCropFlip)
            and isinstance(transform, Normalize)
            and transform.field == before.field
            and not transform.draws
        ):
            if before.layout not in (None, transform.layout):
                raise ValueError(
                    f"RandomCropFlip has the layout {before.layout} and the Normalize right behind it "
                    f"{transform.layout}"
                )
            fused[-1] = replace(transform, crop=before.size, flip=before.flip)
        else:
            fused.append(transform)
    return fused


def check_window(size: object) -> None:
    """Raise `ValueError` unless a window's size is a height and a width.

    >>> check_window((28, 28))
    """
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(f"a window's size must be height and width, got {size!r}")
    for name, value in zip(("height", "width"), size, strict=True):
        check_count(name, value)


def check_layout(name: str, layout: object) -> None:
    """Raise `ValueError` unless a layout is one of the two known.

    >>> check_layout("layout", "CHW")
    """
    if layout not in _LAYOUTS:
        raise ValueError(f"{name} must be 'HWC' or 'CHW', got {layout!r}")


def check_room(size: tuple[int, int], height: int, width: int, layout: str) -> None:
    """Raise `SampleError` where pictures of this height and width are smaller than a window.

    >>> check_room((28, 28), 32, 32, "HWC")
    """
    tall, wide = size
    if tall > height or wide > width:
        raise SampleError(
            f"expected pictures of {tall} x {wide} at least, got {height} x {width} in the layout {layout}"
        )


def find_sizes(
    inputs: Sequence[Spec], layout: str, dtypes: Sequence[DTypeLike] | None = None
) -> tuple[int, int, int]:
    """Return channels, height and width of a field of pictures; raise `SampleError` where it is none.

    >>> find_sizes([((8, 3, 32, 40), np.dtype("uint8"))], "CHW")
    (3, 32, 40)
    """
    shape, dtype = inputs[0]
    if len(inputs) != 1 or len(shape) != 4 or (dtypes is not None and dtype not in dtypes):
        expected = "" if dtypes is None else " " + " or ".join(np.dtype(one).name for one in dtypes) + ","
        raise SampleError(f"expected pictures,{expected} in the layout {layout}, got {dtype} {shape[1:]}")
    height, width, channels = shape[1:] if layout == "HWC" else (*shape[2:], shape[1])
    return channels, height, width


def draw_windows(words: Array, room: tuple[int, int], size: tuple[int, int], *, flip: bool) -> Array:
    """Return top, left and flip of each sample's window, all equally likely, from uint64 (samples, 3).

    >>> draw_windows(np.zeros((1, 3), np.uint64), (32, 32), (28, 28), flip=True)
    array([[0, 0, 0]], dtype=int32)
    """
    drawn = np.empty((len(words), _WINDOW), np.int32)
    for column in (0, 1):
        drawn[:, column] = words[:, column] % np.uint64(room[column] - size[column] + 1)
    drawn[:, 2] = words[:, 2] >> np.uint64(63) if flip else 0
    return drawn
