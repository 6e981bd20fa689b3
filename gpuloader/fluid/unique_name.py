"""The names of ``paddle.fluid.unique_name``: names with a number that grows with each use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gpuloader.errors import BadType

__all__ = ["generate", "guard"]


# The prefix of all names generated in one guard, and how often each name was.
_Names = tuple[str, Counter[str]]
_current: ContextVar[_Names] = ContextVar("gpuloader_names", default=("", Counter()))


def generate(key: str) -> str:
    """Return `key` with a number that it has not yet had in the innermost `guard`.

    >>> with guard():
    ...     generate("image"), generate("image"), generate("label")
    ('image_0', 'image_1', 'label_0')
    """
    prefix, used = _current.get()
    used[key] += 1
    return f"{prefix}{key}_{used[key] - 1}"


@contextmanager
def guard(new_generator: str | None = None) -> Iterator[None]:
    """Number names from 0 again inside a ``with`` block, in this thread.

    Parameters
    ----------
    new_generator : str or None
        A prefix for the names inside; None means no prefix.

    Raises
    ------
    TypeError
        The prefix is not a string.

    Examples
    --------
    >>> with guard("test_"):
    ...     generate("image")
    'test_image_0'
    """
    if not isinstance(new_generator, str | None):
        raise BadType(f"new_generator must be a prefix or None, got {type(new_generator).__name__}")
    token = _current.set((new_generator or "", Counter()))
    try:
        yield
    finally:
        _current.reset(token)
