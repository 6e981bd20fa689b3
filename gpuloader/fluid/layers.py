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
    type: object = None,  # noqa: A002, ARG001
    stop_gradient: bool = True,  # noqa: ARG001
) -> FeedSpec:
    """Declare a feed by the shape of one sample, to which the batch dimension is added.

    Parameters
    ----------
    name : str
        The field's name.
    shape : sequence of int or None
        Shape of one sample. With a free dimension (None or -1), or without `append_batch_size`, it is the
        shape of a batch, and no dimension is added.
    append_batch_size : bool
        Whether to add the batch dimension.
    dtype, lod_level
        As for `gpuloader.data`.
    type, stop_gradient
        Accepted for compatibility with Paddle and ignored.

    Raises
    ------
    ValueError
        As for `gpuloader.data`.

    Examples
    --------
    >>> data("image", [784]).shape, data("image", [-1, 784]).shape
    ((None, 784), (None, 784))
    """
    dims = list(shape)
    if append_batch_size and not any(size is None or size == -1 for size in dims):
        dims = [None, *dims]
    return _data(name, dims, dtype, lod_level)
