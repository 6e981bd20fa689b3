"""Pictures that a GPU decodes: workers only find out which region of each is needed, and whether it can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuloader.fields.encoded import Code, Encoded
from gpuloader.sources.pictures.picture import Picture, as_picture, size_of
from gpuloader.sources.pictures.plain import is_plain
from gpuloader.transforms.planning import PictureTransform, plan_picture
from gpuloader.transforms.staging import find_part, find_pass, stage_plan


def stage_encoded(
    value: Any,
    transforms: Sequence[PictureTransform],
    rng: np.random.Generator,
    interpolation: str,
    index: object = None,
) -> Encoded:
    """Return what a GPU needs to decode and make a picture.

    A picture that GPUs do not decode as CPUs do is decoded when it is written, and one that takes more than
    one pass is made then. So is one that looks damaged, since the CPU's decoder knows for sure.

    Parameters
    ----------
    value : object
        What `as_picture` accepts.
    transforms : sequence of PictureTransform
        The transforms in order.
    rng : numpy.random.Generator
        The generator of the sample.
    interpolation : str
        The filter that the kernel is launched with.
    index : object
        The sample's index in the dataset.

    Raises
    ------
    PictureError
        The picture has no header.
    SampleError
        The value is not a picture.
    """
    picture = as_picture(value)
    plan = plan_picture(size_of(picture), transforms, rng)
    number = index if isinstance(index, int) else -1
    found = find_pass(plan, transforms, interpolation)
    if found is not None and isinstance(picture, Picture) and is_plain(picture.data):
        part, geometry = find_part(picture.header.size, *found)
        data = np.frombuffer(picture.data, np.uint8)
        code = Code(data, part, picture.header.orientation, 3, picture.file, number)
        return Encoded(code, geometry)
    file = picture.file if isinstance(picture, Picture) else ""
    return Encoded.of(stage_plan(picture, plan, transforms, interpolation), file, number)
