"""The names of ``paddle.vision.transforms``, whose results are transforms for a `gpuloader.DataLoader`.

They have Paddle's parameters and defaults, and apply to the first image of a sample. Pass them to the
loader instead of the dataset. The loader then decodes, resizes and converts in its workers, and the rest runs
where the batch lands.

>>> import numpy as np, pytest
>>> from gpuloader import DataLoader
>>> from gpuloader.vision import transforms as T
>>> _ = pytest.importorskip("PIL")
>>> steps = T.Compose([T.Resize(8), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(0.5, 0.5)])
>>> images = [np.full((10, 10, 3), 255, np.uint8)] * 2
>>> batch = next(iter(DataLoader(images, places="cpu", batch_size=2, transforms=steps)))
>>> batch.shape, batch.dtype, round(float(batch.max()), 5)
((2, 3, 8, 8), dtype('float32'), 1.0)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpuloader import transforms
from gpuloader.checks import check_word
from gpuloader.sources.images.image import FILTERS

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Normalize",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToTensor",
    "Transpose",
]

_Size = int | Sequence[int]
_Range = Sequence[float]
_Amount = float | tuple[float, float]


class Compose(list[Any]):
    """A list of transforms; a `ToTensor` or `Transpose` is merged with a `Normalize` directly after it.

    Parameters
    ----------
    transforms : list
        The transforms in order.

    Examples
    --------
    >>> len(Compose([Resize(8), ToTensor(), Normalize(0.5, 0.5)]))
    2
    """

    def __init__(self, transforms: Iterable[Any]) -> None:
        super().__init__()
        for transform in transforms:
            merged = _merge(self[-1], transform) if self else None
            if merged is None:
                self.append(transform)
            else:
                self[-1] = merged


def _merge(first: object, then: object) -> transforms.Normalize | None:
    """Return one transform for two that convert and normalize; None for any others."""
    if not (isinstance(first, transforms.Normalize) and isinstance(then, transforms.Normalize)):
        return None
    if first.mean != 0.0 or first.std != 1.0 or first.to != then.layout or first.draws or then.draws:
        return None
    return replace(then, scale=first.scale * then.scale, layout=first.layout)


def Resize(size: _Size, interpolation: str = "bilinear", keys: Any = None) -> transforms.Resize:  # noqa: N802
    """Return a transform that resizes images; see `gpuloader.transforms.Resize`.

    >>> Resize((32, 24)).size
    (32, 24)
    """
    _check_keys(keys)
    check_word("interpolation", interpolation, tuple(FILTERS))
    return transforms.Resize(None, _as_pair(size), interpolation)


def CenterCrop(size: _Size, keys: Any = None) -> transforms.CenterCrop:  # noqa: N802
    """Return a transform that cuts out the middle; see `gpuloader.transforms.CenterCrop`.

    >>> CenterCrop(24).size
    24
    """
    _check_keys(keys)
    return transforms.CenterCrop(None, _as_pair(size))


def RandomResizedCrop(  # noqa: N802
    size: _Size,
    scale: _Range = (0.08, 1.0),
    ratio: _Range = (3 / 4, 4 / 3),
    interpolation: str = "bilinear",
    keys: Any = None,
) -> transforms.RandomResizedCrop:
    """Return a transform that cuts out and resizes a window; see `gpuloader.transforms.RandomResizedCrop`.

    >>> RandomResizedCrop(24).scale
    (0.08, 1.0)
    """
    _check_keys(keys)
    check_word("interpolation", interpolation, tuple(FILTERS))
    return transforms.RandomResizedCrop(None, _as_pair(size), _as_pair(scale), _as_pair(ratio), interpolation)


def RandomHorizontalFlip(prob: float = 0.5, keys: Any = None) -> transforms.RandomFlip:  # noqa: N802
    """Return a transform that mirrors left to right; see `gpuloader.transforms.RandomFlip`.

    >>> RandomHorizontalFlip(0.3).p
    0.3
    """
    _check_keys(keys)
    return transforms.RandomFlip(None, prob)


def RandomVerticalFlip(prob: float = 0.5, keys: Any = None) -> transforms.RandomFlip:  # noqa: N802
    """Return a transform that mirrors top to bottom; see `gpuloader.transforms.RandomFlip`.

    >>> RandomVerticalFlip().axis
    'vertical'
    """
    _check_keys(keys)
    return transforms.RandomFlip(None, prob, "vertical")


def ColorJitter(  # noqa: N802
    brightness: _Amount = 0,
    contrast: _Amount = 0,
    saturation: _Amount = 0,
    hue: _Amount = 0,
    keys: Any = None,
) -> transforms.ColorJitter:
    """Return a transform that changes colors; see `gpuloader.transforms.ColorJitter`.

    >>> ColorJitter(0.4).brightness
    0.4
    """
    _check_keys(keys)
    return transforms.ColorJitter(None, brightness, contrast, saturation, hue)


def RandomErasing(  # noqa: N802
    prob: float = 0.5,
    scale: _Range = (0.02, 0.33),
    ratio: _Range | float = (0.3, 3.3),
    value: float | Sequence[float] = 0,
    inplace: bool = False,  # noqa: ARG001 - as in Paddle; batches are the loader's own either way
    keys: Any = None,
) -> transforms.RandomErasing:
    """Return a transform that fills a rectangle; see `gpuloader.transforms.RandomErasing`.

    >>> RandomErasing(0.25).p
    0.25
    """
    _check_keys(keys)
    if isinstance(ratio, int | float):
        ratio = (ratio, 1 / ratio)
    return transforms.RandomErasing(None, prob, _as_pair(scale), _as_pair(ratio), value)


def ToTensor(data_format: str = "CHW", keys: Any = None) -> transforms.Normalize:  # noqa: N802
    """Return a transform from bytes of shape (height, width, channels) to floats from 0 to 1.

    >>> ToTensor("HWC").to
    'HWC'
    """
    _check_keys(keys)
    check_word("data_format", data_format, ("CHW", "HWC"))
    return transforms.Normalize(None, scale=1 / 255, to=data_format)


def Transpose(order: Sequence[int] = (2, 0, 1), keys: Any = None) -> transforms.Normalize:  # noqa: N802
    """Return a transform from (height, width, channels) to (channels, height, width), as floats.

    >>> Transpose().to
    'CHW'
    """
    _check_keys(keys)
    if tuple(order) != (2, 0, 1):
        raise ValueError(f"order must be (2, 0, 1), which puts the channels first, got {order!r}")
    return transforms.Normalize(None)


def Normalize(  # noqa: N802
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    data_format: str = "CHW",
    to_rgb: bool = False,
    keys: Any = None,
) -> transforms.Normalize:
    """Return a transform to mean 0 and deviation 1; see `gpuloader.transforms.Normalize`.

    >>> Normalize(127.5, 127.5).mean
    127.5
    """
    _check_keys(keys)
    check_word("data_format", data_format, ("CHW", "HWC"))
    if to_rgb:
        raise ValueError("to_rgb=True swaps the channels of images in BGR; gpuloader decodes to RGB")
    return transforms.Normalize(None, mean, std, layout=data_format, to=data_format)


def _check_keys(keys: Any) -> None:
    if keys is not None and tuple(keys) != ("image",):
        raise ValueError(
            f"keys must be None or ('image',), got {keys!r}; for other fields, use gpuloader.transforms, "
            "whose transforms name their field"
        )


def _as_pair(given: Any) -> Any:
    return given if isinstance(given, int | float) else tuple(given)
