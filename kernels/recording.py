"""Launches that are made once and repeated, or only noted: which kernels they need is known without them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Launch(NamedTuple):
    """A launch of a kernel.

    Attributes
    ----------
    entry : str
        The kernel's entry, as in `load_kernel`.
    kernel : callable
        The kernel.
    grid, block : tuple of int
        Its grid and block.
    arguments : tuple
        Its arguments.
    """

    entry: str
    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]


Kernel = tuple[str, str | None]
"""A kernel's file and entry, as in `load_kernel`."""


class _Recording(threading.local):
    launches: list[Launch] | None = None
    kernels: list[Kernel] | None = None


_recording = _Recording()


@contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """Collect the launches that this thread makes in the block, which run as usual.

    >>> with record_launches() as launches:
    ...     note_launch(Launch("spin", print, (1,), (32,), ("argument",)))
    >>> [launch.arguments for launch in launches]
    [('argument',)]
    """
    before = _recording.launches
    launches: list[Launch] = []
    _recording.launches = launches
    try:
        yield launches
    finally:
        _recording.launches = before


def note_launch(launch: Launch) -> None:
    """Add a launch that was made to the ones that are collected, if any are."""
    if _recording.launches is not None:
        _recording.launches.append(launch)


@contextmanager
def only_note_kernels() -> Iterator[list[Kernel]]:
    """Collect the kernels that this thread asks to launch in the block, and launch nothing.

    >>> with only_note_kernels() as kernels:
    ...     only_noted("spin", None)
    True
    >>> kernels, only_noted("spin", None)
    ([('spin', None)], False)
    """
    before = _recording.kernels
    kernels: list[Kernel] = []
    _recording.kernels = kernels
    try:
        yield kernels
    finally:
        _recording.kernels = before


def only_noted(name: str, entry: str | None) -> bool:
    """Return whether a kernel is not to be launched, because it was only noted now."""
    if _recording.kernels is None:
        return False
    _recording.kernels.append((name, entry))
    return True
