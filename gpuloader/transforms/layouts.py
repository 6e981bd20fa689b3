"""Layouts of pictures along a loader's transforms: what one transform makes is what the next one gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuloader.transforms.erasing import RandomErasing
from gpuloader.transforms.mixing import CutMix, MixUp
from gpuloader.transforms.normalizing import CHANNELS_LAST, Normalize, RandomCropFlip
from gpuloader.transforms.program import Transform
from gpuloader.transforms.values import Cast


def settle_layouts(transforms: Sequence[Transform], made: Iterable[str | None] = ()) -> list[Transform]:
    """Return the transforms, with the layout of pictures filled in where none is stated but it is known.

    Parameters
    ----------
    transforms : sequence of Transform
        The transforms of batches, in order.
    made : iterable of (str or None)
        The fields whose pictures the loader makes itself, in the layout HWC.

    Raises
    ------
    ValueError
        A transform states another layout than its field has.

    >>> [settled] = settle_layouts([RandomErasing("image")], made=["image"])
    >>> settled.layout
    'HWC'
    """
    known = dict.fromkeys(made, ("HWC", "the loader"))
    settled: list[Transform] = []
    for transform in transforms:
        name, field = type(transform).__name__, transform.field
        layout, maker = known.get(field, (None, ""))
        if isinstance(transform, Normalize | RandomCropFlip | RandomErasing | CutMix):
            if layout not in (None, CHANNELS_LAST):
                if transform.layout is None:
                    transform = replace(transform, layout=layout)
                elif transform.layout != layout:
                    raise ValueError(_contradict(name, field, transform.layout, layout, maker))
            if isinstance(transform, Normalize):
                known[field] = transform.to, "the Normalize before it"
        elif not isinstance(transform, Cast | MixUp):
            known.pop(field, None)  # it may make anything
        settled.append(transform)
    return settled


def _contradict(name: str, field: str | None, stated: str, layout: str | None, maker: str) -> str:
    if name == "Normalize":
        way = ", or leave one of them out" if "Normalize" in maker else ""
    else:
        way = f", or put {name} after Normalize" if layout == "HWC" and "Normalize" not in maker else ""
    which = "" if field is None else f" of field {field!r}"
    return (
        f"{name}{which} has layout {stated}, but {maker} makes these pictures in layout {layout}; "
        f"pass layout={layout!r}{way}"
    )
