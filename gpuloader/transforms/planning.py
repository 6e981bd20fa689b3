"""Transforms of single pictures: each sample's pictures are planned first and made then, all of one size.

A plan says what to do to one picture: geometry, and perhaps changes of color. It depends on the picture's
size and on random numbers, but not on its pixels. So it is known before the picture is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gpuloader.sources.pictures.coloring import Coloring, recolor
from gpuloader.sources.pictures.decoding import Pixels
from gpuloader.sources.pictures.geometry import Geometry
from gpuloader.sources.pictures.picture import as_picture, size_of
from gpuloader.sources.pictures.resampling import as_image, as_pixels, resample

Plan = list[Geometry | Coloring]
"""The steps in their order; the first is a `Geometry` of the decoded picture."""


@runtime_checkable
class PictureTransform(Protocol):
    """A transform of single pictures, as the user specifies it."""

    @property
    def field(self) -> str | None:
        """Name of the field; None means the first picture of the sample."""

    def extend(self, plan: Plan, rng: np.random.Generator) -> None:
        """Add to the plan of one picture, with random numbers from the sample's generator."""


def find_geometry(plan: Plan) -> Geometry:
    """Return the geometry that ends a plan, after adding one if the plan ends with colors.

    >>> find_geometry([Geometry.of(4, 6)]).size
    (4, 6)
    """
    last = plan[-1]
    if isinstance(last, Geometry):
        return last
    before = next(step for step in reversed(plan) if isinstance(step, Geometry))
    geometry = Geometry.of(before.height, before.width)
    plan.append(geometry)
    return geometry


def merge_plan(plan: Plan) -> tuple[Geometry, tuple[tuple[str, float], ...]] | None:
    """Return a plan as one geometry and the changes of color after it; None if it takes more passes.

    What is mirrored after its colors have changed may as well be mirrored before.

    >>> mirror = Geometry.of(4, 6).mirrored(flip=True)
    >>> geometry, changes = merge_plan([Geometry.of(4, 6), Coloring((("hue", 0.1),)), mirror])
    >>> geometry.flip, changes
    (True, (('hue', 0.1),))
    """
    geometry, *others = plan
    assert isinstance(geometry, Geometry)
    changes: tuple[tuple[str, float], ...] = ()
    for step in others:
        if isinstance(step, Coloring):
            changes += step.steps
        elif step == Geometry.of(geometry.height, geometry.width).mirrored(flip=step.flip, flop=step.flop):
            geometry = geometry.mirrored(flip=step.flip, flop=step.flop)
        else:
            return None
    return geometry, changes


def plan_picture(
    size: tuple[int, int], transforms: Sequence[PictureTransform], rng: np.random.Generator
) -> Plan:
    """Return the plan for a picture of this height and width."""
    plan: Plan = [Geometry.of(*size)]
    for transform in transforms:
        transform.extend(plan, rng)
    return plan


def make_picture(value: Any, transforms: Sequence[PictureTransform], rng: np.random.Generator) -> Pixels:
    """Return the pixels of a picture after its transforms, uint8 of shape (height, width, channels).

    Parameters
    ----------
    value : object
        What `as_picture` accepts.
    transforms : sequence of PictureTransform
        The transforms in order.
    rng : numpy.random.Generator
        The generator of the sample.

    Raises
    ------
    PictureError
        The picture cannot be decoded.
    SampleError
        The value is not a picture.
    """
    picture = as_picture(value)
    return finish_plan(picture, plan_picture(size_of(picture), transforms, rng))


def finish_plan(picture: Any, plan: Plan) -> Pixels:
    """Return the pixels that a plan makes of what `as_picture` returned."""
    made = picture
    for step in plan:
        made = resample(made, step) if isinstance(step, Geometry) else recolor(as_image(made), step)
    return as_pixels(made)
