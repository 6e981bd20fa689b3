"""Transforms: what is done to fields where a batch lands.

On a GPU they are kernels on the copy stream, right behind the copy, so that small raw bytes cross the bus;
on a CPU place their NumPy twins run where the batch is fetched. What is drawn at random follows from the
loader's seed, the epoch and the sample's index, so both give the same pictures.

>>> import numpy as np
>>> from gpuloader import DataLoader, TensorDataset
>>> pictures = TensorDataset(np.full((4, 8, 8, 3), 255, "uint8"), np.array([0, 2, 1, 1]))
>>> steps = [RandomCropFlip("0", (6, 6)), Normalize("0", mean=0.5, std=0.5, scale=1 / 255), OneHot("1", 3)]
>>> loader = DataLoader(pictures, places="cpu", batch_size=2, transforms=steps)
>>> for images, labels in loader:
...     print(images.shape, images.dtype, round(float(images.max()), 5), labels.tolist())
(2, 3, 6, 6) float32 1.0 [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
(2, 3, 6, 6) float32 1.0 [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.errors import SampleError
from gpuloader.kernels.cast import cast, cast_on_host
from gpuloader.kernels.dtypes import FLOATS, INTEGERS, resolve_target
from gpuloader.kernels.normalize import normalize, normalize_on_host
from gpuloader.kernels.one_hot import one_hot, one_hot_on_host
from gpuloader.kernels.pad import pad, pad_on_host
from gpuloader.program import Spec, Transform
from gpuloader.spec import Array, check_count

__all__ = ["Cast", "Normalize", "OneHot", "Pad", "RandomCropFlip"]

_LAYOUTS = ("HWC", "CHW")


@dataclass(frozen=True, slots=True)
class _Call:
    """A kernel and its twin, with everything but the arrays settled."""

    outputs: tuple[Spec, ...]
    kernel: Callable[..., Any]
    twin: Callable[..., Any]

    def on_host(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Run the twin."""
        self.twin(*inputs, out=outputs[0])

    def on_device(self, inputs: list[Any], outputs: list[Any], stream: Any) -> None:
        """Launch the kernel on a stream."""
        self.kernel(*inputs, out=outputs[0], stream=stream)


class _Plain:
    """What a transform does that draws nothing and takes any content."""

    @property
    def draws(self) -> int:
        """Numbers drawn for each sample: none."""
        return 0

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:  # noqa: ARG002
        """Return no draws."""
        return np.empty((len(words), 0), np.int32)

    def check(self, inputs: Sequence[Array]) -> None:
        """Accept any content."""


@dataclass(frozen=True)
class Cast(_Plain):
    """Another dtype, and a factor on the way.

    Attributes
    ----------
    field : str or None
        Which field; None: the first that is an array.
    dtype : dtype-like
        What to convert to, as NumPy's ``astype`` does; "bfloat16" gives its bits in uint16.
    scale : float
        What values are multiplied by.
    """

    field: str | None
    dtype: DTypeLike
    scale: float = 1.0

    def bind(self, inputs: Sequence[Spec]) -> _Call:
        """Return the computation for a batch."""
        shape, _ = _dense(inputs)
        _, held = resolve_target(self.dtype, ("bool", *INTEGERS, *FLOATS))
        options: dict[str, Any] = {"dtype": self.dtype, "scale": self.scale}
        return _Call(((shape, held),), partial(cast, **options), partial(cast_on_host, **options))


@dataclass(frozen=True)
class OneHot(_Plain):
    """Rows of zeros with a one in the label's column.

    Attributes
    ----------
    field : str or None
        Which field, of integers; None: the first that is an array.
    classes : int
        Columns. A label outside 0 to ``classes - 1`` gives a row of zeros.
    dtype : dtype-like
        Of the result.
    """

    field: str | None
    classes: int
    dtype: DTypeLike = "float32"

    def __post_init__(self) -> None:
        check_count("classes", self.classes)

    def bind(self, inputs: Sequence[Spec]) -> _Call:
        """Return the computation for a batch."""
        shape, dtype = _dense(inputs)
        if dtype.kind not in "iu":
            raise SampleError(f"expected integers as labels, got {dtype}")
        _, held = resolve_target(self.dtype, ("bool", *INTEGERS, *FLOATS))
        options: dict[str, Any] = {"classes": self.classes, "dtype": self.dtype}
        outputs = (((*shape, self.classes), held),)
        return _Call(outputs, partial(one_hot, **options), partial(one_hot_on_host, **options))


@dataclass(frozen=True)
class Pad(_Plain):
    """Rows of varying length to a dense array of fixed width; the field must be among the loader's `ragged`.

    Attributes
    ----------
    field : str or None
        Which field; None: the first that is an array.
    length : int
        Steps of every row. A longer sample is an error.
    fill : float
        What short rows are filled up with.
    """

    field: str | None
    length: int
    fill: float = 0

    def __post_init__(self) -> None:
        check_count("length", self.length)

    def bind(self, inputs: Sequence[Spec]) -> _Call:
        """Return the computation for a batch."""
        if len(inputs) != 2:
            raise SampleError("expected a ragged field of level 1 to pad; name it in the loader's ragged")
        (values, dtype), (splits, _) = inputs
        outputs = (((splits[0] - 1, self.length, *values[1:]), dtype),)
        options: dict[str, Any] = {"longest": self.length, "fill": self.fill}
        return _Call(outputs, partial(pad, **options), partial(pad_on_host, **options))

    def check(self, inputs: Sequence[Array]) -> None:
        """Refuse rows that are too long: the kernel would cut them."""
        lengths = np.diff(inputs[1])
        if lengths.size and lengths.max() > self.length:
            row = int(lengths.argmax())
            raise SampleError(f"expected {self.length} steps at most, got {int(lengths[row])}", index=row)


@dataclass(frozen=True)
class RandomCropFlip(_Plain):
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
        if len(self.size) != 2:
            raise ValueError(f"size must be height and width, got {self.size!r}")
        for name, value in zip(("height", "width"), self.size, strict=True):
            check_count(name, value)

    def bind(self, inputs: Sequence[Spec]) -> _Call:  # noqa: ARG002
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

    def bind(self, inputs: Sequence[Spec]) -> _Call:
        """Return the computation for a batch."""
        channels, height, width = self._sizes(inputs)
        tall, wide = self.crop or (height, width)
        if tall > height or wide > width:
            raise SampleError(f"expected pictures of {tall} x {wide} at least, got {height} x {width}")
        size = (tall, wide, channels) if self.to == "HWC" else (channels, tall, wide)
        _, held = resolve_target(self.dtype, ("float16", "bfloat16", "float32"))
        return _Call(
            (((inputs[0][0][0], *size), held),),
            partial(self._run, normalize, (tall, wide)),
            partial(self._run, normalize_on_host, (tall, wide)),
        )

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
    """Return transforms with every `RandomCropFlip` taken into the `Normalize` behind it.

    Raises
    ------
    ValueError
        There is none behind it, or that has a window of its own.

    >>> [type(one).__name__ for one in fuse([RandomCropFlip(None, (4, 4)), Normalize(None)])]
    ['Normalize']
    """
    fused: list[Transform] = []
    window: RandomCropFlip | None = None
    for transform in transforms:
        if window is not None:
            follows = isinstance(transform, Normalize) and transform.field == window.field
            if not isinstance(transform, Normalize) or not follows or transform.draws:
                break
            transform, window = replace(transform, crop=window.size, flip=window.flip), None
        if isinstance(transform, RandomCropFlip):
            window = transform
        else:
            fused.append(transform)
    if window is not None:
        raise ValueError(
            "RandomCropFlip must be followed by the Normalize of the same field, which has no window of its "
            "own: they run in one pass"
        )
    return fused


def _dense(inputs: Sequence[Spec]) -> Spec:
    if len(inputs) != 1:
        raise SampleError("expected a dense field, got a ragged one; pad it first")
    return inputs[0]
