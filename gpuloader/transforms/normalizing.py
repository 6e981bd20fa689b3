"""Transforms of images: random crops, random mirroring, and normalization to mean 0 and deviation 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.checks import check_count
from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array
from gpuloader.kernels.cast import resolve_target
from gpuloader.kernels.crop import check_layout, crop, crop_on_host, join_shape, split_shape
from gpuloader.kernels.normalize import as_constant, normalize, normalize_on_host
from gpuloader.transforms.program import KernelCall, Spec, Transform, no_rows

_TARGETS = ("float16", "bfloat16", "float32")
_WINDOW = 3  # the numbers of a window: top, left, flip
CHANNELS_LAST = "channels_last"
"""The layout of a result in PyTorch's memory format of this name."""
_CHANNELS_FIRST = 0, 3, 1, 2  # the dimensions of a batch in HWC, in the order of CHW
_CHANNELS = 1, 3, 4  # of gray, color, and color with transparency
_LAST_BIT = np.uint64(63)


@dataclass(frozen=True)
class RandomCropFlip:
    """Crops a random window of each image, and mirrors images at random.

    A `Normalize` of the same field directly after it is computed in the same pass.

    Attributes
    ----------
    field : str or None
        The field to transform, of any dtype of 1, 2, 4 or 8 bytes; None means the first array field.
    size : tuple of int
        Height and width of the window.
    flip : bool
        Whether to mirror each image left to right with probability 1/2.
    layout : str or None
        The layout of the samples and of the result, 'HWC' or 'CHW'. None takes the layout of a `Normalize`
        directly after it, or the one that the transforms before it make, otherwise 'HWC'.
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
        """Number of random draws per sample: top, left and flip of its window."""
        return _WINDOW

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return top, left and flip of each sample."""
        _, height, width = self._sizes(inputs)
        return draw_windows(words, (height, width), self.size, flip=self.flip)

    def check(self, inputs: Sequence[Array]) -> None:
        """Accept any values."""

    def adapt(self, before: KernelCall) -> RandomCropFlip:
        """Return the transform for the layout that a kernel has given the pictures."""
        return replace(self, layout=find_layout(self.layout, before))

    def _sizes(self, inputs: Sequence[Spec]) -> tuple[int, int, int]:
        return find_sizes(inputs, self.layout or "HWC")

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch, when no `Normalize` includes it."""
        channels, height, width = self._sizes(inputs)
        layout = self.layout or "HWC"
        check_room(self.size, height, width, layout)
        tall, wide = self.size
        (samples, *_), dtype = inputs[0]
        output = (samples, *join_shape(channels, tall, wide, layout)), dtype
        empty = {"images": no_rows(inputs[0]), "windows": np.zeros((0, _WINDOW), np.int32)}
        return KernelCall.settle(
            empty, output, crop, crop_on_host, moves=True, size=(tall, wide), layout=layout
        )


@dataclass(frozen=True)
class Normalize:
    """Converts images to floats, ``(x * scale - mean) / std`` per channel, and can change the layout.

    Attributes
    ----------
    field : str or None
        The field to transform, uint8 or float32, with samples of shape (height, width, channels) or
        (channels, height, width); None means the first array field.
    mean, std : float or sequence of float
        One number for all channels, or one per channel.
    scale : float
        The factor applied first; ``1 / 255`` maps bytes to 0 to 1.
    layout, to : str
        The layouts of the samples and of the result, each 'HWC' or 'CHW'. The result may also be
        'channels_last': of the shape of 'CHW', but with the channels of a pixel side by side in memory. That
        is PyTorch's memory format of this name, and takes an output of PyTorch, CuPy or NumPy.
    dtype : dtype-like
        The result's dtype: float32, float16, or "bfloat16", which only PyTorch has. Other outputs get its
        bits in uint16.
    crop : tuple of int or None
        Height and width of a random window to crop first; None keeps the whole image.
    flip : bool
        Whether to mirror each image left to right with probability 1/2.
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
        check_layout("layout", self.layout)
        if self.to != CHANNELS_LAST:
            check_layout("to", self.to)
        resolve_target(self.dtype, _TARGETS)
        for name in ("mean", "std", "scale"):
            as_constant(name, getattr(self, name))
        if self.crop is not None:
            check_window(self.crop)

    @property
    def draws(self) -> int:
        """Number of random draws per sample: top, left and flip of its window, if there is one."""
        return _WINDOW if self.crop is not None or self.flip else 0

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return top, left and flip of each sample."""
        _, height, width = self._sizes(inputs)
        return draw_windows(words, (height, width), self.crop or (height, width), flip=self.flip)

    def check(self, inputs: Sequence[Array]) -> None:
        """Accept any values."""

    @property
    def arrangement(self) -> tuple[str, tuple[int, ...] | None]:
        """The result's layout in memory, and the order in which its dimensions are delivered."""
        return ("HWC", _CHANNELS_FIRST) if self.to == CHANNELS_LAST else (self.to, None)

    def _sizes(self, inputs: Sequence[Spec]) -> tuple[int, int, int]:
        return find_sizes(inputs, self.layout, (np.uint8, np.float32))

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        channels, height, width = self._sizes(inputs)
        tall, wide = self.crop or (height, width)
        check_room((tall, wide), height, width, self.layout)
        _, held = resolve_target(self.dtype, _TARGETS)
        to, axes = self.arrangement
        output = (inputs[0][0][0], *join_shape(channels, tall, wide, to)), held
        empty = {"images": no_rows(inputs[0])}
        if self.draws:
            empty["windows"] = np.zeros((0, _WINDOW), np.int32)
        return KernelCall.settle(
            empty,
            output,
            normalize,
            normalize_on_host,
            axes=axes,
            mean=self.mean,
            std=self.std,
            scale=self.scale,
            layout=self.layout,
            out_layout=to,
            dtype=self.dtype,
            size=(tall, wide),
        )


def fuse(transforms: Sequence[Transform]) -> list[Transform]:
    """Return the transforms with each `RandomCropFlip` merged into a `Normalize` directly after it.

    A `Normalize` of another field, or with its own crop or flip, is not merged.

    Raises
    ------
    ValueError
        Two transforms to merge have different layouts.

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
                    f"RandomCropFlip has layout {before.layout}, but the Normalize after it has "
                    f"{transform.layout}; use the same layout for both"
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
        raise ValueError(f"window size must be (height, width), got {size!r}")
    for name, value in zip(("height", "width"), size, strict=True):
        check_count(name, value)


def check_room(size: tuple[int, int], height: int, width: int, layout: str) -> None:
    """Raise `SampleError` if images of this height and width are smaller than a window.

    >>> check_room((28, 28), 32, 32, "HWC")
    """
    tall, wide = size
    if tall > height or wide > width:
        raise SampleError(
            f"expected images of at least {tall} x {wide}, got {height} x {width} in layout {layout}"
        )


def find_layout(layout: str | None, before: KernelCall) -> str | None:
    """Return the layout in memory of pictures that a kernel has made, and that have a layout for the user.

    >>> inputs = [((1, 4, 4, 3), np.dtype("uint8"))]
    >>> find_layout("CHW", Normalize(None, to=CHANNELS_LAST).bind(inputs))
    'HWC'
    """
    return layout if before.axes is None else "HWC"


def assume_layout(layout: str | None, inputs: Sequence[Spec]) -> str:
    """Return the layout of pictures: 'CHW' if none is stated, unless they look like 'HWC'.

    Raises
    ------
    SampleError
        No layout is stated, and only the last dimension of a picture looks like channels.

    >>> assume_layout(None, [((8, 3, 32, 40), np.dtype("float32"))])
    'CHW'
    """
    if layout is not None:
        return layout
    shape = inputs[0][0][1:]
    if len(shape) == 3 and shape[0] not in _CHANNELS and shape[2] in _CHANNELS:
        raise SampleError(
            f"expected images in layout CHW, got shape {shape}, which looks like HWC; put this transform "
            "after Normalize, or pass layout='HWC' (layout='CHW' if these are the sizes in CHW)"
        )
    return "CHW"


def find_sizes(
    inputs: Sequence[Spec], layout: str, dtypes: Sequence[DTypeLike] | None = None
) -> tuple[int, int, int]:
    """Return the channels, height and width of a field of images; raise `SampleError` for other fields.

    >>> find_sizes([((8, 3, 32, 40), np.dtype("uint8"))], "CHW")
    (3, 32, 40)
    """
    shape, dtype = inputs[0]
    if len(inputs) != 1 or len(shape) != 4 or (dtypes is not None and dtype not in dtypes):
        expected = "" if dtypes is None else " or ".join(np.dtype(one).name for one in dtypes) + " "
        raise SampleError(f"expected {expected}images in layout {layout}, got {dtype} of shape {shape[1:]}")
    return split_shape(shape[1:], layout)


@lru_cache(maxsize=64)
def _count_places(room: tuple[int, int], size: tuple[int, ...]) -> Array:
    """Return how many tops, and how many lefts, a window can have."""
    return np.array([whole - part + 1 for whole, part in zip(room, size, strict=True)], np.uint64)


def draw_windows(words: Array, room: tuple[int, int], size: tuple[int, int], *, flip: bool) -> Array:
    """Return top, left and flip of each sample's window, uniformly drawn from random uint64 (samples, 3).

    >>> draw_windows(np.zeros((1, 3), np.uint64), (32, 32), (28, 28), flip=True)
    array([[0, 0, 0]], dtype=int32)
    """
    drawn = np.empty((len(words), _WINDOW), np.int32)
    drawn[:, :2] = words[:, :2] % _count_places(room, tuple(size))
    drawn[:, 2] = words[:, 2] >> _LAST_BIT if flip else 0
    return drawn
