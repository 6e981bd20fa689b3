"""`Decode`: pictures that a device decodes between the copy of a batch and its program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuloader.base.errors import SampleError
from gpuloader.fields.encoded import Encoded
from gpuloader.transforms.operations import Plain, Spec


@dataclass(frozen=True, slots=True)
class Decoding:
    """What a device decodes for a program, before the program runs.

    Attributes
    ----------
    outputs : tuple of Spec
        The spec of the pixels: one row per pixel, the pictures one behind the other.
    skips : bool
        Whether samples whose pictures cannot be decoded are left out.
    codes, pixels : int
        The numbers of the array of codes and of the array of pixels.
    field : str
        The field's name.
    """

    outputs: tuple[Spec, ...]
    skips: bool = False
    codes: int = 0
    pixels: int = 0
    field: str = ""


@dataclass(frozen=True)
class Decode(Plain):
    """Has the device decode a field of `Encoded` pictures, which is a field of regions from then on.

    Attributes
    ----------
    field : str or None
        The field; None means the first one.
    skips : bool
        Whether samples whose pictures cannot be decoded are left out.
    """

    field: str | None
    skips: bool = False

    def find(self, names: Sequence[str], levels: Sequence[int]) -> str | None:
        """Return the name of the field, among fields of these names and levels."""
        found = (name for name, level in zip(names, levels, strict=True) if level == Encoded.level)
        return self.field if self.field is not None else next(found, None)

    def bind(self, inputs: Sequence[Spec]) -> Decoding:
        """Return what is decoded for a batch."""
        if len(inputs) != 1 + Encoded.level:
            raise SampleError("expected a field of pictures")
        (pixels, channels, _), dtype = inputs[-1]
        return Decoding((((pixels, channels), np.dtype(dtype)),), self.skips)
