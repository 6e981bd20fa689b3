"""The names of ``paddle.fluid.dygraph`` that old loading code uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuloader.devices.places import default_place, open_device, parse_place, use_place
from gpuloader.epoch.sending import send
from gpuloader.staging import arrange

__all__ = ["guard", "to_variable"]


@contextmanager
def guard(place: Any = None) -> Iterator[None]:
    """Make `place` the default place inside a ``with`` block, in this thread.

    Loaders that are made inside, or get their source inside, deliver there unless `places` says otherwise.

    Parameters
    ----------
    place : place, str or None
        The place; None means the first GPU, or host memory if there is none.

    Raises
    ------
    PlaceError
        The place is unknown, or its device is missing.

    Examples
    --------
    >>> from gpuloader import fluid
    >>> with guard(fluid.CPUPlace()):
    ...     loader = fluid.io.DataLoader.from_generator(capacity=2)
    ...     _ = loader.set_batch_generator(lambda: [[np.ones((2, 3))]])
    >>> [type(batch).__name__ for batch, in loader]
    ['ndarray']
    """
    chosen = default_place() if place is None else parse_place(place)
    open_device(chosen)
    with use_place(chosen):
        yield


def to_variable(
    value: Any,
    name: str | None = None,  # noqa: ARG001
    zero_copy: bool | None = None,
    dtype: DTypeLike | None = None,
) -> Any:
    """Return an array on the default place: that of the innermost `guard`.

    Parameters
    ----------
    value : array or list
        A NumPy array or a list of numbers is copied to the place. An array of another library, such as a
        batch on a GPU, is returned as it is.
    name : str or None
        Accepted for compatibility with Paddle and ignored.
    zero_copy : bool or None
        True returns a NumPy array itself if the place is host memory; otherwise it is copied, as in Paddle.
    dtype : dtype-like or None
        The dtype of the result; None keeps that of the value.

    Raises
    ------
    TypeError
        The value is not an array or a list.

    Examples
    --------
    >>> labels = np.array([7, 2])
    >>> to_variable(labels), to_variable(labels) is labels, to_variable([1, 2], dtype="float32")
    (array([7, 2]), False, array([1., 2.], dtype=float32))
    """
    if isinstance(value, list | tuple):
        value = np.array(value)
    if not isinstance(value, np.ndarray):
        if hasattr(value, "__dlpack__") or hasattr(value, "__array__"):
            return value
        raise TypeError(f"value must be an array or a list, got {type(value).__name__}")
    array = value if dtype is None else value.astype(dtype, copy=False)
    device = open_device(default_place())
    if device.direct and device.locker is None:
        return array if zero_copy else array.copy()
    [sent] = send([lambda view: np.copyto(view, array)], arrange(((array.shape, array.dtype),)), device)
    return sent
