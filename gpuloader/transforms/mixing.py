"""Transforms that mix each image of a batch, and its label, with the previous one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gpuloader.checks import Checked, check_count, checked
from gpuloader.errors import SampleError
from gpuloader.fields.spec import Array, Spec
from gpuloader.kernels.crop import LAYOUTS
from gpuloader.kernels.launching import Kernel
from gpuloader.kernels.mixup import blend, mix_labels, paste
from gpuloader.transforms.batch_transforms import assume_layout, find_layout, find_sizes
from gpuloader.transforms.program import Chain, KeepsLayout, KernelCall

_LAMBDA = 4  # the column of the draws that holds the share of a sample's own image, as float32 bits

_Drawn = tuple[tuple[int, int, int, int], float]


def _check_alpha(name: str, alpha: object) -> None:
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise ValueError(f"{name} must be a number above 0, got {alpha!r}")


@dataclass(frozen=True)
class _Mixing(KeepsLayout, Checked):
    """The part that `MixUp` and `CutMix` share."""

    field: str
    labels: str
    classes: int = checked(check_count)
    alpha: float = checked(_check_alpha, 1.0)

    draws = _LAMBDA + 1
    """Number of random draws per sample: a window, and the share of the sample's own image."""

    @property
    def others(self) -> tuple[str, ...]:
        """The fields to transform in addition to `field`."""
        return (self.labels,)

    checked = others  # no longer the function that the fields above call
    """The fields whose values `check` takes."""

    def check(self, inputs: Sequence[Array]) -> None:
        """Refuse labels that are not classes: their part of a row would be missing."""
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

    def draw(self, words: Array, inputs: Sequence[Spec]) -> Array:
        """Return the same numbers for each sample: top, left, bottom and right of a window, and the share."""
        drawn = np.zeros((len(words), self.draws), np.int32)
        if len(words):
            # All images of a batch have the same share, as in torchvision. It must not depend on how a batch
            # is divided among workers or resumed, so a word of the batch's first sample determines it.
            rng = np.random.Generator(np.random.Philox(key=int(words[0, 0])))
            window, own = self._draw_window(rng.beta(self.alpha, self.alpha), rng, inputs)
            drawn[:] = *window, np.float32(own).view(np.int32)
        return drawn

    def _draw_window(self, share: float, rng: np.random.Generator, inputs: Sequence[Spec]) -> _Drawn:  # noqa: ARG002
        """Return a window, and the share of a sample's own image: no window, and the share as drawn."""
        return (0, 0, 0, 0), share

    def _bind(self, inputs: Sequence[Spec], kernel: Kernel[...], **options: Any) -> Chain:
        """Return the computation for a batch; one kernel mixes its images, another its labels."""
        [images, labels], mix = inputs, ((0, self.draws), np.dtype(np.int32))
        mixing = KernelCall.settle({"images": images, "mix": mix}, kernel, **options)
        labeling = KernelCall.settle({"labels": labels, "mix": mix}, mix_labels, classes=self.classes)
        return Chain(((mixing, (0, 2), 3), (labeling, (1, 2), 4)), mixing.outputs + labeling.outputs)

    def _check_labels(self, inputs: Sequence[Spec]) -> None:
        shape, dtype = inputs[-1]
        if len(inputs) != 2:
            raise SampleError("expected a dense field of images, and one of labels")
        are_classes, are_shares = len(shape) == 1 and dtype.kind in "iu", shape[1:] == (self.classes,)
        if not are_classes and not (are_shares and dtype.kind == "f"):
            raise SampleError(
                f"expected labels as one integer per sample, or as {self.classes} floats, got {dtype} of "
                f"shape {shape[1:]}"
            )


@dataclass(frozen=True)
class MixUp(_Mixing):
    """Blends each image of a batch with the previous one, and their labels in the same proportion.

    The proportion is drawn for each batch from a beta distribution, as in torchvision. Labels become rows of
    floats. Put it after `Normalize`.

    Attributes
    ----------
    field : str
        The field of images, of floats.
    labels, classes : str, int
        The field of labels: integers, or rows of floats as `OneHot` makes them; and the number of classes. An
        integer outside 0 to ``classes - 1`` is an error, but is only detected if no earlier transform has
        made the labels.
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

    _bits: ClassVar[str | None] = None

    def adapt(self, before: KernelCall) -> MixUp:
        """Return the transform for the dtype that a kernel has given the images."""
        made = replace(self)
        object.__setattr__(made, "_bits", before.bits)  # not a field, because users do not choose it
        return made

    def bind(self, inputs: Sequence[Spec]) -> Chain:
        """Return the computation for a batch."""
        self._check_labels(inputs)
        # The bits of a dtype that only PyTorch has are in uint16.
        if self._bits is None and inputs[0][1].kind != "f":
            raise SampleError(f"expected images of floats, got {inputs[0][1]}; put MixUp after Normalize")
        return self._bind(inputs, blend, dtype=self._bits)


@dataclass(frozen=True)
class CutMix(_Mixing):
    """Pastes a window of the previous image into each image of a batch, and mixes labels by area.

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

    layout: str | None = checked(LAYOUTS, None)

    def _draw_window(self, share: float, rng: np.random.Generator, inputs: Sequence[Spec]) -> _Drawn:
        _, height, width = find_sizes(inputs[:1], assume_layout(self.layout, inputs))
        across, down = int(rng.random() * width), int(rng.random() * height)
        reach = 0.5 * math.sqrt(1 - share)
        top, bottom = max(down - int(reach * height), 0), min(down + int(reach * height), height)
        left, right = max(across - int(reach * width), 0), min(across + int(reach * width), width)
        return (top, left, bottom, right), 1 - (bottom - top) * (right - left) / (height * width)

    def adapt(self, before: KernelCall) -> CutMix:
        """Return the transform for the layout that a kernel has given the images."""
        return replace(self, layout=find_layout(self.layout, before))

    def bind(self, inputs: Sequence[Spec]) -> Chain:
        """Return the computation for a batch."""
        self._check_labels(inputs)
        layout = assume_layout(self.layout, inputs)
        find_sizes(inputs[:1], layout)
        return self._bind(inputs, paste, moves=True, layout=layout)
