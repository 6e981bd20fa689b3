"""Makes the pictures of each sample, before the sample is written: decoded, and all of one size.

For a place with a GPU, the regions that are needed are decoded, and the GPU makes the pictures of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuloader.batches.tree import entries_of, join_name
from gpuloader.errors import SampleError
from gpuloader.order.randomness import Draw
from gpuloader.sources.images.image import Picture, is_encoded
from gpuloader.transforms.image_staging import stage_encoded, stage_picture
from gpuloader.transforms.image_transforms import PictureTransform, make_picture

_LANE = 1  # of a sample's random numbers; those that the dataset draws are in lane 0


@dataclass(frozen=True, slots=True)
class PictureStage:
    """What is done to the pictures of a sample, by the thread that has fetched the sample.

    Attributes
    ----------
    chains : mapping of (str or None) to tuple of PictureTransform
        The transforms of each field; None is the first picture of the sample.
    decodes : bool
        Whether bytes in other fields are pictures, too.
    names : tuple of str or None
        The declared names of the fields of samples that are tuples; None if they are not declared.
    staged : mapping of (str or None) to str
        The chains whose pictures are made on a GPU, of the regions that are decoded here; and their filters.
    encoded : bool
        Whether the GPU decodes these pictures, too, as far as it can.
    found : set of str
        The names of the fields that have been pictures so far, for error messages.
    """

    chains: Mapping[str | None, tuple[PictureTransform, ...]]
    decodes: bool = False
    names: tuple[str, ...] | None = None
    staged: Mapping[str | None, str] = field(default_factory=dict)
    encoded: bool = False
    found: set[str] = field(default_factory=set, compare=False)

    @classmethod
    def of(
        cls,
        transforms: Sequence[PictureTransform],
        *,
        decodes: bool = False,
        names: tuple[str, ...] | None = None,
    ) -> PictureStage:
        """Return the stage for a loader's transforms of pictures."""
        chains: dict[str | None, tuple[PictureTransform, ...]] = {}
        for transform in transforms:
            chains[transform.field] = (*chains.get(transform.field, ()), transform)
        return cls(chains, decodes, names)

    def make(self, sample: Any, draw: Draw, key: object) -> Any:
        """Return a sample with its pictures as arrays.

        Parameters
        ----------
        sample : object
            The sample.
        draw : Draw
            The seed and the epoch of the random numbers.
        key : object
            The sample's index, or what stands for it.

        Raises
        ------
        SampleError
            A picture cannot be decoded, a value is not a picture, or there is no such field.
        """
        making = _Making(self, draw.make_generator(key, _LANE), key)
        if self.names is not None and isinstance(sample, tuple | list) and len(sample) == len(self.names):
            made: Any = [making.walk(one, name) for name, one in zip(self.names, sample, strict=True)]
        else:
            made = making.walk(sample, "")
        missing = [name for name in self.chains if name not in making.done]
        if missing:
            what = "no picture" if missing[0] is None else f"no field {missing[0]!r}"
            raise SampleError(f"{what} to transform; the sample has the fields {making.seen}")
        return made


class _Making:
    """One sample's pictures being made."""

    def __init__(self, stage: PictureStage, rng: np.random.Generator, key: object) -> None:
        self._stage = stage
        self._rng = rng
        self._key = key
        self.done: set[str | None] = set()
        self.seen: list[str] = []

    def walk(self, value: Any, name: str) -> Any:
        """Return a value with all pictures in it made."""
        chains = self._stage.chains
        if name in chains or (not name and "0" in chains and not isinstance(value, Mapping | list | tuple)):
            return self._make(value, name or "0", name or "0")
        if isinstance(value, Picture):
            return self._make(value, name, None)
        if is_encoded(value):
            wanted = self._stage.decodes or (None in chains and None not in self.done)
            return self._make(value, name, None) if wanted else value
        entries = entries_of(value)
        if entries is not None:
            return _replace(value, {key: self.walk(one, join_name(name, part)) for key, part, one in entries})
        if _is_picture(value):
            if None in chains and None not in self.done:
                return self._make(value, name, None)
            self._stage.found.add(name or "0")
        self.seen.append(name or "0")
        return value

    def _make(self, value: Any, name: str, chain: str | None) -> Any:
        transforms = self._stage.chains.get(chain, ()) if chain not in self.done else ()
        self.done.add(chain)
        self.seen.append(name or "0")
        self._stage.found.add(name or "0")
        try:
            if not transforms and isinstance(value, Picture):
                return value.decode()
            interpolation = self._stage.staged.get(chain) if transforms else None
            if interpolation is not None and self._stage.encoded:
                return stage_encoded(value, transforms, self._rng, interpolation, self._key)
            if interpolation is not None:
                return stage_picture(value, transforms, self._rng, interpolation)
            return make_picture(value, transforms, self._rng)
        except SampleError as error:
            error.field = error.field or name or "0"
            raise


def _is_picture(value: Any) -> bool:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None:
        return hasattr(value, "__array_interface__")  # an image of Pillow
    return dtype == np.uint8 and len(shape) in (2, 3)


def _replace(value: Any, entries: dict[Any, Any]) -> Any:
    """Return a container with other entries."""
    if all(entries[key] is one for key, one in _pairs(value)):
        return value
    if isinstance(value, tuple):
        return value._make(entries.values()) if hasattr(value, "_make") else tuple(entries.values())
    changed = copy.copy(value)
    for key, one in entries.items():
        changed[key] = one
    return changed


def _pairs(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items()) if isinstance(value, Mapping) else enumerate(value)
