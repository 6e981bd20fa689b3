"""Transforms of images in whole batches, which become kernels on a GPU and NumPy on a CPU place.

Samples may also be clips, whose frames share the random draws, or views of an image.

First come crops and normalization, then erasing. At the end, a loader's transforms are settled: which are
computed together, and in which layout the images are. Transforms of any values are in `values.py`, and those
that mix images in `mixing.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.checks import Checked, check_count, checked
from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array, Spec
from gpuloader.kernels.cast import resolve_target, round_to
from gpuloader.kernels.crop import LAYOUTS, crop, erase, split_shape
from gpuloader.kernels.normalize import as_constant, normalize
from gpuloader.order.randomness import hash_positions
from gpuloader.transforms.image_transforms import check_parts, check_probability, check_range
from gpuloader.transforms.program import Chain, KeepsLayout, KernelCall, Transform

# ---------------------------------------------------------------------------------------------------------
# Crops and normalization

CHANNELS_LAST = "channels_last"
"""The layout of a result in PyTorch's memory format of the same name."""

_TARGETS = ("float16", "bfloat16", "float32")
_CROP = 3  # the numbers that describe a window: top, left, flip
_WINDOWS: Spec = (0, _CROP), np.dtype(np.int32)
_CHANNELS_FIRST = 0, 3, 1, 2  # the dimensions of a batch in HWC, in the order of CHW
_CHANNELS = 1, 3, 4  # of gray, color, and color with transparency
_LAST_BIT = np.uint64(63)


def check_window(_: str, size: object) -> None:
    """Raise `ValueError` unless a window's size is a height and a width.

    >>> check_window("size", (28, 28))
    """
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(f"window size must be (height, width), got {size!r}")
    for name, value in zip(("height", "width"), size, strict=True):
        check_count(name, value)


@dataclass(frozen=True)
class RandomCropFlip(KeepsLayout, Checked):
    """Crops a random window of each image, and mirrors images at random.

    A `Normalize` of the same field directly after this is computed in the same pass.

    Attributes
    ----------
    field : str or None
        The field to transform, of any dtype of 1, 2, 4 or 8 bytes; None means the first array field. Samples
        are images, or clips with more dimensions before those of an image.
    size, flip : tuple of int, bool
        Height and width of the window; and whether to mirror each image with probability 1/2.
    layout : str or None
        The layout of the samples and of the result, 'HWC' or 'CHW'. None takes the layout of a `Normalize`
        directly after this, or the one that earlier transforms make, otherwise 'HWC'.
    """

    field: str | None
    size: tuple[int, int] = checked(check_window)
    flip: bool = checked(bool, True)
    layout: str | None = checked(LAYOUTS, None)

    draws = _CROP
    """Number of random draws per sample: top, left and flip of its window."""

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return top, left and flip of each sample."""
        _, height, width = find_sizes(inputs, self.layout or "HWC", clips=True)
        return draw_windows(words, (height, width), self.size, flip=self.flip)

    def _merge(self, after: Normalize) -> Normalize:
        if self.layout not in (None, after.layout):
            raise ValueError(
                f"RandomCropFlip has layout {self.layout}, but the Normalize after it has "
                f"{after.layout}; use the same layout for both"
            )
        return replace(after, crop=self.size, flip=self.flip)

    def adapt(self, before: KernelCall) -> RandomCropFlip:
        """Return the transform for the layout that a kernel has given the images."""
        return replace(self, layout=find_layout(self.layout, before))

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch, unless a `Normalize` includes it."""
        layout = self.layout or "HWC"
        find_sizes(inputs, layout, self.size, clips=True)
        given = {"images": inputs[0], "windows": _WINDOWS}
        return KernelCall.settle(given, crop, moves=True, frames=True, size=tuple(self.size), layout=layout)


@dataclass(frozen=True)
class Normalize(KeepsLayout, Checked):
    """Converts images to floats, ``(x * scale - mean) / std`` per channel, and can change the layout.

    Attributes
    ----------
    field : str or None
        The field to transform, uint8 or float32, with samples of shape (height, width, channels) or
        (channels, height, width), or clips with more dimensions before these; None means the first array
        field.
    mean, std, scale : float or sequence of float, float
        One number for all channels, or one per channel; and the factor that is applied first: ``1 / 255``
        maps bytes to 0 to 1.
    layout, to : str
        The layouts of the samples and of the result, each 'HWC' or 'CHW'. The result may also be
        'channels_last', PyTorch's memory format: of the shape of 'CHW', but with the channels of a pixel side
        by side in memory. That requires an output of PyTorch, CuPy or NumPy.
    dtype : dtype-like
        The result's dtype: float32, float16, or "bfloat16", which only PyTorch has. Other outputs get its
        bits in uint16.
    crop, flip : tuple of int or None, bool
        Height and width of a random window to crop first, None to keep the whole image; and whether to mirror
        each image left to right with probability 1/2.
    """

    field: str | None
    mean: float | Sequence[float] = checked(as_constant, 0.0)
    std: float | Sequence[float] = checked(as_constant, 1.0)
    scale: float = checked(as_constant, 1.0)
    layout: str = checked(LAYOUTS, "HWC")
    to: str = checked((*LAYOUTS, CHANNELS_LAST), "CHW")
    dtype: DTypeLike = checked(lambda _, dtype: resolve_target(dtype, _TARGETS), "float32")
    crop: tuple[int, int] | None = checked(check_window, None)
    flip: bool = checked(bool, False)

    @property
    def draws(self) -> int:  # type: ignore[override]  # elsewhere a constant
        """Number of random draws per sample: top, left and flip of its window, if there is one."""
        return _CROP if self.crop is not None or self.flip else 0

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return top, left and flip of each sample."""
        _, height, width = find_sizes(inputs, self.layout, clips=True)
        return draw_windows(words, (height, width), self.crop or (height, width), flip=self.flip)

    @property
    def arrangement(self) -> tuple[str, tuple[int, ...] | None]:
        """The result's layout in memory, and the order in which its dimensions are delivered."""
        return ("HWC", _CHANNELS_FIRST) if self.to == CHANNELS_LAST else (self.to, None)

    def bind(self, inputs: Sequence[Spec]) -> KernelCall | Chain:
        """Return the computation for a batch."""
        _, *size = find_sizes(inputs, self.layout, self.crop, (np.uint8, np.float32), clips=True)
        given, size = {"images": inputs[0]}, list(self.crop or size)
        finish = {"layout": self.layout, "size": tuple(size), "frames": True, **finish_options(self)}
        if not self.draws:
            return KernelCall.settle(given, normalize, **finish)
        if len(inputs[0][0]) == 4:
            return KernelCall.settle({**given, "windows": _WINDOWS}, normalize, **finish)
        # The kernel takes one window per image, but the frames of a clip share a window.
        first = RandomCropFlip(self.field, (size[0], size[1]), self.flip, self.layout).bind(inputs)
        second = KernelCall.settle({"images": first.outputs[0]}, normalize, **finish)
        return Chain(((first, (0, 1), 3), (second, (3,), 2)), second.outputs, first.outputs)


def finish_options(last: Normalize) -> dict[str, Any]:
    """Return the options of `KernelCall.settle` with which a kernel that makes images finishes them."""
    layout, axes = last.arrangement
    constants = {"mean": last.mean, "std": last.std, "scale": last.scale}
    return {"axes": axes, "out_layout": layout, "dtype": last.dtype, **constants}


def find_layout(layout: str | None, before: KernelCall) -> str | None:
    """Return the layout in memory of images that a kernel has made, given their layout for the user.

    >>> inputs = [((1, 4, 4, 3), np.dtype("uint8"))]
    >>> find_layout("CHW", Normalize(None, to=CHANNELS_LAST).bind(inputs))
    'HWC'
    """
    return layout if before.axes is None else "HWC"


def assume_layout(layout: str | None, inputs: Sequence[Spec]) -> str:
    """Return the layout of images: 'CHW' if none is stated.

    Raises `SampleError` if none is stated, and only the last dimension of an image looks like channels.

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
    inputs: Sequence[Spec],
    layout: str,
    least: tuple[int, int] | None = None,
    dtypes: Sequence[DTypeLike] | None = None,
    *,
    clips: bool = False,
) -> tuple[int, int, int]:
    """Return the channels, height and width of a field of images; raise `SampleError` for other fields.

    `least` is the height and width that the images must have at least; `clips` says whether samples may have
    more dimensions before those of an image.

    >>> find_sizes([((8, 3, 32, 40), np.dtype("uint8"))], "CHW")
    (3, 32, 40)
    """
    shape, dtype = inputs[0]
    is_shaped = len(inputs) == 1 and (len(shape) == 4 or (clips and len(shape) > 4))
    if not is_shaped or (dtypes is not None and dtype not in dtypes):
        expected = "" if dtypes is None else " or ".join(np.dtype(one).name for one in dtypes) + " "
        raise SampleError(f"expected {expected}images in layout {layout}, got {dtype} of shape {shape[1:]}")
    channels, height, width = split_shape(shape[-3:], layout)
    if least is not None and (least[0] > height or least[1] > width):
        raise SampleError(
            f"expected images of at least {least[0]} x {least[1]}, got {height} x {width} in layout {layout}"
        )
    return channels, height, width


def draw_windows(words: Array, whole: tuple[int, int], size: tuple[int, int], *, flip: bool) -> Array:
    """Return top, left and flip of each sample's window, uniformly drawn from random uint64 (samples, 3).

    >>> draw_windows(np.zeros((1, 3), np.uint64), (32, 32), (28, 28), flip=True)
    array([[0, 0, 0]], dtype=int32)
    """
    drawn = np.empty((len(words), _CROP), np.int32)
    for axis, (length, part) in enumerate(zip(whole, size, strict=True)):
        drawn[:, axis] = words[:, axis] % np.uint64(length - part + 1)
    drawn[:, 2] = words[:, 2] >> _LAST_BIT if flip else 0
    return drawn


# ---------------------------------------------------------------------------------------------------------
# Erasing

_TRIES = 10  # rectangles to draw before an image is left whole, as in torchvision
_PER_TRY = 4  # numbers drawn for each rectangle
_RECTANGLE = 4  # the numbers of a rectangle: top, left, height and width


def _check_fill(name: str, value: Any) -> None:
    if np.ndim(value) > 1 or np.asarray(value).dtype.kind not in "iuf":
        raise ValueError(f"{name} must be a number, or one for each channel, got {value!r}")


@dataclass(frozen=True)
class RandomErasing(KeepsLayout, Checked):
    """Fills a rectangle of random area and position in some images of a batch.

    The parameters are torchvision's.

    Attributes
    ----------
    field : str or None
        The field of images, all of one size; None means the first array field.
    p : float
        The probability that an image loses a rectangle, 0 to 1.
    scale, ratio : tuple of float
        The least and the greatest fraction of the image's area to erase; and the least and the greatest ratio
        of the rectangle's height to its width.
    value : float or sequence of float
        What to fill in: one number, or one for each channel, in the units of the images.
    layout : str or None
        The layout of the images, 'CHW' or 'HWC'. None takes what earlier transforms make: 'HWC' after
        transforms of single images, and what `Normalize` says after that. If nothing is known, it is 'CHW',
        and images that look like 'HWC' are an error.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuloader import DataLoader
    >>> images = [np.ones((1, 4, 4), np.float32)] * 2
    >>> erase = RandomErasing(None, p=1, scale=(0.25, 0.25), ratio=(1, 1))
    >>> batch = next(iter(DataLoader(images, places="cpu", batch_size=2, seed=1, transforms=[erase])))
    >>> (batch == 0).sum((1, 2, 3))
    array([4, 4])
    """

    field: str | None
    p: float = checked(check_probability, 0.5)
    scale: tuple[float, float] = checked(check_parts, (0.02, 0.33))
    ratio: tuple[float, float] = checked(check_range, (0.3, 3.3))
    value: float | Sequence[float] = checked(_check_fill, 0.0)
    layout: str | None = checked(LAYOUTS, None)

    draws = _RECTANGLE
    """Number of random draws per sample: top, left, height and width of its rectangle."""

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return top, left, height and width of each sample's rectangle; height 0 for none."""
        _, height, width = find_sizes(inputs, assume_layout(self.layout, inputs))
        drawn = np.zeros((len(words), _RECTANGLE), np.int32)
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

    def adapt(self, before: KernelCall) -> RandomErasing:
        """Return the transform for the layout and the bits that a kernel has given the images."""
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
                f"value must have one number for each of {channels} channels, got {self.value} for images "
                f"of shape {inputs[0][0][1:]} in layout {layout}"
            )
        given = {"images": inputs[0], "windows": ((0, _RECTANGLE), np.dtype(np.int32))}
        return KernelCall.settle(given, erase, color=self.value, layout=layout)


def _uniform(words: Array, key: int) -> Array:
    """Return numbers from 0 to 1 that depend on each word and on a key."""
    return (hash_positions(words, key) >> np.uint64(11)) * 2.0**-53


# ---------------------------------------------------------------------------------------------------------
# Settling: what a loader's transforms of batches amount to together


def fuse(transforms: Sequence[Transform]) -> list[Transform]:
    """Return the transforms, with each `Normalize` merged into one directly before it that can compute both.

    >>> [type(one).__name__ for one in fuse([RandomCropFlip(None, (4, 4)), Normalize(None)])]
    ['Normalize']
    """
    fused: list[Transform] = []
    for transform in transforms:
        merge = getattr(fused[-1], "_merge", None) if fused else None
        # A Normalize of another field, or with its own crop or flip, takes a separate pass.
        if merge and isinstance(transform, Normalize) and not transform.draws:
            merged = merge(transform) if transform.field == fused[-1].field else None
            if merged is not None:
                fused[-1] = merged
                continue
        fused.append(transform)
    return fused


def settle_layouts(transforms: Sequence[Transform], made: Iterable[str | None] = ()) -> list[Transform]:
    """Return the transforms, with the layout of images filled in where it is known but not stated.

    The loader itself makes the images of the fields `made`, in the layout HWC. Raises `ValueError` if a
    transform states a layout different from its field's.

    >>> [settled] = settle_layouts([RandomErasing("image")], made=["image"])
    >>> settled.layout
    'HWC'
    """
    known = dict.fromkeys(made, ("HWC", "the loader"))
    settled: list[Transform] = []
    for transform in transforms:
        name, field = type(transform).__name__, transform.field
        layout, maker = known.get(field, (None, ""))
        ours: Any = transform
        if not isinstance(transform, KeepsLayout):
            known.pop(field, None)  # it may make anything
        elif hasattr(ours, "layout") and layout not in (None, CHANNELS_LAST):
            if ours.layout is None:
                transform = replace(ours, layout=layout)
            elif ours.layout != layout:
                raise ValueError(_contradict(name, field, ours.layout, layout, maker))
        if isinstance(transform, Normalize):
            known[field] = transform.to, "the Normalize before it"
        settled.append(transform)
    return settled


def _contradict(name: str, field: str | None, stated: str, layout: str | None, maker: str) -> str:
    if name == "Normalize":
        advice = ", or leave one of them out" if "Normalize" in maker else ""
    else:
        advice = f", or put {name} after Normalize" if layout == "HWC" and "Normalize" not in maker else ""
    which = "" if field is None else f" of field {field!r}"
    return (
        f"{name}{which} has layout {stated}, but {maker} makes these images in layout {layout}; "
        f"pass layout={layout!r}{advice}"
    )
