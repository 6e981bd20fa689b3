"""Samples that raise, and what stands for them while a loader leaves them out (``on_bad='skip'``)."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

from gpuloader.errors import DataFileError, DecodeError, LoaderError, describe_error
from gpuloader.order.randomness import current_draw
from gpuloader.sources.array_rows import own_method


class LeftOut:
    """Stands for a sample that cannot be read; `reason` names it and says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def is_about_data(error: Exception) -> bool:
    """Return whether a sample raised because of its data, not because a file or memory is missing."""
    if isinstance(error, LoaderError):
        return isinstance(error, DecodeError | DataFileError)
    # An OSError without a number comes from a decoder, such as Pillow's for an unknown image.
    return not (isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None))


def leaves_out(dataset: object) -> bool:
    """Return whether an iterable dataset can yield a `LeftOut` in place of a sample that raises."""
    is_able = bool(own_method(dataset, "_leaves_out", overriding={"__iter__"}))
    return is_able and all(map(leaves_out, getattr(dataset, "datasets", ())))


def apply(what: str, function: Callable[[Any], Any], sample: Any) -> Any:
    """Return what the user's function makes of a sample, or a `LeftOut` if it raises and the loader skips."""
    # Raised out of a dataset's iterator, the error would end the iterator and so the epoch.
    draw = current_draw()
    skips, draw.skips = draw.skips, False  # the function may iterate a dataset of its own
    try:
        return function(sample)
    except Exception as error:
        if skips and is_about_data(error):
            named = sample if isinstance(sample, dict) else {}
            known = [str(named[key]) for key in ("__url__", "__key__") if key in named]  # of a tar file
            title = ", ".join(known) or reprlib.repr(sample)
            return LeftOut(f"{what} raised {describe_error(error)} for {title}")
        raise
    finally:
        draw.skips = skips
