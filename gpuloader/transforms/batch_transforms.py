"""Transforms of whole batches, which become kernels on a GPU and NumPy on a CPU place.

First come those of any values: cast, one-hot labels, padding. Then those of images: crop and normalize,
erase, mix. At the end, a loader's transforms are settled: which are computed together, and in which layout
images are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.checks import check_count
from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array
from gpuloader.kernels.cast import FLOATS, INTEGERS, cast, check_scale, resolve_target, round_to
from gpuloader.kernels.crop import check_layout, crop, erase, split_shape
from gpuloader.kernels.launching import Kernel
from gpuloader.kernels.mix import blend, mix_labels, paste
from gpuloader.kernels.normalize import as_constant, normalize
from gpuloader.kernels.one_hot import one_hot
from gpuloader.kernels.pad import pad
from gpuloader.order.permutation import hash_positions
from gpuloader.transforms.image_transforms import check_probability, check_range
from gpuloader.transforms.program import Chain, KernelCall, Plain, Spec, Transform, no_rows

# ---------------------------------------------------------------------------------------------------------
# Any values

_NUMBERS = (*INTEGERS, *FLOATS)


@dataclass(frozen=True)
class Cast(Plain):
    """Converts to another dtype, optionally multiplied by a factor.

    Attributes
    ----------
    field : str or None
        The field to transform; None means the first array field.
    dtype, scale : dtype-like, float
        The result's dtype, and the factor that is applied before. Integers wrap around, as with NumPy's
        ``astype``. Floats out of an integer's range saturate and NaN becomes 0, on CPUs and GPUs alike.
        "bfloat16" is a dtype of PyTorch's; other outputs get its bits in uint16.
    """

    field: str | None
    dtype: DTypeLike
    scale: float = 1.0

    def __post_init__(self) -> None:
        resolve_target(self.dtype, _NUMBERS)
        check_scale(self.scale)

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        shape, _ = _dense(inputs)
        # A factor would make the kernel convert to floats, which cannot hold every integer.
        scale = None if self.scale == 1 else self.scale
        empty = {"values": no_rows(inputs[0])}
        return KernelCall.settle(empty, shape[0], cast, dtype=self.dtype, scale=scale)


@dataclass(frozen=True)
class OneHot(Plain):
    """Turns labels into rows of zeros with a one in the label's column.

    Attributes
    ----------
    field : str or None
        The field to transform, of integers; None means the first array field.
    classes, dtype : int, dtype-like
        The number of columns, and their dtype. A label outside 0 to ``classes - 1`` gets a row of zeros.
    """

    field: str | None
    classes: int
    dtype: DTypeLike = "float32"

    def __post_init__(self) -> None:
        check_count("classes", self.classes)
        resolve_target(self.dtype, ("bool", *_NUMBERS))

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        shape, dtype = _dense(inputs)
        if dtype.kind not in "iu":
            raise SampleError(f"expected integers as labels, got {dtype}")
        empty = {"labels": no_rows(inputs[0])}
        return KernelCall.settle(empty, shape[0], one_hot, classes=self.classes, dtype=self.dtype)


@dataclass(frozen=True)
class Pad(Plain):
    """Pads rows of varying length to a fixed length; the loader's `ragged` option must list the field.

    Attributes
    ----------
    field : str or None
        The field to transform; None means the first array field.
    length, fill : int, float
        The number of steps per row, and the value that fills up short rows. A longer sample is an error.
    """

    field: str | None
    length: int
    fill: float = 0

    def __post_init__(self) -> None:
        check_count("length", self.length)

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        if len(inputs) != 2:
            raise SampleError("expected a ragged field of level 1 to pad; name it in the loader's ragged")
        empty = {"values": no_rows(inputs[0]), "row_splits": no_rows(inputs[1], 1)}
        return KernelCall.settle(empty, inputs[1][0][0] - 1, pad, longest=self.length, fill=self.fill)

    def check(self, inputs: Sequence[Array]) -> None:
        """Refuse rows that are too long, which the kernel would cut."""
        lengths = np.diff(inputs[1])
        if lengths.size and lengths.max() > self.length:
            row = int(lengths.argmax())
            raise SampleError(f"expected at most {self.length} steps, got {int(lengths[row])}", index=row)


def _dense(inputs: Sequence[Spec]) -> Spec:
    if len(inputs) != 1:
        raise SampleError("expected a dense field, got a ragged one; pad it first")
    return inputs[0]


# ---------------------------------------------------------------------------------------------------------
# Crops and normalization

CHANNELS_LAST = "channels_last"
"""The layout of a result in PyTorch's memory format of this name."""

_TARGETS = ("float16", "bfloat16", "float32")
_CROP = 3  # the numbers of a window to crop: top, left, flip
_CHANNELS_FIRST = 0, 3, 1, 2  # the dimensions of a batch in HWC, in the order of CHW
_CHANNELS = 1, 3, 4  # of gray, color, and color with transparency
_LAST_BIT = np.uint64(63)


@dataclass(frozen=True)
class RandomCropFlip(Plain):
    """Crops a random window of each image, and mirrors images at random.

    A `Normalize` of the same field directly after it is computed in the same pass.

    Attributes
    ----------
    field : str or None
        The field to transform, of any dtype of 1, 2, 4 or 8 bytes; None means the first array field.
    size, flip : tuple of int, bool
        Height and width of the window; and whether to mirror each image with probability 1/2.
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
        return _CROP

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return top, left and flip of each sample."""
        _, height, width = find_sizes(inputs, self.layout or "HWC")
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
        """Return the computation for a batch, when no `Normalize` includes it."""
        layout = self.layout or "HWC"
        find_sizes(inputs, layout, self.size)
        empty = {"images": no_rows(inputs[0]), "windows": np.zeros((0, _CROP), np.int32)}
        samples = inputs[0][0][0]
        return KernelCall.settle(empty, samples, crop, moves=True, size=tuple(self.size), layout=layout)


@dataclass(frozen=True)
class Normalize(Plain):
    """Converts images to floats, ``(x * scale - mean) / std`` per channel, and can change the layout.

    Attributes
    ----------
    field : str or None
        The field to transform, uint8 or float32, with samples of shape (height, width, channels) or
        (channels, height, width); None means the first array field.
    mean, std, scale : float or sequence of float, float
        One number for all channels, or one per channel; and the factor applied first: ``1 / 255`` maps bytes
        to 0 to 1.
    layout, to : str
        The layouts of the samples and of the result, each 'HWC' or 'CHW'. The result may also be
        'channels_last': of the shape of 'CHW', but with the channels of a pixel side by side in memory. That
        is PyTorch's memory format of this name, and takes an output of PyTorch, CuPy or NumPy.
    dtype : dtype-like
        The result's dtype: float32, float16, or "bfloat16", which only PyTorch has. Other outputs get its
        bits in uint16.
    crop, flip : tuple of int or None, bool
        Height and width of a random window to crop first, None to keep the whole image; and whether to mirror
        each image left to right with probability 1/2.
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
        return _CROP if self.crop is not None or self.flip else 0

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return top, left and flip of each sample."""
        _, height, width = find_sizes(inputs, self.layout)
        return draw_windows(words, (height, width), self.crop or (height, width), flip=self.flip)

    @property
    def arrangement(self) -> tuple[str, tuple[int, ...] | None]:
        """The result's layout in memory, and the order in which its dimensions are delivered."""
        return ("HWC", _CHANNELS_FIRST) if self.to == CHANNELS_LAST else (self.to, None)

    def bind(self, inputs: Sequence[Spec]) -> KernelCall:
        """Return the computation for a batch."""
        _, *size = find_sizes(inputs, self.layout, self.crop, (np.uint8, np.float32))
        empty = {"images": no_rows(inputs[0])}
        if self.draws:
            empty["windows"] = np.zeros((0, _CROP), np.int32)
        options = {"layout": self.layout, "size": tuple(self.crop or size), **finish_options(self)}
        return KernelCall.settle(empty, inputs[0][0][0], normalize, **options)


def finish_options(last: Normalize) -> dict[str, Any]:
    """Return the options of `KernelCall.settle` by which a kernel that makes images finishes them."""
    layout, axes = last.arrangement
    constants = {"mean": last.mean, "std": last.std, "scale": last.scale}
    return {"axes": axes, "out_layout": layout, "dtype": last.dtype, **constants}


def check_window(size: object) -> None:
    """Raise `ValueError` unless a window's size is a height and a width.

    >>> check_window((28, 28))
    """
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(f"window size must be (height, width), got {size!r}")
    for name, value in zip(("height", "width"), size, strict=True):
        check_count(name, value)


def find_layout(layout: str | None, before: KernelCall) -> str | None:
    """Return the layout in memory of images that a kernel has made, and that have a layout for the user.

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
) -> tuple[int, int, int]:
    """Return the channels, height and width of a field of images; raise `SampleError` for other fields.

    `least` is the height and width that the images must have at least.

    >>> find_sizes([((8, 3, 32, 40), np.dtype("uint8"))], "CHW")
    (3, 32, 40)
    """
    shape, dtype = inputs[0]
    if len(inputs) != 1 or len(shape) != 4 or (dtypes is not None and dtype not in dtypes):
        expected = "" if dtypes is None else " or ".join(np.dtype(one).name for one in dtypes) + " "
        raise SampleError(f"expected {expected}images in layout {layout}, got {dtype} of shape {shape[1:]}")
    channels, height, width = split_shape(shape[1:], layout)
    if least is not None and (least[0] > height or least[1] > width):
        raise SampleError(
            f"expected images of at least {least[0]} x {least[1]}, got {height} x {width} in layout {layout}"
        )
    return channels, height, width


@lru_cache(maxsize=64)
def _count_places(whole: tuple[int, int], size: tuple[int, ...]) -> Array:
    """Return how many tops, and how many lefts, a window can have."""
    # Kept, because for a small batch a new array takes longer than the division.
    return np.array([length - part + 1 for length, part in zip(whole, size, strict=True)], np.uint64)


def draw_windows(words: Array, whole: tuple[int, int], size: tuple[int, int], *, flip: bool) -> Array:
    """Return top, left and flip of each sample's window, uniformly drawn from random uint64 (samples, 3).

    >>> draw_windows(np.zeros((1, 3), np.uint64), (32, 32), (28, 28), flip=True)
    array([[0, 0, 0]], dtype=int32)
    """
    drawn = np.empty((len(words), _CROP), np.int32)
    drawn[:, :2] = words[:, :2] % _count_places(whole, tuple(size))
    drawn[:, 2] = words[:, 2] >> _LAST_BIT if flip else 0
    return drawn


# ---------------------------------------------------------------------------------------------------------
# Erasing

_TRIES = 10  # rectangles that are drawn before an image stays whole, as in torchvision
_PER_TRY = 4  # numbers drawn for each
_RECTANGLE = 4  # the numbers of a rectangle: top, left, height and width


@dataclass(frozen=True)
class RandomErasing(Plain):
    """Fills a rectangle of random area and place in some images of a batch.

    The parameters are torchvision's.

    Attributes
    ----------
    field : str or None
        The field of images, all of one size; None means the first array field.
    p : float
        The probability that an image loses a rectangle, 0 to 1.
    scale, ratio : tuple of float
        The least and the greatest part of the image's area that is erased; and the least and the greatest
        height of the rectangle, in units of its width.
    value : float or sequence of float
        What to fill in: one number, or one for each channel, in the units of the images.
    layout : str or None
        The layout of the images, 'CHW' or 'HWC'. None takes what the transforms before it make: 'HWC' after
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
        return _RECTANGLE

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
        empty = {"images": no_rows(inputs[0]), "windows": np.zeros((0, _RECTANGLE), np.int32)}
        return KernelCall.settle(empty, inputs[0][0][0], erase, color=self.value, layout=layout)


def _uniform(words: Array, key: int) -> Array:
    """Return numbers from 0 to 1 that depend on each word and on a key."""
    return (hash_positions(words, key) >> np.uint64(11)) * 2.0**-53


# ---------------------------------------------------------------------------------------------------------
# Mixing: each image of a batch with the one before it, and their labels

_LAMBDA = 4  # the column of draws with the share of a sample's own image, as the bits of a float32


class _Mixing:
    """The part that `MixUp` and `CutMix` share."""

    labels: str
    classes: int
    alpha: float

    def __post_init__(self) -> None:
        check_count("classes", self.classes)
        alpha = self.alpha
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
            raise ValueError(f"alpha must be a number above 0, got {alpha!r}")

    @property
    def others(self) -> tuple[str, ...]:
        """The fields to transform in addition to `field`."""
        return (self.labels,)

    @property
    def draws(self) -> int:
        """Number of random draws per sample: a window, and the share of the sample's own image."""
        return _LAMBDA + 1

    @property
    def checked(self) -> tuple[str, ...]:
        """The fields whose values `check` takes."""
        return (self.labels,)

    def check(self, inputs: Sequence[Array]) -> None:
        """Refuse labels that are not classes, whose part of a row would be missing."""
        labels = inputs[0]
        if labels.dtype.kind not in "iu" or labels.ndim != 1 or not labels.size:
            return  # rows of floats; or `bind` refuses them
        if labels.min() < 0 or labels.max() >= self.classes:
            row = int(((labels < 0) | (labels >= self.classes)).argmax())
            raise SampleError(
                f"expected labels from 0 to {self.classes - 1}, since classes is {self.classes}, "
                f"got {labels[row]}",
                index=row,
            )

    def _draw_share(self, word: np.uint64) -> tuple[float, np.random.Generator]:
        """Return the batch's share, which its first sample's random word decides."""
        # All images of a batch have one share, as in torchvision. It must not depend on how a batch is
        # divided among workers or resumed, so it is drawn from a word of the batch's first sample.
        rng = np.random.Generator(np.random.Philox(key=int(word)))
        return rng.beta(self.alpha, self.alpha), rng

    def _bind(self, inputs: Sequence[Spec], kernel: Kernel[...], **options: Any) -> Chain:
        """Return the computation for a batch, whose images a kernel mixes, and whose labels another."""
        images, labels = (no_rows(spec) for spec in inputs)
        mix, samples = np.zeros((0, self.draws), np.int32), inputs[0][0][0]
        mixing = KernelCall.settle({"images": images, "mix": mix}, samples, kernel, **options)
        given = {"labels": labels, "mix": mix}
        labeling = KernelCall.settle(given, samples, mix_labels, classes=self.classes)
        return Chain(((mixing, (0, 2), 3), (labeling, (1, 2), 4)), mixing.outputs + labeling.outputs)

    def _check_labels(self, inputs: Sequence[Spec]) -> None:
        (shape, dtype) = inputs[-1]
        if len(inputs) != 2:
            raise SampleError("expected a dense field of images, and one of labels")
        if (len(shape) != 1 or dtype.kind not in "iu") and (
            shape[1:] != (self.classes,) or dtype.kind != "f"
        ):
            raise SampleError(
                f"expected labels as one integer per sample, or as {self.classes} floats, got {dtype} of "
                f"shape {shape[1:]}"
            )


@dataclass(frozen=True)
class MixUp(_Mixing):
    """Blends each image of a batch with the one before it, and their labels in the same proportion.

    The proportion is drawn for each batch from a beta distribution, as in torchvision. Labels become rows of
    floats. Put it after `Normalize`.

    Attributes
    ----------
    field : str
        The field of images, of floats.
    labels, classes : str, int
        The field of labels: integers, or rows of floats as `OneHot` makes them; and the number of classes. An
        integer outside 0 to ``classes - 1`` is an error, but is only found if no transform before has made
        the labels.
    alpha : float
        The parameter of the beta distribution; 1 draws all proportions alike.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuloader import DataLoader
    >>> dataset = [(np.full((1, 1, 1), number, np.float32), number) for number in range(2)]
    >>> mix = MixUp("0", "1", classes=2)
    >>> images, labels = next(iter(DataLoader(dataset, places="cpu", batch_size=2, seed=3, transforms=[mix])))
    >>> bool(np.allclose(images.ravel(), labels[:, 1])), labels.sum(1)
    (True, array([1., 1.], dtype=float32))
    """

    field: str
    labels: str
    classes: int
    alpha: float = 1.0

    _bits: ClassVar[str | None] = None

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:  # noqa: ARG002
        """Return the batch's share in the last column of each row."""
        drawn = np.zeros((len(words), self.draws), np.int32)
        if len(words):
            share, _ = self._draw_share(words[0, 0])
            drawn[:, _LAMBDA] = np.float32(share).view(np.int32)
        return drawn

    def adapt(self, before: KernelCall) -> MixUp:
        """Return the transform for the dtype that a kernel has given the images."""
        made = replace(self)
        object.__setattr__(made, "_bits", before.bits)  # no field, because users do not choose it
        return made

    def bind(self, inputs: Sequence[Spec]) -> Chain:
        """Return the computation for a batch."""
        self._check_labels(inputs)
        if self._bits is not None:  # images of a dtype that only PyTorch has, whose bits are in uint16
            return self._bind(inputs, blend, dtype=self._bits)
        if inputs[0][1].kind != "f":
            raise SampleError(f"expected images of floats, got {inputs[0][1]}; put MixUp after Normalize")
        return self._bind(inputs, blend)


@dataclass(frozen=True)
class CutMix(_Mixing):
    """Pastes a window of the image before it into each image of a batch, and mixes labels by area.

    The window is drawn for each batch, as in torchvision. Labels become rows of floats.

    Attributes
    ----------
    field : str
        The field of images, of any dtype.
    labels, classes : str, int
        As for `MixUp`.
    alpha : float
        The parameter of the beta distribution of the window's area; 1 draws all areas alike.
    layout : str or None
        As for `RandomErasing`.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuloader import DataLoader
    >>> dataset = [(np.full((1, 8, 8), number, np.float32), number) for number in range(2)]
    >>> mix = CutMix("0", "1", classes=2)
    >>> images, labels = next(iter(DataLoader(dataset, places="cpu", batch_size=2, seed=3, transforms=[mix])))
    >>> bool(np.allclose(images.mean((1, 2, 3)), labels[:, 1]))
    True
    """

    field: str
    labels: str
    classes: int
    alpha: float = 1.0
    layout: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout is not None:
            check_layout("layout", self.layout)

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return top, left, bottom and right of the window, and the share of a sample's own image."""
        _, height, width = find_sizes(inputs[:1], assume_layout(self.layout, inputs))
        drawn = np.zeros((len(words), self.draws), np.int32)
        if len(words):
            share, rng = self._draw_share(words[0, 0])
            across, down = int(rng.random() * width), int(rng.random() * height)
            reach = 0.5 * math.sqrt(1 - share)
            top, bottom = max(down - int(reach * height), 0), min(down + int(reach * height), height)
            left, right = max(across - int(reach * width), 0), min(across + int(reach * width), width)
            own = 1 - (bottom - top) * (right - left) / (height * width)
            drawn[:] = top, left, bottom, right, np.float32(own).view(np.int32)
        return drawn

    def adapt(self, before: KernelCall) -> CutMix:
        """Return the transform for the layout that a kernel has given the images."""
        return replace(self, layout=find_layout(self.layout, before))

    def bind(self, inputs: Sequence[Spec]) -> Chain:
        """Return the computation for a batch."""
        self._check_labels(inputs)
        layout = assume_layout(self.layout, inputs)
        find_sizes(inputs[:1], layout)
        return self._bind(inputs, paste, moves=True, layout=layout)


# ---------------------------------------------------------------------------------------------------------
# Settling: what a loader's transforms of batches are together


def fuse(transforms: Sequence[Transform]) -> list[Transform]:
    """Return the transforms, with each `Normalize` merged into one directly before it that can compute both.

    >>> [type(one).__name__ for one in fuse([RandomCropFlip(None, (4, 4)), Normalize(None)])]
    ['Normalize']
    """
    fused: list[Transform] = []
    for transform in transforms:
        merge = getattr(fused[-1], "_merge", None) if fused else None
        # A Normalize of another field, or with its own crop or flip, takes a pass of its own.
        if merge and isinstance(transform, Normalize) and not transform.draws:
            merged = merge(transform) if transform.field == fused[-1].field else None
            if merged is not None:
                fused[-1] = merged
                continue
        fused.append(transform)
    return fused


def settle_layouts(transforms: Sequence[Transform], made: Iterable[str | None] = ()) -> list[Transform]:
    """Return the transforms, with the layout of images filled in where none is stated but it is known.

    The loader itself makes the images of the fields `made`, in the layout HWC. Raises `ValueError` if a
    transform states another layout than its field has.

    >>> [settled] = settle_layouts([RandomErasing("image")], made=["image"])
    >>> settled.layout
    'HWC'
    """
    known = dict.fromkeys(made, ("HWC", "the loader"))
    settled: list[Transform] = []
    for transform in transforms:
        name, field = type(transform).__name__, transform.field
        layout, maker = known.get(field, (None, ""))
        if isinstance(transform, Normalize | RandomCropFlip | RandomErasing | CutMix):
            if layout not in (None, CHANNELS_LAST):
                if transform.layout is None:
                    transform = replace(transform, layout=layout)
                elif transform.layout != layout:
                    raise ValueError(_contradict(name, field, transform.layout, layout, maker))
            if isinstance(transform, Normalize):
                known[field] = transform.to, "the Normalize before it"
        elif not isinstance(transform, Cast | MixUp):
            known.pop(field, None)  # it may make anything
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
