"""The names of ``paddle.fluid.layers`` that old loading code uses."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import DTypeLike

from gpuloader.fields.spec import FeedSpec
from gpuloader.fields.spec import data as _data

__all__ = ["data"]


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: DTypeLike = "float32",
    lod_level: int = 0,
) -> FeedSpec:
    """Declare a feed by the shape of one sample; `append_batch_size` prepends the batch dimension.

    >>> data("image", [784]).shape
    (None, 784)
    """
    return _data(name, [None, *shape] if append_batch_size else shape, dtype, lod_level)
