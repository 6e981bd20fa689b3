"""Asking the user's samplers for their indices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from gpuloader.base.errors import BadType

T = TypeVar("T")


def walk(sampler: Iterable[T]) -> Iterator[T]:
    """Return a sampler's iterator.

    Raises
    ------
    TypeError
        The sampler's ``__iter__`` returns something else.

    >>> next(walk([3, 1]))
    3
    """
    try:
        return iter(sampler)
    except TypeError as error:
        if "non-iterator" not in str(error):
            raise
        kind = type(sampler).__name__
        raise BadType(
            f"{kind}.__iter__ of the sampler or batch sampler must return an iterator ({error}); return "
            "iter(...) of a list, or write it as a generator"
        ) from error
