"""Makes the pictures of each sample, before the sample is written: decoded, and all of one size.

For a place with a GPU, the regions that are needed are decoded, and the GPU makes the pictures of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuloader.batches.tree import entries_of, join_name, with_entries
from gpuloader.errors import SampleError
from gpuloader.order.randomness import Draw
from gpuloader.sources.images.image import Picture, is_encoded
from gpuloader.transforms.image_staging import stage_encoded, stage_picture
from gpuloader.transforms.image_transforms import PictureTransform, make_picture

_LANE = 1  # of a sample's random numbers; those that the dataset draws are in lane 0


@dataclass(frozen=True, slots=True)
class PictureStage:
    """What is done to the pictures of a sample, by the thread that has fetched the sample.

    `chains` has the transforms of each field; None is the first picture of the sample. `decodes` says whether
    bytes in other fields are pictures, too. `names` are the declared names of the fields of samples that are
    tuples; None if they are not declared. `staged` has the chains whose pictures are made on a GPU, of the
    regions that are decoded here, and their filters; `encoded` says whether the GPU decodes them, too, as far
    as it can. `found` are the names of the fields that have been pictures so far, for error messages.
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

        `draw` holds the seed and the epoch of the random numbers; `key` is the sample's index, or what stands
        for it.

        Raises
        ------
        SampleError
            A picture cannot be decoded, a value is not a picture, or there is no such field.
        """
        # Numbers of their own for each sample, so that its crops are the same whichever worker makes them.
        making = _Making(self, draw.make_generator(key, _LANE), key)
        if self.names is not None and isinstance(sample, tuple | list) and len(sample) == len(self.names):
            made: Any = [making.walk(one, name) for name, one in zip(self.names, sample, strict=True)]
        else:
            made = making.walk(sample, "")
        # A transform that met no picture is a mistyped field, which would otherwise pass in silence.
        if not self.chains.keys() <= making.done:
            missing = next(name for name in self.chains if name not in making.done)
            what = "no picture" if missing is None else f"no field {missing!r}"
            raise SampleError(f"{what} to transform; the sample has the fields {making.seen}")
        return made


@dataclass(slots=True)
class _Making:
    """One sample's pictures being made: which transforms were used, and the names of all fields so far."""

    stage: PictureStage
    rng: np.random.Generator
    key: object
    done: set[str | None] = field(default_factory=set)
    seen: list[str] = field(default_factory=list)

    def walk(self, value: Any, name: str) -> Any:
        """Return a value with all pictures in it made."""
        stage, named = self.stage, name or "0"
        chains = stage.chains
        if name in chains or (not name and "0" in chains and not isinstance(value, Mapping | list | tuple)):
            return self._make(value, named, named)
        if isinstance(value, Picture):
            return self._make(value, named, None)
        # A transform without a field is for the first picture; a mask or a second view beside it stays.
        first = None in chains and None not in self.done
        if is_encoded(value):
            return self._make(value, named, None) if stage.decodes or first else value
        entries = entries_of(value)
        if entries is not None:
            made = []
            for _, part, entry in entries:
                path = join_name(name, part)
                # Labels are numbers: the commonest entries beside pictures, and they never hold any.
                if (type(entry) is int or type(entry) is float) and path not in chains:
                    self.seen.append(path)
                    made.append(entry)
                else:
                    made.append(self.walk(entry, path))
            return with_entries(value, made)
        shape = getattr(value, "shape", None)
        if shape is None:  # an image of Pillow
            is_picture = hasattr(value, "__array_interface__")
        else:
            is_picture = getattr(value, "dtype", None) == np.uint8 and len(shape) in (2, 3)
        if is_picture:
            if first:
                return self._make(value, named, None)
            # Errors about its shape can then say what to do about pictures.
            stage.found.add(named)
        self.seen.append(named)
        return value

    def _make(self, value: Any, name: str, chain: str | None) -> Any:
        stage = self.stage
        transforms = stage.chains.get(chain, ()) if chain not in self.done else ()
        self.done.add(chain)
        self.seen.append(name)
        stage.found.add(name)
        try:
            if not transforms and isinstance(value, Picture):
                return value.decode()
            interpolation = stage.staged.get(chain) if transforms else None
            if interpolation is None:
                return make_picture(value, transforms, self.rng)
            if stage.encoded:
                return stage_encoded(value, transforms, self.rng, interpolation, self.key)
            return stage_picture(value, transforms, self.rng, interpolation)
        except SampleError as error:
            error.field = error.field or name
            raise
